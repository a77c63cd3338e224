# SPDX-License-Identifier: Apache-2.0
"""Mode `overwrite`: rows are replaced when all new ones are written, so that a job that fails leaves the old ones.

Fluss has no truncation and no renaming of tables. So tasks write to a table beside the one that is replaced. When all
of them are done, the driver empties the table, or some of its partitions, and copies the new rows into it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa

from fluss import aio
from fluss.client.blocking_client import BlockingClient
from fluss.client.write.routing import partition_codes
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import PartitionSpec, TableBucket, TableDescriptor, TableInfo, TablePath, split_partition_name
from fluss.spark.layout import Layout
from fluss.spark.snapshot import rows_as_of

DYNAMIC = "*"
"""The name that stands for the partitions that have new rows."""

_NAME_MAX = 150
_KEPT_PROPERTIES = ("table.merge-engine", "table.delete.behavior")
"""Properties that decide which rows a table has; the staging table needs no lake, no partitions and no expiry."""


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
        name = f"{path.table_name[:_NAME_MAX]}__overwrite_{uuid.uuid4().hex[:12]}"
        self.staging = staging or TablePath(path.database_name, name)
        """Where tasks write to."""

    def prepare(self, client: BlockingClient) -> TableInfo:
        """Create the staging table."""
        wanted = self._descriptor
        descriptor = TableDescriptor(
            wanted.schema,
            bucket_count=wanted.bucket_count,
            bucket_keys=list(wanted.bucket_keys) or None,
            properties={name: v for name, v in wanted.properties.items() if name.startswith(_KEPT_PROPERTIES)},
            comment=f"New rows of {self._path}, until they replace the old ones",
        )
        client.run(client.admin.create_table(self.staging, descriptor))
        return client.info(self.staging)

    def finish(self, client: BlockingClient) -> None:
        """Replace the old rows by those of the staging table, and drop it."""
        try:
            if self._dynamic:
                names = _staged_partitions(client, client.info(self._path), client.table(self.staging))
                self._partitions = [_partition_spec(self._path, self._descriptor, name) for name in names]
            self.empty(client)
            _copy(client, client.table(self.staging), client.table(self._path))
        except FlussError as error:
            raise FlussError(
                f"the rows of {self._path} could not be replaced: {error}. All new rows are in table {self.staging}: "
                "run the job again, or copy them, and drop that table"
            ) from error
        self.discard(client)

    def discard(self, client: BlockingClient) -> None:
        """Drop the staging table."""
        client.run(client.admin.drop_table(self.staging, True))

    def empty(self, client: BlockingClient) -> None:
        """Remove the old rows."""
        path, admin = self._path, client.admin
        if self._partitions is None:
            client.run(admin.drop_table(path))
            client.run(admin.create_table(path, self._descriptor))
            return
        for spec in self._partitions:
            client.run(admin.drop_partition(path, spec, True))
            client.run(admin.create_partition(path, spec, True))


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


def _staged_partitions(client: BlockingClient, info: TableInfo, staged: aio.FlussTable) -> list[str]:
    """The names of the partitions that rows of the staging table belong to."""
    keys = info.get_partition_keys()
    variant = client.connection.config.client_bucketing
    found: set[str] = set()
    for batch in _rows(client, staged, staged.get_table_info(), keys):
        found.update(partition_codes(info, [batch.column(key) for key in keys], variant)[0])
    return sorted(found)


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
