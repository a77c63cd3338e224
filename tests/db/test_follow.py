# SPDX-License-Identifier: Apache-2.0
"""Following tables: all buckets and partitions, positions, ends."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import datetime as dt
import gc
import itertools
import random
import threading
import time
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.threads import in_thread
from tests.waiting import at_most

import fluss
import fluss.aio
from fluss.db.changes import ChangeBatch
from fluss.db.follow import Feed
from fluss.errors import LogOffsetOutOfRangeError


def test_a_log_up_to_its_end(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": i} for i in range(300)], buckets=4)
    before = dt.datetime.now(dt.timezone.utc) - dt.timedelta(minutes=5)
    changes = list(table.follow(stop_at_end=True))
    assert sorted(change.row["id"] for change in changes) == list(range(300))
    assert {change.kind for change in changes} == {"append"}
    assert all(before < change.timestamp < before + dt.timedelta(minutes=10) for change in changes)
    by_bucket: dict[int, list[int]] = {}
    for change in changes:
        by_bucket.setdefault(change.bucket.bucket_id, []).append(change.offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_bucket.values())


@pytest.mark.parametrize("arguments", [{"stop_at_end": True}, {"start": "earliest", "timeout": 5}])
def test_small_batches_are_one(db: fluss.Database, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    table = db.create_table("t", "id int")
    for number in range(60):
        table.append({"id": number})
    asked = []
    ask = Feed.next

    async def counted(feed: Feed[Any]) -> ChangeBatch | None:
        asked.append(feed)
        return await ask(feed)

    monkeypatch.setattr(Feed, "next", counted)
    changes = list(itertools.islice(table.follow(**arguments), 60))
    assert [change.row["id"] for change in changes] == list(range(60))
    assert len({change.timestamp for change in changes}) > 1, "batches of their own"
    assert len(asked) < 30
    assert next(table.follow(start=changes[40].position)).row == {"id": 41}


def test_the_changes_of_a_primary_key_table(db: fluss.Database) -> None:
    table = db.create_table("t", "id int, v string", primary_key="id")
    table.upsert((1, "a"))
    table.upsert((1, "b"))
    table.delete(1)
    a, b = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
    followed = [(change.kind, change.row) for change in table.follow("earliest", stop_at_end=True)]
    assert followed == [("insert", a), ("update_before", a), ("update_after", b), ("delete", b)]
    changes = [(change.kind, change.old, change.new) for change in table.changes()]
    assert changes == [("insert", None, a), ("update", a, b), ("delete", b, None)]


@pytest.mark.parametrize("paired", [False, True])
def test_every_position_resumes_exactly_there(db: fluss.Database, paired: bool) -> None:
    table = db.create_table("t", "id int, v int", primary_key="id", buckets=3)
    for turn in range(3):
        table.upsert([(i, turn) for i in range(6)])
    table.delete([0, 3])

    def read(**arguments: Any) -> list:
        if paired:
            return list(table.changes(**arguments))
        return list(table.follow(**{"start": "earliest", "stop_at_end": True, **arguments}))

    every = read()
    for taken, change in enumerate(every, 1):
        # Another reading order of the buckets is as good: what counts is what is left.
        rest = read(start=str(change.position) if taken % 2 else change.position)
        assert {(c.bucket, c.offset) for c in rest} == {(c.bucket, c.offset) for c in every[taken:]}
        if paired:
            assert {repr((c.kind, c.old, c.new)) for c in rest} == {repr((c.kind, c.old, c.new)) for c in every[taken:]}


def test_it_goes_on_while_rows_come(db: fluss.Database) -> None:
    table = db.create_table("t", "id int", buckets=2)
    table.append((0,))

    def write() -> None:
        for i in range(1, 20):
            table.append((i,))
            time.sleep(0.005)

    with in_thread(write):
        found = [change.row["id"] for change in itertools.islice(table.follow(), 20)]
    assert sorted(found) == list(range(20))


def test_starts(db: fluss.Database) -> None:
    table = db.create_table("t", "id int", buckets=2)
    table.append([(1,), (2,)])
    time.sleep(0.01)
    moment = dt.datetime.now().astimezone(dt.timezone(dt.timedelta(hours=9)))
    time.sleep(0.01)
    table.append([(3,)])
    assert [change.row["id"] for change in table.follow(moment, stop_at_end=True)] == [3]
    assert [change.row["id"] for change in table.follow(moment.astimezone().replace(tzinfo=None), timeout=0.2)] == [3]
    assert list(table.follow("latest", stop_at_end=True)) == []
    future = moment + dt.timedelta(days=1)
    assert list(table.follow(future, stop_at_end=True)) == []
    latest = table.follow("latest", timeout=10)
    with latest:
        threading.Timer(0.3, lambda: table.append((4,))).start()
        assert next(latest).row == {"id": 4}
    for start in ("first", 7, "{}", '{"version":1}'):
        with pytest.raises(fluss.InvalidArgumentError):
            next(table.follow(start))  # type: ignore[arg-type]


def test_a_position_of_another_table_is_refused(db: fluss.Database) -> None:
    first = db.create_table("a", [{"id": 1}])
    second = db.create_table("b", [{"id": 1}])
    position = next(first.follow()).position
    with pytest.raises(fluss.InvalidArgumentError, match="another table"):
        next(second.follow(position))


def test_timeout_ends_it(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": 1}])
    started = time.monotonic()
    assert len(list(table.follow(timeout=0.2))) == 1
    assert 0.15 < time.monotonic() - started < 5
    assert list(table.follow("latest", timeout=0)) == []


def test_new_and_dropped_partitions(db: fluss.Database) -> None:
    table = db.create_table("t", "id int, day string", partition_by="day", buckets=2)
    follow = table.follow(timeout=20)
    seen = []

    def write() -> None:
        time.sleep(0.2)
        table.append([(1, "mon"), (2, "tue")])

    with in_thread(write):
        for change in follow:
            seen.append(change.row["id"])
            if len(seen) == 2:
                table.append((3, "wed"))
            if len(seen) == 3:
                table.drop_partition("mon")
                table.append((4, "thu"))
            if len(seen) == 4:
                break
    follow.close()
    assert sorted(seen) == [1, 2, 3, 4]
    position = change.position
    table.append([(5, "thu"), (6, "fri")])
    assert sorted(c.row["id"] for c in table.follow(position, stop_at_end=True)) == [5, 6]


def test_it_survives_dropped_partitions(db_server: fluss.LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    """As retention does every day: neither an error after some time, nor a warning, nor memory for what is gone."""
    with fluss.connect(db_server.bootstrap_servers, timeout=20) as db:
        table = db.create_table("aging", "id int, day string", partition_by="day", buckets=2, replace=True)
        with table.follow(timeout=20) as follow:
            changes = iter(follow)
            for day in range(8):
                table.append([(day, str(day))])
                change = next(changes)
                assert change.row["id"] == day
                if day >= 2:
                    table.drop_partition(str(day - 2))
                time.sleep(0.5)
        assert len(change.position.offsets) <= 2 * 5, change.position
        assert len(db.connection._background.cluster.metadata.tables[table.path].partitions) <= 4
        db.drop_table("aging")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_a_table_that_is_created_again_is_another_one(db: fluss.Database, partition_by: str | None) -> None:
    def create() -> fluss.Table:
        table = db.create_table("t", "id int, day string", partition_by=partition_by, buckets=2)
        table.append([(1, "mon")])
        return table

    changes = iter(create().follow(timeout=30))
    assert next(changes).row["id"] == 1
    db.drop_table("t")
    create()
    # Which of the two depends on whether it is noticed before or after the table is created again.
    with at_most(10), pytest.raises(fluss.TableNotExistError, match=r"created again|does not exist"):
        next(changes)


def test_batches(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": i, "v": "x"} for i in range(100)], primary_key="id", buckets=2)
    rows = 0
    for found in table.follow(batches=True, columns=["v"], stop_at_end=True):
        assert found.batch.schema.names == ["v"]
        assert found.kinds == ["insert"] * len(found)
        assert len(found.offsets) == len(found)
        rows += len(found)
        position = found.position
    assert rows == 100
    assert list(table.follow(position, stop_at_end=True)) == []


@pytest.mark.parametrize("bounded", [False, True])
def test_an_interrupt(db: fluss.Database, bounded: bool) -> None:
    table = db.create_table("t", [{"id": 1}])
    follow = table.follow(timeout=30) if bounded else table.follow()
    assert next(follow).row == {"id": 1}
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        next(follow)
    assert table.count() == 1, "the connection goes on"


@pytest.mark.parametrize("arguments", [{}, {"timeout": 60}, {"group": "g"}], ids=str)
def test_another_thread_ends_it(db: fluss.Database, arguments: dict[str, Any]) -> None:
    follow = db.create_table("t", [{"id": 1}]).follow(**arguments)
    seen = []
    for change in follow:
        seen.append(change.row)
        threading.Timer(0.2, follow.close).start()
    assert seen == [{"id": 1}]
    assert next(follow, None) is None


async def test_another_task_ends_it_at_any_moment(db: fluss.Database) -> None:
    db.create_table("t", [{"id": number} for number in range(10)], primary_key="id")
    async with await fluss.aio.connect(db.address) as twin:
        table = await twin.table("t")
        for number in range(40):
            arguments = ({}, {"stop_at_end": True}, {"group": "g"})[number % 3]
            follow = table.follow(**arguments)

            async def read(follow: Any = follow) -> int:
                return len([change async for change in follow])

            reading = asyncio.ensure_future(read())
            for _ in range(number * 2):
                await asyncio.sleep(0)
            await follow.close()
            assert 0 <= await asyncio.wait_for(reading, 30) <= 10
            scanner = follow._feed._scanner
            assert scanner is None or scanner._closed


def test_what_never_ends_is_not_collected(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": 1}], primary_key="id")
    for never_ends in (table.follow(), table.follow("latest", batches=True), table.changes(live=True)):
        with pytest.raises(fluss.InvalidArgumentError, match="stop_at_end=True"):
            list(never_ends)
    assert [change.new for change in list(table.changes())] == [{"id": 1}]
    assert [change.new for change in table.changes(timeout=0.2)] == [{"id": 1}]
    live = table.changes(live=True)
    assert next(live).new == {"id": 1}
    table.upsert({"id": 2})
    assert next(live).new == {"id": 2}, "it waits for more"


@pytest.mark.parametrize("arguments", [{"stop_at_end": True}, {"timeout": 2}], ids=["to the end", "endless"])
async def test_loops_that_are_cancelled_at_any_moment(db: fluss.Database, arguments: dict[str, Any]) -> None:
    table = db.create_table("t", "id int")
    for start in range(0, 400, 10):
        table.append([(number,) for number in range(start, start + 10)])
    seen: list[int] = []

    async with await fluss.aio.connect(db.address) as twin:
        follow = (await twin.table("t")).follow(**arguments)

        async def read() -> None:
            async for change in follow:
                seen.append(change.row["id"])
                await asyncio.sleep(0)
                if len(seen) == 400:
                    break

        chance = random.Random(7)
        reading = None
        patience = 1.0  # grows: on a busy machine a step may take longer than any of the times below
        while reading is None or reading.cancelled():
            reading = asyncio.ensure_future(read())
            await asyncio.sleep(chance.choice([0, 0.0005, 0.002]) * patience)
            patience = min(patience * 1.01, 20.0)
            reading.cancel()
            await asyncio.wait((reading,), timeout=5)
        await reading
        await follow.close()
    assert seen == list(range(400))


def test_positions_as_text() -> None:
    position = fluss.Position(3, {fluss.TableBucket(3, 1): 7, fluss.TableBucket(3, 0, 12): 9})
    assert fluss.Position.parse(str(position)) == position
    assert str(position) == '{"version":1,"table":3,"offsets":{"1":7,"12/0":9}}'
    for text in ("", "x", "{}", '{"version":2,"table":1,"offsets":{}}', '{"version":1,"table":1,"offsets":{"a":1}}'):
        with pytest.raises(fluss.InvalidArgumentError):
            fluss.Position.parse(text)


def test_follow_shows_itself(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": 1, "item": "tea"}])
    found = table.follow(stop_at_end=True, columns="item")
    assert repr(found) == "Follow(fluss.t from earliest, stop_at_end)"
    [change] = found
    assert change.row == {"item": "tea"}
    assert repr(found) == "Follow(fluss.t from earliest, stop_at_end, ended)"
    assert repr(table.changes(change.position, timeout=1.5)) == "Follow(fluss.t from Position, timeout=1.5)"


def rows_of(changes: Any) -> dict[int, Any]:
    """The table that results from changes."""
    found: dict[int, Any] = {}
    for change in changes:
        if change.kind in ("insert", "update_after"):
            found[change.row["id"]] = change.row["v"]
        elif change.kind == "delete":
            del found[change.row["id"]]
    return found


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_full_begins_with_the_current_rows(db: fluss.Database, partition_by: str | None) -> None:
    key = ["id"] if partition_by is None else ["id", "day"]
    table = db.create_table(
        "t", "id int not null, day string not null, v int", primary_key=key, partition_by=partition_by, buckets=3
    )
    table.upsert([(i, "mon", 0) for i in range(100)])
    table.upsert([(i, "mon", 1) for i in range(50)])
    table.delete([{"id": i, "day": "mon"} for i in range(10)])
    changes = list(table.follow(stop_at_end=True))
    assert {change.kind for change in changes} == {"insert"}
    assert sorted(change.row["id"] for change in changes) == list(range(10, 100))
    assert {change.kind for change in table.changes("full")} == {"insert"}

    with table.follow(timeout=30) as follow:
        live = [next(follow) for _ in range(90)]
        table.upsert([(10, "mon", 2), (200, "tue", 2)])
        table.delete({"id": 11, "day": "mon"})
        live += [next(follow) for _ in range(4)]
    assert rows_of(live) == {row["id"]: row["v"] for row in table.to_pylist()}


def test_full_reads_every_change_that_happens_meanwhile(db: fluss.Database) -> None:
    table = db.create_table("t", "id int, v int", primary_key="id", buckets=4)
    table.upsert([(i, 0) for i in range(5_000)])

    def write() -> None:
        for turn in range(1, 30):
            table.upsert([(i, turn) for i in range(0, 5_000, 7)])
            table.delete([turn])
        table.upsert((-1, 0))

    seen = []
    with in_thread(write), table.follow(timeout=30) as follow:
        for change in follow:
            seen.append(change)
            if change.row["id"] == -1:
                break
    # The last row of one bucket came: the others are read to their ends.
    seen += list(table.follow(seen[-1].position, stop_at_end=True))
    assert rows_of(seen) == {row["id"]: row["v"] for row in table.to_pylist()}


@pytest.mark.parametrize("start", ["full", "earliest"])
def test_one_that_is_dropped_ends_at_once(db: fluss.Database, start: str) -> None:
    """As part of a circle its generators would be closed in any order, and a second time while that goes on."""
    users = db.create_table("users", {"id": "int"}, primary_key="id", buckets=2)
    users.upsert([{"id": number} for number in range(100)])
    changes = users.follow(start, stop_at_end=True)
    next(changes)
    feed: Any = weakref.ref(changes._core._feed)
    gc.disable()
    try:
        del changes
        assert feed() is None
    finally:
        gc.enable()


def test_rows_that_cannot_be_made_are_not_skipped(db: fluss.Database) -> None:
    @dataclass
    class Small:
        id: int

        def __post_init__(self) -> None:
            if self.id == 3:
                raise OverflowError("three is too large")

    db.create_table("t", [{"id": number} for number in range(1_000)], buckets=1)
    changes = db.table("t", Small).follow(stop_at_end=True)
    for _ in range(2):
        with pytest.raises(OverflowError):
            next(changes)


def test_an_iteration_goes_on_where_another_ended(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": number} for number in range(1_200)], buckets=1)
    changes = table.follow(stop_at_end=True)
    found = []
    for change in changes:
        found.append(change.row["id"])
        if len(found) == 700:
            break
    found.append(next(changes).row["id"])
    found += [change.row["id"] for change in changes]
    assert found == list(range(1_200))
    assert list(changes) == []


def test_positions_within_the_current_rows(db: fluss.Database) -> None:
    """A reader that stops there gets all rows again: never fewer."""
    table = db.create_table("t", [{"id": i, "v": i} for i in range(20)], primary_key="id", buckets=3)
    every = list(table.follow("full", stop_at_end=True))
    for change in every[:-1]:
        again = table.follow(str(change.position), stop_at_end=True)
        assert rows_of(again) == {i: i for i in range(20)}
    assert list(table.follow(str(every[-1].position), stop_at_end=True)) == []
    table.upsert((7, 70))
    kinds = [change.kind for change in table.follow(every[-1].position, stop_at_end=True)]
    assert kinds == ["update_before", "update_after"]
    empty = db.create_table("empty", "id int, v int", primary_key="id")
    assert list(empty.follow(stop_at_end=True)) == []


def test_expired_changes(tmp_path: Path) -> None:
    short = ("log.retention.check-interval", "kv.snapshot.interval")
    options = {"log.segment.file-size": "64kb", **dict.fromkeys(short, "100 ms")}
    with fluss.LocalServer(tmp_path, options=options) as server, fluss.connect(server.bootstrap_servers) as db:
        table = db.create_table("t", "id int, v int", primary_key="id", properties={"table.log.ttl": "1ms"})
        log = db.create_table("log", "id int, v int", properties={"table.log.ttl": "1ms"})
        deadline, written = time.monotonic() + 60, 0
        while "expired" not in _warning_of(table) or len(log) == written:
            assert time.monotonic() < deadline
            table.upsert([(i, 0) for i in range(10_000)])
            written += log.append([(i, 0) for i in range(10_000)]).rows
        assert sorted(change.row["id"] for change in table.follow(stop_at_end=True)) == list(range(10_000))
        with pytest.raises(fluss.InvalidArgumentError, match=r"begins after 2026-01-01.*fluss restore URL FOLDER --at"):
            table.as_of("2026-01-01").to_arrow()
        assert log.as_of("2026-01-01").to_arrow().num_rows == 0


def _warning_of(table: fluss.Table[Any]) -> str:
    with warnings.catch_warnings(record=True) as found, contextlib.suppress(LogOffsetOutOfRangeError):
        warnings.simplefilter("always")
        # What is there when it begins may expire before it is read.
        with table.follow("earliest", stop_at_end=True) as follow:
            next(follow, None)
    return " ".join(str(one.message) for one in found)
