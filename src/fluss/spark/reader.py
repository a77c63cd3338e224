# SPDX-License-Identifier: Apache-2.0
"""Batch reads: planned on the driver, with the ends pinned there, and read by tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as d
from pyspark.sql.types import StructType

from fluss import aio
from fluss.aio import RecordBatch
from fluss.client.blocking_client import BlockingClient
from fluss.client.scan.views import CHANGE_TYPE, Binlog, view_info
from fluss.client.table import check_view
from fluss.db.read_plan import keys_of
from fluss.errors import (
    ConfigError,
    FlussError,
    LeaderNotAvailableError,
    LogOffsetOutOfRangeError,
    PartitionNotExistsError,
    TableNotExistError,
)
from fluss.metadata import CompoundFunction, Predicate, TableBucket, TableInfo
from fluss.metadata.predicate import joined
from fluss.metadata.where import parse_where
from fluss.spark.batches import BUCKET, METADATA_FIELDS, SparkBatchConverter, check_schema, packed, table_columns
from fluss.spark.connect import client_of, reader_of
from fluss.spark.failures import driver_side
from fluss.spark.filters import names_values, parse_filter, prune_partitions, pushed_predicate
from fluss.spark.lake import LakePart, lake_has_rows, lake_is_read, parts_of, plan_lake, read_lake_part, snapshot_as_of
from fluss.spark.layout import Bucket, Layout, rows_between
from fluss.spark.option_types import EARLIEST, LATEST
from fluss.spark.options import SourceOptions
from fluss.spark.snapshot import folded_rows, rows_as_of
from fluss.spark.splits import FOLDED, LOG, ROWS, FoundRows, Nothing, Split, cut

SPLIT_ROWS = 1_000_000
"""Buckets of log tables are cut into tasks of at most this size: one bucket would keep only one core busy."""


class FlussReader(d.DataSourceReader):  # type: ignore[misc]
    """Reads a table once. Made on the driver, sent to the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options["scan.packed-schema"] is not None:
            schema = StructType.fromJson(json.loads(options["scan.packed-schema"]))
        self._options = options
        self._schema = schema
        info = client_of(options.client).info(options.table_path)
        if options.view is not None:
            check_view(info, options.view)
        check_schema(view_info(info, options.view) if options.view == "binlog" else info, schema)
        self._check_metadata(info)
        check_filter(options, info)

    def _check_metadata(self, info: TableInfo) -> None:
        asked = [name for name in self._asked(info) if name != BUCKET]
        if asked and info.has_primary_key() and not self._options["read.changelog"]:
            raise ConfigError(
                f"current rows of primary-key table {info.table_path} have no {asked[0]}; "
                "set the option read.changelog to true to read its changes, which do"
            )

    def _asked(self, info: TableInfo) -> list[str]:
        """The metadata columns of the read."""
        own = info.schema.column_names
        return [name for name in self._schema.names if name in METADATA_FIELDS and name not in own]

    # -- on the driver --------------------------------------------------------------------------------------------

    @driver_side
    def partitions(self) -> Sequence[d.InputPartition]:
        options = self._options
        client = client_of(options.client)
        info = client.info(options.table_path)
        snapshot_id = options["scan.snapshot-id"]
        if options["scan.as-of.timestamp"] is not None and lake_has_rows(options, info):
            snapshot_id = self._snapshot_as_of(info)
        if snapshot_id is not None or lake_is_read(options, info):
            plan = plan_lake(
                options,
                info,
                choosing(options, info),
                snapshot_id=snapshot_id,
                lake_only=options["read.optimized"] or snapshot_id is not None,
            )
            if plan is not None:
                return parts_of(options, info, plan) or [Nothing()]
            if options["read.optimized"]:
                return [Nothing()]
        keys = self._keys(info)
        if keys is not None:
            return [FoundRows(rows) for rows in self._look_up(info, keys)] or [Nothing()]
        layout = pruned(Layout.load(client, info, options["scan.partitions"]), options)
        kind = self._kind(info)
        start, stop = self._range(layout, kind)
        if kind == LOG:
            splits = cut(
                info.table_id,
                start,
                stop,
                rows_max=options["scan.maxRecordsPerPartition"] or (None if info.has_primary_key() else SPLIT_ROWS),
                splits_min=options["minPartitions"],
            )
        else:
            # Rows of a key lie in one bucket, and only a whole bucket tells which of them is the last.
            splits = [
                Split(info.table_id, bucket, start[bucket], stop[bucket], kind)
                for bucket in sorted(start)
                if stop[bucket] > start[bucket]
            ]
        return list(splits) or [Nothing()]

    def _snapshot_as_of(self, info: TableInfo) -> int | None:
        """The snapshot of the lake that a read as of a time takes; None where the log has what there was then."""
        options = self._options
        time_ms = options["scan.as-of.timestamp"]
        layout = Layout.load(client_of(options.client), info)
        expired: LogOffsetOutOfRangeError | None = None
        try:
            _check_whole(layout, layout.at(time_ms), self._kind(info))
        except LogOffsetOutOfRangeError as error:
            expired = error
        whole = expired is None and not options["read.optimized"]
        if whole and not info.is_partitioned():
            return None
        found = snapshot_as_of(options, info, time_ms)
        if found is None:
            if expired is not None:
                raise expired.replace(hint="the lake has no snapshot of that time or an earlier one")
            return None
        only_in_lake = found[1] - set(layout.partitions.values())
        return None if whole and not only_in_lake else found[0]

    def _keys(self, info: TableInfo) -> list[dict[str, Any]] | None:
        """The keys of the rows that a read of current rows wants, where its filter names them."""
        options = self._options
        elsewhere = ("endingOffsets", "scan.as-of.timestamp", "scan.partitions")
        if self._kind(info) != ROWS or self._asked(info) or any(options[name] is not None for name in elsewhere):
            return None  # rows that are looked up do not show their bucket
        predicate = choosing(options, info)
        return None if predicate is None else keys_of(predicate, info)

    def _look_up(self, info: TableInfo, keys: list[dict[str, Any]]) -> list[pa.RecordBatch]:
        client = client_of(self._options.client)
        table = client.table(self._options.table_path)
        lookuper = client.call(lambda: table.new_lookup().create_lookuper())
        found: pa.Table = client.run(lookuper.lookup_many(keys))
        predicate = choosing(self._options, info)
        if predicate is not None:
            found = found.filter(predicate.to_arrow_expression(info.schema))
        return list(found.combine_chunks().to_batches())

    def _kind(self, info: TableInfo) -> str:
        options = self._options
        if not info.has_primary_key() or options["read.changelog"]:
            return LOG
        whole = options["scan.startup.mode"] == "full" and options["scan.incremental.start.timestamp"] is None
        return ROWS if whole else FOLDED

    def _range(self, layout: Layout, kind: str) -> tuple[dict[Bucket, int], dict[Bucket, int]]:
        options = self._options
        if options["endingOffsets"] is not None:
            stop = layout.given("endingOffsets", options["endingOffsets"], LATEST)
        elif options["scan.incremental.end.timestamp"] is not None:
            stop = layout.at(options["scan.incremental.end.timestamp"])
        elif options["scan.as-of.timestamp"] is not None:
            stop = layout.at(options["scan.as-of.timestamp"])
            _check_whole(layout, stop, kind)
        else:
            stop = layout.latest()
        if kind == ROWS:
            return dict.fromkeys(stop, 0), stop
        earliest = layout.earliest()
        mode = options["scan.startup.mode"]
        if options["scan.incremental.start.timestamp"] is not None:
            start = layout.at(options["scan.incremental.start.timestamp"])
        elif mode == "timestamp":
            start = layout.at(options["scan.startup.timestamp"])
        elif mode == "offsets":
            start = layout.given("scan.startup.offsets", options["scan.startup.offsets"], EARLIEST)
            for bucket, offset in start.items():
                if offset < earliest[bucket] and options["failOnDataLoss"]:
                    raise LogOffsetOutOfRangeError(
                        f"{bucket} of {layout.info.table_path} starts at offset {earliest[bucket]}; the rows from "
                        f"{offset} on are gone. Set failOnDataLoss to false to read those that are left"
                    )
        else:
            start = earliest
        buckets = [bucket for bucket in start if bucket in stop]
        return {b: max(start[b], earliest.get(b, 0)) for b in buckets}, {b: stop[b] for b in buckets}

    def count(self) -> int | None:
        """How many rows the read gives, where offsets say that; None where rows must be read."""
        options = self._options
        client = client_of(options.client)
        info = client.info(options.table_path)
        past = options["scan.as-of.timestamp"] is not None and info.config.lake_enabled
        counted = not info.has_primary_key() and options.view is None and not past and not lake_is_read(options, info)
        predicate = choosing(options, info)
        if not counted or (predicate is not None and not set(predicate.columns()) <= set(info.partition_keys)):
            return None
        layout = pruned(Layout.load(client, info, options["scan.partitions"]), options)
        if predicate is not None and not all(names_values(info, name) for name in layout.partitions.values()):
            return None
        start, stop = self._range(layout, LOG)
        return rows_between(start, stop, stop)

    # -- in the tasks ---------------------------------------------------------------------------------------------

    def read(self, partition: d.InputPartition) -> Iterator[pa.RecordBatch]:
        rows = read_partition(self._options, self._schema, partition)
        return rows if self._options["scan.packed-schema"] is None else packed(rows)


def _check_whole(layout: Layout, stop: Mapping[Bucket, int], kind: str) -> None:
    """Refuse to show a table as of a time if what it had then may have expired on the server."""
    for bucket, offset in layout.earliest().items():
        where = f"{bucket} of {layout.info.table_path} starts at offset {offset} on the server"
        if offset > 0 and kind == LOG and layout.info.config.lake_enabled:
            raise LogOffsetOutOfRangeError(f"{where}: older rows are in the lake only")
        if offset > 0 and stop.get(bucket, offset) <= offset:
            raise LogOffsetOutOfRangeError(
                f"{where}, which was written after the time that the read wants: older changes have expired "
                "(table.log.ttl). Name a later time"
            )


def check_filter(options: SourceOptions, info: TableInfo) -> None:
    """Refuse a filter that is wrong, or that this table cannot take, before anything runs."""
    if options["scan.filter"] is not None:
        parse_filter(options["scan.filter"], info.schema)


def pruned(layout: Layout, options: SourceOptions) -> Layout:
    """Without the partitions that no wanted row can be in."""
    info = layout.info
    if not info.is_partitioned():
        return layout
    predicate = choosing(options, info)
    return layout if predicate is None else layout.keep(prune_partitions(predicate, info, layout.partitions))


def choosing(options: SourceOptions, info: TableInfo) -> Predicate | None:
    """The filter by which rows, and so partitions, are chosen."""
    found = [parse_where(text, info.schema) for text in options["scan.partition-filters"] or ()]
    if options["scan.filter"] is not None:
        found.append(parse_filter(options["scan.filter"], info.schema))
    pushed = pushed_predicate(options["scan.pushed-filters"] or (), info.schema)
    if pushed is not None:
        found.append(pushed)
    return joined(CompoundFunction.AND, found) if found else None


def read_partition(options: SourceOptions, schema: StructType, partition: d.InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task in the schema of Spark."""
    rows = _rows(options, schema, partition)
    return rows if options["scan.limit"] is None else _limited(rows, options["scan.limit"])


def _rows(options: SourceOptions, schema: StructType, partition: d.InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Split):
        return read_split(options, schema, partition)
    if isinstance(partition, FoundRows):
        nowhere = TableBucket(0, 0)  # current rows have no metadata columns
        return SparkBatchConverter(schema).convert(iter((RecordBatch(partition.rows, nowhere, 0, 0),)))
    if isinstance(partition, LakePart):
        info = client_of(options.client).info(options.table_path)
        found = read_lake_part(options, schema, partition, info, choosing(options, info))
        return SparkBatchConverter(schema).convert(found)
    return iter(())


def _limited(found: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in found:
        yield batch.slice(0, rows)
        rows -= batch.num_rows
        if rows <= 0:
            return


def _check_same(info: TableInfo, table_id: int) -> None:
    if info.table_id != table_id:
        raise TableNotExistError(
            f"table {info.table_path} was dropped and created again (id {table_id} is now {info.table_id})"
        )


def read_split(options: SourceOptions, schema: StructType, split: Split) -> Iterator[pa.RecordBatch]:
    """The rows of one split in the schema of Spark."""
    client = reader_of(options.client)
    table = client.table(options.table_path)
    info = table.get_table_info()
    _check_same(info, split.table_id)
    if options.view == "binlog":
        binlog = Binlog()
        scan = _scan(client, table, list(info.schema.column_names), None)
        changes = _log_batches(client, scan, split, info, go_on=not options["failOnDataLoss"])
        return SparkBatchConverter(schema).convert(map(binlog.apply, changes))
    found = _batches(client, table, options, schema, split, choosing(options, info))
    # Without the column that tells them apart, deletes and old images would look like rows that are there.
    drop_deletes = info.has_primary_key() and (options["ignoreDeletes"] or CHANGE_TYPE not in schema.names)
    return SparkBatchConverter(schema, drop_deletes=drop_deletes).convert(found)


def _batches(
    client: BlockingClient,
    table: aio.FlussTable,
    options: SourceOptions,
    schema: StructType,
    split: Split,
    predicate: Predicate | None,
) -> Iterator[RecordBatch]:
    info = table.get_table_info()
    bucket = split.bucket.of(split.table_id)
    columns = table_columns(info, schema)
    if split.kind != LOG and predicate is not None:
        # What a row is, is known only when all changes of its key were seen: the filter comes last.
        columns = list(dict.fromkeys([*columns, *(leaf.column for leaf in predicate.leaves())]))
    if split.kind == ROWS:
        offset = None if options["read.optimized"] else split.stop
        rows = rows_as_of(client, table, bucket, offset, columns)
        return _as_inserts(_filtered(rows, predicate, info), split)
    if split.kind == FOLDED:
        folded = folded_rows(client, table, bucket, split.start, split.stop, columns)
        return _filtered(iter(folded), predicate, info)
    scan = _scan(client, table, columns, predicate)
    # A changelog may have offsets without a change, and a filter leaves rows out.
    every_row = predicate is None and not info.has_primary_key()
    return _log_batches(client, scan, split, info, go_on=not options["failOnDataLoss"], every_row=every_row)


def _log_batches(
    client: BlockingClient,
    scan: aio.TableScan,
    split: Split,
    info: TableInfo,
    *,
    go_on: bool,
    every_row: bool = False,
) -> Iterator[RecordBatch]:
    """The rows of a split of the log.

    With `go_on`, those that are left where some vanished since it was planned. With `every_row`, a scan that skips an
    offset fails.
    """
    bucket, position = split.bucket.of(split.table_id), split.start
    while position < split.stop:
        try:
            if _dropped(client, split, info):  # a scan would wait for a server to come up with it
                raise PartitionNotExistsError(f"partition '{split.bucket.partition_name}' was dropped")
            found = client.iterate(scan.read_batches({bucket: position}, {bucket: split.stop}))
            for item in without_gaps(found, position, split, info) if every_row else found:
                yield item
                position = item.last_offset + 1
            return
        except (LogOffsetOutOfRangeError, PartitionNotExistsError, LeaderNotAvailableError) as error:
            first = split.stop
            if not _dropped(client, split, info):
                layout = Layout.load(client, info, [split.bucket.partition_name] if info.is_partitioned() else None)
                first = layout.earliest().get(split.bucket, split.stop)
            if first <= position:
                raise
            if not go_on:
                raise LogOffsetOutOfRangeError(
                    f"rows of {split.bucket} of {info.table_path} from offset {position} to {min(first, split.stop)} "
                    "are gone since the read was planned; set failOnDataLoss to false to go on with those that are left"
                ) from error
            position = first


def without_gaps(found: Iterable[RecordBatch], start: int, split: Split, info: TableInfo) -> Iterator[RecordBatch]:
    """Pass batches on, and fail if they do not hold one row for each offset from `start` to the end of the split."""
    position = start
    for item in found:
        if item.base_offset != position or item.num_records != item.last_offset + 1 - position:
            break
        yield item
        position = item.last_offset + 1
    if position != split.stop:
        raise FlussError(
            f"{split.bucket} of {info.table_path}: a read of the offsets {start} to {split.stop} got no row for offset "
            f"{position}; the query would lack rows. Run it again; if it fails again, the log of the bucket is damaged"
        )


def _dropped(client: BlockingClient, split: Split, info: TableInfo) -> bool:
    bucket = split.bucket
    if bucket.partition_id < 0:
        return False
    spec = dict(zip(info.partition_keys, bucket.partition_name.split("$")))
    found = client.run(client.admin.list_partition_infos(info.table_path, spec))
    return all(part.partition_id != bucket.partition_id for part in found)


def _scan(
    client: BlockingClient, table: aio.FlussTable, columns: list[str], predicate: Predicate | None
) -> aio.TableScan:
    def make() -> aio.TableScan:
        scan = table.new_scan()
        if columns != list(table.get_table_info().schema.column_names):
            scan = scan.project_by_name(columns)
        return scan if predicate is None else scan.filter(predicate)

    return client.call(make)


def _filtered(found: Iterator[RecordBatch], predicate: Predicate | None, info: TableInfo) -> Iterator[RecordBatch]:
    if predicate is None:
        yield from found
        return
    expression = predicate.to_arrow_expression(info.schema)
    for item in found:
        for batch in pa.Table.from_batches([item.batch]).filter(expression).to_batches():
            yield RecordBatch(batch, item.bucket, item.base_offset, item.last_offset)


def _as_inserts(found: Iterator[RecordBatch], split: Split) -> Iterator[RecordBatch]:
    """Rows of a listing have no offsets of their own: they stand for the log up to the end of the split."""
    last = split.stop - 1
    for item in found:
        yield RecordBatch(item.batch, item.bucket, last, last, -1, None, [last] * item.num_records)
