# SPDX-License-Identifier: Apache-2.0
"""Opening a log that is on disk.

A recovery point says up to which position everything was flushed, indexed and taken into the writers' state. What lies
below it is trusted now and checked when it is read; what lies above is read and checked here. The end of that part may
be torn by a crash and is cut, but never below the committed offset: what was acknowledged and is broken now was not
torn by a crash. The bucket is put out of service then, and the damage reported.

Paths that are read only once are text here: joining them as `Path` would be a fifth of the start with many tables.
"""

from __future__ import annotations

import itertools
import json
import logging
import struct
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from fluss.errors import FormatError
from fluss.metadata import TableBucket
from fluss.records.log_batch import BatchSpan, crc_fits
from fluss.server import disk
from fluss.server.log.files import BadBatch, DamagedLogError, OpenFiles, walk_file
from fluss.server.log.segment import (
    LOG_SUFFIX,
    SCAN_WINDOW_BYTES,
    WRITER_SNAPSHOT_SUFFIX,
    LogSettings,
    Segment,
    SegmentIndex,
    segment_name,
    segment_path,
)
from fluss.server.log.writers import WriterStates

logger = logging.getLogger("fluss.server.log")

RECOVERY_POINT_NAME = "recovery-point"
COMMITTED_NAME = "committed"
ACCEPT_LOSS_NAME = "accept-data-loss"
"""An operator creates this file in the folder of a bucket whose data is lost for good."""
_COMMITTED = struct.Struct("<q")


@dataclass(frozen=True)
class RecoveryPoint:
    """Everything before ``position`` of the segment ``segment`` is on disk and accounted for."""

    segment: int
    position: int
    offset: int
    max_timestamp: int
    start: int
    """Where the log begins. Files of older segments are expired, whether they are deleted already or not. -1 if it is
    not known: earlier releases did not write it."""

    def to_bytes(self) -> bytes:
        return disk.seal(json.dumps({"version": 1, **asdict(self)}, separators=(",", ":")).encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> RecoveryPoint:
        try:
            document = {"start": -1, **json.loads(disk.unseal(data))}
            return cls(*(int(document[name]) for name in ("segment", "position", "offset", "max_timestamp", "start")))
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"recovery point: {error}") from None


@dataclass(frozen=True)
class Checkpoint:
    """A recovery point that becomes valid once the log is flushed."""

    segment: Segment
    index: SegmentIndex
    writers: bytes
    point: RecoveryPoint
    sealed: tuple[tuple[Segment, SegmentIndex, bytes], ...]
    """Segments closed since the last point, with the writers' state at their end."""


def write_checkpoint(checkpoint: Checkpoint) -> None:
    """Write a recovery point whose log was flushed. Runs in a thread.

    Its parts are written so that a crash between them leaves the point before in force.
    """
    folder, point = checkpoint.segment.folder, checkpoint.point
    for segment, index, writers in checkpoint.sealed:
        if disk.exists(segment.path):
            segment.write_index(index)
            disk.write_atomically(segment_path(folder, segment.end_offset, WRITER_SNAPSHOT_SUFFIX), writers)
    checkpoint.segment.write_index(checkpoint.index)
    disk.write_atomically(segment_path(folder, point.offset, WRITER_SNAPSHOT_SUFFIX), checkpoint.writers)
    disk.write_atomically(folder / RECOVERY_POINT_NAME, point.to_bytes())
    disk.sync_folder(folder)
    bases = set(_offsets(folder, LOG_SUFFIX))
    for offset in _offsets(folder, WRITER_SNAPSHOT_SUFFIX):
        # Snapshots at the start of a segment go with it to the remote log; the others serve recovery only.
        if offset not in bases and offset != point.offset:
            disk.unlink_if_there(segment_path(folder, offset, WRITER_SNAPSHOT_SUFFIX))


def _offsets(folder: Path, suffix: str) -> list[int]:
    """The offsets in the names of a log's files of one kind, ascending."""
    stems = (name.removesuffix(suffix) for name in disk.names(folder) if name.endswith(suffix))
    return [int(stem) for stem in stems if stem.isdigit() and len(stem) == 20]


def write_committed(path: Path, offset: int, open_files: OpenFiles, *, durable: bool = False) -> None:
    """Record the offset below which everything was flushed, after every flush.

    The mark itself is left to the operating system: it survives a crash of the process, and after a power cut it may be
    some seconds old, but never ahead of the log.
    """
    body = _COMMITTED.pack(offset)
    file = open_files.get(path, create=True)
    file.write((body + zlib.crc32(body).to_bytes(4, "little"),), 0)
    if durable:
        file.sync()


def read_committed(folder: Path) -> int:
    """The committed mark; 0 when there is none that can be trusted."""
    try:
        data = disk.read_file(f"{folder}/{COMMITTED_NAME}")
    except FileNotFoundError:
        return 0
    body = data[:8]
    if len(data) != 12 or zlib.crc32(body).to_bytes(4, "little") != data[8:]:
        logger.warning("'%s' is unusable; only the recovery point says what was acknowledged", folder / COMMITTED_NAME)
        return 0
    return int(_COMMITTED.unpack(body)[0])


def missing_data(bucket: TableBucket, folder: Path, what: str) -> DamagedLogError:
    """The error of a bucket that should have data and has none."""
    return DamagedLogError(
        f"data of {bucket} is missing: {what}. Restore the folder '{folder}' from a copy, or drop the table. To accept "
        "the loss and begin with an empty bucket: stop the server, empty the folder, create the file "
        f"'{folder / ACCEPT_LOSS_NAME}' and start it again."
    )


@dataclass
class RecoveredLog:
    segments: list[Segment]
    writers: WriterStates
    max_timestamp: int
    end_offset: int
    recovery_offset: int
    recorded_start: int
    scanned_bytes: int


def recover(folder: Path, settings: LogSettings, open_files: OpenFiles) -> RecoveredLog | None:
    """Open the log in a folder; None when there is none. Raises DamagedLogError."""
    point = _read_recovery_point(folder)
    recorded_start = point.start if point else 0
    found = _offsets(folder, LOG_SUFFIX)
    bases = [base for base in found if base >= recorded_start]
    committed = max(read_committed(folder), point.offset if point else 0)
    if not bases:
        if committed > 0:
            raise DamagedLogError(f"the log files of '{folder}' are gone, although offset {committed} was acknowledged")
        return None
    bases = _without_leftovers(folder, bases)
    if point is not None and 0 <= point.start < bases[0]:
        raise _gone(folder, point.start)
    segments = _find_segments(folder, bases, settings, open_files)
    # Without the writers' state the log has to be read from its beginning to know it again.
    writers = _read_writers(folder, point.offset) if point is not None else None
    if point is None or writers is None:
        start, position, scan = 0, 0, _Scan(WriterStates(), -1, bases[0])
    elif point.segment not in bases:
        raise _gone(folder, point.segment)
    else:
        start, position = bases.index(point.segment), point.position
        scan = _Scan(writers, point.max_timestamp, point.offset)
    checked_from = scan.next_offset
    _check_from(segments, start, position, scan, committed)
    if scan.next_offset < committed:
        raise DamagedLogError(
            f"the log file '{segments[-1].path}' was cut: it ends at offset {scan.next_offset}, although offsets up to "
            f"{committed} were acknowledged. Restore the file from a copy, or drop the table."
        )
    _delete_expired(folder, [base for base in found if base not in bases], settings, open_files)
    return RecoveredLog(
        segments, scan.writers, scan.max_timestamp, scan.next_offset, checked_from, recorded_start, scan.bytes
    )


def _gone(folder: Path, base_offset: int) -> DamagedLogError:
    return DamagedLogError(
        f"the log file '{segment_path(folder, base_offset, LOG_SUFFIX)}' is gone, although it was written. "
        "Restore the file from a copy, or drop the table."
    )


def _delete_expired(folder: Path, bases: list[int], settings: LogSettings, open_files: OpenFiles) -> None:
    """Delete files that are not part of the log, as those of segments that had expired. One that stays is ignored."""
    for base in bases:
        try:
            Segment(folder, base, settings, open_files).delete()
        except OSError as error:
            logger.warning("an old segment of '%s' cannot be deleted: %s", folder, error)


def _find_segments(folder: Path, bases: list[int], settings: LogSettings, open_files: OpenFiles) -> list[Segment]:
    segments = [Segment(folder, base, settings, open_files) for base in bases]
    for segment, following in itertools.pairwise(segments):
        segment.end_offset = following.base_offset
    for segment in segments:
        segment.size_bytes = disk.size_of(segment.path)
    return segments


def _without_leftovers(folder: Path, bases: list[int]) -> list[int]:
    """Leave out files that are empty and not the last: a segment that could not be begun left them."""
    return [base for base in bases if base == bases[-1] or disk.size_of(segment_path(folder, base, LOG_SUFFIX))]


def _check_from(segments: list[Segment], start: int, position: int, scan: _Scan, committed: int) -> None:
    """Read and check what lies above the recovery point, and cut a torn end."""
    for number in range(start, len(segments)):
        segment = segments[number]
        scan_from = position if number == start else 0
        if number > start and segment.base_offset < scan.next_offset and not segment.size_bytes:
            segments.pop().delete()  # it could not be begun, and the log went on in the one before
            break
        if segment.base_offset > scan.next_offset:
            if number == start or scan.next_offset < committed:
                raise DamagedLogError(
                    f"a log file before '{segment.path}' is gone: offset {scan.next_offset} is missing"
                )
            logger.warning(
                "deleting '%s' and later: offset %d before it was not flushed", segment.path, scan.next_offset
            )
            _delete_from(segments, number)
            break
        segment.end_offset, segment.max_timestamp = scan.next_offset, scan.max_timestamp
        if segment.size_bytes == scan_from > 0:
            # Nothing was written since. The index stays on disk until it is needed: there may be thousands of logs.
            continue
        index = _index_below(segment, scan_from) if scan_from > 0 else SegmentIndex()
        file_end = segment.size_bytes
        segment.size_bytes = scan_from
        segment.open_for_append(index)
        bad = scan.run(segment, scan_from, file_end)
        if segment.size_bytes > scan_from:
            # What was not flushed may be damaged where no checksum covers it. The index says the same then, and must
            # not be believed over the file that was put back.
            index.trusted = False
        if bad is not None:
            if scan.next_offset < committed:
                raise DamagedLogError(
                    f"the log file '{segment.path}' is damaged at byte {bad.position} (offset {scan.next_offset}): "
                    f"{bad.reason}. Offsets up to {committed} were acknowledged, so nothing is cut. "
                    "Restore the file from a copy, or drop the table."
                )
            _cut(segments, number, bad, file_end)
            break


def _index_below(segment: Segment, position: int) -> SegmentIndex:
    """Return the index of the part of a segment that was flushed; it is rebuilt if its file is unusable."""
    if segment.size_bytes < position:
        raise DamagedLogError(
            f"the log file '{segment.path}' was cut: it has {segment.size_bytes} bytes, {position} were written"
        )
    index = segment.load_index(segment.size_bytes)
    if index is None:
        logger.warning("the index of '%s' is unusable and is rebuilt", segment.path)
        file_end, segment.size_bytes = segment.size_bytes, position
        index = segment.rebuild_index()
        segment.size_bytes = file_end
    index.truncate(position)
    return index


def _read_recovery_point(folder: Path) -> RecoveryPoint | None:
    path = f"{folder}/{RECOVERY_POINT_NAME}"
    try:
        return RecoveryPoint.from_bytes(disk.read_file(path))
    except FileNotFoundError:
        return None
    except FormatError as error:
        logger.warning("'%s' is unusable (%s); the whole log is checked instead", path, error.message)
        return None


def _read_writers(folder: Path, offset: int) -> WriterStates | None:
    path = f"{folder}/{segment_name(offset, WRITER_SNAPSHOT_SUFFIX)}"
    try:
        return WriterStates.from_snapshot(disk.read_file(path))
    except (OSError, FormatError) as error:
        logger.warning("'%s' is unusable (%s); the whole log is read instead", path, error)
        return None


class _Scan:
    """Reads batches and collects what they say."""

    def __init__(self, writers: WriterStates, max_timestamp: int, next_offset: int) -> None:
        self.writers = writers
        self.max_timestamp = max_timestamp
        self.next_offset = next_offset
        self.bytes = 0

    def run(self, segment: Segment, start: int, end: int) -> BadBatch | None:
        """Record every good batch in its segment; the first bad one ends the scan."""
        newest = self.max_timestamp if start > 0 else -1
        try:
            for view, span, position in walk_file(segment.file, start, end, SCAN_WINDOW_BYTES):
                problem = self._problem(view, span, newest)
                if problem is not None:
                    return BadBatch(position, problem)
                segment.note_batch(span, position)
                newest = self.max_timestamp = span.timestamp
                self.next_offset = span.last_offset + 1
                self.bytes += span.end - span.start
                self.writers.record_span(span)
        except BadBatch as bad:
            return bad
        return None

    def _problem(self, view: memoryview, span: BatchSpan, newest: int) -> str | None:
        if span.base_offset != self.next_offset:
            return f"the base offset is {span.base_offset}, expected {self.next_offset}"
        if span.timestamp < newest:
            return f"the timestamp {span.timestamp} is older than the one before"
        if not crc_fits(view, span):
            return "the checksum does not fit"
        return None


def _cut(segments: list[Segment], number: int, bad: BadBatch, file_end: int) -> None:
    """Cut a torn tail: the rest of this segment and all later ones."""
    segment = segments[number]
    logger.warning(
        "cutting '%s' at byte %d of %d (offset %d), torn by a crash: %s",
        segment.path, bad.position, file_end, segment.end_offset, bad.reason,
    )  # fmt: skip
    segment.file.truncate(bad.position)
    disk.sync(segment.file.fd)
    _delete_from(segments, number + 1)
    if segment.size_bytes == 0 and number > 0 and segments[number - 1].end_offset != segment.base_offset:
        segments.pop().delete()


def _delete_from(segments: list[Segment], number: int) -> None:
    for later in segments[number:]:
        later.delete()
    del segments[number:]
