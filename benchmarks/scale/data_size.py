# SPDX-License-Identifier: Apache-2.0
"""Data size: what the next row costs, and a start, when there is little or much data in a log table."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from benchmarks.scale.study import NO_COMPRESSION, Point, Study, client, folder_bytes, memory_mb, seconds
from fluss.server.local import LocalServer

MB = 1_000_000
BATCH_ROWS = 35_000  # about 1 MB of the three columns, uncompressed
FREE_SHARE_MAX = 0.6


def measure(study: Study) -> Iterator[Point]:
    sizes = study.points(*(size * MB for size in (1, 10, 100, 1_000, 5_000, 20_000)))
    free = shutil.disk_usage(study.folder).free
    with study.server() as server:
        with client(server) as worker:
            worker.call("create", table="scale", properties=NO_COMPRESSION)
        written = 0
        for size in sizes:
            if size > free * FREE_SHARE_MAX:
                return  # the machine is not for this study alone
            batches = max(1, round(size / MB) - written)
            with client(server) as worker:
                fill = seconds(worker, "write_same", table="scale", batch_rows=BATCH_ROWS, batches=batches)
                written += batches

                def one_more(worker: object = worker) -> float:
                    return seconds(worker, "write_same", table="scale", batch_rows=BATCH_ROWS, batches=1)  # type: ignore[arg-type]

                again = study.middle(one_more)
                written += study.repeats
                tail = study.middle(lambda w=worker: seconds(w, "read_tail", table="scale", rows=BATCH_ROWS))  # type: ignore[misc]
                whole = seconds(worker, "read_through", table="scale")
            megabytes = written
            costs = {
                "append of the difference, ms a MB": fill / batches * 1e3,
                "one more MB and a flush, ms": again * 1e3,
                "the newest MB, ms": tail * 1e3,
                "scan of everything, ms a MB": whole / megabytes * 1e3,
                "memory of the server, MB": memory_mb(server),
                "start, ms": _restart_ms(server, clean=True),
                "start after a kill, ms": _restart_ms(server, clean=False),
                "disk, MB a MB": folder_bytes(server.data_dir) / MB / megabytes,
            }
            yield Point(megabytes * MB, costs)


def _restart_ms(server: LocalServer, *, clean: bool) -> float:
    server.stop() if clean else server.crash()
    began = time.perf_counter()
    server.start()
    return (time.perf_counter() - began) * 1e3
