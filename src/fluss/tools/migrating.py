# SPDX-License-Identifier: Apache-2.0
"""Moving all tables to another server while they are written to, and the positions of their readers with them.

Each table is a `TableCopy` with its history. Rounds copy what is new until one takes less than a second; then the
writers are stopped, a last round copies the rest, and they start again on the target. Offsets differ there: the
checkpoints of the copies say which belong together, and `PositionMap` translates positions by them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss.db.changes import Position
from fluss.db.internals import admin_call, bucket_rows
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import OffsetSpec, TableBucket
from fluss.metadata.group_rows import FULL
from fluss.metadata.path import parse_bucket
from fluss.tools.copying import Fingerprint, TableCopy, bucket_name, check_target, fingerprint_of
from fluss.tools.files import write_json
from fluss.tools.groups import group_offsets, place_group
from fluss.tools.status import all_tables, bucket_offsets

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Table

POSITIONS_FILE = "positions.json"
LAG_S_MAX = 1.0
_VERSION = 1
_THREADS = 8
_LAST_ROUNDS_MAX = 5

Offsets = dict[str, int]
"""By bucket, as checkpoints name it."""


@dataclass(frozen=True)
class TablePlan:
    """What becomes of a table."""

    table: str
    changes: int
    """How many are in its log."""
    history: bool
    """Whether all changes are copied, or the current rows and what changes from now on."""
    problem: str | None = None


class Migration:
    """Moves tables. Everything it knows is in its folder: another one with the same folder goes on.

    Example:
        work = Migration(here, there, "migration")
        work.copy()
        while work.catch_up() > 1: ...
        # stop the writers
        work.finish()
    """

    def __init__(
        self,
        source: Database,
        target: Database,
        folder: str,
        tables: Sequence[str] | None = None,
        *,
        renumber: bool = False,
    ) -> None:
        self._source, self._target = source, target
        self._folder = Path(folder)
        self._tables = tables
        self._renumber = renumber
        self.copies: dict[str, TableCopy] = {}

    def names(self) -> list[str]:
        """List the tables to move: the given ones, or all there are now."""
        return all_tables(self._source) if self._tables is None else list(self._tables)

    def plan(self) -> list[TablePlan]:
        """Look at each table, and find what cannot be moved. Changes nothing."""
        return [self._plan(name) for name in self.names()]

    def copy(self, progress: Callable[[str], Callable[[int], None]] | None = None) -> None:
        """Create tables that are not there yet on the target, and copy what they have."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in self.names():
            if name not in self.copies:
                self._create_database(name.split(".", 1)[0])
                self.copies[name] = TableCopy(
                    self._source,
                    name,
                    self._target,
                    name,
                    checkpoint=str(self._checkpoint(name)),
                    renumber=self._renumber,
                    history=True,
                    progress=None if progress is None else progress(name),
                )
                self.copies[name].run()

    def catch_up(self) -> float:
        """Copy what is new, of new tables too; returns the seconds it took, which is how far the target is behind."""
        started = time.monotonic()
        self.copy()
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda copy: copy.run(), self.copies.values()))
        return time.monotonic() - started

    def finish(self) -> int:
        """Copy the rest after the writers were stopped, and write the positions; returns the number of groups moved.

        Raises:
            FlussError: A table is still written to, or was altered.
        """
        for _ in range(_LAST_ROUNDS_MAX):
            self.catch_up()
            if not (written := self.written()):
                break
        else:
            raise FlussError(f"{', '.join(written)}: still written to. Stop the writers, and run this again")
        for name, copy in self.copies.items():
            if self._source.table(name).info.schema_id != copy.source.info.schema_id:
                raise FlussError(f"table {name} was altered meanwhile: drop it on the target, and migrate it again")
        tables = {name: _translation(copy) for name, copy in self.copies.items()}
        write_json(self._folder / POSITIONS_FILE, {"version": _VERSION, "tables": tables})
        return self._move_groups(PositionMap(tables))

    def written(self) -> list[str]:
        """List the tables that have changes which are not on the target."""
        return [name for name, copy in self.copies.items() if copy.behind()]

    def verify(self, name: str) -> bool:
        """Compare the rows of both sides as of the last checkpoint, whatever is written to the target since.

        Counts and checksums are compared by bucket. Where the two sides choose buckets differently, as for tables
        without a bucket key, they are compared by partition.
        """
        copy = self.copies[name]
        here = _fingerprints(self._source, copy.source, Position.parse(copy.state.position).offsets)
        buckets = _buckets(self._target, copy.target)
        ends = {bucket: copy.state.target_ends.get(key, 0) for key, bucket in buckets.items()}
        there = _fingerprints(self._target, copy.target, ends)
        return here == there or _by_partition(here) == _by_partition(there)

    def _plan(self, name: str) -> TablePlan:
        table = self._source.table(name)
        first = bucket_offsets(self._source, table, OffsetSpec.earliest())
        last = bucket_offsets(self._source, table, OffsetSpec.latest())
        problem = None
        try:
            check_target(table, self._target, name, renumber=self._renumber)
            if not self._checkpoint(name).exists() and name in self._target and self._target.table(name).count():
                problem = f"table {name} has rows on the target, and '{self._folder}' has no checkpoint of it"
        except FlussError as error:
            problem = error.message
        changes = sum(end - first.get(key, 0) for key, end in last.items())
        return TablePlan(name, changes, not any(first.values()), problem)

    def _checkpoint(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _create_database(self, name: str) -> None:
        if name not in self._target.databases():
            found = admin_call(self._source, lambda admin: admin.get_database_info(name)).database_descriptor
            admin_call(self._target, lambda admin: admin.create_database(name, found, True))

    def _move_groups(self, positions: PositionMap) -> int:
        moved = 0
        for (group, name), offsets in group_offsets(self._source).items():
            if name in self.copies:
                place_group(self._target, group, self.copies[name].target, positions.offsets(offsets))
                moved += 1
        return moved


class PositionMap:
    """Where readers of the source go on on the target.

    Example:
        positions = PositionMap.load("migration/positions.json")
        for change in orders.follow(start=positions.position(stored_text)):
            ...
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables = {entry["source"]["id"]: entry for entry in tables.values()}

    @staticmethod
    def load(path: str | os.PathLike[str]) -> PositionMap:
        """Read the file that ``fluss migrate`` wrote.

        Example:
            positions = PositionMap.load("migration/positions.json")
        """
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document.get("version") != _VERSION:
            raise InvalidArgumentError(f"'{path}' is of version {document.get('version')}, not {_VERSION}")
        return PositionMap(document["tables"])

    def position(self, position: Position | str) -> Position:
        """Translate a position, or its text. What was handled since the checkpoint before it comes again.

        Example:
            orders.follow(start=positions.position(stored_text))
        """
        given = Position.parse(position) if isinstance(position, str) else position
        target_id = self._entry(given.table_id)["target"]["id"]
        offsets = {} if given.full else self.offsets(dict(given.offsets))
        if given.full or FULL in offsets.values():
            return Position(target_id, {}, full=True)
        return Position(target_id, offsets)

    def starting_offsets(self, checkpoint: str | os.PathLike[str]) -> str:
        """Translate the checkpoint of a Spark stream of one table to the option ``startingOffsets`` of a new one.

        Example:
            stream.option("startingOffsets", positions.starting_offsets("checkpoints/copy"))
        """
        folder = Path(checkpoint)
        batches = [int(file.name) for file in folder.glob("commits/*") if file.name.isdecimal()]
        if not batches:
            raise InvalidArgumentError(f"'{folder}' is not the checkpoint of a stream that has read something")
        document = json.loads((folder / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()[2])
        table_id = document["table_id"]
        found = self.offsets({parse_bucket(table_id, key): end for key, end in document["offsets"].items()})
        if FULL in found.values():
            return "full"
        names = self._entry(table_id)["target"]["partitions"]
        by_partition: dict[str, dict[str, int]] = {}
        for bucket, offset in found.items():
            by_partition.setdefault(names.get(str(bucket.partition_id), ""), {})[str(bucket.bucket_id)] = offset
        return json.dumps(by_partition.get("", by_partition))

    def offsets(self, offsets: Mapping[TableBucket, int]) -> dict[TableBucket, int]:
        """Translate offsets of buckets. Those of a partition go together; a table with keys may need `FULL`.

        Partitions that are not given are left out: all of them is new.
        """
        if not offsets:
            return {}
        entry = self._entry(next(iter(offsets)).table_id)
        names = entry["source"]["partitions"]
        read_by_partition: dict[str, Offsets] = {}
        for bucket, offset in offsets.items():
            name = names.get(str(bucket.partition_id))
            if name is not None or bucket.partition_id is None:
                read_by_partition.setdefault(name or "", {})[bucket_name(name, bucket)] = offset
        ids = {name: int(partition_id) for partition_id, name in entry["target"]["partitions"].items()}
        table_id, found = entry["target"]["id"], {}
        for partition, read in read_by_partition.items():
            for name, offset in _go_on(entry, partition, read).items():
                found[TableBucket(table_id, int(name.rpartition("/")[2]), ids.get(partition))] = offset
        return found

    def _entry(self, table_id: int) -> Any:
        if table_id not in self._tables:
            raise InvalidArgumentError(f"the position is one of table id {table_id}, which was not migrated")
        return self._tables[table_id]


def _go_on(entry: Mapping[str, Any], partition: str, read: Offsets) -> Offsets:
    """The offsets of a partition on the target up to which a reader has certainly read."""
    points: list[tuple[Offsets, Offsets]] = [
        (_of(partition, source), _of(partition, target)) for source, target in entry["points"]
    ]
    reached = [target for source, target in points if all(read.get(key, 0) >= end for key, end in source.items())]
    if not reached and entry["keyed"]:
        return dict.fromkeys(points[-1][1], FULL)  # the current rows stand for changes that were not copied
    # A log table has lost what was before its first point.
    known = reached[-1] if reached else points[0][1]
    return {key: known.get(key, 0) for key in points[-1][1]}


def _of(partition: str, offsets: Offsets) -> Offsets:
    """The offsets of the buckets of one partition."""
    return {key: offset for key, offset in offsets.items() if key.rpartition("/")[0] == partition}


def _translation(copy: TableCopy) -> dict[str, Any]:
    """What `PositionMap` needs of a table: its ids on both sides, and offsets that belong together."""
    sides = {}
    for side, table in (("source", copy.source), ("target", copy.target)):
        partitions = {str(one.partition_id): one.partition_name for one in table.partitions()}
        sides[side] = {"id": table.info.table_id, "partitions": partitions}
    return {**sides, "keyed": bool(copy.source.primary_key), "points": copy.state.points}


def _buckets(db: Database, table: Table[Any]) -> dict[str, TableBucket]:
    found = bucket_offsets(db, table, OffsetSpec.latest())
    return {bucket_name(partition, bucket): bucket for partition, bucket in found}


def _fingerprints(db: Database, table: Table[Any], ends: Mapping[TableBucket, int]) -> dict[str, Fingerprint]:
    """Of each bucket that has rows, as of an offset."""
    names = {bucket: name for name, bucket in _buckets(db, table).items()}
    found = {
        name: fingerprint_of(table, bucket_rows(db, table, bucket, ends[bucket]))
        for bucket, name in names.items()
        if ends.get(bucket)
    }
    return {name: one for name, one in found.items() if one.rows}


def _by_partition(found: Mapping[str, Fingerprint]) -> dict[str, Fingerprint]:
    sums: dict[str, Fingerprint] = {}
    for name, one in found.items():
        partition = name.rpartition("/")[0]
        sums[partition] = sums[partition] + one if partition in sums else one
    return sums
