# SPDX-License-Identifier: Apache-2.0
"""The tiering service: asks the server which table is due, runs a round for it, and repeats that until it is stopped.

The server hands out one table after another, the one that waited longest first. While a round runs, a second thread
sends heartbeats; when they stop, the server gives the table to another service. A table whose round fails backs off:
the service holds it for a while, longer each time, so that it neither comes back at once nor keeps the others waiting,
and then gives it back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluss.client.admin.types import TieringHeartbeat, TieringTable
from fluss.errors import FlussError
from fluss.lake.rounds import Progress, Round, RoundReport, RoundSettings, TaskRunner
from fluss.lake.status import lake_tables, reason_of
from fluss.lake.tasks import LakeSession, LocalRunner
from fluss.metadata import TablePath

_log = logging.getLogger("fluss.lake")


@dataclass(frozen=True)
class ServiceSettings:
    """Times of the service, in seconds."""

    heartbeat_s: float = 10.0
    """Between two heartbeats while a round runs; the lease of the server lasts two minutes."""
    poll_s: float = 5.0
    """Between two requests for work when there is none."""
    backoff_s_min: float = 5.0
    """How long a table backs off after its first failure; twice as long after each further one."""
    backoff_s_max: float = 600.0
    round: RoundSettings = field(default_factory=RoundSettings)


class TieringService:
    """Moves what is new in lake-enabled tables to the lake.

    Args:
        client: Options of the connection, at least ``bootstrap.servers``.
        tables: Only these tables; all by default.
        runner: Who runs the tasks of a round; threads of this process by default.
        lake_options: Options of the lake catalog that the server does not show, such as credentials.
        settings: Times and limits.
        progress: Called with what happens, for a terminal or a log.
        on_step: Called with the name of each step of a round, for tests that interrupt it.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        *,
        tables: Collection[TablePath] | None = None,
        runner: TaskRunner | None = None,
        lake_options: Mapping[str, str] | None = None,
        settings: ServiceSettings | None = None,
        progress: Progress | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        self._client = dict(client)
        self._tables = set(tables) if tables is not None else None
        self._runner: TaskRunner = runner or LocalRunner()
        self._lake_options = dict(lake_options or {})
        self._settings = settings or ServiceSettings()
        self._progress = progress or (lambda name, figures: None)
        self._on_step = on_step
        self._session: LakeSession | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._current: tuple[TieringTable, Round] | None = None
        self._backing_off: dict[int, tuple[TieringTable, float]] = {}
        """By table: until when it backs off."""
        self._others: dict[int, TieringTable] = {}
        self._failures: dict[TablePath, int] = {}
        self._swept: dict[TablePath, float] = {}

    # -- lifecycle ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End after the step that is running now; may be called from any thread or signal handler."""
        self._stop.set()

    def run_forever(self) -> None:
        """Serve until `stop`. A lost connection is waited for."""
        wait_s = 1.0
        while not self._stop.is_set():
            try:
                self._serve()
                wait_s = 1.0
            except FlussError as error:
                self._progress("disconnected", {"reason": error.message, "retry_s": wait_s})
                _log.warning("the tiering service lost its server: %s", error.message)
                self._stop.wait(wait_s)
                wait_s = min(wait_s * 2, 30.0)
            finally:
                self._close()

    def run_once(self) -> list[RoundReport]:
        """Bring every table (or the chosen ones) up to the log as it is now, due or not; then end.

        Raises:
            FlussError: A table failed; the others were served all the same.
        """
        reports: list[RoundReport] = []
        failures: list[str] = []
        try:
            session = self._open()
            with self._heartbeats():
                done: set[TablePath] = set()
                while not self._stop.is_set() and (table := self._next()) is not None:
                    done.add(_path(table))
                    report = self._serve_table(table, failures)
                    if report is not None:
                        reports.append(report)
                for path in lake_tables(session) if self._tables is None else sorted(self._tables, key=str):
                    if path not in done and not self._stop.is_set():
                        # Not due yet. A round before its time is safe: commits of two services shut each other out.
                        try:
                            reports += self._before_due(session, path)
                        except Exception as error:
                            failures.append(f"{path}: {reason_of(error)}")
                            self._progress("failed", {"table": str(path), "reason": reason_of(error)})
        finally:
            self._close()
        if failures:
            raise FlussError("not all tables were tiered: " + "; ".join(failures))
        return reports

    def _before_due(self, session: LakeSession, path: TablePath) -> list[RoundReport]:
        reports: list[RoundReport] = []
        while not self._stop.is_set() and (not reports or reports[-1].cut):
            one = self._round(session)
            reports.append(one.run(path))
            self._maintain(one, reports[-1])
            self._report_finished(reports[-1])
        return reports

    # -- the loop -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self._open()
        with self._heartbeats():
            while not self._stop.is_set():
                self._give_back()
                table = self._next()
                if table is None:
                    self._progress("idle", {"backing_off": len(self._backing_off)})
                    self._stop.wait(self._settings.poll_s)
                else:
                    self._serve_table(table)

    def _open(self) -> LakeSession:
        self._session = LakeSession(self._client)
        self._beat()  # returns the epoch of the coordinator, or fails if the server cannot be reached
        return self._session

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        with contextlib.suppress(FlussError), self._lock:
            held = self._held()
            if held and not session.closed:
                session.run(session.admin.lake_tiering_heartbeat(failed=held))
        self._backing_off.clear()
        self._others.clear()
        session.close()

    def _next(self) -> TieringTable | None:
        """The next table of ours that is due."""
        while (table := self._beat(request_table=True).table) is not None:
            if self._tables is None or _path(table) in self._tables:
                return table
            # Not ours: kept while we look on, else it would be handed to us again.
            with self._lock:
                self._others[table.table_id] = table
        with self._lock:
            others, self._others = list(self._others.values()), {}
        if others:
            self._beat(failed=others)
        return None

    def _serve_table(self, table: TieringTable, failures: list[str] | None = None) -> RoundReport | None:
        """Run a round; a table that fails backs off, or its failure is added to those that are given."""
        assert self._session is not None
        path = _path(table)
        one = self._round(self._session)
        with self._lock:
            self._current = (table, one)
        self._progress("assigned", {"table": str(path), "epoch": table.tiering_epoch})
        try:
            report = one.run(path, table.table_id)
            self._maintain(one, report)
        except Exception as error:
            # Libraries of lake formats raise errors of many kinds, and none may end the service.
            if not isinstance(error, FlussError):
                _log.warning("tiering of %s failed", path, exc_info=True)
            self._back_off(table, reason_of(error), failures)
            return None
        finally:
            with self._lock:
                self._current = None
        self._failures.pop(path, None)
        self._beat(finished={table: report.stats}, force_finished=[table.table_id] if report.cut else [])
        self._report_finished(report)
        return report

    def _report_finished(self, report: RoundReport) -> None:
        self._progress(
            "finished",
            {
                "table": str(report.table_path),
                "rows": report.rows,
                "files": report.files,
                "bytes": report.size_bytes,
                "snapshot": report.snapshot_id,
                "seconds": round(report.seconds, 3),
                "cut": report.cut,
                "compacted": report.compacted,
                "expired": report.expired,
                "swept": report.swept,
            },
        )

    def _round(self, session: LakeSession) -> Round:
        return Round(
            session,
            self._client,
            self._runner,
            lake_options=self._lake_options,
            settings=self._settings.round,
            progress=self._progress,
            on_step=self._on_step,
        )

    def _maintain(self, one: Round, report: RoundReport) -> None:
        now = time.monotonic()
        last = self._swept.get(report.table_path)
        sweep = last is None or now - last >= self._settings.round.sweep_every_s
        if report.snapshot_id is None and not sweep:
            return
        try:
            one.maintain(report, sweep=sweep)
            if sweep:
                self._swept[report.table_path] = now
        except Exception as error:
            # The rows are where they belong; the next round tries again.
            _log.warning("maintenance of the lake table of %s failed: %s", report.table_path, error, exc_info=True)
            self._progress("maintenance failed", {"table": str(report.table_path), "reason": str(error)})

    # -- tables that fail -----------------------------------------------------------------------------------------

    def _back_off(self, table: TieringTable, reason: str, failures: list[str] | None) -> None:
        path = _path(table)
        count = self._failures[path] = self._failures.get(path, 0) + 1
        settings = self._settings
        wait_s = min(settings.backoff_s_min * 2 ** min(count - 1, 30), settings.backoff_s_max)
        with self._lock:
            self._backing_off[table.table_id] = table, time.monotonic() + wait_s
        _log.warning("table %s backs off for %.0f s: %s", path, wait_s, reason)
        figures: dict[str, Any] = {"table": str(path), "reason": reason, "failures": count}
        if failures is None:
            figures["retry_in_s"] = wait_s
        else:
            failures.append(f"{path}: {reason}")
        self._progress("failed", figures)

    def _give_back(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = [table for table, until in self._backing_off.values() if until <= now]
            for table in due:
                del self._backing_off[table.table_id]
        if due:
            self._beat(failed=due)

    def _held(self) -> list[TieringTable]:
        """The tables that the server believes to be worked on, beside the current one."""
        return [table for table, _ in self._backing_off.values()] + list(self._others.values())

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def _beat(self, **what: Any) -> TieringHeartbeat:
        assert self._session is not None
        return self._session.run(self._session.admin.lake_tiering_heartbeat(**what))

    def _renew(self) -> None:
        with self._lock:
            current = self._current
            tables = ([current[0]] if current else []) + self._held()
        if not tables:
            return
        errors = self._beat(tiering=tables).errors
        with self._lock:
            for table_id, error in errors.items():
                # Fenced: it was given to another service, its lake was turned off, or it was dropped.
                self._backing_off.pop(table_id, None)
                self._others.pop(table_id, None)
                if current is not None and current[0].table_id == table_id:
                    current[1].fenced.set()
                    _log.warning("the round of table %s is abandoned: %s", _path(current[0]), error)

    @contextlib.contextmanager
    def _heartbeats(self) -> Any:
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(self._settings.heartbeat_s):
                try:
                    self._renew()
                except FlussError as error:
                    # The round goes on: whether its commit is accepted, the server says then.
                    _log.warning("heartbeat failed: %s", error.message)

        thread = threading.Thread(target=beat, name="fluss-tier-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _path(table: TieringTable) -> TablePath:
    assert table.table_path is not None
    return table.table_path
