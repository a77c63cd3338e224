# SPDX-License-Identifier: Apache-2.0
"""Mode `overwrite`: rows are replaced when all new ones are written, so that a job that fails leaves the old ones.

Fluss has no truncation and no renaming of tables. So tasks write to a table beside the one that is replaced. When all
of them are done, the driver empties the table, or some of its partitions, and copies the new rows into it. From then
on the staging table has a property, and is dropped only when the copy is complete.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from fluss import aio
from fluss.client.blocking_client import BlockingClient
from fluss.client.write.routing import partition_codes
from fluss.errors import (
    FlussError,
    InvalidArgumentError,
    LakeSnapshotNotExistError,
    TableAlreadyExistError,
    TableNotExistError,
)
from fluss.metadata import PartitionSpec, TableBucket, TableDescriptor, TableInfo, TablePath, split_partition_name
from fluss.spark.layout import Layout
from fluss.spark.snapshot import rows_as_of

DYNAMIC = "*"
"""The name that stands for the partitions that have new rows."""

_NAME_MAX = 150
_KEPT_PROPERTIES = ("table.merge-engine", "table.delete.behavior")
"""Properties that decide which rows a table has; the staging table needs no lake, no partitions and no expiry."""

_STATE = "spark.overwrite"
_REPLACING = "replacing"
"""The value of that property while a staging table has the only complete copy of the rows."""

_ABANDONED_MS = 24 * 3_600_000
"""A staging table that is older was left by a driver that was killed."""


class Overwrite:
    """The replacement of the rows of a table, or of some of its partitions. Made on the driver."""

    def __init__(
        self,
        path: TablePath,
        descriptor: TableDescriptor,
        partitions: Sequence[str] | None = None,
        staging: TablePath | None = None,
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        """What the table is afterwards."""
        self._dynamic = partitions is not None and list(partitions) == [DYNAMIC]
        self._partitions = (
            None
            if partitions is None or self._dynamic
            else [_partition_spec(path, descriptor, name) for name in partitions]
        )
        self._prefix = f"{path.table_name[:_NAME_MAX]}__overwrite_"
        self.staging = staging or TablePath(path.database_name, f"{self._prefix}{uuid.uuid4().hex[:12]}")
        """Where tasks write to."""

    def prepare(self, client: BlockingClient) -> TableInfo:
        """Create the staging table, after those that killed drivers left were dropped."""
        self._check(client)
        self._drop_abandoned(client)
        wanted = self._descriptor
        descriptor = TableDescriptor(
            wanted.schema,
            bucket_count=wanted.bucket_count,
            bucket_keys=list(wanted.bucket_keys) or None,
            properties={name: v for name, v in wanted.properties.items() if name.startswith(_KEPT_PROPERTIES)},
            comment=self._comment(),
        )
        client.run(client.admin.create_table(self.staging, descriptor))
        return client.info(self.staging)

    def _check(self, client: BlockingClient) -> None:
        """Raise what keeps the old rows from being replaced, while they are still there."""
        self._check_lake(client)
        if self._partitions is None and not self._dynamic:
            # Servers refuse a table that they cannot create before they look whether one exists.
            with contextlib.suppress(TableAlreadyExistError):
                client.run(client.admin.create_table(self._path, self._descriptor))

    def _check_lake(self, client: BlockingClient) -> None:
        if not self._descriptor.config.lake_enabled:
            return
        with contextlib.suppress(LakeSnapshotNotExistError):
            found = client.run(client.admin.get_latest_lake_snapshot(self._path))
            raise InvalidArgumentError(
                f"rows of {self._path} are in the lake (snapshot {found.snapshot_id}), where they stay when a table or "
                "partition is dropped, so they cannot be overwritten or truncated. Delete rows by key (DELETE FROM … "
                "WHERE …), or drop the table both here and in the lake, and create it again"
            )

    def _comment(self) -> str:
        return f"New rows of {self._path}, until they replace the old ones"

    def _drop_abandoned(self, client: BlockingClient) -> None:
        for name in client.run(client.admin.list_tables(self._path.database_name)):
            if name.startswith(self._prefix):
                with contextlib.suppress(TableNotExistError):
                    info = client.info(TablePath(self._path.database_name, name))
                    age_ms = time.time() * 1000 - info.created_time
                    if info.comment == self._comment() and age_ms > _ABANDONED_MS:
                        discard(client, info.table_path)

    def finish(self, client: BlockingClient) -> None:
        """Replace the old rows by those of the staging table, and drop it."""
        if self._descriptor.partition_keys:
            # Rows that fit no partition, or none of those named, must fail while the old rows are still there.
            found = {
                name: _partition_spec(self._path, self._descriptor, name) for name in self._staged_partitions(client)
            }
            if self._dynamic:
                self._partitions = list(found.values())
            for name, spec in found.items():
                if self._partitions is not None and spec not in self._partitions:
                    raise InvalidArgumentError(
                        f"overwrite.partitions of {self._path}: a new row belongs to partition '{name}', which is not "
                        f"replaced. Filter the rows, name that partition too, or use '{DYNAMIC}' for all that have new "
                        "rows"
                    )
        self._check_lake(client)  # which may have got rows since
        client.run(client.admin.alter_table(self.staging, set_properties={_STATE: _REPLACING}))
        try:
            self._empty(client)
            _copy(client, client.table(self.staging), client.table(self._path))
        except FlussError as error:
            raise FlussError(
                f"the rows of {self._path} could not be replaced: {error}. All new rows are in table {self.staging}: "
                "run the job again, or overwrite with a query on that table, and drop it"
            ) from error
        client.run(client.admin.drop_table(self.staging, True))

    def _staged_partitions(self, client: BlockingClient) -> list[str]:
        """The names of the partitions that rows of the staging table belong to."""
        staged = client.table(self.staging)
        info = staged.get_table_info()
        target = replace(
            info, table_path=self._path, descriptor=self._descriptor.replace(bucket_count=info.num_buckets)
        )
        keys = target.get_partition_keys()
        variant = client.connection.config.client_bucketing
        found: set[str] = set()
        for batch in _rows(client, staged, info, keys):
            found.update(partition_codes(target, [batch.column(key) for key in keys], variant)[0])
        return sorted(found)

    def truncate(self, client: BlockingClient) -> None:
        """Remove the old rows."""
        self._check(client)
        self._empty(client)

    def _empty(self, client: BlockingClient) -> None:
        path, admin = self._path, client.admin
        if self._partitions is None:
            client.run(admin.drop_table(path))
            client.run(admin.create_table(path, self._descriptor))
            return
        for spec in self._partitions:
            client.run(admin.drop_partition(path, spec, True))
            client.run(admin.create_partition(path, spec, True))


def discard(client: BlockingClient, staging: TablePath) -> None:
    """Drop a staging table, unless its rows were replacing the old ones: no other table may have all of them."""
    with contextlib.suppress(TableNotExistError):
        if client.info(staging).get_custom_properties().get(_STATE) != _REPLACING:
            client.run(client.admin.drop_table(staging, True))


def _partition_spec(path: TablePath, descriptor: TableDescriptor, name: str) -> PartitionSpec:
    keys = list(descriptor.partition_keys)
    if not keys:
        raise InvalidArgumentError(f"overwrite.partitions: table {path} has no partitions")
    if name.count("$") != len(keys) - 1:
        raise InvalidArgumentError(
            f"overwrite.partitions: {name!r} is not the name of a partition by {', '.join(keys)}; "
            "the values are joined with '$'"
        )
    return PartitionSpec(split_partition_name(name, keys))


def _copy(client: BlockingClient, source: aio.FlussTable, target: aio.FlussTable) -> None:
    info = source.get_table_info()
    generated = info.schema.get_auto_increment_columns()
    names = [name for name in info.schema.column_names if name not in generated]
    writer: aio.AppendWriter | aio.UpsertWriter
    if info.has_primary_key():
        writer = client.call(lambda: target.new_upsert().create_writer())
    else:
        writer = client.call(lambda: target.new_append().create_writer())
    for batch in _rows(client, source, info, names):
        writer.write_arrow_batch(batch.select(names))
    client.run(writer.flush())


def _rows(client: BlockingClient, table: aio.FlussTable, info: TableInfo, names: list[str]) -> Iterator[pa.RecordBatch]:
    if info.has_primary_key():
        for number in range(info.num_buckets):
            for found in rows_as_of(client, table, TableBucket(info.table_id, number), None, names):
                yield found.batch
        return
    stop = {bucket.of(info.table_id): end for bucket, end in Layout.load(client, info).latest().items() if end}
    if stop:
        scan = client.call(table.new_scan)
        for found in client.iterate(scan.read_batches(dict.fromkeys(stop, 0), stop)):
            yield found.batch
