# SPDX-License-Identifier: Apache-2.0
"""Apache Paimon: one snapshot per round, buckets aligned with those of Fluss.

Files are written and read by the native library where it can (Parquet, common partition types); planning and committing
are plain Python, so a process that only drives never loads native code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pypaimon import CatalogFactory
from pypaimon.catalog.catalog_exception import (
    DatabaseAlreadyExistException,
    DatabaseNotExistException,
    TableAlreadyExistException,
    TableNotExistException,
)
from pypaimon.common.identifier import Identifier
from pypaimon.schema.data_types import PyarrowFieldParser
from pypaimon.schema.schema_change import Move, SchemaChange
from pypaimon.table.bucket_mode import BucketMode
from pypaimon.utils.file_store_path_factory import canonical_data_file_path
from pypaimon.write.commit_message_serializer import deserialize_commit_message, serialize_commit_message

from fluss.errors import ConfigError, LakeTableAlreadyExistError
from fluss.lake.api import (
    OFFSETS_PROPERTY,
    TIERING_USER,
    Lake,
    LakeBucket,
    LakeCommitConflictError,
    LakeSplit,
    LakeStats,
    LakeTable,
    LakeTableChangedError,
    LakeWriter,
    Options,
    PartitionFilter,
    Rows,
    TieredSnapshot,
    WriteResult,
)
from fluss.lake.layout import SYSTEM_COLUMNS, Shaper, read_schema, to_fluss
from fluss.lake.paimon_schema import differences, layout_differences, paimon_schema, paimon_type
from fluss.metadata import Column, TableDescriptor, TableInfo, TablePath, format_partition_value
from fluss.rows import logical

_NATIVE = {"write.native.enabled": "true", "read.native.enabled": "true"}


class PaimonLake(Lake):
    """A Paimon catalog."""

    def __init__(self, options: Options) -> None:
        if "warehouse" not in options:
            raise ConfigError("the Paimon catalog has no warehouse: set datalake.paimon.warehouse on the server")
        self._catalog = CatalogFactory.create({"metastore": "filesystem", **options})

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        schema = paimon_schema(descriptor)
        identifier = _identifier(path)
        try:
            try:
                self._catalog.create_table(identifier, schema, False)
            except DatabaseNotExistException:
                with contextlib.suppress(DatabaseAlreadyExistException):
                    self._catalog.create_database(path.database_name, True)
                self._catalog.create_table(identifier, schema, False)
        except TableAlreadyExistException:
            self._check_existing(path, descriptor, must_be_empty=must_be_empty)

    def _check_existing(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        table = self._catalog.get_table(_identifier(path))
        missing, wrong = differences(table.table_schema.fields, descriptor.schema.columns)
        wrong += [f"column '{column.name}' is missing" for column in missing]
        wrong += layout_differences(table.table_schema, descriptor)
        advice = "Drop it there, or choose another table name."
        if wrong:
            raise LakeTableAlreadyExistError(
                f"Table {path} already exists in the Paimon catalog and does not fit: {'; '.join(wrong)}. {advice}"
            )
        if must_be_empty and table.snapshot_manager().get_latest_snapshot() is not None:
            raise LakeTableAlreadyExistError(
                f"Table {path} already exists in the Paimon catalog and is not empty. {advice}"
            )

    def add_columns(self, path: TablePath, columns: Sequence[Column]) -> None:
        table = self._load(path)
        known = {field.name: field for field in table.table_schema.fields}
        new = [column for column in columns if column.name not in known]
        if not new:
            return
        # The system columns stay last, as every reader of such tables expects.
        first_system = next((name for name in known if name in SYSTEM_COLUMNS), None)
        changes = []
        for column in new:
            move = Move.before(column.name, first_system) if first_system else Move.last(column.name)
            changes.append(SchemaChange.add_column(column.name, paimon_type(column.data_type), column.comment, move))
        self._catalog.alter_table(_identifier(path), changes)

    def table(self, path: TablePath) -> LakeTable:
        return PaimonTable(path, self._load(path))

    def _load(self, path: TablePath) -> Any:
        try:
            return self._catalog.get_table(_identifier(path))
        except (TableNotExistException, DatabaseNotExistException):
            raise LakeTableChangedError(
                f"table {path} does not exist in the Paimon catalog; was it dropped there, or is it another catalog?"
            ) from None


def _identifier(path: TablePath) -> Any:
    return Identifier.create(path.database_name, path.table_name)


class PaimonTable(LakeTable):
    """One Paimon table, at the schema it had when it was opened."""

    def __init__(self, path: TablePath, table: Any) -> None:
        self.path = path
        self.table = table.copy({"snapshot.ignore-empty-commit": "false"})

    # -- the table ------------------------------------------------------------------------------------------------

    def missing_columns(self, info: TableInfo) -> list[Column]:
        return differences(self.table.table_schema.fields, info.schema.columns)[0]

    def check(self, info: TableInfo) -> None:
        missing, wrong = differences(self.table.table_schema.fields, info.schema.columns)
        wrong += [f"column '{column.name}' is missing" for column in missing]
        wrong += layout_differences(self.table.table_schema, info.descriptor)
        if wrong:
            raise LakeTableChangedError(
                f"the Paimon table {self.path} does not fit its Fluss table any more: {'; '.join(wrong)}"
            )

    @property
    def snapshots(self) -> Any:
        return self.table.snapshot_manager()

    # -- writing --------------------------------------------------------------------------------------------------

    def writer(self, bucket: LakeBucket, info: TableInfo) -> LakeWriter:
        return _PaimonWriter(self.table, bucket.bucket, f"the Paimon table {self.path}")

    def commit(self, results: Sequence[WriteResult], offsets_path: str, known_id: int | None) -> int:
        messages = self.messages(results)
        builder = self.table.new_batch_write_builder()._with_commit_user(TIERING_USER)
        commit = builder.new_commit()
        try:
            landed = _Landed()
            commit.add_commit_callback(landed)
            guard(commit.file_store_commit, self, known_id)
            commit.commit(messages, snapshot_properties={OFFSETS_PROPERTY: offsets_path})
        finally:
            commit.close()
        return landed.check(offsets_path, self.path)

    def commit_compaction(self, results: Sequence[WriteResult], offsets_path: str, known_id: int | None) -> int:
        from fluss.lake.paimon_files import commit_compaction

        return commit_compaction(self, results, offsets_path, known_id)

    def abort(self, results: Sequence[WriteResult]) -> None:
        for message in self.messages(results):
            for file in message.new_files + message.changelog_files:
                self.table.file_io.delete_quietly(file.file_path)

    def data_path(self, partition: tuple[Any, ...], bucket: int, file: Any) -> str:
        return str(canonical_data_file_path(self.table, partition, bucket, file.file_name))

    def messages(self, results: Sequence[WriteResult]) -> list[Any]:
        fields, key = self.table.partition_keys_fields, self.table.trimmed_primary_keys_fields
        messages = []
        for data in self._serialized(results):
            message = deserialize_commit_message(data, fields, key)
            for file in message.new_files + message.changelog_files:
                file.file_path = file.external_path or self.data_path(tuple(message.partition), message.bucket, file)
            messages.append(message)
        return messages

    @staticmethod
    def _serialized(results: Sequence[WriteResult]) -> Iterator[bytes]:
        for result in results:
            for item in result.payload:
                # A compaction also says which files it replaces.
                yield from item["new"] if isinstance(item, dict) else [item]

    # -- snapshots ------------------------------------------------------------------------------------------------

    def tiered_after(self, known_id: int | None) -> TieredSnapshot | None:
        return self.newer_than(known_id, self.snapshots.get_latest_snapshot())

    def newer_than(self, known_id: int | None, latest: Any) -> TieredSnapshot | None:
        if known_id is not None:
            latest_id = 0 if latest is None else latest.id
            if latest_id < known_id:
                raise LakeTableChangedError(
                    f"the Paimon table {self.path} ends at snapshot {latest_id}, but snapshot {known_id} was tiered "
                    "before: it was rolled back or created anew. Put it back, or drop both tables and start over"
                )
            known = self._snapshot(known_id)
            if known is not None and known.commit_user != TIERING_USER:
                raise LakeTableChangedError(
                    f"snapshot {known_id} of the Paimon table {self.path} was tiered once and is now somebody else's: "
                    "the table was created anew. Drop both tables and start over"
                )
        snapshot = latest
        while snapshot is not None and (known_id is None or snapshot.id > known_id):
            if snapshot.commit_user == TIERING_USER:
                path = (snapshot.properties or {}).get(OFFSETS_PROPERTY)
                return TieredSnapshot(snapshot.id, path, snapshot.time_millis)
            snapshot = self._snapshot(snapshot.id - 1)
        return None

    def tiered_ids(self, limit: int) -> list[int]:
        found: list[int] = []
        snapshot = self.snapshots.get_latest_snapshot()
        while snapshot is not None and len(found) < limit:
            if snapshot.commit_user == TIERING_USER:
                found.append(snapshot.id)
            snapshot = self._snapshot(snapshot.id - 1)
        return found

    def _snapshot(self, snapshot_id: int) -> Any:
        return self.snapshots.get_snapshot_by_id(snapshot_id)

    # -- reading --------------------------------------------------------------------------------------------------

    def plan(self, snapshot_id: int, wanted: PartitionFilter | None = None) -> list[LakeSplit]:
        splits = self.raw_splits(snapshot_id)
        found = []
        for split in splits:
            partition = self.partition_values(split.partition)
            if wanted is not None and not wanted(partition):
                continue
            aware = self.table.bucket_mode() == BucketMode.HASH_FIXED
            bucket = LakeBucket(split.bucket, partition) if aware else None
            found.append(LakeSplit((snapshot_id, split), split.row_count, bucket))
        return found

    def raw_splits(self, snapshot_id: int) -> list[Any]:
        if self._snapshot(snapshot_id) is None:
            raise LakeTableChangedError(
                f"snapshot {snapshot_id} of the Paimon table {self.path} is gone: it was expired or never there"
            )
        options = {"scan.snapshot-id": str(snapshot_id), "read.native.enabled": "false"}
        return list(self.table.copy(options).new_read_builder().new_scan().plan().splits())

    def partition_values(self, row: Any) -> tuple[str, ...]:
        """Partition values as Fluss writes them."""
        return tuple(
            _partition_text(field, value) for field, value in zip(self.table.partition_keys_fields, row.values)
        )

    def read(self, split: LakeSplit, info: TableInfo, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        snapshot_id, raw = split.payload
        schema = read_schema(info, columns)
        for batch in self.read_raw(snapshot_id, [raw], columns):
            yield to_fluss(batch, schema)

    def read_raw(self, snapshot_id: int, splits: Sequence[Any], columns: Sequence[str] | None) -> Iterator[Any]:
        table = self.table.copy({"scan.snapshot-id": str(snapshot_id), **_NATIVE})
        builder = table.new_read_builder()
        if columns is not None:
            known = {field.name for field in table.table_schema.fields}
            builder = builder.with_projection([name for name in columns if name in known])
        reader = builder.new_read().to_arrow_batch_reader(list(splits))
        try:
            for batch in reader:
                if batch.num_rows:
                    yield batch
        finally:
            close = getattr(reader, "close", None)
            if close is not None:
                close()

    # -- files ----------------------------------------------------------------------------------------------------

    def stats(self, snapshot_id: int | None = None) -> LakeStats:
        from fluss.lake.paimon_files import stats

        return stats(self, snapshot_id)

    def compact(self, info: TableInfo, *, files_min: int) -> list[WriteResult]:
        from fluss.lake.paimon_files import compact

        return compact(self, info, files_min)

    def expire(self, *, keep_min: int, older_than_ms: int, keep_ids: Collection[int]) -> list[int]:
        from fluss.lake.paimon_files import expire

        return expire(self, keep_min, older_than_ms, keep_ids)

    def sweep(self, *, older_than_ms: int) -> list[str]:
        from fluss.lake.paimon_files import sweep

        return sweep(self, older_than_ms)


def guard(file_store_commit: Any, table: PaimonTable, known_id: int | None) -> None:
    """Let a commit, and every retry of it, go ahead only while no other tiered snapshot has come."""
    attempt: Callable[..., Any] = file_store_commit._try_commit

    def guarded(*arguments: Any, **options: Any) -> Any:
        entries_of = options["commit_entries_plan"]

        def checked(latest: Any) -> Any:
            newer = table.newer_than(known_id, latest)
            if newer is not None:
                raise LakeCommitConflictError(
                    f"snapshot {newer.snapshot_id} of the Paimon table {table.path} was tiered meanwhile by another "
                    "service; this round gives up"
                )
            return entries_of(latest)

        options["commit_entries_plan"] = checked
        return attempt(*arguments, **options)

    file_store_commit._try_commit = guarded


class _Landed:
    """A commit callback that remembers the snapshot."""

    def __init__(self) -> None:
        self.snapshot: Any = None

    def call(self, context: Any) -> None:
        self.snapshot = context.snapshot

    def close(self) -> None:
        pass

    def check(self, offsets_path: str, path: TablePath) -> int:
        # A commit that raced with another of the same user may be told that it landed when the other one did.
        snapshot = self.snapshot
        if snapshot is None or (snapshot.properties or {}).get(OFFSETS_PROPERTY) != offsets_path:
            raise LakeCommitConflictError(f"the commit to the Paimon table {path} was overtaken by another one")
        return int(snapshot.id)


def _partition_text(field: Any, value: Any) -> str:
    from fluss.metadata import data_type_from_arrow

    dtype = data_type_from_arrow(PyarrowFieldParser.from_paimon_type(field.type))
    return format_partition_value(dtype, logical.from_python(value, dtype))


class _PaimonWriter(LakeWriter):
    """One bucket's files. The native writer takes the kind of each change beside the row."""

    def __init__(self, table: Any, bucket: int, what: str) -> None:
        self._table = table.copy(_NATIVE)
        self._aware = table.bucket_mode() == BucketMode.HASH_FIXED
        self._bucket = bucket
        self._schema = PyarrowFieldParser.from_paimon_schema(table.table_schema.fields)
        self._shaper = Shaper(self._schema, bucket, what)
        self._kinds = table.is_primary_key_table
        self._rows = 0
        self._native: Any = None
        self._python: Any = None
        native = self._native_table()
        if native is not None:
            self._native = native.new_batch_write_builder()._with_commit_user(TIERING_USER).new_write()
        elif self._kinds:
            raise ConfigError(
                f"{what} cannot be tiered: primary-key tables need the package pypaimon-rust, file format parquet and "
                "partition keys that are neither binary nor floating point"
            )
        else:
            self._python = self._table.new_batch_write_builder()._with_commit_user(TIERING_USER).new_write()

    def _native_table(self) -> Any:
        from pypaimon.write.native_commit import create_native_write_table
        from pypaimon.write.native_write import _native_partition_types_supported, native_write_available

        if not native_write_available() or self._table.options.file_format() != "parquet":
            return None
        if not _native_partition_types_supported(self._schema, self._table.partition_keys):
            return None
        return create_native_write_table(self._table)

    def write(self, rows: Rows) -> None:
        batch = self._shaper.shape(rows)
        self._rows += batch.num_rows
        bucket = self._bucket if self._aware else None
        if self._native is None:
            self._python.write_arrow_batch(batch, bucket)
            return
        if self._kinds:
            batch = _with_kinds(batch, rows.change_types)
        self._native.write_arrow(batch, bucket)

    def finish(self) -> WriteResult | None:
        if not self._rows:
            self.abort()
            return None
        if self._native is not None:
            from pypaimon.write.native_commit import from_native_commit_messages

            messages = from_native_commit_messages(self._table, self._native.prepare_commit())
        else:
            messages = self._python.prepare_commit()
        self._close()
        files = [file for message in messages for file in message.new_files]
        payload = [serialize_commit_message(message, self._table.partition_keys_fields) for message in messages]
        return WriteResult(payload, self._rows, len(files), sum(file.file_size for file in files))

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            self._close()

    def _close(self) -> None:
        for writer in (self._native, self._python):
            if writer is not None:
                writer.close()


def _with_kinds(batch: pa.RecordBatch, change_types: bytes | None) -> pa.RecordBatch:
    """Row kinds as Paimon counts them: +I 0, -U 1, +U 2, -D 3."""
    if change_types is None:
        kinds = np.zeros(batch.num_rows, np.int8)
    else:
        kinds = np.maximum(np.frombuffer(change_types, np.uint8).astype(np.int8) - 1, 0)
    field = pa.field("_VALUE_KIND", pa.int8(), nullable=False)
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(kinds, pa.int8())], schema=batch.schema.append(field))
