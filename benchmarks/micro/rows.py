# SPDX-License-Identifier: Apache-2.0
"""How fast rows are encoded, decoded and hashed: the vectorised coders beside their scalar twins.

Run it: ``python benchmarks/micro/rows.py [rows]``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.metadata.types import BigIntType, DataType, DoubleType, StringType, TimestampType
from fluss.rows import compacted
from fluss.rows.arrow_values import from_arrow
from fluss.rows.bucketing import bucket_of, buckets_of
from fluss.rows.vector import decode_compacted, encode_compacted, encode_compacted_key

REPEATS = 7


def best_seconds(work: Callable[[], Any]) -> float:
    """The quickest of several runs: the machine is shared, so the least disturbed run says most."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def columns(count: int) -> tuple[list[DataType], list[pa.Array]]:
    """The columns of the benchmark: (id, name, score, time)."""
    ids = np.arange(count, dtype=np.int64)
    types: list[DataType] = [BigIntType(), StringType(), DoubleType(), TimestampType(6)]
    return types, [
        pa.array(ids),
        pa.array([f"user-{i}" for i in range(count)]),
        pa.array(ids * 0.5),
        pa.array(1_705_314_600_123_456 + ids * 1001, pa.timestamp("us")),
    ]


def main() -> None:
    """Print one line per kind of work."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    types, arrays = columns(count)
    values = list(zip(*(from_arrow(array, dtype) for array, dtype in zip(arrays, types))))
    rows = encode_compacted(types, arrays)
    row_list = rows.to_list()
    keys = encode_compacted_key(types[:1], arrays[:1])
    key_list = keys.to_list()
    lines: list[tuple[str, Callable[[], Any], Callable[[], Any] | None]] = [
        (
            "encode (int64, string, float64, timestamp)",
            lambda: encode_compacted(types, arrays),
            lambda: [compacted.encode_row(types, row) for row in values],
        ),
        (
            "decode (int64, string, float64, timestamp)",
            lambda: decode_compacted(types, rows),
            lambda: [compacted.decode_row(types, row) for row in row_list],
        ),
        ("encode (int64, string, float64)", lambda: encode_compacted(types[:3], arrays[:3]), None),
        ("encode key (int64)", lambda: encode_compacted_key(types[:1], arrays[:1]), None),
        ("buckets of keys", lambda: buckets_of(keys, 16), lambda: [bucket_of(key, 16) for key in key_list]),
        ("close the gaps of encoded rows", rows.contiguous, None),
    ]
    three = encode_compacted(types[:3], arrays[:3])
    lines.insert(3, ("decode (int64, string, float64)", lambda: decode_compacted(types[:3], three), None))
    print(f"{count} rows{'':38}  M rows/s   scalar   ratio")
    for name, vectorised, scalar in lines:
        fast = best_seconds(vectorised)
        line = f"{name:48} {count / fast / 1e6:9.2f}"
        if scalar is not None:
            slow = best_seconds(scalar)
            line += f" {count / slow / 1e6:9.2f} {slow / fast:7.1f}"
        print(line)


if __name__ == "__main__":
    main()
