# SPDX-License-Identifier: Apache-2.0
"""Nothing lost and nothing doubled when a micro-batch runs again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.spark.conftest import House

EVENTS = pa.schema([("id", pa.int64()), ("s", pa.string())])


def events(first: int, count: int, size: int = 1) -> list[dict[str, Any]]:
    return [{"id": i, "s": f"s{i % 7}" * size} for i in range(first, first + count)]


def counts(house: House, path: str) -> Counter[int]:
    return Counter(row.id for row in house.read(path).collect())


def forget_commit(checkpoint: Path) -> int:
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
                time.sleep(0.6)
                marker.touch()
                raise RuntimeError("broken off on purpose")
            yield batch

    return frame.mapInArrow(pass_on, frame.schema)


def test_a_committed_batch_that_runs_again_writes_nothing(house: House, tmp_path: Path) -> None:
    source, target = house.create(EVENTS, buckets=2), house.create(EVENTS, buckets=3)
    house.put(source, events(0, 200))
    for _ in range(2):
        house.start(house.stream(source), target, tmp_path).awaitTermination(60)
        assert forget_commit(tmp_path) == 0
    assert counts(house, target) == Counter(range(200))
    # Spark's names for query and batch reach the tasks: the ledger knows the query, and keeps only its last batch.
    notes = [row for row in house.read("fluss.spark_write_ledger").collect() if row.query.startswith("query:")]
    assert all(row.batch == -1 for row in notes)
    assert "0" in {row.state for row in notes}


def test_a_batch_that_broke_off_is_completed(house: House, tmp_path: Path) -> None:
    source, target = house.create(EVENTS, buckets=1), house.create(EVENTS, buckets=3)
    # Many rows alike: what was written must be counted, not only seen.
    house.put(source, [{"id": i % 50, "s": "x" * 2000} for i in range(4000)])
    house.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        marker = tmp_path / "broke"
        frame = failing_once(house.stream(source), marker, 6)
        with pytest.raises(PySparkException):
            house.start(frame, target, tmp_path / "c").awaitTermination(60)
        written = house.read(target).count()
        assert 0 < written < 4000
        house.start(frame, target, tmp_path / "c").awaitTermination(60)
        assert counts(house, target) == Counter(dict.fromkeys(range(50), 80))
    finally:
        house.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")


def test_rows_of_others_are_not_taken_for_own(house: House, tmp_path: Path) -> None:
    source, target = house.create(EVENTS, buckets=1), house.create(EVENTS, buckets=1)
    house.put(source, events(0, 2000, 2000))
    house.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        frame = failing_once(house.stream(source), tmp_path / "broke", 2)
        with pytest.raises(PySparkException):
            house.start(frame, target, tmp_path / "c").awaitTermination(60)
        assert 0 < house.read(target).count() < 1500
        house.put(target, events(1500, 500, 2000))  # somebody else writes the very rows that are missing
        house.start(frame, target, tmp_path / "c").awaitTermination(60)
        assert counts(house, target) == Counter(range(2000)) + Counter(range(1500, 2000))
    finally:
        house.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")


def test_at_least_once_keeps_no_ledger_and_doubles(house: House, tmp_path: Path) -> None:
    source, target = house.create(EVENTS), house.create(EVENTS)
    house.put(source, events(0, 20))
    for _ in range(2):
        house.start(house.stream(source), target, tmp_path, write__delivery="at-least-once").awaitTermination(60)
        forget_commit(tmp_path)
    assert counts(house, target) == Counter(dict.fromkeys(range(20), 2))


def test_upserts_may_run_again(house: House, tmp_path: Path) -> None:
    source = house.create(EVENTS)
    target = house.create(
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]), primary_key=["id"]
    )
    house.put(source, events(0, 100))
    for _ in range(2):
        house.start(house.stream(source), target, tmp_path).awaitTermination(60)
        forget_commit(tmp_path)
    assert counts(house, target) == Counter(range(100))


def test_a_running_total_needs_a_table_with_a_key(house: House, tmp_path: Path) -> None:
    source = house.create(EVENTS)
    totals = pa.schema([pa.field("s", pa.string(), nullable=False), ("n", pa.int64())])
    target = house.create(totals, primary_key=["s"])
    house.put(source, events(0, 70))
    frame = house.stream(source).groupBy("s").count().withColumnRenamed("count", "n")
    house.start(frame, target, tmp_path / "c", output_mode="complete").awaitTermination(60)
    assert {row.s: row.n for row in house.read(target).collect()} == {f"s{i}": 10 for i in range(7)}
    log = house.create(totals)
    with pytest.raises(PySparkException, match="cannot take output mode complete"):
        house.start(frame, log, tmp_path / "d", output_mode="complete").awaitTermination(60)


def test_a_table_that_is_no_ledger_is_refused(house: House, tmp_path: Path) -> None:
    source, target = house.create(EVENTS), house.create(EVENTS)
    house.put(source, events(0, 5))
    with pytest.raises(PySparkException, match="is not a ledger"):
        house.start(house.stream(source), target, tmp_path, write__ledger=source).awaitTermination(60)
