# SPDX-License-Identifier: Apache-2.0
"""What SQL keeps of logs: the next query reads only what is new, and answers are never old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss.client.scan.plan import ScanPlan
from fluss.db import log_cache
from fluss.db.log_cache import LogCache
from fluss.metadata import TableBucket

LOG = (1, TableBucket(1, 0))
OTHER = (1, TableBucket(1, 1))


def batch(*numbers: int, **more: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), **more})


def rows(found: list[pa.RecordBatch]) -> list[int]:
    return [number for part in found for number in part["n"].to_pylist()]


def test_a_prefix_has_no_gaps() -> None:
    cache = LogCache()
    assert cache.prefix(LOG, 0, 10, ["n"]) == ([], 0)
    cache.add(LOG, 0, 2, batch(0, 1))
    cache.add(LOG, 1, 4, batch(1, 2, 3))  # of another read
    cache.add(LOG, 7, 8, batch(7))
    cache.add(LOG, 4, 6, batch(4))  # an offset without a row
    found, end = cache.prefix(LOG, 0, 10, ["n"])
    assert (rows(found), end) == ([0, 1, 2, 3], 4)
    assert cache.prefix(LOG, 0, 3, ["n"])[1] == 3
    assert cache.prefix(OTHER, 0, 10, ["n"]) == ([], 0)


def test_columns_come_one_by_one() -> None:
    cache = LogCache()
    cache.add(LOG, 0, 2, batch(0, 1))
    assert cache.prefix(LOG, 0, 2, ["n", "m"]) == ([], 0)
    cache.add(LOG, 0, 1, batch(0, m=[5]))
    assert cache.prefix(LOG, 0, 2, ["n", "m"])[1] == 1
    cache.add(LOG, 1, 3, batch(1, 2, m=[6, 7]))
    found, end = cache.prefix(LOG, 0, 3, ["m", "n"])
    assert end == 3
    assert pa.Table.from_batches(found).to_pydict() == {"m": [5, 6, 7], "n": [0, 1, 2]}
    assert cache.nbytes == 2 * 24


def test_a_log_whose_beginning_was_removed() -> None:
    cache = LogCache()
    cache.add(LOG, 0, 3, batch(0, 1, 2))
    found, end = cache.prefix(LOG, 1, 3, ["n"])
    assert (rows(found), end) == ([1, 2], 3)
    assert cache.prefix(LOG, 3, 3, ["n"]) == ([], 3)
    assert cache.nbytes == 0
    cache.add(LOG, 3, 5, batch(3, 4))
    assert cache.prefix(LOG, 6, 7, ["n"]) == ([], 6)
    cache.add(LOG, 6, 7, batch(6))
    assert rows(cache.prefix(LOG, 6, 7, ["n"])[0]) == [6]


def test_many_small_pieces_become_few() -> None:
    cache = LogCache()
    count = 50_000
    for number in range(count):
        cache.add(LOG, number, number + 1, batch(number))
    found, end = cache.prefix(LOG, 0, count, ["n"])
    assert (rows(found), end) == (list(range(count)), count)
    assert len(found) == 4
    assert cache.nbytes == 8 * count


def test_a_log_that_lost_its_beginning_to_others_is_kept_again() -> None:
    cache = LogCache(32)
    cache.add(LOG, 0, 2, batch(0, 1))
    cache.add(OTHER, 0, 4, batch(0, 1, 2, 3))
    cache.add(LOG, 2, 4, batch(2, 3))  # the read goes on, but what it read first had to go
    for _ in range(2):
        found, end = cache.prefix(LOG, 0, 4, ["n"])
        for start in range(end, 4, 2):
            cache.add(LOG, start, start + 2, batch(start, start + 1))
    assert (rows(found), end, cache.nbytes) == ([0, 1, 2, 3], 4, 32)


def test_memory_is_bounded() -> None:
    cache = LogCache(40)
    cache.add(LOG, 0, 2, batch(0, 1))
    cache.add(OTHER, 0, 2, batch(0, 1))
    assert cache.nbytes == 32
    cache.prefix(LOG, 0, 2, ["n"])  # used: the other one goes first
    cache.add(LOG, 2, 4, batch(2, 3))
    assert cache.prefix(OTHER, 0, 2, ["n"])[1] == 0
    assert cache.prefix(LOG, 0, 4, ["n"])[1] == 4
    cache.add(LOG, 4, 6, batch(4, 5))  # no room left, and nothing else to drop
    assert cache.prefix(LOG, 0, 6, ["n"])[1] == 4
    assert cache.nbytes == 32


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each scan was asked for."""
    seen: list[int] = []
    original = ScanPlan.read

    def recording(self: ScanPlan, starts: Any, stops: Any) -> Any:
        seen.append(sum(stops[bucket] - start for bucket, start in starts.items()))
        return original(self, starts, stops)

    monkeypatch.setattr(ScanPlan, "read", recording)
    return seen


def test_queries_read_what_is_new(db: fluss.Database, scanned: list[int]) -> None:
    pytest.importorskip("duckdb")
    log = db.create_table("log", pa.table({"n": range(100), "m": range(100)}), buckets=2)

    def total(where: str = "", column: str = "n") -> int | None:
        found: int | None = db.sql(f"select sum({column}) from log {where}").fetchall()[0][0]
        return found

    assert total() == 4950
    assert scanned == [100]
    assert total() == 4950
    assert total("where n < 10") == 45
    assert scanned == [100]
    log.append([{"n": 1000, "m": 1}])
    assert total() == 5950
    assert scanned == [100, 1]
    assert total(column="m") == 4951
    assert db.sql("select sum(n + m) from log").fetchall() == [(5950 + 4951,)]
    assert scanned[:3] == [100, 1, 101]
    assert len(scanned) <= 4
    log.add_column("o", "int")
    log.append([{"n": 1, "m": 1, "o": 5}])
    assert db.sql("select count(*), sum(o) from log").fetchall() == [(102, 5)]
    assert total() == 5951
    db.drop_table("log")
    db.create_table("log", pa.table({"n": [7]}))
    assert total() == 7


def test_a_log_that_is_polled_is_kept_in_few_pieces(db: fluss.Database, scanned: list[int]) -> None:
    pytest.importorskip("duckdb")
    log = db.create_table("log", pa.table({"n": [0], "m": [0]}), buckets=1)
    for number in range(1, 40):
        log.append([{"n": number, "m": number}])
        assert db.sql("select sum(n) from log").fetchall() == [(number * (number + 1) // 2,)]
    scanned.clear()
    # The other column is read once, although its rows come in larger pieces.
    for _ in range(3):
        assert db.sql("select sum(m) from log").fetchall() == [(780,)]
        assert db.sql("select sum(n) from log").fetchall() == [(780,)]
    assert scanned == [40]


def test_filters_read_what_is_not_kept(db: fluss.Database, scanned: list[int]) -> None:
    pytest.importorskip("duckdb")
    db.create_table("log", pa.table({"n": range(100), "s": [str(number) for number in range(100)]}))
    assert db.sql("select s from log where n = 5").fetchall() == [("5",)]
    assert db.sql("select s from log where n = 5").fetchall() == [("5",)]
    assert scanned == [100, 100]


def test_partitions(db: fluss.Database) -> None:
    pytest.importorskip("duckdb")
    log = db.create_table("log", pa.table({"n": [1, 2, 3], "day": ["a", "b", "b"]}), partition_by="day")
    query = "select sum(n) from log"
    assert db.sql(query).fetchall() == [(6,)]
    log.drop_partition("b")
    assert db.sql(query).fetchall() == [(1,)]
    log.append([{"n": 10, "day": "b"}])
    assert db.sql(query).fetchall() == [(11,)]
    assert db.sql(query + " where day = 'b'").fetchall() == [(10,)]


def test_a_log_whose_beginning_goes_is_read_again(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    db.create_table("log", pa.table({"n": range(100)}))
    assert db.sql("select sum(n) from log").fetchall() == [(4950,)]
    original = ScanPlan.offsets

    async def moved(self: ScanPlan, buckets: Any, spec: Any, deadline: Any = None) -> Any:
        found = await original(self, buckets, spec, deadline)
        return {bucket: max(10, offset) for bucket, offset in found.items()}

    monkeypatch.setattr(ScanPlan, "offsets", moved)
    assert db.sql("select sum(n) from log").fetchall() == [(4950 - 45,)]


def test_what_does_not_fit_is_reread(db: fluss.Database, scanned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.setattr(db, "_sql_engine", None)
    monkeypatch.setattr(log_cache, "CACHE_BYTES_MAX", 10)
    db.create_table("log", pa.table({"n": range(100)}))
    for _ in range(2):
        assert db.sql("select sum(n) from log").fetchall() == [(4950,)]
    assert scanned == [100, 100]


def test_queries_read_no_columns_but_their_own(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    db.create_table("log", pa.table({name: range(100) for name in "abc"}), buckets=1)
    read: list[list[str]] = []
    original = ScanPlan.project_by_name

    def recording(self: ScanPlan, names: Sequence[str]) -> ScanPlan:
        read.append(list(names))
        return original(self, names)

    monkeypatch.setattr(ScanPlan, "project_by_name", recording)
    for name in "abc":
        assert db.sql(f"select sum({name}) from log").fetchall() == [(4950,)]
    assert read == [["a"], ["b"], ["c"]]
