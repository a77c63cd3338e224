# SPDX-License-Identifier: Apache-2.0
"""Start to ready of a server that has much data: after a clean stop, as an operator restarts it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.harness import REPOSITORY, Bar, Result, Settings
from benchmarks.scale.data_size import BATCH_ROWS
from benchmarks.scale.study import NO_COMPRESSION, Study, client

MEGABYTES = 10_000


def start_cases(settings: Settings) -> Iterator[Result]:
    if not settings.wanted("start to ready, 10 GB of log"):
        return
    megabytes = max(100, int(MEGABYTES * settings.scale))
    with Study(folder=REPOSITORY / ".cache").server() as server:
        with client(server) as worker:
            worker.call("create", table="full", properties=NO_COMPRESSION)
            worker.call("write_same", table="full", batch_rows=BATCH_ROWS, batches=megabytes)
        times = []
        for _ in range(settings.repeats):
            server.stop()
            began = time.perf_counter()
            server.start()
            times.append(time.perf_counter() - began)
    yield Result(f"start to ready, {megabytes / 1000:g} GB of log", times, [], "s", None, Bar(3.0, 1.0, "s", False))
