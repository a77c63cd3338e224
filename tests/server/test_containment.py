# SPDX-License-Identifier: Apache-2.0
"""A failure stays with its bucket, and the bucket comes back without a restart once the cause is gone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
from pathlib import Path
from unittest import mock

import pytest
from tests.server.log_support import Client, connected, failing, ids_of, make_batch, path_of, running_server
from tests.shared import raising
from tests.waiting import wait_until

from fluss.errors import ErrorCode, UnknownServerError
from fluss.metadata import TableBucket
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.record_messages import encode_produce_log
from fluss.server import tablets
from fluss.server.log.tablet import LogTablet
from fluss.server.scheduler import TimeSlice
from fluss.server.server import Server

LOG_STORAGE = int(ErrorCode.LOG_STORAGE_EXCEPTION)


async def read(client: Client, table: int, bucket: int) -> list[int]:
    answer = await client.fetch(table, 0, bucket=bucket)
    assert answer.error_code == 0, answer.error_message
    return ids_of(answer.records)


async def health(client: Client) -> int:
    return int((await client.call(apis.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest())).status)


GREEN = 0


async def written(client: Client, table: int, first: int, bucket: int) -> None:
    """Write as a client does: storage errors are retried."""
    for _ in range(200):
        answer = await client.produce(table, make_batch(first), bucket=bucket)
        if answer.error_code == 0:
            return
        assert answer.error_code == LOG_STORAGE, answer.error_message
        await asyncio.sleep(0.02)
    raise AssertionError(answer.error_message)


async def filled(client: Client, buckets: int = 2) -> int:
    """A table with rows in its first two buckets."""
    table = await client.create_table(buckets=buckets)
    for bucket in range(min(buckets, 2)):
        await written(client, table, 0, bucket)
    return table


@pytest.mark.parametrize("kind", ["open_file", "sync_data", "write_at"])
async def test_one_failed_operation_fails_one_bucket_and_it_recovers(tmp_path: Path, kind: str) -> None:
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        table = await filled(client)
        server.tablets._open_files._close_idle(0)
        where = (lambda path: "log-0" in str(path)) if kind == "open_file" else (lambda fd: "log-0" in path_of(fd))
        with failing(kind, where) as count:
            answer = await client.produce(table, make_batch(3))
            assert (answer.error_code, count[0] > 0) == (LOG_STORAGE, True), answer.error_message
            # The committer goes on with the others, and the bucket goes on being refused.
            await written(client, table, 3, 1)
            assert (await client.produce(table, make_batch(3))).error_code == LOG_STORAGE
        await written(client, table, 6, 0)
        assert await read(client, table, 0) == [0, 1, 2, 6, 7, 8]
        assert await read(client, table, 1) == [0, 1, 2, 3, 4, 5]
        assert await health(client) == GREEN
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        assert await read(client, table, 0) == [0, 1, 2, 6, 7, 8]


async def test_a_first_write_that_finds_no_room_is_refused_and_comes_back(client: Client) -> None:
    table = await client.create_table(buckets=3)
    await written(client, table, 0, 0)
    for kind in ("make_folder", "open_file"):
        with failing(kind, lambda path: "log-1" in str(path), errno.ENOSPC):
            answer = await client.produce(table, make_batch(0), bucket=1)
            assert answer.error_code == LOG_STORAGE
            assert "No space left on device" in answer.error_message
            await written(client, table, 3, 0)
    await written(client, table, 0, 1)
    assert await read(client, table, 1) == [0, 1, 2]


async def test_the_server_serves_on_when_it_runs_out_of_file_handles(server: Server, client: Client) -> None:
    """All handles are taken by others for a while: writes are refused, then accepted, and the server can be stopped."""
    table = await client.create_table(buckets=40)
    await written(client, table, 0, 0)
    server.tablets._open_files._close_idle(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, hard))
    taken = []
    try:
        for bucket in range(5):
            # Again for each: what earlier tests left may close its handles at any time.
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            answer = await client.produce(table, make_batch(0), bucket=bucket)
            assert answer.error_code == LOG_STORAGE
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for bucket in range(40):
        await written(client, table, 3, bucket)


async def test_a_repair_neither_loses_nor_doubles_a_batch(server: Server, client: Client, table: int) -> None:
    """The writers' state goes back with the log, so the retry of what was cut is taken as new."""
    assert (await client.produce(table, make_batch(0, writer_id=7, sequence=0))).error_code == 0
    with failing("sync_data", lambda fd: path_of(fd).endswith(".log")):
        assert (await client.produce(table, make_batch(3, writer_id=7, sequence=1))).error_code == LOG_STORAGE
    tablet = next(iter(server.tablets))
    await wait_until(lambda: tablet.failure is None)
    for _ in range(2):
        answer = await client.produce(table, make_batch(3, writer_id=7, sequence=1))
        assert (answer.error_code, answer.base_offset) == (0, 3)
    assert await read(client, table, 0) == [0, 1, 2, 3, 4, 5]


async def test_a_bug_in_the_plan_of_one_log_does_not_stop_the_committer(server: Server, client: Client) -> None:
    table = await filled(client)
    broken = next(tablet for tablet in server.tablets if tablet.bucket.bucket_id == 0)
    with mock.patch.object(broken, "sync_plan", raising(ZeroDivisionError)):
        assert (await client.produce(table, make_batch(3))).error_code == LOG_STORAGE
        await written(client, table, 3, 1)
    await written(client, table, 3, 0)


async def test_a_recovery_point_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        await filled(client, 1)
        point = next((tmp_path / "data").rglob("log-0")) / "recovery-point"
        with failing("rename", lambda path: "recovery-point" in str(path)):
            await server.tablets.checkpoint()
        assert not point.exists()
        await server.tablets.checkpoint()
        assert point.exists()


# Missing data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["log-0", "table", "tables"])
async def test_a_bucket_whose_files_are_gone_after_a_restart_is_out_of_service(tmp_path: Path, what: str) -> None:
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        table = await client.create_table(buckets=2)
        other = await client.create_table("other")
        await written(client, table, 0, 0)
        folder = next((tmp_path / "data").rglob("log-0"))
    deleted = {"log-0": folder, "table": folder.parent, "tables": tmp_path / "data" / "tables"}[what]
    shutil.rmtree(deleted)
    for _ in range(2):  # a restart does not make it forget
        async with running_server(tmp_path / "data") as server, connected(server) as client:
            assert await health(client) != GREEN
            answer = await client.produce(table, make_batch(3))
            assert "data of TableBucket" in answer.error_message
            assert "accept-data-loss" in answer.error_message
            assert "is missing" in (await client.fetch(table, 0)).error_message
            await written(client, table, 0, 1)
            await written(client, other, 0, 0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accept-data-loss").touch()
    for expected in ([3, 4, 5], [3, 4, 5]):
        async with running_server(tmp_path / "data") as server, connected(server) as client:
            if expected and not await read_or_none(client, table):
                await written(client, table, 3, 0)
            assert await read(client, table, 0) == expected
            assert await health(client) == GREEN
    assert not (folder / "accept-data-loss").exists()


async def read_or_none(client: Client, table: int) -> bytes:
    return bytes((await client.fetch(table, 0)).records)


@pytest.mark.parametrize("used", [True, False])
async def test_a_folder_removed_under_a_server_is_noticed_and_can_be_restored(tmp_path: Path, used: bool) -> None:
    """Also one whose files were not opened since the start."""
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        table = await filled(client)
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        if used:
            for bucket in (0, 1):
                await written(client, table, 0, bucket)
        folder = next((tmp_path / "data").rglob("log-0"))
        shutil.move(folder, tmp_path / "copy")
        assert (await client.produce(table, make_batch(3))).error_code == LOG_STORAGE
        tablet = next(tablet for tablet in server.tablets if tablet.bucket.bucket_id == 0)
        await wait_until(lambda: tablet.damage is not None)
        assert "is missing" in (await client.produce(table, make_batch(3))).error_message
        assert await health(client) != GREEN
        await written(client, table, 3, 1)
        assert not folder.exists()
        shutil.move(tmp_path / "copy", folder)
        await wait_until(lambda: tablet.damage is None)
        await written(client, table, 3, 0)
        assert await read(client, table, 0) == [0, 1, 2] * (1 + used) + [3, 4, 5]


async def test_a_register_that_cannot_be_read_keeps_the_buckets_it_has(tmp_path: Path) -> None:
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        table = await filled(client, 3)
    shutil.rmtree(next((tmp_path / "data").rglob("log-0")))
    with failing("open_file", lambda path: str(path).endswith("/buckets") and not count[0]) as count:
        async with running_server(tmp_path / "data"):
            pass
    for _ in range(2):
        async with running_server(tmp_path / "data") as server, connected(server) as client:
            assert "is missing" in (await client.produce(table, make_batch(3))).error_message
            await written(client, table, 0, 2)


async def test_buckets_of_an_earlier_release_are_registered_at_the_start(tmp_path: Path) -> None:
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        await filled(client, 1)
    (register,) = (tmp_path / "data" / "catalog").rglob("buckets")
    data = register.read_bytes()
    register.unlink()
    async with running_server(tmp_path / "data"):
        pass
    assert register.read_bytes() == data


# Handles --------------------------------------------------------------------------------------------------------------


async def test_many_buckets_share_few_file_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tablets, "HANDLES_MAX", 60)
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        count = 300
        table = await client.create_table(buckets=count)
        before = len(os.listdir("/proc/self/fd"))
        peak = 0

        async def write(first: int) -> None:
            nonlocal peak
            writes = asyncio.gather(
                *(client.produce(table, make_batch(first), bucket=bucket) for bucket in range(count))
            )
            while not writes.done():
                peak = max(peak, len(os.listdir("/proc/self/fd")) - before)
                await asyncio.sleep(0.001)
            assert {answer.error_code for answer in await writes} == {0}

        await write(0)
        await write(3)
        # Beside those of logs, a thread that flushes a folder or registers a bucket opens one for a moment.
        assert 30 < peak < 150  # without the bound there were 600
        for bucket in range(0, count, 100):
            assert await read(client, table, bucket) == [0, 1, 2, 3, 4, 5]


async def test_a_half_failed_write_is_answered(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buckets are written in slices; a defect in one of them must not leave the writer without an answer."""
    table = await client.create_table(buckets=4)
    tablet = server.tablets.tablet

    def broken(bucket: TableBucket) -> LogTablet:
        if bucket.bucket_id == 2:
            raise ValueError("not foreseen")
        return tablet(bucket)

    monkeypatch.setattr(server.tablets, "tablet", broken)
    monkeypatch.setattr(TimeSlice, "is_over", True)
    body = encode_produce_log(-1, table, 10_000, [(None, bucket, [make_batch(0)]) for bucket in range(4)])
    with pytest.raises(UnknownServerError, match="not foreseen"):
        await asyncio.wait_for(client.connection.call_parts(apis.PRODUCE_LOG, body), 5)
