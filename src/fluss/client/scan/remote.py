# SPDX-License-Identifier: Apache-2.0
"""Tiered log segments, read straight from where the server put them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from fluss.errors import FormatError, StorageError
from fluss.protocol import apis, messages

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster

_BLOCK_BYTES = 8 * 1024 * 1024
_LENGTH_AT = 8
_LENGTH_END = 12
_BATCH_BYTES_MAX = 1024 * 1024 * 1024


class RemoteReader:
    """Reads segments block by block, a few blocks ahead, in threads of its own."""

    def __init__(self, cluster: Cluster, threads: int, prefetch: int) -> None:
        self._cluster = cluster
        self._threads_max = max(1, threads)
        self._threads: ThreadPoolExecutor | None = None
        self._prefetch = max(1, prefetch)
        self._filesystems: dict[str, pafs.FileSystem] = {}

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def blocks(
        self, info: messages.PbRemoteLogFetchInfo, room: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[memoryview]:
        """Whole log batches of all segments in order, as large views."""
        directory = info.remote_log_tablet_dir
        filesystem, root = await self._open(directory)
        position = info.first_start_pos
        for segment in info.remote_log_segments:
            name = f"{segment.remote_log_start_offset:020d}.log"
            path = f"{root}/{segment.remote_log_segment_id}/{name}"
            async for view in self._segment(filesystem, path, position, room):
                yield view
            position = 0

    async def _segment(
        self, filesystem: pafs.FileSystem, path: str, position: int, room: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[memoryview]:
        file = await self._run(_open_file, filesystem, path)
        try:
            size = file.size()
            pending: list[asyncio.Future[Any]] = []
            ahead = position
            carry = b""
            while pending or ahead < size:
                await room()
                while ahead < size and len(pending) < self._prefetch:
                    pending.append(asyncio.ensure_future(self._run(_read_at, file, path, ahead, _BLOCK_BYTES)))
                    ahead += _BLOCK_BYTES
                block = await pending.pop(0)
                data = memoryview(carry + bytes(block)) if carry else memoryview(block)
                whole = _whole_batches(data, path)
                if whole:
                    yield data[:whole]
                carry = bytes(data[whole:])
        finally:
            for future in pending:
                future.cancel()
            file.close()

    async def _open(self, directory: str) -> tuple[pafs.FileSystem, str]:
        if "://" not in directory:
            return pafs.LocalFileSystem(), directory.rstrip("/")
        scheme, _, rest = directory.partition("://")
        if scheme == "file":
            return pafs.LocalFileSystem(), "/" + rest.strip("/")
        known = self._filesystems.get(scheme)
        if known is None:
            known = self._filesystems[scheme] = await self._remote_filesystem(scheme, directory)
        return known, rest.strip("/")

    async def _remote_filesystem(self, scheme: str, directory: str) -> pafs.FileSystem:
        """A file system with the credentials the cluster lends its readers."""
        token = await self._cluster.call_tablet(
            apis.GET_FILESYSTEM_SECURITY_TOKEN, messages.GetFileSystemSecurityTokenRequest()
        )
        try:
            if scheme in ("s3", "s3a", "oss"):
                return _object_store(token)
            return pafs.FileSystem.from_uri(directory)[0]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageError(f"the remote log at {scheme}:// cannot be opened: {error}") from None

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix="fluss-remote")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


def _object_store(token: messages.GetFileSystemSecurityTokenResponse) -> pafs.FileSystem:
    import json

    options = {pair.key: pair.value for pair in token.addition_info}
    credentials = json.loads(token.token) if token.token else {}
    endpoint = options.get("fs.s3a.endpoint") or options.get("fs.oss.endpoint")
    return pafs.S3FileSystem(
        access_key=credentials.get("access_key_id"),
        secret_key=credentials.get("access_key_secret"),
        session_token=credentials.get("security_token"),
        endpoint_override=endpoint,
        region=options.get("fs.s3a.endpoint.region"),
    )


def _open_file(filesystem: pafs.FileSystem, path: str) -> pa.NativeFile:
    try:
        if isinstance(filesystem, pafs.LocalFileSystem):
            return pa.memory_map(path)
        return filesystem.open_input_file(path)
    except OSError as error:
        raise StorageError(f"the remote log segment {path} cannot be opened: {error}") from None


def _read_at(file: pa.NativeFile, path: str, position: int, size: int) -> pa.Buffer:
    try:
        return pa.py_buffer(file.read_at(size, position))
    except OSError as error:
        raise StorageError(f"the remote log segment {path} cannot be read at byte {position}: {error}") from None


def _whole_batches(data: memoryview, path: str) -> int:
    """How many bytes of `data` are complete batches."""
    at = 0
    while at + _LENGTH_END <= len(data):
        (length,) = struct.unpack_from("<i", data, at + _LENGTH_AT)
        if not 0 < length <= _BATCH_BYTES_MAX:
            raise FormatError(f"the remote log segment {path} has a batch of impossible length {length}")
        if at + _LENGTH_END + length > len(data):
            break
        at += _LENGTH_END + length
    return at
