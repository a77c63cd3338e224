# SPDX-License-Identifier: Apache-2.0
"""Apache Iceberg: log tables are appended to, primary-key tables are copied on write, file by file.

The files of a bucket lie in a partition of their own, so a task knows which files its rows may replace.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Snapshot

from fluss.errors import ConfigError
from fluss.lake.api import (
    Lake,
    LakeBucket,
    LakeCommit,
    LakeCommitConflictError,
    LakeSplit,
    LakeStats,
    LakeWriter,
    OpenLakeTable,
    Options,
    PartitionFilter,
    WrittenFiles,
    tiered_properties,
)
from fluss.lake.iceberg_schema import (
    differences,
    iceberg_properties,
    iceberg_schema,
    iceberg_sort_order,
    iceberg_spec,
    iceberg_type,
    is_clean,
    layout_differences,
)
from fluss.lake.iceberg_writer import BucketFiles, IcebergMergeWriter, IcebergStore
from fluss.lake.layout import (
    OFFSET_COLUMN,
    SYSTEM_COLUMNS,
    LakeAppendWriter,
    LakeBatchConverter,
    read_schema,
    to_fluss,
)
from fluss.lake.warehouse import list_old_files
from fluss.metadata import Column, TableDescriptor, TableInfo, TablePath

_IMPORTED = ("py-catalog-impl", "py-io-impl", "s3.retry-strategy-impl")
"""Options that name Python code, which the library imports and calls. Options come from a server or through one."""
_FILE_IOS = ("pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO")
_UNSAFE = (
    *_IMPORTED,
    "write.data.path",
    "write.metadata.path",
    "write.folder-storage.path",
    "write.object-storage.path",
    "write.py-location-provider.impl",
)
"""Properties of an Iceberg table that name code to run, or decide where its files are written."""


def catalog_options(options: Options) -> dict[str, str]:
    """Options of a Java catalog as pyiceberg takes them."""
    found = dict(options)
    for name in _IMPORTED:
        if found.get(name, _FILE_IOS[0]) not in _FILE_IOS:
            raise ConfigError(f"the Iceberg option '{name}' names Python code to run, which is not allowed; remove it")
    kind = found.get("type")
    if kind == "hadoop":
        raise ConfigError(
            "an Iceberg catalog of type hadoop cannot be written from Python safely; set datalake.iceberg.type to "
            "rest, sql, jdbc, hive or glue"
        )
    if kind == "jdbc":
        found["type"] = "sql"
        user, password = found.pop("jdbc.user", None), found.pop("jdbc.password", None)
        uri = found.get("uri", "").removeprefix("jdbc:")
        if uri.startswith("sqlite:") and not uri.startswith("sqlite://"):
            uri = "sqlite:///" + uri.removeprefix("sqlite:")
        if user is not None and "://" in uri:
            scheme, rest = uri.split("://", 1)
            login = ":".join(quote(one, safe="") for one in (user, password) if one)
            uri = f"{scheme}://{login}@{rest}"
        found["uri"] = uri
    elif kind is None and "uri" not in found and "catalog-impl" not in found:
        warehouse = found.get("warehouse")
        if warehouse is None:
            raise ConfigError("the Iceberg catalog has no warehouse: set datalake.iceberg.warehouse on the server")
        if "://" in warehouse and not warehouse.startswith("file://"):
            raise ConfigError(
                f"the Iceberg warehouse is in an object store ({warehouse.partition('://')[0]}://), which can hold no "
                "catalog; set datalake.iceberg.type and datalake.iceberg.uri as well, to those of a rest, sql, hive or "
                "glue catalog"
            )
        # The simplest lake there is: a folder, with its catalog in a file beside the data.
        folder = Path(warehouse.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        found |= {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    return found


class IcebergLake(Lake):
    """An Iceberg catalog."""

    place = "in the Iceberg catalog"

    def __init__(self, options: Options) -> None:
        found = catalog_options(options)
        self._catalog: Catalog = load_catalog(found.pop("name", "fluss"), **found)

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        schema = iceberg_schema(descriptor)

        def create() -> None:
            self._catalog.create_table(
                _identifier(path),
                schema,
                partition_spec=iceberg_spec(descriptor, schema),
                sort_order=iceberg_sort_order(schema),
                properties=iceberg_properties(descriptor),
            )

        try:
            try:
                create()
            except NoSuchNamespaceError:
                with contextlib.suppress(NamespaceAlreadyExistsError):
                    self._catalog.create_namespace(path.database_name)
                create()
        except TableAlreadyExistsError:
            self.check_existing(path, descriptor, must_be_empty=must_be_empty)

    def close(self) -> None:
        self._catalog.close()

    def table(self, path: TablePath) -> OpenLakeTable:
        try:
            return IcebergTable(path, self._catalog.load_table(_identifier(path)))
        except (NoSuchTableError, NoSuchNamespaceError):
            raise self.missing(path) from None


def _identifier(path: TablePath) -> tuple[str, str]:
    return path.database_name, path.table_name


class IcebergTable(IcebergStore):
    """One Iceberg table, as it was when it was opened; commits look at it anew."""

    # -- the table ------------------------------------------------------------------------------------------------

    def differences(self, columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
        return differences(self.table.schema(), columns)

    def layout_differences(self, descriptor: TableDescriptor) -> list[str]:
        unsafe = [
            f"it has the property '{name}', which is not safe" for name in _UNSAFE if name in self.table.properties
        ]
        return unsafe + layout_differences(self.table.metadata, descriptor)

    def add_columns(self, columns: Sequence[Column]) -> None:
        has_system_columns = not is_clean(self.table.schema())
        with self.table.update_schema() as update:
            next_id = iter(range(1_000_000, 2_000_000)).__next__  # the catalog numbers them anew
            for column in columns:
                update.add_column(column.name, iceberg_type(column.data_type, next_id), column.comment)
                # The system columns stay last, as every reader of such tables expects.
                if has_system_columns:
                    update.move_before(column.name, SYSTEM_COLUMNS[0])

    def is_empty(self) -> bool:
        return self.table.current_snapshot() is None

    # -- writing --------------------------------------------------------------------------------------------------

    def writer(self, bucket: LakeBucket, info: TableInfo) -> LakeWriter:
        if info.has_primary_key():
            return IcebergMergeWriter(self, bucket, info)
        files = BucketFiles(self, bucket)
        return LakeAppendWriter(files, LakeBatchConverter(files.schema, bucket.bucket, self.what))

    def commit(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        added = [file for result in results for file in result.payload["added"]]
        deleted = [file for result in results for file in result.payload["deleted"]]
        bases = {result.payload["base"] for result in results if result.payload["deleted"]}
        self.refresh()
        self.check_newest(known_id)
        current = self.table.current_snapshot()
        if bases and bases != {current.snapshot_id if current else None}:
            raise self.conflict("another snapshot was committed")
        # The commit is refused if the table is not at this snapshot any more, so nothing can slip in between.
        transaction = self.table.transaction()
        update = transaction.update_snapshot(snapshot_properties=tiered_properties(offsets_path))
        producer: Any = update.overwrite() if deleted else update.fast_append()
        producer._refresh_for_retry = _no_retry
        for file in added:
            producer.append_data_file(file)
        for file in deleted:
            producer.delete_data_file(file)
        try:
            producer.commit()
            transaction.commit_transaction()
        except (CommitFailedException, ValidationException, LakeCommitConflictError) as error:
            raise self.conflict(error) from error
        return int(producer.snapshot_id)

    def abort(self, results: Sequence[WrittenFiles]) -> None:
        self.delete(file.file_path for result in results for file in result.payload["added"])

    # -- snapshots ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        self.table.refresh()

    def commits(self) -> Iterator[LakeCommit]:
        for snapshot in self.history():
            summary = snapshot.summary
            yield LakeCommit(snapshot.snapshot_id, summary.additional_properties if summary is not None else {})

    # -- reading --------------------------------------------------------------------------------------------------

    def plan(
        self, snapshot_id: int, wanted: PartitionFilter | None = None, partition_keys: Sequence[str] = ()
    ) -> list[LakeSplit]:
        found = []
        for task in self.tasks(snapshot_id):
            bucket = self.bucket_of(task.file)
            if wanted is None or wanted(bucket.partition):
                found.append(LakeSplit(task, task.file.record_count, bucket, not task.delete_files))
        return found

    def read(self, split: LakeSplit, info: TableInfo, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = read_schema(info, columns)
        known = [field.name for field in self.table.schema().fields]
        # A batch without columns would not have its row count.
        projected = self.table.schema().select(*([name for name in columns if name in known] or known[:1]))
        for batch in self.read_files([split.payload], projected):
            yield to_fluss(batch, schema)

    # -- files ----------------------------------------------------------------------------------------------------

    def stats(self, snapshot_id: int | None = None) -> LakeStats:
        current = self.table.current_snapshot()
        if current is None:
            return LakeStats(0, 0, 0, 0)
        files = [task.file for task in self.tasks(snapshot_id or current.snapshot_id)]
        return LakeStats(
            len(files),
            sum(file.file_size_in_bytes for file in files),
            sum(file.record_count for file in files),
            len(self.table.snapshots()),
        )

    def compact(self, *, files_min: int) -> list[WrittenFiles]:
        """Merge the small files of buckets that have many."""
        current = self.table.current_snapshot()
        if current is None:
            return []
        groups: dict[LakeBucket, list[FileScanTask]] = defaultdict(list)
        for task in self.tasks(current.snapshot_id):
            if task.file.file_size_in_bytes < self.file_bytes // 2 and not task.delete_files:
                groups[self.bucket_of(task.file)].append(task)
        results = []
        for bucket, tasks in groups.items():
            if len(tasks) < files_min:
                continue
            files = BucketFiles(self, bucket)
            for batch in self.read_files(sorted(tasks, key=self._first_offset), self.table.schema()):
                files.write(to_fluss(batch, files.schema))
            written = files.finish([task.file for task in tasks], current.snapshot_id)
            results.append(replace(written, files=len(tasks)))
        return results

    def _first_offset(self, task: FileScanTask) -> int:
        fields = {field.name: field.field_id for field in self.table.schema().fields}
        field_id = fields.get(OFFSET_COLUMN, -1)  # a clean table keeps no offsets, and files no order
        bound = (task.file.lower_bounds or {}).get(field_id)
        return int.from_bytes(bound, "little", signed=True) if bound else 0

    def history_times(self) -> list[tuple[int, float]]:
        self.refresh()
        return [(snapshot.snapshot_id, snapshot.timestamp_ms) for snapshot in self.history()]

    def drop_snapshots(self, old: Sequence[int]) -> list[int]:
        refs = {ref.snapshot_id for ref in self.table.metadata.refs.values()}
        ids = [snapshot_id for snapshot_id in old if snapshot_id not in refs]
        if not ids:
            return []
        snapshots = self.table.snapshots()
        live = self._files_of([snapshot for snapshot in snapshots if snapshot.snapshot_id not in ids])
        gone = self._files_of([snapshot for snapshot in snapshots if snapshot.snapshot_id in ids])
        self.table.maintenance.expire_snapshots().by_ids(ids).commit()
        self.refresh()
        self.delete(gone - live)
        return ids

    def old_files(self, older_than_ms: int) -> list[str]:
        location = self.table.location()
        if isinstance(self.table.io, PyArrowFileIO):
            # The options of the catalog are in it, credentials among them.
            kind, host, root = PyArrowFileIO.parse_location(location)
            filesystem = self.table.io.fs_by_scheme(kind, host)
        else:
            filesystem, root = pafs.FileSystem.from_uri(location if "://" in location else f"file://{location}")
        scheme = location.split("://")[0] + "://" if "://" in location and not location.startswith("file://") else ""
        files = list_old_files(filesystem, root, older_than_ms)
        return [scheme + path for path in files if path.endswith((".parquet", ".avro", ".metadata.json"))]

    def unused(self, files: Sequence[str]) -> list[str]:
        self.refresh()
        used = self._files_of(self.table.snapshots())
        used |= {entry.metadata_file for entry in self.table.metadata.metadata_log}
        used.add(self.table.metadata_location)
        used = {_without_scheme(path) for path in used}
        return [path for path in files if _without_scheme(path) not in used]

    def _files_of(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """The files that snapshots need."""
        files: set[str] = set()
        io = self.table.io
        for snapshot in snapshots:
            files.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(io):
                if manifest.manifest_path in files:
                    continue
                files.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                    if entry.status != ManifestEntryStatus.DELETED:
                        files.add(entry.data_file.file_path)
        return files


def _without_scheme(path: str) -> str:
    """A place that has several names, such as ``file:/a``, ``file:///a`` and ``/a``, or ``s3://b/a`` and ``s3a://b/a``."""
    return str(PyArrowFileIO.parse_location(path)[2])


def _no_retry() -> None:
    raise LakeCommitConflictError("another writer committed first")
