# SPDX-License-Identifier: Apache-2.0
"""One segment of a log: a file of batches, and its sparse indexes (offset to position, timestamp to offset).

Indexes are packed arrays in memory and are written as whole files. The formats are those of the remote log
(big-endian), so that the files can be copied there as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fluss.errors import LogStorageError
from fluss.records.log_batch import BatchSpan
from fluss.server import disk
from fluss.server.config import ServerConfig
from fluss.server.log.files import BadBatch, DamagedLogError, OpenFiles, SegmentFile, walk_file

logger = logging.getLogger("fluss.server.log")

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
_TIME_DTYPE = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
INT32_MAX = 2**31 - 1


class SegmentIndex:
    """Both indexes of one segment. Offsets are relative to the segment's base offset.

    An entry stands for one batch: its last offset, its position, its commit timestamp and its first offset. Timestamps
    never fall along a log, so the time index is sorted as well.
    """

    __slots__ = ("first_offsets", "last_offsets", "positions", "timestamps", "trusted")

    def __init__(self) -> None:
        self.trusted = False
        """Known to be what was written, so that a batch which contradicts it is damaged, and not the index."""
        self.last_offsets = array("i")
        self.positions = array("i")
        self.timestamps = array("q")
        self.first_offsets = array("i")

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def size_bytes(self) -> int:
        """Size of the larger of the two files."""
        return len(self.positions) * TIME_ENTRY_BYTES

    def append(self, last_offset: int, position: int, timestamp: int, first_offset: int) -> None:
        self.last_offsets.append(last_offset)
        self.positions.append(position)
        self.timestamps.append(timestamp)
        self.first_offsets.append(first_offset)

    def floor(self, offset: int) -> tuple[int, int] | None:
        """The last entry whose batch ends at or before ``offset``: its last offset and its position."""
        at = bisect_right(self.last_offsets, offset) - 1
        return None if at < 0 else (self.last_offsets[at], self.positions[at])

    def before_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry older than ``timestamp``: its last offset and its position."""
        at = bisect_left(self.timestamps, timestamp) - 1
        return None if at < 0 else (self.last_offsets[at], self.positions[at])

    def entry_at_or_after(self, position: int) -> int:
        """The number of the first entry that does not lie before a position."""
        return bisect_left(self.positions, position)

    def count_between(self, start: int, end: int) -> int:
        """How many entries lie from one position up to another."""
        return bisect_left(self.positions, end) - bisect_left(self.positions, start)

    def truncate(self, position: int) -> None:
        """Drop the entries at or after a position."""
        keep = bisect_left(self.positions, position)
        for values in (self.last_offsets, self.positions, self.timestamps, self.first_offsets):
            del values[keep:]

    def copy(self) -> SegmentIndex:
        other = SegmentIndex()
        other.trusted = self.trusted
        other.last_offsets = self.last_offsets[:]
        other.positions = self.positions[:]
        other.timestamps = self.timestamps[:]
        other.first_offsets = self.first_offsets[:]
        return other

    def offset_file(self) -> bytes:
        pairs = np.empty((len(self), 2), dtype=">i4")
        pairs[:, 0] = np.frombuffer(self.last_offsets, dtype=np.int32) if len(self) else ()
        pairs[:, 1] = np.frombuffer(self.positions, dtype=np.int32) if len(self) else ()
        return pairs.tobytes()

    def time_file(self) -> bytes:
        entries = np.empty(len(self), dtype=_TIME_DTYPE)
        if len(self):
            entries["timestamp"] = np.frombuffer(self.timestamps, dtype=np.int64)
            entries["offset"] = np.frombuffer(self.first_offsets, dtype=np.int32)
        return entries.tobytes()

    @classmethod
    def parse(cls, offset_file: bytes, time_file: bytes, limit_bytes: int) -> SegmentIndex | None:
        """Read the files back; None when they cannot be what was written, so that they are rebuilt.

        What passes here is still only a hint: a reader compares every entry that it uses with the batch found there.
        """
        count, rest = divmod(len(offset_file), OFFSET_ENTRY_BYTES)
        if rest or len(time_file) != count * TIME_ENTRY_BYTES:
            return None
        index = cls()
        if count == 0:
            return index
        pairs = np.frombuffer(offset_file, dtype=">i4").reshape(-1, 2).astype(np.int32)
        times = np.frombuffer(time_file, dtype=_TIME_DTYPE)
        timestamps, first = times["timestamp"].astype(np.int64), times["offset"].astype(np.int32)
        if (
            pairs.min() < 0
            or int(pairs[-1, 1]) >= limit_bytes
            or not bool(np.all(np.diff(pairs.astype(np.int64), axis=0) > 0))
            or not bool(np.all(np.diff(timestamps) >= 0))
            or not bool(np.all((first >= 0) & (first <= pairs[:, 0])))
        ):
            return None
        index.last_offsets.frombytes(np.ascontiguousarray(pairs[:, 0]).tobytes())
        index.positions.frombytes(np.ascontiguousarray(pairs[:, 1]).tobytes())
        index.timestamps.frombytes(timestamps.tobytes())
        index.first_offsets.frombytes(first.tobytes())
        return index


@dataclass(frozen=True)
class LogSettings:
    segment_bytes_max: int = 1024 * 1024 * 1024
    index_bytes_max: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    recovery_point_interval_bytes: int = 64 * 1024 * 1024

    @classmethod
    def from_config(cls, config: ServerConfig) -> LogSettings:
        return cls(
            # A position in an index entry is an int32.
            segment_bytes_max=min(config.integer("log.segment.file-size"), 2**31 - 1),
            index_bytes_max=config.integer("log.index.file-size"),
            index_interval_bytes=config.integer("log.index.interval-size"),
            recovery_point_interval_bytes=config.integer("log.recovery-point.interval-size"),
        )


LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
INDEX_CHECK_SUFFIX = ".indexcheck"
"""Checksums of the two index files. Their own format, which the remote log shares, has no room for one."""
WRITER_SNAPSHOT_SUFFIX = ".writer_snapshot"
SCAN_WINDOW_BYTES = 8 * 1024 * 1024


def _index_check(offsets: bytes, times: bytes) -> bytes:
    return f"{zlib.crc32(offsets):08x} {zlib.crc32(times):08x}\n".encode()


def segment_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def segment_path(folder: Path, offset: int, suffix: str) -> Path:
    return folder / segment_name(offset, suffix)


class Segment:
    """A part of a log that starts at ``base_offset``. The last segment of a log is open, the others are closed."""

    def __init__(self, folder: Path, base_offset: int, settings: LogSettings, open_files: OpenFiles) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.path = segment_path(folder, base_offset, LOG_SUFFIX)
        self._settings = settings
        self._open_files = open_files
        self._index: SegmentIndex | None = None
        self._index_used = False
        """Whether it was asked for since the last look for idle ones."""
        self._index_on_disk = False
        """Whether its files say the same."""
        self._index_lock = threading.Lock()
        self._index_files_lock = threading.Lock()
        self._max_timestamp: int | None = None
        self._checked = (0, 0)
        self.size_bytes = 0
        self.end_offset = base_offset
        self.bytes_since_entry = settings.index_interval_bytes + 1  # so that the first batch gets an entry

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}..{self.end_offset}, {self.size_bytes} bytes)"

    # Files -------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Begin an empty segment. Whatever a crash left under this name is cut away."""
        self._open_files.get(self.path, create=True).truncate(0)
        self._index = SegmentIndex()
        self._index.trusted = True
        self._max_timestamp = -1

    def cut(self) -> None:
        """Cut what a failed write left after the last batch, before the segment is closed and copied as it is."""
        file = self.file
        if file.size_bytes > self.size_bytes:
            file.truncate(self.size_bytes)
            file.sync()

    def open_for_append(self, index: SegmentIndex) -> None:
        self._index = index

    @property
    def is_open(self) -> bool:
        """Whether appends can go on without opening the file or reading the index first."""
        return self._index is not None and self.path in self._open_files

    @property
    def file(self) -> SegmentFile:
        """The open file. Raises DamagedLogError when it is gone, LogStorageError when it cannot be opened now."""
        try:
            return self._open_files.get(self.path)
        except FileNotFoundError as error:
            raise DamagedLogError(f"the log file '{self.path}' cannot be opened: {error.strerror}") from None
        except OSError as error:
            raise LogStorageError(
                f"the log file '{self.path}' cannot be opened now: {error.strerror}. Retry later."
            ) from None

    def delete(self) -> None:
        """Delete the files. Raises OSError when the log file itself remains."""
        self._open_files.evict(self.path)
        disk.unlink_if_there(self.path)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, INDEX_CHECK_SUFFIX):
            try:
                disk.unlink_if_there(segment_path(self.folder, self.base_offset, suffix))
            except OSError as error:
                # Without its log file an index is never read.
                logger.warning("an index of '%s' remains after it was deleted: %s", self.path, error)

    # Index -------------------------------------------------------------------------------------------------------

    @property
    def index(self) -> SegmentIndex:
        """The indexes; those of a segment that nothing was appended to are read when first needed.

        They are rebuilt if they are unusable.
        """
        self._index_used = True
        index = self._index
        if index is None:
            with self._index_lock:
                index = self._index
                if index is None:
                    index = self.load_index(self.size_bytes)
                    self._index_on_disk = index is not None
                    index = self._index = index or self.rebuild_index()
        return index

    def release_idle_index(self) -> None:
        """Free the index of a closed segment that was not used since the last call; it is read again when needed.

        An index takes up to 5 MB for each GB of the log.
        """
        if not self._index_used and self._index_on_disk:
            self._index = None
        self._index_used = False

    @property
    def index_is_loaded(self) -> bool:
        return self._index is not None

    def has_room(self, size_bytes: int, end_offset: int, *, falls: bool = False) -> bool:
        """Whether so many bytes more, which bring the log to this offset, may be appended. The first always may.

        What has an earlier time than the last may not.
        """
        index, settings = self._index, self._settings
        return self.size_bytes == 0 or (
            not falls
            and self.size_bytes + size_bytes <= settings.segment_bytes_max
            and end_offset - self.base_offset <= INT32_MAX
            and (index is None or index.size_bytes + TIME_ENTRY_BYTES <= settings.index_bytes_max)
        )

    def load_index(self, limit_bytes: int) -> SegmentIndex | None:
        try:
            offsets = disk.read_file(segment_path(self.folder, self.base_offset, INDEX_SUFFIX))
            times = disk.read_file(segment_path(self.folder, self.base_offset, TIME_INDEX_SUFFIX))
        except OSError:
            return None
        index = SegmentIndex.parse(offsets, times, limit_bytes)
        if index is not None:
            with contextlib.suppress(OSError):
                check = disk.read_file(segment_path(self.folder, self.base_offset, INDEX_CHECK_SUFFIX))
                index.trusted = check == _index_check(offsets, times)
        return index

    def write_index(self, index: SegmentIndex) -> None:
        offsets, times = index.offset_file(), index.time_file()
        # A reader that rebuilt the index and a recovery point may come at the same time.
        with self._index_files_lock:
            check_path = segment_path(self.folder, self.base_offset, INDEX_CHECK_SUFFIX)
            if not index.trusted:
                disk.unlink_if_there(check_path)  # of an index that was: its files might come out the same
            disk.write_atomically(segment_path(self.folder, self.base_offset, INDEX_SUFFIX), offsets)
            disk.write_atomically(segment_path(self.folder, self.base_offset, TIME_INDEX_SUFFIX), times)
            if index.trusted:
                disk.write_atomically(check_path, _index_check(offsets, times))
            # Of an open segment a copy is written, which is soon behind.
            self._index_on_disk = index is self._index

    def discard_index(self) -> None:
        """The index says something that the log contradicts: build it from the log."""
        with self._index_lock:
            self._index = self.rebuild_index()
            self._index_on_disk = False

    def rebuild_index(self) -> SegmentIndex:
        """Read the whole segment; a batch that is damaged ends the index, not the segment."""
        index = SegmentIndex()
        since = self._settings.index_interval_bytes + 1
        expected = self.base_offset
        try:
            for _, span, position in walk_file(self.file, 0, self.size_bytes, SCAN_WINDOW_BYTES):
                if span.base_offset != expected:
                    return index
                since = self._index_batch(index, span, position, since)
                expected = span.last_offset + 1
        except BadBatch:
            return index
        self.write_index(index)
        return index

    def _index_batch(self, index: SegmentIndex, span: BatchSpan, position: int, since: int) -> int:
        if since > self._settings.index_interval_bytes:
            base = self.base_offset
            index.append(span.last_offset - base, position, span.timestamp, span.base_offset - base)
            since = 0
        return since + span.end - span.start

    # State -------------------------------------------------------------------------------------------------------

    def note_batch(self, span: BatchSpan, position: int) -> None:
        """Record a batch that lies at ``position`` of the file."""
        self.bytes_since_entry = self._index_batch(self.index, span, position, self.bytes_since_entry)
        self._index_on_disk = False
        self.size_bytes = position + span.end - span.start
        self.end_offset = span.last_offset + 1
        self._max_timestamp = span.timestamp

    def is_checked(self, start: int, end: int) -> bool:
        """Whether the bytes of this range fitted their checksums once, since this segment was opened."""
        checked = self._checked
        return checked[0] <= start and end <= checked[1]

    def doubt(self) -> None:
        """Something is wrong with the file: believe no earlier check."""
        self._checked = (0, 0)

    def note_checked(self, start: int, end: int) -> None:
        """The checksums of this range fit. One range is remembered: logs are written and read from front to back."""
        first, last = self._checked
        if first <= start <= last:
            self._checked = (first, max(last, end))
        elif end - start > last - first:
            self._checked = (start, end)

    @property
    def max_timestamp(self) -> int:
        """The newest commit timestamp; -1 for an empty segment."""
        if self._max_timestamp is None:
            self._max_timestamp = self._find_max_timestamp()
        return self._max_timestamp

    @max_timestamp.setter
    def max_timestamp(self, value: int) -> None:
        self._max_timestamp = value

    def _find_max_timestamp(self) -> int:
        newest = -1
        index = self.index
        start = index.positions[-1] if len(index) else 0
        with contextlib.suppress(BadBatch):
            for _, span, _ in walk_file(self.file, start, self.size_bytes, SCAN_WINDOW_BYTES):
                newest = max(newest, span.timestamp)
        return newest

    def position_at_or_before(self, offset: int) -> tuple[int, int | None]:
        """Where to start looking for ``offset``: a position, and the last offset of the batch that lies there
        according to the index (None at the start of the segment)."""
        entry = self.index.floor(offset - self.base_offset)
        if entry is None:
            return 0, None
        return entry[1], self.base_offset + entry[0]


def expired_count(newest: Iterable[int], oldest_kept_ms: int, now_ms: int) -> int:
    """Return how many segments have expired, by the time of the newest row of each (-1: unknown), oldest first.

    One that a wrong clock stamped ahead of now is no newer than the one behind it.
    """
    count = 0
    for number, timestamp in enumerate(newest, 1):
        if 0 <= timestamp < oldest_kept_ms:
            count = number
        elif 0 <= timestamp <= now_ms:
            break
    return count


class ExpiredSegments:
    """Segments of one log that no reader finds any more, and whose files are still there, oldest first.

    Args:
        recorded_start: Where the log begins according to its recovery point on disk.
    """

    def __init__(self, recorded_start: int = 0) -> None:
        self.recorded_start = recorded_start
        self._segments: list[Segment] = []  # an empty deque takes ten times the memory, for every log
        self.is_deleting = False
        """Whether a thread deletes files."""

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        self._segments.append(segment)

    async def delete(self, executor: Executor) -> int:
        """Delete the files in a thread, once a recovery point lies behind them; returns how many segments are gone.

        What fails is tried again next time.
        """
        if not self._segments or self.is_deleting:
            return 0
        self.is_deleting = True
        work = asyncio.get_running_loop().run_in_executor(executor, self.delete_now)
        work.add_done_callback(self._ended)
        return await work

    def _ended(self, _: asyncio.Future[int]) -> None:
        self.is_deleting = False

    def delete_now(self) -> int:
        """Delete the files. Runs in a thread."""
        count = 0
        while self._segments and self._segments[0].end_offset <= self.recorded_start:
            segment = self._segments[0]
            try:
                segment.delete()
            except OSError as error:
                logger.error("cannot delete '%s', it is tried again later: %s", segment.path, error)
                break
            del self._segments[0]
            count += 1
        return count
