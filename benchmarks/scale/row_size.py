# SPDX-License-Identifier: Apache-2.0
"""Row size: what a byte costs in small and in large rows."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.scale.study import Point, Study, client, seconds

BYTES = 128_000_000
KEYED_BYTES = 16_000_000


def measure(study: Study) -> Iterator[Point]:
    with study.server() as server, client(server) as worker:
        for size in study.points(10, 100, 1_000, 10_000, 100_000, 1_000_000):
            batch_rows = max(1, min(65_536, 1_000_000 // size))
            rows = max(1, min(3_000_000, BYTES // size) // batch_rows) * batch_rows
            keys = max(16, min(100_000, KEYED_BYTES // size))

            def write(size: int = size, rows: int = rows, batch_rows: int = batch_rows) -> float:
                worker.call("create_payload", table="scale")
                return seconds(
                    worker, "write_payload", table="scale", rows=rows, size_bytes=size, batch_rows=batch_rows
                )

            def upsert(size: int = size, keys: int = keys) -> float:
                worker.call("create_payload", table="keyed", primary_key=True)
                return seconds(worker, "upsert_payload", table="keyed", rows=keys, size_bytes=size)

            def look(keys: int = keys) -> float:
                return seconds(worker, "lookup_payload", table="keyed", count=200, keys=keys)

            yield Point(
                size,
                {
                    "append, ns a byte": study.middle(write) / (rows * size) * 1e9,
                    "scan, ns a byte": study.middle(lambda: seconds(worker, "read_through", table="scale"))
                    / (rows * size)
                    * 1e9,
                    "upsert, ns a byte": study.middle(upsert) / (keys * size) * 1e9,
                    "lookup, µs a row": study.middle(look) / 200 * 1e6,
                },
            )
