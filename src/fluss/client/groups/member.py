# SPDX-License-Identifier: Apache-2.0
"""A member of a group: it writes its row, reads the log of all rows, and knows which buckets it owns.

Its lease counts from the moment a row was *sent*, on the clock of this process; the server's clock, by which the others
judge, reads later than that. So it stops before anybody else may begin. A member whose lease is over stays so: the
process joins again as another member.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fluss.client.groups.state import Adjustment, GroupState
from fluss.client.groups.table import group_key, open_groups_table, stored_row, with_hint
from fluss.client.lookup import PrefixLookuper
from fluss.client.scan import LogScanner, RecordBatch, ScanPlan
from fluss.errors import (
    AuthorizationError,
    ConnectionClosedError,
    DatabaseNotExistError,
    FlussError,
    FormatError,
    GroupRebalancedError,
    TableNotExistError,
)
from fluss.metadata import ChangeType, OffsetSpec, TableBucket, TableInfo
from fluss.metadata.group_rows import GROUPS_TABLE, INITIAL, MemberRow, Progress
from fluss.net.deadline import wait_for

if TYPE_CHECKING:
    from fluss.client.connection import FlussConnection
    from fluss.client.write import UpsertWriter

_log = logging.getLogger("fluss.client.groups")

BEATS_PER_TIMEOUT = 2.5
"""How often a row is written while nothing changes: once a second with the default timeout of 2.5 s."""
_TIMEOUT_S_PER_MEMBER = 0.1
"""The session timeout of a large group is at least this for each member: all of them read every row, so that what one
reads must not grow with their number. Up to 25 members keep the default."""
_FATAL = (AuthorizationError, ConnectionClosedError, DatabaseNotExistError, FormatError, TableNotExistError)
"""What trying again does not help against."""
_TICK_S = 0.1
_RETRY_S_MAX = 1.0
_LOOK_S = 1.0
"""How often is looked for new partitions, and for rows of members that are gone."""
_CLOCK_RATES = 0.01
"""The clocks of this machine and of the server run at rates that differ by less than this: leases end earlier by it."""
_LOOK_BACK = 8
"""How many records for each member are read from the time before this one joined: they say when the others wrote last.
So it takes over from those that were gone already as soon as the others do."""
_LOOK_BACK_MAX = 512
"""How many it reads at most."""
_READ_PAUSE_S = 0.004
"""How long is waited between two reads of the log, per member: each record is for all of them."""
_READ_PAUSE_S_MAX = 0.25
_JOIN_PAUSE_S = 0.008
"""How long after a member joined is waited for more of them, per member: buckets that move once pause once."""
_JOIN_PAUSE_S_MAX = 0.5
_NO_MOVE_S_MAX = 1.0
"""How long members that join one after the other delay the others."""
_NO_MOVE = Adjustment(frozenset(), frozenset())

Buckets = Callable[[], Awaitable[Sequence[TableBucket]]]
Offsets = Callable[[Sequence[TableBucket]], Awaitable[Mapping[TableBucket, int]]]


class GroupMember:
    """One membership, from joining to leaving or to the loss of the lease. It lives on the loop of its connection."""

    def __init__(
        self,
        connection: FlussConnection,
        info: TableInfo,
        group: str,
        *,
        session_timeout_s: float,
        list_buckets: Buckets,
        first_offsets: Offsets,
        new_offsets: Offsets,
        before_write: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        """Use `join`.

        Args:
            connection: A connection of its own: a queue of large requests must not delay the lease.
            info: The table that is followed.
            group: The name of the group.
            session_timeout_s: How long after its last row the others wait before they take over, at least.
            list_buckets: The buckets of the table now.
            first_offsets: Where a group that never read the table begins.
            new_offsets: Where a bucket begins that came after the group.
            before_write: Called before a row is written: `positions` should be up to date then.
            on_change: Called when `owned`, `lost` or `failure` changed.
        """
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.lost: str | None = None
        """Why the membership is over."""
        self.failure: FlussError | None = None
        """What went wrong for good: no right to write, no table."""
        self.lease_until = 0.0
        self.owned: dict[TableBucket, int] = {}
        """The buckets to read, with their grants. A bucket that is granted again has another one."""
        self.positions: dict[TableBucket, int] = {}
        """The next offset to handle of the buckets that are owned."""
        self.busy: set[TableBucket] = set()
        """Buckets of which changes were given out and are not handled yet: they are not released."""
        self._connection = connection
        self._info = info
        self._table_name = str(info.table_path)
        self._group = group
        self._timeout_s = session_timeout_s
        self._list_buckets = list_buckets
        self._first_offsets = first_offsets
        self._new_offsets = new_offsets
        self._before_write = before_write
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._state = GroupState()
        self._buckets: frozenset[TableBucket] = frozenset()
        """The buckets of the table, without those of partitions that were dropped."""
        self._first_buckets: frozenset[TableBucket] = frozenset()
        """The buckets when this member joined."""
        self._kept: dict[TableBucket, Progress] = {}
        """Progress of buckets that are not owned, until their next owner has written it."""
        self._joined_at = 0
        self._beat = 0
        self._unread: dict[int, MemberRow] = {}
        """Rows that were written and not read yet, by their beat."""
        self._written: MemberRow
        """The last row."""
        self._newest: tuple[int, float] | None = None
        """The server's time of the newest record, and when it was read."""
        self._shared_for: tuple[int, frozenset[TableBucket], list[str]] | None = None
        self._shared = _NO_MOVE
        """The share of this member, and what it was found for."""
        self._joining_until = 0.0
        """Until when more members are expected to join, after the last one that did."""
        self._moved_at = self._loop.time()
        """When buckets were free to move the last time."""
        self._seen_itself = False
        self._sent_at = 0.0
        self._denied = 0
        self._unknown = asyncio.Event()
        """Whether there are buckets whose first offset this member must ask for."""
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: UpsertWriter
        self._scanner: LogScanner

    async def join(self, *, again: bool = False) -> None:
        """Read who is there, and write the first row.

        A process that joins `again` reads nothing from the time before: a busy one that lost its lease has less to do.
        """
        try:
            await self._join(0 if again else _LOOK_BACK_MAX)
        except AuthorizationError as error:
            raise with_hint(error) from None

    async def _join(self, look_back_max: int) -> None:
        table = await open_groups_table(self._connection)
        lookuper = PrefixLookuper(self._connection._runner, table._state, ["group_name", "table_name"])
        key = group_key(self._group, self._info.table_path)
        bucket = lookuper.bucket_of(key)
        admin = self._connection.get_admin()
        first = (await admin.list_offsets(GROUPS_TABLE, [bucket], OffsetSpec.earliest()))[bucket]
        self._joined_at = (await admin.list_offsets(GROUPS_TABLE, [bucket], OffsetSpec.latest()))[bucket]
        rows = [MemberRow.from_json(row["member"], row["state"]) for row in await lookuper.lookup(key)]
        self._state.load(row for row in rows if row.table_id == self._info.table_id)
        self._first_buckets = self._buckets = frozenset(await self._list_buckets())
        self._writer = table.new_upsert().create_writer()
        for row in rows:
            if row.table_id != self._info.table_id:  # of a table that was dropped, and created again
                await self._writer.delete({**key, "member": row.member}).wait()
        await self._write()
        plan = ScanPlan(self._connection._cluster, table.get_table_info())
        self._scanner = LogScanner(plan, batches=True, change_type_column=False, pause_s=self._read_pause_s)
        look_back = min(_LOOK_BACK * len(rows), look_back_max)
        self._scanner.subscribe(bucket, max(first, self._joined_at - look_back))
        work = (self._read_log(), self._write_rows(), self._find_offsets(), self._look_after())
        self._tasks = [self._loop.create_task(one) for one in work]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    @property
    def live(self) -> bool:
        """Whether the lease holds now."""
        return self.lost is None and self._loop.time() < self.lease_until

    def owns(self, bucket: TableBucket, grant: int | None) -> bool:
        """Whether a bucket may be handled under a grant."""
        return grant is not None and self.owned.get(bucket) == grant and self.live

    def released(self, bucket: TableBucket) -> None:
        """Note that nothing of a bucket is in use any more."""
        self.busy.discard(bucket)
        if bucket in self._shared.release:
            self._wake.set()

    async def commit(self) -> None:
        """Write the positions, and wait until they are durable."""
        await self._write()

    async def leave(self) -> None:
        """Write the last positions and give all buckets up, at once."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._tasks = []
        try:
            if self.live and self.failure is None:
                self.busy.clear()
                await self._write(left=True)
                await self._clean()
        except FlussError as error:
            _log.warning("%s could not leave group %s, the others wait for its lease: %s", self.id, self._group, error)
        finally:
            self.owned = {}
            await self._scanner.close()

    # -- the row ------------------------------------------------------------------------------------------------------

    async def _write(self, *, left: bool = False) -> None:
        async with self._writing:
            sent_at = self._loop.time()
            if self.lost is None and 0 < self.lease_until <= sent_at:
                self._lose("its lease was over before it could be renewed")
            if self.lost is not None:
                raise GroupRebalancedError(
                    f"this member of group {self._group!r} lost its buckets of {self._info.table_path}: {self.lost}",
                    hint="what was not committed is handled by another member; the next change comes from what this "
                    "process owns then",
                )
            self._sent_at = sent_at
            row = self._make_row(left=left)
            self._unread[row.beat] = self._written = row
            self._set_owned()
            left_s = max(self._timeout_s, self.lease_until - sent_at) if self.lease_until else None
            stored = stored_row(self._group, self._info.table_path, row)
            await self._writer.upsert(stored).wait(timeout=left_s)
            if 0 < self.lease_until <= self._loop.time():
                self._lose("the answer of the server came after its lease was over")
            elif self.lost is None:
                self.lease_until = sent_at + self._timeout_s * (1 - _CLOCK_RATES)

    def _make_row(self, *, left: bool) -> MemberRow:
        self._before_write()
        self._beat += 1
        # It never falls: a lease that was given lasts, even if the row that would shorten it is written late.
        self._timeout_s = max(self._timeout_s, _TIMEOUT_S_PER_MEMBER * len(self._state.members))
        release, want = self._share()
        held = {bucket: grant for bucket, grant in self._held().items() if bucket in self._buckets}
        progress = {b: Progress(grant, self.positions[b]) for b, grant in held.items() if b in self.positions}
        owned = frozenset() if left else frozenset(progress) - (release - self.busy)
        # What is granted and has no position yet is wanted still.
        wanted = frozenset() if left else frozenset(want | (held.keys() - progress.keys() - release))
        known = self._state.progress
        self._kept = {
            b: kept
            for b, kept in self._kept.items()
            if b in self._buckets and (b not in known or known[b].grant <= kept.grant)
        }
        self._kept |= {b: found for b, found in progress.items() if b not in owned}
        return MemberRow(
            self.id,
            self._info.table_id,
            int(self._timeout_s * 1000),
            self._joined_at,
            self._beat,
            owned,
            wanted,
            {**self._kept, **progress},
            left,
            f"{socket.gethostname()} (process {os.getpid()})",
        )

    def _share(self) -> Adjustment:
        """What to give up and to ask for, by what is known now."""
        now = self._loop.time()
        if now < min(self._joining_until, self._moved_at + _NO_MOVE_S_MAX):
            return _NO_MOVE
        if not self._state.progress and not self._kept:
            return _NO_MOVE  # the oldest member has not found yet where the group begins
        self._moved_at = now
        presumed_gone: list[str] = []
        if self._newest is not None:
            # The server's clock reads at least this.
            now_ms = self._newest[0] + (now - self._newest[1]) * 1000
            presumed_gone = [name for name in self._state.overdue(now_ms) if name != self.id]
        known = self._state.version, self._buckets, presumed_gone
        if self._shared_for != known:
            self._shared_for = known
            self._shared = self._state.share(self.id, self._buckets, presumed_gone) or _NO_MOVE
        return self._shared

    def _held(self) -> dict[TableBucket, int]:
        """What the log says this member owns, without what it has given up since."""
        me = self._state.members.get(self.id)
        if me is None:
            return {}
        kept = [row.owned | row.wanted for row in self._unread.values()]
        return {bucket: grant for bucket, grant in me.held.items() if all(bucket in row for row in kept)}

    def _set_owned(self) -> None:
        owned = {bucket: grant for bucket, grant in self._held().items() if bucket in self.positions}
        if owned != self.owned:
            self.owned = owned
            self._on_change()

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
            self.lease_until = 0.0
            self.owned = {}
            self._on_change()
            _log.warning("%s is no longer a member of group %s: %s", self.id, self._group, reason)

    # -- what runs beside the reader ----------------------------------------------------------------------------------

    async def _write_rows(self) -> None:
        """Renew the lease, and write what has changed."""
        while self.lost is None and self.failure is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_for(self._wake.wait(), _TICK_S)
            self._wake.clear()
            if not self._due():
                continue
            try:
                await self._write()
            except GroupRebalancedError:
                return
            except FlussError as error:
                if isinstance(error, _FATAL):
                    self._fail(error)
                    return
                _log.info("%s could not renew its lease of group %s yet: %s", self.id, self._group, error)

    def _due(self) -> bool:
        since_s = self._loop.time() - self._sent_at
        if since_s >= self._timeout_s / BEATS_PER_TIMEOUT:
            return True
        if self._unread or not self._seen_itself:
            return False
        if self._kept.keys() - self._state.progress.keys():
            return True  # where the group begins
        release, want = self._share()
        if self._written.owned != self._buckets.intersection(self.owned) - (release - self.busy):
            return True
        if not want:
            self._denied = 0
            return False
        if since_s < min(_RETRY_S_MAX, _TICK_S * self._denied):
            return False
        self._denied += 1
        return True

    async def _read_log(self) -> None:
        while self.lost is None:
            batches = await self._scanner.poll_record_batch(1000)
            for batch in batches:
                self._apply_batch(batch)
                await asyncio.sleep(0)  # other members of this process renew their leases meanwhile
            if batches:
                self._set_positions()
                self._set_owned()
                self._wake.set()

    def _read_pause_s(self) -> float:
        return min(_READ_PAUSE_S_MAX, _READ_PAUSE_S * len(self._state.members))

    def _apply_batch(self, batch: RecordBatch) -> None:
        """Apply the records of a batch that concern this group. Most batches are one row, as it was and as it is."""
        groups, tables, members, states = batch.batch.columns
        for number, change in enumerate(batch.change_types or ()):
            if change == ChangeType.UpdateBefore or groups[number].as_py() != self._group:
                continue
            if tables[number].as_py() != self._table_name:
                continue
            name = members[number].as_py()
            row = None if change == ChangeType.Delete else MemberRow.from_json(name, states[number].as_py())
            self._apply(batch.base_offset + number, batch.timestamp, name, row)

    def _apply(self, offset: int, timestamp_ms: int, name: str, row: MemberRow | None) -> None:
        if row is not None and row.table_id != self._info.table_id:
            return
        if offset < self._joined_at:
            if row is not None:
                self._state.note_seen(timestamp_ms, name, row.beat)
            return
        joins = name not in self._state.members
        self._state.apply(offset, timestamp_ms, name, row)
        self._newest = timestamp_ms, self._loop.time()
        if joins and name in self._state.members:
            pause_s = min(_JOIN_PAUSE_S_MAX, _JOIN_PAUSE_S * len(self._state.members))
            self._joining_until = self._loop.time() + pause_s
        if name == self.id and row is not None:
            self._seen_itself = True
            self._unread = {beat: kept for beat, kept in self._unread.items() if beat > row.beat}
        if self._seen_itself and self.id not in self._state.members:
            self._lose("its row came too late for the server's clock")

    def _set_positions(self) -> None:
        """Note where to begin with buckets that were granted."""
        held, known = self._held(), self._state.progress
        self.positions = {bucket: offset for bucket, offset in self.positions.items() if bucket in held}
        for bucket in held.keys() - self.positions.keys():
            if bucket in known:
                self.positions[bucket] = known[bucket].offset
            else:
                self._unknown.set()
        if not known and not self._kept and self._is_oldest():
            self._unknown.set()

    async def _find_offsets(self) -> None:
        """Ask where a new group begins, or buckets that came after it. The log is read on meanwhile."""
        while True:
            await self._unknown.wait()
            self._unknown.clear()
            begun = bool(self._state.progress)
            try:
                found = await wait_for(self._offsets_of_new(begun), self._timeout_s)
            except (FlussError, asyncio.TimeoutError) as error:
                _log.info("%s could not find where new buckets begin: %s", self.id, error)
                await asyncio.sleep(_TICK_S)
                self._unknown.set()  # unless their partition was dropped meanwhile
                continue
            if begun:
                self.positions = {**found, **self.positions}
                self._set_positions()
                self._set_owned()
            else:
                self._kept = {bucket: Progress(INITIAL, offset) for bucket, offset in found.items()}
            self._wake.set()

    async def _offsets_of_new(self, begun: bool) -> Mapping[TableBucket, int]:
        """Where to begin with buckets that came after the group, or with all of them if it has not begun."""
        if begun:
            return await self._new_offsets(list((self._held().keys() & self._buckets) - self.positions.keys()))
        first, later = self._buckets & self._first_buckets, self._buckets - self._first_buckets
        return {**await self._first_offsets(list(first)), **await self._new_offsets(list(later))}

    async def _look_after(self) -> None:
        """Look for new partitions, and delete rows that are not needed any more."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                if self._info.is_partitioned():
                    self._buckets = frozenset(await self._list_buckets())
                await self._clean()
            except FlussError as error:
                _log.info("%s could not look after group %s: %s", self.id, self._group, error)

    async def _clean(self) -> None:
        """Delete the rows of members that are gone, once: the oldest member does it, and each that leaves."""
        if not self._written.left and not self._is_oldest():
            return
        for name in self._state.superseded(self._buckets):
            key = {**group_key(self._group, self._info.table_path), "member": name}
            await self._writer.delete(key).wait()

    def _is_oldest(self) -> bool:
        oldest = min(self._state.members.values(), key=lambda member: member.age, default=None)
        return oldest is not None and oldest.row.member == self.id

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Fail for good with any error of a task: a member that renews its lease without it would keep its buckets."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, FlussError):
            self._fail(error)
        elif error is not None:
            _log.error("%s of group %s failed", self.id, self._group, exc_info=error)
            self._fail(FlussError(f"member {self.id} of group {self._group} failed: {type(error).__name__}: {error}"))

    def _fail(self, error: FlussError) -> None:
        self.failure = with_hint(error) if isinstance(error, AuthorizationError) else error
        self.owned = {}
        self._on_change()
