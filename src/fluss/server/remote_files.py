# SPDX-License-Identifier: Apache-2.0
"""Files below the remote data directory: a local folder, an object store, or any other URI that pyarrow knows."""

from __future__ import annotations

import contextlib
import posixpath
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pyarrow import fs

from fluss.errors import InvalidArgumentError
from fluss.net.filesystems import open_filesystem, scrub
from fluss.server import disk

_COPY_BYTES = 1024 * 1024


class Copied(NamedTuple):
    size_bytes: int
    checksum: int
    """CRC32 of the content."""


class RemoteFiles:
    """Files by the paths that clients get: the root and what follows it. Methods run in threads.

    What is written is durable once the folder it lies in is synced with `sync_folder`. Users who can read the root can
    read what is below it, since clients read these files themselves, unless files are `private`.
    """

    def __init__(self, root: str, store_options: Mapping[str, str] | None = None, *, private: bool = False) -> None:
        self._private = private
        self._options = dict(store_options or {})
        self._filesystem: fs.FileSystem | None = None
        """None for the local one, whose files go through `fluss.server.disk`."""
        self._flushed = Path("/")
        """The names above this folder are durable."""
        if "://" in root or root.startswith("file:"):
            filesystem, self._base = open_filesystem(root, self._options)
            self.root = root.rstrip("/")
            if not isinstance(filesystem, fs.LocalFileSystem):
                self._filesystem = filesystem
        else:
            # Clients resolve a plain path against their own folder, so it has to be absolute.
            self.root = self._base = str(Path(root).absolute())

    def explain(self, error: Exception) -> str:
        """Describe an error of the store without the credentials it may name."""
        return scrub(error, self._options)

    def _inner(self, path: str) -> str:
        return posixpath.join(self._base, path[len(self.root) :].lstrip("/"))

    def check_below(self, path: str) -> None:
        """Refuse a path from the wire that is not one of this server's own files."""
        if not path.startswith(self.root.rstrip("/") + "/") or ".." in path.split("/"):
            raise InvalidArgumentError(f"the path '{path}' is not below the remote data directory")

    def put(self, local: Path, path: str) -> Copied:
        """Copy a local file to a new path."""
        copied = self.put_chunks(_chunks(local), path)
        self._share(self._inner(path))
        return copied

    def put_chunks(self, chunks: Iterable[memoryview], path: str) -> Copied:
        """Write a new file of the bytes that are given piece by piece."""
        inner, size_bytes, checksum = self._inner(path), 0, 0
        if self._filesystem is None:
            return _store(chunks, Path(inner))
        with self._filesystem.open_output_stream(inner) as target:
            for chunk in chunks:
                target.write(chunk)
                size_bytes, checksum = size_bytes + len(chunk), zlib.crc32(chunk, checksum)
        return Copied(size_bytes, checksum)

    def get(self, path: str, local: Path) -> Copied:
        """Copy a file to a local path. It need not survive a power cut."""
        return _store(self._chunks(path), local, durable=False)

    def _chunks(self, path: str) -> Iterator[memoryview]:
        if self._filesystem is None:
            yield from _chunks(Path(self._inner(path)))
            return
        with self._filesystem.open_input_stream(self._inner(path)) as source:
            # Not `read`, which never gives back the memory of a read that fails.
            while len(chunk := memoryview(source.read_buffer(_COPY_BYTES))):
                yield chunk

    def write(self, path: str, data: bytes) -> None:
        """Write a small file. It is there as a whole or not at all."""
        inner = self._inner(path)
        if self._filesystem is None:
            disk.write_atomically(Path(inner), data)
            self._share(inner)
        else:
            with self._filesystem.open_output_stream(inner) as target:
                target.write(data)

    def read(self, path: str) -> bytes:
        """Read a small file; raises FileNotFoundError when it is not there."""
        inner = self._inner(path)
        if self._filesystem is None:
            return disk.read_file(inner)
        with self._filesystem.open_input_stream(inner) as source:
            return bytes(source.read())

    def open(self, path: str) -> RemoteFile:
        """Open a file to read parts of it."""
        filesystem = self._filesystem or fs.LocalFileSystem()
        return RemoteFile(filesystem.open_input_file(self._inner(path)))

    def names(self, path: str) -> list[str]:
        """Names in a folder; none if there is no such folder."""
        inner = self._inner(path)
        if self._filesystem is None:
            try:
                return disk.names(inner)
            except FileNotFoundError:
                return []
        found = self._filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True))
        return [info.base_name for info in found]

    def make_folder(self, path: str) -> None:
        # An object store has no folders; Arrow would write an empty object for each.
        if self._filesystem is None:
            disk.make_folders_durably(Path(self._inner(path)), self._flushed)
            self._flushed = Path(self._base)
            below = path[len(self.root) :].strip("/").split("/")
            for depth in range(1, len(below) + 1):
                self._share(posixpath.join(self._base, *below[:depth]))

    def _share(self, inner: str) -> None:
        if self._filesystem is None and not self._private:
            disk.share_like(inner, self._base)

    def sync_folder(self, path: str) -> None:
        if self._filesystem is None:
            disk.sync_folder(self._inner(path))

    def remove_file(self, path: str) -> None:
        """Delete a file that may be gone already."""
        inner = self._inner(path)
        if self._filesystem is None:
            disk.unlink_if_there(inner)
        else:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.delete_file(inner)

    def remove_folder(self, path: str) -> bool:
        """Delete a folder and what is in it, as far as possible; returns whether nothing is left."""
        inner = self._inner(path)
        if self._filesystem is None:
            return disk.remove_tree(inner)
        try:
            self._filesystem.delete_dir(inner)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class RemoteFile:
    """A remote file that can be walked like a local log."""

    def __init__(self, file: fs.NativeFile) -> None:
        self._file = file
        self.size_bytes = int(file.size())

    def read(self, position: int, size_bytes: int) -> memoryview:
        return memoryview(self._file.read_at(size_bytes, position))

    def close(self) -> None:
        self._file.close()


def checksum_of(path: Path) -> int:
    """CRC32 of a local file."""
    checksum = 0
    for chunk in _chunks(path):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def _chunks(path: Path) -> Iterator[memoryview]:
    fd = disk.open_file(path, disk.READ)
    try:
        buffer, position = memoryview(bytearray(_COPY_BYTES)), 0
        while count := disk.read_into_at(fd, [buffer], position):
            position += count
            yield buffer[:count]
    finally:
        disk.close(fd)


def _store(chunks: Iterable[memoryview], target: Path, *, durable: bool = True) -> Copied:
    size_bytes = checksum = 0
    fd = disk.open_file(target, disk.REPLACE)
    try:
        for chunk in chunks:
            size_bytes, checksum = size_bytes + len(chunk), zlib.crc32(chunk, checksum)
            while chunk:
                chunk = chunk[disk.write(fd, chunk) :]
        if durable:
            disk.sync(fd)
    finally:
        disk.close(fd)
    return Copied(size_bytes, checksum)
