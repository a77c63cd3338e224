# SPDX-License-Identifier: Apache-2.0
"""Groups of followers for people: who is in them, how far they are, and how to move or delete them."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluss._text import did_you_mean
from fluss.client.groups.table import create_groups_table, group_key, stored_row
from fluss.db.changes import Position, position_of
from fluss.db.internals import admin_call
from fluss.errors import DatabaseNotExistError, FlussError, InvalidArgumentError, TableNotExistError
from fluss.metadata import OffsetSpec, TableBucket, TablePath
from fluss.metadata.group_rows import FULL, GROUPS_TABLE, MemberRow, Progress, UnknownGroupError, add_progress
from fluss.tools.access import Right, grant_right
from fluss.tools.status import bucket_offsets, offsets_at
from fluss.tools.tailing import start_of

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Table

_RECENT_S = 30.0
"""How far back is looked for signs of life. Longer session timeouts are looked back for longer."""
_LAGS_MAX = 32
"""For how many buckets is looked how old the oldest change is that was not handled."""


@dataclass(frozen=True)
class GroupMemberInfo:
    """A live member of a group."""

    member: str
    host: str
    buckets: int
    seen_s: float
    """How many seconds ago it was heard of."""


@dataclass(frozen=True)
class GroupBucketInfo:
    """How far a group is with one bucket."""

    partition: str | None
    bucket: int
    member: str | None
    """Who owns it."""
    position: int | None
    """The next offset to handle; None if its current rows are not handled yet."""
    end: int
    lag_s: float | None
    """The age of the oldest change that is not handled; None if it was not looked at."""

    @property
    def lag(self) -> int:
        """How many changes are not handled."""
        return self.end - (self.position or 0)


@dataclass(frozen=True)
class GroupInfo:
    """A group and a table that it follows."""

    group: str
    table: str
    members: list[GroupMemberInfo]
    buckets: list[GroupBucketInfo]
    """Empty if the table is gone."""

    @property
    def lag(self) -> int:
        """How many changes are not handled."""
        return sum(bucket.lag for bucket in self.buckets)

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        members = [vars(member) for member in self.members]
        buckets = [vars(bucket) | {"lag": bucket.lag} for bucket in self.buckets]
        return {"group": self.group, "table": self.table, "lag": self.lag, "members": members, "buckets": buckets}


def describe_groups(
    db: Database, group: str | None = None, table: TablePath | None = None, *, ages: bool = False
) -> list[GroupInfo]:
    """All groups, or one, with each table they follow.

    Args:
        db: Where they are.
        group: Only this one; an error if there is none of this name.
        table: Only what follows this table.
        ages: Look also how old the oldest change is that was not handled. Reads a batch per bucket.

    Example:
        for found in describe_groups(db):
            print(found.group, found.table, len(found.members), found.lag)
    """
    rows = _rows(db, group, table)
    seen = _last_seen(db, rows)
    by_table: dict[tuple[str, str], list[MemberRow]] = {}
    for name, path, row in rows:
        by_table.setdefault((name, path), []).append(row)
    return [_describe(db, name, path, members, seen, ages) for (name, path), members in sorted(by_table.items())]


def reset_group(db: Database, group: str, to: str, table: TablePath | None = None) -> list[GroupInfo]:
    """Let a group go on elsewhere: ``earliest``, ``latest``, ``full``, a time, how long ago, an offset or a position.

    The group must have no live member.
    """
    rows = _rows(db, group, table)
    paths = sorted({path for _, path, _ in rows})
    if len(paths) > 1:
        raise InvalidArgumentError(f"group {group!r} follows {', '.join(paths)}: say which one to reset with --table")
    _check_no_live_members(db, group, table, rows)
    opened = db.table(paths[0])
    offsets = _offsets(db, opened, to)
    _place(db, group, opened, offsets, [row for _, _, row in rows])
    return describe_groups(db, group, opened.path)


def group_offsets(db: Database) -> dict[tuple[str, str], dict[TableBucket, int]]:
    """How far each group is with each table that it follows and that exists: the next offset of every bucket."""
    found: dict[tuple[str, str], dict[TableBucket, Progress]] = {}
    for group, path, row in _rows(db, None, None):
        if path in db and db.table(path).info.table_id == row.table_id:
            add_progress(found.setdefault((group, path), {}), row)
    return {key: {bucket: one.offset for bucket, one in progress.items()} for key, progress in found.items()}


def place_group(db: Database, group: str, table: Table[Any], offsets: Mapping[TableBucket, int]) -> None:
    """Let a group go on at offsets of a table, also one that does not exist yet. It must have no live member."""
    admin_call(db, create_groups_table)
    rows = [row for row in _rows(db, None, table.path) if row[0] == group]
    _check_no_live_members(db, group, table.path, rows)
    _place(db, group, table, offsets, [row for _, _, row in rows])


def _place(
    db: Database, group: str, table: Table[Any], offsets: Mapping[TableBucket, int], members: Sequence[MemberRow]
) -> None:
    # One more than any grant so far: a bucket that is granted from now on has a higher one still.
    grant = 1 + max((found.grant for row in members for found in row.progress.values()), default=0)
    progress = {bucket: Progress(grant, offset) for bucket, offset in offsets.items()}
    row = MemberRow(f"reset-{grant}", table.info.table_id, 0, 0, progress=progress, left=True, host="fluss group reset")
    db.table(str(GROUPS_TABLE)).upsert([stored_row(group, table.path, row)])
    _delete(db, group, str(table.path), [member for member in members if member.member != row.member])


def delete_group(db: Database, group: str, table: TablePath | None = None) -> int:
    """Delete a group, or what it knows of one table; gives the number of tables. It must have no live member."""
    rows = _rows(db, group, table)
    _check_no_live_members(db, group, table, rows)
    paths = {path for _, path, _ in rows}
    for path in paths:
        _delete(db, group, path, [row for _, found, row in rows if found == path])
    return len(paths)


def allow_groups(db: Database, user: str) -> list[Right]:
    """Let a user be a member of groups: READ and WRITE on the table they are kept in, which is created if needed.

    The user can then move and end every group, and needs READ on what it follows.
    """
    admin_call(db, create_groups_table)
    return [grant_right(db, user, operation, str(GROUPS_TABLE)) for operation in ("read", "write")]


def _rows(db: Database, group: str | None, table: TablePath | None) -> list[tuple[str, str, MemberRow]]:
    try:
        stored = db.table(str(GROUPS_TABLE)).to_pylist()
    except (DatabaseNotExistError, TableNotExistError):
        stored = []
    names = {row["group_name"] for row in stored}
    if group is not None and group not in names:
        raise UnknownGroupError(f"there is no group {group!r}{did_you_mean(group, sorted(names))}")
    found = [
        (row["group_name"], row["table_name"], MemberRow.from_json(row["member"], row["state"]))
        for row in stored
        if group in (None, row["group_name"]) and (table is None or str(table) == row["table_name"])
    ]
    if group is not None and not found:
        raise InvalidArgumentError(f"group {group!r} does not follow {table}")
    return found


def _last_seen(db: Database, rows: Sequence[tuple[str, str, MemberRow]]) -> dict[str, float]:
    """How many seconds ago each member wrote its row, if that was not long ago."""
    timeouts = [row.timeout_ms / 1000 for _, _, row in rows if not row.left]
    if not timeouts:
        return {}
    now = dt.datetime.now(dt.timezone.utc)
    since = now - dt.timedelta(seconds=max(_RECENT_S, *timeouts))
    seen: dict[str, float] = {}
    with db.table(str(GROUPS_TABLE)).follow(since, columns=["member"], stop_at_end=True) as changes:
        for change in changes:
            seen[change.row["member"]] = max(0.0, (now - change.timestamp).total_seconds())
    return seen


def _describe(
    db: Database, group: str, path: str, rows: Sequence[MemberRow], seen: dict[str, float], ages: bool
) -> GroupInfo:
    live = [row for row in rows if not row.left and seen.get(row.member, math.inf) <= row.timeout_ms / 1000]
    members = [GroupMemberInfo(row.member, row.host, len(row.owned), round(seen[row.member], 1)) for row in live]
    try:
        table = db.table(path)
    except (DatabaseNotExistError, TableNotExistError):
        return GroupInfo(group, path, members, [])
    progress: dict[TableBucket, Progress] = {}
    for row in rows:
        if row.table_id == table.info.table_id:
            add_progress(progress, row)
    owners = {bucket: row.member for row in live for bucket in row.owned}
    ends = bucket_offsets(db, table, OffsetSpec.latest())
    starts = bucket_offsets(db, table, OffsetSpec.earliest())
    buckets: list[GroupBucketInfo] = []
    for key, end in ends.items():
        partition, bucket = key
        known = progress.get(bucket)
        position = starts.get(key, 0) if known is None else known.offset
        lag_s = _age(table, ends, bucket, position) if ages and len(buckets) < _LAGS_MAX and position != FULL else None
        shown = None if position == FULL else position
        buckets.append(GroupBucketInfo(partition, bucket.bucket_id, owners.get(bucket), shown, end, lag_s))
    return GroupInfo(group, path, members, buckets)


def _age(
    table: Table[Any], ends: dict[tuple[str | None, TableBucket], int], bucket: TableBucket, position: int
) -> float | None:
    """How many seconds ago the change at a position was written."""
    offsets = {other: end for (_, other), end in ends.items()}
    if position >= offsets[bucket]:
        return 0.0
    start = Position(table.info.table_id, {**offsets, bucket: position})
    columns = table.columns[:1]
    try:
        with table.follow(start, batches=True, columns=columns, stop_at_end=True) as batches:
            first = next(batches, None)
    except FlussError:
        return None  # what the group did not handle has expired
    return None if first is None else round(max(0.0, time.time() - first.timestamp.timestamp()), 1)


def _check_no_live_members(
    db: Database, group: str, table: TablePath | None, rows: Sequence[tuple[str, str, MemberRow]]
) -> None:
    """Wait for as long as a live member may be silent: no clock says whether one is."""
    waiting = [row for _, _, row in rows if not row.left]
    if not waiting:
        return
    time.sleep(max(row.timeout_ms for row in waiting) / 1000)
    beats = {row.member: row.beat for row in waiting}
    live = [row for _, _, row in _rows(db, group, table) if not row.left and row.beat != beats.get(row.member)]
    if live:
        who = ", ".join(sorted(row.host or row.member for row in live)[:3])
        raise InvalidArgumentError(
            f"group {group!r} has {len(live)} live members ({who}): stop them first, they would go on where they are"
        )


def _offsets(db: Database, table: Table[Any], to: str) -> dict[TableBucket, int]:
    start = start_of(db, table, to)
    if start == "full" and table.primary_key:
        found = dict.fromkeys(bucket_offsets(db, table, OffsetSpec.latest()), FULL)
    elif isinstance(start, dt.datetime):
        found = offsets_at(db, table, start)
    elif (position := position_of(start, table.info.table_id, table.name)) is not None:
        return dict(position.offsets)
    else:
        found = bucket_offsets(db, table, OffsetSpec.latest() if start == "latest" else OffsetSpec.earliest())
    return {bucket: offset for (_, bucket), offset in found.items()}


def _delete(db: Database, group: str, path: str, members: Sequence[MemberRow]) -> None:
    if members:
        key = group_key(group, TablePath(*path.split(".", 1)))
        db.table(str(GROUPS_TABLE)).delete([{**key, "member": row.member} for row in members])
