# SPDX-License-Identifier: Apache-2.0
"""One append: its batches, whether a writer repeats itself, its way into the file, and its waiters."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fluss.errors import CorruptRecordError, FormatError, LogStorageError, RequestTimeOutError
from fluss.metadata import TableBucket
from fluss.records.log_batch import BatchSpan, NeedMoreBytes, crc_fits, read_span
from fluss.server.log.files import SegmentFile
from fluss.server.log.segment import Segment
from fluss.server.log.writers import NO_WRITER_ID, WriterStates, WrittenBatch

logger = logging.getLogger("fluss.server.log")

_SERVED_AT_ONCE = 32


class AppendResult(NamedTuple):
    """What became of one append: the offset of its first record, and the offset after its last."""

    base_offset: int
    end_offset: int
    timestamp: int
    duplicate: bool = False


class Append(NamedTuple):
    """An append in flight: bytes that are written to the log."""

    records: memoryview
    spans: list[BatchSpan]
    timestamp: int
    segment: Segment
    position: int
    file: SegmentFile
    base_offset: int
    """Of the first record of the request, which may be one that was written before."""
    end_offset: int


WhenAppended = Callable[["AppendResult | Exception"], None]


def split_batches(records: memoryview) -> list[BatchSpan]:
    spans: list[BatchSpan] = []
    at = 0
    while at < len(records):
        try:
            span = read_span(records, at)
        except NeedMoreBytes:
            raise CorruptRecordError(
                f"the batch at byte {at} of the records is cut: {len(records) - at} bytes are left"
            ) from None
        except FormatError as error:
            raise CorruptRecordError(f"the batch at byte {at} of the records is malformed: {error.message}") from None
        if span.last_offset - span.base_offset != max(span.record_count - 1, 0):
            raise CorruptRecordError(
                f"the batch at byte {at} of the records has {span.record_count} records but says that its last offset "
                f"lies {span.last_offset - span.base_offset} after its first"
            )
        spans.append(span)
        at = span.end
    return spans


def writable(records: memoryview) -> memoryview:
    """Return bytes into which offset and time can be written. Those of a small request are read-only."""
    return memoryview(bytearray(records)) if records.readonly else records


def find_duplicates(writers: WriterStates, spans: list[BatchSpan]) -> dict[int, WrittenBatch]:
    """The earlier copies of batches that were written before, by their number among the spans; a gap raises."""
    duplicates: dict[int, WrittenBatch] = {}
    if len(spans) == 1 and writers.is_next(spans[0].writer_id, spans[0].sequence):
        return duplicates
    last_sequences: dict[int, int | None] = {}
    for number, span in enumerate(spans):
        writer = span.writer_id
        if writer == NO_WRITER_ID:
            continue
        if span.sequence < 0:
            raise CorruptRecordError(f"writer {writer} sent the batch sequence {span.sequence}")
        if writer not in last_sequences:
            duplicate = writers.duplicate_of(writer, span.sequence)
            if duplicate is not None:
                duplicates[number] = duplicate
                continue
            last_sequences[writer] = writers.last_sequence(writer)
        writers.check_follows(writer, span.sequence, last_sequences[writer])
        last_sequences[writer] = span.sequence
    return duplicates


def repeated(duplicates: dict[int, WrittenBatch]) -> AppendResult:
    """The result of an append whose batches were all written before: it waits until all of them are durable."""
    last = max(duplicates.values(), key=lambda written: written.last_offset)
    return AppendResult(duplicates[0].base_offset, last.last_offset + 1, last.timestamp, duplicate=True)


def without(duplicates: dict[int, WrittenBatch], records: memoryview, spans: list[BatchSpan]) -> memoryview:
    """Copy the batches that were not written before."""
    new = [records[span.start : span.end] for number, span in enumerate(spans) if number not in duplicates]
    return memoryview(bytearray(b"".join(new)))


def write_append(pending: Append, bucket: TableBucket) -> None:
    """Check the checksums and write. May run in a thread."""
    view = pending.records
    for span in pending.spans:
        if not crc_fits(view, span):
            raise CorruptRecordError(
                f"a batch of {span.end - span.start} bytes for {bucket} is damaged: its checksum does not fit"
            )
    try:
        pending.file.write((view,), pending.position)
    except OSError as error:
        # Cut what was written of it; if even that fails, the next append overwrites the same place.
        try:
            pending.file.truncate(pending.position)
        except OSError:
            logger.exception("cannot cut '%s' after a failed write", pending.file.path)
        raise LogStorageError(f"cannot write to '{pending.file.path}': {error.strerror or error}") from error


def cannot_open(folder: Path, error: Exception) -> LogStorageError:
    reason = getattr(error, "strerror", None) or error
    return LogStorageError(f"cannot open a log file in '{folder}': {reason}. Retry later.")


def report(done: Callable[[Any], None], outcome: object) -> None:
    """Report an outcome to a waiter. One that cannot take it must not keep it from the others."""
    try:
        done(outcome)
    except Exception:
        logger.exception("the outcome of a write could not be reported")


WhenCommitted = Callable[[Exception | None], None]
"""Called with None, or with the reason why it is not committed."""


class _Waiter(NamedTuple):
    offset: int
    done: WhenCommitted
    timeout_ms: int
    deadline: float


class CommitWaiters:
    """Calls the waiters back, in the order in which they came, that wait for a log to be committed up to an offset.

    Calls and not futures: between a flush and its acknowledgements there is then no iteration of the event loop, which
    would stand behind the requests that came in meanwhile.
    """

    def __init__(self, bucket: TableBucket) -> None:
        self._bucket = bucket
        self._waiters: deque[_Waiter] = deque()
        self._committed = 0
        self._serving = False
        """Whether the event loop will call committed waiters that are left."""
        self._expiry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, offset: int, done: WhenCommitted, timeout_ms: int | None) -> None:
        """Wait for an offset. A repeated write, which waits for an earlier one, is served after those before it."""
        if timeout_ms is None:
            self._waiters.append(_Waiter(offset, done, 0, math.inf))
            return
        deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000
        self._waiters.append(_Waiter(offset, done, timeout_ms, deadline))
        if self._expiry is None or deadline < self._expiry.when():
            self._expire_at(deadline)

    def serve(self, offset: int) -> None:
        """The log is committed up to an offset.

        Many waiters are called in several iterations of the event loop: one flush may commit what all connections of
        one user sent, and others are not to wait until all of it is acknowledged.
        """
        self._committed = max(self._committed, offset)
        for _ in range(_SERVED_AT_ONCE):
            if not self._serve_next():
                return
        if not self._serving:
            self._serving = True
            asyncio.get_running_loop().call_soon(self._serve_on)

    def _serve_on(self) -> None:
        self._serving = False
        self.serve(self._committed)

    def _serve_next(self) -> bool:
        if not self._waiters or self._waiters[0].offset > self._committed:
            return False
        report(self._waiters.popleft().done, None)
        return True

    def fail(self, error: Exception) -> None:
        """Nothing that is waited for will come, but for what is committed already."""
        while self._serve_next():
            pass
        self._committed = 0  # the log may begin anew
        while self._waiters:
            report(self._waiters.popleft().done, error)

    def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire_at(self, deadline: float) -> None:
        # One timer for all: nearly always they are served long before, and it finds none.
        self.close()
        self._expiry = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now = asyncio.get_running_loop().time()
        due: list[_Waiter] = []
        kept: deque[_Waiter] = deque()
        for waiter in self._waiters:
            (due if waiter.deadline <= now else kept).append(waiter)
        self._waiters = kept
        deadline = min((waiter.deadline for waiter in self._waiters), default=math.inf)
        if deadline < math.inf:
            self._expire_at(deadline)
        for waiter in due:
            error = RequestTimeOutError(
                f"the write to {self._bucket} was not committed within {waiter.timeout_ms} ms; it may still be"
            )
            # A repeated write may be committed, and stand behind one that is not.
            report(waiter.done, None if waiter.offset <= self._committed else error)
