# SPDX-License-Identifier: Apache-2.0
"""Following a table in a group: several members share its buckets, and go on where the group was."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from tests.shared import raising
from tests.threads import in_background
from tests.waiting import at_most, wait_for, wait_until

import fluss
import fluss.aio
from fluss.client.groups.state import GroupState
from fluss.client.groups.table import create_groups_table
from fluss.client.scan import RecordBatch
from fluss.client.scan.as_of import current_rows
from fluss.db import group_feed
from fluss.db.group_feed import GroupFeed
from fluss.db.internals import admin_call
from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket
from fluss.metadata.group_rows import GROUPS_TABLE, MemberRow
from fluss.tools.access import grant_right
from fluss.tools.groups import allow_groups

BUCKETS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as server:
        yield server


@pytest.fixture
def db(server: fluss.LocalServer) -> Iterator[fluss.Database]:
    """Its tables are dropped after the test; what members wrote about them stays."""
    with fluss.connect(server.bootstrap_servers) as db:
        yield db
        for name in db.tables():
            db.drop_table(name)


@pytest.fixture
def orders(db: fluss.Database, request: pytest.FixtureRequest) -> fluss.Table[Any]:
    """A log table whose rows lie in all buckets."""
    name = f"orders_{abs(hash(request.node.name))}"
    return db.create_table(name, {"id": "int", "note": "string"}, bucket_key="id", buckets=BUCKETS)


def write(table: fluss.Table[Any], ids: range) -> None:
    table.append([{"id": number, "note": "x"} for number in ids])


def handled(table: fluss.Table[Any], start: Any = None, group: str = "billing", **options: Any) -> list[int]:
    """The ids of the rows that a group gets until none comes for a while."""
    with table.follow(start, group=group, **{"timeout": 2, **options}) as changes:
        return [change.row["id"] for change in changes]


class Worker:
    """A member in a thread with a connection of its own, that notes what it handles."""

    def __init__(self, server: fluss.LocalServer, table: str, group: str = "billing", **options: Any) -> None:
        self.ids: list[int] = []
        self.places: list[tuple[TableBucket, int]] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(server.bootstrap_servers, table, group, options), daemon=True
        )
        self._thread.start()

    def _run(self, address: str, table: str, group: str, options: dict[str, Any]) -> None:
        try:
            with fluss.connect(address) as db:
                while not self._stop.is_set():
                    with db.table(table).follow(group=group, **{"timeout": 1.5, **options}) as changes:
                        self._handle(changes)
        except BaseException as error:
            self.error = error

    def _handle(self, changes: Any) -> None:
        for change in changes:
            self.ids.append(change.row["id"])
            self.places.append((change.bucket, change.offset))
            if self._stop.is_set():
                return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self.error is None, self.error


def test_a_group_goes_on_where_it_was(orders: fluss.Table[Any]) -> None:
    write(orders, range(100))
    with orders.follow(group="billing", timeout=2) as changes:
        first = [next(changes).row["id"] for _ in range(30)]
    # The last change was not handled for certain: the next one was not asked for.
    assert Counter(first + handled(orders)) == Counter(range(100)) + Counter(first[-1:])


def test_changes_after_the_end_of_a_lease_come_again(orders: fluss.Table[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the loop, by which the membership lives, may be a little behind."""
    write(orders, range(100))
    with orders.follow(group="billing", timeout=3) as changes:
        seen = [next(changes).row["id"] for _ in range(10)]
        times = iter((math.inf,))
        monkeypatch.setattr(group_feed, "monotonic", lambda: next(times, 0.0))
        seen += [change.row["id"] for change in changes]
    assert set(seen) == set(range(100))


def test_groups_do_not_know_each_other(orders: fluss.Table[Any]) -> None:
    write(orders, range(20))
    for group in ("one", "two"):
        assert sorted(handled(orders, group=group)) == list(range(20))


def owned(db: fluss.Database, table: fluss.Table[Any], group: str = "billing") -> list[int]:
    """How many buckets each live member owns, as the table of groups says."""
    rows = db.table(str(GROUPS_TABLE)).prefix(group, str(table.path))
    members = [MemberRow.from_json(row["member"], row["state"]) for row in rows]
    return sorted(len(member.owned) for member in members if not member.left)


def test_members_share_the_buckets(server: fluss.LocalServer, db: fluss.Database, orders: fluss.Table[Any]) -> None:
    workers = [Worker(server, str(orders.path), timeout=30) for _ in range(2)]
    write(orders, range(100))
    wait_for(lambda: str(GROUPS_TABLE) in db and owned(db, orders) == [2, 2])
    counts = [len(worker.places) for worker in workers]
    write(orders, range(100, 300))
    wait_for(lambda: sum(len(worker.places) for worker in workers) >= 300)
    shares = [{bucket for bucket, _ in worker.places[count:]} for worker, count in zip(workers, counts)]
    for number in (300, 301):
        write(orders, range(1000 * number, 1000 * number + 100))  # so that both see that they shall stop
    for worker in workers:
        worker.stop()
    assert [len(share) for share in shares] == [2, 2]
    assert not shares[0] & shares[1]


def test_a_handler_that_fails_leaves_its_change_to_be_handled_again(orders: fluss.Table[Any]) -> None:
    write(orders, range(10))
    seen = []

    def handle(changes: Iterator[fluss.Change[Any]]) -> None:
        for number, change in enumerate(changes):
            seen.append(change.row["id"])
            1 / (4 - number)

    with pytest.raises(ZeroDivisionError), orders.follow(group="billing", timeout=2) as changes:
        handle(changes)
    rest = handled(orders)
    assert seen[-1] in rest
    assert sorted(seen[:-1] + rest) == list(range(10))


def test_only_commit_counts_where_the_caller_commits(orders: fluss.Table[Any]) -> None:
    write(orders, range(10))
    with orders.follow(group="billing", timeout=2, commit=False) as changes:
        first = [next(changes).row["id"] for _ in range(4)]
        changes.commit()
        for _ in range(3):
            next(changes)
    assert sorted(first + handled(orders, commit=False)) == list(range(10))


async def test_a_bucket_that_is_committed_can_move(orders: fluss.Table[Any], db: fluss.Database) -> None:
    """Also if a commit failed, and that of the last change when the next one is asked for, which may never come."""
    await asyncio.to_thread(write, orders, range(40))
    async with (
        fluss.aio.connect(db.address) as twin,
        (await twin.table(orders.path)).follow(group="billing", timeout=20, commit=False) as changes,
    ):
        seen = [await anext(changes) for _ in range(40)]
        feed: Any = changes._feed
        member = feed._member
        failing = mock.patch.object(member, "_write", raising(OSError, "no disk"))
        with failing, pytest.raises(OSError, match="no disk"):
            await changes.commit()
        assert member.busy == {seen[-1].bucket}
        await changes.commit()
        asked = asyncio.ensure_future(anext(changes, None))
        await wait_until(lambda: feed._batch is None)
        assert member.busy == set()
        asked.cancel()


def test_batches_and_pairs(db: fluss.Database, orders: fluss.Table[Any]) -> None:
    write(orders, range(50))
    with orders.follow(group="batches", timeout=2, batches=True) as batches:
        assert sum(len(found) for found in batches) == 50
    with orders.follow(group="batches", timeout=1, batches=True) as batches:
        assert list(batches) == []
    users = db.create_table("users_of_groups", {"id": "int", "name": "string"}, primary_key="id", buckets=2)
    users.upsert([{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}])
    users.upsert({"id": 1, "name": "Anna"})
    with users.changes(group="pairs", timeout=2) as changes:
        found = [(change.kind, change.old, change.new) for change in changes]
    assert ("update", {"id": 1, "name": "Ann"}, {"id": 1, "name": "Anna"}) in found


def test_an_update_in_two_batches_is_one_change(db: fluss.Database) -> None:
    """Also if the first half is all that a member got."""
    users = db.create_table("halves_of_groups", {"id": "int", "name": "string"}, primary_key="id", buckets=1)
    users.upsert({"id": 1, "name": "Ann"})
    users.upsert({"id": 1, "name": "Anna"})
    poll = GroupFeed._poll

    async def halved(self: GroupFeed[Any], timeout_ms: int) -> list[RecordBatch]:
        arrived = [one for one in await poll(self, timeout_ms) if one.base_offset < 2]
        return [
            RecordBatch(one.batch.slice(0, 1), one.bucket, one.base_offset, one.base_offset, one.timestamp, kinds[:1])
            for one in arrived
            if (kinds := one.change_types)
        ]

    with mock.patch.object(GroupFeed, "_poll", halved), users.changes(group="pairs", timeout=2) as changes:
        assert [change.kind for change in changes] == ["insert"]
    with users.changes(group="pairs", timeout=20) as changes:
        found = next(changes)
    assert (found.old, found.new) == ({"id": 1, "name": "Ann"}, {"id": 1, "name": "Anna"})


def test_a_key_table_begins_with_its_current_rows(db: fluss.Database) -> None:
    users = db.create_table("full_of_groups", {"id": "int", "name": "string"}, primary_key="id", buckets=3)
    assert handled(users, group="empty") == []
    users.upsert([{"id": number, "name": "old"} for number in range(50)])
    users.upsert([{"id": number, "name": "new"} for number in range(50)])
    with users.follow(group="billing", timeout=2) as changes:
        found = [(change.kind, change.row["id"], change.row["name"]) for change in changes]
    assert sorted(found) == [("insert", number, "new") for number in range(50)]
    users.upsert({"id": 7, "name": "newer"})
    with users.follow(group="billing", timeout=2) as changes:
        assert [change.row["name"] for change in changes] == ["new", "newer"]


async def test_closing_while_the_current_rows_are_read(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    users = db.create_table("interrupted_of_groups", [{"id": 1}], primary_key="id", buckets=1)
    begun = asyncio.Event()

    async def endless(*_: Any) -> AsyncIterator[Any]:
        begun.set()
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr("fluss.db.group_feed.full_rows", endless)
    async with fluss.aio.connect(db.address) as twin:
        changes = (await twin.table(users.path)).follow(group="billing")
        asked = asyncio.ensure_future(anext(changes))
        await asyncio.wait_for(begun.wait(), 30)
        asked.cancel()
        await asyncio.wait([asked])
        await changes.close()
        assert changes._feed._own_connection.closed  # type: ignore[attr-defined]


def test_current_rows_are_given_once_where_the_caller_commits(db: fluss.Database) -> None:
    users = db.create_table("slow_of_groups", {"id": "int", "name": "string"}, primary_key="id", buckets=2)
    users.upsert([{"id": number, "name": "new"} for number in range(20)])
    for _ in range(2):  # nothing is committed
        assert sorted(handled(users, commit=False)) == list(range(20))


def test_partitions_that_were_dropped_leave_the_rows_of_members(db: fluss.Database) -> None:
    days = db.create_table("gone_of_groups", {"id": "int", "day": "string"}, partition_by="day", buckets=2)
    days.add_partition("a")
    days.add_partition("b")
    days.append([{"id": 1, "day": "a"}, {"id": 2, "day": "b"}])
    with days.follow(group="billing", timeout=30) as changes:
        assert sorted(next(changes).row["id"] for _ in range(2)) == [1, 2]
        wait_for(lambda: owned(db, days) == [4])
        days.drop_partition("a")
        days.append({"id": 3, "day": "b"})
        assert next(changes).row["id"] == 3
        wait_for(lambda: owned(db, days) == [2])


@pytest.mark.parametrize(("start", "expected"), [("latest", []), ("earliest", list(range(10)))])
def test_the_first_start_is_where_it_is_told(orders: fluss.Table[Any], start: str, expected: list[int]) -> None:
    write(orders, range(10))
    assert sorted(handled(orders, start, timeout=1.5)) == expected
    write(orders, range(10, 20))
    assert sorted(handled(orders, "latest")) == list(range(10, 20))


def test_new_partitions_are_shared_too(db: fluss.Database) -> None:
    days = db.create_table("days_of_groups", {"id": "int", "day": "string"}, partition_by="day", buckets=2)
    days.add_partition("a")
    days.append([{"id": number, "day": "a"} for number in range(10)])
    with days.follow("latest", group="billing", timeout=10) as changes:
        first = threading.Timer(1.5, lambda: (days.add_partition("b"), days.append({"id": 77, "day": "b"})))
        first.start()
        assert next(changes).row == {"id": 77, "day": "b"}, "what is new is read from its beginning"
        first.join()


def test_a_table_that_was_created_again_is_begun_again(db: fluss.Database) -> None:
    for expected in (3, 2):
        table = db.create_table("again_of_groups", {"id": "int"}, bucket_key="id", buckets=2)
        table.append([{"id": number} for number in range(expected)])
        assert len(handled(table)) == expected
        db.drop_table("again_of_groups")


def test_workers_that_come_and_go_handle_everything(server: fluss.LocalServer, orders: fluss.Table[Any]) -> None:
    name = str(orders.path)
    workers = [Worker(server, name) for _ in range(2)]
    write(orders, range(500))
    wait_for(lambda: len({i for worker in workers for i in worker.ids}) == 500)
    workers.append(Worker(server, name))
    write(orders, range(500, 1000))
    workers[0].stop()
    write(orders, range(1000, 1500))
    wait_for(lambda: len({i for worker in workers for i in worker.ids}) == 1500)
    for worker in workers:
        worker.stop()
    for worker in workers:
        for bucket in {bucket for bucket, _ in worker.places}:
            offsets = [offset for found, offset in worker.places if found == bucket]
            assert offsets == sorted(offsets), "the order of a bucket is kept"


def test_a_member_that_was_silent_loses_its_buckets(server: fluss.LocalServer, orders: fluss.Table[Any]) -> None:
    """What stands for a stopped process: a loop that is blocked for longer than the lease."""

    async def use() -> None:
        async with await fluss.aio.connect(server.bootstrap_servers) as mine:
            table = await mine.table(str(orders.path))
            write(orders, range(10))
            changes = table.follow(group="billing", timeout=20, session_timeout=1)
            await anext(changes)
            other = Worker(server, str(orders.path), session_timeout=1)
            time.sleep(4)  # noqa: ASYNC251 - the loop must not run
            wait_for(lambda: len(other.ids) == 10)
            with pytest.raises(fluss.GroupRebalancedError, match="billing"):
                await changes.commit()
            other.stop()
            write(orders, range(10, 30))
            found = {(await anext(changes)).row["id"] for _ in range(20)}
            assert found == set(range(10, 30)), "it goes on as a new member"
            await changes.close()

    asyncio.run(use())


def test_rows_of_members_that_are_gone_do_not_pile_up(db: fluss.Database, orders: fluss.Table[Any]) -> None:
    sizes = []
    for number in range(10):
        write(orders, range(10 * number, 10 * number + 10))
        with orders.follow(group="short", timeout=20) as changes:
            assert next(changes).row["id"] >= 0
        rows = db.table(str(GROUPS_TABLE)).prefix("short", str(orders.path))
        sizes.append((len(rows), sum(len(row["state"]) for row in rows)))
    assert max(rows for rows, _ in sizes) <= 2
    assert sizes[-1][1] < 2 * sizes[1][1] + 500


def test_a_member_writes_its_row_once_a_second(db: fluss.Database, orders: fluss.Table[Any]) -> None:
    """However many changes it handles."""
    stored = db.table(str(GROUPS_TABLE))

    def beat() -> int:
        (row,) = stored.prefix("billing", str(orders.path))
        return MemberRow.from_json(row["member"], row["state"]).beat

    with orders.follow(group="billing", timeout=20) as changes:
        write(orders, range(10))
        next(changes)
        wait_for(lambda: owned(db, orders) == [BUCKETS])
        first, began = beat(), time.monotonic()
        for number in range(1, 16):
            write(orders, range(10 * number, 10 * number + 10))
            for _ in range(10):
                next(changes)
            time.sleep(0.1)
        assert beat() - first <= time.monotonic() - began + 1


def test_a_member_that_is_dropped_without_close_gives_up(server: fluss.LocalServer, orders: fluss.Table[Any]) -> None:
    write(orders, range(10))
    next(orders.follow(group="billing", timeout=20))
    with at_most(8), orders.follow(group="billing", timeout=8) as changes:
        assert sorted(change.row["id"] for change in [next(changes) for _ in range(10)]) == list(range(10))


@pytest.mark.parametrize(
    "options",
    [{"group": ""}, {"group": 7}, {"group": "g", "session_timeout": 0.1}, {"group": "g", "stop_at_end": True}],
)
def test_bad_arguments(orders: fluss.Table[Any], options: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgumentError, TypeError)):
        orders.follow(**options)


_SECURED = {
    "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "security.protocol.map": {"CLIENT": "SASL"},
    "security.sasl.plain.credentials": {"root": "root-secret", "bob": "bob-secret"},
    "authorizer.enabled": True,
    "super.users": "User:root",
}


def test_members_need_rights_on_the_table_of_groups() -> None:
    with (
        fluss.LocalServer(options=_SECURED) as server,
        fluss.connect(server.addresses[1], user="root", password="root-secret") as root,
        fluss.connect(server.addresses[1], user="bob", password="bob-secret") as bob,
    ):
        root.create_table("orders", {"id": "int"}, bucket_key="id", buckets=2).append([{"id": 1}])
        grant_right(root, "bob", "read", "orders")

        def read() -> int:
            with bob.table("orders").follow(group="billing", timeout=20) as changes:
                return int(next(changes).row["id"])

        for rights in ((), ("read",)):  # without any it cannot create the table, with READ it cannot write its row
            for right in rights:
                admin_call(root, create_groups_table)
                grant_right(root, "bob", right, str(GROUPS_TABLE))
            with pytest.raises(fluss.AuthorizationError) as refused:
                read()
            assert "fluss group allow USER" in (refused.value.hint or "")
        assert [right["operation"] for right in allow_groups(root, "bob")] == ["read", "write"]
        assert read() == 1


def test_an_error_of_a_member_is_raised(orders: fluss.Table[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It would renew its lease for ever, and learn of no grant."""
    monkeypatch.setattr(GroupState, "apply", lambda *_: 1 // 0)
    follow = orders.follow(group="billing", timeout=20)
    with follow as changes, pytest.raises(fluss.FlussError, match="ZeroDivisionError"):
        next(changes)


def test_current_rows_are_read_again_after_any_error(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    users = db.create_table("failing_of_groups", {"id": "int"}, primary_key="id", buckets=1)
    users.upsert([{"id": number} for number in range(5)])
    failures = [OSError("no"), MemoryError("nor now")]

    async def failing(*given: Any) -> AsyncIterator[Any]:
        async for found in current_rows(*given):
            if failures:
                raise failures.pop()
            yield found

    monkeypatch.setattr("fluss.db.follow.current_rows", failing)
    with users.follow(group="billing", timeout=20) as changes:
        for error in (MemoryError, OSError):
            with pytest.raises(error):
                next(changes)
        assert sorted(next(changes).row["id"] for _ in range(5)) == list(range(5))


async def test_an_interrupted_rebalance_loses_no_rows(orders: fluss.Table[Any], db: fluss.Database) -> None:
    """What was polled ahead stays, if the caller gives up while buckets are given to another member."""
    await asyncio.to_thread(write, orders, range(20))
    async with (
        fluss.aio.connect(db.address) as twin,
        (await twin.table(orders.path)).follow(group="billing", timeout=20) as changes,
    ):
        seen = [(await anext(changes)).row["id"] for _ in range(20)]
        await asyncio.to_thread(write, orders, range(20, 40))
        feed: Any = changes._feed
        await wait_until(lambda: feed._polling is not None and feed._polling.done())
        dropping = asyncio.ensure_future(feed._drop_poll())
        await asyncio.sleep(0)
        dropping.cancel()
        await asyncio.wait([dropping])
        assert dropping.cancelled()
        seen += [(await anext(changes)).row["id"] for _ in range(20)]
        assert sorted(seen) == list(range(40))


def test_commit_needs_a_group(orders: fluss.Table[Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="group="), orders.follow() as changes:
        changes.commit()


def test_how_far_a_batch_is_handled_can_be_asked_at_any_moment(db: fluss.Database) -> None:
    """The loop asks for it before it renews the lease, while the thread of the caller goes on."""
    log = db.create_table("asked", "id bigint", buckets=1)
    log.append(pa.table({"id": range(300_020)}))
    with log.follow("earliest", group="asked", timeout=5) as changes:
        feed: Any = changes._core._feed
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with in_background(lambda _: feed._change(back=1)):
                for change, _ in zip(changes, range(300_020)):
                    assert change.row
        finally:
            sys.setswitchinterval(interval)
