# SPDX-License-Identifier: Apache-2.0
"""The log of one bucket.

Appends to one log happen one after the other. An append has three steps: look at the headers and decide where the bytes
go (event loop), check the checksums and write (event loop when small, a thread when large), take the result into the
books (event loop). Only the second step runs beside the loop, and it touches nothing but its own bytes and the file. So
everything else here belongs to the event loop, and readers see a log that changes in whole steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

from fluss.errors import CorruptRecordError, FlussError, LogStorageError
from fluss.metadata import TableBucket
from fluss.net.eager import look_at
from fluss.records.log_batch import patch_batch
from fluss.server import disk
from fluss.server.clock import Clock
from fluss.server.log.errors import DamagedLogError
from fluss.server.log.files import OpenFiles, SegmentFile
from fluss.server.log.flush import Checkpoint, SyncPlan
from fluss.server.log.index import SegmentIndex
from fluss.server.log.recovery import CommittedMark, RecoveryPoint, recover
from fluss.server.log.remote import RemoteLog
from fluss.server.log.segment import Segment
from fluss.server.log.settings import LogSettings
from fluss.server.log.waiters import CommitWaiters, WhenCommitted
from fluss.server.log.walk import BatchSpan, NeedMoreBytes, crc_fits, read_span
from fluss.server.log.writers import NO_WRITER_ID, WriterStates, WrittenBatch

logger = logging.getLogger("fluss.server.log")

_BEGIN_SYNC_BYTES_MIN = 128 * 1024
INLINE_APPEND_BYTES_MAX = 4 * 1024 * 1024
"""Written on the event loop: a copy into the page cache takes less than two ways between threads, and the checksum is
quickest while the bytes are warm. The disk itself is waited for in threads."""
_DAMAGES_REPORTED_MAX = 100
_PARENTS_SYNCED = 4
"""A new bucket brings new folders; their names must be durable as well, up to the folder of all tables."""

CommitListener = Callable[[int], None]


class AppendResult(NamedTuple):
    """What became of one append: the offset of its first record, and the offset after its last."""

    base_offset: int
    end_offset: int
    timestamp: int
    duplicate: bool = False


class _Append(NamedTuple):
    """Bytes on their way into the log."""

    records: memoryview
    spans: list[BatchSpan]
    timestamp: int
    segment: Segment
    position: int
    file: SegmentFile
    end_offset: int


WhenAppended = Callable[["AppendResult | Exception"], None]
_End = tuple[SegmentFile, int, Segment, int]


class LogTablet:
    """The log of one bucket: append, commit, and the facts that reading needs."""

    def __init__(
        self,
        bucket: TableBucket,
        folder: Path,
        settings: LogSettings,
        *,
        clock: Clock,
        open_files: OpenFiles,
        executor: Executor,
        on_append: Callable[[LogTablet], None],
    ) -> None:
        self.bucket = bucket
        self.folder = folder
        self.settings = settings
        self._clock = clock
        self._open_files = open_files
        self._executor = executor
        self._on_append = on_append
        self.segments: list[Segment] = []
        self.writers = WriterStates()
        self.start_offset = 0
        self.end_offset = 0
        self.max_timestamp = -1
        self.high_watermark = 0
        # Where the high watermark lies: the segment with that end, and the position of the end in it.
        self.committed_segment: Segment | None = None
        self.committed_position = 0
        self.damage: DamagedLogError | None = None
        self._reported: set[str] = set()
        self.failure: LogStorageError | None = None
        self.deleted = False
        self.remote: RemoteLog | None = None
        self.before_commit: list[CommitListener] = []
        """Called on the event loop with the new high watermark just before readers can see it."""
        self._queue: deque[tuple[memoryview, WhenAppended]] = deque()
        self._writing = False
        self._commit_waiters = CommitWaiters(bucket)
        self._fetch_waiters: set[asyncio.Future[None]] = set()
        self._dirty_files: list[SegmentFile] = []
        self._end: _End | None = None
        """The end of the log, all of it replaced at once: the file, the offset, the segment, the position in it."""
        self._dirty_folders: list[Path] = []
        self._newly_sealed: list[tuple[Segment, SegmentIndex, bytes]] = []
        self._bytes_since_checkpoint = 0
        self._checkpoint_offset = 0
        self._mark: CommittedMark | None = None

    def __repr__(self) -> str:
        return f"LogTablet({self.bucket}, {self.start_offset}..{self.high_watermark}..{self.end_offset})"

    @property
    def earliest_offset(self) -> int:
        """The first offset that clients can read, here or from the remote log."""
        remote = self.remote.start_offset if self.remote is not None else None
        return self.start_offset if remote is None else min(self.start_offset, remote)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    # Opening and closing -----------------------------------------------------------------------------------------

    def open(self) -> int:
        """Recover what is on disk; returns the bytes that had to be checked. Runs before the log is shared."""
        if not disk.is_folder(self.folder):
            return 0
        try:
            recovered = recover(self.folder, self.settings, self._open_files)
        except DamagedLogError as error:
            logger.error("%s is out of service: %s", self.bucket, error.message)
            self.damage = error
            return 0
        except OSError as error:
            self.damage = DamagedLogError(f"the log in '{self.folder}' cannot be read: {error.strerror or error}")
            logger.error("%s is out of service: %s", self.bucket, self.damage.message)
            return 0
        if recovered is None:
            return 0
        self.segments = recovered.segments
        self.writers = recovered.writers
        self.max_timestamp = recovered.max_timestamp
        self.start_offset = self.segments[0].base_offset
        self.end_offset = self.high_watermark = recovered.end_offset
        self.committed_segment = self.segments[-1]
        self.committed_position = self.segments[-1].size_bytes
        self._checkpoint_offset = recovered.recovery_offset
        self._bytes_since_checkpoint = recovered.scanned_bytes
        # Whatever the crash left in memory of the operating system becomes durable before anyone can read it.
        if recovered.scanned_bytes:
            for segment in self.segments:
                if segment.end_offset > recovered.recovery_offset:
                    segment.file.sync()
            # From now on repeated batches are acknowledged from here, so this end is as good as acknowledged.
            CommittedMark(self.folder).write(self.end_offset)
        return recovered.scanned_bytes

    def report_damage(self, error: DamagedLogError) -> None:
        """Damage that a reader met goes to the log once, however often it is met. May run in a thread."""
        if error.message not in self._reported and len(self._reported) < _DAMAGES_REPORTED_MAX:
            self._reported.add(error.message)
            logger.error("%s: %s", self.bucket, error.message)

    def check_usable(self) -> None:
        if self.damage is not None:
            raise self.damage
        if self.deleted:
            raise LogStorageError(f"{self.bucket} was dropped")

    # Append ------------------------------------------------------------------------------------------------------

    def append(self, records: memoryview | bytearray | bytes) -> AppendResult:
        """Append one or more whole batches now, on the calling thread, which must be the event loop's.

        For callers that keep their own order (the key-value store); it must not be mixed with ``submit``.
        """
        if self._writing or self._queue:
            raise LogStorageError(f"{self.bucket} has an append under way")
        pending = self._prepare(_writable(records))
        if isinstance(pending, AppendResult):
            return pending
        self._write(pending)
        return self._publish(pending)

    def submit(self, records: memoryview) -> asyncio.Future[AppendResult]:
        """Append in the order of the calls. The place in that order is taken before this returns."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.append_then(records, lambda outcome: _settle(future, outcome))
        return future

    def append_then(self, records: memoryview, done: WhenAppended) -> None:
        """Like `submit`, but calls `done` with what came of it, perhaps before this returns."""
        if self._writing or self._queue or len(records) > INLINE_APPEND_BYTES_MAX:
            self._queue.append((records, done))
            if not self._writing:
                self._write_next()
            return
        try:
            outcome: AppendResult | Exception = self.append(records)
        except FlussError as error:
            outcome = error
        done(outcome)

    def _write_next(self) -> None:
        """Take appends from the queue until one is under way in a thread."""
        loop = asyncio.get_running_loop()
        while self._queue and not self._writing:
            records, done = self._queue.popleft()
            outcome: AppendResult | Exception
            try:
                pending = self._prepare(_writable(records))
                if isinstance(pending, AppendResult):
                    outcome = pending
                elif len(records) <= INLINE_APPEND_BYTES_MAX:
                    self._write(pending)
                    outcome = self._publish(pending)
                else:
                    self._writing = True
                    work = loop.run_in_executor(self._executor, self._write, pending)
                    work.add_done_callback(lambda work, p=pending, d=done: self._written(work, p, d))  # type: ignore[misc]
                    return
            except FlussError as error:
                outcome = error
            done(outcome)

    def _written(self, work: asyncio.Future[None], pending: _Append, done: WhenAppended) -> None:
        self._writing = False
        error = work.exception()
        outcome = self._publish(pending) if error is None else error
        try:
            done(outcome if isinstance(outcome, (AppendResult, Exception)) else LogStorageError(repr(outcome)))
        finally:
            self._write_next()

    def _prepare(self, records: memoryview) -> _Append | AppendResult:
        """Check the headers, find the place, and fill in offsets and time."""
        self.check_usable()
        if self.failure is not None:
            raise self.failure
        spans = _split(records)
        if not spans:
            return AppendResult(-1, self.end_offset, self.max_timestamp)
        duplicate = self._check_writers(spans)
        if duplicate is not None:
            return AppendResult(duplicate.base_offset, duplicate.last_offset + 1, duplicate.timestamp, duplicate=True)
        # Never falls, even when the wall clock does: readers search the log by time.
        timestamp = max(self._clock.now_ms(), self.max_timestamp)
        offset = self.end_offset
        placed: list[BatchSpan] = []
        for span in spans:
            patch_batch(records, span.start, offset, timestamp)
            last = offset + span.last_offset - span.base_offset
            placed.append(span._replace(base_offset=offset, last_offset=last, timestamp=timestamp))
            offset = last + 1
        segment = self._segment_for(len(records), offset)
        return _Append(records, placed, timestamp, segment, segment.size_bytes, segment.file, offset)

    def _check_writers(self, spans: list[BatchSpan]) -> WrittenBatch | None:
        """The earlier copy of a duplicate, None for new batches; a gap raises."""
        if len(spans) == 1 and self.writers.is_next(spans[0].writer_id, spans[0].sequence):
            return None
        last_sequences: dict[int, int | None] = {}
        for span in spans:
            writer = span.writer_id
            if writer == NO_WRITER_ID:
                continue
            if span.sequence < 0:
                raise CorruptRecordError(f"writer {writer} sent the batch sequence {span.sequence}")
            if writer not in last_sequences:
                duplicate = self.writers.duplicate_of(writer, span.sequence)
                if duplicate is not None:
                    return duplicate
                last_sequences[writer] = self.writers.last_sequence(writer)
            self.writers.check_follows(writer, span.sequence, last_sequences[writer])
            last_sequences[writer] = span.sequence
        return None

    def _segment_for(self, size_bytes: int, end_offset: int) -> Segment:
        if not self.segments:
            return self._roll()
        active = self.segments[-1]
        return active if active.has_room(size_bytes, end_offset) else self._roll()

    def _roll(self) -> Segment:
        """Close the open segment and begin the next one at the end of the log."""
        try:
            if not self.segments:
                disk.make_folders(self.folder)
            segment = Segment(self.folder, self.end_offset, self.settings, self._open_files)
            segment.create()
            # The names must be durable before anything in the file is acknowledged, not before it is written.
            self._dirty_folders.append(self.folder)
            if not self.segments:
                self._dirty_folders += list(self.folder.parents)[:_PARENTS_SYNCED]
        except OSError as error:
            raise LogStorageError(f"cannot begin a log file in '{self.folder}': {error.strerror}") from error
        if self.segments:
            old = self.segments[-1]
            self._newly_sealed.append((old, old.index, self.writers.to_snapshot()))
            old.close()
        self.segments.append(segment)
        if self.committed_segment is None:
            self.committed_segment = segment
        return segment

    def roll_if_not_empty(self) -> None:
        """Close the open segment, so that it can be expired or copied away."""
        if self.segments and self.segments[-1].size_bytes and not self._writing:
            self._roll()

    def _write(self, pending: _Append) -> None:
        """Check the checksums and write. May run in a thread."""
        view = pending.records
        for span in pending.spans:
            if not crc_fits(view, span):
                raise CorruptRecordError(
                    f"a batch of {span.end - span.start} bytes for {self.bucket} is damaged: its checksum does not fit"
                )
        try:
            pending.file.write((view,), pending.position)
            if self.settings.synced and len(view) >= _BEGIN_SYNC_BYTES_MIN:
                pending.file.begin_sync(pending.position, len(view))
        except OSError as error:
            # Cut what was written of it; if even that fails, the next append overwrites the same place.
            try:
                pending.file.truncate(pending.position)
            except OSError:
                logger.exception("cannot cut '%s' after a failed write", pending.file.path)
            raise LogStorageError(f"cannot write to '{pending.file.path}': {error.strerror or error}") from error

    def _publish(self, pending: _Append) -> AppendResult:
        segment = pending.segment
        position = pending.position
        for span in pending.spans:
            segment.note_batch(span, position)
            position += span.end - span.start
            if span.writer_id != NO_WRITER_ID:
                delta = span.last_offset - span.base_offset
                self.writers.record(
                    span.writer_id, WrittenBatch(span.sequence, span.last_offset, delta, span.timestamp)
                )
        segment.note_checked(pending.position, position)
        base_offset = self.end_offset
        self.end_offset = pending.end_offset
        self.max_timestamp = pending.timestamp
        self._bytes_since_checkpoint += len(pending.records)
        if not self._dirty_files or self._dirty_files[-1] is not pending.file:
            self._dirty_files.append(pending.file)
        self._end = (pending.file, self.end_offset, segment, position)
        self._on_append(self)
        return AppendResult(base_offset, pending.end_offset, pending.timestamp)

    # Commit ------------------------------------------------------------------------------------------------------

    def committed(self, offset: int, timeout_ms: int | None = None) -> asyncio.Future[None]:
        """Done when everything before ``offset`` is durable and visible, or when it took longer than it may."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_committed(offset, lambda error: _settle(future, error), timeout_ms)
        return future

    def when_committed(self, offset: int, done: WhenCommitted, timeout_ms: int | None) -> None:
        """Have `done` called when everything before ``offset`` is durable and visible, or never will be."""
        if self.failure is not None:
            done(self.failure)
        elif offset <= self.high_watermark:
            done(None)
        else:
            self._commit_waiters.add(offset, done, timeout_ms)

    def sync_plan(self, *, checkpoint: bool = False, checkpoint_due: bool = True, mark: bool = True) -> SyncPlan:
        """What to flush now. Taken on the event loop; the files themselves are flushed elsewhere.

        A checkpoint is part of it when asked for, or when one is due and ``checkpoint_due`` permits it.
        """
        files, self._dirty_files = tuple(self._dirty_files), []
        folders, self._dirty_folders = tuple(self._dirty_folders), []
        if mark and self._mark is None and self.segments:
            self._mark = CommittedMark(self.folder)
        segment = self.segments[-1]
        taken = self._checkpoint() if checkpoint or (checkpoint_due and self._checkpoint_due) else None
        return SyncPlan(
            self, files, self.end_offset, segment, segment.size_bytes, taken, self._mark if mark else None, folders
        )

    def following(self, plan: SyncPlan) -> SyncPlan | None:
        """What was appended since to the one file of a plan that is flushed, for the thread that flushed it.

        None when there is nothing, or more to do than to flush that file once more.
        """
        written = self._end
        if written is None or len(plan.files) != 1 or self.deleted or self._checkpoint_due:
            return None
        file, offset, segment, position = written
        if file is not plan.files[0] or offset <= plan.offset:
            return None
        return SyncPlan(self, plan.files, offset, segment, position, None, plan.mark)

    def commit(self, plan: SyncPlan) -> None:
        """The plan's files are on disk: let readers and waiting writers see it."""
        if plan.offset <= self.high_watermark:
            return
        for listener in self.before_commit:
            listener(plan.offset)
        self.high_watermark = plan.offset
        self.committed_segment = plan.segment
        self.committed_position = plan.position
        self._commit_waiters.serve(plan.offset)
        self.wake_fetches()

    def fail(self, error: OSError) -> None:
        """Flushing failed: what reached the disk is unknown, so nothing more is accepted until a restart."""
        self.failure = LogStorageError(
            f"the log in '{self.folder}' could not be flushed ({error.strerror or error}); "
            "it refuses writes until the server is restarted"
        )
        logger.error("%s", self.failure.message)
        self._commit_waiters.fail(self.failure)

    @property
    def idle(self) -> bool:
        """No append is under way or waiting for its flush."""
        return not self._writing and not self._queue and self.high_watermark == self.end_offset

    @property
    def needs_checkpoint(self) -> bool:
        return bool(self.segments) and (self._checkpoint_offset < self.end_offset or bool(self._newly_sealed))

    @property
    def _checkpoint_due(self) -> bool:
        return bool(self._newly_sealed) or self._bytes_since_checkpoint >= self.settings.recovery_point_interval_bytes

    def _checkpoint(self) -> Checkpoint:
        segment = self.segments[-1]
        sealed, self._newly_sealed = tuple(self._newly_sealed), []
        self._bytes_since_checkpoint = 0
        self._checkpoint_offset = self.end_offset
        point = RecoveryPoint(segment.base_offset, segment.size_bytes, self.end_offset, self.max_timestamp)
        return Checkpoint(segment, segment.index.copy(), self.writers.to_snapshot(), point, sealed)

    # Waiting readers ---------------------------------------------------------------------------------------------

    def add_fetch_waiter(self, future: asyncio.Future[None]) -> None:
        self._fetch_waiters.add(future)

    def remove_fetch_waiter(self, future: asyncio.Future[None]) -> None:
        self._fetch_waiters.discard(future)

    def wake_fetches(self) -> None:
        waiters, self._fetch_waiters = self._fetch_waiters, set()
        for future in waiters:
            _settle(future, None)

    # Reading support ---------------------------------------------------------------------------------------------

    def segment_of(self, offset: int) -> Segment | None:
        """The segment that holds ``offset``, if it is in the log."""
        segments = self.segments
        if not segments or offset < segments[0].base_offset:
            return None
        low, high = 0, len(segments)
        while high - low > 1:
            middle = (low + high) // 2
            if segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle
        return segments[low]

    def readable_end(self, segment: Segment) -> int:
        """The position in a segment up to which clients may read."""
        committed = self.committed_segment
        if committed is None or segment.base_offset > committed.base_offset:
            return 0
        return self.committed_position if segment is committed else segment.size_bytes

    # Expiry ------------------------------------------------------------------------------------------------------

    def delete_segments_before(self, offset: int) -> int:
        """Delete closed segments whose records all lie before ``offset``; returns how many."""
        count = 0
        while len(self.segments) > 1 and self.segments[0].end_offset <= min(offset, self.high_watermark):
            if self.committed_segment is self.segments[0]:
                self.committed_segment = self.segments[1]
                self.committed_position = 0
            segment = self.segments.pop(0)
            self.start_offset = self.segments[0].base_offset
            self._newly_sealed = [entry for entry in self._newly_sealed if entry[0] is not segment]
            segment.delete()
            count += 1
        return count

    def forget(self) -> None:
        """The bucket was dropped: fail everything that waits and close the files."""
        self.deleted = True
        gone = LogStorageError(f"{self.bucket} was dropped")
        while self._queue:
            self._queue.popleft()[1](gone)
        self._commit_waiters.fail(gone)
        self.wake_fetches()
        self.release()

    def release(self) -> None:
        """Close the files."""
        self._commit_waiters.close()
        for segment in self.segments:
            segment.close()
        self._dirty_files = []
        self._mark = None
        self._open_files.forget_under(self.folder)


def _split(records: memoryview) -> list[BatchSpan]:
    spans: list[BatchSpan] = []
    at = 0
    while at < len(records):
        try:
            span = read_span(records, at)
        except NeedMoreBytes:
            raise CorruptRecordError(
                f"the batch at byte {at} of the records is cut: {len(records) - at} bytes are left"
            ) from None
        except ValueError as error:
            raise CorruptRecordError(f"the batch at byte {at} of the records is malformed: {error}") from None
        if span.last_offset - span.base_offset != max(span.record_count - 1, 0):
            raise CorruptRecordError(
                f"the batch at byte {at} of the records has {span.record_count} records but says that its last offset "
                f"lies {span.last_offset - span.base_offset} after its first"
            )
        spans.append(span)
        at = span.end
    return spans


def _writable(records: memoryview | bytearray | bytes) -> memoryview:
    view = memoryview(records)
    return memoryview(bytearray(view)) if view.readonly else view


def _settle(future: asyncio.Future[Any], outcome: object) -> None:
    """Pass on what came of something to whoever waits for it, if anybody still does."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        look_at(future)
    else:
        future.set_result(outcome)
