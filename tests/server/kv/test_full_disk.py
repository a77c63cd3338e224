# SPDX-License-Identifier: Apache-2.0
"""A disk that takes no more rows for a while: nothing is lost, and the store goes on once there is room."""

from __future__ import annotations

import contextlib
import resource
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from tests.server.kv.support import Delete, opened, table
from tests.shared import raising
from tests.waiting import wait_until

from fluss.errors import KvStorageError, StorageBackpressureError
from fluss.server.kv import budget as budget_module
from fluss.server.kv import ordered
from fluss.server.kv import store as store_module
from fluss.server.kv.rocksdb import WriterProcess

TEXT = "x" * 100


@contextlib.contextmanager
def full_disk(bytes_max: int) -> Iterator[None]:
    """No file grows beyond a size, which RocksDB meets like a full disk; no compiled module is written and cut off."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        sys.dont_write_bytecode = compiles
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


async def test_a_spill_without_room_is_repeated_when_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "_RETRY_SECONDS_MIN", 0.05)
    monkeypatch.setattr(budget_module, "_RETRY_SECONDS_MAX", 0.1)
    entry = table()

    async with opened(tmp_path / "a", entry) as bucket:
        bucket.budget._retry_seconds = 0.05
        await bucket.put([(i, "disk", None) for i in range(3000)])
        await bucket.spill()
        await bucket.put([(i, TEXT, None) for i in range(1000, 5000)])
        await bucket.put([Delete(i) for i in range(100)])
        with full_disk(50_000):
            await bucket.spill()
            assert bucket.store.spill_failed
            # What is on disk can still be read, and what is not is in memory.
            assert await bucket.get(200) == (200, "disk", None)
            assert await bucket.get(4000) == (4000, TEXT, None)
            assert await bucket.get(50) is None
            assert bucket.budget.spilling_bytes == 0
            assert bucket.budget.memory_bytes == bucket.store.memory_bytes > 0
        await wait_until(lambda: not bucket.store.spill_failed and not bucket.store.is_spilling)
        assert bucket.budget.memory_bytes == bucket.store.memory_bytes
        expected = [(i, "disk" if i < 1000 else TEXT, None) for i in range(100, 5000)]
        assert sorted(await bucket.rows()) == expected
        await bucket.put([(1, "more", None)])
        await bucket.spill()
        assert not bucket.store.spill_failed
    async with opened(tmp_path / "a", entry) as bucket:
        assert sorted(await bucket.rows()) == [(1, "more", None), *expected]


async def test_writers_wait_while_the_disk_is_full_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the rows of the failed spill counted as being spilled for ever, and every write was refused."""
    monkeypatch.setattr(budget_module, "_RETRY_SECONDS_MIN", 0.02)
    monkeypatch.setattr(budget_module, "_RETRY_SECONDS_MAX", 0.05)
    monkeypatch.setattr(budget_module, "_WAIT_SECONDS_MAX", 0.3)
    entry = table()
    async with opened(tmp_path / "a", entry, memory_bytes=400_000) as bucket:
        bucket.budget._retry_seconds = 0.02
        with full_disk(0):
            # The limit also holds for the log, so rows come straight into the store.
            bucket.store.apply({bytes([7, i % 256, i // 256]): b"\0" * 200 for i in range(3000)}, 0, 0)
            with pytest.raises(StorageBackpressureError, match="try again later"):
                await bucket.budget.room()
        await wait_until(lambda: bucket.budget.memory_bytes == 0)
        await bucket.budget.room()


async def test_a_store_without_a_file_handle_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are fine: they are not rebuilt from the log."""
    entry = table()

    async with opened(tmp_path / "a", entry) as bucket:
        await bucket.put([(i, "disk", None) for i in range(100)])
        await bucket.spill()

    text = "IO error: While open a file for random read: kv-0/9.sst: Too many open files"
    monkeypatch.setattr(store_module, "open_view", raising(RuntimeError, text))
    async with opened(tmp_path / "a", entry) as bucket:
        with pytest.raises(KvStorageError, match="cannot be opened now"):
            await bucket.get(1)
        assert (tmp_path / "a" / "kv-0" / "CURRENT").exists()
        monkeypatch.undo()
        assert await bucket.get(1) == (1, "disk", None)
        assert bucket.store.applied_offset == 100
        generation = bucket.store.generation
        unread = mock.patch.object(ordered, "get_many", raising(RuntimeError, text))
        with unread, pytest.raises(KvStorageError, match="cannot be read now"):
            await bucket.get(1)
        assert await bucket.get(1) == (1, "disk", None)
        assert bucket.store.generation == generation


async def test_files_of_a_store_are_private(tmp_path: Path) -> None:
    async with opened(tmp_path, table(), writer=WriterProcess()) as bucket:
        for _ in range(2):
            await bucket.put([(i, "disk", None) for i in range(100)])
            await bucket.spill()
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "kv-0").iterdir()}
        assert modes
        assert {oct(mode) for mode in modes.values()} == {"0o600"}
        assert stat.S_IMODE((tmp_path / "kv-0").stat().st_mode) == 0o700
