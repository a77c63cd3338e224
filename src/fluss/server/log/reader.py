# SPDX-License-Identifier: Apache-2.0
"""Reading a log: whole batches from an offset on, as they lie, or projected, or pruned by their statistics.

A plan is made on the event loop; carrying it out touches only files and may run in a thread. Every batch that is served
is checked first: its checksum, and that its offset and time follow those before it, which the checksum leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from fluss.errors import LogOffsetOutOfRangeError
from fluss.records.log_batch import BatchSpan, crc_fits, read_span
from fluss.server import disk
from fluss.server.log.files import BadBatch, DamagedLogError, FileRange, SegmentFile, read_whole, walk_file
from fluss.server.log.projection import Buffer, Projection
from fluss.server.log.segment import Segment, SegmentIndex
from fluss.server.log.tablet import LogTablet

Filter = Callable[[memoryview, BatchSpan], bool]

_SCAN_BYTES_MAX = 32 * 1024 * 1024
"""What is read for one answer, however little of it is wanted: the reader can work on it while more is read."""
_WINDOW_BYTES_MAX = 1024 * 1024
"""Bytes per read. What is read is checked while it is in the cache of the processor, and its memory is used again."""
_PROBED_BYTES_MAX = 2 * _WINDOW_BYTES_MAX
"""A batch that lies behind another one, which the sparse index leaves."""
_HEADERS_BYTES = 4096
"""Bytes per read of headers: of large batches little else is read, and one read has those of some small ones."""
_LARGE_BYTES_MIN = 256 * 1024
_QUICK_BATCHES_MAX = 32
FILTERED_SEGMENTS_MAX = 16


@dataclass(frozen=True)
class ReadPlan:
    """What to read: from ``offset`` in the first of some segments up to the readable end of the last."""

    tablet: LogTablet
    offset: int
    segments: tuple[tuple[Segment, int, int], ...]
    """Segments, the position up to which to read, and the offset there. More than one only with a filter."""
    bytes_max: int
    first_batch_always: bool
    projection: Projection | None = None
    may_match: Filter | None = None

    @property
    def is_large(self) -> bool:
        """Large answers are sent from the file; this process only reads them."""
        return self.bytes_max >= _LARGE_BYTES_MIN

    @property
    def is_plain(self) -> bool:
        """Batches go out as they lie."""
        return self.projection is None and self.may_match is None

    @property
    def is_quick(self) -> bool:
        """A few batches that were checked before and go out as they lie: only their headers are read."""
        if len(self.segments) != 1 or not self.is_plain:
            return False
        segment, end, _ = self.segments[0]
        if not segment.index_is_loaded:
            return False
        start, _ = segment.position_at_or_before(max(self.offset, segment.base_offset))
        end = min(end, start + self._answer_bytes)
        # The index has an entry for every batch that is not tiny.
        return segment.is_checked(start, end) and segment.index.count_between(start, end) <= _QUICK_BATCHES_MAX

    @property
    def is_cached(self) -> bool:
        """Whether the read need not wait for the disk."""
        left = _PROBED_BYTES_MAX
        for segment, end, _ in self.segments:
            if not segment.is_open:
                return False
            start, _ = segment.position_at_or_before(max(self.offset, segment.base_offset))
            if left > 0 and start < end and not disk.is_cached(segment.file.fd, start, min(end - start, left)):
                return False
            left -= end - start
        return True

    @property
    def _answer_bytes(self) -> int:
        """Enough for the answer and for the batches before it that the sparse index leaves."""
        return max(self.bytes_max, 64 * 1024) + 64 * 1024

    @property
    def window_bytes(self) -> int:
        """Bytes per read."""
        return min(self._answer_bytes, _WINDOW_BYTES_MAX)


@dataclass
class ReadResult:
    parts: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    filtered_end_offset: int | None = None


def resolve_offset(tablet: LogTablet, offset: int) -> int:
    """Check a fetch offset; -2 stands for the earliest."""
    tablet.check_usable()
    if offset == -2:
        return tablet.earliest_offset
    if offset < tablet.earliest_offset or offset > tablet.end_offset:
        raise LogOffsetOutOfRangeError(
            f"offset {offset} of {tablet.bucket} is out of range; the log has the offsets "
            f"{tablet.earliest_offset} to {tablet.end_offset}"
        )
    return offset


def readable_bytes(tablet: LogTablet, offset: int) -> int:
    """About how many bytes a client can read from ``offset``; exact enough to decide whether to wait.

    Too many as long as the index is not in memory: it is not to be read on the event loop.
    """
    if offset >= tablet.high_watermark or tablet.committed_segment is None:
        return 0
    segment = tablet.segment_of(offset)
    if segment is None:
        return 0
    if segment is not tablet.committed_segment:
        return max(tablet.committed_position, 1) + segment.size_bytes
    position = segment.position_at_or_before(offset)[0] if segment.index_is_loaded else 0
    return max(tablet.readable_end(segment) - position, 1)


def plan_read(
    tablet: LogTablet,
    offset: int,
    bytes_max: int,
    *,
    first_batch_always: bool,
    projection: Projection | None = None,
    may_match: Filter | None = None,
) -> ReadPlan:
    """Decide what to read from a resolved offset."""
    segments: list[tuple[Segment, int, int]] = []
    if offset < tablet.high_watermark and (bytes_max > 0 or first_batch_always):
        segment = tablet.segment_of(offset)
        at = tablet.segments.index(segment) if segment is not None else len(tablet.segments)
        count = FILTERED_SEGMENTS_MAX if may_match is not None else 1
        for candidate in tablet.segments[at : at + count]:
            end_offset = candidate.end_offset
            if candidate is tablet.committed_segment:
                end_offset = tablet.high_watermark
            # A file that should hold offsets and is empty belongs in the plan as well: reading it reports the damage.
            if candidate.base_offset < min(end_offset, tablet.high_watermark):
                segments.append((candidate, tablet.readable_end(candidate), end_offset))
    return ReadPlan(tablet, offset, tuple(segments), bytes_max, first_batch_always, projection, may_match)


def read(plan: ReadPlan) -> ReadResult:
    """Carry out a plan. May run in a thread. Raises DamagedLogError."""
    reading = _Reading(plan)
    try:
        for segment, end, end_offset in plan.segments:
            if not reading.run(segment, end, end_offset):
                break
    except DamagedLogError as error:
        plan.tablet.report_damage(error)
        raise
    return reading.result


class _Reading:
    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.result = ReadResult()
        self.scanned_bytes = 0
        self._full = False

    def run(self, segment: Segment, end: int, end_offset: int) -> bool:
        """Read one segment; False when the answer is full."""
        try:
            return self._run(segment, end, end_offset)
        except DamagedLogError:
            # What lies before the damage can be served; the reader meets the damage with its next request.
            if not self.result.parts:
                raise
            return False

    def _run(self, segment: Segment, end: int, end_offset: int) -> bool:
        wanted = max(self.plan.offset, segment.base_offset)
        try:
            return self._walk(segment, *segment.position_at_or_before(wanted), end, end_offset)
        except _IndexMismatch:
            # The index is only a hint. Rebuild it from the log; if the log itself is broken, that is said below.
            segment.discard_index()
            if self.result.parts:
                return False  # what is in the answer is not read again; the next request goes on behind it
            try:
                return self._walk(segment, *segment.position_at_or_before(wanted), end, end_offset)
            except _IndexMismatch as mismatch:
                raise _damaged(segment, mismatch.position, mismatch.reason) from None

    def _walk(self, segment: Segment, start: int, indexed_last: int | None, end: int, end_offset: int) -> bool:
        plan = self.plan
        file = segment.file
        expected = segment.base_offset if start == 0 else None
        newest = -1
        position = start
        index = segment.index
        indexed_at, indexed_times = index.positions, index.timestamps
        entry = index.entry_at_or_after(start)
        run = _Run(segment, file, self.result.parts, in_memory=not plan.is_large)
        headers_only = self._headers_only(segment, file, start, end)
        window_bytes = _HEADERS_BYTES if headers_only else plan.window_bytes
        batches = walk_file(file, start, end, window_bytes, self._has_room, headers_only=headers_only)
        try:
            for view, span, position in batches:
                if expected is None:
                    if span.last_offset != indexed_last or span.base_offset < segment.base_offset:
                        raise _IndexMismatch(position, "the index points to another batch")
                elif span.base_offset != expected:
                    raise _damaged_or_index(
                        segment, position, start, f"the base offset is {span.base_offset}, expected {expected}"
                    )
                if span.timestamp < newest:
                    raise _damaged(segment, position, f"the timestamp {span.timestamp} is older than the one before")
                if entry < len(indexed_at) and (position == indexed_at[entry] or span.timestamp > indexed_times[entry]):
                    entry += _check_with_index(segment, index, entry, span.timestamp, position)
                expected, newest = span.last_offset + 1, span.timestamp
                if span.last_offset < plan.offset:
                    continue
                if not self._has_room(span.end - span.start):
                    return False
                parts = self._cut_again(view, span, file, position)
                # A client checks a whole batch again. Of parts of a batch this is the only check there is.
                if parts is None and not (
                    plan.is_plain and segment.is_checked(position, position + span.end - span.start)
                ):
                    if span.end > len(view):
                        view = read_whole(file, position, span.end - span.start)
                        span = read_span(view, 0)
                    _check_crc(segment, view, span, position)
                if not self._take(view, span, position, run, parts):
                    return False
        except BadBatch as bad:
            raise _damaged_or_index(segment, bad.position, start, bad.reason) from None
        finally:
            run.flush()
        if self._full:
            return False
        if expected != end_offset:
            raise _damaged(segment, position, f"the file ends at offset {expected}, expected {end_offset}")
        return True

    def _headers_only(self, segment: Segment, file: SegmentFile, start: int, end: int) -> bool:
        """Whether to read only the headers of batches, which were checked before, or those and the wanted columns."""
        plan = self.plan
        if plan.projection is not None:
            known = plan.may_match is None and plan.projection.is_known(plan.tablet.bucket, plan.offset)
        else:
            known = plan.is_large and plan.is_plain and segment.is_checked(start, min(end, start + plan.window_bytes))
        return known and file.size_bytes >= end

    def _cut_again(
        self, view: memoryview, span: BatchSpan, file: SegmentFile, position: int
    ) -> Sequence[Buffer] | None:
        """Return the wanted columns of a batch that was checked before, or None if it has to be checked."""
        projection, bucket = self.plan.projection, self.plan.tablet.bucket
        # Statistics decide whether a filter passes over a batch, and no projection has them.
        if projection is None or self.plan.may_match is not None:
            return None
        return projection.cut_again(
            bucket, view, span, lambda part: file.read(position + part.start, part.stop - part.start)
        )

    def _has_room(self, size_bytes: int) -> bool:
        """False when a batch of this size surely has no place in the answer, so that it need not be read."""
        result = self.result
        if self.plan.is_plain and result.size_bytes and result.size_bytes + size_bytes > self.plan.bytes_max:
            self._full = True
        return not self._full

    def _take(
        self, view: memoryview, span: BatchSpan, position: int, run: _Run, parts: Sequence[Buffer] | None
    ) -> bool:
        """Put a checked batch, or `parts` of it, into the answer, if it is wanted and fits; False when that is full."""
        plan, result = self.plan, self.result
        size = span.end - span.start if parts is None else sum(map(len, parts))
        self.scanned_bytes += size
        if plan.may_match is not None and not plan.may_match(view, span):
            result.filtered_end_offset = span.last_offset + 1
            return self.scanned_bytes <= _SCAN_BYTES_MAX
        if parts is None and plan.projection is not None and span.record_count > 0:
            parts = plan.projection.cut_intact(plan.tablet.bucket, view, span)
            size = sum(map(len, parts))
        if result.size_bytes + size > plan.bytes_max and (result.size_bytes > 0 or not plan.first_batch_always):
            return False
        result.size_bytes += size
        if parts is not None:
            result.parts.extend(parts)
        else:
            run.add(view, span, position)
        if plan.may_match is not None:
            result.filtered_end_offset = span.last_offset + 1
        return result.size_bytes < plan.bytes_max and self.scanned_bytes <= _SCAN_BYTES_MAX


class _Run:
    """Neighbouring batches become one part: a piece of the memory they were read into, or a range of the file."""

    def __init__(self, segment: Segment, file: SegmentFile, parts: list[Buffer], *, in_memory: bool) -> None:
        self._segment = segment
        self._file = file
        self._parts = parts
        self._in_memory = in_memory
        self._view: memoryview | None = None
        self._start = self._end = 0

    def add(self, view: memoryview, span: BatchSpan, position: int) -> None:
        start, end = (span.start, span.end) if self._in_memory else (position, position + span.end - span.start)
        if self._view is not None and self._end == start and (view is self._view or not self._in_memory):
            self._end = end
            return
        self.flush()
        self._view, self._start, self._end = view, start, end

    def flush(self) -> None:
        if self._view is None:
            return
        if self._in_memory:
            self._parts.append(self._view[self._start : self._end])
        else:
            # To the encoders of messages a range of a file is as good as its bytes: they ask for its length only.
            size_bytes = self._end - self._start
            self._parts.append(cast(Buffer, FileRange(self._file, self._start, size_bytes, self._segment.doubt)))
        self._view = None


class _IndexMismatch(Exception):
    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


def _check_with_index(segment: Segment, index: SegmentIndex, entry: int, timestamp: int, position: int) -> bool:
    """Compare the time of a batch with the next entry of the index; True if the entry is that of the batch.

    Offset and time of a batch lie outside its checksum; the index has them as well.
    """
    known = index.positions[entry] == position
    latest = index.timestamps[entry]
    if timestamp > latest or (known and timestamp != latest):
        reason = f"the timestamp {timestamp} is not the one of the index, {latest}"
        raise _damaged(segment, position, reason) if index.trusted else _IndexMismatch(position, reason)
    return known


def _check_crc(segment: Segment, view: memoryview, span: BatchSpan, position: int) -> None:
    if not crc_fits(view, span):
        raise _damaged(segment, position, "the checksum does not fit")
    segment.note_checked(position, position + span.end - span.start)


def _damaged_or_index(segment: Segment, position: int, start: int, reason: str) -> Exception:
    if position == start and start > 0:
        return _IndexMismatch(position, reason)
    return _damaged(segment, position, reason)


def _damaged(segment: Segment, position: int, reason: str) -> DamagedLogError:
    return DamagedLogError(
        f"the log file '{segment.path}' is damaged at byte {position}: {reason}. "
        "Rows behind that byte cannot be served; restore the file from a copy, or drop the table."
    )


def offset_for_timestamp(tablet: LogTablet, timestamp: int) -> int:
    """The base offset of the batch from which on all are at least as new; the high watermark when there is none.

    Time falls behind segments that a wrong clock stamped ahead: those are no newer than the one behind them.
    """
    found: int | None = None
    for base_offset, newest, search in _searches(tablet, timestamp):
        if newest < timestamp:
            found = None
            continue
        offset = search()
        if found is None or offset != base_offset:
            found = offset
        if newest <= tablet.max_timestamp:
            break
    return tablet.high_watermark if found is None else found


def _searches(tablet: LogTablet, timestamp: int) -> Iterator[tuple[int, int, Callable[[], int | None]]]:
    """The first offset of each segment, its newest time, and a search for its first batch that is at least as new."""
    if (remote := tablet.remote) is not None:
        for old in remote.segments:
            yield old.start_offset, old.max_timestamp, partial(remote.offset_for_timestamp, old, timestamp)
    for segment in tuple(tablet.segments):  # the event loop takes out those that expire
        end = tablet.readable_end(segment)
        if end > 0:
            yield segment.base_offset, segment.max_timestamp, partial(_first_at, segment, end, timestamp)


def _first_at(segment: Segment, end: int, timestamp: int) -> int | None:
    entry = segment.index.before_timestamp(timestamp)
    try:
        for _, span, _ in walk_file(segment.file, entry[1] if entry else 0, end, _WINDOW_BYTES_MAX):
            if span.timestamp >= timestamp:
                return span.base_offset
    except BadBatch as bad:
        raise _damaged(segment, bad.position, bad.reason) from None
    return None
