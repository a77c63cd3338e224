# SPDX-License-Identifier: Apache-2.0
"""Backups of tables while the server runs: a folder of Arrow files and a manifest that makes it complete.

Each table is read at one point in time, with all rows that were acknowledged before. The manifest is written last. It
has the complete descriptor and the partitions of every table, and a checksum of every file: a backup that was
interrupted has none, and cannot be restored by mistake. A restore compares what it made with the manifest. Rows are
kept, the history of changes and the offsets are not.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss._version import VERSION
from fluss.db.internals import admin_call
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import DatabaseDescriptor, TableDescriptor
from fluss.metadata.group_rows import GROUPS_TABLE
from fluss.tools.drafts import TableDraft, check_numbers, check_partitions, descriptor_of
from fluss.tools.files import export_table, private_file, write_json
from fluss.tools.loading import Load
from fluss.tools.status import all_tables

if TYPE_CHECKING:
    from fluss.db.blocking import Database

MANIFEST = "manifest.json"
_FORMAT = 2
"""Format 1 had no aggregation functions, auto-increment columns and empty partitions."""
_READ_BYTES = 1 << 20

Progress = Callable[[str, int], None]
"""Called with the name of a table and the rows done of it."""


@dataclass(frozen=True)
class BackedUp:
    """One table of a backup."""

    table: str
    rows: int
    size_bytes: int


def write_backup(
    db: Database, folder: str, tables: Sequence[str] | None = None, progress: Progress | None = None
) -> list[BackedUp]:
    """Write tables, all of them but the positions of groups by default, to an empty folder."""
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidArgumentError(f"'{folder}' is not an empty folder: choose another")
    opened = [db.table(name) for name in tables or all_tables(db)]  # a wrong name ends it before anything is written
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    done, entries = [], []
    for number, table in enumerate(opened):
        file = place / f"{number:04d}.arrow"
        name = table.name
        partitions = [one.partition_spec.spec_map for one in table.partitions()]
        with open(file, "xb", opener=private_file) as out:
            rows = export_table(
                table,
                out,
                kind="arrow",
                progress=None if progress is None else functools.partial(progress, name),
            )
            out.flush()
            os.fsync(out.fileno())
        size = file.stat().st_size
        entry = {"name": name, "descriptor": descriptor_of(table.info).to_json(), "partitions": partitions}
        entries.append({**entry, "file": file.name, "rows": rows, "bytes": size, "sha256": _checksum(file)})
        done.append(BackedUp(name, rows, size))
    manifest = {
        "format": _FORMAT,
        "version": VERSION,
        "created": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "databases": {name: _database(db, name).to_json() for name in sorted(db.databases())},
        "tables": entries,
    }
    write_json(place / MANIFEST, manifest)
    return done


def read_manifest(folder: str) -> dict[str, Any]:
    """Read the manifest of a backup, and compare the files with their checksums."""
    path = Path(folder) / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgumentError(f"'{folder}' is not a complete backup: it has no {MANIFEST}") from None
    except ValueError:
        raise InvalidArgumentError(f"'{path}' is damaged: it is not JSON") from None
    if manifest.get("format") != _FORMAT:
        raise InvalidArgumentError(f"'{path}' is of format {manifest.get('format')}; this version reads {_FORMAT}")
    for entry in manifest["tables"]:
        file = Path(folder) / entry["file"]
        if not file.is_file() or _checksum(file) != entry["sha256"]:
            raise InvalidArgumentError(f"'{file}' of table {entry['name']} is damaged: its checksum is wrong")
    return manifest


def restore_backup(
    db: Database,
    folder: str,
    tables: Sequence[str] | None = None,
    progress: Progress | None = None,
    *,
    renumber: bool = False,
) -> list[BackedUp]:
    """Create the tables of a backup, all of them by default, with their rows. None of them may exist.

    Args:
        renumber: Give the rows new numbers in auto-increment columns. No client can write the old ones, so that a table
            with such a column and with rows is refused otherwise.
    """
    manifest = read_manifest(folder)
    known = {entry["name"]: entry for entry in manifest["tables"]}
    missing = [name for name in tables or () if name not in known]
    if missing:
        raise InvalidArgumentError(f"the backup has no table {missing[0]}; it has {', '.join(known)}")
    # Earlier versions put the positions of groups into a backup of everything.
    names = tables or [name for name in known if name != str(GROUPS_TABLE)]
    drafts = {name: TableDraft(name, TableDescriptor.from_json(known[name]["descriptor"])) for name in names}
    for name, draft in drafts.items():
        if name in db:
            raise InvalidArgumentError(f"table {name} exists already; drop it, or name the tables to restore")
        if known[name]["rows"] and not renumber:
            check_numbers(name, draft.descriptor)
    for name in {name.rpartition(".")[0] for name in drafts} if tables else manifest["databases"]:
        descriptor = DatabaseDescriptor.from_json(manifest["databases"][name])
        admin_call(db, lambda admin: admin.create_database(name, descriptor, True))  # noqa: B023 (called at once)
    return [_restore_table(db, folder, known[name], draft, progress) for name, draft in drafts.items()]


def _restore_table(
    db: Database, folder: str, entry: dict[str, Any], draft: TableDraft, progress: Progress | None
) -> BackedUp:
    table = draft.create(db)
    for spec in entry["partitions"]:
        table.add_partition(spec, exist_ok=True)
    file = str(Path(folder) / entry["file"])
    advance = None if progress is None else functools.partial(progress, draft.name)
    written = Load(db, table, [file], exact=True).run(advance).written
    check_partitions(table, entry["partitions"])
    if not written == entry["rows"] == table.count():
        raise FlussError(
            f"table {draft.name} has {table.count()} rows after {written} of the {entry['rows']} of its backup were "
            "written: was something else written to it? Drop it, and restore it again"
        )
    return BackedUp(draft.name, written, entry["bytes"])


def _database(db: Database, name: str) -> DatabaseDescriptor:
    return admin_call(db, lambda admin: admin.get_database_info(name)).database_descriptor


def _checksum(file: Path) -> str:
    found = hashlib.sha256()
    with open(file, "rb") as source:
        while data := source.read(_READ_BYTES):
            found.update(data)
    return found.hexdigest()
