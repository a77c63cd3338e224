# SPDX-License-Identifier: Apache-2.0
"""Who owns which bucket of a group, as everybody reads it from one log. Free of I/O and clocks.

Each member of a group has one row in a table of the server. The changelog of that table puts all versions of these rows
into one order, with times of the server's clock, and every member reads it: so all come to the same answer without
asking each other.

A member lists in its row the buckets it owns and those it wants. A wanted bucket is *granted* by the record itself, if
at that place of the log no other live member owns it. The offset of the record is the number of the grant: of two
members that claim a bucket, the one with the higher number is right. A member is live as long as its records follow
each other within its session timeout; after that its buckets are free, and its later records count no more.

Who joins reads the rows as they are, and the log from there on. Of rows whose record it did not read it does not know
how old they are, nor whether what they wanted was granted. Until it knows, it takes them for live and granted: it may
think that a bucket is owned when it is free, never the other way round. The last records before it joined say how old
the rows are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fluss.metadata import TableBucket
from fluss.metadata.group_rows import MemberRow, Progress, add_progress


@dataclass
class Member:
    """A live member."""

    row: MemberRow
    seen_ms: int | None
    """The server's time of its last record; unknown until the first record after its row was read."""
    certain: bool
    """Whether its last record was read, and not only its row."""
    held: dict[TableBucket, int] = field(default_factory=dict)
    """The buckets it owns, with the grant of each."""
    maybe: set[TableBucket] = field(default_factory=set)
    """What it may have been granted."""

    @property
    def age(self) -> tuple[int, str]:
        """Orders members: the oldest first."""
        return self.row.joined, self.row.member


class GroupState:
    """What one reader of the log knows about a group and one table."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.gone: dict[str, MemberRow] = {}
        """The last rows of members that left or expired. They stay until their progress is written elsewhere."""
        self.progress: dict[TableBucket, Progress] = {}
        self.version = 0
        """Grows when members or what they hold change; not with records that only renew a lease."""
        self._expires_ms = 0
        """No lease that is known is over before this time of the server."""

    def load(self, rows: Iterable[MemberRow]) -> None:
        """Begin with rows as they are; the log is read from the offset of that moment, or an earlier one, on."""
        for row in rows:
            add_progress(self.progress, row)
            if row.left:
                self.gone[row.member] = row
                continue
            found = self.members[row.member] = Member(row, None, False, maybe=set(row.wanted))
            for bucket in row.owned:
                self._own(found, bucket, row.progress[bucket].grant)

    def note_seen(self, timestamp_ms: int, member: str, beat: int) -> None:
        """Learn when a row that was loaded was written, from a record of the time before."""
        found = self.members.get(member)
        if found is not None and found.row.beat == beat:
            found.seen_ms = timestamp_ms

    def apply(self, offset: int, timestamp_ms: int, member: str, row: MemberRow | None) -> None:
        """Take the next record of the log: a row that was written, or None for one that was deleted."""
        self._expire(timestamp_ms)
        before = self.members.get(member)
        if row is not None and before is not None and row.beat < before.row.beat:
            return  # its writes arrived out of order, or the row that was loaded is newer
        self.members.pop(member, None)
        if row is None:
            self.gone.pop(member, None)
            self.version += 1
            return
        add_progress(self.progress, row)
        if row.left or member in self.gone:
            self.gone[member] = row
            self.version += 1
            return
        found = self.members[member] = Member(row, timestamp_ms, True)
        self._expires_ms = min(self._expires_ms, timestamp_ms + row.timeout_ms)
        for bucket in row.owned:
            grant = row.progress[bucket].grant
            if before is not None and before.held.get(bucket) == grant:
                found.held[bucket] = grant  # it has no rival: one member holds a bucket
            else:
                self._own(found, bucket, grant)
        claims = self._claims_of_others(found, row.wanted) if row.wanted else {}
        for bucket in row.wanted:
            if bucket not in claims:
                found.held[bucket] = offset if before is None else before.held.get(bucket, offset)
            elif not claims[bucket]:
                found.maybe.add(bucket)
        if before is None or found.held != before.held or found.maybe != before.maybe:
            self.version += 1

    def _claims_of_others(self, member: Member, wanted: frozenset[TableBucket]) -> dict[TableBucket, bool]:
        """Those of some buckets that other members own or may own, and whether that is certain."""
        claims: dict[TableBucket, bool] = {}
        for other in self.members.values():
            if other is not member:
                for bucket in wanted & other.maybe:
                    claims.setdefault(bucket, False)
                for bucket in wanted.intersection(other.held):
                    claims[bucket] = other.certain or claims.get(bucket, False)
        return claims

    def _own(self, member: Member, bucket: TableBucket, grant: int) -> None:
        """Believe a member that it owns a bucket, unless another one was granted it later."""
        rivals = [other for other in self.members.values() if other is not member and bucket in other.held]
        if all(other.held[bucket] < grant for other in rivals):
            for other in rivals:
                del other.held[bucket]
            member.held[bucket] = grant

    def _expire(self, now_ms: int) -> None:
        if now_ms <= self._expires_ms:
            return
        self._expires_ms = now_ms + max((member.row.timeout_ms for member in self.members.values()), default=0)
        for name, member in list(self.members.items()):
            if member.seen_ms is None:
                member.seen_ms = now_ms
            expires_ms = member.seen_ms + member.row.timeout_ms
            if now_ms > expires_ms:
                self.gone[name] = self.members.pop(name).row
                self.version += 1
            else:
                self._expires_ms = min(self._expires_ms, expires_ms)

    def overdue(self, now_ms: float) -> list[str]:
        """The members whose leases are over at a time of the server, although no record shows it yet."""
        if now_ms <= self._expires_ms:
            return []
        known = ((name, member.seen_ms, member.row.timeout_ms) for name, member in self.members.items())
        return [name for name, seen_ms, timeout_ms in known if seen_ms is not None and now_ms - seen_ms > timeout_ms]

    def share(
        self, name: str, buckets: Collection[TableBucket], presumed_gone: Collection[str] = ()
    ) -> Adjustment | None:
        """What a member should give up and ask for, so that all have the same number of buckets, give or take one.

        Owners keep what they have as far as that allows. All members divide the buckets in the same way, so that each
        finds its own share alone. None for a name that is no live member.

        Args:
            name: The member.
            buckets: The buckets of the table.
            presumed_gone: Members that were not heard of for too long, although no record shows it yet.
        """
        existing = frozenset(buckets)
        live = [member for other, member in self.members.items() if other not in presumed_gone]
        kept = {member.row.member: existing & (member.held.keys() | member.maybe) for member in live}
        live.sort(key=lambda member: (-len(kept[member.row.member]), member.age))
        taken = 0
        for place, member in enumerate(live):
            quota = len(existing) // len(live) + (place < len(existing) % len(live))
            more = max(0, quota - len(kept[member.row.member]))
            if member.row.member == name:
                own = sorted(kept[name], key=bucket_order)
                free = sorted(existing.difference(*kept.values()), key=bucket_order)
                # What it may have been granted it asks for again, to know.
                want = member.maybe.intersection(own[:quota]).union(free[taken : taken + more])
                return Adjustment(frozenset(own[quota:]), frozenset(want))
            taken += more
        return None

    def superseded(self, buckets: Collection[TableBucket]) -> list[str]:
        """The members that are gone and whose rows are not needed: others were granted all that they had."""
        existing = frozenset(buckets)
        return [
            name
            for name, row in self.gone.items()
            if all(self.progress[b].grant > found.grant for b, found in row.progress.items() if b in existing)
        ]


class Adjustment(NamedTuple):
    """What a member should change."""

    release: frozenset[TableBucket]
    want: frozenset[TableBucket]


def bucket_order(bucket: TableBucket) -> tuple[int, int]:
    """Sorts buckets the same way everywhere."""
    return bucket.partition_id or 0, bucket.bucket_id
