# SPDX-License-Identifier: Apache-2.0
"""What has to reach the disk, and how it gets there: plans are made on the event loop and carried out in threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fluss.server import disk
from fluss.server.log.files import SegmentFile
from fluss.server.log.index import SegmentIndex
from fluss.server.log.recovery import CommittedMark, RecoveryPoint, write_recovery_point
from fluss.server.log.segment import WRITER_SNAPSHOT_SUFFIX, Segment, segment_path

if TYPE_CHECKING:
    from fluss.server.log.tablet import LogTablet


class SyncPlan(NamedTuple):
    """What has to reach the disk for the log to be committed up to an offset."""

    tablet: LogTablet
    files: tuple[SegmentFile, ...]
    offset: int
    segment: Segment
    position: int
    checkpoint: Checkpoint | None
    mark: CommittedMark | None
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
    for file in plan.files:
        file.sync()
        file.check_in_place()
    if plan.folders:
        plan.tablet.open_files.unsynced.sync(plan.folders)
    if plan.mark is not None:
        plan.mark.write(plan.offset)


def run_checkpoint(checkpoint: Checkpoint) -> None:
    """Write a recovery point after its plan was flushed. Runs in a thread."""
    for segment, index, writers in checkpoint.sealed:
        if disk.exists(segment.path):
            segment.write_index(index)
            disk.write_atomically(segment_path(segment.folder, segment.end_offset, WRITER_SNAPSHOT_SUFFIX), writers)
    write_recovery_point(checkpoint.segment, checkpoint.index, checkpoint.writers, checkpoint.point)
