# SPDX-License-Identifier: Apache-2.0
"""A sector that cannot be read fails reads of its bucket. The server, and every other bucket, goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.ports import free_port
from tests.server.log_support import connected, ids_of, make_batch, running_server
from tests.waiting import at_most

import fluss
from fluss.errors import ErrorCode, FlussError
from fluss.server import disk
from fluss.server.local import LocalServer
from fluss.server.server import Server

BATCHES = 10
FIRST = 1000
BATCH_BYTES = len(make_batch(FIRST, 100))


@contextlib.contextmanager
def unreadable(part: str, byte: int) -> Iterator[None]:
    """Make one byte of the files whose path has `part` in it unreadable."""
    read, send = disk.read_into_at, disk.send_file

    def check(fd: int, position: int, size_bytes: int) -> None:
        if position <= byte < position + size_bytes and part in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read_into_at(fd: int, buffers: Sequence[memoryview], position: int) -> int:
        check(fd, position, sum(map(len, buffers)))
        return read(fd, buffers, position)

    def send_file(target: int, fd: int, position: int, size_bytes: int) -> int:
        check(fd, position, size_bytes)
        return send(target, fd, position, size_bytes)

    disk.read_into_at, disk.send_file = read_into_at, send_file  # type: ignore[assignment]
    try:
        yield
    finally:
        disk.read_into_at, disk.send_file = read, send  # type: ignore[assignment]


@pytest.mark.parametrize("columns", [None, [0]], ids=["all columns", "one column"])
@pytest.mark.parametrize("cold", [True, False], ids=["after a restart", "in use"])
async def test_one_sector_fails_its_batch(tmp_path: Path, columns: list[int] | None, cold: bool) -> None:
    async def check(server: Server, table: int) -> None:
        """Readers that lost their connection, because an answer could not be sent, come back."""
        found: list[int] = []
        answer = None
        for _ in range(5):
            with contextlib.suppress(FlussError):
                async with connected(server) as client:
                    while (answer := await client.fetch(table, len(found), columns=columns)).error_code == 0:
                        assert answer.records
                        schema = pa.schema([("id", pa.int64())]) if columns else None
                        found += ids_of(answer.records, schema) if schema else ids_of(answer.records)
                    break
        assert found == list(range(FIRST, FIRST + 700))
        assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
        assert "cannot be read at byte" in answer.error_message
        assert "Input/output error" in answer.error_message
        async with connected(server) as client:
            whole = await client.fetch(table, 0, bucket=1)
            assert ids_of(whole.records) == list(range(FIRST, FIRST + 100 * BATCHES))
            assert (await client.fetch(table, 900)).error_code == 0
            assert (await client.produce(table, make_batch(1000, 100))).base_offset == 1000

    async with running_server(tmp_path, log_index_interval__size="0") as server, connected(server) as client:
        table = await client.create_table(buckets=2)
        for bucket in (0, 1):
            for number in range(BATCHES):
                await client.produce(table, make_batch(FIRST + number * 100, 100), bucket=bucket)
        if not cold:
            await client.fetch(table, 0, columns=columns)
            with unreadable("log-0/", 7 * BATCH_BYTES + 500):
                await check(server, table)
    if cold:
        async with running_server(tmp_path, log_index_interval__size="0") as server:
            with unreadable("log-0/", 7 * BATCH_BYTES + 500):
                await check(server, table)


@contextlib.contextmanager
def loop_device(folder: Path) -> Iterator[tuple[Path, Path]]:
    """A file system in a file, and that file. Skips the test where this is not permitted."""
    tools = [shutil.which(name) for name in ("mkfs.ext2", "mount", "umount", "filefrag")]
    if os.geteuid() or None in tools:
        pytest.skip("needs root, mkfs.ext2, mount and filefrag")
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext2", "-q", "-b", "4096", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], capture_output=True, check=False).returncode:
        pytest.skip("loop devices cannot be mounted here")
    try:
        yield image, mounted
    finally:
        for _ in range(50):
            if not subprocess.run(["umount", str(mounted)], capture_output=True, check=False).returncode:
                break
            time.sleep(0.1)


@pytest.mark.slow
def test_a_disk_that_ends_in_the_middle_of_a_file(tmp_path: Path) -> None:
    """A real device whose backing file is cut: reads give EIO, and a mapping of the file SIGBUS or no end."""
    with loop_device(tmp_path) as (image, mounted):
        server = LocalServer(mounted / "data", port=free_port(), options={"log.segment.file-size": "1gb"})
        server.start()
        try:
            with fluss.connect(server.bootstrap_servers, timeout=20) as db:
                other = db.create_table("other", "id bigint", buckets=1)
                other.append([{"id": 1}])
                properties = {"table.log.arrow.compression.type": "NONE"}
                table = db.create_table("t", "id bigint, text string", buckets=1, properties=properties)
                for first in range(0, 20_000, 1000):
                    table.append([{"id": number, "text": "x" * 1000} for number in range(first, first + 1000)])
                [log] = (mounted / "data" / "tables" / "fluss").glob("t-*/log-0/*.log")
                fd = os.open(log, os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                extents = subprocess.run(["filefrag", "-v", str(log)], check=True, capture_output=True, text=True)
                first_extent = next(line for line in extents.stdout.splitlines() if line.strip().startswith("0:"))
                first_block = int(first_extent.split(":")[2].partition("..")[0])
                os.truncate(image, (first_block + 2000) * 4096)
                os.close(fd)
                with at_most(15), pytest.raises(FlussError, match="cannot be read at byte"):
                    table.to_arrow()
                assert other.to_arrow().num_rows == 1
        finally:
            server.stop()
