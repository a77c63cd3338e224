# SPDX-License-Identifier: Apache-2.0
"""What is acknowledged has durable names: a power cut takes names of files and folders that were not flushed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.server.kv.test_snapshots import a_table, lose_state, rows, snapshots_of, take
from tests.server.log_support import LogHarness, connected, make_batch, running_server
from tests.shared import raising

from fluss.errors import ConfigError
from fluss.metadata import TableBucket
from fluss.server import disk
from fluss.server.datadir import DataDir
from fluss.server.kv import snapshots as snapshots_module
from fluss.server.kv.snapshots import METADATA_NAME
from fluss.server.kv.store import StoreMeta


class Names:
    """The names below a folder that a power cut could take, because the folder they are in was not flushed since."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._new: set[Path] = set()
        self.before_rename: Callable[[Path], None] = lambda target: None

    @contextlib.contextmanager
    def watched(self) -> Iterator[Names]:
        real: dict[str, Any] = {
            name: getattr(disk, name) for name in ("open_file", "make_folder", "rename", "link", "sync")
        }

        def open_file(path: disk.StrPath, flags: int) -> int:
            new = flags & disk.CREATE and not os.path.exists(path)
            fd: int = real["open_file"](path, flags)
            if new:
                self._new.add(Path(path))
            return fd

        def make_folder(path: disk.StrPath) -> None:
            real["make_folder"](path)
            self._new.add(Path(path))

        def rename(source: disk.StrPath, target: disk.StrPath) -> None:
            self.before_rename(Path(target))
            real["rename"](source, target)
            self._new.discard(Path(source))
            self._new.add(Path(target))

        def link(source: disk.StrPath, target: disk.StrPath) -> None:
            real["link"](source, target)
            self._new.add(Path(target))

        def sync(fd: int) -> None:
            real["sync"](fd)
            folder = Path(os.readlink(f"/proc/self/fd/{fd}"))
            for path in [path for path in tuple(self._new) if path.parent == folder]:
                self._new.discard(path)

        ours = {"open_file": open_file, "make_folder": make_folder, "rename": rename, "link": link, "sync": sync}
        for name, function in ours.items():
            setattr(disk, name, function)
        try:
            yield self
        finally:
            for name, function in real.items():
                setattr(disk, name, function)

    def unsafe(self, path: Path) -> list[Path]:
        """The names on the way to a file that could be lost."""
        assert path.is_relative_to(self._root)
        assert path.exists()
        return [name for name in (path, *path.parents) if name in self._new]


async def test_every_name_on_the_way_to_an_acknowledged_row_is_durable(tmp_path: Path) -> None:
    """In the first bucket of a table and in its others, in a new segment, and in a second table."""
    names = Names(tmp_path)
    with names.watched():
        async with (
            running_server(tmp_path / "data", log_segment_file__size="1b") as server,
            connected(server) as client,
        ):
            for name in ("first", "second"):
                table = await client.create_table(name, buckets=3)
                for bucket in (0, 2, 1, 0, 2):
                    await client.produce(table, make_batch(0), bucket=bucket)
                    log = server.tablets.tablet(TableBucket(table, bucket))
                    for segment in log.segments:
                        assert names.unsafe(segment.path) == []
                    for entry in (tmp_path / "data" / "catalog" / "tables" / str(table)).iterdir():
                        assert names.unsafe(entry) == []


async def test_a_snapshot_is_complete_only_when_all_of_its_files_are_durable(tmp_path: Path) -> None:
    names, declared = Names(tmp_path), list[Path]()

    def check(target: Path) -> None:
        if target.name == METADATA_NAME:
            declared.append(target)
            shared = target.parent.parent / "shared"
            for path in (*target.parent.iterdir(), *shared.iterdir()):
                if not path.name.endswith(".tmp"):
                    assert names.unsafe(path) == []

    names.before_rename = check
    with names.watched():
        async with a_table(tmp_path / "data", buckets=1) as (server, table):
            for text in ("a", "b", "c"):
                await table.put(rows(50, text))
                await take(server)
                newest = snapshots_of(server).newest
                for file in newest.files:
                    assert names.unsafe(Path(file.path)) == []
                assert names.unsafe(Path(newest.location) / METADATA_NAME) == []
    assert len(declared) == 3


async def test_every_name_of_a_remote_segment_is_durable_before_the_local_one_goes(tmp_path: Path) -> None:
    names = Names(tmp_path)
    options = {"remote_data_dir": str(tmp_path / "remote"), "log_segment_file__size": "1kb"}
    with names.watched():
        async with running_server(tmp_path / "data", **options) as server, connected(server) as client:
            table = await client.create_table()
            for number in range(8):
                await client.produce(table, make_batch(number * 3))
            await server.tablets.move_to_remote()
            log = server.tablets.tablet(TableBucket(table, 0))
            assert log.remote is not None
            assert log.start_offset > 0
            assert log.remote.segments
            for segment in log.remote.segments:
                for path in (Path(log.remote.folder) / segment.segment_id).iterdir():
                    assert names.unsafe(path) == []
            assert names.unsafe(Path(log.remote.manifest_path or "")) == []
            assert names.unsafe(log.folder / "remote-log") == []
            assert names.unsafe(log.folder / "recovery-point") == []


def test_names_that_a_crash_left_unflushed_are_durable_after_recovery(tmp_path: Path) -> None:
    """With rows or without: the rows count as acknowledged, and the next ones are flushed without the names."""
    for rows_written in (True, False):
        names, folder = Names(tmp_path), tmp_path / str(rows_written) / "table" / "log-0"
        with names.watched():
            killed = LogHarness(folder)
            killed.append(make_batch(0))
            path = killed.log.segments[0].path
            if not rows_written:
                os.truncate(path, 0)
            assert names.unsafe(path)
            assert LogHarness(folder).log.end_offset == (3 if rows_written else 0)
            assert names.unsafe(path) == []


def test_folders_that_a_killed_server_made_are_durable_with_the_first_row(tmp_path: Path) -> None:
    """It was killed after it had made them for a bucket of the same table, before anything was flushed."""
    names, table = Names(tmp_path), tmp_path / "shop" / "orders-1"
    with names.watched():
        disk.make_folders(table)
        harness = LogHarness(table / "log-0")
        harness.write(make_batch(0))
        assert names.unsafe(harness.log.segments[0].path) == []


def test_names_of_the_catalog_that_a_crash_left_unflushed_are_durable_after_the_start(tmp_path: Path) -> None:
    """The table counts as created, and rows are acknowledged that a power cut would take with it."""
    names, folder = Names(tmp_path), tmp_path / "catalog" / "tables" / "7"
    with names.watched():
        disk.make_folders(folder / "partitions")
        disk.write_file(folder / "schema", b"x")
        assert names.unsafe(folder / "schema")
        DataDir(tmp_path).abandon()
        assert names.unsafe(folder / "schema") == names.unsafe(folder / "partitions") == []


def test_the_name_of_the_folder_above_is_flushed_by_the_next_start(tmp_path: Path) -> None:
    """It was made by a start that failed: a power cut would take the whole data folder with it."""
    names, folder = Names(tmp_path), tmp_path / "new" / "data"
    with names.watched():
        broken = mock.patch.object(disk, "sync_folder", raising(OSError, 5, "Input/output error"))
        with broken, pytest.raises(ConfigError, match="Input/output error"):
            DataDir(folder)
        disk.make_folders(folder.parent)
        assert names.unsafe(folder.parent)
        DataDir(folder).abandon()
        assert names.unsafe(folder) == []


async def test_a_restored_state_is_durable_before_its_head_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB takes a manifest that lost its end for an earlier state, and the head would not know."""
    monkeypatch.setattr(snapshots_module, "MEMORY_BYTES_MAX", 0)
    synced, sync, write = set[str](), disk.sync, StoreMeta.write
    unflushed: list[set[str]] = []

    def noted(fd: int) -> None:
        sync(fd)
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))

    def checked(meta: StoreMeta, folder: Path) -> None:
        unflushed.append({str(folder / name) for name in disk.names(folder)} - synced)
        write(meta, folder)

    async with a_table(tmp_path / "data") as (server, table):
        await table.put(rows(50))
        await take(server)
    lose_state(tmp_path / "data")
    async with a_table(tmp_path / "data") as (_, table):
        monkeypatch.setattr(disk, "sync", noted)
        monkeypatch.setattr(StoreMeta, "write", checked)
        assert await table.lookup(*range(50)) == rows(50)
        assert unflushed == [set()]
