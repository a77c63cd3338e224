# SPDX-License-Identifier: Apache-2.0
"""How fast the state of a primary-key bucket takes writes and answers lookups, without network and log.

Run it: ``python benchmarks/micro/kv.py [rows per batch]``.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.metadata import AggFunction, BigIntType, Column, DoubleType, Schema, StringType
from fluss.records import KvBatch, encode_arrow_body, encode_kv_body, seal_kv_batch, seal_log_batch
from fluss.rows import encode_compacted, encode_compacted_key
from fluss.server.kv.budget import StoreBudget
from fluss.server.kv.changes import Outcome, replace_rows
from fluss.server.kv.merge import aggregation_rules, merge_batch, partial_rules
from fluss.server.kv.store import Store
from fluss.server.kv.values import ValueCodec

SCHEMA = Schema.of(
    [
        Column("id", BigIntType(nullable=False)),
        Column("name", StringType(), agg_function=AggFunction("last_value")),
        Column("score", DoubleType(), agg_function=AggFunction("sum")),
    ],
    primary_key=("id",),
)
TYPES = [column.data_type for column in SCHEMA.columns]
BATCHES = 8


def kv_batch(first: int, count: int) -> bytes:
    ids = np.arange(first, first + count, dtype=np.int64) + (1 << 50)  # keys of eight bytes
    arrays = [pa.array(ids), pa.array([f"user-{i}" for i in range(count)]), pa.array(ids * 0.5)]
    keys, rows = encode_compacted_key(TYPES[:1], arrays[:1]), encode_compacted(TYPES, arrays)
    return b"".join(bytes(part) for part in seal_kv_batch(encode_kv_body(keys, rows), 1))


def put(store: Store, data: bytes, merge: Callable[[KvBatch], Outcome]) -> None:
    """Everything that the server does for one batch but the socket and the file."""
    outcome = merge(KvBatch.parse(memoryview(data)))
    body = encode_arrow_body(outcome.records, compression="ZSTD", level=3, change_types=outcome.change_types)
    b"".join(seal_log_batch(body, schema_id=1))
    store.apply(outcome.changes, store.applied_offset + len(outcome.change_types), outcome.rows_added)


def report(label: str, rows: int, work: Callable[[], Any], repeats: int = 3) -> None:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(f"{label:52} {rows / min(times) / 1e6:8.3f} M rows/s")


class Gaps:
    """The longest time that another thread had to wait meanwhile."""

    def __enter__(self) -> Gaps:
        self.longest_s, self._stop = 0.0, False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._stop:
            time.sleep(0.001)
            now = time.perf_counter()
            self.longest_s, last = max(self.longest_s, now - last), now

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()


def main() -> None:
    """Print one line per kind of work."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    codec = ValueCodec("COMPACTED", {1: SCHEMA}, 1)
    batches = [kv_batch(i * count, count) for i in range(BATCHES)]
    total = count * BATCHES
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as executor:

        def fresh(name: str) -> Store:
            store = Store(Path(folder) / name, StoreBudget(1 << 40, executor))
            store.open()
            return store

        store = fresh("memory")
        partial, summed = partial_rules(SCHEMA, [0, 1]), aggregation_rules(SCHEMA, ())

        def run(store: Store, merge: Callable[[KvBatch], Outcome]) -> None:
            for data in batches:
                put(store, data, merge)

        report(
            "put, inserts", total, lambda: run(fresh("i"), lambda b: replace_rows(codec, [(b, store.get_many)])[0]), 2
        )
        run(store, lambda b: replace_rows(codec, [(b, store.get_many)])[0])
        report("put, updates", total, lambda: run(store, lambda b: replace_rows(codec, [(b, store.get_many)])[0]))
        blind = lambda b: replace_rows(codec, [(b, store.get_many)], with_before=False, blind=True)[0]  # noqa: E731
        report("put, changelog image WAL", total, lambda: run(store, blind))
        merged = lambda rules: lambda b: merge_batch(codec, b, store.get_many, rules, with_before=True)  # noqa: E731
        report("put, partial update", total, lambda: run(store, merged(partial)))
        report("put, aggregation", total, lambda: run(store, merged(summed)))

        keys = KvBatch.parse(memoryview(batches[0])).keys.to_list()
        report("get many, from memory", count, lambda: store.get_many(keys))
        prefixes = keys[:: max(len(keys) // 1000, 1)]
        report("prefix lookups in memory", len(prefixes), lambda: [list(store.values(key[:7])) for key in prefixes])
        with Gaps() as gaps:
            start = time.perf_counter()
            store.start_spill().result()
            store.finish_spill()
            seconds = time.perf_counter() - start
        print(f"{'move to disk':52} {total / seconds / 1e6:8.3f} M rows/s, others wait {gaps.longest_s * 1e3:.0f} ms")
        report("get many, from disk", count, lambda: store.get_many(keys))
        absent = [key[::-1] + b"x" for key in keys]
        report("get many, absent, from disk", count, lambda: store.get_many(absent))
        report("prefix lookups on disk", len(prefixes), lambda: [list(store.values(key[:7])) for key in prefixes])
        report("scan of everything on disk", total, lambda: sum(1 for _ in store.snapshot()))
        report(
            "put, updates of rows on disk",
            count,
            lambda: put(store, batches[1], lambda b: replace_rows(codec, [(b, store.get_many)])[0]),
            1,
        )
        store.close(keep=False)


if __name__ == "__main__":

    async def with_a_loop() -> None:
        main()

    asyncio.run(with_a_loop())
