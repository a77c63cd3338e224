# SPDX-License-Identifier: Apache-2.0
"""Ownership of buckets as it is read from one log: never two owners, and all buckets owned in the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.client.groups.state import GroupState
from fluss.errors import FormatError
from fluss.metadata import TableBucket
from fluss.metadata.group_rows import INITIAL, MemberRow, Progress

TIMEOUT_MS = 100
BUCKETS = [TableBucket(1, number) for number in range(6)]


@dataclass
class Log:
    """The table of the server: records in one order, with its time, and the rows as they are."""

    now_ms: int = 1_000_000
    records: list[tuple[int, int, str, MemberRow | None]] = field(default_factory=list)
    rows: dict[str, MemberRow] = field(default_factory=dict)

    def write(self, member: str, row: MemberRow | None) -> None:
        self.records.append((len(self.records) + 1, self.now_ms, member, row))
        if row is None:
            self.rows.pop(member, None)
        else:
            self.rows[member] = MemberRow.from_json(member, row.to_json())


class Process:
    """A member as a process: it reads late, writes late, stops, and believes what it read."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name
        self.state = GroupState()
        self.read = len(log.records)
        self.state.load(log.rows.values())
        self.joined = self.read + 1
        self.lease_until_ms = 0
        """Once it is over, the member is: the process goes on as another one."""
        self.beat = 0
        self.kept: dict[TableBucket, Progress] = {}
        self.sending: list[tuple[int, MemberRow]] = []
        """Rows on their way to the server, with the time they were sent."""
        self.unread: list[MemberRow] = []
        """Rows it wrote and has not read in the log."""
        self.send()

    @property
    def owned(self) -> dict[TableBucket, int]:
        """What it acts on as the owner."""
        member = self.state.members.get(self.name)
        if member is None or self.log.now_ms >= self.lease_until_ms:
            return {}
        return self._claimed(member.held)

    def _claimed(self, held: dict[TableBucket, int]) -> dict[TableBucket, int]:
        """Without what it gave up in a row that it has not read yet."""
        return {b: grant for b, grant in held.items() if all(b in row.owned | row.wanted for row in self.unread)}

    @property
    def lost(self) -> bool:
        return 0 < self.lease_until_ms <= self.log.now_ms

    def poll(self, records: int) -> None:
        for offset, timestamp, member, row in self.log.records[self.read : self.read + records]:
            before = self.state.version, self.state.share(self.name, BUCKETS)
            self.state.apply(offset, timestamp, member, row)
            after = self.state.version, self.state.share(self.name, BUCKETS)
            assert after[0] > before[0] or after == before, "shares change with the version alone"
            self.read += 1
            if member == self.name:
                del self.unread[0]

    def send(self, *, left: bool = False) -> None:
        me = self.state.members.get(self.name)
        held = {} if me is None else self._claimed(me.held)
        share = self.state.share(self.name, BUCKETS)
        for bucket, grant in held.items():
            known = self.state.progress.get(bucket, Progress(INITIAL, 0))
            self.kept[bucket] = Progress(grant, known.offset)
        self.kept = {
            bucket: found
            for bucket, found in self.kept.items()
            if bucket in held or self.state.progress.get(bucket, found).grant <= found.grant
        }
        goes = left or share is None
        owned, wanted = (frozenset(), frozenset()) if goes else (frozenset(held) - share.release, share.want)
        self.beat += 1
        row = MemberRow(self.name, 1, TIMEOUT_MS, self.joined, self.beat, owned, wanted, dict(self.kept), left)
        self.sending.append((self.log.now_ms, row))
        self.unread.append(row)

    def deliver(self) -> None:
        if self.sending:
            sent_ms, row = self.sending.pop(0)
            self.log.write(self.name, row)
            # The answer came: the lease counts from the moment the row was sent.
            if not self.lease_until_ms or self.log.now_ms < self.lease_until_ms:
                self.lease_until_ms = sent_ms + TIMEOUT_MS


def owners(processes: list[Process]) -> dict[TableBucket, list[str]]:
    found: dict[TableBucket, list[str]] = {}
    for process in processes:
        for bucket in process.owned:
            found.setdefault(bucket, []).append(process.name)
    return found


def _run(seed: int) -> int:
    """Members that join, write, read, stop and die at random; gives the number of moves of buckets."""
    chance = random.Random(seed)
    log = Log()
    processes: list[Process] = []
    before: dict[TableBucket, list[str]] = {}
    moves = 0
    for step in range(500):
        log.now_ms += chance.choice([0, 0, 0, 1, 2]) if chance.random() < 0.98 else chance.choice([40, 80, 120])
        if len(processes) < 2 or (len(processes) < 5 and chance.random() < 0.03):
            processes.append(Process(log, f"m{step}"))
        process = chance.choice(processes)
        if process.lost and chance.random() < 0.3:
            processes[processes.index(process)] = process = Process(log, f"again{step}")
        action = chance.random()
        if action < 0.4:
            process.poll(chance.choice([1, 2, 100, 100, 100]))
        elif action < 0.65:
            if not process.sending:
                process.send()
        elif action < 0.985:
            process.deliver()
        else:
            processes.remove(process)  # killed; what it sent may still arrive
            if process.sending and chance.random() < 0.5:
                process.deliver()
        found = owners(processes)
        assert all(len(names) == 1 for names in found.values()), f"seed {seed}, step {step}: {found}"
        moves += sum(before.get(bucket) != names for bucket, names in found.items())
        before = found
    return moves


def test_never_two_owners() -> None:
    moves = sum(_run(seed) for seed in range(200))
    assert moves > 1_000


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**32))
def test_members_that_go_on_share_all_buckets(count: int, seed: int) -> None:
    chance = random.Random(seed)
    log = Log()
    dead = [Process(log, f"dead{number}") for number in range(2)]
    for process in dead:
        process.deliver()
        process.poll(100)
        process.send()
        process.deliver()
    processes = [Process(log, f"m{number}") for number in range(count)]
    for _ in range(40):
        log.now_ms += 10
        chance.shuffle(processes)
        for process in processes:
            process.poll(1000)
            process.send()
            process.deliver()
    for process in processes:
        process.poll(1000)
    found = owners(processes)
    assert found.keys() == set(BUCKETS)
    assert all(len(names) == 1 for names in found.values())
    sizes = [len(process.owned) for process in processes]
    assert max(sizes) - min(sizes) <= 1
    assert set(processes[0].state.superseded(BUCKETS)) == {"dead0", "dead1"}


def test_a_late_record_counts_no_more() -> None:
    state = GroupState()
    bucket = BUCKETS[0]
    state.apply(1, 1000, "a", MemberRow("a", 1, TIMEOUT_MS, 0, wanted=frozenset([bucket])))
    assert state.members["a"].held == {bucket: 1}
    state.apply(2, 1000 + TIMEOUT_MS, "b", MemberRow("b", 1, TIMEOUT_MS, 1, wanted=frozenset([bucket])))
    assert state.members["b"].held == {}, "the lease of a lasts until its timeout"
    state.apply(3, 1001 + TIMEOUT_MS, "b", MemberRow("b", 1, TIMEOUT_MS, 1, wanted=frozenset([bucket])))
    assert state.members["b"].held == {bucket: 3}
    late = MemberRow("a", 1, TIMEOUT_MS, 0, owned=frozenset([bucket]), progress={bucket: Progress(1, 70)})
    state.apply(4, 1002 + TIMEOUT_MS, "a", late)
    assert "a" not in state.members
    assert state.members["b"].held == {bucket: 3}
    kept = MemberRow("b", 1, TIMEOUT_MS, 1, owned=frozenset([bucket]), progress={bucket: Progress(3, 50)})
    state.apply(5, 1003 + TIMEOUT_MS, "b", kept)
    assert state.progress[bucket] == (3, 50), "what a committed too late is not taken over"


def test_the_place_to_begin_is_the_earliest_that_is_named() -> None:
    state = GroupState()
    for number, offset in enumerate((9, 7, 8)):
        row = MemberRow(f"m{number}", 1, 100, 0, progress={BUCKETS[0]: Progress(0, offset)})
        state.apply(number, 1000, f"m{number}", row)
    assert state.progress[BUCKETS[0]] == (0, 7)


@given(
    st.dictionaries(
        st.builds(TableBucket, st.just(5), st.integers(0, 99), st.none() | st.integers(0, 9)),
        st.builds(Progress, st.integers(0, 2**60), st.integers(0, 2**60)),
    ),
    st.sets(st.integers(0, 99)),
    st.booleans(),
    st.text(max_size=20),
)
def test_rows_come_back_whole(progress: dict[TableBucket, Progress], wanted: set[int], left: bool, host: str) -> None:
    wants = frozenset(TableBucket(5, number) for number in wanted)
    row = MemberRow("m", 5, 2500, 7, 3, frozenset(list(progress)[:3]), wants, progress, left, host)
    assert MemberRow.from_json("m", row.to_json()) == row


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"version": 2}',
        '{"version":1,"table_id":"x"}',
        '{"version":1,"table_id":Infinity}',
        "[" * 10**5,
    ],
    ids=range(7),
)
def test_a_row_that_cannot_be_read_names_its_member(text: str) -> None:
    with pytest.raises(FormatError, match="'m1'"):
        MemberRow.from_json("m1", text)


def test_a_lease_that_is_shorter_than_the_others_ends_first() -> None:
    state = GroupState()
    for beat, timeout_ms in enumerate((TIMEOUT_MS, TIMEOUT_MS, 10)):
        state.apply(beat, 1000 + beat, f"m{beat}", MemberRow(f"m{beat}", 1, timeout_ms, beat))
    version = state.version
    state.apply(3, 1012, "m0", MemberRow("m0", 1, TIMEOUT_MS, 0, beat=1))
    assert (state.overdue(1012), state.version) == ([], version), "a renewed lease moves nothing"
    assert state.overdue(1013) == ["m2"]
    state.apply(4, 1013, "m0", MemberRow("m0", 1, TIMEOUT_MS, 0, beat=2))
    assert state.members.keys() == {"m0", "m1"}
    assert (state.overdue(1101), state.overdue(1102)) == ([], ["m1"])
