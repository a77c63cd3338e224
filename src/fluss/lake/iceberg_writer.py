# SPDX-License-Identifier: Apache-2.0
"""The files of an Iceberg table: which there are, and writing those of one bucket.

Files are appended, or rewritten where keys changed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from fluss.lake.api import LakeBucket, LakeWriter, OpenLakeTable, Rows, WrittenFiles
from fluss.lake.iceberg_schema import has_bucket_field
from fluss.lake.layout import LakeBatchConverter, cast_array, to_fluss
from fluss.metadata import ChangeType, TableInfo, TablePath
from fluss.rows import kv_key_encoder

_CHANGES_BYTES_MAX = 256 * 1024 * 1024
"""A primary-key bucket's changes are folded in memory; more of them wait for the next round."""

_POSITION = "__position"
_KEY = "__key"


class _Given(PartitionKey):
    """A partition that is known, and need not be computed from a row."""

    def __init__(self, record: Record, table: Any) -> None:
        object.__setattr__(self, "_record", record)
        super().__init__(field_values=[], partition_spec=table.spec(), schema=table.schema())

    @property
    def partition(self) -> Record:
        return self._record  # type: ignore[attr-defined,no-any-return]


class BucketFiles:
    """Writes rows of one bucket to Parquet files of the size the table wants."""

    def __init__(self, table: IcebergStore, bucket: LakeBucket) -> None:
        self._store = table
        self._table = table.table
        self._bucket = bucket.bucket
        place = (bucket.bucket,) if has_bucket_field(self._table.spec()) else ()
        self._partition = _Given(Record(*bucket.partition, *place), self._table)
        self._locations = load_location_provider(self._table.location(), self._table.metadata.properties)
        self._model = FileFormatFactory.get(FileFormat.PARQUET)
        self.schema: pa.Schema = schema_to_pyarrow(self._table.schema(), include_field_ids=True)
        self._name = str(uuid.uuid4())
        self._writer: Any = None
        self._output: Any = None
        self._path = ""
        self._bytes = 0
        self.files: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            name = f"{self._bucket:05d}-{len(self.files)}-{self._name}.parquet"
            self._path = self._locations.new_data_location(name, self._partition)
            self._output = self._table.io.new_output(self._path)
            self._writer = self._model.create_writer(
                self._output, self._table.schema(), self._table.metadata.properties
            )
            self._writer.__enter__()
        self._writer.write(pa.Table.from_batches([batch], self.schema))
        self._bytes += batch.nbytes
        if self._bytes >= self._store.file_bytes:
            self.roll()

    def roll(self) -> None:
        """End the file that is being written."""
        if self._writer is None:
            return
        self._writer.close()
        statistics = self._writer.result()
        self.files.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=self._path,
                file_format=FileFormat.PARQUET,
                partition=self._partition.partition,
                file_size_in_bytes=len(self._output),
                sort_order_id=None,
                spec_id=self._table.metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
        self._writer, self._bytes = None, 0

    def finish(self, deleted: Sequence[DataFile] = (), base: int | None = None) -> WrittenFiles:
        """Close the files; `deleted` are those of snapshot `base` that they replace."""
        self.roll()
        payload = {"added": self.files, "deleted": list(deleted), "base": base}
        rows, size = sum(file.record_count for file in self.files), sum(file.file_size_in_bytes for file in self.files)
        return WrittenFiles(payload, rows, len(self.files), size)

    def remove(self) -> None:
        """Delete everything written so far."""
        paths = [file.file_path for file in self.files]
        if self._writer is not None:
            paths.append(self._path)
            with contextlib.suppress(Exception):
                self._writer.close()
        self._store.delete(paths)


class IcebergMergeWriter(LakeWriter):
    """Changes of a primary-key table: files that hold a changed key are written anew without it."""

    def __init__(self, table: IcebergStore, bucket: LakeBucket, info: TableInfo) -> None:
        self._table = table
        self._bucket = bucket
        self._files = BucketFiles(table, bucket)
        self._converter = LakeBatchConverter(self._files.schema, bucket.bucket, f"the Iceberg table {table.path}")
        self._key_names = info.physical_primary_key
        self._key_types = [info.schema.arrow_schema.field(name).type for name in self._key_names]
        self._encoder = kv_key_encoder(info)
        self._batches: list[pa.RecordBatch] = []
        self._changes: list[np.ndarray[Any, Any]] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._bytes >= _CHANGES_BYTES_MAX

    def write(self, rows: Rows) -> None:
        batch = self._converter.convert(rows)
        self._batches.append(batch)
        self._changes.append(np.frombuffer(rows.change_types or bytes(batch.num_rows), np.uint8))
        self._bytes += batch.nbytes

    def finish(self) -> WrittenFiles | None:
        if not self._batches:
            return None
        changed = pa.Table.from_batches(self._batches, self._files.schema)
        rows = changed.num_rows
        keys = self._keys(changed)
        positions = pa.table({_KEY: keys, _POSITION: np.arange(rows)})
        last = positions.group_by(_KEY).aggregate([(_POSITION, "max")]).column(f"{_POSITION}_max").to_numpy()
        kinds = np.concatenate(self._changes)
        gone = np.isin(kinds[last], (int(ChangeType.Delete), int(ChangeType.UpdateBefore)))
        touched = pc.unique(keys)
        deleted = self._rewrite(touched)
        for batch in changed.take(pa.array(np.sort(last[~gone]))).combine_chunks().to_batches():
            self._files.write(batch)
        current = self._table.table.current_snapshot()
        self._batches, self._changes = [], []
        result = self._files.finish(deleted, current.snapshot_id if current else None)
        return replace(result, rows=rows) if result.files or deleted else None

    def _rewrite(self, touched: pa.Array) -> list[DataFile]:
        """Copy the other rows of files that hold a changed key; returns the files that are replaced."""
        current = self._table.table.current_snapshot()
        if current is None:
            return []
        deleted = []
        for task in self._table.tasks(current.snapshot_id):
            if self._table.bucket_of(task.file) != self._bucket:
                continue
            table = self._read(task, list(self._key_names))
            hit = pc.is_in(self._keys(table), touched)
            if not pc.any(hit).as_py():
                continue
            deleted.append(task.file)
            kept = self._read(task, None).filter(pc.invert(hit))
            for batch in kept.combine_chunks().to_batches():
                self._files.write(to_fluss(batch, self._files.schema))
        return deleted

    def _read(self, task: FileScanTask, columns: list[str] | None) -> pa.Table:
        schema = self._table.table.schema()
        projected = schema if columns is None else schema.select(*columns)
        batches = list(self._table.read_files([task], projected))
        return pa.Table.from_batches(batches) if batches else schema_to_pyarrow(projected).empty_table()

    def _keys(self, table: pa.Table) -> pa.Array:
        columns = [
            cast_array(table.column(name).combine_chunks(), kind)
            for name, kind in zip(self._key_names, self._key_types)
        ]
        columns = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns]
        return self._encoder.encode_columns(columns).to_arrow()

    def abort(self) -> None:
        self._files.remove()


class IcebergStore(OpenLakeTable):
    """The snapshots and files of one Iceberg table."""

    kind = "Iceberg table"

    def __init__(self, path: TablePath, table: Table) -> None:
        self.path = path
        self.table = table

    @property
    def file_bytes(self) -> int:
        """The size that files of the table shall have."""
        names = TableProperties
        wanted = self.table.metadata.properties.get(names.WRITE_TARGET_FILE_SIZE_BYTES)
        return int(wanted or names.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT)

    def delete_file(self, file: str) -> None:
        self.table.io.delete(file)

    def history(self) -> Iterator[Snapshot]:
        """Walk through the snapshots that led to the current one, newest first."""
        snapshot = self.table.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self.table.snapshot_by_id(parent)

    def tasks(self, snapshot_id: int) -> list[FileScanTask]:
        """Plan a read of every file of a snapshot."""
        if self.table.snapshot_by_id(snapshot_id) is None:
            raise self.gone(snapshot_id)
        return list(self.table.scan(snapshot_id=snapshot_id).plan_files())

    def bucket_of(self, file: DataFile) -> LakeBucket:
        """Return the bucket whose rows a file holds; 0 where files are not parted by bucket."""
        spec = self.table.spec()
        values = [file.partition[i] for i in range(len(spec.fields))]
        bucket = int(values.pop()) if has_bucket_field(spec) else 0
        return LakeBucket(bucket, tuple(str(value) for value in values))

    def read_files(self, tasks: Sequence[FileScanTask], projected: Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows of some files."""
        scan = ArrowScan(self.table.metadata, self.table.io, projected, AlwaysTrue())
        for batch in scan.to_record_batches(tasks):
            if batch.num_rows:
                yield batch
