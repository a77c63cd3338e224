# SPDX-License-Identifier: Apache-2.0
"""Leases of snapshots by themselves: what they hold, when they end, what is left after a restart."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
from tests.server.log_support import FakeClock

from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket
from fluss.server.kv import snapshotter
from fluss.server.kv.snapshotter import LEASES_NAME, SnapshotLeases, lease_key

A, B = TableBucket(1, 0), TableBucket.with_partition(2, 7, 3)


def reopened(folder: Path, leases: SnapshotLeases, clock: FakeClock) -> SnapshotLeases:
    leases.save(leases.copy())
    again = SnapshotLeases(folder, clock)
    again.load()
    return again


def test_what_leases_hold(tmp_path: Path) -> None:
    clock = FakeClock()
    leases = SnapshotLeases(tmp_path, clock)
    leases.load()
    leases.acquire("one", 1_000, {A: 4, B: 5})
    leases.acquire("two", 2_000, {A: 4})
    leases = reopened(tmp_path, leases, clock)
    assert [leases.is_leased(A, 4), leases.is_leased(A, 5), leases.is_leased(B, 5)] == [True, False, True]
    # A lease has one snapshot of a bucket; another lease is another matter.
    leases.acquire("one", 1_000, {A: 6})
    assert [leases.is_leased(A, 4), leases.is_leased(A, 6)] == [True, True]
    leases.release("two", [A])
    assert [leases.is_leased(A, 4), len(leases)] == [False, 1]
    leases.release("unknown", [A])
    clock.time_ms += 1_001
    assert not leases.is_leased(A, 6), "expired"
    leases.acquire("one", 1_000, {})
    assert not leases.is_leased(A, 6), "one that expired begins anew"
    leases.acquire("three", 1_000, {A: 7, B: 8})
    leases.drop_buckets(lambda bucket: bucket.table_id == 1)
    assert [leases.is_leased(A, 7), leases.is_leased(B, 8)] == [False, True]
    leases.drop("three")
    leases.drop("three")
    assert not reopened(tmp_path, leases, clock).is_leased(B, 8)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotter, "_LEASES_MAX", 2)
    leases = SnapshotLeases(tmp_path, FakeClock())
    for lease_id, duration_ms in (("", 1), ("x" * 257, 1), ("x", 0), ("x", -1), ("x", 1 << 62)):
        with pytest.raises(InvalidArgumentError):
            leases.acquire(lease_id, duration_ms, {A: 1})
    leases.acquire("one", 9, {A: 1})
    leases.acquire("two", 9, {A: 1})
    with pytest.raises(InvalidArgumentError, match="its limit"):
        leases.acquire("three", 9, {A: 1})
    leases.acquire("two", 9, {A: 2})


def test_limits_of_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One user does not take the leases of all."""
    monkeypatch.setattr(snapshotter, "_LEASES_PER_OWNER_MAX", 2)
    monkeypatch.setattr(snapshotter, "_SNAPSHOTS_PER_OWNER_MAX", 3)
    leases = SnapshotLeases(tmp_path, FakeClock())
    mallory, alice = (partial(lease_key, f"User:{name}") for name in ("mallory", "alice"))
    leases.acquire(mallory("1"), 9, {A: 1, B: 1})
    with pytest.raises(InvalidArgumentError, match="User:mallory would hold more than 3 snapshots"):
        leases.acquire(mallory("2"), 9, {A: 1, B: 1})
    leases.acquire(mallory("2"), 9, {A: 1})
    leases.acquire(mallory("1"), 9, {A: 2, B: 2})
    with pytest.raises(InvalidArgumentError, match="User:mallory has 2 leases"):
        leases.acquire(mallory("3"), 9, {A: 1})
    leases.acquire(alice("1"), 9, {A: 1})


def test_a_lease_of_nothing_takes_no_place(tmp_path: Path) -> None:
    """Who may read no table could otherwise take all of them."""
    leases = SnapshotLeases(tmp_path, FakeClock())
    leases.acquire("one", 9, {})
    assert len(leases) == 0


def test_names_of_owners_and_leases_are_not_confused() -> None:
    assert lease_key("User:a", "b/c") != lease_key("User:a/b", "c")
    assert lease_key("User:a%2Fb", "c") != lease_key("User:a/b", "c")
    assert lease_key("User:alice", "x") == "User:alice/x"


def test_a_damaged_file_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    leases = SnapshotLeases(tmp_path, clock)
    leases.acquire("one", 1_000, {A: 4})
    leases.save(leases.copy())
    path = tmp_path / LEASES_NAME
    path.write_bytes(path.read_bytes().replace(b"[1,null,0,4]", b"[1,null,0,5]"))
    again = SnapshotLeases(tmp_path, clock)
    with caplog.at_level(logging.ERROR):
        again.load()
    assert "cannot be read" in caplog.text
    assert len(again) == 0
