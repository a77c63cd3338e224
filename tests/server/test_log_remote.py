# SPDX-License-Identifier: Apache-2.0
"""Old segments move to the remote log, and readers find them there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from tests.server.catalog.support import drop_table
from tests.server.log_support import (
    Client,
    FakeClock,
    connected,
    fetch_request,
    flip,
    ids_of,
    make_batch,
    running_server,
)
from tests.shared import raising
from tests.waiting import wait_until

import fluss
import fluss.aio
from fluss.errors import ErrorCode
from fluss.metadata import TableBucket
from fluss.protocol import fluss_pb2 as pb
from fluss.server import disk
from fluss.server.catalog import tables
from fluss.server.log.remote import MANIFEST_NAME, RemoteLog
from fluss.server.log.tablet import LogTablet
from fluss.server.remote_files import RemoteFiles
from fluss.server.server import Server


@asynccontextmanager
async def remote_server(folder: Path, clock: FakeClock | None = None) -> AsyncIterator[tuple[Server, Client]]:
    options = {"log_segment_file__size": "1kb", "log_index_interval__size": "0"}
    options["remote_data_dir"] = str(folder / "remote")
    async with running_server(folder / "data", clock, **options) as server, connected(server) as client:
        yield server, client


def read_remote(info: pb.PbRemoteLogFetchInfo) -> list[int]:
    """What a client does: download each segment and walk it from the position it was told."""
    ids: list[int] = []
    start = info.first_start_pos
    for segment in info.remote_log_segments:
        folder = Path(info.remote_log_tablet_dir) / segment.remote_log_segment_id
        data = (folder / f"{segment.remote_log_start_offset:020d}.log").read_bytes()
        assert len(data) == segment.segment_size_in_bytes
        ids += ids_of(data[start:])
        start = 0
    return ids


async def fill(client: Client, table: int, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await client.produce(table, make_batch(number * 3))


@asynccontextmanager
async def moved(
    folder: Path, count: int, clock: FakeClock | None = None, **properties: str
) -> AsyncIterator[tuple[Server, Client, int]]:
    """A server with a table of so many batches, of which all that may have moved to the remote log."""
    async with remote_server(folder, clock) as (server, client):
        table = await client.create_table(**properties)
        await fill(client, table, count)
        await server.tablets.move_to_remote()
        yield server, client, table


@asynccontextmanager
async def filled(folder: Path, count: int) -> AsyncIterator[tuple[Server, Client, int, LogTablet]]:
    """A server with a table of so many batches, and its only log."""
    async with remote_server(folder) as (server, client):
        table = await client.create_table()
        await fill(client, table, count)
        yield server, client, table, server.tablets.tablet(TableBucket(table, 0))


def remote_folder(folder: Path, table: int) -> Path:
    return folder / "remote" / "log" / "fluss" / f"t-{table}" / "0"


async def first_remote_ids(client: Client, table: int) -> list[int]:
    """The ids of the first rows, which are in the remote log."""
    return read_remote((await client.fetch(table, 0)).remote_log_fetch_info)[:3]


async def test_segments_move_and_are_found(tmp_path: Path) -> None:
    async with filled(tmp_path, 12) as (server, client, table, tablet):
        tablet = server.tablets.tablet(TableBucket(table, 0))
        assert len(tablet.segments) == 6
        await server.tablets.move_to_remote()
        assert len(tablet.segments) == 2
        assert tablet.start_offset == 24
        for offset in (-2, 0, 4, 11, 23):
            fetched = await client.fetch(table, offset, min_bytes=1, max_wait_ms=10_000)
            assert fetched.HasField("remote_log_fetch_info")
            assert not fetched.HasField("records")
            assert fetched.high_watermark == 36
            ids = read_remote(fetched.remote_log_fetch_info)
            first = max(offset, 0) // 3 * 3
            # The index holds no entry for the first batch of a segment, so reading may start one batch early.
            assert ids[0] in (first, first - 3)
            assert ids[-1] >= 23
        local = await client.fetch(table, 24)
        assert ids_of(local.records)[0] == 24
        assert not local.HasField("remote_log_fetch_info")
        assert (await client.offsets(table, 0)).offset == 0
        [manifest] = (await client.send(pb.ListRemoteLogManifestsRequest(table_id=table))).manifests
        assert os.path.isfile(manifest.remote_log_manifest_path)  # noqa: ASYNC240
        assert manifest.remote_log_end_offset == 30
    async with remote_server(tmp_path) as (server, client):
        assert await first_remote_ids(client, table) == [0, 1, 2]
        await fill(client, table, 4, 12)
        await server.tablets.move_to_remote()
        assert read_remote((await client.fetch(table, 0)).remote_log_fetch_info)[-1] >= 35


async def test_an_index_that_could_not_be_read_is_read_again(tmp_path: Path) -> None:
    async with moved(tmp_path, 12) as (_server, client, table):
        with mock.patch.object(RemoteFiles, "read", raising(OSError, "the store does not answer")):
            assert (await client.fetch(table, 5)).remote_log_fetch_info.first_start_pos == 0
        assert (await client.fetch(table, 5)).remote_log_fetch_info.first_start_pos > 0


async def test_remote_first_and_layout(tmp_path: Path) -> None:
    async with moved(tmp_path, 6) as (_server, client, table):
        request = fetch_request(table, 6, read_preference=1)
        [part] = (await client.send(request)).tables_resp[0].buckets_resp
        assert part.HasField("remote_log_fetch_info")
        folder = remote_folder(tmp_path, table)
        assert part.remote_log_fetch_info.remote_log_tablet_dir == str(folder)
        [segment] = [s for s in part.remote_log_fetch_info.remote_log_segments if s.remote_log_start_offset == 6]
        names = {path.name for path in (folder / segment.remote_log_segment_id).iterdir()}
        assert names == {f"{6:020d}.log", f"{6:020d}.index", f"{6:020d}.timeindex", f"{12:020d}.writer_snapshot"}
        assert len(list((folder / "metadata").iterdir())) == 1


async def test_offset_by_time_reaches_into_the_remote_log(tmp_path: Path, clock: FakeClock) -> None:
    async with remote_server(tmp_path, clock) as (server, client):
        table = await client.create_table()
        times = []
        for number in range(8):
            clock.time_ms += 10
            times.append(clock.time_ms)
            await client.produce(table, make_batch(number * 3))
        await server.tablets.move_to_remote()
        assert server.tablets.tablet(TableBucket(table, 0)).start_offset > 0
        assert [(await client.offsets(table, 2, at)).offset for at in times] == [n * 3 for n in range(8)]
        shutil.rmtree(tmp_path / "remote" / "log")
        lost = await client.offsets(table, 2, times[0])
        assert lost.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
        assert "No such file" in lost.error_message


async def test_expired_remote_segments_go(tmp_path: Path, clock: FakeClock) -> None:
    async with moved(tmp_path, 6, clock, table_log_ttl="1 h") as (server, client, table):
        clock.time_ms += 2 * 3_600_000
        await fill(client, table, 4, 6)
        await server.tablets.move_to_remote()
        await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == 18
        assert (await client.fetch(table, 3)).error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
        kept = server.tablets.tablet(TableBucket(table, 0)).remote
        check_copies(tmp_path, table, kept)
        counters = server.catalog.table_by_id(table).counters
        assert counters.remote_copy_bytes > sum(s.size_in_bytes for s in kept.segments) > 0
        assert counters.remote_copy > len(kept.segments)
        assert (counters.remote_copy_failed, counters.remote_delete, counters.remote_delete_failed) == (0, 1, 0)


def check_copies(folder: Path, table: int, log: RemoteLog) -> None:
    """Nothing but the segments of a log is in its remote folder."""
    assert {*disk.names(remote_folder(folder, table))} == {one.segment_id for one in log.segments} | {"metadata"}


async def test_undeleted_segments_go_later(tmp_path: Path, clock: FakeClock) -> None:
    """Also when it does not delete them in the first attempt after that."""
    async with moved(tmp_path, 6, clock, table_log_ttl="1 h") as (server, client, table):
        remote = server.tablets.tablet(TableBucket(table, 0)).remote
        with mock.patch.object(RemoteFiles, "remove_folder", return_value=False):
            for first in (6, 10):
                clock.time_ms += 2 * 3_600_000
                await fill(client, table, 4, first)
                await server.tablets.move_to_remote()
        await fill(client, table, 4, 14)
        await server.tablets.move_to_remote()
        check_copies(tmp_path, table, remote)


async def test_segments_that_are_not_copied_yet_do_not_expire(tmp_path: Path, clock: FakeClock) -> None:
    """They are the only copy, however old they are: a remote store may be out of reach for long."""
    async with moved(tmp_path, 6, clock, table_log_ttl="1 h") as (server, client, table):
        log = server.tablets.tablet(TableBucket(table, 0))
        copied_end = log.remote.copied_end
        await fill(client, table, 6, 6)
        assert log.segments[-1].base_offset > copied_end, "whole segments came since"
        clock.time_ms += 2 * 3_600_000
        await server.tablets.expire_segments()
        assert log.start_offset <= copied_end
        assert ids_of((await client.fetch(table, copied_end)).records)[0] == copied_end


async def test_drop_removes_the_remote_part(tmp_path: Path) -> None:
    async with moved(tmp_path, 6) as (_server, client, table):
        await client.send(drop_table())
    assert not remote_folder(tmp_path, table).parent.exists()


@pytest.mark.parametrize("drop", ["table", "partition", "database", "database, killed"])
async def test_what_a_store_keeps_is_deleted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drop: str) -> None:
    """A store may be out of reach for hours when a table is dropped, and the server may stop meanwhile."""
    path = fluss.TablePath("shop", "orders")

    def remote_files() -> list[Path]:
        return [file for file in (tmp_path / "remote").rglob("*") if file.is_file()]

    async with remote_server(tmp_path) as (server, _):
        config = fluss.Config({"bootstrap.servers": server.listeners["FLUSS"].address})
        async with await fluss.aio.FlussConnection.create(config) as connection:
            admin = connection.get_admin()
            await admin.create_database("shop")
            schema = fluss.Schema(pa.schema([("id", pa.int64()), ("dt", pa.string())]), primary_keys=["id", "dt"])
            keys = ["dt"] if drop == "partition" else []
            await admin.create_table(path, fluss.TableDescriptor(schema, partition_keys=keys, bucket_count=1))
            if keys:
                await admin.create_partition(path, {"dt": "d"})
            writer = (await connection.get_table(path)).new_upsert().create_writer()
            for number in range(40):
                writer.upsert((number, "d"))
                await writer.flush()
            await server.tablets.move_to_remote()
            await server.kv.snapshotter.run_round(1)
            assert {file.relative_to(tmp_path / "remote").parts[0] for file in remote_files()} == {"kv", "log"}
            monkeypatch.setattr(RemoteFiles, "remove_folder", lambda *_: False)
            if drop == "table":
                await admin.drop_table(path)
            elif drop == "partition":
                await admin.drop_partition(path, {"dt": "d"})
            else:
                if "killed" in drop:
                    monkeypatch.setattr(tables, "erase_database", raising(OSError, "killed"))
                    monkeypatch.setattr(server.catalog, "on_dropped", [])
                await admin.drop_database("shop", cascade=True)
        await server.kv.snapshotter.remove_what_is_left()
    assert remote_files()
    monkeypatch.undo()
    async with remote_server(tmp_path) as (server, _):
        await server.kv.snapshotter.remove_what_is_left()
    assert remote_files() == []
    async with remote_server(tmp_path) as (server, _):
        assert not server.catalog.removals.folders
        assert not server.catalog.damages


@pytest.mark.parametrize("step", ["put", "write", "write_manifest"])
async def test_drop_during_an_upload_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """The upload is held at one of its steps, the table dropped, and the upload continued."""
    held, go_on = threading.Event(), threading.Event()
    owner = RemoteLog if step == "write_manifest" else RemoteFiles
    real = getattr(owner, step)

    def hold(*args: Any) -> Any:
        held.set()
        assert go_on.wait(10)
        return real(*args)

    async with filled(tmp_path, 8) as (server, client, _table, _log):
        monkeypatch.setattr(owner, step, hold)
        moving = asyncio.ensure_future(server.tablets.move_to_remote())
        await wait_until(held.is_set)
        await client.send(drop_table())
        await asyncio.sleep(0.05)
        go_on.set()
        await moving
    assert [path for path in (tmp_path / "remote").rglob("*") if path.is_file()] == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("how", ["flip", "cut"])
async def test_damaged_local_manifest_is_found_again(tmp_path: Path, how: str) -> None:
    async with moved(tmp_path, 8) as (server, client, table):
        manifest = server.tablets.tablet(TableBucket(table, 0)).folder / "remote-log"
    if how == "flip":
        flip(manifest, 20)
    else:
        manifest.write_bytes(manifest.read_bytes()[:30])
    async with remote_server(tmp_path) as (server, client):
        assert await first_remote_ids(client, table) == [0, 1, 2]


@pytest.mark.parametrize("where", ["local", "remote"])
async def test_a_manifest_that_cannot_be_read_takes_no_copies_away(tmp_path: Path, where: str) -> None:
    """Its bucket is out of service until the next start. A log that took it for empty would sweep the copies."""
    async with moved(tmp_path, 6) as (server, client, table):
        log = server.tablets.tablet(TableBucket(table, 0))
        assert log.remote is not None
        assert log.start_offset > 0
        name = log.folder / MANIFEST_NAME
        if where == "remote":
            name.write_bytes(b"not a manifest")
            name = Path(log.remote.manifest_path or "")
    copies = sorted((tmp_path / "remote").rglob("*.log"))
    real = disk.open_file

    def open_file(path: disk.StrPath, flags: int) -> int:
        if Path(path) == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, flags)

    with mock.patch.object(disk, "open_file", open_file):
        async with remote_server(tmp_path) as (server, client):
            answer = await client.fetch(table, 0)
            assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
            assert "remote log" in answer.error_message
            await fill(client, table, 6, 6)
            await server.tablets.move_to_remote()
            await server.tablets.expire_segments()
            assert sorted((tmp_path / "remote").rglob("*.log")) == copies
    async with remote_server(tmp_path) as (server, client):
        assert await first_remote_ids(client, table) == [0, 1, 2]


async def test_damaged_segments_are_not_copied(tmp_path: Path) -> None:
    async with filled(tmp_path, 6) as (server, client, table, tablet):
        flip(tablet.segments[0].path, 200)
        await server.tablets.move_to_remote()
        assert tablet.remote.segments == ()
        assert tablet.start_offset == 0
        entry = server.catalog.table_by_id(table)
        assert entry.counters.remote_copy == entry.counters.remote_copy_failed > 0
        assert entry.counters.remote_copy_bytes == 0
        answer = await client.fetch(table, 0)
        assert answer.error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("step", ["put", "write", "write_manifest"])
async def test_uploads_that_fail_leave_no_copies(tmp_path: Path, step: str) -> None:
    """A store that is full or out of reach for days is tried again every minute."""
    owner = RemoteLog if step == "write_manifest" else RemoteFiles
    real, calls = getattr(owner, step), 0

    def fail(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if step == "write_manifest" or calls % 3 == 2:
            raise OSError("the store is full")
        return real(*args)

    async with filled(tmp_path, 8) as (server, _client, table, log):
        folder = remote_folder(tmp_path, table)
        with mock.patch.object(owner, step, fail):
            for _ in range(6):
                await server.tablets.move_to_remote()
                copies = [name for name in disk.names(folder) if name != "metadata"]
                assert len(copies) <= 3
        await server.tablets.move_to_remote()
        assert len(log.remote.segments) == 3
        check_copies(tmp_path, table, log.remote)
        assert len(disk.names(folder / "metadata")) == 1


@pytest.mark.parametrize("segments", [0, 3])
async def test_a_manifest_that_was_not_confirmed_does_not_count(tmp_path: Path, segments: int) -> None:
    """Its copies are removed, so a restart must not find it: local segments would be deleted on its word."""
    real = disk.sync_folder
    async with filled(tmp_path, 2 * segments + 2) as (server, client, table, log):
        await server.tablets.move_to_remote()
        await fill(client, table, 6, 2 * segments + 2)
        assert len(log.remote.segments) == segments

        def fail(path: Any) -> None:
            if Path(path) == log.folder:
                raise OSError("not confirmed")
            real(path)

        with mock.patch.object(disk, "sync_folder", fail):
            await server.tablets.move_to_remote()
        # The process ends in an upload, as far as files go.
        with mock.patch.object(RemoteFiles, "put", raising(ZeroDivisionError)):
            with contextlib.suppress(ZeroDivisionError):
                await server.tablets.move_to_remote()
            store, manifest = RemoteFiles(str(tmp_path / "remote")), log.remote.without(segments)
            found = RemoteLog(store, log.remote.folder, log.folder, manifest)
            found.load()
            assert found.segments == log.remote.segments
            assert {segment.segment_id for segment in found.segments} <= {*disk.names(Path(found.folder))}
        await server.tablets.move_to_remote()
        assert await first_remote_ids(client, table) == [0, 1, 2]


async def test_leftover_copies_are_swept(tmp_path: Path) -> None:
    async with filled(tmp_path, 6) as (server, client, table, _log):
        folder = remote_folder(tmp_path, table)
        (folder / "half-copied").mkdir(parents=True)
        (folder / "metadata").mkdir()
        (folder / "metadata" / "old.manifest").write_text("{}")
        await server.tablets.move_to_remote()
        assert not (folder / "half-copied").exists()
        assert not (folder / "metadata" / "old.manifest").exists()
        assert await first_remote_ids(client, table) == [0, 1, 2]


@pytest.mark.parametrize(("root_mode", "file_mode", "folder_mode"), [(0o755, 0o644, 0o755), (0o700, 0o600, 0o700)])
def test_files_have_the_mode_of_the_root(tmp_path: Path, root_mode: int, file_mode: int, folder_mode: int) -> None:
    root = tmp_path / "remote"
    root.mkdir(mode=root_mode)
    files = RemoteFiles(str(root))
    (tmp_path / "local").write_bytes(b"rows")
    files.make_folder(f"{root}/log/db/t-1/0")
    files.put(tmp_path / "local", f"{root}/log/db/t-1/0/rows")
    files.write(f"{root}/log/db/t-1/0/manifest", b"{}")
    modes = {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()}
    assert modes == {file_mode}
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_dir()} == {folder_mode}


@pytest.mark.parametrize("path", ["/etc/passwd", "{root}/../other", "{root}", "{root}-other/file"])
def test_paths_of_requests_are_below_the_root(tmp_path: Path, path: str) -> None:
    files = RemoteFiles(str(tmp_path / "remote"))
    files.check_below(f"{files.root}/lake/a.offsets")
    with pytest.raises(fluss.InvalidArgumentError, match="not below the remote data directory"):
        files.check_below(path.format(root=files.root))
