# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.marks import needs_start
from tests.waiting import wait_for

import fluss
from fluss.errors import LogOffsetOutOfRangeError
from fluss.metadata import PartitionSpec, TablePath
from fluss.spark.layout import Bucket
from fluss.spark.stream_reader import FlussStreamReader, share
from fluss.spark.versions import KNOWS_START, ReadAllAvailable
from fluss.tools.migrating import Migration, PositionMap

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

EVENTS = pa.schema([("id", pa.int64()), ("s", pa.string())])
USERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("age", pa.int64())])


def events(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "s": f"s{i}"} for i in range(first, first + count)]


def ids(rows: list[tuple[Any, ...]]) -> list[int]:
    return sorted(row[0] for row in rows)


def test_a_stream_goes_on_where_its_checkpoint_ended(harness: SparkHarness, tmp_path: Path) -> None:
    """Also with a limit, which some versions of Spark keep in later micro-batches only."""
    path = harness.create(EVENTS, buckets=3)
    for first, count in ((0, 50), (50, 30), (80, 30)):
        harness.put(path, events(first, count))
        found = harness.collect(harness.stream(path, maxRowsPerTrigger=20), tmp_path)
        assert ids(found) == list(range(first, first + count))
    assert harness.collect(harness.stream(path, maxRowsPerTrigger=20), tmp_path) == []


@pytest.mark.parametrize("partition_keys", [[], ["s"]])
def test_a_stream_goes_on_after_its_table_moved(
    harness: SparkHarness, tmp_path: Path, partition_keys: list[str]
) -> None:
    path = harness.create(EVENTS, buckets=3, partition_keys=partition_keys)
    rows = [{"id": i, "s": f"p{i % 2}"} for i in range(70)]
    harness.put(path, rows[:50])
    with (
        fluss.LocalServer() as other,
        fluss.connect(harness.bootstrap) as here,
        fluss.connect(other.bootstrap_servers) as there,
    ):
        work = Migration(here, there, str(tmp_path / "state"), [path])
        work.copy()
        assert ids(harness.collect(harness.stream(path), tmp_path / "old")) == list(range(50))
        harness.put(path, rows[50:])
        work.finish()
        start = PositionMap.load(tmp_path / "state" / "positions.json").starting_offsets(tmp_path / "old")
        moved = harness.stream(path, bootstrap__servers=other.bootstrap_servers, startingOffsets=start)
        assert ids(harness.collect(moved, tmp_path / "new")) == list(range(50, 70))


def test_start_modes(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(EVENTS, buckets=1)
    harness.put(path, events(0, 10))
    time.sleep(0.02)
    middle = int(time.time() * 1000)
    time.sleep(0.02)
    harness.put(path, events(10, 10))
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"scan__startup__mode": "earliest"}, list(range(20))),
        ({"startingOffsets": '{"0": 15}'}, list(range(15, 20))),
        ({"scan__startup__mode": "timestamp", "scan__startup__timestamp": middle}, list(range(10, 20))),
    ]
    for number, (options, expected) in enumerate(cases):
        assert ids(harness.collect(harness.stream(path, **options), tmp_path / str(number))) == expected
    latest = harness.stream(path, scan__startup__mode="latest")
    assert harness.collect(latest, tmp_path / "latest") == []
    harness.put(path, events(20, 3))
    assert ids(harness.collect(latest, tmp_path / "latest")) == [20, 21, 22]


@needs_start
def test_rate_limits(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(EVENTS, buckets=2)
    harness.put(path, events(0, 100))
    sizes = []
    frame = harness.stream(path, maxRowsPerTrigger=30)
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert sizes == [30, 30, 30, 10]
    latest = query.recentProgress[0]["sources"][0]["latestOffset"]
    latest = json.loads(latest) if isinstance(latest, str) else latest
    assert latest["rows_behind"] == 70
    assert sum(latest["offsets"].values()) == 100
    sizes.clear()
    frame = harness.stream(path, maxBytesPerTrigger=1000)
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path / "bytes"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert sum(sizes) == 100
    assert 2 <= len(sizes) <= 10


@pytest.mark.skipif(not KNOWS_START, reason="this Spark asks for the first end without its start")
@pytest.mark.parametrize("mode", ["latest", "earliest"])
def test_a_first_micro_batch_that_runs_again_starts_where_it_did(harness: SparkHarness, mode: str) -> None:
    path = harness.create(EVENTS, buckets=1)
    given = {"path": path, "bootstrap.servers": harness.bootstrap, "startingOffsets": mode}
    readers = [FlussStreamReader(given, harness.stream(path).schema) for _ in range(2)]
    start = readers[0].initialOffset()
    assert readers[0].latestOffset(start, ReadAllAvailable()) == start, "nothing new"
    harness.put(path, events(0, 20))
    end = readers[0].latestOffset(start, ReadAllAvailable())
    for reader in readers:  # the second one in a driver that was started again
        assert sum(split.rows_max for split in reader.partitions(reader.initialOffset(), end)) == 20
    harness.put(path, events(20, 5))
    later = readers[0].latestOffset(end, ReadAllAvailable())
    assert sum(split.rows_max for split in readers[1].partitions(end, later)) == 5


def test_positions_never_go_back_where_spark_does_not_name_them(harness: SparkHarness) -> None:
    """Spark 4.0 and 4.1 ask for the end of the first micro-batch, then for its start, and then only for ends."""
    path = harness.create(EVENTS, buckets=1)
    harness.put(path, events(0, 20))
    given = {"path": path, "bootstrap.servers": harness.bootstrap, "maxRowsPerTrigger": "8"}
    reader = FlussStreamReader(given, harness.stream(path).schema)
    end = reader.latestOffset()
    start = reader.initialOffset()
    assert (start["offsets"], end["offsets"]) == ({"0": 0}, {"0": 20})
    assert sum(split.rows_max for split in reader.partitions(start, end)) == 20
    assert reader.latestOffset() == end
    harness.put(path, events(20, 20))
    assert [reader.latestOffset()["offsets"]["0"] for _ in range(4)] == [28, 36, 40, 40]


def test_a_run_begins_with_all_there_is_where_spark_does_not_name_positions(harness: SparkHarness) -> None:
    """With Spark 4.0 and 4.1, `availableNow` is one micro-batch, also of a query that goes on after a restart."""
    path = harness.create(EVENTS, buckets=1)
    harness.put(path, events(0, 20))
    given = {"path": path, "bootstrap.servers": harness.bootstrap, "maxRowsPerTrigger": "8"}
    schema = harness.stream(path).schema
    first = FlussStreamReader(given, schema)
    end = first.latestOffset()
    restarted = FlussStreamReader(given, schema)
    restarted.partitions(first.initialOffset(), end)  # the last micro-batch is planned again
    harness.put(path, events(20, 20))
    assert restarted.latestOffset()["offsets"]["0"] == 40
    harness.put(path, events(40, 20))
    assert [restarted.latestOffset()["offsets"]["0"] for _ in range(4)] == [48, 56, 60, 60]


def test_shares_add_up_and_starve_nobody() -> None:
    buckets = [Bucket(-1, i) for i in range(4)]
    begin = dict.fromkeys(buckets, 5)
    end = {buckets[0]: 1005, buckets[1]: 6, buckets[2]: 5, buckets[3]: 105}
    taken = share(begin, end, 10)
    assert sum(taken[b] - 5 for b in buckets) == 10
    assert taken[buckets[2]] == 5
    assert all(begin[b] <= taken[b] <= end[b] for b in buckets)
    left = 0
    while taken != end and left < 2000:
        begin = taken
        taken = share(begin, end, 10) if sum(end[b] - begin[b] for b in buckets) > 10 else end
        left += 1
    assert taken == end


def test_new_partitions_are_picked_up_in_mid_stream(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_keys=["day"], buckets=1)
    harness.put(path, [{"id": 1, "day": "a"}])
    seen: list[int] = []
    query = (
        harness.stream(path)
        .writeStream.foreachBatch(lambda batch, _: seen.extend(row.id for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        wait_for(lambda: seen == [1])
        harness.put(path, [{"id": 2, "day": "b"}, {"id": 3, "day": "a"}])
        wait_for(lambda: sorted(seen) == [1, 2, 3])
        assert query.exception() is None
    finally:
        query.stop()


def test_a_stream_goes_on_without_a_dropped_partition_if_it_may(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_keys=["day"], buckets=1)
    harness.put(path, [{"id": 1, "day": "a"}, {"id": 2, "day": "b"}])
    assert ids(harness.collect(harness.stream(path), tmp_path)) == [1, 2]
    drop = harness.client.admin.drop_partition(TablePath(*path.split(".")), PartitionSpec({"day": "a"}))
    harness.client.run(drop)
    harness.put(path, [{"id": 3, "day": "b"}])
    assert ids(harness.collect(harness.stream(path, failOnDataLoss="false"), tmp_path)) == [3]
    harness.put(path, [{"id": 4, "day": "b"}])
    assert ids(harness.collect(harness.stream(path), tmp_path)) == [4]  # the checkpoint no longer names the partition


def test_rows_that_vanish_unread_fail_the_stream(harness: SparkHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "1")  # set by the reader in its own process otherwise
    path = harness.create(pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_keys=["day"], buckets=1)
    harness.put(path, [{"id": 1, "day": "a"}, {"id": 2, "day": "b"}])
    schema = harness.read(path).schema
    given = {"bootstrap.servers": harness.bootstrap, "table": path}
    strict, lenient = (FlussStreamReader({**given, "failOnDataLoss": text}, schema) for text in ("true", "false"))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    drop = harness.client.admin.drop_partition(TablePath(*path.split(".")), PartitionSpec({"day": "a"}))
    harness.client.run(drop)
    with pytest.raises(LogOffsetOutOfRangeError, match="was dropped with 1 rows of bucket 0 not read"):
        strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(LogOffsetOutOfRangeError, match="was dropped before it was read"):
        strict.partitions(start, end)
    left = lenient.partitions(start, end)
    rows = [row for split in left for batch in lenient.read(split) for row in batch.to_pylist()]
    assert rows == [{"id": 2, "day": "b"}]


def test_a_table_made_anew_needs_a_new_checkpoint(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(EVENTS)
    harness.put(path, events(0, 5))
    harness.collect(harness.stream(path), tmp_path)
    harness.client.run(harness.client.admin.drop_table(TablePath(*path.split("."))))
    harness.create(EVENTS, name=path)
    with pytest.raises(PySparkException) as caught:
        harness.collect(harness.stream(path), tmp_path)
    assert "use a new checkpoint" in str(caught.value)


def test_metadata_columns_of_a_stream(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(EVENTS, buckets=1)
    harness.put(path, events(0, 3))
    frame = harness.stream(path, includeMetadata=True, columns="id")
    assert frame.columns == ["id", "_change_type", "_log_offset", "_commit_timestamp", "_bucket"]
    rows = harness.collect(frame, tmp_path)
    assert sorted((row[0], row[1], row[2], row[4]) for row in rows) == [(i, "insert", i, 0) for i in range(3)]


def test_full_gives_the_rows_then_the_changes(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(USERS, primary_key=["id"], buckets=2)
    harness.put(path, [{"id": i, "age": i} for i in range(10)])
    harness.put(path, [{"id": 1, "age": 100}], deletes=[{"id": 2}])
    frame = harness.stream(path, read__changelog=True)
    rows = harness.collect(frame, tmp_path)
    expected = {i: i for i in range(10) if i != 2} | {1: 100}
    assert {row[0]: row[1] for row in rows} == expected
    assert len(rows) == 9
    assert {row[2] for row in rows} == {"insert"}
    harness.put(path, [{"id": 1, "age": 200}, {"id": 50, "age": 50}], deletes=[{"id": 3}])
    changes = harness.collect(frame, tmp_path)
    assert sorted((row[2], row[0], row[1]) for row in changes) == [
        ("delete", 3, 3),
        ("insert", 50, 50),
        ("update_after", 1, 200),
        ("update_before", 1, 100),
    ]


def test_without_change_types_a_stream_gives_new_rows_only(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(USERS, primary_key=["id"], buckets=1)
    harness.put(path, [{"id": 1, "age": 1}, {"id": 2, "age": 2}])
    harness.put(path, [{"id": 1, "age": 10}], deletes=[{"id": 2}])
    rows = harness.collect(harness.stream(path, scan__startup__mode="earliest"), tmp_path)
    assert rows == [(1, 1), (2, 2), (1, 10)]


def test_stream_errors_are_one_sentence(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(EVENTS)
    with pytest.raises(PySparkException) as caught:
        harness.collect(harness.stream(path, endingOffsets='{"0": 1}'), tmp_path)
    assert "endingOffsets is for batch reads" in str(caught.value)
