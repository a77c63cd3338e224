# SPDX-License-Identifier: Apache-2.0
"""Files of a log: an open segment file, a bounded set of open ones, and whole files written atomically."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np

_IOV_MAX = 512
Buffer = bytes | bytearray | memoryview


class SegmentFile:
    """An open log file. The descriptor lives as long as somebody holds the object, so a read that is under way in a
    thread is never cut off by a deletion or by the cache of open files."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.fd = -1
        self.path = path
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self.fd = os.open(path, flags, 0o600)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``; less only at the end of the file. The caller owns the memory."""
        return self.read_into(np.empty(size_bytes, dtype=np.uint8).data, position)

    def read_into(self, buffer: memoryview, position: int) -> memoryview:
        """Fill the buffer; returns the part that was filled."""
        filled, size_bytes = 0, len(buffer)
        while filled < size_bytes:
            count = os.preadv(self.fd, [buffer[filled:]], position + filled)
            if count == 0:
                break
            filled += count
        return buffer[:filled]

    def write(self, parts: Sequence[Buffer], position: int) -> None:
        """Write the parts one after the other; all or an OSError."""
        if len(parts) == 1 and os.pwrite(self.fd, parts[0], position) == len(parts[0]):
            return
        views = [memoryview(part).cast("B") for part in parts]
        at = 0
        while at < len(views):
            chunk = views[at : at + _IOV_MAX]
            count = os.pwritev(self.fd, chunk, position)
            position += count
            for view in chunk:
                if count < view.nbytes:
                    views[at] = view[count:]
                    break
                count -= view.nbytes
                at += 1

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self.fd, size_bytes)

    def begin_sync(self, position: int, size_bytes: int) -> None:
        """Have the disk begin to take these bytes; `sync` then has little to wait for. Says nothing when it cannot."""
        if _sync_file_range is not None:
            _sync_file_range(self.fd, position, size_bytes, _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        _datasync(self.fd)


class FileRange:
    """Bytes of a log file that go to a socket without passing through this process.

    Stands among the parts of an answer; ``len`` is all that the encoders of messages ask of a part.
    """

    __slots__ = ("file", "position", "size_bytes")

    def __init__(self, file: SegmentFile, position: int, size_bytes: int) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return self.size_bytes

    def __bytes__(self) -> bytes:
        return bytes(self.file.read(self.position, self.size_bytes))


class MappedFile:
    """Reads a file by mapping it: looking at bytes that are then sent from the file costs no copy.

    The size is asked for before every read. A file that shrinks under a mapping would otherwise end the process. Who
    will look at all the bytes, not only at a few of them, asks for them to be mapped `whole`, which is cheaper then.
    """

    __slots__ = ("_file", "_flags")

    def __init__(self, file: SegmentFile, *, whole: bool) -> None:
        self._file = file
        self._flags: int = mmap.MAP_SHARED | (_MAP_POPULATE if whole else 0)

    def read(self, position: int, size_bytes: int) -> memoryview:
        size_bytes = min(size_bytes, self._file.size_bytes - position)
        if size_bytes <= 0:
            return memoryview(b"")
        lead = position % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(
            self._file.fd, size_bytes + lead, flags=self._flags, prot=mmap.PROT_READ, offset=position - lead
        )
        return memoryview(mapped)[lead:]


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """A call of Linux that Python has no name for."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    return cast(Callable[[int, int, int, int], int], function)


_sync_file_range = _find_sync_file_range()
_SYNC_FILE_RANGE_WRITE = 2
_MAP_POPULATE: int = getattr(mmap, "MAP_POPULATE", 0)
_datasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class OpenFiles:
    """A bounded number of open files of closed segments, the least recently used closed first."""

    def __init__(self, count_max: int = 256) -> None:
        self._count_max = count_max
        self._files: OrderedDict[Path, SegmentFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path) -> SegmentFile:
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
        file = SegmentFile(path)
        with self._lock:
            self._files[path] = file
            while len(self._files) > self._count_max:
                self._files.popitem(last=False)
        return file

    def forget(self, path: Path) -> None:
        with self._lock:
            self._files.pop(path, None)

    def forget_under(self, folder: Path) -> None:
        with self._lock:
            for path in [path for path in self._files if path.parent == folder]:
                del self._files[path]


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace a whole file: after a crash the old content is there, or the new one."""
    spare = path.with_name(path.name + ".tmp")
    fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(spare, path)


def sync_folder(path: Path) -> None:
    """Make new names and renames in a folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
