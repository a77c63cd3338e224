# SPDX-License-Identifier: Apache-2.0
"""Bringing a log back that failed, without a restart.

After a failed flush it is unknown what reached the disk. The log refuses writes then, and what was not acknowledged is
cut: its writers retry it. The rest is read and checked like after a crash. That is tried again, less and less often,
until the cause is gone.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from fluss.metadata import TableBucket
from fluss.server import disk
from fluss.server.log.files import DamagedLogError, OpenFiles, SegmentFile, UnreadableLogError
from fluss.server.log.recovery import COMMITTED_NAME, RecoveredLog, missing_data, recover, write_committed
from fluss.server.log.segment import LogSettings, Segment

logger = logging.getLogger("fluss.server.log")

_DELAY_S_MIN = 0.05
_DELAY_S_MAX = 5.0
_DELAY_DAMAGED_S_MAX = 30.0


class RepairableLog(Protocol):
    """What the repair needs of the log of a bucket."""

    bucket: TableBucket
    folder: Path
    settings: LogSettings
    open_files: OpenFiles
    executor: Executor
    segments: list[Segment]
    high_watermark: int
    committed_segment: Segment | None
    committed_position: int
    damage: DamagedLogError | None

    @property
    def ancestors(self) -> tuple[Path, ...]:
        """The folders whose names lead to the log."""

    @property
    def is_busy(self) -> bool:
        """Whether a thread uses the files."""

    def repaired(self, recovered: RecoveredLog | None) -> None:
        """Accept writes again."""

    def put_out_of_service(self, error: DamagedLogError) -> None:
        """Refuse everything: what was acknowledged is missing or broken."""


class LogRepair:
    """Repairs one log in the background. Belongs to the event loop."""

    def __init__(self, tablet: RepairableLog) -> None:
        # Not held: a log that was dropped goes at once, and not when the garbage collector finds the circle.
        self._owner = weakref.ref(tablet)
        self._delay_s = _DELAY_S_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._working = False
        self._closed = False

    def start(self) -> None:
        """Try to repair the log soon. Does nothing while a repair is planned or in progress."""
        tablet = self._owner()
        if tablet is not None and self._timer is None and not self._working and not self._closed:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # there is no server; the log is recovered when it is opened again
                return
            self._timer = loop.call_later(self._delay_s, self._begin)
            self._delay_s = min(self._delay_s * 2, _DELAY_S_MAX if tablet.damage is None else _DELAY_DAMAGED_S_MAX)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        tablet = self._owner()
        if self._closed or tablet is None:
            return
        if tablet.is_busy:
            self.start()  # a write or a checkpoint still uses the files
            return
        try:
            work = asyncio.get_running_loop().run_in_executor(tablet.executor, _repair, tablet)
        except RuntimeError:  # the threads have ended
            return
        self._working = True
        work.add_done_callback(self._done)

    def _done(self, work: asyncio.Future[RecoveredLog | None]) -> None:
        self._working = False
        tablet = self._owner()
        if self._closed or work.cancelled() or tablet is None:
            return
        error = work.exception()
        if error is None:
            self._delay_s = _DELAY_S_MIN
            tablet.repaired(work.result())
            return
        if isinstance(error, DamagedLogError) and not isinstance(error, UnreadableLogError):
            tablet.put_out_of_service(error)
        else:
            logger.warning("%s cannot be repaired yet: %s", tablet.bucket, error)
        self.start()


def _repair(tablet: RepairableLog) -> RecoveredLog | None:
    """Cut what was not acknowledged and check the rest. Runs in a thread while the log refuses writes."""
    offset, segment, position = tablet.high_watermark, tablet.committed_segment, tablet.committed_position
    open_files = tablet.open_files
    open_files.check_folder()  # the logs of another server must not be cut
    open_files.evict_under(tablet.folder)
    if segment is None:
        return None
    try:
        file = SegmentFile(segment.path)
        if file.size_bytes < position:
            raise missing_data(
                tablet.bucket,
                tablet.folder,
                f"'{segment.path}' has {file.size_bytes} bytes, {position} were acknowledged",
            )
        # Before the cut: an older mark must never be ahead of the log.
        write_committed(tablet.folder / COMMITTED_NAME, offset, open_files, durable=True)
        for later in reversed([other for other in tablet.segments if other.base_offset > segment.base_offset]):
            later.delete()
        file.truncate(position)
        disk.sync(file.fd)
        disk.sync_folder(tablet.folder)
        recovered = recover(tablet.folder, tablet.settings, open_files)
    except FileNotFoundError:
        if disk.exists(segment.path):
            raise
        if offset == 0:
            return None  # nothing was acknowledged, so nothing is missing
        raise missing_data(tablet.bucket, tablet.folder, f"'{segment.path}' is gone") from None
    if recovered is None or recovered.end_offset != offset:
        found = "nothing" if recovered is None else f"offset {recovered.end_offset}"
        raise missing_data(
            tablet.bucket,
            tablet.folder,
            f"'{tablet.folder}' ends at {found}, although offset {offset} was acknowledged",
        )
    open_files.unsynced.sync(tablet.ancestors)
    return recovered
