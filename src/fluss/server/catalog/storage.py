# SPDX-License-Identifier: Apache-2.0
"""Where each object of the catalog lies on disk, and how it is written.

    catalog/
      counters.doc  configs.doc  acls.doc  server-tags.doc  removals.doc
      databases/<database id>.doc
      tables/<table id>/table.doc              descriptor and every schema
      tables/<table id>/lake.doc               lake snapshots
      tables/<table id>/partitions/<id>.doc
      producers/<hash of the id>.doc
      staging/  dropped/                       half-made and half-deleted folders; emptied at start

Folders are named by id, because ids are never reused and file systems differ about upper and lower case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fluss.server import disk
from fluss.server.catalog.documents import Damage, DamagedDocumentError, DocumentStore

if TYPE_CHECKING:
    from fluss.server.catalog.entries import DatabaseEntry, PartitionEntry, TableEntry


T = TypeVar("T")

TABLE_DOCUMENT = "table.doc"
LAKE_DOCUMENT = "lake.doc"
DATA_FOLDER = "tables"
"""The folder beside the catalog with the rows: ``<database>/<table>-<table id>`` for each table."""
_REMOVED_AT_ONCE = 500
"""Files that are deleted before other changes of the catalog have the thread."""


def documents(folder: Path) -> list[Path]:
    """The documents in a folder, those with small numbers as names first."""
    found = [folder / name for name in disk.names(folder) if name.endswith(".doc")] if disk.is_folder(folder) else []
    return sorted(found, key=lambda path: (len(path.name), path.name))


class CatalogStorage:
    """Blocking writes of catalog objects; the caller is the catalog's own thread (or start-up)."""

    def __init__(self, store: DocumentStore) -> None:
        self.store = store
        self.root = store.root
        self.databases = self.root / "databases"
        self.tables = self.root / "tables"
        self.producers = self.root / "producers"
        self.staging = self.root / "staging"
        self.dropped = self.root / "dropped"

    def prepare(self) -> None:
        for folder in (self.databases, self.tables, self.producers, self.staging, self.dropped):
            disk.make_folders(folder)
        for folder in (self.staging, self.dropped):
            for name in disk.names(folder):
                disk.remove_tree(folder / name)
        disk.sync_folder(self.root)

    def object_paths(self) -> Iterator[Path]:
        yield from documents(self.databases)
        yield from (self.tables / name for name in disk.names(self.tables))

    def read(self, name: str, parse: Callable[[dict[str, Any]], T]) -> tuple[T | None, Damage | None]:
        """Read one of the documents of which there is only one; None if it is not there, or damaged."""
        path = self.root / f"{name}.doc"
        if not disk.exists(path):
            return None, None
        try:
            return parse(self.store.read(path)[1]), None
        except DamagedDocumentError as error:
            return None, error.damage
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return None, Damage(path, f"cannot be understood: {error}")

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """One of the documents of which there is only one."""
        self.store.write(self.root / f"{name}.doc", {"kind": name}, content)

    # ------------------------------------------------------------------ databases

    def database_path(self, database_id: int) -> Path:
        return self.databases / f"{database_id}.doc"

    def write_database(self, entry: DatabaseEntry, *, dropping: bool = False) -> None:
        content: dict[str, Any] = {
            "descriptor": entry.descriptor.to_json(),
            "created_time": entry.created_time,
            "modified_time": entry.modified_time,
        }
        if dropping:
            content["dropping"] = True
        self.store.write(
            self.database_path(entry.database_id),
            {"kind": "database", "id": entry.database_id, "name": entry.name},
            content,
        )

    def delete_database(self, database_id: int) -> None:
        self.store.delete(self.database_path(database_id))

    # ------------------------------------------------------------------ tables

    def table_dir(self, table_id: int) -> Path:
        return self.tables / str(table_id)

    def _table_document(self, entry: TableEntry) -> tuple[dict[str, Any], dict[str, Any]]:
        info = entry.table_info
        identity = {
            "kind": "table",
            "id": info.table_id,
            "database": info.table_path.database_name,
            "table": info.table_path.table_name,
        }
        content = {
            "descriptor": info.descriptor.to_json(),
            "schema_id": info.schema_id,
            "schemas": {str(schema_id): schema.to_json() for schema_id, schema in entry.schemas.items()},
            "created_time": info.created_time,
            "modified_time": info.modified_time,
            "bucket_count_epoch": info.bucket_count_epoch or 0,
        }
        return identity, content

    def create_table(self, entry: TableEntry) -> None:
        staged = self.staging / str(entry.table_id)
        disk.remove_tree(staged)
        disk.make_folders(staged / "partitions")
        self.store.write(staged / TABLE_DOCUMENT, *self._table_document(entry))
        self.store.publish_dir(staged, self.table_dir(entry.table_id))

    def write_table(self, entry: TableEntry) -> None:
        self.store.write(self.table_dir(entry.table_id) / TABLE_DOCUMENT, *self._table_document(entry))

    def drop_table(self, table_id: int) -> None:
        """Take a table out of the catalog; `remove_dropped` deletes its files."""
        self.store.retire_dir(self.table_dir(table_id), self.dropped / str(table_id))

    def remove_dropped(self, table_id: int) -> bool:
        """Delete some files of a dropped table; True if there are more. The next start deletes what a crash leaves."""
        folder = self.dropped / str(table_id)
        partitions = disk.names(folder / "partitions")
        if len(partitions) <= _REMOVED_AT_ONCE:
            disk.remove_tree(folder)
            return False
        for name in partitions[:_REMOVED_AT_ONCE]:
            disk.unlink_if_there(folder / "partitions" / name)
        return True

    def write_lake(self, table_id: int, content: Mapping[str, Any]) -> None:
        self.store.write(self.table_dir(table_id) / LAKE_DOCUMENT, {"kind": "lake", "table_id": table_id}, content)

    # ------------------------------------------------------------------ partitions

    def partition_path(self, table_id: int, partition_id: int) -> Path:
        return self.table_dir(table_id) / "partitions" / f"{partition_id}.doc"

    def write_partition(self, table_id: int, partition: PartitionEntry) -> None:
        identity = {
            "kind": "partition",
            "id": partition.partition_id,
            "table_id": table_id,
            "spec": dict(partition.spec),
            "bucket_count": partition.bucket_count,
        }
        path = self.partition_path(table_id, partition.partition_id)
        self.store.write(path, identity, {"created_time": partition.created_time})

    def drop_partition(self, table_id: int, partition_id: int) -> None:
        self.store.delete(self.partition_path(table_id, partition_id))
