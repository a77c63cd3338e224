# SPDX-License-Identifier: Apache-2.0
"""The high-level API against the full client doing the same work in the same process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

import fluss
from benchmarks.harness import Bar, Result, Settings, alternate, ratio_of

ROWS = 1_000_000
UPSERTS = 300_000
LOOKUPS = 5_000
CHANGES = 200_000
BUCKETS = 4
COLUMNS = "id bigint, x double, s string"
LEVEL = Bar(0.9, 1.0)


def front_cases(settings: Settings) -> Iterator[Result]:
    """Writes, reads, lookups, following, and how long connecting takes."""
    with fluss.LocalServer() as server, fluss.connect(server.bootstrap_servers, timeout=30) as db:
        loop = asyncio.new_event_loop()
        full = loop.run_until_complete(fluss.FlussConnection.create(server.config()))
        try:
            for case in (_append, _upsert, _to_arrow, _get, _follow):
                yield from case(settings, db, full, loop.run_until_complete)
            yield from _buckets(settings, db)
        finally:
            full.close()
            loop.close()
    yield from _connect(settings)


def _frame(rows: int) -> pd.DataFrame:
    random = np.random.default_rng(1)
    texts = [f"name-{number}" for number in range(1_000)]
    return pd.DataFrame(
        {"id": np.arange(rows), "x": random.random(rows), "s": [texts[number % 1_000] for number in range(rows)]}
    )


def _compare(settings: Settings, name: str, rows: int, ours: Callable[[], Any], full: Callable[[], Any]) -> Result:
    mine, peer = alternate(_timed(ours), _timed(full), settings.repeats, rounds=settings.rounds)
    rates = [[rows / seconds / 1e3 for seconds in side] for side in (mine, peer)]
    return Result(name, rates[0], rates[1], "k rows/s", ratio_of(*rates), LEVEL, note="peer: the full client")


def _append(settings: Settings, db: fluss.Database, full: fluss.FlussConnection, run: Any) -> Iterator[Result]:
    if not settings.wanted("append(df)"):
        return
    frame = _frame(settings.rows(ROWS))
    table = db.create_table("appended", COLUMNS, buckets=BUCKETS)
    peer = run(full.get_table(table.path))

    def write() -> None:
        writer = peer.new_append().create_writer()
        writer.write_pandas(frame)
        run(writer.flush())

    yield _compare(settings, "append(df)", len(frame), lambda: table.append(frame), write)


def _upsert(settings: Settings, db: fluss.Database, full: fluss.FlussConnection, run: Any) -> Iterator[Result]:
    if not settings.wanted("upsert(df)"):
        return
    frame = _frame(settings.rows(UPSERTS))
    table = db.create_table("upserted", COLUMNS, primary_key="id", buckets=BUCKETS)
    peer = run(full.get_table(table.path))

    def write() -> None:
        writer = peer.new_upsert().create_writer()
        writer.write_pandas(frame)
        run(writer.flush())

    yield _compare(settings, "upsert(df)", len(frame), lambda: table.upsert(frame), write)


def _to_arrow(settings: Settings, db: fluss.Database, full: fluss.FlussConnection, run: Any) -> Iterator[Result]:
    if settings.wanted("to_arrow()"):
        frame = _frame(settings.rows(ROWS))
        table = db.create_table("read", COLUMNS, buckets=BUCKETS)
        for _ in range(5):
            table.append(frame)
        log = run(full.get_table(table.path))

        def read_log() -> None:
            with run(log.new_scan().create_record_batch_log_scanner()) as scanner:
                scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
                assert scanner.to_arrow().num_rows == 5 * len(frame)

        yield _compare(settings, "to_arrow()", 5 * len(frame), table.to_arrow, read_log)
    if settings.wanted("to_arrow() of keys"):
        frame = _frame(settings.rows(UPSERTS))
        keyed = db.create_table("read_keys", frame, primary_key="id", buckets=BUCKETS)
        peer = run(full.get_table(keyed.path))
        buckets = [fluss.TableBucket(keyed.info.table_id, number) for number in range(BUCKETS)]

        def read_keys() -> None:
            parts = [peer.new_scan().create_bucket_batch_scanner(bucket).to_arrow() for bucket in buckets]
            assert sum(part.num_rows for part in parts) == len(frame)

        yield _compare(settings, "to_arrow() of keys", len(frame), keyed.to_arrow, read_keys)


def _get(settings: Settings, db: fluss.Database, full: fluss.FlussConnection, run: Any) -> Iterator[Result]:
    if not settings.wanted("get in a loop"):
        return
    lookups = settings.rows(LOOKUPS)
    table = db.create_table("looked_up", _frame(100_000), primary_key="id", buckets=BUCKETS)
    lookuper = run(full.get_table(table.path)).new_lookup().create_lookuper()

    def ours() -> None:
        for number in range(lookups):
            assert table.get(number) is not None

    async def theirs() -> None:
        for number in range(lookups):
            assert await lookuper.lookup((number,)) is not None

    yield _compare(settings, "get in a loop", lookups, ours, lambda: run(theirs()))


def _follow(settings: Settings, db: fluss.Database, full: fluss.FlussConnection, run: Any) -> Iterator[Result]:
    if not settings.wanted("follow()"):
        return
    rows = settings.rows(CHANGES)
    table = db.create_table("followed", _frame(rows), buckets=BUCKETS)
    peer = run(full.get_table(table.path))

    def ours() -> None:
        with table.follow() as changes:
            for number, change in enumerate(changes, 1):
                assert change.row
                if number == rows:
                    break

    def theirs() -> None:
        with run(peer.new_scan().create_log_scanner()) as scanner:
            scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
            for number, record in enumerate(scanner, 1):
                assert record.row
                if number == rows:
                    break

    yield _compare(settings, "follow()", rows, ours, theirs)


def _buckets(settings: Settings, db: fluss.Database) -> Iterator[Result]:
    if not settings.wanted("to_arrow() of 8 buckets"):
        return
    frame = _frame(settings.rows(ROWS))
    tables = [db.create_table(f"buckets_{number}", COLUMNS, buckets=number) for number in (8, 1)]
    for table in tables:
        for _ in range(5):
            table.append(frame)
    mine, peer = alternate(
        _timed(tables[0].to_arrow), _timed(tables[1].to_arrow), settings.repeats, rounds=settings.rounds
    )
    rates = [[5 * len(frame) / seconds / 1e6 for seconds in side] for side in (mine, peer)]
    name = "to_arrow() of 8 buckets"
    yield Result(
        name, rates[0], rates[1], "M rows/s", ratio_of(*rates), Bar(1.2, 1.5), note="peer: the same in one bucket"
    )


def _connect(settings: Settings) -> Iterator[Result]:
    if not settings.wanted("connect to a folder"):
        return
    program = (
        "import sys, time, fluss; began = time.perf_counter(); db = fluss.connect(sys.argv[1]); "
        "print(time.perf_counter() - began); db.close()"
    )

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", program, f"{folder}/shop"], check=True, capture_output=True, text=True
            )
        return float(done.stdout)

    mine, _ = alternate(measure, None, settings.repeats)
    yield Result("connect to a folder", mine, [], "s", None, Bar(1.0, 0.7, "s", False))


def _timed(run: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    return measure
