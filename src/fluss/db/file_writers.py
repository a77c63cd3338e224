# SPDX-License-Identifier: Apache-2.0
"""Rows into files and streams: Parquet, Arrow, CSV and JSON lines."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow as pa

from fluss._text import json_text, json_value
from fluss.db.plain_values import plain_values
from fluss.errors import InvalidArgumentError

Write = Callable[[pa.RecordBatch], None]
_PLAIN_SCALE_MAX = 6
"""Arrow writes decimals of up to so many digits behind the point as they are."""


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch that CSV can hold: nested values as JSON, bytes as base64, decimals with all their digits."""
    kinds = pa.types
    arrays = []
    for column in batch.columns:
        if kinds.is_nested(column.type):
            texts = [None if v is None else json.dumps(v, ensure_ascii=False) for v in plain_values(column)]
            column = pa.array(texts, pa.string())
        elif _needs_digits(column.type) or kinds.is_interval(column.type) or _is_bytes(column.type):
            texts = [None if value is None else str(value) for value in plain_values(column)]
            column = pa.array(texts, pa.string())
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _needs_digits(kind: pa.DataType) -> bool:
    """Whether Arrow would write small decimals with an exponent."""
    return bool(pa.types.is_decimal(kind) and not 0 <= kind.scale <= _PLAIN_SCALE_MAX)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


@contextlib.contextmanager
def open_writer(target: str | IO[bytes], kind: str, schema: pa.Schema) -> Iterator[Write]:
    """Write batches to a file or stream in a format; a file appears under its name only when it is complete.

    Example:
        with open_writer("orders.parquet", "parquet", schema) as write:
            write(batch)
    """
    if not isinstance(target, str):
        with _format_writer(target, kind, schema) as write:
            yield write
        return
    folder = os.path.dirname(target)
    if folder and not os.path.isdir(folder):
        raise InvalidArgumentError(f"cannot write '{target}': there is no folder '{folder}'. Create it first")
    if os.path.exists(target) and not os.path.isfile(target):  # a device or a pipe, which no file may replace
        with open(target, "wb") as device, _format_writer(device, kind, schema) as write:
            yield write
        return
    partial = f"{target}.partial"
    compressed = target.lower().endswith(".gz")
    try:
        with open(partial, "wb") as raw:
            sink: Any = gzip.GzipFile(fileobj=raw, mode="wb") if compressed else raw
            with _format_writer(sink, kind, schema) as write:
                yield write
            if compressed:
                sink.close()
        os.replace(partial, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:  # such as a full disk
            raise OSError(error.errno, error.strerror, target) from None
        raise


@contextlib.contextmanager
def _format_writer(sink: Any, kind: str, schema: pa.Schema) -> Iterator[Write]:
    if kind == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetWriter(sink, schema) as parquet:
            yield parquet.write_batch
    elif kind == "arrow":
        with pa.ipc.new_file(sink, schema) as arrow:
            yield arrow.write_batch
    elif kind == "csv":
        import pyarrow.csv as pc

        sink.write((",".join(_quoted(name) for name in schema.names) + "\n").encode())
        options = pc.WriteOptions(include_header=False, quoting_style="needed")

        def write(batch: pa.RecordBatch) -> None:
            if batch.num_rows:
                pc.write_csv(_flat(batch), sink, options)

        yield write
    else:
        yield lambda batch: sink.write(
            "".join(f"{json_text(json_value(row))}\n" for row in python_dicts(batch)).encode()
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n\r') else name


def python_dicts(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch as dicts; maps are dicts too, and decimals without a fraction are whole numbers."""
    columns = []
    for column in batch.columns:
        kind = column.type
        try:
            values = column.to_pylist()
        except (ValueError, OverflowError):  # years after 9999; nanoseconds, if there is no pandas
            values = plain_values(column)
            if pa.types.is_timestamp(kind):
                values = [None if value is None else value.replace(" ", "T") for value in values]
        # DuckDB gives its sums of whole numbers as DECIMAL(38, 0).
        make = dict if pa.types.is_map(kind) else int if pa.types.is_decimal(kind) and kind.scale == 0 else None
        columns.append(values if make is None else [None if value is None else make(value) for value in values])
    return [dict(zip(batch.schema.names, values)) for values in zip(*columns)]
