# SPDX-License-Identifier: Apache-2.0
"""Streams: which offsets the next micro-batch covers is decided on the driver; tasks read them.

An offset of a stream is a document of the next offset of every bucket. For `full` on a primary-key table, or one that
has a lake, it starts as `{"snapshot": true}`: the first micro-batch is the rows as of the offsets it ends with, the log
follows them. Where those rows come from a snapshot of the lake, the end of the first micro-batch names it: Spark asks
for the start again when it runs that micro-batch again, and the lake may have newer snapshots by then. The end of any
other first micro-batch names the offsets it started with: the log may start, or end, later by then.

Spark before 4.2 asks for the first end without saying whether the query is new. That end is the end of the log, and it
names the snapshot and the offsets where the log goes on after it, which only a new query reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as d
from pyspark.sql.types import StructType

from fluss.errors import LogOffsetOutOfRangeError, TableNotExistError
from fluss.lake.api import LakeTableChangedError
from fluss.lake.tasks import session_of
from fluss.metadata import LakeSnapshot, TableInfo
from fluss.spark.batches import check_schema
from fluss.spark.connect import client_of
from fluss.spark.failures import driver_side
from fluss.spark.lag import lag_of
from fluss.spark.lake import parts_of, plan_lake
from fluss.spark.layout import Bucket, Layout, from_json, rows_between, to_json
from fluss.spark.option_types import EARLIEST
from fluss.spark.options import SourceOptions, read_options
from fluss.spark.reader import check_filter, choosing, pruned, read_partition, read_split
from fluss.spark.splits import ROWS, Split, cut
from fluss.spark.versions import (
    KNOWS_START,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

SNAPSHOT = "snapshot"
LAKE = "lake"
REST = "rest"
FIRST = "first"
"""The mark of the start of a query that does not start with a snapshot."""
_SAMPLE_ROWS = 1_000
ROWS_PER_TRIGGER = 10_000_000
ROWS_PER_BUCKET = 1_000_000
"""Limits of a micro-batch where the user sets none: so many rows per bucket, but at least so many together."""


class FlussStreamReader(d.DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads a table as it grows."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        # Nothing may fail here: Spark would report a fault of its own clean-up in place of the error.
        self._given = dict(options)
        self._schema = schema
        self._target: dict[Bucket, int] | None = None
        self._planned: dict[Bucket, int] = {}
        self._seen: dict[Bucket, int] = {}
        self._row_bytes: float | None = None
        self._position: dict[str, Any] | None = None
        self._started = False

    @cached_property
    def _options(self) -> SourceOptions:
        return read_options(self._given, streaming=True)

    @cached_property
    def _info(self) -> TableInfo:
        info = client_of(self._options.client).info(self._options.table_path)
        check_schema(info, self._schema)
        check_filter(self._options, info)
        return info

    # -- what there is --------------------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        client = client_of(self._options.client)
        info = client.info(self._options.table_path)
        if info.table_id != self._info.table_id:
            raise TableNotExistError(
                f"table {info.table_path} was dropped and created again while it was read; start a new query with a "
                "new checkpoint"
            )
        return pruned(Layout.load(client, info, self._options["scan.partitions"]), self._options)

    def _latest(self, layout: Layout) -> dict[Bucket, int]:
        self._seen.update(found := layout.latest())
        return found

    @driver_side
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        start = self._initial()
        # Spark before 4.2 asks for the first end before the start: a position that went back would read rows again.
        self._position = self._position or start
        return start

    def _initial(self) -> dict[str, Any]:
        options = self._options
        mode = options["scan.startup.mode"]
        if mode == "full" and (self._info.has_primary_key() or self._info.config.lake_enabled):
            return {"table_id": self._info.table_id, SNAPSHOT: True, "offsets": {}}
        layout = self._layout()
        if mode == "latest":
            start = layout.latest()
        elif mode == "timestamp":
            start = layout.at(options["scan.startup.timestamp"])
        elif mode == "offsets":
            start = layout.given("scan.startup.offsets", options["scan.startup.offsets"], EARLIEST)
        else:
            start = layout.earliest()
        return {**to_json(self._info, start), FIRST: True}

    @driver_side
    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is None:
            # Spark before 4.2 does not say where the stream is, nor that the trigger is `availableNow`, which takes one
            # micro-batch: the first of a run takes all there is.
            start, limit = self._position, self.getDefaultReadLimit() if self._started else ReadAllAvailable()
            self._started = True
        if start is None:
            end = self._first_end()
        else:
            end = self._next(start, limit or ReadAllAvailable())
        self._position = end
        return end

    def _first_end(self) -> dict[str, Any]:
        """The end of all there is, for a query that may be new or may go on."""
        full = self._options["scan.startup.mode"] == "full" and not self._info.has_primary_key()
        found = self._lake_snapshot() if full else None  # before the ends, so that it does not lie behind them
        layout = self._layout()
        latest = self._latest(layout)
        document = to_json(self._info, latest)
        if found is not None:
            rest, _ = after_snapshot(self._info, found, latest, layout)
            document[LAKE] = {SNAPSHOT: found.snapshot_id, "listed": [], REST: to_json(self._info, rest)}
        elif full and self._info.config.lake_enabled:
            document[LAKE] = {REST: to_json(self._info, layout.earliest())}
        return document

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the micro-batch that starts there."""
        self._check_table(start)
        found = self._lake_snapshot() if start.get(SNAPSHOT) else None  # before the ends, as in `_first_end`
        layout = self._layout()
        latest = self._latest(layout)
        if self._target is not None:
            if found is not None:
                # It may hold partitions that are newer than the target: their rows are read with the snapshot.
                offsets = found.table_buckets_offset
                tiered = {bucket: offsets.get(bucket.of(self._info.table_id)) for bucket in latest}
                self._target = {b: offset for b, offset in tiered.items() if offset is not None} | self._target
            latest = {bucket: min(latest[bucket], end) for bucket, end in self._target.items() if bucket in latest}
        lake: dict[str, Any] | None = None
        if found is not None:
            end, listed = after_snapshot(self._info, found, latest, layout)
            lake = {SNAPSHOT: found.snapshot_id, "listed": sorted(bucket.key for bucket in listed)}
        elif start.get(SNAPSHOT) and self._info.has_primary_key():
            # A snapshot is read whole: its rows have no order in which a part of them could come first.
            end = latest
        else:
            begin = self._begin(start, layout)
            self._check_dropped(begin, layout)
            end = {bucket: max(latest[bucket], begin.get(bucket, 0)) for bucket in latest}
            end = self._limited(begin, end, limit)
            if start.get(SNAPSHOT) or start.get(FIRST):
                # Kept, so that the micro-batch starts there again when it runs again: by then the log may start later.
                lake = {REST: to_json(self._info, begin)}
        self._planned = end
        document = to_json(self._info, end)
        if document == {name: value for name, value in start.items() if name not in (LAKE, FIRST)}:
            return start
        return document if lake is None else {**document, LAKE: lake}

    def _lake_snapshot(self) -> LakeSnapshot | None:
        if not self._info.config.lake_enabled:
            return None
        return session_of(self._options.client).lake_snapshot(self._info.table_path, readable=True)

    def _begin(self, start: Mapping[str, Any], layout: Layout) -> dict[Bucket, int]:
        """The start of the next micro-batch; partitions that are new since then start with their first row."""
        if start.get(SNAPSHOT):
            return layout.earliest()
        known = from_json(start)
        new = {i: name for i, name in layout.partitions.items() if not any(b.partition_id == i for b in known)}
        if new:
            # At 0 even if its first rows have expired: that is loss, as it is of partitions that were there before.
            known.update(dict.fromkeys(layout.keep(new).buckets, 0))
        return known

    def _check_dropped(self, begin: Mapping[Bucket, int], layout: Layout) -> None:
        if not self._options["failOnDataLoss"]:
            return
        gone = [bucket for bucket in begin if bucket.partition_id not in layout.partitions]
        if not gone:
            return
        # Partitions that a filter leaves out by now still exist.
        existing = Layout.load(layout.client, layout.info).partitions
        for bucket in gone:
            if bucket.partition_id in existing:
                continue
            if bucket not in self._seen:
                # The checkpoint is all that is known of it: rows may have come while no query was running.
                raise LogOffsetOutOfRangeError(
                    f"partition '{bucket.partition_name}' of {self._info.table_path} was dropped while this query was "
                    f"not running; rows of {bucket} from offset {begin[bucket]} on may not have been read. Set "
                    "failOnDataLoss to false to go on without them"
                )
            unread = self._seen[bucket] - begin[bucket]
            if unread > 0:
                raise LogOffsetOutOfRangeError(
                    f"partition '{bucket.partition_name}' of {self._info.table_path} was dropped with {unread} rows of "
                    f"bucket {bucket.bucket} not read; set failOnDataLoss to false to go on without them"
                )

    def _check_table(self, start: Mapping[str, Any]) -> None:
        if start.get("table_id") != self._info.table_id:
            raise TableNotExistError(
                f"the checkpoint of this query belongs to a table {self._info.table_path} with id "
                f"{start.get('table_id')}, which is gone (it is now {self._info.table_id}); use a new checkpoint"
            )

    # -- limits ---------------------------------------------------------------------------------------------------

    @driver_side
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options["maxRowsPerTrigger"] is not None:
            return ReadMaxRows(self._options["maxRowsPerTrigger"])
        if self._options["maxBytesPerTrigger"] is not None:
            return ReadMaxBytes(self._options["maxBytesPerTrigger"])
        # A backlog of any size in one micro-batch would have to be done all over when one of its tasks fails for good.
        buckets = max(len(self._seen), self._info.num_buckets)
        return ReadMaxRows(max(ROWS_PER_TRIGGER, ROWS_PER_BUCKET * buckets))

    def _limited(self, begin: Mapping[Bucket, int], end: dict[Bucket, int], limit: ReadLimit) -> dict[Bucket, int]:
        if isinstance(limit, ReadAllAvailable):
            return end
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options["maxBytesPerTrigger"]
        total = rows_between(begin, end, end)
        if bytes_max is not None and total:
            by_size = max(1, int(bytes_max / self._bytes_per_row(begin, end)))
            rows_max = by_size if rows_max is None else min(rows_max, by_size)
        if rows_max is None or total <= rows_max:
            return end
        return share(begin, end, rows_max)

    def _bytes_per_row(self, begin: Mapping[Bucket, int], end: Mapping[Bucket, int]) -> float:
        """How large rows are, from the first ones that are to be read; asked once."""
        if self._row_bytes is None:
            bucket = max(end, key=lambda b: end[b] - begin.get(b, 0))
            start = begin.get(bucket, 0)
            sample = Split(self._info.table_id, bucket, start, min(end[bucket], start + _SAMPLE_ROWS))
            rows = size = 0
            for batch in read_split(self._options, self._schema, sample):
                rows, size = rows + batch.num_rows, size + batch.nbytes
            self._row_bytes = max(1.0, size / rows) if rows else 1.0
        return self._row_bytes

    @driver_side
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._latest(self._layout())

    @driver_side
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of all buckets, and how far the stream is behind them: in rows, and in milliseconds."""
        latest = self._latest(self._layout())
        document = {**to_json(self._info, latest), "table": str(self._info.table_path)}
        document.update(lag_of(client_of(self._options.client), self._info, self._planned, latest))
        return document

    # -- planning and reading -------------------------------------------------------------------------------------

    @driver_side
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[d.InputPartition]:
        self._check_table(start)
        stop = from_json(end)
        # A query that goes on after a restart has planned nothing yet in this process.
        self._planned = self._planned or stop
        self._position = self._position or end
        if (start.get(SNAPSHOT) or start.get(FIRST)) and LAKE in end:
            lake = end[LAKE]
            parts = self._snapshot_parts(stop, lake) if SNAPSHOT in lake else []
            return parts + (self._log_parts(from_json(lake[REST]), stop, self._layout()) if REST in lake else [])
        if start.get(SNAPSHOT) and self._info.has_primary_key():
            return self._listed(stop)
        layout = self._layout()
        begin = self._begin(start, layout) if start.get(SNAPSHOT) else from_json(start)
        if not KNOWS_START:
            self._check_dropped(begin, layout)  # the end was planned without the start
        return self._log_parts(begin, stop, layout)

    def _log_parts(
        self, begin: Mapping[Bucket, int], stop: Mapping[Bucket, int], layout: Layout
    ) -> list[d.InputPartition]:
        gone = [b for b in stop if b.partition_id not in layout.partitions and stop[b] > begin.get(b, 0)]
        if gone and self._options["failOnDataLoss"]:
            raise LogOffsetOutOfRangeError(
                f"partition '{gone[0].partition_name}' of {self._info.table_path} was dropped before it was read; "
                "set failOnDataLoss to false to go on without its rows"
            )
        unread = {b: o for b, o in stop.items() if o > begin.get(b, 0) and b not in gone}
        if not unread:
            return []
        earliest = layout.earliest()
        first = {}
        for bucket in unread:
            wanted = begin.get(bucket, 0)
            first[bucket] = max(wanted, earliest.get(bucket, 0))
            if first[bucket] > wanted and self._options["failOnDataLoss"]:
                raise LogOffsetOutOfRangeError(
                    f"{bucket} of {self._info.table_path} now starts at offset {first[bucket]}: the rows from {wanted} "
                    "on are gone before they were read; set failOnDataLoss to false to go on with those that are left"
                )
        return list(
            cut(
                self._info.table_id,
                first,
                unread,
                rows_max=self._options["scan.maxRecordsPerPartition"],
                splits_min=self._options["minPartitions"],
            )
        )

    def _listed(self, stop: Mapping[Bucket, int]) -> list[d.InputPartition]:
        return [Split(self._info.table_id, b, 0, offset, ROWS) for b, offset in sorted(stop.items()) if offset > 0]

    def _snapshot_parts(self, stop: Mapping[Bucket, int], lake: Mapping[str, Any]) -> list[d.InputPartition]:
        options, info = self._options, self._info
        try:
            plan = plan_lake(options, info, choosing(options, info), snapshot_id=lake[SNAPSHOT], lake_only=True)
        except LakeTableChangedError as error:
            raise LakeTableChangedError(
                f"{error.message}. The first micro-batch of this query is not complete and needs it; start again with "
                "a new checkpoint"
            ) from error
        parts = [] if plan is None else parts_of(options, info, plan)
        return parts + self._listed({bucket: offset for bucket, offset in stop.items() if bucket.key in lake["listed"]})

    def read(self, partition: d.InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._schema, partition)


def after_snapshot(
    info: TableInfo, snapshot: LakeSnapshot, latest: Mapping[Bucket, int], layout: Layout
) -> tuple[dict[Bucket, int], list[Bucket]]:
    """Where the log goes on after the first micro-batch, and the buckets it lists because the lake has none of them."""
    offsets = snapshot.table_buckets_offset
    missing = [bucket for bucket in latest if bucket.of(info.table_id) not in offsets]
    end = {bucket: offsets[bucket.of(info.table_id)] for bucket in latest if bucket not in missing}
    if info.has_primary_key():
        # Their changelog may not reach back to the first row.
        return end | {bucket: latest[bucket] for bucket in missing}, missing
    earliest = layout.earliest() if missing else {}
    return end | {bucket: earliest.get(bucket, 0) for bucket in missing}, []


def share(begin: Mapping[Bucket, int], end: Mapping[Bucket, int], rows_max: int) -> dict[Bucket, int]:
    """Ends that leave at most `rows_max` rows, each bucket getting its share of what it has."""
    waiting = {bucket: end[bucket] - begin.get(bucket, 0) for bucket in end}
    total = sum(waiting.values())
    taken = {bucket: rows * rows_max // total for bucket, rows in waiting.items()}
    left = rows_max - sum(taken.values())
    # Rounding down must not starve small buckets: what is left goes to those that wait, the fullest first.
    for bucket in sorted(waiting, key=lambda b: taken[b] - waiting[b]):
        if left <= 0:
            break
        if taken[bucket] < waiting[bucket]:
            taken[bucket] += 1
            left -= 1
    return {bucket: begin.get(bucket, 0) + taken[bucket] for bucket in end}
