# SPDX-License-Identifier: Apache-2.0
"""Nothing lost and nothing doubled when a micro-batch runs again."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.marks import needs_bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.spark.conftest import SparkHarness

EVENTS = pa.schema([("id", pa.int64()), ("s", pa.string())])


def events(first: int, count: int, size: int = 1) -> list[dict[str, Any]]:
    return [{"id": i, "s": f"s{i % 7}" * size} for i in range(first, first + count)]


def counts(harness: SparkHarness, path: str) -> Counter[int]:
    return Counter(row.id for row in harness.read(path).collect())


def drop_commit(checkpoint: Path) -> int:
    """As if the driver had died after the sink committed and before Spark noted it: the last batch runs again."""
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


def failing_once(frame: DataFrame, marker: Path, after_batches: int) -> DataFrame:
    """The same rows, but the task that sees them first breaks off half-way, after what it wrote had time to leave."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number >= after_batches and not marker.exists():
                time.sleep(1.5)
                marker.touch()
                raise RuntimeError("broken off on purpose")
            yield batch

    return frame.mapInArrow(pass_on, frame.schema)


@contextlib.contextmanager
def small_batches(harness: SparkHarness) -> Iterator[None]:
    """Have Spark send 500 rows at a time, so that a task can break off half-way."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    harness.spark.conf.set(name, "500")
    try:
        yield
    finally:
        harness.spark.conf.set(name, "65536")


def test_a_committed_batch_that_runs_again_writes_nothing(harness: SparkHarness, tmp_path: Path) -> None:
    source, target = harness.create(EVENTS, buckets=2), harness.create(EVENTS, buckets=3)
    harness.put(source, events(0, 200))
    for _ in range(2):
        harness.start(harness.stream(source), target, tmp_path).awaitTermination(200)
        assert drop_commit(tmp_path) == 0
    assert counts(harness, target) == Counter(range(200))
    # Spark's names for query and batch reach the tasks: the ledger knows the query, and keeps only its last batch.
    notes = [row for row in harness.read("fluss.spark_write_ledger").collect() if row.query.startswith("query:")]
    assert all(row.batch == -1 for row in notes)
    assert "0" in {row.state for row in notes}


def test_a_batch_that_broke_off_is_completed(harness: SparkHarness, tmp_path: Path) -> None:
    source, target = harness.create(EVENTS, buckets=1), harness.create(EVENTS, buckets=3)
    # Many rows alike: what was written must be counted, not only seen.
    harness.put(source, [{"id": i % 50, "s": "x" * 2000} for i in range(4000)])
    with small_batches(harness):
        marker = tmp_path / "broke"
        frame = failing_once(harness.stream(source), marker, 6)
        with pytest.raises(PySparkException):
            harness.start(frame, target, tmp_path / "c").awaitTermination(200)
        written = harness.read(target).count()
        assert 0 < written < 4000
        harness.start(frame, target, tmp_path / "c").awaitTermination(200)
        assert counts(harness, target) == Counter(dict.fromkeys(range(50), 80))


def test_rows_of_others_are_not_taken_for_own(harness: SparkHarness, tmp_path: Path) -> None:
    source, target = harness.create(EVENTS, buckets=1), harness.create(EVENTS, buckets=1)
    harness.put(source, events(0, 2000, 2000))
    with small_batches(harness):
        frame = failing_once(harness.stream(source), tmp_path / "broke", 2)
        with pytest.raises(PySparkException):
            harness.start(frame, target, tmp_path / "c").awaitTermination(200)
        assert 0 < harness.read(target).count() < 1500
        harness.put(target, events(1500, 500, 2000))  # another writer adds the very rows that are missing
        harness.start(frame, target, tmp_path / "c").awaitTermination(200)
        assert counts(harness, target) == Counter(range(2000)) + Counter(range(1500, 2000))


def test_at_least_once_keeps_no_ledger_and_doubles(harness: SparkHarness, tmp_path: Path) -> None:
    source, target = harness.create(EVENTS), harness.create(EVENTS)
    harness.put(source, events(0, 20))
    for _ in range(2):
        harness.start(harness.stream(source), target, tmp_path, write__delivery="at-least-once").awaitTermination(200)
        drop_commit(tmp_path)
    assert counts(harness, target) == Counter(dict.fromkeys(range(20), 2))


def test_a_micro_batch_may_write_to_a_table_twice(harness: SparkHarness, tmp_path: Path) -> None:
    source, target = harness.create(EVENTS, buckets=1), harness.create(EVENTS, buckets=1)
    harness.put(source, events(0, 20))

    def halves(batch: DataFrame, number: int) -> None:
        for half in (0, 1):
            options = {"write__delivery": "exactly-once", "write__ledger": "fluss.jobs_ledger"}
            harness.write(batch.where(f"id % 2 = {half}"), target, **options)

    query = harness.stream(source).writeStream.foreachBatch(halves).trigger(availableNow=True)
    assert query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(200)
    assert counts(harness, target) == Counter(range(20))
    assert harness.read("fluss.jobs_ledger").count() == 0, "no later write asks for these"


def test_exactly_once_needs_idempotent_writers(harness: SparkHarness, tmp_path: Path) -> None:
    source, target = harness.create(EVENTS), harness.create(EVENTS)
    harness.put(source, events(0, 5))
    options = {"writer__enable-idempotence": "false"}
    with pytest.raises(PySparkException, match=r"writer\.enable-idempotence"):
        harness.start(harness.stream(source), target, tmp_path, **options).awaitTermination(200)
    assert harness.read(target).count() == 0


@needs_bridge
def test_speculation_is_refused(harness: SparkHarness, tmp_path: Path, speculation: None) -> None:
    source, target = harness.create(EVENTS), harness.create(EVENTS)
    harness.put(source, events(0, 5))
    with pytest.raises(PySparkException, match=r"spark\.speculation is on, but exactly-once to"):
        harness.start(harness.stream(source), target, tmp_path).awaitTermination(200)
    assert harness.read(target).count() == 0
    harness.write(harness.read(source), target)
    assert harness.read(target).count() == 5, "at least once needs no such promise"


def test_upserts_may_run_again(harness: SparkHarness, tmp_path: Path) -> None:
    source = harness.create(EVENTS)
    target = harness.create(
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]), primary_key=["id"]
    )
    harness.put(source, events(0, 100))
    for _ in range(2):
        harness.start(harness.stream(source), target, tmp_path).awaitTermination(200)
        drop_commit(tmp_path)
    assert counts(harness, target) == Counter(range(100))


def test_a_running_total_needs_a_table_with_a_key(harness: SparkHarness, tmp_path: Path) -> None:
    source = harness.create(EVENTS)
    totals = pa.schema([pa.field("s", pa.string(), nullable=False), ("n", pa.int64())])
    target = harness.create(totals, primary_key=["s"])
    harness.put(source, events(0, 70))
    frame = harness.stream(source).groupBy("s").count().withColumnRenamed("count", "n")
    harness.start(frame, target, tmp_path / "c", output_mode="complete").awaitTermination(200)
    assert {row.s: row.n for row in harness.read(target).collect()} == {f"s{i}": 10 for i in range(7)}
    log = harness.create(totals)
    with pytest.raises(PySparkException, match="cannot take output mode complete"):
        harness.start(frame, log, tmp_path / "d", output_mode="complete").awaitTermination(200)


def test_a_table_that_is_no_ledger_is_refused(harness: SparkHarness, tmp_path: Path) -> None:
    source, target = harness.create(EVENTS), harness.create(EVENTS)
    harness.put(source, events(0, 5))
    with pytest.raises(PySparkException, match="is not a ledger"):
        harness.start(harness.stream(source), target, tmp_path, write__ledger=source).awaitTermination(200)


@pytest.mark.parametrize("distinct", [3000, 20], ids=["rows that differ", "rows that are alike"])
def test_a_batch_that_broke_off_is_completed_by_another_number_of_tasks(
    harness: SparkHarness, tmp_path: Path, distinct: int
) -> None:
    source, target = harness.create(EVENTS, buckets=1), harness.create(EVENTS, buckets=2)
    harness.put(source, [{"id": i % distinct, "s": "x" * 2000} for i in range(3000)])
    with small_batches(harness):
        frame = failing_once(harness.stream(source, minPartitions=2), tmp_path / "broke", 2)
        with pytest.raises(PySparkException):
            harness.start(frame, target, tmp_path / "c").awaitTermination(200)
        assert 0 < harness.read(target).count() < 3000
        again = harness.stream(source, minPartitions=5)
        harness.start(again, target, tmp_path / "c").awaitTermination(200)
    assert counts(harness, target) == Counter(i % distinct for i in range(3000))
    notes = harness.read("fluss.spark_write_ledger", scan__filter="batch >= 0").collect()
    assert [row for row in notes if row.query.startswith("query:")] == []


def test_a_transaction_that_broke_off_is_completed_by_another_number_of_tasks(
    harness: SparkHarness, tmp_path: Path
) -> None:
    target = harness.create(EVENTS, buckets=2)

    def rows(tasks: int) -> DataFrame:
        return harness.spark.range(0, 8000, 1, tasks).selectExpr("id % 700 as id", "repeat('x', 2000) as s")

    with small_batches(harness):
        with pytest.raises(PySparkException):
            harness.write(failing_once(rows(4), tmp_path / "broke", 3), target, txnAppId="tasks", txnVersion=1)
        assert 0 < harness.read(target).count() < 8000
        harness.write(rows(2), target, txnAppId="tasks", txnVersion=1)
    assert counts(harness, target) == Counter(i % 700 for i in range(8000))
