# SPDX-License-Identifier: Apache-2.0
"""Opening the files that appends need, in threads and a bounded number at a time.

A request may write to thousands of buckets whose files are not open, or which have none yet. Their appends wait here,
so that the event loop never waits for folders and files to be created, and no more files are open than permitted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from fluss.errors import FlussError
from fluss.metadata import TableBucket
from fluss.server.garbage import clear_tracebacks
from fluss.server.log.files import OpenFiles
from fluss.server.log.tablet import LogTablet, Opened

logger = logging.getLogger("fluss.server.log")

_LOGS_PER_JOB = 32
_JOBS_MAX = 2
_ROOM_CHECK_SECONDS = 0.005

_Outcome = tuple[LogTablet, Opened | Exception]


class LogOpener:
    """Opens the active files of logs, in the order in which they asked.

    Args:
        register: Makes durable, in a thread, that these buckets have data from now on.
    """

    def __init__(
        self, open_files: OpenFiles, executor: Executor, register: Callable[[Sequence[TableBucket]], None]
    ) -> None:
        self._open_files = open_files
        self._executor = executor
        self._register = register
        self._waiting: deque[LogTablet] = deque()
        self._jobs = 0
        self._check: asyncio.TimerHandle | None = None
        self._started = False

    def request(self, tablet: LogTablet) -> None:
        """Have `tablet.opened` called once its active file is open, or cannot be."""
        self._waiting.append(tablet)
        if not self._started:
            # Not at once: what else came in with this request is opened together with it.
            self._started = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._started = False
        loop = asyncio.get_running_loop()
        room = self._open_files.room
        while self._waiting and self._jobs < _JOBS_MAX and room > 0:
            count = min(len(self._waiting), _LOGS_PER_JOB, room)
            tablets = [self._waiting.popleft() for _ in range(count)]
            room -= count
            try:
                work = loop.run_in_executor(self._executor, self._open, tablets)
            except RuntimeError as error:  # the threads have ended, or there cannot be another one
                self._report([(tablet, OSError(str(error))) for tablet in tablets])
                continue
            self._jobs += 1
            work.add_done_callback(lambda done, tablets=tablets: self._opened(done, tablets))  # type: ignore[misc]
        if self._waiting and not self._jobs and self._check is None:
            # Every handle is in use: files that wait for their flush, or are being sent, become free without notice.
            self._check = loop.call_later(_ROOM_CHECK_SECONDS, self._check_room)

    def _check_room(self) -> None:
        self._check = None
        self._start()

    def _open(self, tablets: list[LogTablet]) -> list[_Outcome]:
        """Runs in a thread."""
        outcomes: list[_Outcome] = []
        for tablet in tablets:
            try:
                outcomes.append((tablet, tablet.open_active()))
            except Exception as error:
                if not isinstance(error, (FlussError, OSError)):
                    logger.error("opening the log of %s failed", tablet.bucket, exc_info=error)
                clear_tracebacks(error)
                outcomes.append((tablet, error))
        new = [tablet for tablet, outcome in outcomes if not isinstance(outcome, Exception) and outcome[0] is not None]
        if new:
            self._make_durable(new, outcomes)
        return outcomes

    def _make_durable(self, new: list[LogTablet], outcomes: list[_Outcome]) -> None:
        """Flush the names of new logs, then register them: what is registered and missing is reported."""
        errors: dict[LogTablet, Exception] = {}
        for tablet in new:
            try:
                self._open_files.unsynced.sync(tablet.ancestors)
            except OSError as error:
                clear_tracebacks(error)
                errors[tablet] = error
        durable = [tablet for tablet in new if tablet not in errors]
        by_table: dict[int, list[LogTablet]] = {}
        for tablet in durable:
            by_table.setdefault(tablet.bucket.table_id, []).append(tablet)
        for tablets in by_table.values():
            try:
                self._register([tablet.bucket for tablet in tablets])
            except OSError as error:
                clear_tracebacks(error)
                errors.update(dict.fromkeys(tablets, error))
        if errors:
            outcomes[:] = [(tablet, errors.get(tablet, outcome)) for tablet, outcome in outcomes]

    def _opened(self, done: asyncio.Future[list[_Outcome]], tablets: list[LogTablet]) -> None:
        self._jobs -= 1
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        try:
            self._report(done.result() if error is None else [(tablet, OSError(repr(error))) for tablet in tablets])
        finally:
            self._start()

    def _report(self, outcomes: list[_Outcome]) -> None:
        for tablet, outcome in outcomes:
            try:
                tablet.opened(outcome)
            except Exception:
                logger.exception("an append to %s failed", tablet.bucket)
