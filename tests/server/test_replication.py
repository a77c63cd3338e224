# SPDX-License-Identifier: Apache-2.0
"""Continuous backup: what a restore brings back, who may write a backup, and what damage leaves."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from tests.server.log_support import connected, running_server
from tests.server.test_handlers_kv import Table
from tests.server.test_unreadable_files import unreadable
from tests.shared import raising
from tests.waiting import wait_for

import fluss
from fluss.cli import main
from fluss.errors import ConfigError, FlussError, LogStorageError
from fluss.metadata import TableBucket
from fluss.server import disk
from fluss.server.command import build_config, restore_if_empty
from fluss.server.local import LocalServer
from fluss.server.log.files import DamagedLogError
from fluss.server.replication.layout import Backup, BackupState, DamagedBackupError, Extent, Manifest, time_of
from fluss.server.replication.replicator import kept_manifests
from fluss.server.replication.restoring import restore, verify
from fluss.server.server import Server
from fluss.tools.status import server_status

# Small segments and quick snapshots: a backup has parts of several files, and logs that begin after 0.
OPTIONS = {
    "replication.interval": "100 ms",
    "log.segment.file-size": "2kb",
    "kv.snapshot.interval": "200 ms",
    "remote.log.task-interval-duration": "0 s",
}


def serve(folder: Path, backup: Path | None, **options: object) -> LocalServer:
    given = {**OPTIONS, **{name.replace("_", "."): value for name, value in options.items()}}
    if backup is not None:
        given["replication.url"] = str(backup)
    return LocalServer(folder, options=given)


def caught_up(server: LocalServer) -> None:
    """Wait for a round that began after now."""
    now_ms = time.time_ns() // 1_000_000
    wait_for(lambda: BackupState.load(server.data_dir).uploaded_ms > now_ms)


def lose(server: LocalServer) -> None:
    """The machine disappears with its disk."""
    server.crash()
    shutil.rmtree(server.data_dir)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def test_no_other_user_reads_a_backup(tmp_path: Path, backup: Path) -> None:
    """A backup has all rows, and may lie in a folder that other users read."""
    backup.mkdir(mode=0o755)
    with serve(tmp_path / "data", backup) as server, fluss.connect(server.bootstrap_servers) as db:
        create(db)
        fill(db, 3)
        caught_up(server)
    modes = {path.relative_to(backup).parts[0]: path.stat().st_mode & 0o777 for path in backup.glob("*/*")}
    assert modes == {"objects": 0o600, "manifests": 0o600, "owners": 0o600}
    restore(str(backup), tmp_path / "restored")
    assert not [path for path in (tmp_path / "restored").rglob("*") if path.stat().st_mode & 0o077]


def fill(db: fluss.Database, rounds: int, start: int = 0) -> None:
    log, keyed = db.table("log"), db.table("keyed")
    for number in range(start, start + rounds):
        log.append([(number, "x" * 200)])
        keyed.upsert([(number % 7, number), (100 + number, number)])


def create(db: fluss.Database) -> None:
    db.create_table("log", "id bigint, text string")
    db.create_table("keyed", "id bigint, n bigint", primary_key="id", buckets=2)


def rows(db: fluss.Database, table: str) -> list[tuple[Any, ...]]:
    found = db.table(table).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def expected_keyed(count: int) -> list[tuple[int, int]]:
    state = {}
    for number in range(count):
        state[number % 7] = number
        state[100 + number] = number
    return sorted(state.items())


@pytest.fixture(scope="module")
def lost_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lost")
    server = serve(folder / "data", folder / "backup")
    with server, fluss.connect(server.bootstrap_servers) as db:
        create(db)
        fill(db, 40)
        caught_up(server)
        lose(server)
    return folder / "backup"


@pytest.fixture
def lost(lost_once: Path, backup: Path) -> Path:
    """The backup of a server with 40 rounds of rows that was lost."""
    shutil.copytree(lost_once, backup)
    return backup


def test_everything_comes_back_and_the_backup_goes_on(tmp_path: Path, lost: Path) -> None:
    new = tmp_path / "new"
    found = restore(str(lost), new)
    assert not found.damages
    with serve(new, lost) as server, fluss.connect(server.bootstrap_servers) as db:
        assert [row[0] for row in rows(db, "log")] == list(range(40))
        assert rows(db, "keyed") == expected_keyed(40)
        fill(db, 10, start=40)
        caught_up(server)
        lose(server)
    restore(str(lost), tmp_path / "newer")
    assert not verify(str(lost)).damages
    with serve(tmp_path / "newer", None) as server, fluss.connect(server.bootstrap_servers) as db:
        assert [row[0] for row in rows(db, "log")] == list(range(50))
        assert rows(db, "keyed") == expected_keyed(50)


def test_the_state_comes_from_snapshots_when_the_changelog_has_expired(tmp_path: Path, backup: Path) -> None:
    server = serve(tmp_path / "data", backup, **{"log.retention.check-interval": "100 ms"})
    with server, fluss.connect(server.bootstrap_servers) as db:
        db.create_table("keyed", "id bigint, n bigint", primary_key="id", properties={"table.log.ttl": "1 s"})
        db.create_table("log", "id bigint, text string")
        fill(db, 40)
        folder = server.data_dir / "tables"
        wait_for(lambda: fill(db, 1, 40) or not list(folder.glob("*/keyed-*/log-0/00000000000000000000.log")))
        db.table("keyed").upsert([(7, -1)])
        before = rows(db, "keyed")
        caught_up(server)
        lose(server)
    restore(str(backup), tmp_path / "new")
    assert not list((tmp_path / "new").glob("tables/*/keyed-*/log-0/00000000000000000000.log"))
    with serve(tmp_path / "new", None) as server, fluss.connect(server.bootstrap_servers) as db:
        assert rows(db, "keyed") == before


def test_the_commands(tmp_path: Path, lost: Path) -> None:
    def call(*args: str) -> Any:
        return CliRunner().invoke(main, list(args))

    assert "acknowledged before" in call("backup", "verify", str(lost)).output
    assert call("restore", str(lost)).exit_code == 2
    restored = call("restore", lost.as_uri(), str(tmp_path / "new"), "--json")
    assert restored.exit_code == 0, restored.output
    assert json.loads(restored.output)["damages"] == []
    assert "begins at" in call("restore", str(lost), str(tmp_path / "old"), "--at", "2000-01-01").output
    for extent in (lost / "objects").iterdir():
        extent.unlink()
    assert call("backup", "verify", str(lost)).exit_code == 1


def test_a_backup_is_as_new_as_the_last_look_of_its_server(lost: Path) -> None:
    """A server that is idle uploads nothing, and misses nothing."""
    backup, url = Backup(str(lost)), str(lost)
    (owner,) = backup.owners()
    looked_ms = verify(url).time_ms + 600_000
    backup.write_owner(owner, backup.newest_of(owner), looked_ms)
    found = verify(url, at_ms=looked_ms + 5_000)
    assert (found.time_ms, found.seconds_since) == (looked_ms, 5)
    found = verify(url, at_ms=looked_ms - 1_000)
    assert (found.time_ms, found.seconds_since) == (looked_ms - 1_000, 0)


def test_a_server_starts_from_a_backup(tmp_path: Path, lost: Path) -> None:
    config = build_config(str(tmp_path / "new"), None, 0, None, (), replicate=str(lost), replicate_interval="1 s")
    restore_if_empty(config, str(lost))
    restore_if_empty(config, str(lost))  # a start on its data does nothing
    with serve(tmp_path / "new", lost) as server, fluss.connect(server.bootstrap_servers) as db:
        assert rows(db, "keyed") == expected_keyed(40)
        caught_up(server)
        found = server_status(db)
        assert found.backup_behind_seconds is not None
        assert found.backup_behind_bytes == 0


def test_a_clean_stop_leaves_nothing_behind(tmp_path: Path, backup: Path) -> None:
    with serve(tmp_path / "data", backup, **{"replication.interval": "1 h"}) as server:
        with fluss.connect(server.bootstrap_servers) as db:
            create(db)
            fill(db, 5)
        server.stop()
    restore(str(backup), tmp_path / "new")
    with serve(tmp_path / "new", None) as server, fluss.connect(server.bootstrap_servers) as db:
        assert len(rows(db, "log")) == 5


def test_the_state_at_a_time(tmp_path: Path, backup: Path) -> None:
    with serve(tmp_path / "data", backup) as server, fluss.connect(server.bootstrap_servers) as db:
        create(db)
        fill(db, 5)
        caught_up(server)
        at_ms = time.time_ns() // 1_000_000
        wait_for(lambda: BackupState.load(server.data_dir).uploaded_ms > at_ms)
        fill(db, 5, start=5)
        db.drop_table("log")
        caught_up(server)
    with pytest.raises(ConfigError, match="begins at"):
        restore(str(backup), tmp_path / "none", at_ms=1000)
    restore(str(backup), tmp_path / "then", at_ms=at_ms)
    with serve(tmp_path / "then", backup) as server, fluss.connect(server.bootstrap_servers) as db:
        assert len(rows(db, "log")) == 5
        assert rows(db, "keyed") == expected_keyed(5)
        fill(db, 1, start=5)
        caught_up(server)
    restore(str(backup), tmp_path / "newest")
    with serve(tmp_path / "newest", None) as server, fluss.connect(server.bootstrap_servers) as db:
        assert len(rows(db, "log")) == 6, "the history that was gone back to goes on"


def test_two_servers_never_write_one_backup(tmp_path: Path, backup: Path) -> None:
    with serve(tmp_path / "data", backup) as first:
        with fluss.connect(first.bootstrap_servers) as db:
            create(db)
            fill(db, 5)
        caught_up(first)
        restore(str(backup), tmp_path / "second")
        restore(str(backup), tmp_path / "third")
        with serve(tmp_path / "second", backup) as second:
            with fluss.connect(first.bootstrap_servers) as db:
                fill(db, 1, start=5)
                wait_for(lambda: BackupState.load(first.data_dir).error)
                assert "another server" in (BackupState.load(first.data_dir).error or "")
                fill(db, 1, start=6)  # the first goes on without a backup
            caught_up(second)
            with pytest.raises(FlussError, match="another server"):
                serve(tmp_path / "third", backup).start()
            with pytest.raises(FlussError, match="another server"):
                serve(tmp_path / "unrelated", backup).start()
    assert len({name[:21] for name in Backup(str(backup)).owners()}) == 1


def test_a_restart_goes_on_without_uploading_everything_again(tmp_path: Path, backup: Path) -> None:
    server = serve(tmp_path / "data", backup)
    with server, fluss.connect(server.bootstrap_servers) as db:
        create(db)
        fill(db, 20)
        caught_up(server)
        server.crash()
    before = set(Backup(str(backup)).object_names())
    with server:
        caught_up(server)
    own = Backup(str(backup))
    manifest = own.read_manifest(own.manifest_names()[-1])
    logs = [extents for path, extents in manifest.files.items() if path.endswith(".log")]
    assert {extent.object_name for extents in logs for extent in extents} <= before


def test_a_store_that_is_down_stops_nothing(tmp_path: Path, backup: Path) -> None:
    with serve(tmp_path / "data", backup) as server, fluss.connect(server.bootstrap_servers) as db:
        create(db)
        caught_up(server)
        moved = backup.rename(tmp_path / "unplugged")
        backup.write_text("no folder")
        fill(db, 20)
        wait_for(lambda: BackupState.load(server.data_dir).error)
        backup.unlink()
        moved.rename(backup)
        caught_up(server)
        assert BackupState.load(server.data_dir).error is None
        lose(server)
    restore(str(backup), tmp_path / "new")
    with serve(tmp_path / "new", None) as server, fluss.connect(server.bootstrap_servers) as db:
        assert len(rows(db, "log")) == 20


@contextlib.asynccontextmanager
async def two_tables(tmp_path: Path, backup: Path) -> AsyncIterator[tuple[Server, Table, Table]]:
    """Two tables with rows, a snapshot and a backup of them, whose rounds are those of the test."""
    options = {"replication_url": str(backup), "replication_interval": "1 h", "kv_snapshot_interval": "1 h"}
    async with running_server(tmp_path / "data", **options) as server, connected(server) as client:
        one, other = [await Table.create(client, server, name=name) for name in ("one", "other")]
        await back_up(server, one, other)
        yield server, one, other


async def back_up(server: Server, *tables: Table) -> dict[str, Any]:
    """Write a row to each table, take snapshots, and upload; returns the files that the newest manifest has."""
    for table in tables:
        await table.put([(time.monotonic_ns(), "x", None)])
    await server.kv.snapshotter.run_round(1)
    await server.replicator.run_round()
    own = Backup(server.config.text("replication.url"))
    return own.read_manifest(own.manifest_names()[-1]).files


def error_of(server: Server) -> str | None:
    return BackupState.load(server.catalog.data_dir).error


async def test_a_file_that_cannot_be_read_stops_the_backup_of_its_bucket_only(tmp_path: Path, backup: Path) -> None:
    async with two_tables(tmp_path, backup) as (server, one, other):
        before = await back_up(server)
        with unreadable("/one-0/log-0/", sum(extent.size_bytes for extent in log_of(before, "one"))):
            after = await back_up(server, one, other)
            assert "/one-0/log-0/" in str(error_of(server))
        of_one = [path for path in before if "/one-0/" in path]
        assert len(of_one) > 2
        assert [after[path] for path in of_one] == [before[path] for path in of_one]
        assert len([path for path in after if "/one-0/" in path]) == len(of_one)
        assert log_of(after, "other") > log_of(before, "other")
        last = await back_up(server)
        assert error_of(server) is None
        assert log_of(last, "one") > log_of(before, "one")


async def test_a_file_that_is_gone_stops_the_backup_of_its_bucket_only(tmp_path: Path, backup: Path) -> None:
    async with two_tables(tmp_path, backup) as (server, one, other):
        before = await back_up(server)
        for table in (one, other):
            await table.put([(time.monotonic_ns(), "x", None)])
        await server.kv.snapshotter.run_round(1)
        for path in (tmp_path / "data" / "remote").rglob("one-0/0/shared/*"):
            path.unlink()
        after = await back_up(server)
        assert "/one-0/" in str(error_of(server))
        assert {path for path in before if "/one-0/" in path} <= set(after), "the snapshot before it stays"
        assert log_of(after, "other") > log_of(before, "other")


@pytest.mark.parametrize("kind", [LogStorageError, DamagedLogError])
async def test_a_round_without_a_failed_log_is_partial(tmp_path: Path, backup: Path, kind: type[FlussError]) -> None:
    async with two_tables(tmp_path, backup) as (server, one, other):
        complete_ms = server.replicator.caught_up_ms
        log = server.tablets.tablet(TableBucket(one.info.table_id, 0))
        where = "failure" if kind is LogStorageError else "damage"
        await one.put([(time.monotonic_ns(), "x", None)])
        setattr(log, where, kind("said so"))
        before = await back_up(server)
        after = await back_up(server, other)
        assert "said so" in str(error_of(server))
        assert server.replicator.caught_up_ms == complete_ms
        assert log_of(after, "one") == log_of(before, "one")
        assert log_of(after, "other") > log_of(before, "other")
        setattr(log, where, None)
        after = await back_up(server)
        assert error_of(server) is None
        assert server.replicator.caught_up_ms > complete_ms
        assert log_of(after, "one") > log_of(before, "one")


async def test_damage_does_not_hide_a_new_owner(tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_tables(tmp_path, backup) as (server, one, _):
        await back_up(server)
        log = server.tablets.tablet(TableBucket(one.info.table_id, 0))
        log.damage = DamagedLogError("said so")
        monkeypatch.setattr("fluss.server.replication.replicator._LOOK_MS", 0)
        await back_up(server)
        assert "said so" in str(error_of(server))
        Backup(str(backup)).write_owner("9" * 20, None, 0)
        await back_up(server)
        assert "another server" in str(error_of(server))
        log.damage = None


async def test_one_bad_document_stops_one_backup(tmp_path: Path, backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_tables(tmp_path, backup) as (server, _, other):
        before = await back_up(server)
        await server.catalog.lake.commit_inline(0, 1, {(None, 0): 1}, {})
        read = disk.read_file

        def fail(path: disk.StrPath) -> bytes:
            if str(path).endswith("lake.doc"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(path)

        monkeypatch.setattr(disk, "read_file", fail)
        after = await back_up(server, other)
        assert "lake.doc" in str(error_of(server))
        assert log_of(after, "other") > log_of(before, "other")


async def test_the_lake_of_a_backup_does_not_lie_ahead_of_its_logs(tmp_path: Path, backup: Path) -> None:
    """Rows that are written and tiered while the logs are looked at."""
    async with two_tables(tmp_path, backup) as (server, one, other):
        commit, loaded = server.catalog.lake.commit_inline, server.kv.snapshotter.loaded
        await commit(0, 1, {(None, 0): 1}, {})

        async def tier(entry: Any, bucket: TableBucket) -> Any:
            if bucket.table_id == other.info.table_id:
                await one.put([(time.monotonic_ns(), "x", None)])
                await commit(0, 2, {(None, 0): 2}, {})
            return await loaded(entry, bucket)

        with mock.patch.object(server.kv.snapshotter, "loaded", tier):
            await server.replicator.run_round()
        assert server.catalog.lake_end_offset(TableBucket(0, 0)) == 2
    own = Backup(str(backup))
    manifests = [own.read_manifest(name).files for name in own.manifest_names()]
    first = next(files for files in manifests if "catalog/tables/0/lake.doc" in files)
    (extent,) = first["catalog/tables/0/lake.doc"]
    assert b'"end_offsets":[[null,0,1]]' in own.read_extent(extent).tobytes()


async def test_objects_of_rounds_without_a_manifest_expire(tmp_path: Path, backup: Path) -> None:
    async with two_tables(tmp_path, backup) as (server, one, other):
        own = Backup(str(backup))
        with mock.patch.object(Backup, "write_manifest", raising(ZeroDivisionError)):
            for _ in range(20):  # so many extents are merged
                await back_up(server, one, other)
        await back_up(server, one)
        newest = own.read_manifest(own.manifest_names()[-1])
        assert newest.objects | set(newest.dropped) == set(own.object_names())


def log_of(files: dict[str, Any], table: str) -> tuple[Extent, ...]:
    (found,) = (extents for path, extents in files.items() if f"/{table}-" in path and path.endswith(".log"))
    return tuple(found)


async def test_a_round_that_fails_takes_nothing_away(tmp_path: Path, backup: Path) -> None:
    """Its uploads are left to the next round, in which the bucket may be out of service."""
    fail = raising(OSError, "the store is down")
    async with two_tables(tmp_path, backup) as (server, one, other):
        before = await back_up(server)
        with mock.patch.object(server.replicator._backup.files, "put_chunks", fail):  # type: ignore[union-attr]
            await back_up(server, one)
            assert error_of(server) == "the store is down"
        log = server.tablets.tablet(TableBucket(one.info.table_id, 0))
        log.put_out_of_service(DamagedLogError("said so"))
        after = await back_up(server, other)
        assert "said so" in str(error_of(server))
        assert {path for path in after if "/one-0/" in path} == {path for path in before if "/one-0/" in path}
        assert all(after[path] == before[path] for path in after if "/one-0/" in path)


def test_damage_is_named_and_the_rest_restored(tmp_path: Path, lost: Path) -> None:
    own = Backup(str(lost))
    newest = own.manifest_names()[-1]
    manifest = own.read_manifest(newest)
    log = sorted(path for path in manifest.files if "/log-0/" in path and path.split("/")[2].startswith("log-"))
    assert len(log) > 2
    extent = manifest.files[log[1]][-1]
    with open(lost / "objects" / extent.object_name, "r+b") as file:
        file.seek(extent.position + extent.size_bytes // 2)
        file.write(b"\xff\x00\xff")
    assert any(log[1] in damage for damage in verify(str(lost)).damages)
    found = restore(str(lost), tmp_path / "new")
    assert any(log[1] in damage and "restored up to byte" in damage for damage in found.damages)
    assert any(log[2] in damage for damage in found.damages)
    with serve(tmp_path / "new", None) as server, fluss.connect(server.bootstrap_servers) as db:
        kept = [row[0] for row in rows(db, "log")]
        assert kept == list(range(len(kept)))
        assert 0 < len(kept) < 40
        assert rows(db, "keyed") == expected_keyed(40)
    (lost / "manifests" / newest).write_bytes(b"nonsense")
    found = restore(str(lost), tmp_path / "older")
    assert newest in found.damages[0]
    assert found.manifest < newest


def test_a_restore_never_overwrites_data(tmp_path: Path, lost: Path) -> None:
    new = tmp_path / "new"
    restore(str(lost), new)
    with pytest.raises(ConfigError, match="has data already"):
        restore(str(lost), new)
    (new / ".restoring").touch()  # as a restore that was killed leaves it
    with pytest.raises(FlussError, match="interrupted"):
        serve(new, None).start()
    restore(str(lost), new)
    with serve(new, None) as server, fluss.connect(server.bootstrap_servers) as db:
        assert rows(db, "keyed") == expected_keyed(40)


def test_old_states_expire_with_their_objects(tmp_path: Path, backup: Path) -> None:
    options = {"replication.retention": "300 ms"}
    with serve(tmp_path / "data", backup, **options) as server, fluss.connect(server.bootstrap_servers) as db:
        create(db)
        fill(db, 5)
        caught_up(server)
        db.drop_table("log")
        caught_up(server)
        own, seen = Backup(str(backup)), set[str]()

        def an_object_is_gone() -> bool:
            fill_keyed(db)
            seen.update(own.object_names())
            return seen != set(own.object_names())

        wait_for(an_object_is_gone)
        wait_for(lambda: fill_keyed(db) or len(own.manifest_names()) < 20)
    assert not verify(str(backup)).damages


def fill_keyed(db: fluss.Database) -> None:
    db.table("keyed").upsert([(1, time.time_ns())])


@pytest.mark.parametrize("path", ["../x", "/x", "remote/../../x"])
def test_a_manifest_names_no_files_outside_of_the_folder(path: str) -> None:
    with pytest.raises(DamagedBackupError, match="outside"):
        Manifest.parse(Manifest(1, {path: ()}).to_bytes())


def test_manifests_are_thinned_out_with_age() -> None:
    day_ms = 24 * 3600 * 1000
    now_ms = 10 * day_ms
    names = [f"00000001-abc-{number:08d}-{now_ms - number * 5_000}" for number in range(2 * 17_280)]
    kept = kept_manifests(names, now_ms, day_ms + 3_600_000)
    ages = sorted(now_ms - time_of(name) for name in kept)
    assert len([age for age in ages if age < 3_600_000]) == 720
    assert len([age for age in ages if 3_600_000 <= age < day_ms]) in (23 * 60, 23 * 60 + 1)
    assert max(ages) <= day_ms + 3_600_000 or max(names) in kept
