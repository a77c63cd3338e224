# SPDX-License-Identifier: Apache-2.0
"""The log of one bucket.

Appends to one log happen one after the other. An append has three steps: read the headers and decide where the bytes
go (event loop), check the checksums and write (event loop when small, a thread when large), record the result (event
loop). Only the second step runs beside the loop, and it touches nothing but its own bytes and the file. So everything
else here belongs to the event loop, and readers see a log that changes in whole steps.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from fluss.errors import LogStorageError, UnknownTableOrBucketError
from fluss.metadata import TableBucket
from fluss.net.eager import complete
from fluss.records.log_batch import BatchSpan, patch_batch
from fluss.server import disk
from fluss.server.clock import Clock
from fluss.server.garbage import clear_tracebacks
from fluss.server.log.appends import (
    Append,
    AppendResult,
    CommitWaiters,
    WhenAppended,
    WhenCommitted,
    cannot_open,
    find_duplicates,
    repeated,
    report,
    split_batches,
    without,
    writable,
    write_append,
)
from fluss.server.log.files import DamagedLogError, OpenFiles, SegmentFile
from fluss.server.log.recovery import (
    ACCEPT_LOSS_NAME,
    COMMITTED_NAME,
    Checkpoint,
    RecoveredLog,
    RecoveryPoint,
    missing_data,
    recover,
    write_committed,
)
from fluss.server.log.remote import RemoteLog
from fluss.server.log.repair import LogRepair
from fluss.server.log.segment import ExpiredSegments, LogSettings, Segment, SegmentIndex
from fluss.server.log.writers import WriterStates

logger = logging.getLogger("fluss.server.log")

INLINE_APPEND_BYTES_MAX = 4 * 1024 * 1024
"""Written on the event loop: a copy into the page cache takes less than two ways between threads, and the checksum is
quickest while the bytes are warm. The disk itself is waited for in threads."""
_DAMAGES_REPORTED_MAX = 100

CommitListener = Callable[[int], None]
Opened = tuple[Segment | None, SegmentFile]
"""The first segment of a log that has none yet, and the file to write to."""


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
        request_open: Callable[[LogTablet], None] | None = None,
        registered: bool = False,
    ) -> None:
        self.bucket = bucket
        self.folder = folder
        self.settings = settings
        self._clock = clock
        self.open_files = open_files
        self.executor = executor
        self._on_append = on_append
        self._request_open = request_open
        """Has `opened` called once the file to write to is open; without it, appends open it themselves."""
        self.registered = registered
        """Whether it is known to have data, so that it is reported when it is missing."""
        self.segments: list[Segment] = []
        self.writers = WriterStates()
        self.start_offset = self.end_offset = 0
        self.max_timestamp = -1
        self.high_watermark = 0
        # Where the high watermark lies: the segment with that end, and the position of the end in it.
        self.committed_segment: Segment | None = None
        self.committed_position = 0
        self.damage: DamagedLogError | None = None
        self._reported: set[str] = set()
        self.failure: LogStorageError | None = None
        """Why writes are refused now; the log is being repaired."""
        self.flushing = False
        """Whether a thread flushes a plan."""
        self.checkpointing = False
        """Whether a thread writes a recovery point."""
        self._repair = LogRepair(self)
        self.expired = ExpiredSegments()
        self.deleted = False
        self.remote: RemoteLog | None = None
        self.before_commit: list[CommitListener] = []
        """Called on the event loop with the new high watermark just before readers can see it."""
        self.on_truncated: list[CommitListener] = []
        """Called on the event loop with the end of a log that lost what was not committed."""
        self._queue: deque[tuple[memoryview, WhenAppended]] = deque()
        self._writing = False
        self.commit_waiters = CommitWaiters(bucket)
        self.fetch_waiters: set[asyncio.Future[None]] = set()
        self._dirty_files: list[SegmentFile] = []
        self._new_names = False
        self._newly_sealed: list[tuple[Segment, SegmentIndex, bytes]] = []
        self._bytes_since_checkpoint = 0
        self._checkpoint_offset = 0
        self._mark = folder / COMMITTED_NAME

    def __repr__(self) -> str:
        return f"LogTablet({self.bucket}, {self.start_offset}..{self.high_watermark}..{self.end_offset})"

    @property
    def earliest_offset(self) -> int:
        """The first offset that clients can read, here or from the remote log."""
        remote = self.remote.start_offset if self.remote is not None else None
        return self.start_offset if remote is None else min(self.start_offset, remote)

    @property
    def ancestors(self) -> tuple[Path, ...]:
        """The folders whose names must be durable before anything in this log is acknowledged.

        Those of partition, table, database and all databases; the name of the last is durable since the start.
        """
        depth = 3 if self.bucket.partition_id is None else 4
        return (self.folder, *self.folder.parents[:depth])

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    # Opening and closing -----------------------------------------------------------------------------------------

    def open(self) -> int:
        """Recover what is on disk; returns the bytes that had to be checked. Runs before the log is shared."""
        try:
            recovered = self._recover()
        except (DamagedLogError, LogStorageError, OSError) as error:
            if not isinstance(error, DamagedLogError):
                error = DamagedLogError(f"the log in '{self.folder}' cannot be read: {error}")
            self.put_out_of_service(error)
            return 0
        if recovered is None:
            return 0
        self._adopt(recovered)
        self.high_watermark = self.end_offset
        return recovered.scanned_bytes

    def _recover(self) -> RecoveredLog | None:
        recovered = recover(self.folder, self.settings, self.open_files) if disk.is_folder(self.folder) else None
        if recovered is None:
            if self.registered and not disk.exists(self.folder / ACCEPT_LOSS_NAME):
                raise missing_data(self.bucket, self.folder, f"'{self.folder}' has no log files")
            return None
        # Whatever the crash left in memory of the operating system becomes durable before anyone can read it.
        if recovered.scanned_bytes or not recovered.segments[-1].size_bytes:
            for folder in self.ancestors:
                disk.sync_folder(folder)
        if recovered.scanned_bytes:
            for segment in recovered.segments:
                if segment.end_offset > recovered.recovery_offset:
                    segment.file.sync()
            # From now on repeated batches are acknowledged from here, so this end is as good as acknowledged.
            write_committed(self._mark, recovered.end_offset, self.open_files)
        return recovered

    def _adopt(self, recovered: RecoveredLog) -> None:
        self.segments = recovered.segments
        self.writers = recovered.writers
        self.max_timestamp = recovered.max_timestamp
        self.start_offset = self.segments[0].base_offset
        self.end_offset = recovered.end_offset
        self.committed_segment = self.segments[-1]
        self.committed_position = self.segments[-1].size_bytes
        self._checkpoint_offset = recovered.recovery_offset
        # Those that were to be deleted are in the log again, or were deleted just now.
        self.expired = ExpiredSegments(recovered.recorded_start)
        self._bytes_since_checkpoint = recovered.scanned_bytes

    def put_out_of_service(self, error: DamagedLogError) -> None:
        """Refuse reads and writes with this error until the data is there again."""
        if self.damage is None or self.damage.message != error.message:
            logger.error("%s is out of service: %s", self.bucket, error.message)
        clear_tracebacks(error)
        self.damage = error
        self.wake_fetches()

    def report_damage(self, error: DamagedLogError) -> None:
        """Damage that a reader met goes to the log once, however often it is met. May run in a thread."""
        if error.message not in self._reported and len(self._reported) < _DAMAGES_REPORTED_MAX:
            self._reported.add(error.message)
            logger.error("%s: %s", self.bucket, error.message)

    def check_usable(self) -> None:
        if self.damage is not None:
            raise self.damage
        if self.deleted:
            raise self._dropped()

    def _check_writable(self) -> None:
        self.check_usable()
        if self.failure is not None:
            raise self.failure

    # Append ------------------------------------------------------------------------------------------------------

    def append_then(self, records: memoryview, done: WhenAppended) -> None:
        """Append whole batches in the order of the calls, and call `done` with the outcome, perhaps at once."""
        self._queue.append((records, done))
        if not self._writing:
            self._write_next()

    def _write_next(self) -> None:
        """Take appends from the queue until one is in flight in a thread, or a file has to be opened."""
        while self._queue and not self._writing:
            if not self._is_open and self._request_open is not None:
                self._writing = True
                self._request_open(self)
                return
            records, done = self._queue.popleft()
            outcome: AppendResult | Exception
            try:
                pending = self._prepare(writable(records))
                if isinstance(pending, AppendResult):
                    outcome = pending
                elif len(records) <= INLINE_APPEND_BYTES_MAX:
                    write_append(pending, self.bucket)
                    outcome = self._publish(pending)
                else:
                    self._writing = True
                    work = asyncio.get_running_loop().run_in_executor(self.executor, write_append, pending, self.bucket)
                    work.add_done_callback(lambda work, p=pending, d=done: self._written(work, p, d))  # type: ignore[misc]
                    return
            except Exception as error:  # of the one append, and not of those behind it
                outcome = error
            report(done, outcome)

    def _written(self, work: asyncio.Future[None], pending: Append, done: WhenAppended) -> None:
        self._writing = False
        outcome: AppendResult | Exception
        try:
            work.result()
            self._check_writable()  # what was written since it failed will be cut
            outcome = self._publish(pending)
        except (Exception, asyncio.CancelledError) as error:
            outcome = error if isinstance(error, Exception) else LogStorageError(repr(error))
        report(done, outcome)
        self._write_next()

    @property
    def _is_open(self) -> bool:
        """Whether an append can be tried now. One that will be refused anyway can be."""
        return (
            self._request_open is None
            or (bool(self.segments) and self.segments[-1].is_open)
            or self.failure is not None
            or self.damage is not None
            or self.deleted
        )

    def open_active(self) -> Opened:
        """Open the file that is written to, and create it if there is none. Runs in a thread, as an append does."""
        if self.segments:
            _ = self.segments[-1].index  # read now, not on the event loop
            return None, self.open_files.get(self.segments[-1].path)
        segment = self._create_segment(0)
        disk.unlink_if_there(self.folder / ACCEPT_LOSS_NAME)
        return segment, self.open_files.get(segment.path)

    def opened(self, outcome: Opened | Exception) -> None:
        """Go on with the appends that waited for their file."""
        self._writing = False
        if not isinstance(outcome, Exception):
            if outcome[0] is not None and not self.segments:
                self.registered = True
                self._begin_segment(outcome[0])
        elif not self.deleted:
            if self.segments and isinstance(outcome, (FileNotFoundError, DamagedLogError)):
                self.fail(outcome)
            error = self.failure or cannot_open(self.folder, outcome)
            waiting, self._queue = self._queue, deque()
            for _, done in waiting:
                report(done, error)
        self._write_next()

    def _prepare(self, records: memoryview) -> Append | AppendResult:
        """Check the headers, find the place, and fill in offsets and time."""
        self._check_writable()
        spans = split_batches(records)
        if not spans:
            return AppendResult(-1, self.end_offset, self.max_timestamp)
        base_offset = self.end_offset
        duplicates = find_duplicates(self.writers, spans)
        if duplicates:
            if len(duplicates) == len(spans):
                return repeated(duplicates)
            base_offset = duplicates[0].base_offset if 0 in duplicates else base_offset
            records = without(duplicates, records, spans)
            spans = split_batches(records)
        timestamp = self._clock.stamp_ms(self.max_timestamp)
        offset = self.end_offset
        placed: list[BatchSpan] = []
        for span in spans:
            patch_batch(records, span.start, offset, timestamp)
            last = offset + span.last_offset - span.base_offset
            placed.append(span._replace(base_offset=offset, last_offset=last, timestamp=timestamp))
            offset = last + 1
        active = self.segments[-1] if self.segments else None
        # Within a segment time never falls: it is searched by time.
        has_room = active and active.has_room(len(records), offset, falls=timestamp < self.max_timestamp)
        segment = active if active and has_room else self._roll()
        try:
            file = segment.file
        except DamagedLogError as error:
            self.fail(error)
            raise self.failure or error from None
        return Append(records, placed, timestamp, segment, segment.size_bytes, file, base_offset, offset)

    def _roll(self) -> Segment:
        """Close the open segment and begin the next one at the end of the log."""
        try:
            segment = self._create_segment(self.end_offset)
        except (OSError, DamagedLogError) as error:
            raise cannot_open(self.folder, error) from error
        self._begin_segment(segment)
        return segment

    def _create_segment(self, base_offset: int) -> Segment:
        """Create the files of a segment. May run in a thread."""
        unsynced = self.open_files.unsynced
        if not self.segments:
            disk.make_folders(self.folder)
            # Folders that are there may be left of a bucket whose names were not flushed when the server was killed.
            unsynced.add(self.ancestors)
        else:
            self.segments[-1].cut()
        segment = Segment(self.folder, base_offset, self.settings, self.open_files)
        segment.create()
        # The names must be durable before anything in the file is acknowledged, not before it is written.
        unsynced.add((self.folder,))
        return segment

    def _begin_segment(self, segment: Segment) -> None:
        if self.segments:
            old = self.segments[-1]
            self._newly_sealed.append((old, old.index, self.writers.to_snapshot()))
        self._new_names = True
        self.segments.append(segment)
        if self.committed_segment is None:
            self.committed_segment = segment

    def roll_if_not_empty(self) -> None:
        """Close the open segment, so that it can be expired or copied away."""
        if self.segments and self.segments[-1].size_bytes and not self._writing:
            self._roll()

    def _publish(self, pending: Append) -> AppendResult:
        segment = pending.segment
        position = pending.position
        for span in pending.spans:
            segment.note_batch(span, position)
            position += span.end - span.start
            self.writers.record_span(span)
        segment.note_checked(pending.position, position)
        self.end_offset = pending.end_offset
        self.max_timestamp = pending.timestamp
        self._bytes_since_checkpoint += len(pending.records)
        if not self._dirty_files or self._dirty_files[-1] is not pending.file:
            self._dirty_files.append(pending.file)
        self._on_append(self)
        return AppendResult(pending.base_offset, pending.end_offset, pending.timestamp)

    # Commit ------------------------------------------------------------------------------------------------------

    def committed(self, offset: int, timeout_ms: int | None = None) -> asyncio.Future[None]:
        """Done when everything before ``offset`` is durable and visible, or when it took longer than it may."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_committed(offset, lambda error: complete(future, error), timeout_ms)
        return future

    def when_committed(self, offset: int, done: WhenCommitted, timeout_ms: int | None) -> None:
        """Have `done` called when everything before ``offset`` is durable and visible, or never will be."""
        if self.failure is not None:
            done(self.failure)
        elif offset <= self.high_watermark:
            done(None)
        elif self.deleted:  # since it was appended
            done(self._dropped())
        else:
            self.commit_waiters.add(offset, done, timeout_ms)

    def sync_plan(self, *, checkpoint: bool = False, checkpoint_due: bool = True, mark: bool = True) -> SyncPlan:
        """What to flush now. Taken on the event loop; the files themselves are flushed elsewhere.

        A checkpoint is part of it when asked for, or when one is due and ``checkpoint_due`` permits it. A log without a
        committed mark (``mark``) is flushed for a checkpoint only.
        """
        segment = self.segments[-1]
        taken = self._checkpoint() if checkpoint or (checkpoint_due and self._checkpoint_due) else None
        files: tuple[SegmentFile, ...] = ()
        folders: tuple[Path, ...] = ()
        if mark or taken is not None:
            files, self._dirty_files = tuple(self._dirty_files), []
            new_names, self._new_names = self._new_names, False
            folders = self.open_files.unsynced.among(self.ancestors) if new_names else ()
        return SyncPlan(
            self, files, self.end_offset, segment, segment.size_bytes, taken, self._mark if mark else None, folders
        )

    def commit(self, plan: SyncPlan) -> None:
        """The plan's files are on disk: let readers and waiting writers see it."""
        if plan.offset < self.high_watermark or self.failure is not None:
            return
        if plan.offset == self.high_watermark:
            # A segment that was begun since counts: the recovery point may name it, so a repair must not cut it away.
            if self.committed_segment is None or plan.segment.base_offset > self.committed_segment.base_offset:
                self.committed_segment, self.committed_position = plan.segment, plan.position
            return
        for listener in self.before_commit:
            listener(plan.offset)
        self.high_watermark = plan.offset
        self.committed_segment = plan.segment
        self.committed_position = plan.position
        self.commit_waiters.serve(plan.offset)
        self.wake_fetches()

    def fail(self, error: Exception) -> None:
        """A write or flush failed, and what reached the disk is unknown: refuse writes until the log is repaired."""
        reason = getattr(error, "strerror", None) or error
        if self.failure is None:
            logger.error("the log of %s in '%s' could not be written: %s", self.bucket, self.folder, reason)
        self.failure = LogStorageError(
            f"the log in '{self.folder}' could not be written ({reason}); the server is repairing it. Retry later."
        )
        self._dirty_files = []
        self.commit_waiters.fail(self.failure)
        self._repair.start()

    def repaired(self, recovered: RecoveredLog | None) -> None:
        """The log was brought back to what is committed: accept writes again."""
        lost = self.end_offset - self.high_watermark
        self._dirty_files, self._newly_sealed = [], []
        if recovered is not None:
            self._adopt(recovered)
        else:
            self.segments, self.committed_segment, self.writers = [], None, WriterStates()
            self.end_offset = self.committed_position = 0
        self._new_names = True
        self.failure = self.damage = None
        for listener in self.on_truncated:
            listener(self.end_offset)
        logger.warning("%s is in service again; %d offsets that were not acknowledged were cut", self.bucket, lost)

    @property
    def is_busy(self) -> bool:
        """A thread uses the files, or flushes what a repair would cut."""
        return self._writing or self.flushing or self.checkpointing or self.expired.is_deleting

    def checkpoint_written(self, checkpoint: Checkpoint) -> None:
        """The recovery point is durable: files that lie before its start can be deleted."""
        self.expired.recorded_start = checkpoint.point.start

    def checkpoint_failed(self, checkpoint: Checkpoint) -> None:
        """The recovery point before stays in force: recovery reads more, nothing is lost. Try again later."""
        if self.failure is None:
            self._checkpoint_offset = min(self._checkpoint_offset, checkpoint.point.offset - 1)
            self._newly_sealed[:0] = [part for part in checkpoint.sealed if part[0] in self.segments]

    @property
    def idle(self) -> bool:
        """Whether no append is in flight or waits for its flush."""
        return not self._writing and not self._queue and self.high_watermark == self.end_offset

    @property
    def needs_checkpoint(self) -> bool:
        return bool(self.segments) and (
            self._checkpoint_offset < self.end_offset
            or bool(self._newly_sealed)
            or self.expired.recorded_start < self.start_offset
        )

    @property
    def _checkpoint_due(self) -> bool:
        return bool(self._newly_sealed) or self._bytes_since_checkpoint >= self.settings.recovery_point_interval_bytes

    def _checkpoint(self) -> Checkpoint:
        segment = self.segments[-1]
        sealed, self._newly_sealed = tuple(self._newly_sealed), []
        self._bytes_since_checkpoint = 0
        self._checkpoint_offset = self.end_offset
        point = RecoveryPoint(
            segment.base_offset, segment.size_bytes, self.end_offset, self.max_timestamp, self.start_offset
        )
        return Checkpoint(segment, segment.index.copy(), self.writers.to_snapshot(), point, sealed)

    # Waiting readers ---------------------------------------------------------------------------------------------

    def wake_fetches(self) -> None:
        waiters, self.fetch_waiters = self.fetch_waiters, set()
        for future in waiters:
            complete(future)

    # Reading support ---------------------------------------------------------------------------------------------

    def segment_of(self, offset: int) -> Segment | None:
        """The segment that holds ``offset``, if it is in the log."""
        segments = self.segments
        if not segments or offset < segments[0].base_offset:
            return None
        return segments[bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1]

    def readable_end(self, segment: Segment) -> int:
        """The position in a segment up to which clients may read."""
        committed = self.committed_segment
        if committed is None or segment.base_offset > committed.base_offset:
            return 0
        return self.committed_position if segment is committed else segment.size_bytes

    # Expiry ------------------------------------------------------------------------------------------------------

    def detach_segments_before(self, offset: int) -> None:
        """Take closed segments whose records all lie before ``offset`` out of the log. Their files remain."""
        if self.failure is not None:
            return  # its repair may have deleted the segment that would be the first one then
        while len(self.segments) > 1 and self.segments[0].end_offset <= min(offset, self.high_watermark):
            segment = self.segments[0]
            self.expired.add(segment)
            if self.committed_segment is segment:
                self.committed_segment = self.segments[1]
                self.committed_position = 0
            del self.segments[0]
            self.start_offset = self.segments[0].base_offset
            self._newly_sealed = [entry for entry in self._newly_sealed if entry[0] is not segment]

    def drop(self) -> None:
        """The bucket was dropped: fail everything that waits and close the files."""
        self.deleted = True
        gone = self._dropped()
        while self._queue:
            self._queue.popleft()[1](gone)
        self.commit_waiters.fail(gone)
        self.wake_fetches()
        self.release()

    def _dropped(self) -> UnknownTableOrBucketError:
        return UnknownTableOrBucketError(f"{self.bucket} was dropped")

    def release(self) -> None:
        """Close the files."""
        self.commit_waiters.close()
        self._repair.close()
        self._dirty_files = []
        self.open_files.evict_under(self.folder)


class SyncPlan(NamedTuple):
    """What has to reach the disk for the log to be committed up to an offset."""

    tablet: LogTablet
    files: tuple[SegmentFile, ...]
    offset: int
    segment: Segment
    position: int
    checkpoint: Checkpoint | None
    mark: Path | None
    """The file that says up to which offset the log is committed; None leaves it as it is."""
    folders: tuple[Path, ...] = ()
    """With names that are new."""
