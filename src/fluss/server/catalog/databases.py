# SPDX-License-Identifier: Apache-2.0
"""Changes of databases."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from fluss.errors import DatabaseAlreadyExistError, DatabaseNotEmptyError, DatabaseNotExistError, UnknownServerError
from fluss.metadata import DatabaseDescriptor
from fluss.metadata.info import AlterConfigOp
from fluss.server.catalog.catalog import Catalog
from fluss.server.catalog.entries import DatabaseEntry, TableEntry
from fluss.server.catalog.loading import erase_database, forget_database

_log = logging.getLogger("fluss.server.catalog")

DEFAULT_DATABASE = "fluss"


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
        forget_database(catalog, entry)
        try:
            await catalog.in_storage_thread(lambda: erase_database(catalog, entry))
        except OSError as error:
            # The database is gone whatever happens now; the next start removes the rest.
            _log.error("files of the dropped database %s remain until the next start: %s", name, error)
        for table in tables:
            if isinstance(table, TableEntry):
                await catalog.notify(catalog.on_table_dropped, table)

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
            raise DatabaseNotExistError(f"Database {name} does not exist.")
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
