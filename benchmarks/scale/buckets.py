# SPDX-License-Identifier: Apache-2.0
"""Buckets: what a row costs when its table has few or many of them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.scale.study import Point, Study, client, memory_mb, seconds

BATCH_ROWS = 65_536
BATCHES = 64
KEYS = 200_000
LOOKUPS = 6_400


def measure(study: Study) -> Iterator[Point]:
    with study.server() as server, client(server) as worker:
        for buckets in study.points(1, 4, 16, 64, 256):

            def write(buckets: int = buckets) -> float:
                worker.call("create", table="scale", buckets=buckets)
                return seconds(worker, "write_same", table="scale", batch_rows=BATCH_ROWS, batches=BATCHES)

            def read(buckets: int = buckets) -> float:
                return seconds(worker, "read_through", table="scale", buckets=buckets)

            def upsert() -> float:
                return seconds(worker, "upsert_rows", table="keyed", rows=KEYS)

            def look() -> float:
                return seconds(worker, "lookups_together", table="keyed", count=LOOKUPS, keys=KEYS)

            worker.call("create", table="keyed", buckets=buckets, primary_key=True)
            first = upsert()
            rows = BATCH_ROWS * BATCHES
            yield Point(
                buckets,
                {
                    "write_arrow_batch, ns a row": study.middle(write) / rows * 1e9,
                    "scan of all buckets, ns a row": study.middle(read) / rows * 1e9,
                    "upsert into new buckets, ns a row": first / KEYS * 1e9,
                    "upsert, ns a row": study.middle(upsert) / KEYS * 1e9,
                    "lookup, 64 at a time, ns a row": study.middle(look) / LOOKUPS * 1e9,
                    "memory of the server, MB": memory_mb(server),
                },
            )
