# SPDX-License-Identifier: Apache-2.0
"""Key encodings against known bytes and buckets, and the rules that choose one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import types as t
from fluss.metadata.descriptor import TableDescriptor
from fluss.metadata.info import TableInfo
from fluss.metadata.path import TablePath
from fluss.metadata.schema import Column, Schema
from fluss.rows.arrow_values import to_arrow
from fluss.rows.bucketing import bucket_of, buckets_of
from fluss.rows.keys import (
    CompactedKeyEncoder,
    IcebergKeyEncoder,
    KeyEncoder,
    PaimonKeyEncoder,
    bucket_key_encoder,
    kv_key_encoder,
    prefix_key_encoder,
)
from fluss.rows.vector import encode_compacted_key

MILLIS = 1705314600123
MICROS_IN_NANOS = MILLIS * 10**6 + 456000
BIG = Decimal("-12345678901234567890.12345")

# type, value, then bytes and bucket among 10: compacted, paimon, iceberg; the bucket of pyfluss where it differs
PER_TYPE: list[tuple[t.DataType, Any, str, int, str, int, str | None, int, int | None]] = [
    (t.BooleanType(), True, "01", 0, "00000000000000000100000000000000", 8, None, 0, None),
    (t.TinyIntType(), -2, "fe", 2, "0000000000000000fe00000000000000", 1, None, 0, 1),
    (t.SmallIntType(), -300, "d4fe", 3, "0000000000000000d4fe000000000000", 9, None, 0, 2),
    (t.IntType(), -5, "fbffffff0f", 7, "0000000000000000fbffffff00000000", 1, "fbffffffffffffff", 4, None),
    (t.BigIntType(), 1234567890123, "cb89ec8ff723", 8,
     "0000000000000000cb04fb711f010000", 6, "cb04fb711f010000", 2, None),
    (t.FloatType(), 1.5, "0000c03f", 8, "00000000000000000000c03f00000000", 9, "0000c03f", 6, None),
    (t.DoubleType(), -2.25, "00000000000002c0", 8, "000000000000000000000000000002c0", 1, "00000000000002c0", 9, None),
    (t.CharType(5), "abc", "03616263", 3, "00000000000000006162630000000083", 9, "616263", 4, None),
    (t.StringType(), "héllo", "0668c3a96c6c6f", 2, "000000000000000068c3a96c6c6f0086", 4, "68c3a96c6c6f", 8, None),
    (t.BinaryType(4), b"\1\2\3\4", "0401020304", 0, "00000000000000000102030400000084", 7, "01020304", 1, None),
    (t.BytesType(), b"\xff\0", "02ff00", 6, "0000000000000000ff00000000000082", 7, "ff00", 0, 7),
    (t.DecimalType(10, 2), Decimal("12345.67"), "87ad4b", 0, "000000000000000087d6120000000000", 6, "12d687", 9, 3),
    (t.DecimalType(25, 5), BIG, "0bfefa91f0c959bbc21d2087", 8,
     "00000000000000000b00000010000000fefa91f0c959bbc21d20870000000000", 3, "fefa91f0c959bbc21d2087", 6, None),
    (t.DateType(), 19737, "999a01", 4, "0000000000000000194d000000000000", 4, "194d000000000000", 0, 2),
    (t.TimeType(3), 37800123, "bb918312", 4, "0000000000000000bbc8400200000000", 6, "781a10cd08000000", 2, None),
    (t.TimestampType(3), MILLIS * 10**6, "bb89afe5d031", 1,
     "0000000000000000bbc4ab0c8d010000", 3, "787af87ef90e0600", 0, 0),
    (t.TimestampType(6), MICROS_IN_NANOS, "bb89afe5d031c0ea1b", 1,
     "000000000000000040f5060010000000bbc4ab0c8d010000", 0, "407cf87ef90e0600", 2, None),
    (t.TimestampLtzType(3), MILLIS * 10**6, "bb89afe5d031", 1, "0000000000000000bbc4ab0c8d010000", 3, None, 0, 0),
    (t.TimestampLtzType(9), MICROS_IN_NANOS, "bb89afe5d031c0ea1b", 1,
     "000000000000000040f5060010000000bbc4ab0c8d010000", 0, None, 0, None),
]  # fmt: skip


def both_ways(encoder: KeyEncoder, *values: Any) -> bytes:
    """The key of one row, made by the scalar and the vectorised coder."""
    key = encoder.encode(values)
    arrays = [to_arrow([value] * 3, dtype) for value, dtype in zip(values, encoder.types)]
    assert encoder.encode_columns(arrays).to_list() == [key] * 3
    assert encoder.encode_columns([array[1:2] for array in arrays]).to_list() == [key]
    return key


@pytest.mark.parametrize(("dtype", "value", "key", "b", "paimon", "pb", "iceberg", "ib", "pyfluss"), PER_TYPE)
def test_per_type(
    dtype: t.DataType,
    value: Any,
    key: str,
    b: int,
    paimon: str,
    pb: int,
    iceberg: str | None,
    ib: int,
    pyfluss: int | None,
) -> None:
    encoded = both_ways(CompactedKeyEncoder(["k"], [dtype]), value)
    assert encoded.hex() == key
    assert bucket_of(encoded, 10) == b
    assert bucket_of(encoded, 10, variant="pyfluss") == (b if pyfluss is None else pyfluss)
    encoded = both_ways(PaimonKeyEncoder(["k"], [dtype]), value)
    assert encoded.hex() == paimon
    assert bucket_of(encoded, 10, "paimon") == pb
    if iceberg is None:
        with pytest.raises(InvalidArgumentError, match="cannot be an Iceberg key"):
            IcebergKeyEncoder(["k"], [dtype])
    else:
        encoded = both_ways(IcebergKeyEncoder(["k"], [dtype]), value)
        assert encoded.hex() == iceberg
        assert bucket_of(encoded, 10, "iceberg") == ib


def info(
    columns: dict[str, t.DataType],
    primary_key: tuple[str, ...] = (),
    bucket_keys: tuple[str, ...] = (),
    partitioned_by: tuple[str, ...] = (),
    lake: str | None = None,
    version: int | None = None,
) -> TableInfo:
    schema = Schema.of([Column(name, dtype) for name, dtype in columns.items()], primary_key)
    properties = {}
    if lake:
        properties["table.datalake.format"] = lake
    if version:
        properties["table.kv.format-version"] = str(version)
    descriptor = TableDescriptor(
        schema, partition_keys=partitioned_by, bucket_count=4, bucket_keys=bucket_keys, properties=properties
    )
    return TableInfo(TablePath("db", "t"), 1, 1, descriptor, 0, 0)


INT, STR, BIG_INT = t.IntType(), t.StringType(), t.BigIntType()


def test_key_within_a_partition() -> None:
    table = info({"dt": STR, "r": INT, "id": BIG_INT}, ("dt", "r", "id"), partitioned_by=("dt", "r"))
    encoder = kv_key_encoder(table)
    assert encoder.names == ("id",)
    assert encoder.encode([9]) == b"\x09"
    key = both_ways(bucket_key_encoder(table), 9)
    assert key == b"\x09"
    assert bucket_of(key, 2) == 1


def test_bucket_key_of_its_own() -> None:
    table = info({"a": INT, "b": STR, "c": BIG_INT}, ("a", "b", "c"), ("a", "b"))
    assert both_ways(kv_key_encoder(table), 1, "x", 10).hex() == "0101780a"
    assert both_ways(kv_key_encoder(table), 300, "hello", -1).hex() == "ac020568656c6c6fffffffffffffffffff01"
    for values, expected, bucket in (((1, "x"), "010178", 0), ((300, "hello"), "ac020568656c6c6f", 1)):
        key = both_ways(bucket_key_encoder(table), *values)
        assert key.hex() == expected
        assert bucket_of(key, 4, variant="pyfluss") == bucket
        assert prefix_key_encoder(table).encode(values) == key


def test_log_table() -> None:
    table = info({"k": INT, "v": STR}, bucket_keys=("k",))
    keys = bucket_key_encoder(table).encode_columns([pa.array(range(6), pa.int32())])
    assert keys.to_list() == [bytes([i]) for i in range(6)]
    assert buckets_of(keys, 7).tolist() == [6, 4, 4, 3, 6, 2]
    with pytest.raises(InvalidArgumentError, match="no primary key"):
        kv_key_encoder(table)
    with pytest.raises(InvalidArgumentError, match="no bucket key"):
        bucket_key_encoder(info({"k": INT}))


@pytest.mark.parametrize(
    ("lake", "values", "buckets"),
    [
        ("paimon", (1, 34, -7), (6, 7, 3)),
        ("iceberg", (1, 34, -7), (4, 3, 5)),
        ("paimon", ("iceberg", "a longer string key"), (0, 4)),
        ("iceberg", ("iceberg", "a longer string key"), (1, 1)),
    ],
)
def test_lake_buckets(lake: str, values: tuple[Any, ...], buckets: tuple[int, ...]) -> None:
    dtype = INT if isinstance(values[0], int) else STR
    table = info({"k": dtype}, ("k",), lake=lake, version=2)
    encoder = bucket_key_encoder(table)
    assert type(kv_key_encoder(table)) is type(encoder)
    keys = encoder.encode_columns([to_arrow(values, dtype)])
    assert keys.to_list() == [encoder.encode([value]) for value in values]
    assert buckets_of(keys, 8, lake).tolist() == list(buckets)


@pytest.mark.parametrize(
    ("lake", "version", "default", "kv", "bucket"),
    [
        (None, None, True, CompactedKeyEncoder, CompactedKeyEncoder),
        (None, 2, False, CompactedKeyEncoder, CompactedKeyEncoder),
        ("lance", 1, False, CompactedKeyEncoder, CompactedKeyEncoder),
        ("paimon", None, False, PaimonKeyEncoder, PaimonKeyEncoder),
        ("paimon", 1, True, PaimonKeyEncoder, PaimonKeyEncoder),
        ("paimon", 2, True, PaimonKeyEncoder, PaimonKeyEncoder),
        ("paimon", 2, False, CompactedKeyEncoder, PaimonKeyEncoder),
        ("iceberg", 2, False, CompactedKeyEncoder, IcebergKeyEncoder),
    ],
)
def test_rules(lake: str | None, version: int | None, default: bool, kv: type, bucket: type) -> None:
    table = info({"id": INT, "s": STR}, ("id", "s"), ("id", "s") if default else ("id",), lake=lake, version=version)
    assert type(kv_key_encoder(table)) is kv
    assert type(bucket_key_encoder(table)) is bucket


def test_prefix() -> None:
    columns: dict[str, t.DataType] = {"id": INT, "s": STR}
    table = info(columns, ("id", "s"), ("id",), lake="paimon", version=2)
    assert both_ways(kv_key_encoder(table), 1, "x").hex() == "010178"
    assert both_ways(bucket_key_encoder(table), 1).hex() == "00000000000000000100000000000000"
    assert both_ways(prefix_key_encoder(table), 1).hex() == "01"
    with pytest.raises(InvalidArgumentError, match="not a prefix of its bytes"):
        prefix_key_encoder(info(columns, ("id", "s"), ("id",), lake="paimon", version=1))
    for bucket_keys in (("s",), ("id", "s")):
        with pytest.raises(InvalidArgumentError, match="does not support prefix lookup"):
            prefix_key_encoder(info(columns, ("id", "s"), bucket_keys))


def test_key_refusals() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one column"):
        CompactedKeyEncoder([], [])
    with pytest.raises(InvalidArgumentError, match="its type is nested"):
        CompactedKeyEncoder(["a"], [t.ArrayType(INT)])
    with pytest.raises(InvalidArgumentError, match="exactly one column"):
        IcebergKeyEncoder(["a", "b"], [INT, INT])
    for encoder in (CompactedKeyEncoder(["a"], [INT]), IcebergKeyEncoder(["a"], [INT])):
        with pytest.raises(InvalidRowError, match=r"field 'a' .*null"):
            encoder.encode([None])
        with pytest.raises(InvalidRowError, match=r"field 'a' .*null in a key, in row 1"):
            encoder.encode_columns([pa.array([1, None], pa.int32())])
        with pytest.raises(InvalidRowError, match="expected 1 columns"):
            encoder.encode_columns([])
    with pytest.raises(InvalidRowError, match="nested types cannot be part of a key"):
        encode_compacted_key([t.ArrayType(INT)], [pa.array([[1]], pa.list_(pa.int32()))])
    assert repr(CompactedKeyEncoder(["a", "b"], [INT, STR])) == "CompactedKeyEncoder(a, b)"


def test_paimon_nulls() -> None:
    encoder = PaimonKeyEncoder(["a", "b"], [INT, STR])
    assert both_ways(encoder, None, "x").hex() == "0001000000000000" + "00" * 8 + "7800000000000081"
    with pytest.raises(InvalidRowError, match=r"field 'a' .*null in row 0, but the type is NOT NULL"):
        PaimonKeyEncoder(["a"], [INT.with_nullable(False)]).encode_columns([pa.array([None], pa.int32())])


def test_iceberg_timestamps() -> None:
    for precision, nanos, micros in ((0, -(10**9), -(10**6)), (3, 10**6, 1000), (6, 1000, 1), (9, -1, -1)):
        key = both_ways(IcebergKeyEncoder(["t"], [t.TimestampType(precision)]), nanos)
        assert key == micros.to_bytes(8, "little", signed=True)
    encoder = IcebergKeyEncoder(["t"], [t.TimestampType(0)])
    with pytest.raises(InvalidRowError, match="does not fit 64 bits"):
        encoder.encode([10**13 * 10**9])
    with pytest.raises(InvalidRowError, match="the value in row 0 does not fit 64 bits"):
        encoder.encode_columns([pa.array([10**13], pa.timestamp("s"))])


def test_unknown_rules() -> None:
    table = info({"k": INT}, ("k",))
    # Whatever the server may say one day: the properties are read through cached attributes.
    table.__dict__["lake_format"] = "other"
    with pytest.raises(InvalidArgumentError, match="lake format 'other'"):
        bucket_key_encoder(table)
    table.__dict__["kv_format_version"] = 3
    with pytest.raises(InvalidArgumentError, match="this client knows 1 and 2"):
        kv_key_encoder(table)
