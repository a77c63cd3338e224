# SPDX-License-Identifier: Apache-2.0
"""Rows that expire, and partitions that are dropped, between the micro-batches of a stream that has not read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import SparkHarness
from tests.spark.marks import needs_start
from tests.waiting import wait_for

import fluss
from fluss.errors import LogOffsetOutOfRangeError
from fluss.metadata import OffsetSpec, PartitionSpec, TablePath
from fluss.spark.stream_reader import FlussStreamReader
from fluss.spark.versions import ReadAllAvailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])


class ShortLived(SparkHarness):
    """A server that looks for expired rows all the time."""

    def put_ids(self, path: str, ids: range, day: str = "a") -> None:
        self.put(path, [{"id": i, "day": day} for i in ids])

    def expire(self, path: str) -> None:
        """Let all rows of a table expire that are there now; later ones are kept."""
        table, admin = TablePath(*path.split(".")), self.client.admin
        end = self.client.run(admin.list_offsets(table, [0], OffsetSpec.latest()))
        self._keep(path, "1ms")
        wait_for(lambda: self.client.run(admin.list_offsets(table, [0], OffsetSpec.earliest())) == end)
        self._keep(path, "7d")

    def _keep(self, path: str, ttl: str) -> None:
        change = self.client.admin.alter_table(TablePath(*path.split(".")), set_properties={"table.log.ttl": ttl})
        self.client.run(change)

    def drop(self, path: str, day: str) -> None:
        self.client.run(self.client.admin.drop_partition(TablePath(*path.split(".")), PartitionSpec({"day": day})))

    def follow(self, path: str, checkpoint: Path, between: Callable[[], None], fail_on_data_loss: str) -> list[int]:
        """The rows of a stream of at most 4 rows per micro-batch, with something happening after the first."""
        seen: list[int] = []

        def take(batch: object, number: int) -> None:
            seen.extend(row.id for row in batch.collect())  # type: ignore[attr-defined]
            if number == 0:
                between()

        query = (
            self.stream(path, failOnDataLoss=fail_on_data_loss, maxRowsPerTrigger=4)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            deadline = time.monotonic() + 60
            while query.isActive and 999 not in seen:  # the last row that is written
                assert time.monotonic() < deadline, seen
                time.sleep(0.05)
            if error := query.exception():
                raise error
        finally:
            query.stop()
        return sorted(seen)


@pytest.fixture(scope="module")
def short_lived(spark: SparkSession) -> Iterator[ShortLived]:
    options = {"log.retention.check-interval": "50ms", "log.retention.roll-active-segment.enabled": "true"}
    with fluss.LocalServer(options=options) as server:
        made = ShortLived(server, spark)
        yield made
        made.client.close()


def sentence(caught: pytest.ExceptionInfo[PySparkException]) -> str:
    text = str(caught.value)
    assert "Traceback" not in text
    assert "failOnDataLoss" in text
    return text


@needs_start
@pytest.mark.parametrize("fail", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_rows_that_expire_between_micro_batches(short_lived: ShortLived, tmp_path: Path, fail: str) -> None:
    path = short_lived.create(ROWS, buckets=1)
    short_lived.put_ids(path, range(10))

    def between() -> None:
        short_lived.expire(path)
        short_lived.put_ids(path, range(990, 1000))

    if fail == "true":
        with pytest.raises(PySparkException) as caught:
            short_lived.follow(path, tmp_path, between, fail)
        assert f"bucket 0 of {path} now starts at offset 10: the rows from 4 on are gone" in sentence(caught)
    else:
        found = short_lived.follow(path, tmp_path, between, fail)
        assert found == [*range(4), *range(990, 1000)]


@needs_start
@pytest.mark.slow
@pytest.mark.parametrize("fail", ["true", "false"])
def test_partitions_that_are_dropped_between_micro_batches(short_lived: ShortLived, tmp_path: Path, fail: str) -> None:
    path = short_lived.create(ROWS, partition_keys=["day"], buckets=1)
    short_lived.put_ids(path, range(10), "a")
    short_lived.put_ids(path, range(100, 110), "b")

    def between() -> None:
        short_lived.drop(path, "a")
        short_lived.put_ids(path, range(999, 1000), "b")

    if fail == "true":
        with pytest.raises(PySparkException) as caught:
            short_lived.follow(path, tmp_path, between, fail)
        assert f"partition 'a' of {path} was dropped with 8 rows of bucket 0 not read" in sentence(caught)
    else:
        found = short_lived.follow(path, tmp_path, between, fail)
        assert found == [0, 1, *range(100, 110), 999]


@pytest.mark.parametrize("partitioned", [False, True], ids=["expired", "dropped"])
def test_rows_that_vanish_between_plan_and_task(
    short_lived: ShortLived, monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "1")  # set by the reader in its own process otherwise
    path = short_lived.create(ROWS, partition_keys=["day"] if partitioned else [], buckets=1)
    short_lived.put_ids(path, range(10))
    schema = short_lived.read(path).schema
    given = {"bootstrap.servers": short_lived.bootstrap, "table": path}
    strict, lenient = (FlussStreamReader({**given, "failOnDataLoss": text}, schema) for text in ("true", "false"))
    start = strict.initialOffset()
    [first] = strict.partitions(start, strict.latestOffset(start, ReadAllAvailable()))
    if partitioned:
        short_lived.drop(path, "a")
        left = []
    else:
        short_lived.expire(path)
        short_lived.put_ids(path, range(10, 12))
        left = [10, 11]
    first.stop += len(left)
    with pytest.raises(LogOffsetOutOfRangeError, match="from offset 0 to 10 are gone since the read was planned"):
        list(strict.read(first))
    assert [row["id"] for batch in lenient.read(first) for row in batch.to_pylist()] == left


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_partition_that_is_dropped_while_the_query_is_down(
    short_lived: ShortLived, tmp_path: Path, fail: str
) -> None:
    path = short_lived.create(ROWS, partition_keys=["day"], buckets=1)
    short_lived.put_ids(path, range(10), "a")
    short_lived.put_ids(path, range(100, 105), "b")

    def run() -> list[int]:
        return sorted(row[0] for row in short_lived.collect(short_lived.stream(path, failOnDataLoss=fail), tmp_path))

    assert run() == [*range(10), *range(100, 105)]
    short_lived.put_ids(path, range(10, 30), "a")
    short_lived.drop(path, "a")
    short_lived.put_ids(path, range(105, 110), "b")
    if fail == "true":
        with pytest.raises(PySparkException) as caught:
            run()
        assert f"partition 'a' of {path} was dropped while this query was not running" in sentence(caught)
    else:
        assert run() == list(range(105, 110))
