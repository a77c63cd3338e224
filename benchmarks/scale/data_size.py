# SPDX-License-Identifier: Apache-2.0
"""Data size: what the next row costs, and a start, when there is little or much data in a log table."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from benchmarks.harness import Worker
from benchmarks.scale.study import NO_COMPRESSION, Point, Study, client, folder_bytes, memory_mb, seconds

MB = 1_000_000
BATCH_ROWS = 35_000  # about 1 MB of the three columns, uncompressed
FREE_SHARE_MAX = 0.6


def measure(study: Study) -> Iterator[Point]:
    sizes = study.points(*(size * MB for size in (1, 10, 100, 1_000, 5_000, 20_000)))
    free = shutil.disk_usage(study.folder).free
    with study.server() as server:
        with client(server) as worker:
            worker.call("create", table="scale", properties=NO_COMPRESSION)
        megabytes = 0
        for size in sizes:
            if size > free * FREE_SHARE_MAX:
                return  # the machine is not for this study alone
            batches = max(1, size // MB - megabytes)
            megabytes += batches + study.repeats
            with client(server) as worker:
                costs = _costs(study, worker, batches, megabytes)
            costs["memory of the server, MB"] = memory_mb(server)
            costs["start, ms"] = study.restart_ms(server)
            costs["start after a kill, ms"] = study.restart_ms(server, clean=False)
            costs["disk, MB a MB"] = folder_bytes(server.data_dir) / MB / megabytes
            yield Point(megabytes * MB, costs)


def _costs(study: Study, worker: Worker, batches: int, megabytes: int) -> dict[str, float]:
    def write(count: int) -> float:
        return seconds(worker, "write_same", table="scale", batch_rows=BATCH_ROWS, batches=count)

    return {
        "append of the difference, ms a MB": write(batches) / batches * 1e3,
        "one more MB and a flush, ms": study.middle(lambda: write(1)) * 1e3,
        "the newest MB, ms": study.middle(lambda: seconds(worker, "read_tail", table="scale", rows=BATCH_ROWS)) * 1e3,
        "scan of everything, ms a MB": seconds(worker, "read_through", table="scale") / megabytes * 1e3,
    }
