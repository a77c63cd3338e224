# SPDX-License-Identifier: Apache-2.0
"""Overwrites that break off while new rows take the place of the old ones."""

from __future__ import annotations

import itertools
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.metadata import TablePath
from fluss.spark import FlussDataSource, finish_overwrite
from fluss.spark.overwrite import Overwrite
from fluss.tools.drafts import descriptor_of

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

T = TypeVar("T")
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string(), nullable=False)])
OLD = {1: "a", 2: "a", 3: "b"}


class Killed(BaseException):
    """The end of a driver."""


class MortalClient(BlockingClient):
    """The connection of a driver that is killed before one of its requests."""

    requests_left = -1

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        if self.requests_left == 0:
            coro.close()
            raise Killed
        self.requests_left -= 1
        return super().run(coro)


def create(harness: SparkHarness, kind: str) -> str:
    path = harness.create(
        COLUMNS,
        primary_key=["id", "day"] if kind == "primary key" else [],
        partition_keys=["day"] if kind == "partition" else [],
    )
    harness.put(path, [{"id": key, "day": day} for key, day in OLD.items()])
    return path


def rows(harness: SparkHarness, path: str) -> list[tuple[int, str]]:
    with fluss.connect(harness.bootstrap) as db:
        return sorted((row["id"], row["day"]) for row in db.table(path).to_arrow().to_pylist())


def break_off(harness: SparkHarness, path: str, partitions: list[str] | None, requests: int) -> bool:
    """Overwrite a table with a driver that is killed after some requests; returns whether it was."""
    info = harness.client.info(TablePath(*path.split(".")))
    with MortalClient({"bootstrap.servers": harness.bootstrap}) as client:
        overwrite = Overwrite(info.table_path, descriptor_of(info), partitions)
        overwrite.prepare(client)
        harness.put(str(overwrite.staging), [{"id": 7, "day": "a"}])
        client.requests_left = requests
        try:
            overwrite.finish(client)
        except Killed:
            return True
        finally:
            client.requests_left = -1
    return False


@pytest.mark.parametrize("kind", ["log", "primary key", "partition"])
def test_a_driver_killed_at_any_step_leaves_old_rows_new_rows_or_an_error(harness: SparkHarness, kind: str) -> None:
    old = sorted(OLD.items())
    new = [(3, "b"), (7, "a")] if kind == "partition" else [(7, "a")]
    completed = 0
    for requests in itertools.count():
        path = create(harness, kind)
        killed = break_off(harness, path, ["a"] if kind == "partition" else None, requests)
        source = FlussDataSource({"bootstrap.servers": harness.bootstrap, "path": path})
        try:
            source.reader(source.schema())
            refused = False
        except (fluss.FlussError, PySparkException):
            refused = True
        before = [] if refused else rows(harness, path)
        assert finish_overwrite(path, harness.bootstrap) == refused
        assert rows(harness, path) == (new if refused else before)
        assert refused or before in (old, new)
        completed += refused
        if not killed:
            assert before == new
            break
    assert completed > 5  # requests between the mark and its removal


def test_a_broken_off_overwrite_is_named_by_reads_and_completed_by_the_next_one(harness: SparkHarness) -> None:
    path = create(harness, "partition")
    assert break_off(harness, path, ["a"], 8)
    for act in (
        harness.read(path).count,
        lambda: harness.write(harness.spark.range(1).selectExpr("id", "'c' day"), path),
    ):
        with pytest.raises(PySparkException, match=rf"finish_overwrite\('{path}'\)"):
            act()
    one = harness.spark.sql("select 8L as id, 'b' as day")
    harness.write(one, path, "overwrite", overwrite__partitions="b")
    assert sorted(tuple(row) for row in harness.read(path).collect()) == [(7, "a"), (8, "b")]

    assert break_off(harness, path, ["a"], 8)
    harness.write(one, path, "overwrite")
    assert [tuple(row) for row in harness.read(path).collect()] == [(8, "b")]
    assert not finish_overwrite(path, harness.bootstrap)
