# SPDX-License-Identifier: Apache-2.0
"""Backups of tables while the server runs: a folder of Arrow files and a manifest that makes it complete.

Each table is read at one point in time, with all rows that were acknowledged before. The manifest is written last and
has a checksum of every file: a backup that was interrupted has none, and cannot be restored by mistake. Rows are kept,
the history of changes and the offsets are not.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss._version import VERSION
from fluss.errors import InvalidArgumentError
from fluss.metadata import Column
from fluss.metadata.type_text import parse_data_type
from fluss.tools.drafts import TableDraft, draft_like
from fluss.tools.exporting import export_table
from fluss.tools.loading import Load

if TYPE_CHECKING:
    from fluss.db.blocking import Database

MANIFEST = "manifest.json"
_FORMAT = 1
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
    """Write tables, all of them by default, to an empty folder.

    Example:
        write_backup(db, "backup-2026-07-01")
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidArgumentError(f"'{folder}' is not an empty folder: choose another")
    names = list(tables or [f"{name}.{table}" for name in sorted(db.databases()) for table in sorted(db.tables(name))])
    opened = [db.table(name) for name in names]  # a wrong name ends it before anything is written
    place.mkdir(parents=True, exist_ok=True)
    done, entries = [], []
    for number, table in enumerate(opened):
        file = place / f"{number:04d}.arrow"
        name = table.name
        rows = export_table(
            table,
            str(file),
            kind="arrow",
            progress=lambda count, name=name: (progress or _nothing)(name, count),  # type: ignore[misc]
        )
        draft = draft_like(db, name, name)
        size = file.stat().st_size
        entries.append({**_document(draft), "file": file.name, "rows": rows, "bytes": size, "sha256": _checksum(file)})
        done.append(BackedUp(name, rows, size))
    manifest = {
        "format": _FORMAT,
        "version": VERSION,
        "created": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "databases": sorted(db.databases()),
        "tables": entries,
    }
    partial = place / f"{MANIFEST}.partial"
    with open(partial, "w", encoding="utf-8") as out:
        json.dump(manifest, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    os.replace(partial, place / MANIFEST)
    return done


def read_manifest(folder: str, *, check: bool = True) -> dict[str, Any]:
    """Read the manifest of a backup, and compare the files with their checksums.

    Example:
        [entry["name"] for entry in read_manifest("backup-2026-07-01")["tables"]]
    """
    path = Path(folder) / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgumentError(f"'{folder}' is not a complete backup: it has no {MANIFEST}") from None
    except ValueError:
        raise InvalidArgumentError(f"'{path}' is damaged: it is not JSON") from None
    if manifest.get("format") != _FORMAT:
        raise InvalidArgumentError(f"'{path}' is of format {manifest.get('format')}; this version reads {_FORMAT}")
    for entry in manifest["tables"] if check else ():
        file = Path(folder) / entry["file"]
        if not file.is_file() or _checksum(file) != entry["sha256"]:
            raise InvalidArgumentError(f"'{file}' of table {entry['name']} is damaged: its checksum is wrong")
    return manifest


def restore_backup(
    db: Database, folder: str, tables: Sequence[str] | None = None, progress: Progress | None = None
) -> list[BackedUp]:
    """Create the tables of a backup, all of them by default, with their rows. None of them may exist.

    Example:
        restore_backup(db, "backup-2026-07-01")
    """
    manifest = read_manifest(folder)
    known = {entry["name"]: entry for entry in manifest["tables"]}
    missing = [name for name in tables or () if name not in known]
    if missing:
        raise InvalidArgumentError(f"the backup has no table {missing[0]}; it has {', '.join(known)}")
    chosen = [known[name] for name in (tables or known)]
    existing = [entry["name"] for entry in chosen if entry["name"] in db]
    if existing:
        raise InvalidArgumentError(f"table {existing[0]} exists already; drop it, or name the tables to restore")
    if not tables:
        for name in manifest["databases"]:
            db.create_database(name, exist_ok=True)
    done = []
    for entry in chosen:
        name = entry["name"]
        table = _draft(entry).create(db)
        load = Load(
            db,
            table,
            [str(Path(folder) / entry["file"])],
            progress=lambda count, name=name: (progress or _nothing)(name, count),  # type: ignore[misc]
        )
        written = load.run().written
        if written != entry["rows"]:
            raise InvalidArgumentError(f"{written} of {entry['rows']} rows of table {name} were restored")
        done.append(BackedUp(name, written, entry["bytes"]))
    return done


def _nothing(name: str, rows: int) -> None:
    return None


def _document(draft: TableDraft) -> dict[str, Any]:
    columns = [{"name": one.name, "type": str(one.data_type), "comment": one.comment} for one in draft.columns]
    names = ("name", "primary_key", "partition_by", "buckets", "bucket_key", "properties", "comment")
    return {**{name: getattr(draft, name) for name in names}, "columns": columns}


def _draft(entry: dict[str, Any]) -> TableDraft:
    columns = [Column(one["name"], parse_data_type(one["type"]), one["comment"]) for one in entry["columns"]]
    names = ("primary_key", "partition_by", "buckets", "bucket_key", "properties", "comment")
    return TableDraft(entry["name"], columns, **{name: entry[name] for name in names})


def _checksum(file: Path) -> str:
    found = hashlib.sha256()
    with open(file, "rb") as source:
        while data := source.read(_READ_BYTES):
            found.update(data)
    return found.hexdigest()
