# SPDX-License-Identifier: Apache-2.0
"""Delta Lake: log tables as tables of ``<warehouse>/<database>/<table>``, one version per round.

Arrow writes and reads the files; the library of Delta keeps the log. A commit names the version it follows and is not
tried again, so any other version that has come between refuses it. The offsets stand in the commit itself.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from fluss import metadata as m
from fluss.errors import InvalidTableError
from fluss.lake.api import (
    OFFSETS_PROPERTY,
    TIERING_USER,
    USER_PROPERTY,
    LakeBucket,
    LakeCommit,
    LakeSplit,
    LakeStats,
    LakeWriter,
    OpenLakeTable,
    Options,
    PartitionFilter,
    WrittenFiles,
    tiered_properties,
)
from fluss.lake.layout import (
    SYSTEM_COLUMNS,
    SYSTEM_FIELDS,
    LakeAppendWriter,
    LakeBatchConverter,
    arrow_differences,
    check_column_names,
    check_string_partitions,
    map_types,
    read_schema,
    to_fluss,
)
from fluss.lake.warehouse import FolderTable, WarehouseLake
from fluss.metadata import Column, TableDescriptor, TableInfo, TablePath
from fluss.metadata.properties import lake_options

_REPLACES_PROPERTY = "fluss-compaction"
_OPEN_TRIES = 5
_FILE_BYTES = 128 * 1024 * 1024
_UNREADABLE = frozenset({"deletionVectors", "columnMapping", "v2Checkpoint"})
"""Features that change what the files of a table mean; nothing here writes them."""


class DeltaLake(WarehouseLake):
    """A folder of Delta tables, local or in an object store."""

    lake_format = "delta"
    place = "as a Delta table"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if self._warehouse.startswith(("s3://", "s3a://")):
            # The store itself refuses a version that is there already; nothing else has to keep writers apart.
            self.storage.setdefault("conditional_put", "etag")

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        check_table(descriptor)
        options = lake_options("delta", {**descriptor.properties, **descriptor.custom_properties})
        try:
            DeltaTable.create(
                self.uri(path),
                Schema.from_arrow(delta_schema(descriptor.schema.columns)),
                mode="error",
                partition_by=list(descriptor.partition_keys) or None,
                configuration={f"delta.{name}": text for name, text in options.items()},
                storage_options=self.storage,
            )
        except DeltaError as error:
            if "already exists" not in str(error):
                raise
            self.check_existing(path, descriptor, must_be_empty=must_be_empty)

    def table(self, path: TablePath) -> OpenLakeTable:
        try:
            table = _load(self.uri(path), None, self.storage)
        except TableNotFoundError:
            raise self.missing(path) from None
        return OpenDeltaTable(path, table, self.storage)


_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Versions go by `expire` alone: recovery reads those after the one the server knows."""


def _load(uri: str, version: int | None, storage: Mapping[str, str]) -> DeltaTable:
    """Open a table. One whose old versions expire while its log is read is opened again."""
    for tries_left in range(_OPEN_TRIES - 1, -1, -1):
        try:
            return DeltaTable(uri, version=version, storage_options=dict(storage))
        except TableNotFoundError:
            raise
        except DeltaError as error:
            if not tries_left or "_delta_log" not in str(error) or "not found" not in str(error):
                raise
    raise AssertionError("unreachable")


class OpenDeltaTable(FolderTable):
    """One Delta table, as it was when it was opened; commits look at it anew."""

    kind = "Delta table"

    def __init__(self, path: TablePath, table: DeltaTable, storage: Mapping[str, str]) -> None:
        super().__init__(path, table.table_uri, storage)
        self.delta = table

    # -- the table ------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The columns in the order of the table, those of partitions included."""
        return pa.schema(self.delta.schema().to_arrow())

    @property
    def partition_keys(self) -> list[str]:
        return list(self.delta.metadata().partition_columns)

    def differences(self, columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
        schema = self.schema
        missing, wrong = arrow_differences(schema, columns, delta_type)
        return missing, wrong + [f"column '{name}' is missing" for name in SYSTEM_COLUMNS if name not in schema.names]

    def layout_differences(self, descriptor: TableDescriptor) -> list[str]:
        check_table(descriptor)
        wrong = []
        if self.partition_keys != list(descriptor.partition_keys):
            wrong.append(f"it is partitioned by {self.partition_keys}, not {list(descriptor.partition_keys)}")
        features = _UNREADABLE & set(self.delta.protocol().reader_features or ())
        if features:
            wrong.append(f"it uses {', '.join(sorted(features))}, which is not read here")
        return wrong

    def add_columns(self, columns: Sequence[Column]) -> None:
        fields = Schema.from_arrow(pa.schema([delta_field(column) for column in columns])).fields
        self.delta.alter.add_columns(fields, post_commithook_properties=_HOOKS)

    def is_empty(self) -> bool:
        return not self.delta.file_uris()

    def _at(self, version: int) -> DeltaTable:
        try:
            if version > self.delta.version() or version < self._first_version():
                raise TableNotFoundError
            return _load(self.delta.table_uri, version, self.storage)
        except (TableNotFoundError, DeltaError) as error:
            raise self.gone(version) from error

    # -- writing --------------------------------------------------------------------------------------------------

    def writer(self, bucket: LakeBucket, info: TableInfo) -> LakeWriter:
        files = DeltaFiles(self, dict(zip(self.partition_keys, bucket.partition)))
        return LakeAppendWriter(files, LakeBatchConverter(self.schema, bucket.bucket, self.what))

    def commit(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        return self._commit(results, offsets_path, known_id, {})

    def commit_compaction(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        return self._commit(results, offsets_path, known_id, {_REPLACES_PROPERTY: "true"})

    def _commit(
        self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None, more: Mapping[str, str]
    ) -> int:
        bases = {result.payload["base"] for result in results if result.payload["removed"]}
        self.refresh()
        version = self.delta.version()
        self.check_newest(known_id)
        if bases and bases != {version}:
            raise self.conflict("another version was committed")
        actions = [action for result in results for kind in ("added", "removed") for action in result.payload[kind]]
        properties = CommitProperties(custom_metadata={**tiered_properties(offsets_path), **more}, max_commit_retries=0)
        try:
            self.delta.create_write_transaction(
                actions,
                "append",
                self.delta.schema(),
                self.partition_keys or None,
                commit_properties=properties,
                post_commithook_properties=_HOOKS,
            )
        except CommitFailedError as error:
            raise self.conflict(error) from None
        self.refresh()
        return int(version + 1)

    def abort(self, results: Sequence[WrittenFiles]) -> None:
        for result in results:
            self.delete(unquote(action.path) for action in result.payload["added"])

    # -- snapshots ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        self.delta.update_incremental()

    def _history(self) -> list[dict[str, Any]]:
        """The commits that are still described, newest first."""
        return [one for one in self.delta.history() if one.get("version") is not None]

    def _first_version(self) -> int:
        return min((int(one["version"]) for one in self._history()), default=0)

    def commits(self) -> Iterator[LakeCommit]:
        for one in self._history():
            properties = {name: one[name] for name in (USER_PROPERTY, OFFSETS_PROPERTY) if name in one}
            replaces = one.get("operation") == "RESTORE"
            yield LakeCommit(int(one["version"]), properties, replaces)

    # -- reading --------------------------------------------------------------------------------------------------

    def files_at(self, version: int | None = None) -> list[dict[str, Any]]:
        """The files of a version: path, size, rows and partition values."""
        table = self.delta if version is None else self._at(version)
        return list(pa.table(table.get_add_actions(flatten=False)).to_pylist())

    def plan(
        self, snapshot_id: int, wanted: PartitionFilter | None = None, partition_keys: Sequence[str] = ()
    ) -> list[LakeSplit]:
        keys = self.partition_keys
        splits = []
        for file in self.files_at(snapshot_id):
            values = file.get("partition") or {}
            partition = tuple(str(values[key]) for key in keys)
            if wanted is None or wanted(partition):
                payload = {"path": file["path"], "partition": dict(zip(keys, partition))}
                rows = file.get("num_records")
                splits.append(LakeSplit(payload, int(rows or 0), exact=rows is not None))
        return splits

    def read(self, split: LakeSplit, info: TableInfo, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = read_schema(info, columns)
        for batch in self.read_file(split.payload["path"], split.payload["partition"], columns):
            yield to_fluss(batch, schema)

    def read_file(
        self, path: str, partition: Mapping[str, str], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of a file; the columns of its partition are not in it."""
        with self.filesystem.open_input_file(f"{self.root}/{unquote(path)}") as source:
            file = pq.ParquetFile(source)
            names = [name for name in file.schema_arrow.names if columns is None or name in columns]
            # A batch without columns would not have its row count.
            for batch in file.iter_batches(columns=names or file.schema_arrow.names[:1]):
                for key, value in partition.items():
                    batch = batch.append_column(key, pa.array([value] * batch.num_rows, pa.string()))
                yield batch

    # -- files ----------------------------------------------------------------------------------------------------

    def stats(self, snapshot_id: int | None = None) -> LakeStats:
        files = self.files_at(snapshot_id)
        return LakeStats(
            len(files),
            sum(int(file["size_bytes"]) for file in files),
            sum(int(file.get("num_records") or 0) for file in files),
            len(self._history()),
        )

    def compact(self, *, files_min: int) -> list[WrittenFiles]:
        groups: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = defaultdict(list)
        keys, base = self.partition_keys, self.delta.version()
        for file in self.files_at():
            if file["size_bytes"] < _FILE_BYTES // 2:
                values = file.get("partition") or {}
                groups[tuple((key, str(values[key])) for key in keys)].append(file)
        results = []
        for partition, files in groups.items():
            if len(files) < files_min:
                continue
            target = DeltaFiles(self, dict(partition))
            for file in sorted(files, key=lambda one: one["modification_time"]):
                for batch in self.read_file(file["path"], dict(partition)):
                    target.write(batch)
            now_ms = int(time.time() * 1000)
            removed = [
                RemoveAction(file["path"], False, now_ms, int(file["size_bytes"]), dict(partition)) for file in files
            ]
            written = target.finish(removed, base)
            results.append(replace(written, files=len(files)))
        return results

    def history_times(self) -> list[tuple[int, float]]:
        self.refresh()
        return [(int(one["version"]), float(one.get("timestamp") or 0)) for one in self._history()]

    def drop_snapshots(self, old: Sequence[int]) -> list[int]:
        if old[-1] - old[0] + 1 != len(old):
            return []  # commits between them are not described: what they removed is not known
        first_kept = old[-1] + 1
        gone = self._removed_between(old[0], first_kept) - self._used_from(first_kept)
        # The kept versions must not need the commits that go.
        self._at(first_kept).create_checkpoint()
        # The clean-up of the library goes by the age of a version alone: it knows none that must stay.
        endings = ("json", "checkpoint.parquet")
        self.delete(f"_delta_log/{version:020d}.{ending}" for version in old for ending in endings)
        self.delete(unquote(path) for path in gone)
        self.delta = _load(self.delta.table_uri, None, self.storage)
        return list(old)

    def _used_from(self, first: int) -> set[str]:
        """The files of all versions from one on: those of the newest, and those that a later one removed."""
        return {file["path"] for file in self.files_at()} | self._removed_between(first, self.delta.version())

    def _removed_between(self, first: int, last: int) -> set[str]:
        """The files of versions whose successor, after the first and up to the last one, may have removed some."""
        successors = [int(one["version"]) for one in self._history() if not _only_adds(one)]
        return {
            file["path"] for version in successors if first < version <= last for file in self.files_at(version - 1)
        }

    def old_files(self, older_than_ms: int) -> list[str]:
        files = self.list_files(older_than_ms)
        return [name for name in files if name.endswith(".parquet") and not name.startswith("_")]

    def unused(self, files: Sequence[str]) -> list[str]:
        self.refresh()
        used = {unquote(path) for path in self._used_from(self._first_version())}
        return [name for name in files if name not in used]


def _only_adds(commit: Mapping[str, Any]) -> bool:
    mine = commit.get(USER_PROPERTY) == TIERING_USER and not commit.get(_REPLACES_PROPERTY)
    return mine or commit.get("operation") in ("CREATE TABLE", "ADD COLUMN")


class DeltaFiles:
    """Writes rows of one partition to Parquet files of about one size."""

    def __init__(self, table: OpenDeltaTable, partition: Mapping[str, str]) -> None:
        self._table = table
        self._partition = dict(partition)
        self.schema = pa.schema([field for field in table.schema if field.name not in self._partition])
        folder = "/".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in partition.items())
        self._folder = f"{folder}/" if folder else ""
        self._done: list[tuple[str, int, int]] = []
        self._path = ""
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows; columns that are missing are null."""
        if self._writer is None:
            # Names of partitions are written as they are, so their folders are escaped once more in the log.
            self._path = f"{self._folder}part-{uuid.uuid4()}.parquet"
            where = f"{self._table.root}/{self._path}"
            if isinstance(self._table.filesystem, pafs.LocalFileSystem):
                self._table.filesystem.create_dir(where.rpartition("/")[0], recursive=True)
            self._sink = self._table.filesystem.open_output_stream(where)
            self._writer = pq.ParquetWriter(self._sink, self.schema, compression="zstd")
        self._writer.write_batch(to_fluss(batch, self.schema))
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._bytes >= _FILE_BYTES:
            self._roll()

    def _roll(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        self._done.append((self._path, size, self._rows))
        self._writer, self._sink, self._rows, self._bytes = None, None, 0, 0

    def finish(self, removed: Sequence[RemoveAction] = (), base: int | None = None) -> WrittenFiles:
        """Close the files and describe them for the log; `removed` are those of version `base` that they replace."""
        self._roll()
        now_ms = int(time.time() * 1000)
        added = [
            AddAction(
                path=quote(path, safe="/="),
                size=size,
                partition_values=self._partition,
                modification_time=now_ms,
                data_change=not removed,
                stats=json.dumps({"numRecords": rows}),
            )
            for path, size, rows in self._done
        ]
        rows, size = sum(one[2] for one in self._done), sum(one[1] for one in self._done)
        return WrittenFiles({"added": added, "removed": removed, "base": base}, rows, len(added), size)

    def remove(self) -> None:
        """Delete everything written so far."""
        with contextlib.suppress(Exception):
            self._roll()
        self._table.delete(path for path, _, _ in self._done)


# -- schemas ------------------------------------------------------------------------------------------------------
#
# All columns take nulls: Spark reads NOT NULL as a feature that a table has to list, and the library of Delta does not
# list it, so that Spark would refuse the table. Fluss has checked the rows.


def check_table(descriptor: m.TableDescriptor) -> None:
    """Refuse what a Delta table cannot hold."""
    if descriptor.has_primary_key():
        raise InvalidTableError("the lake format delta takes log tables only, not tables with a primary key")
    check_column_names(descriptor)
    check_string_partitions(descriptor, "Delta")
    for column in descriptor.schema.columns:
        delta_type(column)


def delta_schema(columns: Sequence[m.Column]) -> pa.Schema:
    """The columns of a table and those that lake tables add."""
    return pa.schema([*(delta_field(column) for column in columns), *SYSTEM_FIELDS.values()])


def delta_field(column: m.Column) -> pa.Field:
    """One column."""
    comment = {b"comment": column.comment.encode()} if column.comment else None
    return pa.field(column.name, delta_type(column), metadata=comment)


def delta_type(column: m.Column) -> pa.DataType:
    """The type of a column as Delta has it: microseconds, and no binary of fixed length."""

    def converted(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_time(kind):
            raise InvalidTableError(f"Delta has no type for TIME; column '{column.name}' cannot be tiered")
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", kind.tz)
        is_fixed = pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind)
        return pa.binary() if is_fixed else kind

    return map_types(column.data_type.to_arrow(), converted, nullable_fields=True)
