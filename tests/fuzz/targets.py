# SPDX-License-Identifier: Apache-2.0
"""Batches with changed content and a checksum that fits, read with the settings of production.

A case is a number: it determines the target, the seed and the changes. Whatever a decoder accepts is looked at, value
by value, by every reader we have: a decoder that lets bad offsets through ends the process there.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from tests.fuzz.mutations import Op, byte_ops, change_bytes, change_parts, part_ops
from tests.records.forge import CODECS, Parts
from tests.records.tables import ALL_TYPES, ID_NAME, NESTED, NESTED_ROWS, ROW_A, ROW_B, project_batch, to_batch

from fluss._checksum import crc32c
from fluss.client.lookup_wire import ValueDecoder
from fluss.client.scan.decode import BatchDecoder
from fluss.client.scan.records import column_to_python
from fluss.errors import FlussError, FormatError
from fluss.metadata import Column, Schema, TableBucket, TableDescriptor, TableInfo, TablePath, statistics_columns
from fluss.metadata import types as t
from fluss.records import (
    KvBatch,
    Statistics,
    build_statistics,
    check_log_batch,
    decode_value_batch,
    encode_arrow_body,
    encode_kv_body,
    encode_row_body,
    encode_value_batch,
    iter_log_batches,
    seal_kv_batch,
    seal_log_batch,
)
from fluss.rows import Slices, compacted, indexed
from fluss.server.kv.values import ValueCodec

BUCKET = TableBucket(1, 0)
_LENGTH = struct.Struct("<i")

DEEP = Schema.of(
    [
        Column("lists", t.ArrayType(t.ArrayType(t.StringType()))),
        Column("rows", t.ArrayType(t.RowType((t.DataField("a", t.IntType()), t.DataField("b", t.StringType()))))),
        Column("maps", t.MapType(t.StringType(nullable=False), t.ArrayType(t.BigIntType()))),
        Column("text", t.StringType()),
    ]
)
DEEP_ROWS: list[tuple[Any, ...]] = [
    ([["a", None], [], ["héllo"]], [(1, "x"), None, (None, None)], [("k", [1, 2]), ("l", None)], "漢字"),
    (None, None, None, None),
    ([], [], [], ""),
]
_WIDE_ROWS = [(i, None if i % 5 == 0 else f"name-{i}" * (i % 4)) for i in range(70)]

TABLES: dict[str, tuple[Schema, list[Any]]] = {
    "id and name": (ID_NAME, [(1, "one"), (2, None), (3, "drei")]),
    "seventy rows": (ID_NAME, _WIDE_ROWS),
    "all types": (ALL_TYPES, [ROW_A, ROW_B, ROW_A]),
    "nested": (NESTED, NESTED_ROWS),
    "deeply nested": (DEEP, DEEP_ROWS),
}


@dataclass(frozen=True)
class Target:
    """One way in for bytes of others."""

    name: str
    change: Callable[[random.Random], list[Op]]
    """Draws the changes of a case."""
    run: Callable[[list[Op]], None]
    """Reads the changed bytes; may raise errors of our tree, and nothing else."""


# -- looking at everything ---------------------------------------------------------------------------------------------


def touch(batch: pa.RecordBatch, types: list[t.DataType]) -> None:
    """Read every value of every column, with our readers and with Arrow's."""
    for column, data_type in zip(batch.columns, types):
        refusal: FlussError | None = None
        try:
            column_to_python(column, data_type)
        except FlussError as error:
            refusal = error
        try:
            column.to_pylist()
        except (ValueError, OverflowError, pa.ArrowException):
            if refusal is None and not _holds_moments(column.type):
                raise
        if column.null_count:
            column.drop_null()  # sizes its result by the null count
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            # Numbers that no correct writer stores (a time of 30 hours, 12 digits in DECIMAL(10)) are still numbers.
            if not any(word in str(error) for word in ("time", "ecimal", "date")):
                raise
    batch.take(pa.array(np.arange(batch.num_rows)[::-1]))
    batch.serialize()


def _holds_moments(kind: pa.DataType) -> bool:
    """Types of which Python does not know all values."""
    if pa.types.is_nested(kind):
        return any(_holds_moments(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


# -- log batches -------------------------------------------------------------------------------------------------------


def info_of(schema: Schema, log_format: str = "ARROW") -> TableInfo:
    descriptor = TableDescriptor(schema, bucket_count=1, log_format=log_format)
    return TableInfo(TablePath("db", "t"), 1, 1, descriptor, 0, 0)


def reseal_log(data: bytes) -> bytes:
    """Length and checksum as they belong to the bytes, so that what lies behind them is reached."""
    if len(data) < 48:
        return data
    changed = bytearray(data)
    _LENGTH.pack_into(changed, 8, len(data) - 12)
    start = 29 if changed[12] == 2 else 25
    changed[start - 4 : start] = int(crc32c(memoryview(changed)[start:])).to_bytes(4, "little")
    return bytes(changed)


class LogReader:
    """Reads log batches the way a server receives them and a scan decodes them."""

    def __init__(self, schema: Schema, log_format: str = "ARROW", projection: list[int] | None = None) -> None:
        self.schema = schema
        self.log_format = log_format
        self.reads_all = projection is None
        self.decoder = BatchDecoder(info_of(schema, log_format), self._schema_of, projection, None)

    def _schema_of(self, schema_id: int) -> Schema:
        if schema_id != 1:
            raise FormatError(f"no schema {schema_id}")
        return self.schema

    def read(self, data: bytes, *, projected: bool = False) -> None:
        for batch in iter_log_batches(data, verify=not projected):
            refused_on_arrival: FormatError | None = None
            if not projected:
                try:
                    check_log_batch(batch, self.schema.arrow_schema, self.log_format)
                except FormatError as error:
                    refused_on_arrival = error
                with contextlib.suppress(FormatError):  # a server that cannot use them does without
                    Statistics.parse(batch.statistics_view, self.schema)
            decoded = self.decoder.decode(batch, BUCKET, 0, None, projected=projected)
            if decoded is not None:
                if refused_on_arrival is not None and self.reads_all:
                    raise AssertionError(f"a server refuses what scans read: {refused_on_arrival}")
                touch(decoded.batch, self.decoder.types)


def bytes_target(name: str, seed: bytes, read: Callable[[bytes], None]) -> Target:
    return Target(name, lambda generator: byte_ops(generator, len(seed)), lambda ops: read(change_bytes(seed, ops)))


def parts_target(name: str, table: str, codec: str) -> Target:
    schema, rows = TABLES[table]
    parts = Parts.of(to_batch(schema, rows))
    reader = LogReader(schema)

    def run(ops: list[Op]) -> None:
        changed, declared = change_parts(parts, ops)
        try:
            data = changed.batch(codec, declared=declared)
        except (struct.error, OverflowError):
            raise FormatError("numbers that no message holds") from None
        reader.read(data)

    return Target(name, lambda generator: part_ops(generator, parts), run)


def _arrow_targets() -> list[Target]:
    targets = []
    for table, (schema, rows) in TABLES.items():
        batch = to_batch(schema, rows)
        statistics = build_statistics(batch, schema, statistics_columns(schema, ["*"])) if table != "nested" else b""
        changes = bytes(1 + i % 4 for i in range(len(rows)))
        reader = LogReader(schema)
        cut = LogReader(schema, projection=[1, 3] if len(schema.columns) > 3 else [1])
        for codec in CODECS:
            targets.append(parts_target(f"{table}, {codec}, taken apart", table, codec))
            plain = encode_arrow_body(batch, compression=codec)
            with_all = encode_arrow_body(batch, compression=codec, change_types=changes, statistics=statistics or None)
            for label, body in (("", plain), (" with change types and statistics", with_all)):
                sealed = b"".join(seal_log_batch(body, schema_id=1))
                name = f"{table}, {codec}{label}"
                targets.append(bytes_target(name, sealed, lambda data, r=reader: r.read(reseal_log(data))))  # type: ignore[misc]
                targets.append(
                    bytes_target(f"{name}, two columns", sealed, lambda data, r=cut: r.read(reseal_log(data)))  # type: ignore[misc]
                )
            positions = [1, 3] if len(schema.columns) > 3 else [1]
            targets.append(_projection_target(f"{table}, {codec}, projected", schema, positions, plain))
    return targets


def _projection_target(name: str, schema: Schema, positions: list[int], body: Any) -> Target:
    sealed = b"".join(seal_log_batch(body, schema_id=1))
    reader = LogReader(schema, projection=positions)

    def read(data: bytes) -> None:
        for batch in iter_log_batches(reseal_log(data), verify=True):
            reader.read(b"".join(project_batch(batch, positions, schema.arrow_schema)), projected=True)

    return bytes_target(name, sealed, read)


def _row_targets() -> list[Target]:
    targets = []
    for table, (schema, rows) in TABLES.items():
        for log_format in ("INDEXED", "COMPACTED"):
            reader = LogReader(schema, log_format)
            for changes in (None, bytes(1 + i % 4 for i in range(len(rows)))):
                body = encode_row_body(log_format, schema.data_types, to_batch(schema, rows), changes)
                sealed = b"".join(seal_log_batch(body, schema_id=1))
                name = f"{table}, {log_format}{'' if changes is None else ' with change types'}"
                targets.append(bytes_target(name, sealed, lambda data, r=reader: r.read(reseal_log(data))))  # type: ignore[misc]
    return targets


# -- primary-key tables ------------------------------------------------------------------------------------------------


def reseal_kv(data: bytes) -> bytes:
    if len(data) < 28:
        return data
    changed = bytearray(data)
    _LENGTH.pack_into(changed, 0, len(data) - 4)
    changed[5:9] = int(crc32c(memoryview(changed)[9:])).to_bytes(4, "little")
    return bytes(changed)


class KvReader:
    """Reads rows the way a server stores them and clients look them up."""

    def __init__(self, schema: Schema, kv_format: str) -> None:
        self.types = schema.data_types
        self.codec = ValueCodec(kv_format, {1: schema}, 1)
        self.lookup = ValueDecoder(schema, schema, kv_format)

    def read_batch(self, data: bytes) -> None:
        batch = KvBatch.parse(data)
        batch.keys.to_list()
        kept = batch.rows.take(np.flatnonzero(~batch.deletes))
        touch(self.codec.decode_rows(batch.schema_id, kept), self.types)
        for row in kept.to_list():
            self.lookup.decode(b"\1\0" + row)

    def read_values(self, data: bytes) -> None:
        values = decode_value_batch(data)
        touch(self.codec.decode_values(values), self.types)


def _kv_targets() -> list[Target]:
    targets = []
    for table, (schema, rows) in TABLES.items():
        for kv_format, coder in (("COMPACTED", compacted), ("INDEXED", indexed)):
            encoded = [coder.encode_row(schema.data_types, row) for row in rows]
            keys = Slices.from_list([struct.pack(">i", i) for i in range(len(rows))])
            deletes = np.array([i % 3 == 2 for i in range(len(rows))])
            sealed = b"".join(seal_kv_batch(encode_kv_body(keys, Slices.from_list(encoded), deletes), schema_id=1))
            values = encode_value_batch([b"\1\0" + row for row in encoded])
            reader = KvReader(schema, kv_format)
            targets.append(
                bytes_target(f"{table}, KV {kv_format}", sealed, lambda data, r=reader: r.read_batch(reseal_kv(data)))  # type: ignore[misc]
            )
            targets.append(
                bytes_target(
                    f"{table}, values {kv_format}",
                    values,
                    lambda data, r=reader: r.read_values(_LENGTH.pack(len(data) - 4) + data[4:]),  # type: ignore[misc]
                )
            )
    return targets


@cache
def all_targets() -> tuple[Target, ...]:
    """Every target; its place in this list is part of a case's number."""
    return (*_arrow_targets(), *_row_targets(), *_kv_targets(), *_frame_targets())


def _frame_targets() -> list[Target]:
    """Requests and responses, without a socket."""
    from tests.fuzz.test_decoders import FAMILIES

    targets = []
    for family in ("rows", "protocol"):
        for decoder in FAMILIES[family]():
            for number, seed in enumerate(decoder.seeds):
                name = f"{family}: {decoder.name} ({number})"
                targets.append(bytes_target(name, seed, lambda data, d=decoder: _decode(d, data)))  # type: ignore[misc]
    return targets


def _decode(decoder: Any, data: bytes) -> None:
    decoder.decode(data)


def case(number: int, seed: int) -> tuple[Target, list[Op]]:
    """The target and the changes of a case."""
    targets = all_targets()
    generator = random.Random((seed << 64) | number)
    target = targets[number % len(targets)]
    return target, target.change(generator)


def run_case(number: int, seed: int, keep: tuple[int, ...] | None = None) -> bool:
    """Run a case, perhaps with only some of its changes. Whether it was accepted; an error of ours is no failure."""
    target, ops = case(number, seed)
    if keep is not None:
        ops = [ops[i] for i in keep]
    try:
        target.run(ops)
    except FlussError:
        return False
    return True
