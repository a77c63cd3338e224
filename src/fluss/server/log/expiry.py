# SPDX-License-Identifier: Apache-2.0
"""Deleting the files of segments that left a log, in a thread: to unlink a large file takes milliseconds and more.

A file goes only after a recovery point says that the log begins behind it. So whatever moment the server is killed at,
and in whatever order a power cut lets the deletions reach the disk, recovery misses no file.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from fluss.server.log.segment import Segment

logger = logging.getLogger("fluss.server.log")


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
        """Delete the files in a thread; returns how many segments are gone. What fails is tried again next time."""
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
