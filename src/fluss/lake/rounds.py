# SPDX-License-Identifier: Apache-2.0
"""One round of tiering: bring a lake table up to the log with one commit, so that a crash at any step is safe.

Order of steps, and what a crash after each leaves behind:

1. look for a tiered snapshot that the server does not know, and report it to the server (a crash before step 5 of an
   earlier round left it): the round then starts from the right offsets;
2. tasks write files: a crash leaves files that no snapshot refers to, which a later sweep removes;
3. the server stores the offsets the snapshot will reach (prepare);
4. the lake commits files and the path of those offsets, all or nothing, unless another service was faster;
5. the server learns the snapshot (commit): a crash between 4 and 5 is what step 1 mends.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fluss.client.admin.types import TieringStats
from fluss.errors import FencedTieringEpochError, FlussError, TableNotExistError
from fluss.lake.api import Lake, LakeCommitConflictError, LakeTableChangedError, OpenLakeTable, WrittenFiles
from fluss.lake.layout import LakeConfig, lake_config
from fluss.lake.registry import open_lake
from fluss.lake.tasks import BucketResult, BucketTask, LakeSession, check_same_table, lake_partition
from fluss.metadata import LakeSnapshot, OffsetSpec, TableBucket, TableInfo, TablePath

_DURATION_S_MIN = 30.0
"""However fresh a table shall be: a round that is cut too early spends its time on commits."""

Progress = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of what happened and its figures."""


class TaskRunner(Protocol):
    """Runs the tasks of a round in parallel."""

    def run(self, tasks: Sequence[BucketTask], done: Callable[[BucketResult], None]) -> list[BucketResult]:
        """The results of all tasks, in any order; raises the first error."""


@dataclass(frozen=True)
class RoundSettings:
    """What a round may do."""

    duration_s_max: float | None = None
    """Commit what there is after this time; None means the freshness of the table, and half a minute at least."""
    rows_per_task_max: int = 4_000_000
    """Longer ranges are cut where the lake does not need the rows of a bucket in one file."""
    snapshots_known_max: int = 10
    """How many snapshots the server keeps offsets of."""
    compact: bool | None = None
    """None: what the table says (table.datalake.auto-compaction)."""
    compact_files_min: int = 10
    expire: bool | None = None
    """None: what the table says (table.datalake.auto-expire-snapshot)."""
    expire_keep_min: int = 10
    expire_after_s: float = 3600.0
    sweep_after_s: float | None = 86_400.0
    """Remove files that no snapshot uses after this time; None: never."""
    sweep_every_s: float = 3600.0


@dataclass
class RoundReport:
    """What a round did."""

    table_path: TablePath
    table_id: int
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    buckets: int = 0
    snapshot_id: int | None = None
    recovered_id: int | None = None
    """A snapshot of an earlier round that the server had not learned of."""
    cut: bool = False
    seconds: float = 0.0
    offsets: dict[TableBucket, int] = field(default_factory=dict)
    stats: TieringStats | None = None
    expired: int = 0
    swept: int = 0
    compacted: int = 0


class Round:
    """One round for one table."""

    def __init__(
        self,
        session: LakeSession,
        client: Mapping[str, Any],
        runner: TaskRunner,
        *,
        lake_options: Mapping[str, str] | None = None,
        settings: RoundSettings | None = None,
        progress: Progress | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        self._session = session
        self._client = dict(client)
        self._runner = runner
        self._lake_options = dict(lake_options or {})
        self._settings = settings or RoundSettings()
        self._progress = progress or (lambda name, figures: None)
        self._on_step = on_step or (lambda name: None)
        self.fenced = threading.Event()
        """Set when the server gave the table to another service: nothing may be committed any more."""

    # -- the steps ------------------------------------------------------------------------------------------------

    def run(self, path: TablePath, table_id: int | None = None) -> RoundReport:
        """Bring the lake up to the end of the log as it is now."""
        began = time.monotonic()
        info = self._session.info(path)
        if table_id is not None:
            check_same_table(info, table_id)
        report = RoundReport(path, info.table_id)
        config = lake_config(info, self._lake_options)
        with open_lake(config) as lake:
            known = self._session.lake_snapshot(path)
            table = self._prepared_table(lake, info, known)
            known = self._recover(table, info, known, report)
            tasks = self._plan(info, config, known)
            rows = sum(task.stop - task.start for task in tasks)
            self._progress("planned", {"table": str(path), "tasks": len(tasks), "rows": rows})
            self._on_step("planned")
            if tasks:
                self._write_and_commit(table, info, tasks, known, report)
        report.seconds = time.monotonic() - began
        return report

    def _prepared_table(self, lake: Lake, info: TableInfo, known: LakeSnapshot | None) -> OpenLakeTable:
        """The lake table, made if it was never there, with the columns the Fluss table has now."""
        path = info.lake_path
        try:
            table = lake.table(path)
        except LakeTableChangedError:
            if known is not None:
                raise
            lake.create_table(path, info.descriptor, must_be_empty=False)
            table = lake.table(path)
        missing = table.missing_columns(info)
        if missing:
            lake.add_columns(path, missing)
            table = lake.table(path)
        table.check(info)
        return table

    def _recover(
        self, table: OpenLakeTable, info: TableInfo, known: LakeSnapshot | None, report: RoundReport
    ) -> LakeSnapshot | None:
        unknown = table.tiered_after(known.snapshot_id if known else None)
        if unknown is None:
            return known
        if unknown.offsets_path is None:
            raise LakeTableChangedError(
                f"snapshot {unknown.snapshot_id} of the lake table of {info.table_path} was tiered without its offsets "
                "(by a very old service); it cannot be continued"
            )
        try:
            self._report_to_server(table, info.table_id, unknown.snapshot_id, unknown.offsets_path)
        except FlussError as error:
            if error.is_retriable:
                raise
            back_to = f"snapshot {known.snapshot_id}" if known else "the state before its first round"
            raise LakeTableChangedError(
                f"snapshot {unknown.snapshot_id} of the lake table of {info.table_path} was tiered, but the server "
                f"does not take its offsets: {error.message.rstrip('.')}. If the Fluss table was created anew, drop "
                f"the lake table too. If it was restored from a backup, roll the lake table back to {back_to}"
            ) from error
        report.recovered_id = unknown.snapshot_id
        self._progress("recovered", {"table": str(info.table_path), "snapshot": unknown.snapshot_id})
        return self._session.lake_snapshot(info.table_path)

    def _plan(self, info: TableInfo, config: LakeConfig, known: LakeSnapshot | None) -> list[BucketTask]:
        buckets = self._session.buckets(info)
        latest = self._session.offsets(info, buckets, OffsetSpec.latest())
        earliest = self._session.offsets(info, buckets, OffsetSpec.earliest())
        settings = self._settings
        duration_s = settings.duration_s_max
        if duration_s is None:
            duration_s = max(info.config.lake_freshness_ms / 1000, _DURATION_S_MIN)
        until = time.time() + duration_s
        tasks: list[BucketTask] = []
        for bucket, stop in sorted(latest.items(), key=lambda item: (item[0].partition_id or 0, item[0].bucket_id)):
            first = earliest.get(bucket, 0)
            start = known.get_bucket_offset(bucket) if known else None
            if stop <= 0 or (start is not None and start >= stop):
                continue
            listed = False
            if start is None:
                # Not "earliest": rows that are deleted before they are read must not go unnoticed.
                start = 0 if info.has_primary_key() else first
                listed = info.has_primary_key() and first > 0
            elif start < first:
                raise LakeTableChangedError(
                    f"the log of {bucket} of table {info.table_path} starts at offset {first}, but the lake ends at "
                    f"{start}: rows were deleted before they were tiered"
                )
            partition = lake_partition(info, buckets[bucket])
            base = BucketTask(
                self._client, config, info.table_path, info.table_id, bucket, partition, start, stop, listed, until
            )
            tasks += self._cut(base, info)
        return tasks

    def _cut(self, task: BucketTask, info: TableInfo) -> list[BucketTask]:
        size, rows = self._settings.rows_per_task_max, task.stop - task.start
        if task.listed or info.has_primary_key() or info.bucket_keys or rows <= size:
            return [task]
        parts = -(-rows // size)
        bounds = [task.start + rows * i // parts for i in range(parts + 1)]
        return [replace(task, start=low, stop=high) for low, high in itertools.pairwise(bounds)]

    def _write_and_commit(
        self,
        table: OpenLakeTable,
        info: TableInfo,
        tasks: Sequence[BucketTask],
        known: LakeSnapshot | None,
        report: RoundReport,
    ) -> None:
        results, dropped = self._write(table, info, tasks)
        self._on_step("written")
        ends: dict[TableBucket, int] = {}
        for result in results:
            if not result.gone:
                ends[result.bucket] = max(result.end, ends.get(result.bucket, 0))
        if not ends:
            return
        written = _files_of(results)
        snapshot_id = self._commit(table, info, written, ends, known)
        report.snapshot_id, report.offsets = snapshot_id, ends
        report.rows = sum(result.rows for result in results)
        report.files = sum(one.files for one in written)
        report.size_bytes = sum(one.size_bytes for one in written)
        report.buckets = len(ends)
        report.cut = any(result.cut for result in results) or bool(dropped)
        self._progress(
            "committed",
            {"table": str(info.table_path), "snapshot": snapshot_id, "rows": report.rows, "files": report.files},
        )

    def _write(
        self, table: OpenLakeTable, info: TableInfo, tasks: Sequence[BucketTask]
    ) -> tuple[list[BucketResult], list[BucketResult]]:
        """Run the tasks; returns the results to commit, and those whose files were removed again."""
        finished: list[BucketResult] = []
        partitions = {task.bucket: task.partition for task in tasks}

        def done(result: BucketResult) -> None:
            finished.append(result)
            figures = {"bucket": result.bucket.bucket_id, "rows": result.rows, "end": result.end}
            partition = "$".join(partitions[result.bucket]) or None
            self._progress("bucket", {"table": str(info.table_path), "partition": partition, **figures})

        try:
            results, dropped = _contiguous(self._runner.run(tasks, done))
        except BaseException:
            table.abort(_files_of(finished))
            raise
        table.abort(_files_of(dropped))
        return results, dropped

    def _commit(
        self,
        table: OpenLakeTable,
        info: TableInfo,
        written: Sequence[WrittenFiles],
        ends: Mapping[TableBucket, int],
        known: LakeSnapshot | None,
        *,
        compacted: bool = False,
    ) -> int:
        """Commit files to the lake, then to the server; returns the new snapshot."""
        try:
            self._check_current(info)
            offsets_path = self._session.run(
                self._session.admin.prepare_lake_table_snapshot(info.table_path, info.table_id, ends)
            )
            self._on_step("prepared")
            if self.fenced.is_set():
                raise FencedTieringEpochError(f"table {info.table_path} was given to another tiering service meanwhile")
        except BaseException:
            table.abort(written)
            raise
        commit = table.commit_compaction if compacted else table.commit
        try:
            snapshot_id = commit(written, offsets_path, known.snapshot_id if known else None)
        except LakeCommitConflictError:
            # After any other error the files may be in use: they stay. So may they be here: if the answer to a commit
            # gets lost, a library sends it once more, and is told that it comes too late.
            table.refresh()
            landed = next((one for one in table.commits() if one.offsets_path == offsets_path), None)
            if landed is None:
                table.abort(written)
                raise
            snapshot_id = landed.snapshot_id
        self._on_step("compacted" if compacted else "lake committed")
        self._report_to_server(table, info.table_id, snapshot_id, offsets_path)
        self._on_step("server committed")
        return snapshot_id

    def _check_current(self, info: TableInfo) -> None:
        now = self._session.info(info.table_path)
        if now.table_id != info.table_id:
            raise TableNotExistError(
                f"table {info.table_path} was dropped and created again during the round (id {info.table_id} is now "
                f"{now.table_id}); nothing was committed"
            )

    def _report_to_server(self, table: OpenLakeTable, table_id: int, snapshot_id: int, offsets_path: str) -> None:
        ids = table.tiered_ids(self._settings.snapshots_known_max)
        self._session.run(
            self._session.admin.commit_lake_table_snapshot(
                table_id,
                snapshot_id,
                offsets_path,
                readable_offsets_path=offsets_path,
                earliest_snapshot_id_to_keep=ids[-1] if ids else snapshot_id,
            )
        )

    # -- between rounds -------------------------------------------------------------------------------------------

    def maintain(self, report: RoundReport, *, sweep: bool) -> None:
        """Compact, expire and sweep as the settings and the table say. A failure here loses no data."""
        settings = self._settings
        info = self._session.info(report.table_path)
        config = info.config
        known = self._session.lake_snapshot(report.table_path)
        if known is None or info.table_id != report.table_id:
            return
        with open_lake(lake_config(info, self._lake_options)) as lake:
            table = lake.table(info.lake_path)
            if config.lake_auto_compaction if settings.compact is None else settings.compact:
                known = self._compact(table, info, known, report)
            if config.lake_auto_expire_snapshot if settings.expire is None else settings.expire:
                keep = {known.snapshot_id}
                readable = self._session.lake_snapshot(report.table_path, readable=True)
                if readable is not None:
                    keep.add(readable.snapshot_id)
                older_ms = int((time.time() - settings.expire_after_s) * 1000)
                report.expired = len(
                    table.expire(keep_min=settings.expire_keep_min, older_than_ms=older_ms, keep_ids=keep)
                )
            if sweep and settings.sweep_after_s is not None:
                report.swept = len(table.sweep(older_than_ms=int((time.time() - settings.sweep_after_s) * 1000)))
            stats = table.stats(known.snapshot_id)
            report.stats = TieringStats(stats.size_bytes, stats.rows)

    def _compact(self, table: OpenLakeTable, info: TableInfo, known: LakeSnapshot, report: RoundReport) -> LakeSnapshot:
        results: list[WrittenFiles] = table.compact(files_min=self._settings.compact_files_min)
        if not results:
            return known
        # The same offsets under a new path: the compacted snapshot replaces the one it was made of.
        self._commit(table, info, results, known.table_buckets_offset, known, compacted=True)
        report.compacted = sum(one.files for one in results)
        return self._session.lake_snapshot(info.table_path) or known


def _files_of(results: Sequence[BucketResult]) -> list[WrittenFiles]:
    return [result.written for result in results if result.written is not None]


def _contiguous(results: Sequence[BucketResult]) -> tuple[list[BucketResult], list[BucketResult]]:
    """Results that follow each other without a hole, per bucket; and those after a task that was cut short or gone."""
    kept, dropped = [], []
    cut: set[TableBucket] = set()
    for result in sorted(results, key=lambda one: (one.bucket.partition_id or 0, one.bucket.bucket_id, one.start)):
        if result.bucket in cut:
            dropped.append(result)
            continue
        kept.append(result)
        if result.cut or result.gone:
            cut.add(result.bucket)
    return kept, dropped
