# SPDX-License-Identifier: Apache-2.0
"""Tasks of a round on this machine. On a cluster the Spark runner takes this place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from fluss.lake.tasks import BucketResult, BucketTask, run_task


class LocalRunner:
    """Tasks in threads of this process: decoding, compressing and writing run outside the interpreter lock."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(8, max(2, os.cpu_count() or 2))

    def run(self, tasks: Sequence[BucketTask], done: Callable[[BucketResult], None]) -> list[BucketResult]:
        """Run all tasks; raises the first error after those that run have ended."""
        results: list[BucketResult] = []
        failure: BaseException | None = None
        with ThreadPoolExecutor(min(self._threads, max(1, len(tasks))), "fluss-tier") as pool:
            futures = [pool.submit(run_task, task) for task in tasks]
            for future in as_completed(futures):
                if future.cancelled():
                    continue
                error = future.exception()
                if error is None:
                    results.append(future.result())
                    done(results[-1])
                elif failure is None:
                    failure = error
                    for other in futures:
                        other.cancel()
        if failure is not None:
            raise failure
        return results
