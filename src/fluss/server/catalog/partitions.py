# SPDX-License-Identifier: Apache-2.0
"""Changes of partitions: explicit ones, and those the server makes and drops by time."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Sequence

from fluss.errors import (
    BucketMaxNumError,
    InvalidReplicationFactorError,
    PartitionAlreadyExistsError,
    PartitionMaxNumError,
    PartitionNotExistsError,
    PartitionSpecInvalidError,
    TableNotPartitionedError,
    UnknownServerError,
)
from fluss.metadata import (
    HISTORICAL_PARTITION,
    AutoPartitionStrategy,
    PartitionSpec,
    TableDescriptor,
    TablePath,
    partition_name,
    qualified_partition_name,
)
from fluss.server.catalog.documents import UnconfirmedError, not_confirmed
from fluss.server.catalog.entries import Dropped, PartitionEntry, TableEntry
from fluss.server.catalog.state import CatalogState

_log = logging.getLogger("fluss.server.catalog")

Pairs = Sequence[tuple[str, str]]


_TABLET_SERVERS_ALIVE = 1


def check_replication_factor(descriptor: TableDescriptor) -> None:
    factor = descriptor.config.replication_factor or 1
    if factor > _TABLET_SERVERS_ALIVE:
        raise InvalidReplicationFactorError(
            f"Replication factor: {factor} larger than available tablet servers: {_TABLET_SERVERS_ALIVE}. "
            "Set 'table.replication.factor' to 1 on a single-node server."
        )


def _spec(pairs: Pairs) -> PartitionSpec:
    spec = dict(pairs)
    if len(spec) != len(pairs):
        raise PartitionSpecInvalidError(f"A partition key is named twice in {', '.join(key for key, _ in pairs)}.")
    return PartitionSpec(spec)


def full_spec(entry: TableEntry, pairs: Pairs, *, creating: bool = False) -> dict[str, str]:
    """The values of all partition keys, in partition-key order."""
    keys, spec = entry.table_info.partition_keys, _spec(pairs)
    if missing := [key for key in keys if key not in spec.spec_map]:
        given = ", ".join(f"{key}={value}" for key, value in spec.spec_map.items())
        raise PartitionSpecInvalidError(
            f"PartitionSpec PartitionSpec{{{{{given}}}}} does not contain partition key '{missing[0]}' for partitioned "
            f"table {entry.table_path}."
        )
    return dict(zip(keys, spec.values_in_order(keys, creating=creating)))


def partial_spec(entry: TableEntry, pairs: Pairs) -> dict[str, str]:
    """The values to filter by."""
    spec = _spec(pairs).spec_map
    keys = entry.table_info.partition_keys
    unknown = [key for key in spec if key not in keys]
    if unknown:
        # The Java server wraps code 43 here, so its clients expect -1.
        raise UnknownServerError(
            f"table don't contains this partitionKey: {', '.join(unknown)}. Table '{entry.table_path}' is partitioned "
            f"by {', '.join(keys)}."
        )
    return spec


def _partitioned(entry: TableEntry, what: str) -> None:
    if not entry.is_partitioned:
        raise TableNotPartitionedError(
            f"Only partitioned tables support to {what} a partition; table '{entry.table_path}' is not partitioned."
        )


def _in_zone(time_ms: int, strategy: AutoPartitionStrategy) -> datetime.datetime:
    """A time in the zone of the table; without one, in the zone of the server."""
    return datetime.datetime.fromtimestamp(time_ms / 1000, strategy.time_zone)


def check_new_partition(catalog: CatalogState, entry: TableEntry, spec: dict[str, str]) -> None:
    """Everything that can be wrong with a partition that does not exist yet."""
    info = entry.table_info
    strategy = AutoPartitionStrategy.of(info.config, info.partition_keys)
    strategy.check_new_value(spec[strategy.key], _in_zone(catalog.expiry_ms(), strategy))
    check_replication_factor(info.descriptor)
    config = catalog.configs.current
    partitions_max = config.integer("max.partition.num")
    if len(entry.partitions) >= partitions_max:
        raise PartitionMaxNumError(
            f"Exceed the maximum number of partitions for table {info.table_path}, only allow {partitions_max} "
            "partitions. Drop some first, or raise the option 'max.partition.num'."
        )
    buckets_max = config.integer("max.bucket.num")
    if info.num_buckets > buckets_max:
        raise BucketMaxNumError(
            f"A partition of table '{info.table_path}' has {info.num_buckets} buckets, the most allowed is "
            f"{buckets_max} (option 'max.bucket.num')."
        )


async def create_partition(catalog: CatalogState, path: TablePath, pairs: Pairs, *, ignore_if_exists: bool) -> None:
    def find() -> tuple[TableEntry, dict[str, str], bool]:
        entry = catalog.table(path)
        _partitioned(entry, "create")
        spec = full_spec(entry, pairs, creating=True)
        exists = partition_name(list(spec.values())) in entry.partitions
        if exists and not ignore_if_exists:
            raise PartitionAlreadyExistsError(
                f"Partition '{qualified_partition_name(spec)}' already exists for table {path}."
            )
        return entry, spec, exists

    # Writers with dynamic partitions ask for the same partition from many places at once: answer without queueing.
    if find()[2]:
        return

    async def work() -> None:
        entry, spec, exists = find()
        if not exists:
            check_new_partition(catalog, entry, spec)
            await _create(catalog, entry, spec)

    await catalog.change(work)


async def _create(catalog: CatalogState, entry: TableEntry, spec: dict[str, str]) -> None:
    now_ms = catalog.clock_ms()

    def write() -> PartitionEntry:
        partition_id = catalog.counters.take("partition_id")
        partition = PartitionEntry(partition_id, partition_name(list(spec.values())), spec, now_ms)
        partition.bucket_count = entry.table_info.num_buckets
        catalog.storage.write_partition(entry.table_id, partition)
        return partition

    partition = await catalog.in_storage_thread(write)
    entry.partitions[partition.name] = partition
    catalog.partitions_by_id[partition.partition_id] = (entry, partition)


async def drop_partition(catalog: CatalogState, path: TablePath, pairs: Pairs, *, ignore_if_not_exists: bool) -> None:
    async def work() -> None:
        entry = catalog.table(path)
        _partitioned(entry, "drop")
        spec = full_spec(entry, pairs)
        partition = entry.partitions.get(partition_name(list(spec.values())))
        if partition is None:
            if ignore_if_not_exists:
                return
            raise PartitionNotExistsError(
                f"Partition '{qualified_partition_name(spec)}' does not exist for table {path}."
            )
        partition.check_writable()
        await _drop(catalog, entry, partition)

    await catalog.change(work)


async def _drop(catalog: CatalogState, entry: TableEntry, partition: PartitionEntry) -> None:
    unconfirmed: UnconfirmedError | None = None
    try:
        await catalog.in_storage_thread(lambda: catalog.storage.drop_partition(entry.table_id, partition.partition_id))
    except UnconfirmedError as error:
        unconfirmed = error.with_traceback(None)
    entry.partitions.pop(partition.name, None)
    catalog.partitions_by_id.pop(partition.partition_id, None)
    await catalog.notify(catalog.on_dropped, Dropped(entry, partition))
    if unconfirmed is not None:
        raise not_confirmed(f"Partition '{partition.name}' of table '{entry.table_path}' was dropped", unconfirmed)


class AutoPartitioner:
    """Creates the partitions of the near future and drops those past their retention."""

    def __init__(self, catalog: CatalogState) -> None:
        self._catalog = catalog

    async def run(self) -> None:
        """One round over all tables; one table that fails does not stop the others."""
        for entry in self._catalog.tables():
            await self.run_table(entry)
            await asyncio.sleep(0)

    async def run_table(self, entry: TableEntry) -> None:
        try:
            if self._wants_historical(entry) != (HISTORICAL_PARTITION in entry.partitions):
                await self._catalog.change(lambda: self._keep_historical(entry))
            if entry.table_info.is_auto_partitioned():
                await self._run_table(entry)
        except Exception as error:
            # Retried in the next round; a table that is full of partitions must not fail its own creation.
            _log.warning("auto partitioning of table '%s' stopped: %s", entry.table_path, error)

    async def _keep_historical(self, entry: TableEntry) -> None:
        """Create the partition that lookups of expired ones are sent to, or drop it, as the table has it."""
        if self._catalog.table_by_id(entry.table_id) is not entry:
            return
        found = entry.partitions.get(HISTORICAL_PARTITION)
        wanted = self._wants_historical(entry)
        if wanted and found is None:
            await _create(self._catalog, entry, {entry.table_info.partition_keys[0]: HISTORICAL_PARTITION})
        elif found is not None and not wanted:
            await _drop(self._catalog, entry, found)

    @staticmethod
    def _wants_historical(entry: TableEntry) -> bool:
        return entry.table_info.config.lake_historical_partition_enabled

    async def _run_table(self, entry: TableEntry) -> None:
        catalog = self._catalog
        info = entry.table_info
        strategy = AutoPartitionStrategy.of(info.config, info.partition_keys)
        expired_by = _in_zone(catalog.expiry_ms(), strategy)

        # Room first: what retention drops makes place for what is created.
        old = [p for p in entry.partitions.values() if strategy.is_expired(p.spec[strategy.key], expired_by)]
        for partition in sorted(old, key=lambda p: p.spec[strategy.key]):
            await catalog.change(lambda partition=partition: self._drop_if_there(entry, partition))  # type: ignore[misc]

        for value in strategy.values_to_create(_in_zone(catalog.clock_ms(), strategy)):
            if value not in entry.partitions:
                await catalog.change(lambda value=value: self._create_if_absent(entry, strategy.key, value))  # type: ignore[misc]

    async def _drop_if_there(self, entry: TableEntry, partition: PartitionEntry) -> None:
        if self._alive(entry) and partition.name in entry.partitions:
            await _drop(self._catalog, entry, partition)

    async def _create_if_absent(self, entry: TableEntry, key: str, value: str) -> None:
        if self._alive(entry) and value not in entry.partitions:
            spec = {key: value}
            check_new_partition(self._catalog, entry, spec)
            await _create(self._catalog, entry, spec)

    def _alive(self, entry: TableEntry) -> bool:
        """The table may have been dropped, or the switch turned off, while this round waited."""
        return self._catalog.table_by_id(entry.table_id) is entry and entry.table_info.is_auto_partitioned()
