# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.crash.reading import WrongRowsError
from tests.simulation import world
from tests.simulation.__main__ import simulate
from tests.simulation.disk import SimDisk
from tests.simulation.tables import LostOrDoubledError

from fluss.errors import LogOffsetOutOfRangeError, UnknownServerError
from fluss.server import disk

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""The tasks and files of a killed server are never ended."""

SOME_SEEDS = range(1, 7)
JUMPS = (3, 5, 10)
"""Seeds in which the clock jumps ahead. What happens depends on the hashes of strings too, so one may not be enough."""
LOSES_POWER = (0, 2, 3)
"""Seeds that lose unsynced rows where the server does not sync."""


def test_a_clock_that_is_believed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(world.SERVER_OPTIONS, "clock.jump-tolerance", "0 s")
    with pytest.raises(LogOffsetOutOfRangeError):
        list(map(simulate, JUMPS))


@pytest.mark.parametrize("seed", SOME_SEEDS)
def test_some_seeds(seed: int) -> None:
    """`make simulate` takes fresh ones."""
    scenario, _ = simulate(seed, rounds=10)
    assert scenario.acknowledged > 0


def test_equal_seeds_are_equal() -> None:
    assert simulate(5, rounds=3)[1] == simulate(5, rounds=3)[1]


def test_a_server_that_does_not_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself is checked: without syncs, a loss of power loses rows that were acknowledged."""
    monkeypatch.setitem(world.SERVER_OPTIONS, "log.commit.sync", "none")
    with pytest.raises((LostOrDoubledError, WrongRowsError, UnknownServerError)):
        list(map(simulate, LOSES_POWER))


def test_a_loss_of_power_keeps_what_was_synced(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(40):
        with SimDisk.of_seed(tmp_path, seed) as (root, sim):
            fd = disk.open_file(root / "file", disk.READ_WRITE | disk.CREATE)
            disk.write_at(fd, b"synced", 0)
            disk.sync(fd)
            disk.sync_folder(root)
            disk.write_at(fd, b" and not", 6)
            disk.write_file(root / "unnamed", b"x", durable=True)
            disk.close(fd)
            sim.lose_power()
        contents = (root / "file").read_bytes()
        assert contents.startswith(b"synced")
        outcomes.add((contents, os.path.exists(root / "unnamed")))
    assert {contents for contents, _ in outcomes} == {b"synced", b"synced and not"}
    assert {named for _, named in outcomes} == {True, False}


def test_a_file_that_is_replaced_has_its_old_content_or_the_new_after_a_loss_of_power(tmp_path: Path) -> None:
    contents = set()
    for seed in range(40):
        with SimDisk.of_seed(tmp_path, seed) as (root, sim):
            disk.write_atomically(root / "file", b"old")
            disk.sync_folder(root)
            disk.write_atomically(root / "file", b"new")
            sim.lose_power()
        contents.add((root / "file").read_bytes())
    assert contents == {b"old", b"new"}


def test_what_a_failed_sync_was_for_stays_in_doubt(tmp_path: Path) -> None:
    """As on Linux, a later sync of the same file succeeds without having written it."""
    contents = set()
    for seed in range(40):
        with SimDisk.of_seed(tmp_path, seed) as (root, sim):
            fd = disk.open_file(root / "file", disk.READ_WRITE | disk.CREATE)
            disk.sync_folder(root)
            disk.write_at(fd, b"doubtful", 0)
            sim.failing = lambda kind: 5 if kind == "fsync" else None
            with pytest.raises(OSError, match="Input/output error"):
                disk.sync(fd)
            sim.failing = lambda kind: None
            disk.sync(fd)
            disk.close(fd)
            sim.lose_power()
        contents.add((root / "file").read_bytes())
    assert contents == {b"", b"doubtful"}
