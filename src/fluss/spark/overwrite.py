# SPDX-License-Identifier: Apache-2.0
"""Mode `overwrite`: rows are replaced when all new ones are written, so that a job that fails leaves the old ones.

Fluss has no truncation and no renaming of tables. So tasks write to a table beside the one that is replaced, with the
same partitions: what the server refuses fails while the old rows are there. When all tasks are done, the driver marks
both tables, empties the one that is replaced, or some of its partitions, copies the new rows into it, and removes the
mark. A driver that is killed in between leaves a marked table: Spark refuses to read it or to add rows, and
`finish_overwrite`, or another overwrite, completes it. That needs no lock: a mark names the staging table, which has
all that is needed to begin again, and each beginning makes a new table, to which a slower driver cannot write.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss import aio
from fluss.client.blocking_client import BlockingClient
from fluss.errors import (
    FlussError,
    InvalidArgumentError,
    LakeSnapshotNotExistError,
    TableAlreadyExistError,
    TableNotExistError,
)
from fluss.metadata import PartitionSpec, TableDescriptor, TableInfo, TablePath, split_partition_name
from fluss.spark.creation import client_options_of
from fluss.spark.layout import REPLACED_BY, Layout
from fluss.spark.options import table_path
from fluss.spark.snapshot import rows_as_of

DYNAMIC = "*"
"""The name that stands for the partitions that have new rows."""

_NAME_MAX = 150
_KEPT_PROPERTIES = ("table.merge-engine", "table.delete.behavior")
"""Properties that decide which rows a table has; the staging table needs no lake and no expiry."""

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
        custom = {name: value for name, value in descriptor.custom_properties.items() if name != REPLACED_BY}
        self._descriptor = descriptor.replace(custom_properties=custom)
        """What the table is afterwards."""
        self._dynamic = partitions is not None and list(partitions) == [DYNAMIC]
        self._partitions = None if partitions is None or self._dynamic else list(partitions)
        for name in self._partitions or ():
            self._spec(name)
        self.staging = staging or TablePath(path.database_name, f"{_prefix(path)}{uuid.uuid4().hex[:12]}")
        """Where tasks write to."""

    def prepare(self, client: BlockingClient) -> TableInfo:
        """Create the staging table, after those that killed drivers left were dropped."""
        self._check(client)
        for found in _staging_tables(client, self._path):
            if time.time() * 1000 - found.created_time > _ABANDONED_MS:
                discard(client, found.table_path)
        wanted = self._descriptor
        descriptor = TableDescriptor(
            wanted.schema,
            partition_keys=list(wanted.partition_keys),
            bucket_count=wanted.bucket_count,
            bucket_keys=list(wanted.bucket_keys) or None,
            properties={name: v for name, v in wanted.properties.items() if name.startswith(_KEPT_PROPERTIES)},
            comment=_comment(self._path),
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

    def finish(self, client: BlockingClient) -> None:
        """Replace the old rows by those of the staging table, and drop it."""
        if self._descriptor.partition_keys:
            staged = [one.partition_name for one in client.run(client.admin.list_partition_infos(self.staging))]
            if self._dynamic:
                self._partitions = staged
            for name in staged:
                if self._partitions is not None and name not in self._partitions:
                    raise InvalidArgumentError(
                        f"overwrite.partitions of {self._path}: a new row belongs to partition '{name}', which is not "
                        f"replaced. Filter the rows, name that partition too, or use '{DYNAMIC}' for all that have new "
                        "rows"
                    )
        self._check_lake(client)  # which may have got rows since
        descriptor = self._descriptor.to_json()
        todo = {"table": self._path.table_name, "descriptor": descriptor, "partitions": self._partitions}
        client.run(client.admin.alter_table(self.staging, set_properties={REPLACED_BY: json.dumps(todo)}))
        client.run(client.admin.alter_table(self._path, set_properties={REPLACED_BY: self.staging.table_name}))
        self.replace(client)

    def replace(self, client: BlockingClient) -> None:
        """Empty what is replaced, and copy the new rows. If this fails, it can begin again."""
        try:
            self._empty(client, {REPLACED_BY: self.staging.table_name})
            _copy(client, client.table(self.staging), client.table(self._path))
            client.run(client.admin.alter_table(self._path, reset_properties=[REPLACED_BY]))
        except FlussError as error:
            raise FlussError(
                f"the rows of {self._path} could not be replaced: {error}. All new rows are in table {self.staging}; "
                f"fluss.spark.finish_overwrite('{self._path}') puts them in place"
            ) from error
        client.run(client.admin.drop_table(self.staging, True))

    def truncate(self, client: BlockingClient) -> None:
        """Remove the old rows."""
        self._check(client)
        self._empty(client)

    def _empty(self, client: BlockingClient, mark: Mapping[str, str] | None = None) -> None:
        path, admin = self._path, client.admin
        if self._partitions is None:
            descriptor = self._descriptor
            client.run(admin.drop_table(path, True))
            client.run(
                admin.create_table(
                    path, descriptor.replace(custom_properties={**descriptor.custom_properties, **(mark or {})})
                )
            )
            return
        for name in self._partitions:
            client.run(admin.drop_partition(path, self._spec(name), True))
            client.run(admin.create_partition(path, self._spec(name), True))

    def _spec(self, name: str) -> PartitionSpec:
        """A partition by its name."""
        keys = list(self._descriptor.partition_keys)
        if not keys:
            raise InvalidArgumentError(f"overwrite.partitions: table {self._path} has no partitions")
        if name.count("$") != len(keys) - 1:
            raise InvalidArgumentError(
                f"overwrite.partitions: {name!r} is not the name of a partition by {', '.join(keys)}; "
                "the values are joined with '$'"
            )
        return PartitionSpec(split_partition_name(name, keys))


def finish_overwrite(
    table: str, bootstrap_servers: str | None = None, *, options: Mapping[str, Any] | None = None
) -> bool:
    """Complete an overwrite whose driver or server failed while new rows took the place of the old ones.

    Call it when no job overwrites the table any more. If it fails itself, call it again.

    Args:
        table: The table, `database.table`.
        bootstrap_servers: The server, `host:port`; default what the environment says.
        options: More options of the client.

    Returns:
        Whether there was something to complete.

    Example:
        fluss.spark.finish_overwrite("shop.orders", "localhost:9123")
    """
    with BlockingClient(client_options_of(bootstrap_servers, options)) as client:
        return complete(client, table_path(table))


def complete(client: BlockingClient, path: TablePath) -> bool:
    """Complete an overwrite of a table that broke off, if there is one."""
    for staging in _staging_tables(client, path):
        state = _unfinished(client, staging)
        if state is not None:
            descriptor = TableDescriptor.from_json(state["descriptor"])
            Overwrite(path, descriptor, state["partitions"], staging.table_path).replace(client)
            return True
    return False


def discard(client: BlockingClient, staging: TablePath) -> None:
    """Drop a staging table, unless the table it is for is marked, or gone: no other may have all rows."""
    with contextlib.suppress(TableNotExistError):
        if _unfinished(client, client.info(staging)) is None:
            client.run(client.admin.drop_table(staging, True))


def _staging_tables(client: BlockingClient, path: TablePath) -> list[TableInfo]:
    """The tables in which overwrites of a table left rows."""
    found = []
    for name in client.run(client.admin.list_tables(path.database_name)):
        if name.startswith(_prefix(path)):
            with contextlib.suppress(TableNotExistError):
                info = client.info(TablePath(path.database_name, name))
                if info.comment == _comment(path):
                    found.append(info)
    return found


def _unfinished(client: BlockingClient, staging: TableInfo) -> dict[str, Any] | None:
    """What is left to do with the rows of a staging table; None if its table has all old rows, or all new ones."""
    text = staging.custom_properties.get(REPLACED_BY)
    if text is None:
        return None
    state: dict[str, Any] = json.loads(text)
    own = staging.table_path
    with contextlib.suppress(TableNotExistError):
        target = client.info(TablePath(own.database_name, state["table"]))
        return state if target.custom_properties.get(REPLACED_BY) == own.table_name else None
    return state


def _prefix(path: TablePath) -> str:
    return f"{path.table_name[:_NAME_MAX]}__overwrite_"


def _comment(path: TablePath) -> str:
    return f"New rows of {path}, until they replace the old ones"


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
    layout = Layout.load(client, info)
    if info.has_primary_key():
        for bucket in layout.buckets:
            for found in rows_as_of(client, table, bucket.of(info.table_id), None, names):
                yield found.batch
        return
    stop = {bucket.of(info.table_id): end for bucket, end in layout.latest().items() if end}
    if stop:
        scan = client.call(table.new_scan)
        for found in client.iterate(scan.read_batches(dict.fromkeys(stop, 0), stop)):
            yield found.batch
