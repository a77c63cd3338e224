# SPDX-License-Identifier: Apache-2.0
"""Reading the catalog from disk at start-up: damage is confined to its object, interrupted drops are finished."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fluss.errors import FlussError
from fluss.metadata import (
    DatabaseDescriptor,
    Schema,
    TableDescriptor,
    TableInfo,
    TablePath,
    partition_name,
)
from fluss.server import disk
from fluss.server.catalog.documents import Damage, DamagedDocumentError
from fluss.server.catalog.entries import DamagedTable, DatabaseEntry, PartitionEntry, TableEntry
from fluss.server.catalog.lake_snapshots import LakeSnapshots
from fluss.server.catalog.state import CatalogState
from fluss.server.catalog.storage import DATA_FOLDER, LAKE_DOCUMENT, TABLE_DOCUMENT, documents

_log = logging.getLogger("fluss.server.catalog")
_FILE_SUFFIXES = (".doc", ".prev")

# What a document that passes its checksum can still raise when a newer or older release wrote it.

_UNREADABLE = (FlussError, KeyError, TypeError, ValueError, AttributeError)


def load_catalog(catalog: CatalogState) -> None:
    storage = catalog.storage
    _remove_temporary_files(catalog)
    dropping: list[DatabaseEntry] = []
    for path in documents(storage.databases):
        _load_database(catalog, path, dropping)
    remote_data_dir = catalog.remote_data_dir
    for name in sorted(disk.names(storage.tables), key=lambda name: (len(name), name)):
        if name.isdigit():
            _load_table(catalog, storage.tables / name, remote_data_dir)
    for entry in dropping:
        catalog.unfinished_drops += [table for table in entry.tables.values() if isinstance(table, TableEntry)]
        erase_database(catalog, entry)
        unlist_database(catalog, entry)


def _remove_temporary_files(catalog: CatalogState) -> None:
    # Paths as text, and no look at what has the name of a document: there may be a folder for each of many tables.
    folders = [str(catalog.storage.root)]
    while folders:
        folder = folders.pop()
        for name in disk.names(folder):
            path = f"{folder}/{name}"
            if name.endswith(".tmp") and not disk.is_folder(path):
                disk.unlink_if_there(path)
            elif not name.endswith(_FILE_SUFFIXES) and disk.is_folder(path):
                folders.append(path)


def _load_database(catalog: CatalogState, path: Path, dropping: list[DatabaseEntry]) -> None:
    catalog.counters.at_least("database_id", int(path.stem) + 1 if path.stem.isdigit() else 0)
    try:
        identity, content = catalog.store.read(path)
        entry = DatabaseEntry(
            int(identity["id"]),
            str(identity["name"]),
            DatabaseDescriptor.from_json(content["descriptor"]),
            int(content["created_time"]),
            int(content["modified_time"]),
        )
        if content.get("dropping"):
            dropping.append(entry)
    except DamagedDocumentError as error:
        damage = error.damage
    except _UNREADABLE as error:
        damage = Damage(path, f"cannot be understood: {error}", identity)
    else:
        catalog.databases[entry.name] = entry
        return
    catalog.damages.append(damage)
    if damage.identity and path.stem.isdigit():
        # The name is known, so its tables stay reachable; only the database's own properties are lost.
        name = str(damage.identity.get("name"))
        catalog.databases[name] = DatabaseEntry(int(path.stem), name, DatabaseDescriptor(), 0, 0, damage=damage)


def _load_table(catalog: CatalogState, folder: Path, remote_data_dir: str) -> None:
    table_id = int(folder.name)
    catalog.counters.at_least("table_id", table_id + 1)
    path = folder / TABLE_DOCUMENT
    try:
        identity, content = catalog.store.read(path)
        table_path = TablePath(str(identity["database"]), str(identity["table"]))
        descriptor = TableDescriptor.from_json(content["descriptor"])
        # The newest schema is in the descriptor too.
        newest = content["descriptor"].get("schema")
        schemas = {
            int(schema_id): descriptor.schema if doc == newest else Schema.from_json(doc)
            for schema_id, doc in content["schemas"].items()
        }
        info = TableInfo(
            table_path,
            table_id,
            int(content["schema_id"]),
            descriptor,
            int(content["created_time"]),
            int(content["modified_time"]),
            remote_data_dir,
            int(content.get("bucket_count_epoch", 0)),
        )
        if identity["id"] != table_id or info.schema_id not in schemas:
            raise ValueError("its ids do not agree")
        entry = TableEntry(info, schemas)
        if entry.is_partitioned:
            _load_partitions(catalog, entry, folder / "partitions")
        if disk.exists(f"{folder}/{LAKE_DOCUMENT}"):
            entry.lake = LakeSnapshots.from_json(catalog.store.read(folder / LAKE_DOCUMENT)[1])
    except DamagedDocumentError as error:
        _table_is_damaged(catalog, table_id, error.damage)
        return
    except _UNREADABLE as error:
        _table_is_damaged(catalog, table_id, Damage(path, f"cannot be understood: {error}", identity))
        return
    database = _database_of(catalog, table_path)
    other = database.tables.get(table_path.table_name)
    if other is not None:
        _table_is_damaged(catalog, table_id, Damage(path, f"table {other.table_id} has the same name", identity))
        return
    database.tables[table_path.table_name] = entry
    catalog.tables_by_id[table_id] = entry
    for partition in entry.partitions.values():
        catalog.partitions_by_id[partition.partition_id] = (entry, partition)


def _database_of(catalog: CatalogState, path: TablePath) -> DatabaseEntry:
    database = catalog.databases.get(path.database_name)
    if database is None:
        # Its document is lost or unreadable. The tables are what matters: give them their database back.
        _log.error("database %s has tables but no document; it is created again", path.database_name)
        now_ms = catalog.clock_ms()
        database = DatabaseEntry(
            catalog.counters.take("database_id"), path.database_name, DatabaseDescriptor(), now_ms, now_ms
        )
        catalog.storage.write_database(database)
        catalog.databases[database.name] = database
    return database


def _table_is_damaged(catalog: CatalogState, table_id: int, damage: Damage) -> None:
    catalog.damages.append(damage)
    identity = damage.identity or {}
    if "database" not in identity:
        identity = _identity_of(catalog, table_id)
    named = bool(identity.get("database")) and bool(identity.get("table"))
    path = TablePath(str(identity["database"]), str(identity["table"])) if named else None
    damaged = DamagedTable(table_id, path, damage)
    # Without a name it cannot be reached by clients, but its data is still known to belong to a table.
    catalog.damaged_tables_by_id[table_id] = damaged
    if path is not None:
        _database_of(catalog, path).tables.setdefault(path.table_name, damaged)


def _identity_of(catalog: CatalogState, table_id: int) -> Mapping[str, Any]:
    """The name of a table: from its document, the version before, or the folder of its data; empty if none has it.

    A name that is not known is free, and a second table of that name would hide the rows of this one.
    """
    document = catalog.storage.table_dir(table_id) / TABLE_DOCUMENT
    for path in (document, document.with_name(f"{document.name}.prev")):
        try:
            return catalog.store.read(path)[0]
        except DamagedDocumentError as error:
            if error.damage.identity:
                return error.damage.identity
    data = catalog.data_dir / DATA_FOLDER
    for database in disk.names(data) if disk.is_folder(data) else ():
        for folder in disk.names(data / database):
            if folder.endswith(f"-{table_id}"):
                return {"database": database, "table": folder.removesuffix(f"-{table_id}")}
    return {}


def _load_partitions(catalog: CatalogState, entry: TableEntry, folder: Path) -> None:
    keys = entry.table_info.partition_keys
    for path in documents(folder):
        if not path.stem.isdigit():
            continue
        partition_id = int(path.stem)
        catalog.counters.at_least("partition_id", partition_id + 1)
        damage: Damage | None = None
        created_time = 0
        try:
            identity, content = catalog.store.read(path)
            created_time = int(content["created_time"])
        except DamagedDocumentError as error:
            if error.damage.identity is None:
                # Without its name we could create a second, empty partition over the lost one: the whole table stops.
                raise
            identity, damage = dict(error.damage.identity), error.damage
            catalog.damages.append(damage)
        spec = {key: str(identity["spec"][key]) for key in keys}
        name = partition_name(list(spec.values()))
        count = identity.get("bucket_count")
        if count is None and entry.table_info.bucket_count_epoch:
            raise ValueError(f"partition {partition_id} does not say how many buckets it has")
        partition = PartitionEntry(partition_id, name, spec, created_time, damage, count)
        entry.partitions[name] = partition


def erase_database(catalog: CatalogState, entry: DatabaseEntry) -> None:
    """The disk part of a drop. It is decided by an earlier write, and can be repeated any number of times."""
    for table in tuple(entry.tables.values()):
        if disk.exists(catalog.storage.table_dir(table.table_id)):  # or an attempt before this one has moved it
            catalog.storage.drop_table(table.table_id)
            while catalog.storage.remove_dropped(table.table_id):
                pass
    catalog.storage.delete_database(entry.database_id)


def unlist_database(catalog: CatalogState, entry: DatabaseEntry) -> None:
    """The memory part of a drop."""
    for table in tuple(entry.tables.values()):
        unlist_table(catalog, table)
    catalog.databases.pop(entry.name, None)


def unlist_table(catalog: CatalogState, table: TableEntry | DamagedTable) -> None:
    catalog.tables_by_id.pop(table.table_id, None)
    catalog.damaged_tables_by_id.pop(table.table_id, None)
    if isinstance(table, TableEntry):
        for partition in table.partitions.values():
            catalog.partitions_by_id.pop(partition.partition_id, None)
