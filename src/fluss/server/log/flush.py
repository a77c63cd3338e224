# SPDX-License-Identifier: Apache-2.0
"""What has to reach the disk, and how it gets there: plans are made on the event loop and carried out in threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from fluss.errors import LogStorageError
from fluss.server import disk
from fluss.server.log.files import OpenFiles, SegmentFile
from fluss.server.log.recovery import RecoveryPoint, write_committed, write_recovery_point
from fluss.server.log.segment import WRITER_SNAPSHOT_SUFFIX, Segment, SegmentIndex, segment_path


class CommittableLog(Protocol):
    """What a group commit needs of the log of a bucket."""

    open_files: OpenFiles
    segments: list[Segment]
    deleted: bool
    failure: LogStorageError | None
    flushing: bool
    """Set while a thread flushes a plan."""
    checkpointing: bool
    """Set while a thread writes a recovery point."""

    @property
    def idle(self) -> bool:
        """Whether no append is in flight or waits for its flush."""

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the recovery point on disk lies before the end of the log."""

    def sync_plan(self, *, checkpoint: bool = False, checkpoint_due: bool = True, mark: bool = True) -> SyncPlan:
        """Decide what to flush now."""

    def commit(self, plan: SyncPlan) -> None:
        """Acknowledge what was flushed."""

    def fail(self, error: Exception) -> None:
        """Refuse writes until the log is repaired."""

    def checkpoint_written(self, checkpoint: Checkpoint) -> None:
        """The recovery point is durable."""

    def checkpoint_failed(self, checkpoint: Checkpoint) -> None:
        """Keep the recovery point before, and try again later."""


class SyncPlan(NamedTuple):
    """What has to reach the disk for the log to be committed up to an offset."""

    tablet: CommittableLog
    files: tuple[SegmentFile, ...]
    offset: int
    segment: Segment
    position: int
    checkpoint: Checkpoint | None
    mark: Path | None
    """The file that says up to which offset the log is committed; None leaves it as it is."""
    folders: tuple[Path, ...] = ()
    """With names that are new."""


@dataclass(frozen=True)
class Checkpoint:
    """A recovery point that becomes valid once the log is flushed."""

    segment: Segment
    index: SegmentIndex
    writers: bytes
    point: RecoveryPoint
    sealed: tuple[tuple[Segment, SegmentIndex, bytes], ...]
    """Segments closed since the last point, with the writers' state at their end."""


def run_sync(plan: SyncPlan) -> None:
    """Flush a plan's files. Runs in a thread."""
    plan.tablet.open_files.check_folder()
    for file in plan.files:
        file.sync()
        file.check_in_place()
    if plan.folders:
        plan.tablet.open_files.unsynced.sync(plan.folders)
    if plan.mark is not None:
        write_committed(plan.mark, plan.offset, plan.tablet.open_files)


def run_checkpoint(checkpoint: Checkpoint) -> None:
    """Write a recovery point after its plan was flushed. Runs in a thread."""
    for segment, index, writers in checkpoint.sealed:
        if disk.exists(segment.path):
            segment.write_index(index)
            disk.write_atomically(segment_path(segment.folder, segment.end_offset, WRITER_SNAPSHOT_SUFFIX), writers)
    write_recovery_point(checkpoint.segment, checkpoint.index, checkpoint.writers, checkpoint.point)
