# SPDX-License-Identifier: Apache-2.0
"""Apache Paimon: one snapshot per round, buckets aligned with those of Fluss.

Files are written and read by the native library where it can (Parquet, common partition types); planning and committing
are plain Python, so a process that only drives never loads native code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

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
from pypaimon.write.commit_message_serializer import serialize_commit_message

from fluss.errors import ConfigError
from fluss.lake.api import (
    OFFSETS_PROPERTY,
    TIERING_USER,
    Lake,
    LakeBucket,
    LakeCommit,
    LakeSplit,
    LakeWriter,
    OpenLakeTable,
    Options,
    PartitionFilter,
    Rows,
    WrittenFiles,
)
from fluss.lake.layout import SYSTEM_COLUMNS, LakeBatchConverter, read_schema, to_fluss
from fluss.lake.paimon_files import NATIVE, PaimonStore, with_kinds
from fluss.lake.paimon_schema import differences, layout_differences, paimon_schema, paimon_type
from fluss.metadata import (
    Column,
    TableDescriptor,
    TableInfo,
    TablePath,
    format_partition_value,
    parse_partition_value,
)
from fluss.rows import logical

_UNSAFE = (
    "data-file.external-paths",
    "data-file.path-directory",
    "data-file.prefix",
    "global-index.external-path",
    "local-cache.dir",
    "branch",
)
"""Options of a Paimon table that decide where its files are written."""
_NATIVE_NAMES = {
    "fs.s3.endpoint": "s3.endpoint",
    "fs.s3.region": "s3.region",
    "fs.s3.accessKeyId": "s3.access-key",
    "fs.s3.accessKeySecret": "s3.secret-key",
    "fs.s3.securityToken": "s3.session.token",
}
"""Options of pypaimon that its native library and the Java library know under other names."""


def _store_options(options: Options) -> dict[str, str]:
    """Give options of an S3 store under the names that all libraries know."""
    found = {other: options[name] for name, other in _NATIVE_NAMES.items() if name in options}
    if options.get("warehouse", "").startswith(("s3://", "s3a://")):
        given = {**found, **options}
        # Services of one's own know buckets by path, and have regions in name only; the native library guesses neither.
        found.setdefault("s3.region", given.get("s3.region") or "us-east-1")
        if "s3.endpoint" in given:
            found["s3.path.style.access"] = given.get("s3.path-style-access", "true")
    return found


class PaimonLake(Lake):
    """A Paimon catalog."""

    place = "in the Paimon catalog"

    def __init__(self, options: Options) -> None:
        if "warehouse" not in options:
            raise ConfigError("the Paimon catalog has no warehouse: set datalake.paimon.warehouse on the server")
        self._catalog = CatalogFactory.create({"metastore": "filesystem", **_store_options(options), **options})

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
            self.check_existing(path, descriptor, must_be_empty=must_be_empty)

    def table(self, path: TablePath) -> OpenLakeTable:
        try:
            return PaimonTable(path, self._catalog.get_table(_identifier(path)), self._catalog)
        except (TableNotExistException, DatabaseNotExistException):
            raise self.missing(path) from None


def _identifier(path: TablePath) -> Any:
    return Identifier.create(path.database_name, path.table_name)


class PaimonTable(PaimonStore):
    """One Paimon table, at the schema it had when it was opened."""

    def __init__(self, path: TablePath, table: Any, catalog: Any) -> None:
        super().__init__(path, table)
        self._catalog = catalog

    # -- the table ------------------------------------------------------------------------------------------------

    def differences(self, columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
        return differences(self.table.table_schema.fields, columns)

    def layout_differences(self, descriptor: TableDescriptor) -> list[str]:
        schema = self.table.table_schema
        unsafe = [f"it has the option '{name}', which is not safe" for name in _UNSAFE if name in schema.options]
        return unsafe + layout_differences(schema, descriptor)

    def add_columns(self, columns: Sequence[Column]) -> None:
        # The system columns stay last, as every reader of such tables expects.
        names = [field.name for field in self.table.table_schema.fields]
        first_system = next((name for name in names if name in SYSTEM_COLUMNS), None)
        changes = []
        for column in columns:
            move = Move.before(column.name, first_system) if first_system else Move.last(column.name)
            changes.append(SchemaChange.add_column(column.name, paimon_type(column.data_type), column.comment, move))
        self._catalog.alter_table(_identifier(self.path), changes)

    def is_empty(self) -> bool:
        return self.snapshots.get_latest_snapshot() is None

    # -- writing --------------------------------------------------------------------------------------------------

    def writer(self, bucket: LakeBucket, info: TableInfo) -> LakeWriter:
        return _PaimonWriter(self.table, bucket.bucket, self.what)

    def commit(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        messages, properties = self.messages(results), {OFFSETS_PROPERTY: offsets_path}
        return self.land(lambda commit: commit.commit(messages, snapshot_properties=properties), offsets_path, known_id)

    def abort(self, results: Sequence[WrittenFiles]) -> None:
        for message in self.messages(results):
            self.delete(file.file_path for file in message.new_files + message.changelog_files)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def tiered_after(self, known_id: int | None) -> LakeCommit | None:
        return self.newer_than(known_id, self.snapshots.get_latest_snapshot())

    # -- reading --------------------------------------------------------------------------------------------------

    def plan(
        self, snapshot_id: int, wanted: PartitionFilter | None = None, partition_keys: Sequence[str] = ()
    ) -> list[LakeSplit]:
        splits = self.raw_splits(snapshot_id)
        found = []
        for split in splits:
            partition = self.partition_values(split.partition)
            if wanted is not None and not wanted(partition):
                continue
            aware = self.table.bucket_mode() == BucketMode.HASH_FIXED
            bucket = LakeBucket(split.bucket, partition) if aware else None
            exact = not any(split.data_deletion_files or ())
            found.append(LakeSplit((snapshot_id, split), split.row_count, bucket, exact))
        return found

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

    def look_up(self, bucket: LakeBucket, info: TableInfo, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        latest = self.snapshots.get_latest_snapshot()
        if latest is None:
            return
        predicates = self.table.new_read_builder().new_predicate_builder()
        # No predicate finds NaN, which is a key like any other.
        columns = [field.name for field in keys.schema if not pa.types.is_floating(field.type)]
        equal = [predicates.is_in(name, keys.column(name).to_pylist()) for name in columns]
        for name, text in zip(info.partition_keys, bucket.partition):
            dtype = info.schema.column(name).data_type
            equal.append(predicates.equal(name, logical.to_python(parse_partition_value(dtype, text), dtype)))
        wanted = predicates.and_predicates(equal)
        splits = [
            split
            for split in self.raw_splits(latest.id, wanted)
            if split.bucket == bucket.bucket and self.partition_values(split.partition) == bucket.partition
        ]
        schema = read_schema(info, info.schema.column_names)
        for batch in self.read_raw(latest.id, splits, info.schema.column_names, wanted):
            yield to_fluss(batch, schema)


def _partition_text(field: Any, value: Any) -> str:
    from fluss.metadata import data_type_from_arrow

    dtype = data_type_from_arrow(PyarrowFieldParser.from_paimon_type(field.type))
    return format_partition_value(dtype, logical.from_python(value, dtype))


class _PaimonWriter(LakeWriter):
    """One bucket's files. The native writer takes the kind of each change beside the row."""

    def __init__(self, table: Any, bucket: int, what: str) -> None:
        self._table = table.copy(NATIVE)
        self._aware = table.bucket_mode() == BucketMode.HASH_FIXED
        self._bucket = bucket
        self._schema = PyarrowFieldParser.from_paimon_schema(table.table_schema.fields)
        self._converter = LakeBatchConverter(self._schema, bucket, what)
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
        batch = self._converter.convert(rows)
        self._rows += batch.num_rows
        bucket = self._bucket if self._aware else None
        if self._native is None:
            self._python.write_arrow_batch(batch, bucket)
            return
        if self._kinds:
            batch = with_kinds(batch, rows.change_types)
        self._native.write_arrow(batch, bucket)

    def finish(self) -> WrittenFiles | None:
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
        return WrittenFiles(payload, self._rows, len(files), sum(file.file_size for file in files))

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            self._close()

    def _close(self) -> None:
        # The native writer may be dropped in this thread only: what holds on to this object may be garbage in another.
        writer, self._native, self._python = self._native or self._python, None, None
        if writer is not None:
            writer.close()
