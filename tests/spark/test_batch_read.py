# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from tests.spark.conftest import BRIDGE
from tests.spark.marks import needs_time

import fluss
from fluss import metadata as f
from fluss.errors import ConfigError
from fluss.metadata import Schema
from fluss.spark import create_table
from fluss.spark.filters import parse_filter, pushed_predicate

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

EVENTS = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("s", pa.string())])
UTC = datetime.timezone.utc


def events(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "v": i / 2, "s": f"s{i % 10}"} for i in range(first, first + count)]


def test_all_rows_of_a_log_table(harness: SparkHarness) -> None:
    path = harness.create(EVENTS, buckets=3)
    harness.put(path, events(0, 1000))
    frame = harness.read(path)
    assert frame.schema.simpleString() == "struct<id:bigint,v:double,s:string>"
    assert sorted(row.id for row in frame.collect()) == list(range(1000))
    assert frame.where("s = 's3'").agg({"v": "sum"}).collect()[0][0] == sum(i / 2 for i in range(3, 1000, 10))


def test_an_empty_table_reads_as_no_rows(harness: SparkHarness) -> None:
    assert harness.read(harness.create(EVENTS)).collect() == []


@needs_time
def test_every_type_nested_too(harness: SparkHarness) -> None:
    columns = [
        f.Column("id", f.BigIntType()),
        f.Column("flag", f.BooleanType()),
        f.Column("tiny", f.TinyIntType()),
        f.Column("small", f.SmallIntType()),
        f.Column("number", f.IntType()),
        f.Column("real", f.FloatType()),
        f.Column("char", f.CharType(3)),
        f.Column("fixed", f.BinaryType(3)),
        f.Column("raw", f.BytesType()),
        f.Column("price", f.DecimalType(10, 2)),
        f.Column("day", f.DateType()),
        f.Column("clock", f.TimeType(3)),
        f.Column("wall", f.TimestampType(3)),
        f.Column("nanos", f.TimestampType(9)),
        f.Column("instant", f.TimestampLtzType(6)),
        f.Column("list", f.ArrayType(f.IntType())),
        f.Column("pairs", f.MapType(f.StringType(), f.TimestampType(3))),
        f.Column("row", f.RowType((f.DataField("a", f.IntType()), f.DataField("b", f.ArrayType(f.StringType()))))),
    ]
    path = harness.create(f.Schema.of(columns), buckets=1)
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000)
    row = {
        "id": 1,
        "flag": True,
        "tiny": -1,
        "small": 2,
        "number": 3,
        "real": 0.5,
        "char": "abc",
        "fixed": b"xyz",
        "raw": b"\x00\x01",
        "price": Decimal("12.34"),
        "day": datetime.date(2024, 2, 29),
        "clock": datetime.time(1, 2, 3, 4000),
        "wall": moment,
        "nanos": moment,
        "instant": moment.replace(tzinfo=UTC),
        "list": [1, None, 3],
        "pairs": {"x": moment, "y": None},
        "row": {"a": 7, "b": ["p", None]},
    }
    nothing = dict.fromkeys(row) | {"id": 2}
    harness.put(path, [row, nothing])
    first, second = harness.read(path).orderBy("id").collect()
    assert first.instant.astimezone(UTC) == moment.replace(tzinfo=UTC)
    expected = row | {"fixed": bytearray(b"xyz"), "raw": bytearray(b"\x00\x01"), "instant": first.instant}
    assert first.asDict() == expected | {"row": Row(a=7, b=["p", None])}
    assert second.asDict() == nothing

    copy = harness.create(f.Schema.of(columns), buckets=1)
    harness.write(harness.read(path), copy)
    assert harness.read(copy).orderBy("id").collect() == [first, second]


def test_nulls_are_those_of_the_rows(harness: SparkHarness) -> None:
    columns = [
        f.Column("id", f.BigIntType()),
        f.Column("small", f.SmallIntType()),
        f.Column("v", f.DoubleType()),
        f.Column("s", f.StringType()),
        f.Column("raw", f.BytesType()),
        f.Column("day", f.DateType()),
    ]
    rows = [
        {
            "id": i,
            "small": None if i % 2 else i,
            "v": None if i % 3 == 1 else i / 4,
            "s": None if i % 5 == 2 else "é" * (i % 4),
            "raw": None if i % 7 == 3 else bytes([i % 256]) * (i % 3),
            "day": None if i % 11 == 4 else datetime.date(2024, 1, 1) + datetime.timedelta(i),
        }
        for i in range(200)
    ]
    path = harness.create(f.Schema.of(columns), buckets=1)
    harness.put(path, rows)
    assert [row.asDict() for row in harness.read(path).orderBy("id").collect()] == rows
    missing = harness.read(path).selectExpr(*(f"count_if({column.name} is null)" for column in columns)).first()
    assert list(missing) == [sum(row[column.name] is None for row in rows) for column in columns]
    # Texts that a later batch replaces in memory, kept by a sort and a hash table.
    counted = harness.read(path).where("s is not null").groupBy("s").agg({"id": "sum"}).collect()
    sums = {text: sum(row["id"] for row in rows if row["s"] == text) for text in ("", "é", "éé", "ééé")}
    assert dict(counted) == sums


def test_columns_and_a_given_schema_prune(harness: SparkHarness) -> None:
    path = harness.create(EVENTS)
    harness.put(path, events(0, 10))
    assert harness.read(path, columns="s,id").columns == ["s", "id"]
    assert sorted(harness.read(path, columns="s").distinct().collect())[0].s == "s0"
    given = harness.reader({}).schema("v double").load(path)
    assert given.columns == ["v"]
    assert sorted(row.v for row in given.collect()) == [i / 2 for i in range(10)]


@pytest.mark.parametrize(
    ("schema", "text"),
    [("v string", "'v' as string, but in table"), ("nope int", "has a column 'nope', which table")],
)
def test_a_given_schema_that_does_not_fit_is_refused(harness: SparkHarness, schema: str, text: str) -> None:
    path = harness.create(EVENTS)
    with pytest.raises(PySparkException) as caught:
        harness.reader({}).schema(schema).load(path).collect()
    assert text in str(caught.value)


def test_metadata_columns(harness: SparkHarness) -> None:
    path = harness.create(EVENTS, buckets=2)
    before = datetime.datetime.now()
    harness.put(path, events(0, 20))
    rows = harness.read(path, includeMetadata=True).collect()
    assert rows[0].__fields__[3:] == ["_change_type", "_log_offset", "_commit_timestamp", "_bucket"]
    assert {row._change_type for row in rows} == {"insert"}
    for bucket in (0, 1):
        offsets = [row._log_offset for row in rows if row._bucket == bucket]
        assert sorted(offsets) == list(range(len(offsets)))
    assert all(abs((row._commit_timestamp - before).total_seconds()) < 60 for row in rows)
    filtered = harness.read(path, includeMetadata=True).where("id = 7").collect()
    assert filtered == [row for row in rows if row.id == 7]


def test_splits_are_cut_to_size(harness: SparkHarness) -> None:
    path = harness.create(EVENTS, buckets=1)
    harness.put(path, events(0, 100))
    assert harness.read(path).rdd.getNumPartitions() == 1
    halves = harness.read(path, scan__maxRecordsPerPartition=30)
    assert halves.rdd.getNumPartitions() == 4
    assert halves.count() == 100
    many = harness.read(path, minPartitions=7)
    assert many.rdd.getNumPartitions() >= 7
    assert sorted(row.id for row in many.collect()) == list(range(100))


def test_offsets_and_times_bound_a_read(harness: SparkHarness) -> None:
    path = harness.create(EVENTS, buckets=1)
    harness.put(path, events(0, 50))
    time.sleep(0.02)
    middle = int(time.time() * 1000)
    time.sleep(0.02)
    harness.put(path, events(50, 50))
    ids = lambda frame: sorted(row.id for row in frame.collect())  # noqa: E731
    assert ids(harness.read(path, startingOffsets='{"0": 10}', endingOffsets='{"0": 13}')) == [10, 11, 12]
    assert ids(harness.read(path, scan__startup__mode="timestamp", scan__startup__timestamp=middle)) == list(
        range(50, 100)
    )
    window = {"scan__incremental__start__timestamp": 1, "scan__incremental__end__timestamp": middle}
    assert ids(harness.read(path, **window)) == list(range(50))
    future = {"scan__incremental__start__timestamp": middle, "scan__incremental__end__timestamp": 2 * middle}
    assert ids(harness.read(path, **future)) == list(range(50, 100))
    with pytest.raises(PySparkException, match="has no bucket 3"):
        harness.read(path, startingOffsets='{"3": 1}').collect()
    for option, name in (("startingOffsets", "scan.startup.offsets"), ("endingOffsets", "endingOffsets")):
        with pytest.raises(PySparkException, match=f"{name}: offset 101 is beyond the end of bucket 0"):
            harness.read(path, **{option: '{"0": 101}'}).collect()


def test_the_end_is_pinned_when_the_read_is_planned(harness: SparkHarness) -> None:
    path = harness.create(EVENTS, buckets=2)
    harness.put(path, events(0, 10))
    planned = harness.read(path).rdd  # plans the scan now
    planned.getNumPartitions()
    harness.put(path, events(10, 10))
    assert planned.count() == 10
    assert harness.read(path).count() == 20


PARTED = pa.schema([("id", pa.int64()), ("day", pa.string())])


def test_partitions_are_pruned(harness: SparkHarness) -> None:
    path = harness.create(PARTED, buckets=2, partition_keys=["day"])
    harness.put(path, [{"id": i, "day": f"d{i % 4}"} for i in range(40)])
    assert harness.read(path).count() == 40
    one = harness.read(path).where("day = 'd1'")
    assert one.rdd.getNumPartitions() <= (2 if BRIDGE else 8)
    assert sorted(row.id for row in one.collect()) == list(range(1, 40, 4))
    assert harness.read(path).where("day in ('d1', 'd2', 'none')").count() == 20
    assert harness.read(path, scan__partitions="d3").count() == 10
    chosen = harness.read(path, scan__filter="day in ('d0', 'd3') and id < 8")
    assert chosen.rdd.getNumPartitions() <= 4
    assert sorted(row.id for row in chosen.collect()) == [0, 3, 4, 7]
    with pytest.raises(PySparkException, match="has no partition d9"):
        harness.read(path, scan__partitions="d9").collect()


def test_filters_are_pushed_and_give_what_spark_alone_gives(harness: SparkHarness) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("s", pa.string()),
            ("n", pa.int32()),
            ("d", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("ts", pa.timestamp("us")),
            ("ltz", pa.timestamp("us", tz="UTC")),
            ("x", pa.float64()),
        ]
    )
    path = harness.create(schema, buckets=1)
    start = datetime.datetime(2024, 1, 1)
    rows = [
        {
            "id": i,
            "s": None if i % 7 == 0 else f"row {i}",
            "n": None if i % 5 == 0 else i % 3,
            "d": Decimal(i) / 4,
            "day": (start + datetime.timedelta(days=i)).date(),
            "ts": start + datetime.timedelta(hours=i),
            "ltz": (start + datetime.timedelta(hours=i)).replace(tzinfo=UTC),
            "x": float("nan") if i % 11 == 0 else i / 3,
        }
        for i in range(60)
    ]
    harness.put(path, rows)
    whole = harness.spark.createDataFrame(harness.read(path).collect(), harness.read(path).schema)
    conditions = [
        "id = 5",
        "id > 50 and n = 1",
        "id <> 3",
        "not (id in (1, 2, 3))",
        "s is null",
        "s is not null and id < 10",
        "s like 'row 1%'",
        "s like '%5'",
        "s like '%w 4%'",
        "n in (0, 2)",
        "n <=> null",
        "d >= 10.25",
        "day = date'2024-01-15'",
        "ts < timestamp_ntz'2024-01-01 10:00:00'",
        "ltz > timestamp'2024-01-02 10:00:00Z'",
        "x > 15",
        "x >= 15 and x <= 18",
        "x = double('NaN')",
        "x = 'NaN'",
        "id = 1 or id = 2",
        "id % 2 = 1",
    ]
    other = ("id %", "<=>", "double(")
    texts = [condition for condition in conditions if not any(word in condition for word in other)]
    texts += [
        "d > 3 and d <= 10",
        "D between 3 and 10.5",
        "not (n = 1 or s like 'row _')",
        "S not like '%1%' and ID not between 5 and 20",
        "x is null or x > 17.5",
        "x < 1 or x <> 5",
        "(id < 5 or id > 55) and not (n in (0, 1))",
        "`day` = '2024-01-15'",
        "ltz > '2024-01-02 10:00:00Z'",
        "n not in (0) and d < 3.5",
    ]
    frames = [(condition, harness.read(path).where(condition)) for condition in conditions]
    frames += [(text, harness.read(path, scan__filter=text, columns="id")) for text in texts]
    # What Spark alone gives for all of them, in one query.
    expected = whole.selectExpr(*(f"array_sort(collect_list(if({text}, id, null)))" for text, _ in frames)).head()
    for (text, frame), ids in zip(frames, expected):
        assert sorted(row.id for row in frame.collect()) == ids, text


def test_a_frame_can_be_filtered_and_then_read_whole(harness: SparkHarness) -> None:
    """Spark keeps the reader of a DataFrame's first query, with its filters, for later queries that have none."""
    path = harness.create(EVENTS, buckets=1)
    harness.put(path, events(0, 10))
    frame = harness.read(path)
    assert [frame.where("id = 5").count(), frame.count(), frame.where("id > 6").count()] == [1, 10, 3]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nope = 1", "scan.filter: unknown column 'nope'"),
        ("id ~ 1", "found '~', at position 4"),
        ("id = 1 id = 2", "expected AND, OR or the end"),
        ("id =", "expected a value, found the end"),
        ("id = 'x'", "not a value of column 'id' of type bigint"),
        ("id like 'a%b'", "like compares a string column"),
        ("id in 5", "expected '(' after IN"),
    ],
)
def test_filters_that_make_no_sense_are_refused(harness: SparkHarness, text: str, problem: str) -> None:
    path = harness.create(EVENTS, buckets=1)
    with pytest.raises(PySparkException) as caught:
        harness.read(path, scan__filter=text).collect()
    assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["lower(name) = 'a'", "id + 1 > 5", "id > 5 and length(name) > 2"])
def test_filters_that_spark_has_to_evaluate_are_refused(text: str) -> None:
    schema = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    with pytest.raises(ConfigError, match=r"scan\.filter: .* functions and arithmetic: df\.filter"):
        parse_filter(text, schema)


@pytest.mark.parametrize("text", ["at > '2024-01-02 10:00:00'", "at in (timestamp '2024-01-02')"])
def test_times_without_a_zone_are_refused_in_filters(text: str) -> None:
    """Spark would read them in the time zone of the session, and a scan in UTC."""
    schema = Schema(pa.schema([("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))]))
    with pytest.raises(ConfigError, match=r"scan\.filter: .* write the zone too"):
        parse_filter(text, schema)
    parse_filter("at > '2024-01-02 10:00:00+01:00' and at < '2025-01-01T00:00:00Z'", schema)
    parse_filter("local > '2024-01-02 10:00:00' and at is not null", schema)


@pytest.mark.parametrize(
    ("text", "usable"),
    [
        ("`at` > timestamptz '2024-01-02 10:00:00.5+00:00'", True),
        ("`fine` > timestamp '2024-01-02 10:00:00'", False),
        ("(`fine` is null or `n` = 1)", False),
        ("`n` in (1, 2)", True),
        ("`_log_offset` > 5", False),
    ],
)
def test_pushed_conditions_that_spark_might_judge_otherwise_are_ignored(text: str, usable: bool) -> None:
    """Of nanoseconds Spark sees microseconds only: a comparison in the scan could drop rows that Spark keeps."""
    schema = Schema(pa.schema([("n", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("fine", pa.timestamp("ns"))]))
    assert (pushed_predicate([text], schema) is not None) == usable
    assert pushed_predicate(["`n` = 5", text], schema) is not None


def test_errors_are_one_sentence(harness: SparkHarness) -> None:
    path = harness.create(EVENTS)
    cases = [
        (lambda: harness.read("fluss.nowhere"), "Table 'fluss.nowhere' does not exist"),
        (lambda: harness.read(path, colums="id"), "did you mean columns?"),
        (lambda: harness.read(path, columns="nope"), "has no column 'nope'; it has id, v, s"),
        (lambda: harness.spark.read.format("fluss").load(path), "bootstrap.servers is missing"),
        (
            lambda: harness.spark.read.format("fluss").option("bootstrap.servers", "127.0.0.1:1").load(path),
            "No address of 'bootstrap.servers' answered",
        ),
    ]
    for act, text in cases:
        with pytest.raises(PySparkException) as caught:
            act()
        message = str(caught.value)
        assert text in message
        assert "Traceback" not in message
        assert len(message.strip().splitlines()) <= 2, message


def test_load_works_with_a_table_option_too(harness: SparkHarness) -> None:
    path = harness.create(EVENTS)
    harness.put(path, events(0, 3))
    assert harness.reader({"table": path}).load().count() == 3


def test_credentials(harness: SparkHarness) -> None:
    options = {
        "bind.listeners": "CLIENT://127.0.0.1:0",
        "internal.listener.name": "CLIENT",
        "security.protocol.map": "CLIENT:SASL",
        "security.sasl.enabled.mechanisms": "PLAIN",
        "security.sasl.plain.credentials": "ann:hush",
    }
    with fluss.LocalServer(options=options) as server:
        given = {
            "bootstrap.servers": server.bootstrap_servers,
            "security.protocol": "sasl",
            "security.sasl.username": "ann",
            "security.sasl.password": "hush",
        }
        client = {name: value for name, value in given.items() if name != "bootstrap.servers"}
        frame = harness.spark.range(3)
        create_table(frame, "fluss.locked", server.bootstrap_servers, options=client)
        frame.write.format("fluss").options(**given).mode("append").save("fluss.locked")
        assert harness.spark.read.format("fluss").options(**given).load("fluss.locked").count() == 3
        with pytest.raises(PySparkException) as caught:
            harness.spark.read.format("fluss").options(**{**given, "security.sasl.password": "loud"}).load(
                "fluss.locked"
            )
        message = str(caught.value)
        assert "AUTHENTICATE" in message
        assert "loud" not in message
        assert "Traceback" not in message
