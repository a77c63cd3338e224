# SPDX-License-Identifier: Apache-2.0
"""Files of a log: an open segment file, and a bounded set of open ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fluss.server import disk
from fluss.server.disk import Buffer

_IOV_MAX = 512


class SegmentFile:
    """An open log file. The descriptor lives as long as somebody holds the object, so a read that is under way in a
    thread is never cut off by a deletion or by the cache of open files."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.fd = -1
        self.path = path
        self.fd = disk.open_file(path, disk.READ_WRITE | (disk.CREATE if create else 0))

    def __del__(self) -> None:
        if self.fd >= 0:
            disk.close(self.fd)
            self.fd = -1

    @property
    def size_bytes(self) -> int:
        return disk.file_size(self.fd)

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``; less only at the end of the file. The caller owns the memory."""
        return self.read_into(np.empty(size_bytes, dtype=np.uint8).data, position)

    def read_into(self, buffer: memoryview, position: int) -> memoryview:
        """Fill the buffer; returns the part that was filled."""
        filled, size_bytes = 0, len(buffer)
        while filled < size_bytes:
            count = disk.read_into_at(self.fd, [buffer[filled:]], position + filled)
            if count == 0:
                break
            filled += count
        return buffer[:filled]

    def write(self, parts: Sequence[Buffer], position: int) -> None:
        """Write the parts one after the other; all or an OSError."""
        if len(parts) == 1 and disk.write_at(self.fd, parts[0], position) == len(parts[0]):
            return
        views = [memoryview(part).cast("B") for part in parts]
        at = 0
        while at < len(views):
            chunk = views[at : at + _IOV_MAX]
            count = disk.write_parts_at(self.fd, chunk, position)
            position += count
            for view in chunk:
                if count < view.nbytes:
                    views[at] = view[count:]
                    break
                count -= view.nbytes
                at += 1

    def truncate(self, size_bytes: int) -> None:
        disk.truncate(self.fd, size_bytes)

    def begin_sync(self, position: int, size_bytes: int) -> None:
        """Start write-back of these bytes; `sync` then has little to wait for."""
        disk.start_writeback(self.fd, position, size_bytes)

    def sync(self) -> None:
        disk.sync_data(self.fd)


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
        self._flags: int = disk.MAP_SHARED | (disk.MAP_POPULATE if whole else 0)

    def read(self, position: int, size_bytes: int) -> memoryview:
        size_bytes = min(size_bytes, self._file.size_bytes - position)
        if size_bytes <= 0:
            return memoryview(b"")
        lead = position % disk.MAP_ALIGNMENT
        mapped = disk.map_file(self._file.fd, size_bytes + lead, self._flags, position - lead)
        return memoryview(mapped)[lead:]


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
