# SPDX-License-Identifier: Apache-2.0
"""Following a table as a member of a group: only the buckets that this process owns, from where the group is."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import length_hint
from time import monotonic
from typing import Any, TypeVar

from fluss.client.arguments import is_seconds, wrong_argument
from fluss.client.connection import FlussConnection, open_connection
from fluss.client.groups.member import GroupMember
from fluss.client.scan.plan import ScanPlan
from fluss.db.changes import ChangeBatch, position_of
from fluss.db.follow import Feed, Start, full_rows, next_rows
from fluss.db.models import RowModel
from fluss.db.read_plan import list_buckets
from fluss.errors import InvalidArgumentError
from fluss.metadata import ChangeType, OffsetSpec, TableBucket, TableInfo
from fluss.metadata.group_rows import FULL
from fluss.net.deadline import wait_for
from fluss.net.eager import cancel

T = TypeVar("T")
ItemT = TypeVar("ItemT")

_SESSION_TIMEOUT_S_MIN = 0.5
_SESSION_TIMEOUT_S_MAX = 300.0
_NAME_MAX = 200
_WAIT_S = 1.0


@dataclass
class _WholeBucket:
    """The current rows of one bucket, as they are read."""

    bucket: TableBucket
    batches: AsyncGenerator[tuple[ChangeBatch, bool], None]
    ends: dict[TableBucket, int]
    """Where its changes go on, once they are known."""


class GroupFeed(Feed[T]):
    """The batches of changes behind a `Follow` with a group."""

    def __init__(
        self,
        connection: FlussConnection,
        table: TableInfo,
        model: RowModel[T],
        start: Start,
        columns: Sequence[str] | str | None,
        timeout: float | None,
        group: str,
        commit: bool,
        session_timeout: float,
    ) -> None:
        super().__init__(connection, table, model, start, columns, False, timeout)
        self._group = group
        self._commits = commit
        self._session_timeout_s = float(session_timeout)
        self._own_connection: FlussConnection | None = None
        self._member: GroupMember | None = None
        self._grants: dict[TableBucket, int] = {}
        """What is read now, and under which grant."""
        self._given: dict[TableBucket, int] = {}
        """The next offset after what was given out and is not committed yet, where the caller commits."""
        self._whole: _WholeBucket | None = None
        """The bucket whose current rows are read."""
        self._batch: ChangeBatch | None = None
        """The batch that is being handled."""
        self._batch_end = 0
        """The next offset after it."""
        self._part: tuple[Sequence[Any], Iterator[Any]] = (), iter(())
        """Changes of the batch that are being handled, and those of them that were not given out yet. Replaced as one:
        the thread of the caller goes on to the next ones while the loop looks how far it is."""
        self._before_part: Any = None
        self._is_cut_off = False
        """Whether the lease ended in the middle of the batch: the rest of it was not given out."""
        self._committed: Any = None
        """The change that was being handled at the last `commit`."""
        self._changed = asyncio.Event()

    async def _begin_reading(self, info: TableInfo) -> None:
        self._plan = ScanPlan(self._connection._cluster, info)
        self._subscribe({})
        if self._own_connection is None:  # or it failed to join before
            self._own_connection = await open_connection(self._connection.config)
            weakref.finalize(self, _abandon, asyncio.get_running_loop(), self._own_connection).atexit = False
        await self._join(info)

    async def _join(self, info: TableInfo) -> None:
        assert self._own_connection is not None
        plan = self._plan
        # The member goes on by itself: it must not keep a feed alive that its user has dropped.
        me = weakref.ref(self)

        async def first_offsets(buckets: Sequence[TableBucket]) -> Mapping[TableBucket, int]:
            feed = me()
            return {} if feed is None else await feed._first_offsets(buckets)

        def before_write() -> None:
            feed = me()
            if feed is not None:
                feed._note_progress()

        def on_change() -> None:
            feed = me()
            if feed is not None and feed._scanner is not None:
                feed._changed.set()
                feed._scanner.wakeup()

        connection = self._connection
        again = self._member is not None
        self._member = GroupMember(
            self._own_connection,
            info,
            self._group,
            session_timeout_s=self._session_timeout_s,
            list_buckets=lambda: list_buckets(connection, info),
            first_offsets=first_offsets,
            new_offsets=lambda buckets: plan.offsets(buckets, OffsetSpec.earliest()),
            before_write=before_write,
            on_change=on_change,
        )
        await self._member.join(again=again)

    async def _first_offsets(self, buckets: Sequence[TableBucket]) -> Mapping[TableBucket, int]:
        position = position_of(self._start, self._plan.info.table_id, str(self._path))
        if self._plan.info.has_primary_key() and (self._start == "full" or (position is not None and position.full)):
            return dict.fromkeys(buckets, FULL)
        return await self._offsets(self._plan, position, buckets)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _next(self) -> ChangeBatch | None:
        """The next changes of a bucket that this process owns; None at the end."""
        if self._info is None:
            await self._begin()
        self._finish_batch()
        loop = asyncio.get_running_loop()
        deadline = None if self._timeout_s is None else loop.time() + self._timeout_s
        while not self._ended:
            await self._adopt_assignment()
            if self._whole is not None:
                found = await self._next_whole(self._whole)
            else:
                found = self._next_waiting()
            if found is not None:
                return found
            left_s = _WAIT_S if deadline is None else min(_WAIT_S, deadline - loop.time())
            if left_s <= 0:
                return None
            if not self._read:
                with contextlib.suppress(asyncio.TimeoutError):
                    await wait_for(self._changed.wait(), left_s)
            else:
                # Dropped partitions stay among the grants until the membership gives them up, but are not read again.
                await self._fetch(int(left_s * 1000))
        return None

    def take_waiting(self) -> None:
        """Nothing: the batch before has to be finished on the loop first."""

    def _next_waiting(self) -> ChangeBatch | None:
        while self._waiting:
            found = self._waiting.popleft()
            before = self._read
            batch = ChangeBatch(found, before)
            # Half of an update is not handled before the other half, which is in the next batch.
            kinds = found.change_types if self.pairs else None
            is_half = kinds is not None and kinds[-1] == ChangeType.UpdateBefore
            if self._begin_batch(batch, found.last_offset + (0 if is_half else 1)):
                self._read = {**before, found.bucket: found.last_offset + 1}
                return batch
        return None

    async def _next_whole(self, whole: _WholeBucket) -> ChangeBatch | None:
        """The next of the current rows of a bucket. Changes of the others wait until they are all handled."""
        try:
            found, last = await self._shielded(lambda: next_rows(whole.batches))
        except Exception:
            await self._end_whole()  # the next call begins again with all rows
            raise
        bucket = whole.bucket
        if last:
            await self._end_whole()
            self._subscribe_to({bucket: whole.ends[bucket]})
        if found is not None:
            return found if self._begin_batch(found, whole.ends[bucket] if last else FULL) else None
        if self._member is not None and self._member.owns(bucket, self._grants.get(bucket)):
            self._member.positions[bucket] = whole.ends[bucket]
        return None

    async def _adopt_assignment(self) -> None:
        """Begin to read what was granted, and stop reading what is owned no more."""
        self._changed.clear()
        assert self._info is not None
        assert self._member is not None
        if self._member.failure is not None:
            raise self._member.failure
        if self._is_cut_off or not self._member.live:
            self._is_cut_off = False
            await self._member.leave()
            await self._join(self._info)
        member = self._member
        stale = [bucket for bucket, grant in self._grants.items() if member.owned.get(bucket) != grant]
        if stale:
            await self._drop_poll()
            self._waiting = type(self._waiting)(batch for batch in self._waiting if batch.bucket not in stale)
            self._unsubscribe(bucket for bucket in stale if bucket in self._read)
            for bucket in stale:
                del self._grants[bucket]
                self._given.pop(bucket, None)
            self._read = {bucket: offset for bucket, offset in self._read.items() if bucket in self._grants}
        new = {bucket: member.positions[bucket] for bucket in member.owned if bucket not in self._grants}
        self._grants |= {bucket: member.owned[bucket] for bucket in new}
        self._subscribe_to({bucket: offset for bucket, offset in new.items() if offset != FULL})
        if self._whole is not None and self._whole.bucket not in self._grants:
            await self._end_whole()
        if self._whole is None:
            unread = [b for b in self._grants if member.positions.get(b) == FULL and b not in self._read]
            if unread:
                ends: dict[TableBucket, int] = {}
                batches = full_rows(self._plan, unread[:1], self._names, ends)
                self._whole = _WholeBucket(unread[0], batches, ends)

    def _subscribe_to(self, offsets: dict[TableBucket, int]) -> None:
        self._subscribe(offsets)
        self._read = {**self._read, **offsets}

    async def _end_whole(self) -> None:
        reading, self._reading = self._reading, None
        await cancel(reading)  # of a call that was interrupted
        if self._whole is not None:
            await self._whole.batches.aclose()
            self._whole = None

    async def _drop_poll(self) -> None:
        """End the poll that runs: it reads buckets that are given up. What it has not given stays with the scanner."""
        polling = self._polling
        await cancel(polling)  # the next call goes on here, if the caller is interrupted: nothing must be lost
        self._polling = None
        if polling is not None and not polling.cancelled() and polling.exception() is None:
            self._waiting.extend(batch for batch in polling.result() if batch.num_records)

    # -- handling -----------------------------------------------------------------------------------------------------

    def _begin_batch(self, batch: ChangeBatch, end: int) -> bool:
        """Note that a batch is handled from now on, unless its bucket went to another member."""
        assert self._member is not None
        if not self._member.owns(batch.bucket, self._grants.get(batch.bucket)):
            return False
        self._member.busy.add(batch.bucket)
        self._batch, self._batch_end = batch, end
        return True

    def items(self, found: ChangeBatch, expand: Callable[[ChangeBatch], Iterable[Sequence[ItemT]]]) -> Iterator[ItemT]:
        member = self._member
        assert member is not None
        for part in expand(found):
            left = iter(part)
            self._part = part, left
            for item in left:
                if monotonic() >= member.lease_until:
                    self._part = (), iter(())
                    self._is_cut_off = True
                    return  # another member may own the bucket by now
                yield item
            self._before_part = self._change(back=0)
            self._part = (), iter(())
            del part  # before the next is made: see ChangeBatch._expand

    def _change(self, back: int) -> Any:
        """The change that is being handled, or with `back` 1 the one before it; None if there is none."""
        part, left = self._part
        number = len(part) - length_hint(left) - 1 - back
        return part[number] if number >= 0 else self._before_part

    def _finish_batch(self) -> None:
        """The caller asks for more: all that it was given is handled."""
        batch, self._batch = self._batch, None
        self._part, self._before_part, self._committed = ((), iter(())), None, None
        if batch is None or self._member is None or self._is_cut_off or not self._member.live:
            return
        if self._commits:
            self._member.positions[batch.bucket] = self._batch_end
        elif self._batch_end == FULL or self._member.positions.get(batch.bucket) != self._batch_end:
            self._given[batch.bucket] = self._batch_end
            return
        self._member.released(batch.bucket)

    def _note_progress(self) -> None:
        """Note what was handled: with automatic commits all changes before the last that was asked for."""
        batch, current = self._batch, self._change(back=0)
        if batch is None or current is None or self._member is None or self._batch_end == FULL:
            return
        handled = self._change(back=1) if self._commits and self._committed is not current else self._committed
        if handled is not None:
            self._member.positions[batch.bucket] = handled.offset + 1

    async def commit(self) -> None:
        """Store that all that was given out is handled."""
        if self._member is None:
            raise InvalidArgumentError(f"{self._path} gave no changes yet: there is nothing to commit")
        current = self._change(back=0)
        if self._batch is not None and current is not None:
            # Of the current rows of a bucket, either all count as handled or none.
            self._given[self._batch.bucket] = FULL if self._batch_end == FULL else current.offset + 1
        given, self._given = self._given, {}
        self._committed = current
        member = self._member
        for bucket, offset in given.items():
            if bucket in member.owned:
                member.positions[bucket] = offset
        try:
            await member.commit()
        finally:  # the positions stand, and are written with the next row of the member
            for bucket in given:
                if self._batch is None or bucket != self._batch.bucket:
                    member.released(bucket)

    async def _close(self) -> None:
        try:
            if self._member is not None:
                await self._member.leave()
            await self._end_whole()
            await super()._close()
        finally:
            if self._own_connection is not None:
                await self._own_connection.close()


def check_group(group: object, commit: object, session_timeout: Any) -> None:
    """Check the arguments of `follow` that concern groups."""
    named = isinstance(group, str) and 0 < len(group) <= _NAME_MAX and group.isprintable()
    if group is not None and not named:
        raise wrong_argument("follow", "group", f"a name of 1 to {_NAME_MAX} printable characters", group)
    if not isinstance(commit, bool):
        raise wrong_argument("follow", "commit", "True or False", commit)
    if not is_seconds(session_timeout) or not _SESSION_TIMEOUT_S_MIN <= session_timeout <= _SESSION_TIMEOUT_S_MAX:
        limits = f"{_SESSION_TIMEOUT_S_MIN:g} to {_SESSION_TIMEOUT_S_MAX:g} seconds"
        raise wrong_argument("follow", "session_timeout", limits, session_timeout)


def _abandon(loop: asyncio.AbstractEventLoop, connection: FlussConnection) -> None:
    """End the membership of a feed that was dropped: without its connection it cannot renew its lease."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(connection.close()))
