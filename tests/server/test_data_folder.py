# SPDX-License-Identifier: Apache-2.0
"""A data folder belongs to one server, whatever happens to the files and names that say so."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from tests.server.log_support import connected, ids_of, make_batch, running_server

from fluss.errors import ConfigError, ErrorCode
from fluss.server import disk
from fluss.server.clock import Clock
from fluss.server.datadir import CLEAN_NAME, LOCK_NAME, is_in_use


async def test_a_lock_file_that_is_deleted_lets_no_second_server_in(tmp_path: Path) -> None:
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        table = await client.create_table()
        (tmp_path / "data" / LOCK_NAME).unlink()
        assert is_in_use(tmp_path / "data")
        with pytest.raises(ConfigError, match="is in use by the server with process id"):
            async with running_server(tmp_path / "data"):
                pass
        assert (await client.produce(table, make_batch(0))).error_code == 0
    assert not is_in_use(tmp_path / "data")
    async with running_server(tmp_path / "data"):
        pass


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (LOCK_NAME, "LOG", "LOCK")
    }


async def test_a_server_whose_folder_was_replaced_acknowledges_nothing_and_leaves_the_new_one_alone(
    tmp_path: Path,
) -> None:
    """A copy of the folder takes its place while the server runs. Repairs would cut the logs of the copy."""
    data, away = tmp_path / "data", tmp_path / "away"
    shutil.rmtree(data, ignore_errors=True)
    async with running_server(data) as server, connected(server) as client:
        table = await client.create_table()
        await client.produce(table, make_batch(0))
        shutil.copytree(data, away)
        await client.produce(table, make_batch(3))
        data.rename(tmp_path / "moved")
        away.rename(data)
        before = files(data)
        refused = await client.produce(table, make_batch(6))
        assert refused.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
        assert "data folder" in refused.error_message
        await asyncio.sleep(0.5)  # for the repair
        assert files(data) == before
        data.rename(away)
        (tmp_path / "moved").rename(data)
        for _ in range(200):
            accepted = await client.produce(table, make_batch(6))
            if accepted.error_code == 0:
                break
            await asyncio.sleep(0.05)
        assert accepted.base_offset == 6
        assert ids_of((await client.fetch(table, 0)).records) == list(range(9))


class SlowDisk(Clock):
    """Five seconds pass with every flush."""

    def __init__(self) -> None:
        self.flushes = 0
        self._sync = disk.sync

    def sync(self, fd: int) -> None:
        self.flushes += 1
        self._sync(fd)

    def monotonic(self) -> float:
        return time.monotonic() + 5 * self.flushes


async def test_a_stop_on_a_slow_disk_leaves_work_to_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recovery points of all 30 logs would take ten minutes: an operator kills the server before."""
    slow = SlowDisk()
    async with running_server(tmp_path, slow) as server, connected(server) as client:
        table = await client.create_table(buckets=30)
        for bucket in range(30):
            assert (await client.produce(table, make_batch(bucket), bucket=bucket)).error_code == 0
        monkeypatch.setattr(disk, "sync", slow.sync)
        monkeypatch.setattr(disk, "sync_data", slow.sync)
    assert slow.flushes < 12
    assert not (tmp_path / CLEAN_NAME).exists()
    async with running_server(tmp_path) as server, connected(server) as client:
        for bucket in range(30):
            assert len(ids_of((await client.fetch(table, 0, bucket=bucket)).records)) == 3
    assert (tmp_path / CLEAN_NAME).exists()
