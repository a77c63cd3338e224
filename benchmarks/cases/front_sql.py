# SPDX-License-Identifier: Apache-2.0
"""SQL of the high-level API: DuckDB on our tables against DuckDB on the same rows in Parquet."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fluss
from benchmarks.harness import Bar, Result, Settings, alternate, ratio_of

ROWS = 5_000_000
LOOKUPS = 50
QUERIES = {
    "sql, count(*) and sum(x)": "select count(*), sum(x) from {}",
    "sql, sum(x) group by k": "select k, sum(x) from {} group by k order by k",
}
FIRST = "sql, first query"
ONE_ROW = "sql, one row by its key"


def sql_cases(settings: Settings) -> Iterator[Result]:
    """Aggregates over a log table, and a row of a primary-key table by its key."""
    if not settings.wanted(*QUERIES, FIRST, ONE_ROW):
        return
    rows = settings.rows(ROWS)
    random = np.random.default_rng(1)
    table = pa.table(
        {
            "id": np.arange(rows, dtype=np.int64),
            "k": random.integers(0, 1_000, rows),
            "x": random.random(rows),
            "s": pa.array(random.integers(0, 100_000, rows)).cast(pa.string()),
        }
    )
    with tempfile.TemporaryDirectory() as folder, fluss.connect(Path(folder) / "data") as db:
        parquet = Path(folder) / "rows.parquet"
        pq.write_table(table, parquet)
        db.create_table("log", table, buckets=2)
        files = duckdb.connect()
        yield from _aggregates(settings, db, files, parquet, rows)
        files.close()
        if settings.wanted(ONE_ROW):
            db.create_table("keyed", table.select(["id", "x", "s"]), primary_key="id", buckets=2)
            yield _one_row(settings, db, rows)


def _aggregates(
    settings: Settings, db: fluss.Database, files: duckdb.DuckDBPyConnection, parquet: Path, rows: int
) -> Iterator[Result]:
    for name, query in QUERIES.items():
        if not settings.wanted(name):
            continue
        ours, theirs = query.format("log"), query.format(f"'{parquet}'")
        answers = db.sql(ours).fetchall(), files.sql(theirs).fetchall()
        if not np.allclose(np.array(answers[0], float), np.array(answers[1], float)):
            raise AssertionError(f"{name}: the answers differ")
        mine, peer = alternate(
            _timed(lambda text=ours: db.sql(text).fetchall()),  # type: ignore[misc]
            _timed(lambda text=theirs: files.sql(text).fetchall()),  # type: ignore[misc]
            settings.repeats,
            rounds=settings.rounds,
        )
        rates = [[rows / seconds / 1e6 for seconds in side] for side in (mine, peer)]
        yield Result(name, rates[0], rates[1], "M rows/s", ratio_of(*rates), Bar(0.5, 1.0), note="peer: Parquet")
    if settings.wanted(FIRST):
        text = QUERIES["sql, count(*) and sum(x)"]
        mine, peer = alternate(
            _timed(lambda: db.sql(text.format("log")).fetchall(), lambda: _forget(db)),
            _timed(lambda: files.sql(text.format(f"'{parquet}'")).fetchall()),
            settings.repeats,
            rounds=settings.rounds,
        )
        rates = [[rows / seconds / 1e6 for seconds in side] for side in (mine, peer)]
        note = "nothing kept of earlier queries"
        yield Result(FIRST, rates[0], rates[1], "M rows/s", ratio_of(*rates), Bar(0.1, 0.5), note=note)


def _forget(db: fluss.Database) -> None:
    """Begin with a DuckDB that is open, as the peer's is, and has read nothing."""
    db._sql_engine = None
    db._engine()


def _one_row(settings: Settings, db: fluss.Database, rows: int) -> Result:
    def ask() -> float:
        began = time.perf_counter()
        for number in range(LOOKUPS):
            key = (number * 7_919 + 7) % rows
            found = db.sql(f"select id, s from keyed where id = {key}").fetchall()
            assert found[0][0] == key
        return (time.perf_counter() - began) / LOOKUPS * 1e3

    mine, _ = alternate(ask, None, settings.repeats)
    return Result(ONE_ROW, mine, [], "ms", None, Bar(10.0, 5.0, "ms", False))


def _timed(run: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> Callable[[], float]:
    def measure() -> float:
        prepare()
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    return measure
