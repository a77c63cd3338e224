# SPDX-License-Identifier: Apache-2.0
"""Changes of databases and tables: creation with the server's defaults, alterations, drops."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from fluss.errors import (
    BucketMaxNumError,
    DatabaseAlreadyExistError,
    DatabaseNotEmptyError,
    DatabaseNotExistError,
    InvalidAlterTableError,
    InvalidConfigError,
    InvalidDatabaseError,
    InvalidTableError,
    TableAlreadyExistError,
    TableNotExistError,
    UnknownServerError,
)
from fluss.metadata import TABLE_PROPERTIES, Column, DatabaseDescriptor, Schema, TableDescriptor, TableInfo, TablePath
from fluss.metadata.info import AlterConfigOp
from fluss.metadata.validation import validate_table_descriptor
from fluss.server.catalog.catalog import DEFAULT_DATABASE, Catalog
from fluss.server.catalog.cluster_configs import ClusterConfigs
from fluss.server.catalog.documents import UnconfirmedError, not_confirmed
from fluss.server.catalog.entries import DamagedTable, DatabaseEntry, Dropped, TableEntry
from fluss.server.catalog.loading import erase_database, unlist_database, unlist_table
from fluss.server.catalog.partitions import check_replication_factor

_log = logging.getLogger("fluss.server.catalog")


async def create_database(
    catalog: Catalog, name: str, descriptor: DatabaseDescriptor, *, ignore_if_exists: bool
) -> None:
    async def work() -> None:
        if name in catalog.databases:
            if ignore_if_exists:
                return
            raise DatabaseAlreadyExistError(f"Database {name} already exists.")
        now_ms = catalog.clock_ms()

        def write() -> DatabaseEntry:
            if name in catalog.unerased:
                erase_database(catalog, catalog.unerased[name])
                del catalog.unerased[name]
            entry = DatabaseEntry(catalog.counters.take("database_id"), name, descriptor, now_ms, now_ms)
            catalog.storage.write_database(entry)
            return entry

        catalog.databases[name] = await catalog.in_storage_thread(write)

    await catalog.change(work)


async def drop_database(catalog: Catalog, name: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
    async def work() -> None:
        if name == DEFAULT_DATABASE:
            raise UnknownServerError(f"The default database {name} cannot be dropped.")
        entry = catalog.databases.get(name)
        if entry is None:
            if ignore_if_not_exists:
                return
            raise DatabaseNotExistError(f"Database {name} does not exist.")
        if entry.tables and not cascade:
            raise DatabaseNotEmptyError(f"Database {name} is not empty.")
        tables = tuple(entry.tables.values())

        def write() -> None:
            # The decision is one write; finishing it is repeated at the next start if need be.
            catalog.storage.write_database(entry, dropping=True)

        await catalog.in_storage_thread(write)
        unlist_database(catalog, entry)
        try:
            await catalog.in_storage_thread(lambda: erase_database(catalog, entry))
        except OSError as error:
            # The database is gone whatever happens now; the next start, or a new one of that name, removes the rest.
            catalog.unerased[name] = entry
            _log.error("files of the dropped database %s remain until the next start: %s", name, error)
        for table in tables:
            if isinstance(table, TableEntry):
                await catalog.notify(catalog.on_dropped, Dropped(table))

    await catalog.change(work)


async def alter_database(
    catalog: Catalog,
    name: str,
    changes: Iterable[tuple[str, str | None, int]],
    comment: str | None,
    *,
    ignore_if_not_exists: bool,
) -> None:
    """``comment`` None leaves the comment, an empty one clears it."""

    async def work() -> None:
        entry = catalog.databases.get(name)
        if entry is None:
            if ignore_if_not_exists:
                return
            raise DatabaseNotExistError(f"Database {name} not exists.")
        entry.check_readable()
        properties = dict(entry.descriptor.custom_properties)
        for key, value, operation in changes:
            if operation == AlterConfigOp.SET and value is not None:
                properties[key] = value
            elif operation == AlterConfigOp.DELETE:
                properties.pop(key, None)
            else:
                raise UnknownServerError(f"Property '{key}' of a database can only be set or reset.")
        new_comment = entry.descriptor.comment if comment is None else comment or None
        descriptor = DatabaseDescriptor(comment=new_comment, custom_properties=properties)
        if descriptor.to_json() == entry.descriptor.to_json():
            return
        changed = replace(entry, descriptor=descriptor, modified_time=catalog.clock_ms())
        await catalog.in_storage_thread(lambda: catalog.storage.write_database(changed))
        entry.descriptor, entry.modified_time = changed.descriptor, changed.modified_time

    await catalog.change(work)


KV_FORMAT_VERSION = "2"
_LAKE_ENABLED = "table.datalake.enabled"
_LAKE_FORMAT = "table.datalake.format"
_STANDBY = "table.kv.standby-replica.enabled"


COLUMNS_MAX = 10_000
"""The descriptor is encoded for clients and written to disk as a whole: this many take about 30 ms."""


def check_text(descriptor: TableDescriptor | DatabaseDescriptor) -> None:
    """JSON can spell half of a character (a lone surrogate), which no answer could carry back."""
    try:
        descriptor.to_json_bytes()
    except UnicodeEncodeError:
        text = "The descriptor contains text that is not valid Unicode: a surrogate without its other half."
        raise (InvalidTableError if isinstance(descriptor, TableDescriptor) else InvalidDatabaseError)(text) from None


def validate_descriptor(descriptor: TableDescriptor, configs: ClusterConfigs) -> None:
    """Check a table as it would be stored, with the server's defaults in it."""
    count = len(descriptor.schema.columns)
    if count > COLUMNS_MAX:
        raise InvalidTableError(f"The table would have {count} columns, the most allowed is {COLUMNS_MAX}.")
    check_text(descriptor)
    validate_table_descriptor(descriptor, bucket_count_max=configs.current.integer("max.bucket.num"))
    _check_refused(descriptor)
    _check_lake(descriptor, configs)


REFUSED_PROPERTIES = {
    "table.kv.ttl": "rows do not expire by themselves here. Delete them, or partition the table by time",
    "table.kv.ttl.time-column": "rows do not expire by themselves here. Delete them, or partition the table by time",
    "table.datalake.database-name": "a table has its own name in the lake, so that no table reaches that of another",
    "table.datalake.table-name": "a table has its own name in the lake, so that no table reaches that of another",
}
"""Properties of Apache Fluss that would promise what this server does not do, and why."""


def _check_refused(descriptor: TableDescriptor) -> None:
    for key, reason in REFUSED_PROPERTIES.items():
        if key in descriptor.properties:
            raise InvalidConfigError(f"'{key}' cannot be set on this server: {reason}.")


def _check_lake(descriptor: TableDescriptor, configs: ClusterConfigs) -> None:
    config = descriptor.config
    if not config.lake_enabled:
        return
    if not configs.lake_enabled or configs.lake_format is None:
        raise InvalidTableError(
            "'table.datalake.enabled' is set, but this server has no lake support switched on "
            "(option 'datalake.format')."
        )
    if config.lake_format is not None and config.lake_format != configs.lake_format:
        raise InvalidConfigError(
            f"'table.datalake.format' is '{config.lake_format}', but the lake of this server is of format "
            f"'{configs.lake_format}' (option 'datalake.format')."
        )
    if config.lake_format in ("lance", "delta") and descriptor.has_primary_key():
        raise InvalidTableError(
            f"The lake format {config.lake_format} takes log tables only, not tables with a primary key."
        )
    if config.lake_format == "iceberg" and len(descriptor.bucket_keys) > 1:
        raise InvalidTableError(
            f"The lake format iceberg takes one bucket key, not {len(descriptor.bucket_keys)}: "
            f"{', '.join(descriptor.bucket_keys)}."
        )


def with_server_defaults(descriptor: TableDescriptor, configs: ClusterConfigs) -> TableDescriptor:
    """What the server adds to a new table where the client said nothing; visible to all clients from then on."""
    config = configs.current
    properties = descriptor.properties
    table = descriptor.config
    properties.setdefault("table.replication.factor", str(config.integer("default.replication.factor")))
    if table.auto_partition_enabled and len(descriptor.partition_keys) >= 2:
        properties.setdefault("table.auto-partition.num-precreate", "0")
    if configs.lake_format is not None:
        properties.setdefault(_LAKE_FORMAT, configs.lake_format)
    if descriptor.has_primary_key():
        if table.merge_engine is not None:
            properties.setdefault("table.delete.behavior", "IGNORE")
        properties.setdefault("table.kv.format-version", KV_FORMAT_VERSION)
    bucket_count = descriptor.bucket_count
    if bucket_count is None:
        bucket_count = config.integer("default.bucket.number")
    return descriptor.replace(properties=properties, bucket_count=bucket_count)


def _completed(descriptor: TableDescriptor, configs: ClusterConfigs) -> TableDescriptor:
    """The descriptor of a new table with the server's defaults, checked. Takes long for many columns."""
    completed = with_server_defaults(descriptor, configs)
    validate_descriptor(completed, configs)
    return completed


async def create_table(
    catalog: Catalog, path: TablePath, descriptor: TableDescriptor, *, ignore_if_exists: bool
) -> TableEntry | None:
    """Create a table from what the client sent. Returns the new table; None when one existed and that is fine."""
    configs = catalog.configs
    kind = "kv" if descriptor.has_primary_key() else "log"
    if not configs.current.boolean(f"allow.create.{kind}.tables"):
        raise InvalidTableError(
            f"Creation of {'primary-key' if kind == 'kv' else 'log'} tables is disallowed on this server "
            f"(option 'allow.create.{kind}.tables')."
        )
    if descriptor.bucket_count is not None and descriptor.bucket_count <= 0:
        raise UnknownServerError(f"The number of buckets must be larger than 0, not {descriptor.bucket_count}.")
    descriptor = await catalog.in_storage_thread(partial(_completed, descriptor, configs))
    if not descriptor.is_partitioned():
        check_replication_factor(descriptor)

    async def work() -> TableEntry | None:
        database = catalog.databases.get(path.database_name)
        existing = database.tables.get(path.table_name) if database else None
        if isinstance(existing, DamagedTable):
            raise existing.error()
        if existing is not None and ignore_if_exists:
            return None
        if database is None:
            raise DatabaseNotExistError(f"Database {path.database_name} does not exist.")
        # As on Apache Fluss before the table: one who drops it to create it again must know that the lake would refuse.
        if descriptor.config.lake_enabled and catalog.lake_hook is not None:
            await catalog.lake_hook.create_table(path, descriptor, must_be_empty=True)
        if existing is not None:
            raise TableAlreadyExistError(f"Table {path} already exists.")
        now_ms = catalog.clock_ms()

        def write() -> TableEntry:
            table_id = catalog.counters.take("table_id")
            info = TableInfo(path, table_id, 1, descriptor, now_ms, now_ms, catalog.remote_data_dir, 0)
            entry = TableEntry(info, {1: descriptor.schema})
            catalog.storage.create_table(entry)
            return entry

        entry = await catalog.in_storage_thread(write)
        database.tables[path.table_name] = entry
        catalog.tables_by_id[entry.table_id] = entry
        await catalog.notify(catalog.on_table_created, entry)
        return entry

    created = await catalog.change(work)
    if created is not None:
        await catalog.auto_partitioner.run_table(created)
    return created


async def drop_table(catalog: Catalog, path: TablePath, *, ignore_if_not_exists: bool) -> None:
    async def work() -> None:
        database = catalog.databases.get(path.database_name)
        entry = database.tables.get(path.table_name) if database else None
        if database is None or entry is None:
            if ignore_if_not_exists:
                return
            raise TableNotExistError(f"Table '{path}' does not exist.")
        unconfirmed: UnconfirmedError | None = None
        try:
            await catalog.in_storage_thread(lambda: catalog.storage.drop_table(entry.table_id))
        except UnconfirmedError as error:
            # On disk the table is gone, so it must be gone here too: a write that is acknowledged from now on would
            # be lost with the next restart.
            unconfirmed = error.with_traceback(None)
        del database.tables[path.table_name]
        unlist_table(catalog, entry)
        if isinstance(entry, TableEntry):
            await catalog.notify(catalog.on_dropped, Dropped(entry))
        catalog.spawn(_remove_dropped(catalog, entry.table_id))
        if unconfirmed is not None:
            raise not_confirmed(f"Table '{path}' was dropped", unconfirmed)

    await catalog.change(work)


async def _remove_dropped(catalog: Catalog, table_id: int) -> None:
    """Delete the files of a dropped table, of which each partition has one, while other changes go on."""
    try:
        while await catalog.in_storage_thread(lambda: catalog.storage.remove_dropped(table_id)):
            pass
    except OSError as error:
        _log.error("files of the dropped table %d remain until the next start: %s", table_id, error)


# ---------------------------------------------------------------------- alter


def _quoted(keys: Iterable[str]) -> str:
    return ", ".join(f"'{key}'" for key in keys)


def _check_alterable(entry: TableEntry, keys: Sequence[str]) -> None:
    info = entry.table_info
    fixed = [
        key
        for key in keys
        if key.startswith("table.") and not (key in TABLE_PROPERTIES and TABLE_PROPERTIES[key].dynamic)
    ]
    if fixed:
        raise InvalidAlterTableError(f"These options cannot be altered: {_quoted(fixed)}.")
    if _STANDBY in keys and not info.has_primary_key():
        raise InvalidAlterTableError(f"'{_STANDBY}' can only be altered on primary-key tables.")
    lake_keys = [key for key in keys if key.startswith("table.datalake.")]
    if lake_keys and info.lake_format is None:
        # Key encoding and buckets follow the lake format from the first row on; only a table that has neither can
        # be joined to a lake later.
        free_buckets = not info.has_primary_key() and not info.has_bucket_key()
        if not free_buckets or lake_keys != [_LAKE_ENABLED]:
            raise InvalidAlterTableError(
                f"These options cannot be altered on table '{info.table_path}', which was created before the server "
                f"had a lake: {_quoted(lake_keys)}."
            )


def _changed_properties(
    entry: TableEntry, changes: Sequence[tuple[str, str | None, int]]
) -> tuple[dict[str, str], dict[str, str]]:
    properties, custom = entry.table_info.properties, entry.table_info.custom_properties
    for key, value, operation in changes:
        target = properties if key.startswith("table.") else custom
        if operation == AlterConfigOp.SET and value is not None:
            target[key] = value
        elif operation == AlterConfigOp.DELETE:
            target.pop(key, None)
        else:
            raise UnknownServerError(f"Option '{key}' of a table can only be set or reset.")
    return properties, custom


async def alter_properties(
    catalog: Catalog, path: TablePath, changes: Sequence[tuple[str, str | None, int]], *, ignore_if_not_exists: bool
) -> None:
    configs = catalog.configs

    async def work() -> TableEntry | None:
        entry = catalog.find_table(path) if ignore_if_not_exists else catalog.table(path)
        if entry is None:
            return None
        _check_alterable(entry, list(dict.fromkeys(key for key, _, _ in changes)))
        info = entry.table_info
        properties, custom = _changed_properties(entry, changes)
        if properties == info.properties and custom == info.custom_properties:
            return None
        descriptor = info.descriptor.replace(properties=properties, custom_properties=custom)
        enables_lake = descriptor.config.lake_enabled and not info.config.lake_enabled
        if enables_lake:
            if info.bucket_count_epoch:
                raise InvalidAlterTableError(
                    f"'{_LAKE_ENABLED}' cannot be set on table '{path}': its partitions have different numbers of "
                    "buckets. Create a table with the lake switched on."
                )
            if not configs.lake_enabled or configs.lake_format is None:
                raise InvalidAlterTableError(
                    f"'{_LAKE_ENABLED}' cannot be set on table '{path}': this server has no lake "
                    "(option 'datalake.format')."
                )
            properties.setdefault(_LAKE_FORMAT, configs.lake_format)
            descriptor = descriptor.replace(properties=properties)
        await catalog.in_storage_thread(lambda: validate_descriptor(descriptor, configs))
        if enables_lake and catalog.lake_hook is not None:
            await catalog.lake_hook.create_table(path, descriptor, must_be_empty=False)
        changed = replace(info, descriptor=descriptor, modified_time=catalog.clock_ms())
        await _store(catalog, entry, changed, entry.schemas)
        return entry

    altered = await catalog.change(work)
    if altered is not None:
        await catalog.auto_partitioner.run_table(altered)


async def alter_bucket_count(catalog: Catalog, path: TablePath, count: int, *, ignore_if_not_exists: bool) -> None:
    """Change the number of buckets of the partitions to come; those that are there keep theirs."""

    async def work() -> None:
        entry = catalog.find_table(path) if ignore_if_not_exists else catalog.table(path)
        if entry is None:
            return
        info = entry.table_info
        _check_bucket_count(info, count, catalog.configs.current.integer("max.bucket.num"))
        if count == info.num_buckets:
            return
        unmarked = [partition for partition in entry.partitions.values() if partition.bucket_count is None]

        def mark() -> None:
            # Before the table changes: a partition without a count of its own has that of the table.
            for partition in unmarked:
                partition.bucket_count = info.num_buckets
                catalog.storage.write_partition(entry.table_id, partition)

        await catalog.in_storage_thread(mark)
        changed = replace(
            info,
            descriptor=info.descriptor.replace(bucket_count=count),
            modified_time=catalog.clock_ms(),
            bucket_count_epoch=(info.bucket_count_epoch or 0) + 1,
        )
        await _store(catalog, entry, changed, entry.schemas)

    await catalog.change(work)


def _check_bucket_count(info: TableInfo, count: int, count_max: int) -> None:
    failed = f"Cannot alter 'bucket.num' of table '{info.table_path}' to {count}"
    if not info.partition_keys:
        # The second sentence is that of an Apache Fluss server.
        raise InvalidAlterTableError(
            f"{failed}: it is not partitioned. Non-partitioned table rescale is not yet supported."
        )
    if info.config.lake_enabled:
        raise InvalidAlterTableError(
            f"{failed}: its rows are tiered into a lake, whose buckets would differ. Create a table with that number."
        )
    if count < 1:
        raise InvalidAlterTableError(f"{failed}: the bucket count must be at least 1.")
    if count > count_max:
        raise BucketMaxNumError(f"{failed}: the most allowed is {count_max} (option 'max.bucket.num').")


async def add_columns(
    catalog: Catalog, path: TablePath, columns: Sequence[Column], *, ignore_if_not_exists: bool
) -> None:
    """Append nullable columns; the caller has refused every other kind of schema change."""

    async def work() -> None:
        entry = catalog.find_table(path) if ignore_if_not_exists else catalog.table(path)
        if entry is None:
            return
        info = entry.table_info
        schema, descriptor = await catalog.in_storage_thread(partial(_extended, info, columns, catalog.configs))
        if info.config.lake_enabled:
            if not catalog.configs.lake_enabled:
                raise InvalidAlterTableError(
                    f"The schema of table '{path}' cannot be altered: its lake is on, but this server has none now."
                )
            if catalog.lake_hook is not None:
                await catalog.lake_hook.add_columns(path, schema.columns[len(info.schema.columns) :])
        schema_id = info.schema_id + 1
        changed = replace(info, schema_id=schema_id, descriptor=descriptor)
        await _store(catalog, entry, changed, {**entry.schemas, schema_id: schema})

    await catalog.change(work)


def _extended(info: TableInfo, columns: Sequence[Column], configs: ClusterConfigs) -> tuple[Schema, TableDescriptor]:
    """The schema and descriptor of a table with more columns, checked. Takes long for many columns."""
    names = set(info.schema.column_names)
    for column in columns:
        if column.name in names:
            raise InvalidAlterTableError(f"Column {column.name} already exists.")
        names.add(column.name)
        if not column.data_type.nullable:
            raise UnknownServerError(
                f"Column {column.name} must be nullable: rows written before have no value for it."
            )
    schema = info.schema.with_added_columns(columns)
    descriptor = info.descriptor.replace(schema=schema)
    validate_descriptor(descriptor, configs)
    return schema, descriptor


async def _store(catalog: Catalog, entry: TableEntry, info: TableInfo, schemas: dict[int, Schema]) -> None:
    """Write the changed table, then show it. Readers keep their reference to the entry."""
    changed = TableEntry(info, schemas)
    await catalog.in_storage_thread(lambda: catalog.storage.write_table(changed))
    entry.table_info = info
    entry.schemas = schemas
    entry.invalidate_encoded()
    await catalog.notify(catalog.on_table_altered, entry)
