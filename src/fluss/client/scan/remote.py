# SPDX-License-Identifier: Apache-2.0
"""Tiered log segments, read straight from where the server put them."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.errors import ConfigError, FlussError, FormatError, SecurityTokenError, StorageError
from fluss.metadata import EARLIEST_OFFSET
from fluss.net.filesystems import open_filesystem, scheme_of, scrub
from fluss.protocol import apis, messages
from fluss.records.log_batch import LENGTH_END, LENGTH_POSITION

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow.fs as pafs

    from fluss.client.cluster import Cluster
    from fluss.client.scan.subscription import Subscription
    from fluss.records import LogBatch

_BLOCK_BYTES = 8 * 1024 * 1024
_BATCH_BYTES_MAX = 1024 * 1024 * 1024
_TOKEN_LEFT_S_MIN = 300.0
"""Credentials of the cluster are asked for anew when they live no longer than this."""
_SETTINGS = {
    "fs.s3a.endpoint": "s3.endpoint",
    "fs.s3a.region": "s3.region",
    "fs.s3a.endpoint.region": "s3.region",
    "fs.s3a.path.style.access": "s3.path-style-access",
    "fs.s3a.connection.ssl.enabled": "s3.connection.ssl.enabled",
    "fs.oss.endpoint": "oss.endpoint",
    "fs.oss.region": "oss.region",
    "fs.gs.project.id": "gs.project.id",
    "fs.gs.storage.root.url": "gs.storage.root.url",
}
"""What a cluster says about its store, and the options that mean the same."""


class RemoteReader:
    """Reads segments block by block, some blocks ahead, in threads of its own.

    The blocks that are read ahead go on into the next segments, so that the end of one is no pause.
    """

    def __init__(self, cluster: Cluster) -> None:
        config = cluster.config
        self._cluster = cluster
        self._threads = ThreadPoolExecutor(config.remote_file_download_thread_num, thread_name_prefix="fluss-remote")
        self._segments_ahead = config.scanner_remote_log_prefetch_num
        self._reads_ahead = config.scanner_remote_log_read_concurrency
        self._store_options = config.store_options
        self._stores: dict[str, _Store] = {}
        """The object stores that were opened, by scheme."""

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def blocks(
        self, info: messages.PbRemoteLogFetchInfo, room: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[memoryview, None]:
        """Whole log batches of all segments in order, as large views. `room` is awaited before each block."""
        filesystem, root = await self._open(info.remote_log_tablet_dir)
        waiting = deque(
            _Segment(
                f"{root}/{segment.remote_log_segment_id}/{segment.remote_log_start_offset:020d}.log",
                0 if i else info.first_start_pos,
            )
            for i, segment in enumerate(info.remote_log_segments)
        )
        opened: deque[_Segment] = deque()
        try:
            while waiting or opened:
                await room()
                await self._read_ahead(filesystem, waiting, opened)
                segment = opened[0]
                if not segment.reads:
                    segment.close()
                    opened.popleft()
                    if segment.carry:
                        raise FormatError(f"the remote log segment {segment.path} ends in the middle of a batch")
                    continue
                whole = segment.add(await segment.reads.popleft())
                if whole is not None:
                    yield whole
        except StorageError as error:
            # The credentials may have been revoked: the next attempt asks for new ones.
            store = self._stores.pop(scheme_of(info.remote_log_tablet_dir), None)
            raise error if store is None else StorageError(scrub(error.message, store.options)) from None
        finally:
            # A file must not be closed under a thread that reads it.
            reads = [read for segment in opened for read in segment.reads]
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
            for segment in opened:
                segment.close()

    async def _read_ahead(self, filesystem: pafs.FileSystem, waiting: deque[_Segment], opened: deque[_Segment]) -> None:
        """Start reads until enough are in flight, opening further segments as need be."""
        while sum(len(segment.reads) for segment in opened) < self._reads_ahead:
            unread = next((segment for segment in opened if segment.position < segment.size), None)
            if unread is None:
                if not waiting or len(opened) >= self._segments_ahead:
                    return
                unread = waiting.popleft()
                await self.run(unread.open, filesystem)
                opened.append(unread)
                continue
            read = self.run(unread.read, unread.position)
            unread.position = min(unread.position + _BLOCK_BYTES, unread.size)
            unread.reads.append(asyncio.ensure_future(read))

    async def _open(self, directory: str) -> tuple[pafs.FileSystem, str]:
        scheme = scheme_of(directory)
        if scheme == "file":
            import pyarrow.fs as pafs  # only readers of a remote log need it

            rest = directory.partition("://")[2] if "://" in directory else directory
            return pafs.LocalFileSystem(), "/" + rest.strip("/") if "://" in directory else rest.rstrip("/")
        store = self._stores.get(scheme)
        if store is None or time.time() >= store.until:
            store = self._stores[scheme] = await self._open_store(scheme, directory)
        return store.filesystem, directory.partition("://")[2].strip("/")

    async def _open_store(self, scheme: str, directory: str) -> _Store:
        """Open an object store with credentials of the reader's own, or else with those the cluster lends."""
        from fluss.metadata import FileSystemCredentials  # every scanner loads this module, and few read a store

        try:
            token = await self._cluster.call_tablet(
                apis.GET_FILESYSTEM_SECURITY_TOKEN, messages.GetFileSystemSecurityTokenRequest()
            )
        except SecurityTokenError as error:
            # The service that issues credentials may be down for a moment, as the store may.
            raise StorageError(f"the remote log at {scheme}:// cannot be opened: {error.message}") from None
        options = {_SETTINGS[pair.key]: pair.value for pair in token.addition_info if pair.key in _SETTINGS}
        until = float("inf")
        own_keys = {"s3.access-key", "oss.accessKeyId"} & set(self._store_options)
        lent = None if own_keys else FileSystemCredentials.from_json_bytes(token.token)
        if lent is not None:
            names = ("oss.accessKeyId", "oss.accessKeySecret", "oss.securityToken")
            if scheme != "oss":
                names = ("s3.access-key", "s3.secret-key", "s3.session-token")
            values = (lent.access_key_id, lent.access_key_secret, lent.security_token)
            options |= {name: value for name, value in zip(names, values) if value}
            if token.HasField("expiration_time"):
                left_s = token.expiration_time / 1000 - time.time()
                until = time.time() + max(left_s - _TOKEN_LEFT_S_MIN, left_s / 2)
        options |= self._store_options
        try:
            filesystem, _ = await self.run(open_filesystem, directory, options)
        except (pa.ArrowException, OSError, ValueError, ConfigError) as error:
            raise StorageError(f"the remote log at {scheme}:// cannot be opened: {scrub(error, options)}") from None
        return _Store(filesystem, options, until)

    async def download(self, files: Mapping[str, Path]) -> None:
        """Bring remote files to local paths, several at a time; local ones are linked."""

        async def bring(path: str, local: Path) -> None:
            filesystem, inner = await self._open(path)
            await self.run(_copy, filesystem, inner, local)

        await asyncio.gather(*(bring(path, local) for path, local in files.items()))

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Run a call in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


def _copy(filesystem: pafs.FileSystem, path: str, local: Path) -> None:
    if filesystem.type_name == "local":
        if not os.path.isfile(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        os.symlink(path, local)
        return
    with filesystem.open_input_stream(path) as source, local.open("wb") as target:
        # Not `read`, which never gives back the memory of a read that fails.
        while len(block := memoryview(source.read_buffer(_BLOCK_BYTES))):
            target.write(block)


@dataclass(frozen=True)
class _Store:
    """An object store, opened with credentials that hold until a time (epoch, seconds)."""

    filesystem: pafs.FileSystem
    options: Mapping[str, str] = field(repr=False)
    until: float


class _Segment:
    """One file that is read from `position` on."""

    def __init__(self, path: str, position: int) -> None:
        self.path = path
        self.position = position
        self.size = 0
        self.reads: deque[asyncio.Future[bytes]] = deque()
        self.carry = b""
        """The beginning of a batch whose end is in the next block."""
        self._file: pa.NativeFile | None = None

    def open(self, filesystem: pafs.FileSystem) -> None:
        try:
            self._file = filesystem.open_input_file(self.path)
            self.size = self._file.size()
        except OSError as error:
            raise StorageError(f"the remote log segment {self.path} cannot be opened: {error}") from None
        if self.position > self.size:
            raise FormatError(
                f"the remote log segment {self.path} has {self.size} bytes, but should be read from {self.position} on"
            )

    def read(self, position: int) -> bytes:
        assert self._file is not None
        try:
            return bytes(self._file.read_at(_BLOCK_BYTES, position))
        except OSError as error:
            raise StorageError(
                f"the remote log segment {self.path} cannot be read at byte {position}: {error}"
            ) from None

    def add(self, block: bytes) -> memoryview | None:
        """The batches that are complete with this block."""
        data = self.carry + block if self.carry else block
        whole = _whole_batches(memoryview(data), self.path)
        self.carry = data[whole:]
        return memoryview(data)[:whole] if whole else None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _whole_batches(data: memoryview, path: str) -> int:
    """How many bytes of `data` are complete batches."""
    at = 0
    while at + LENGTH_END <= len(data):
        (length,) = struct.unpack_from("<i", data, at + LENGTH_POSITION)
        if not 0 < length <= _BATCH_BYTES_MAX:
            raise FormatError(f"the remote log segment {path} has a batch of impossible length {length}")
        if at + LENGTH_END + length > len(data):
            break
        at += LENGTH_END + length
    return at


def located(error: FlussError, remote_dir: str | None) -> FlussError:
    """Add where bytes of the remote log are: no server has checked them."""
    if remote_dir is None:
        return error
    return type(error)(f"{error.message} (in the remote log '{remote_dir}')", error.error_code)


def check_remote_offset(subscription: Subscription, batch: LogBatch, remote_dir: str) -> None:
    """The offset of a batch lies outside its checksum, and no server looked at it: it must follow the one before."""
    header, expected = batch.header, subscription.remote_offset
    # Reading begins at or before the wanted offset.
    fits = (
        subscription.fetch_offset == EARLIEST_OFFSET or header.base_offset <= subscription.fetch_offset
        if expected is None
        else header.base_offset == expected
    )
    if not fits or header.next_offset <= header.base_offset:
        raise FormatError(
            f"the remote log of {subscription.bucket} in '{remote_dir}' has a batch with the offsets "
            f"{header.base_offset} to {header.last_offset} where offset "
            f"{subscription.fetch_offset if expected is None else expected} is due: the file is damaged"
        )
    subscription.remote_offset = header.next_offset
