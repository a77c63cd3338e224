# SPDX-License-Identifier: Apache-2.0
"""An Iceberg table as its writers and its maintenance see it: history, files, rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from fluss.lake.api import LakeBucket, OpenLakeTable
from fluss.metadata import TablePath


class IcebergStore(OpenLakeTable):
    """The snapshots and files of one Iceberg table."""

    kind = "Iceberg table"

    def __init__(self, path: TablePath, table: Table) -> None:
        self.path = path
        self.table = table

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
        """Return the bucket whose rows a file holds."""
        values = [file.partition[i] for i in range(len(self.table.spec().fields))]
        return LakeBucket(int(values[-1]), tuple(str(value) for value in values[:-1]))

    def read_files(self, tasks: Sequence[FileScanTask], projected: Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows of some files."""
        scan = ArrowScan(self.table.metadata, self.table.io, projected, AlwaysTrue())
        for batch in scan.to_record_batches(tasks):
            if batch.num_rows:
                yield batch
