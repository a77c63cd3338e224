# SPDX-License-Identifier: Apache-2.0
"""Copying a table between servers: description and rows, resumable, and kept in sync if wanted.

A primary-key table is copied as its current rows, then as the changes since the copy began. Both can be applied twice
without harm, so a copy that was killed just goes on. A log table is copied bucket by bucket in its order. If source
and target have the same buckets (a bucket key, or one bucket), the target itself says how far each bucket came, and a
restart neither loses nor repeats a row. Otherwise rows since the last checkpoint may be there twice after a kill.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.db.changes import Position
from fluss.db.figures import bucket_offsets
from fluss.db.files import json_lines
from fluss.db.likes import draft_like
from fluss.errors import InvalidArgumentError
from fluss.metadata import OffsetSpec, TableBucket

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Table
    from fluss.db.changes import ChangeBatch

_SUM_BITS = 128


@dataclass
class CopyState:
    """How far a copy came, as it is stored between two runs."""

    source_id: int
    target_id: int
    position: str
    """Where in the log of the source the changes begin that the target may lack."""
    snapshot_done: bool = False
    starts: dict[str, list[int]] = field(default_factory=dict)
    """By bucket (``partition/number``): the offsets of source and target at the beginning."""


@dataclass
class CopyReport:
    """What a copy has done so far."""

    table: str
    rows: int = 0
    changes: int = 0
    resumed: bool = False


@dataclass(frozen=True)
class Fingerprint:
    """The number of rows and a checksum that does not depend on their order."""

    rows: int
    checksum: str


def fingerprint(table: Table[Any]) -> Fingerprint:
    """Read a table and sum the hashes of its rows.

    Example:
        assert fingerprint(here.table("orders")) == fingerprint(there.table("orders"))
    """
    rows = total = 0
    for batch in table.to_reader():
        for line in json_lines(batch).splitlines():
            total += int.from_bytes(hashlib.blake2b(line.encode(), digest_size=_SUM_BITS // 8).digest(), "big")
        rows += batch.num_rows
    return Fingerprint(rows, f"{total % (1 << _SUM_BITS):032x}")


class TableCopy:
    """Copies one table.

    Example:
        TableCopy(here, "orders", there, "orders").run()
    """

    def __init__(
        self,
        source: Database,
        name: str,
        target: Database,
        target_name: str,
        *,
        checkpoint: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._source, self._target = source, target
        self.source = source.table(name)
        draft = draft_like(source, target_name, name)
        draft.properties = {key: value for key, value in draft.properties.items() if not _is_of_a_lake(key)}
        existed = target_name in target
        self.target = draft.create(target, exist_ok=True)
        self._check()
        self._checkpoint = checkpoint
        self._progress = progress or (lambda rows: None)
        self.report = CopyReport(self.source.name)
        self._exact = self._same_buckets()
        self.state = self._load(existed)

    def run(self, *, follow: bool = False) -> CopyReport:
        """Copy everything there is now; with `follow`, go on until the caller is interrupted."""
        if self.source.primary_key and not self.state.snapshot_done:
            for batch in self.source.to_reader():
                self._write(batch)
            self.state.snapshot_done = True
            self._save()
        self._apply(stop_at_end=not follow)
        return self.report

    def _write(self, batch: pa.RecordBatch) -> None:
        write = self.target.upsert if self.target.primary_key else self.target.append
        self.report.rows += write(batch).rows
        self._progress(batch.num_rows)

    def _apply(self, *, stop_at_end: bool) -> None:
        start = Position.parse(self.state.position)
        if self._exact and not self.source.primary_key:
            start = self._exact_position(start)
        with self.source.follow(start, batches=True, stop_at_end=stop_at_end) as found:
            for changes in found:
                if self.source.primary_key:
                    self._change(changes)
                else:
                    self._write(changes.batch)
                self.state.position = str(changes.position)
                self._save()

    def _change(self, changes: ChangeBatch) -> None:
        """Apply changes in their order: those that follow each other and do the same go together."""
        for delete, first, last in _runs([kind == "delete" for kind in changes.kinds]):
            batch = changes.batch.slice(first, last - first)
            kept = [index for index in range(first, last) if changes.kinds[index] != "update_before"]
            if len(kept) < last - first:
                batch = changes.batch.take(pa.array(kept, pa.int64()))
            if not batch.num_rows:
                continue
            if delete:
                self.target.delete(pa.Table.from_batches([batch.select(self.source.primary_key)]))
            else:
                self.target.upsert(batch)
            self.report.changes += batch.num_rows
            self._progress(batch.num_rows)

    # -- where to go on -------------------------------------------------------------------------------------------

    def _same_buckets(self) -> bool:
        here, there = self.source.info, self.target.info
        return here.num_buckets == there.num_buckets and (here.num_buckets == 1 or bool(list(here.bucket_keys)))

    def _exact_position(self, stored: Position) -> Position:
        """The offsets of the source that follow what the target has."""
        ends = {
            _key(name, bucket): end
            for (name, bucket), end in self._offsets(self._target, self.target, "latest").items()
        }
        offsets: dict[TableBucket, int] = {}
        for (name, bucket), earliest in self._offsets(self._source, self.source, "earliest").items():
            source_start, target_start = self.state.starts.get(_key(name, bucket), [earliest, 0])
            offsets[bucket] = source_start + ends.get(_key(name, bucket), target_start) - target_start
        return Position(stored.table_id, offsets)

    @staticmethod
    def _offsets(db: Database, table: Table[Any], at: str) -> dict[tuple[str | None, TableBucket], int]:
        return bucket_offsets(db, table, OffsetSpec(at))

    def _load(self, existed: bool) -> CopyState:
        ids = self.source.info.table_id, self.target.info.table_id
        if self._checkpoint is not None and os.path.exists(self._checkpoint):
            try:
                with open(self._checkpoint, encoding="utf-8") as file:
                    state = CopyState(**json.load(file))
            except (ValueError, TypeError):
                raise InvalidArgumentError(f"'{self._checkpoint}' is not a checkpoint of a copy") from None
            if (state.source_id, state.target_id) != ids:
                raise InvalidArgumentError(
                    f"the checkpoint '{self._checkpoint}' belongs to other tables; remove it to start anew"
                )
            self.report.resumed = True
            return state
        if existed and self.target.count():
            raise InvalidArgumentError(
                f"table {self.target.name} has rows already; drop it, choose another name, or go on with its checkpoint"
            )
        at = "latest" if self.source.primary_key else "earliest"
        sources = self._offsets(self._source, self.source, at)
        targets = {_key(name, b): end for (name, b), end in self._offsets(self._target, self.target, "latest").items()}
        position = Position(ids[0], {bucket: offset for (_, bucket), offset in sources.items()})
        starts = {_key(name, b): [offset, targets.get(_key(name, b), 0)] for (name, b), offset in sources.items()}
        state = CopyState(*ids, str(position), starts=starts)
        self.state = state
        self._save()
        return state

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        partial = f"{self._checkpoint}.partial"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(self.state.__dict__, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self._checkpoint)

    def _check(self) -> None:
        here, there = self.source.info, self.target.info
        for what, left, right in (
            ("columns", list(map(_column, here.schema.columns)), list(map(_column, there.schema.columns))),
            ("primary key", list(here.primary_keys), list(there.primary_keys)),
            ("partition columns", list(here.partition_keys), list(there.partition_keys)),
        ):
            if left != right:
                raise InvalidArgumentError(
                    f"table {self.target.name} exists with other {what} than {self.source.name}; drop it, or choose "
                    "another name"
                )


def _column(column: Any) -> tuple[str, str]:
    return column.name, str(column.data_type)


def _key(partition: str | None, bucket: TableBucket) -> str:
    return f"{'' if partition is None else partition}/{bucket.bucket_id}"


def _is_of_a_lake(key: str) -> bool:
    """A lake belongs to its cluster: a copy that writes to the same one would damage it."""
    return key.startswith(("table.datalake.", "paimon.", "iceberg."))


def _runs(flags: list[bool]) -> Iterator[tuple[bool, int, int]]:
    first = 0
    for index in range(1, len(flags) + 1):
        if index == len(flags) or flags[index] != flags[first]:
            yield flags[first], first, index
            first = index
