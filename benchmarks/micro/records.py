# SPDX-License-Identifier: Apache-2.0
"""How fast batches are encoded, decoded, projected and parsed, beside what Arrow alone needs for the same bytes.

The bar: sealing a log batch costs at most 15 % more than Arrow's own IPC write of the same batch.

Run it: ``python benchmarks/micro/records.py [rows]``. It exits with 1 if the bar is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.metadata import BigIntType, Column, DoubleType, Schema, StringType, TimestampType
from fluss.records import (
    KvBatch,
    LogBatch,
    build_statistics,
    cut_batch,
    decode_arrow_batch,
    decode_row_batch,
    encode_arrow_body,
    encode_kv_body,
    encode_row_body,
    seal_kv_batch,
    seal_log_batch,
)
from fluss.rows.slices import Slices

RATIO_MAX = 1.15
ROUNDS = 5
"""Sides take turns and the median of the rounds counts: the machine may be shared."""
REPEATS = 7
CODECS = {"NONE": None, "LZ4_FRAME": pa.Codec("lz4"), "ZSTD": pa.Codec("zstd", compression_level=3)}

SCHEMA = Schema.of(
    [
        Column("id", BigIntType()),
        Column("name", StringType()),
        Column("score", DoubleType()),
        Column("at", TimestampType(6)),
    ]
)


def best_seconds(work: Callable[[], Any]) -> float:
    """The quickest of several runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def alternate(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float, float]:
    """Median seconds of both sides, and the median of their ratios."""
    ours()
    theirs()
    rounds = [(best_seconds(ours), best_seconds(theirs)) for _ in range(ROUNDS)]
    return (
        statistics.median(a for a, _ in rounds),
        statistics.median(b for _, b in rounds),
        statistics.median(a / b for a, b in rounds),
    )


def make_batch(rows: int) -> pa.RecordBatch:
    """The rows of the benchmark."""
    generator = np.random.default_rng(1)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(generator.integers(0, 1 << 40, rows)),
            pa.array([f"user-{i % 1000}" for i in range(rows)]),
            pa.array(generator.random(rows)),
            pa.array(1_700_000_000_000_000 + np.arange(rows) * 1001, pa.timestamp("us")),
        ],
        schema=SCHEMA.arrow_schema,
    )


def ipc_write(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> pa.Buffer:
    """What Arrow does with a batch without a header."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def seal(batch: pa.RecordBatch, compression: str) -> list[Any]:
    """A whole log batch as parts, ready to be sent."""
    return seal_log_batch(encode_arrow_body(batch, compression=compression), schema_id=1, writer_id=1, batch_sequence=0)


def compare(rows: int) -> bool:
    """Encoding and decoding beside Arrow; whether the bar is met."""
    batch = make_batch(rows)
    met = True
    print(f"{rows} rows of 4 columns{'':27} ours      Arrow     ratio")
    for compression, codec in CODECS.items():
        options = pa.ipc.IpcWriteOptions(compression=codec)
        arrow_write = batch.serialize if codec is None else (lambda options=options: ipc_write(batch, options))
        ours, theirs, ratio = alternate(lambda compression=compression: seal(batch, compression), arrow_write)
        met = met and ratio <= RATIO_MAX
        print(f"encode {compression:40} {ours * 1e3:7.3f} ms {theirs * 1e3:7.3f} ms {ratio:6.2f}")
    for compression in CODECS:
        log_batch = LogBatch(b"".join(seal(batch, compression)))
        message = pa.py_buffer(log_batch.arrow_view)
        ours, theirs, ratio = alternate(
            lambda log_batch=log_batch: decode_arrow_batch(log_batch, batch.schema),
            lambda message=message: pa.ipc.read_record_batch(message, batch.schema),
        )
        print(f"decode {compression:40} {ours * 1e3:7.3f} ms {theirs * 1e3:7.3f} ms {ratio:6.2f}")
    return met


def measure(rows: int) -> None:
    """The rest, in millions of rows per second."""
    batch = make_batch(rows)
    plain, zstd = (LogBatch(b"".join(seal(batch, compression))) for compression in ("NONE", "ZSTD"))
    compacted = LogBatch(b"".join(seal_log_batch(encode_row_body("COMPACTED", SCHEMA.data_types, batch), schema_id=1)))
    records = 50_000
    generator = np.random.default_rng(2)
    keys = Slices.from_list([i.to_bytes(8, "big") for i in range(records)])
    same = Slices.from_list([bytes(30)] * records)
    mixed = Slices.from_list([bytes(int(size)) for size in generator.integers(10, 50, records)])
    kv_same, kv_mixed = (b"".join(seal_kv_batch(encode_kv_body(keys, values), 1)) for values in (same, mixed))
    lines: list[tuple[str, int, Callable[[], Any]]] = [
        ("decode NONE, every value checked", rows, lambda: decode_arrow_batch(plain, batch.schema, validate=True)),
        ("decode 1 of 4 columns, ZSTD", rows, lambda: decode_arrow_batch(zstd, batch.schema, columns=[1])),
        ("project 2 of 4 columns, NONE", rows, lambda: cut_batch(plain, [1, 3], batch.schema).parts(plain.view)),
        ("project 2 of 4 columns, ZSTD", rows, lambda: cut_batch(zstd, [1, 3], batch.schema).parts(zstd.view)),
        ("checksum of a batch, NONE", rows, plain.verify_crc),
        ("statistics of 4 columns", rows, lambda: build_statistics(batch, SCHEMA, (0, 1, 2, 3))),
        ("encode COMPACTED log batch", rows, lambda: encode_row_body("COMPACTED", SCHEMA.data_types, batch)),
        ("decode COMPACTED log batch", rows, lambda: decode_row_batch(compacted, "COMPACTED", SCHEMA.row_type)),
        ("parse KV batch, rows of one size", records, lambda: KvBatch.parse(kv_same)),
        ("parse KV batch, rows of many sizes", records, lambda: KvBatch.parse(kv_mixed)),
        ("build KV batch", records, lambda: seal_kv_batch(encode_kv_body(keys, mixed), 1)),
    ]
    print(f"\n{'':47}     time     M rows/s")
    for name, count, work in lines:
        work()
        seconds = statistics.median(best_seconds(work) for _ in range(ROUNDS))
        print(f"{name:47} {seconds * 1e3:7.3f} ms {count / seconds / 1e6:9.1f}")


def main() -> None:
    """Print the tables."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    met = compare(rows)
    measure(rows)
    if not met:
        print(f"\nencoding costs more than {RATIO_MAX:.2f} times Arrow's own write", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
