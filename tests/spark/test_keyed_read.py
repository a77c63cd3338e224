# SPDX-License-Identifier: Apache-2.0
"""Primary-key tables: current rows, changelogs, windows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from fluss.client.blocking_client import BlockingClient
from fluss.spark.layout import Layout
from fluss.spark.options import read_options
from fluss.spark.reader import read_split
from fluss.spark.splits import ROWS, Split
from fluss.spark.types import to_spark_schema

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

USERS = pa.schema([pa.field("id", pa.int32(), nullable=False), ("name", pa.string()), ("age", pa.int64())])


def users(first: int, count: int, age: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"u{i}", "age": age + i} for i in range(first, first + count)]


def make(harness: SparkHarness, **more: Any) -> str:
    return harness.create(USERS, primary_key=["id"], **more)


def test_current_rows(harness: SparkHarness) -> None:
    path = make(harness, buckets=3)
    harness.put(path, users(0, 100))
    harness.put(path, users(10, 5, age=1000), deletes=[{"id": 3}, {"id": 4}])
    rows = {row.id: row.age for row in harness.read(path).collect()}
    expected = {i: i for i in range(100) if i not in (3, 4)} | {i: 1000 + i for i in range(10, 15)}
    assert rows == expected
    assert harness.read(path, read__optimized=True).count() == 98
    assert [row.name for row in harness.read(path, scan__filter="age > 1012", columns="name").collect()] == [
        "u13",
        "u14",
    ]
    assert sorted(row.name for row in harness.read(path, columns="name").where("name = 'u5'").collect()) == ["u5"]


def test_rows_are_those_of_the_moment_of_planning(harness: SparkHarness) -> None:
    path = make(harness, buckets=2)
    harness.put(path, users(0, 20), deletes=[{"id": 19}])
    planned = harness.read(path).rdd
    planned.getNumPartitions()
    harness.put(path, users(0, 5, age=500), deletes=[{"id": 7}, {"id": 8}])
    harness.put(path, users(19, 3))
    harness.put(path, users(7, 1, age=900))
    assert {row.id: row.age for row in planned.collect()} == {i: i for i in range(19)}


def test_any_earlier_moment_can_be_read_again(harness: SparkHarness) -> None:
    """Undoing the changelog gives the rows at every single offset."""
    path = make(harness, buckets=1)
    states: list[dict[int, int]] = []
    ends: list[int] = []
    client = BlockingClient({"bootstrap.servers": harness.bootstrap})
    try:
        table = harness.table(path)
        info = table.get_table_info()
        layout = Layout.load(client, info)
        [bucket] = layout.buckets
        state: dict[int, int] = {}
        steps: list[tuple[list[dict[str, Any]], list[int]]] = [
            (users(0, 4), []),
            (users(1, 1, age=10), [0]),
            (users(0, 1, age=20), []),
            ([], [1, 2]),
            (users(2, 3, age=30), [3]),
        ]
        for upserts, deletes in steps:
            harness.put(path, upserts, [{"id": i} for i in deletes])
            state = state | {row["id"]: row["age"] for row in upserts}
            state = {i: age for i, age in state.items() if i not in deletes}
            states.append(state)
            ends.append(layout.latest()[bucket])
        options = read_options({"bootstrap.servers": harness.bootstrap, "table": path})
        schema = to_spark_schema(info.schema)
        for state, end in zip(states, ends):
            split = Split(info.table_id, bucket, 0, end, ROWS)
            found = [row for batch in read_split(options, schema, split) for row in batch.to_pylist()]
            assert {row["id"]: row["age"] for row in found} == state
    finally:
        client.close()


def test_changelog(harness: SparkHarness) -> None:
    path = make(harness, buckets=1)
    harness.put(path, users(1, 2))
    harness.put(path, users(1, 1, age=100), deletes=[{"id": 2}])
    rows = harness.read(path, read__changelog=True).collect()
    assert [(row._change_type, row.id, row.age) for row in rows] == [
        ("insert", 1, 1),
        ("insert", 2, 2),
        ("update_before", 1, 1),
        ("update_after", 1, 101),
        ("delete", 2, 2),
    ]
    kept = harness.read(path, read__changelog=True, ignoreDeletes=True).collect()
    assert [row._change_type for row in kept] == ["insert", "insert", "update_after"]
    offsets = harness.read(path, read__changelog=True, includeMetadata=True, startingOffsets='{"0": 3}').collect()
    assert [(row._log_offset, row._change_type) for row in offsets] == [(3, "update_after"), (4, "delete")]
    with pytest.raises(PySparkException, match=r"set the option read\.changelog to true"):
        harness.read(path, includeMetadata=True).collect()


def test_a_window_gives_the_last_rows_changed_in_it(harness: SparkHarness) -> None:
    path = make(harness, buckets=2)
    harness.put(path, users(0, 10))
    time.sleep(0.02)
    start = int(time.time() * 1000)
    time.sleep(0.02)
    harness.put(path, users(2, 2, age=100), deletes=[{"id": 3}])
    harness.put(path, users(2, 1, age=200))
    time.sleep(0.02)
    end = int(time.time() * 1000)
    time.sleep(0.02)
    harness.put(path, users(2, 1, age=300))
    window = {"scan__incremental__start__timestamp": start, "scan__incremental__end__timestamp": end}
    assert [(row.id, row.age) for row in harness.read(path, **window).collect()] == [(2, 202)]


def test_partitioned_rows(harness: SparkHarness) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("day", pa.string(), nullable=False),
            ("v", pa.int64()),
        ]
    )
    path = harness.create(schema, primary_key=["id", "day"], partition_keys=["day"], buckets=2)
    harness.put(path, [{"id": i, "day": f"d{i % 2}", "v": i} for i in range(20)])
    assert harness.read(path).count() == 20
    assert sorted(row.id for row in harness.read(path).where("day = 'd1'").collect()) == list(range(1, 20, 2))


def test_virtual_tables(harness: SparkHarness) -> None:
    path = make(harness, buckets=1)
    harness.put(path, users(0, 2))
    harness.put(path, users(0, 1, age=7), deletes=[{"id": 1}])
    changes = harness.read(f"{path}$changelog")
    assert changes.columns == ["_change_type", "_log_offset", "_commit_timestamp", "id", "name", "age"]
    found = changes.orderBy("_log_offset").collect()
    assert [(row._change_type, row._log_offset, row.id, row.age) for row in found] == [
        ("insert", 0, 0, 0),
        ("insert", 1, 1, 1),
        ("update_before", 2, 0, 0),
        ("update_after", 3, 0, 7),
        ("delete", 4, 1, 1),
    ]
    chosen = harness.read(f"{path}$changelog", columns="age,_change_type").where("_change_type = 'delete'")
    assert [tuple(row) for row in chosen.collect()] == [(1, "delete")]
    binlog = harness.read(f"{path}$binlog").orderBy("_log_offset").collect()
    assert [(row._change_type, row.before and row.before.age, row.after and row.after.age) for row in binlog] == [
        ("insert", None, 0),
        ("insert", None, 1),
        ("update", 0, 7),
        ("delete", 1, None),
    ]
    for name, more, message in (
        (f"{path}$lake", {}, "has no lake"),
        (f"{path}$other", {}, "virtual tables"),
        (f"{path}$binlog", {"scan.filter": "id = 1"}, "cannot be combined with scan.filter"),
    ):
        with pytest.raises(PySparkException, match=message):
            harness.read(name, **more).collect()
    with pytest.raises(PySparkException, match="can only be read"):
        harness.write(harness.read(path), f"{path}$changelog")
