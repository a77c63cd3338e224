# SPDX-License-Identifier: Apache-2.0
"""One segment of a log: a file of batches and its indexes."""

from __future__ import annotations

import contextlib
import logging
import threading
import zlib
from pathlib import Path

from fluss.errors import LogStorageError
from fluss.server import disk
from fluss.server.log.errors import DamagedLogError
from fluss.server.log.files import OpenFiles, SegmentFile
from fluss.server.log.index import INT32_MAX, TIME_ENTRY_BYTES, SegmentIndex
from fluss.server.log.settings import LogSettings
from fluss.server.log.walk import BadBatch, BatchSpan, walk_file

logger = logging.getLogger("fluss.server.log")

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
        self._open_files.forget(self.path)
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

    def has_room(self, size_bytes: int, end_offset: int) -> bool:
        """Whether so many bytes more, which bring the log to this offset, may be appended. The first always may."""
        index, settings = self._index, self._settings
        return self.size_bytes == 0 or (
            self.size_bytes + size_bytes <= settings.segment_bytes_max
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
            disk.write_atomically(segment_path(self.folder, self.base_offset, INDEX_SUFFIX), offsets)
            disk.write_atomically(segment_path(self.folder, self.base_offset, TIME_INDEX_SUFFIX), times)
            if index.trusted:
                disk.write_atomically(
                    segment_path(self.folder, self.base_offset, INDEX_CHECK_SUFFIX), _index_check(offsets, times)
                )
            # Of an open segment a copy is written, which is soon behind.
            self._index_on_disk = index is self._index and index.trusted

    def discard_index(self) -> None:
        """The index told something that the log contradicts: build it from the log."""
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
