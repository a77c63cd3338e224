# SPDX-License-Identifier: Apache-2.0
"""Files of a log: an open segment file, the bounded set of open ones, and a walk through the batches of a file."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from fluss.errors import FormatError, UnknownServerError
from fluss.records import HEADER_SIZE_MIN
from fluss.records.log_batch import BatchSpan, NeedMoreBytes, read_span
from fluss.server import disk
from fluss.server.disk import Buffer


class DamagedLogError(UnknownServerError):
    """Bytes of a log file are not what was written.

    The code is -1 and not one of the storage codes: clients retry those, and a retry does not repair a file.
    """


class UnreadableLogError(DamagedLogError):
    """The disk did not give the bytes of a log file. It may give them later."""


_IOV_MAX = 512
HANDLES_MAX = 640
"""Open files of all logs together, whatever the number of buckets."""
_CACHED_SHARE = 0.8
"""Of the handles, what idle files may keep; the rest is for those that are written or sent at the same time."""


class SegmentFile:
    """An open log file. The descriptor lives as long as the object is referenced, so a read in another thread is never
    cut off by a deletion or by the cache of open files."""

    __slots__ = ("__weakref__", "_pool", "fd", "inode", "path")

    def __init__(self, path: Path, *, create: bool = False, pool: OpenFiles | None = None) -> None:
        self.fd = -1
        self.path = path
        self._pool: OpenFiles | None = None
        self.fd = disk.open_file(path, disk.READ_WRITE | (disk.CREATE if create else 0))
        self.inode = disk.inode(self.fd)
        self._pool = pool
        if pool is not None:
            pool.opened()

    def __del__(self) -> None:
        if self.fd >= 0:
            disk.close(self.fd)
            self.fd = -1
            if self._pool is not None:
                self._pool.closed()

    @property
    def size_bytes(self) -> int:
        return disk.file_size(self.fd)

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Up to ``size_bytes`` from ``position``; less only at the end of the file. The caller owns the memory.

        Raises UnreadableLogError if the disk fails.
        """
        buffer, filled = np.empty(size_bytes, dtype=np.uint8).data, 0
        while filled < size_bytes:
            try:
                count = disk.read_into_at(self.fd, [buffer[filled:]], position + filled)
            except OSError as error:
                raise UnreadableLogError(
                    f"the log file '{self.path}' cannot be read at byte {position + filled}: {error.strerror}. "
                    "Restore the file from a copy, or drop the table."
                ) from None
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

    def sync(self) -> None:
        disk.sync_data(self.fd)

    def check_in_place(self) -> None:
        """Raise FileNotFoundError when the name no longer leads to this file: what is written to it would be lost."""
        if disk.inode_of(self.path) != self.inode:
            raise FileNotFoundError(errno.ENOENT, "the file was deleted or replaced", str(self.path))


class FileRange:
    """Bytes of a log file that go to a socket without passing through this process, once.

    Stands among the parts of an answer; ``len`` is all that the encoders of messages ask of a part.

    Args:
        on_unreadable: Called when the bytes cannot be read.
    """

    __slots__ = ("_cached_end", "_on_unreadable", "file", "position", "size_bytes")

    def __init__(
        self, file: SegmentFile, position: int, size_bytes: int, on_unreadable: Callable[[], None] = lambda: None
    ) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes
        self._on_unreadable = on_unreadable
        self._cached_end = position

    def __len__(self) -> int:
        return self.size_bytes

    def __bytes__(self) -> bytes:
        return bytes(self.file.read(self.position, self.size_bytes))

    def is_cached(self, bytes_max: int) -> bool:
        """Whether the next bytes can be sent without a wait for the disk."""
        if self.position >= self._cached_end:
            size_bytes = min(self.size_bytes, bytes_max)
            if not disk.is_cached(self.file.fd, self.position, size_bytes):
                return False
            self._cached_end = self.position + size_bytes
        return True

    def read_ahead(self, bytes_max: int) -> None:
        """Have the system read the next bytes. Runs in a thread."""
        end = self.position + min(self.size_bytes, bytes_max)
        try:
            self.file.read(self.position, end - self.position)
        finally:
            self._cached_end = end  # what cannot be read fails when it is sent

    def send(self, send: Callable[[int, int, int], int], bytes_max: int) -> int:
        """Send some of the bytes, which leave the range; returns how many.

        Args:
            send: Sends from an open file, a position and a size; returns how many bytes it sent.
        """
        try:
            size_bytes = self._cached_end - self.position or self.size_bytes
            sent = send(self.file.fd, self.position, min(size_bytes, bytes_max))
            if sent == 0:
                raise OSError(errno.EIO, f"the file '{self.file.path}' is shorter than it was")
        except OSError as error:
            # The length of the frame is already promised; only closing the connection says that the rest is missing.
            if error.errno == errno.EIO:
                self._on_unreadable()
            raise
        self.position += sent
        self.size_bytes -= sent
        return sent


class OpenFiles:
    """The open files of all logs: a bounded number, the least recently used closed first.

    A file that is written, flushed or sent stays open beyond that until its last user is done, so the number of open
    files can exceed that of cached ones. A caller that opens one more for writing looks at `room` first.
    """

    def __init__(self, handles_max: int = HANDLES_MAX, check_folder: Callable[[], None] = lambda: None) -> None:
        self._handles_max = handles_max
        self.check_folder = check_folder
        """Raises OSError when the names of the files no longer lead into the folder that this server has locked."""
        self._cached_max = max(int(handles_max * _CACHED_SHARE), 1)
        self._files: OrderedDict[Path, SegmentFile] = OrderedDict()
        self._paths: dict[Path, set[Path]] = {}
        """The paths of the open files by folder: a dropped table closes many logs, and each has a few of all files."""
        # Reentrant: a file whose last reference is dropped here closes here.
        self._lock = threading.RLock()
        self.handle_count = 0
        self.unsynced = UnsyncedFolders()

    @property
    def room(self) -> int:
        """How many more files can be opened for writing."""
        return max(self._handles_max - max(self.handle_count, self._cached_max), 0)

    def opened(self) -> None:
        with self._lock:
            self.handle_count += 1

    def closed(self) -> None:
        with self._lock:
            self.handle_count -= 1

    def __contains__(self, path: Path) -> bool:
        return path in self._files

    def get(self, path: Path, *, create: bool = False) -> SegmentFile:
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
        try:
            file = SegmentFile(path, create=create, pool=self)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            # Other parts of the process took what was left; idle files are the ones that can wait.
            self._close_idle(0)
            file = SegmentFile(path, create=create, pool=self)
        with self._lock:
            self._files[path] = file
            self._paths.setdefault(path.parent, set()).add(path)
        self._close_idle(self._cached_max)
        return file

    def _close_idle(self, count_max: int) -> None:
        while True:
            with self._lock:
                if len(self._files) <= count_max:
                    return
                path, file = self._files.popitem(last=False)
                self._evict_path(path)
            del file

    def evict(self, path: Path) -> None:
        with self._lock:
            if self._files.pop(path, None) is not None:
                self._evict_path(path)

    def evict_under(self, folder: Path) -> None:
        """Evict the files that lie in a folder, not those in folders below it."""
        with self._lock:
            for path in self._paths.pop(folder, ()):
                del self._files[path]

    def _evict_path(self, path: Path) -> None:
        folder = path.parent
        paths = self._paths[folder]
        paths.discard(path)
        if not paths:
            del self._paths[folder]


class UnsyncedFolders:
    """Folders with new names that a power cut could still take, until a caller that needs them durable flushes them.

    Buckets share the folders above them. The one that creates a folder may fail to flush it, so the others look here.
    """

    def __init__(self) -> None:
        self._versions: dict[Path, int] = {}
        self._version = 0
        self._lock = threading.Lock()

    def add(self, folders: Iterable[Path]) -> None:
        with self._lock:
            for folder in folders:
                self._version += 1
                self._versions[folder] = self._version

    def among(self, folders: Iterable[Path]) -> tuple[Path, ...]:
        return tuple(folder for folder in folders if folder in self._versions)

    def sync(self, folders: Iterable[Path]) -> None:
        """Flush those of the folders that need it. Runs in a thread."""
        for folder in folders:
            version = self._versions.get(folder)
            if version is None:
                continue
            disk.sync_folder(folder)
            with self._lock:
                if self._versions.get(folder) == version:
                    del self._versions[folder]

    def evict_under(self, folder: Path) -> None:
        with self._lock:
            for known in [known for known in self._versions if known == folder or folder in known.parents]:
                del self._versions[known]


_SMALL_BATCHES_BYTES = 256 * 1024


class BadBatch(Exception):
    """The bytes at a position of a file are no batch, or not a whole one."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class ReadableFile(Protocol):
    def read(self, position: int, size_bytes: int) -> memoryview: ...


def walk_file(
    file: ReadableFile,
    position: int,
    end: int,
    window_bytes: int,
    wanted: Callable[[int], bool] | None = None,
    *,
    headers_only: bool = False,
) -> Iterator[tuple[memoryview, BatchSpan, int]]:
    """All batches between two positions: the bytes read, where the batch lies in them, and its position in the file.

    Checksums are left to the caller. Raises BadBatch where the bytes stop being whole batches. `wanted` is asked, with
    its size, whether more has to be read for a batch that goes on beyond what was read; if not, the walk ends. With
    `headers_only`, what was read may lack the end of a batch, which the caller knows to be there; where batches are so
    small that several are read at once, more is read at a time.
    """
    size_bytes = window_bytes
    while position < end:
        view = _read_window(file, position, min(size_bytes, end - position))
        at = batches = 0
        while at < len(view):
            try:
                span = read_span(view, at, whole=not headers_only)
            except NeedMoreBytes as more:
                if at > 0:
                    if wanted is not None and not wanted(more.size_bytes):
                        return
                    break
                if position + more.size_bytes > end:
                    raise BadBatch(position, "the batch is cut off") from None
                view = read_whole(file, position, more.size_bytes)
                continue
            except FormatError as error:
                raise BadBatch(position + at, error.message) from None
            if position + span.end > end:
                raise BadBatch(position + at, "the batch is cut off")
            yield view, span, position + at
            at = span.end
            batches += 1
        if at == 0:
            raise BadBatch(position, "the file ends before the log does")
        position += at
        if headers_only:
            size_bytes = min(2 * size_bytes, _SMALL_BATCHES_BYTES) if batches > 1 else window_bytes


def read_whole(file: ReadableFile, position: int, size_bytes: int) -> memoryview:
    """Read one batch, or its header. Raises BadBatch when the file ends before that."""
    view = file.read(position, size_bytes)
    if len(view) < size_bytes:
        raise BadBatch(position, "the file ends inside the batch")
    return view


def _read_window(file: ReadableFile, position: int, size_bytes: int) -> memoryview:
    """Read some batches, or the first header if there are bytes behind it that cannot be read.

    A sector that is lost takes the batch with it that it is in, not those before.
    """
    try:
        return file.read(position, size_bytes)
    except DamagedLogError:
        return file.read(position, min(HEADER_SIZE_MIN, size_bytes))
