# SPDX-License-Identifier: Apache-2.0
"""Rows per batch: what a row costs when few or many of them travel together."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.scale.study import Point, Study, client, seconds


def measure(study: Study) -> Iterator[Point]:
    with study.server() as server, client(server) as worker:
        for batch_rows in study.points(1, 10, 100, 1_000, 10_000, 100_000):
            batches = max(50, min(20_000, 5_000_000 // batch_rows))
            flushes = max(2, min(200, 200_000 // batch_rows))

            def write(batch_rows: int = batch_rows, batches: int = batches) -> float:
                worker.call("create", table="scale")
                return seconds(worker, "write_same", table="scale", batch_rows=batch_rows, batches=batches)

            def flush(batch_rows: int = batch_rows, flushes: int = flushes) -> float:
                worker.call("create", table="flushed")
                return seconds(worker, "append_flush", table="flushed", rows=batch_rows, flushes=flushes)

            rows = batch_rows * batches
            costs = {"write_arrow_batch, ns a row": study.middle(write) / rows * 1e9}
            costs["scan of them, ns a row"] = (
                study.middle(lambda: seconds(worker, "read_through", table="scale")) / rows * 1e9
            )
            costs["append() and a flush, ns a row"] = study.middle(flush) / (batch_rows * flushes) * 1e9
            yield Point(batch_rows, costs)
