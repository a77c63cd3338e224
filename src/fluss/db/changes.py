# SPDX-License-Identifier: Apache-2.0
"""What following a table gives: changes, batches of changes, and positions to go on from."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import pyarrow as pa

from fluss.client.scan import RecordBatch
from fluss.client.scan.records import row_offsets, rows_to_python
from fluss.db.models import RowModel
from fluss.errors import InvalidArgumentError
from fluss.metadata import DataType, TableBucket
from fluss.metadata.path import bucket_text, parse_bucket

T = TypeVar("T")

Kind = Literal["append", "insert", "update_before", "update_after", "delete"]
PairKind = Literal["append", "insert", "update", "delete"]

KINDS: tuple[Kind, ...] = ("append", "insert", "update_before", "update_after", "delete")
"""The kinds of changes, by the number of their `ChangeType`."""

_VERSION = 1
_CHANGES_AT_ONCE = 500


@dataclass(frozen=True)
class Position:
    """How far a table was read: the next offset of every bucket. Its text can be stored, and read again.

    Example:
        text = str(change.position)
        for change in orders.follow(start=fluss.Position.parse(text)):
            ...
    """

    table_id: int
    offsets: Mapping[TableBucket, int]
    full: bool = False
    """Whether it lies within the current rows that `start="full"` begins with: to go on is to read them again."""

    def __str__(self) -> str:
        offsets = {bucket_text(bucket): offset for bucket, offset in self.offsets.items()}
        document = {"version": _VERSION, "table": self.table_id, "offsets": offsets}
        return json.dumps({**document, "full": True} if self.full else document, separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> Position:
        """Read the text of a position.

        Example:
            position = fluss.Position.parse(stored_text)
        """
        try:
            document = json.loads(text)
            table_id = int(document["table"])
            if document["version"] != _VERSION:
                raise InvalidArgumentError(f"the position is of version {document['version']}, not {_VERSION}")
            offsets = {parse_bucket(table_id, key): int(value) for key, value in document["offsets"].items()}
            full = bool(document.get("full"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(f"this is not the text of a position: {text!r:.80}") from None
        return Position(table_id, offsets, full)

    def __repr__(self) -> str:
        return f"Position({self})"


@dataclass(frozen=True)
class Origin:
    """What all changes of a batch share."""

    bucket: TableBucket
    timestamp_ms: int
    offsets: Mapping[TableBucket, int] | None
    """How far all buckets were read when the batch came; None before the end of the rows of ``"full"``."""


class _At:
    """Where a change stands in the log."""

    __slots__ = ("_origin", "offset")

    offset: int
    """The position of the change in the log of its bucket."""
    _origin: Origin

    @property
    def bucket(self) -> TableBucket:
        """The bucket the change belongs to."""
        return self._origin.bucket

    @property
    def timestamp(self) -> dt.datetime:
        """When the server committed the change."""
        return dt.datetime.fromtimestamp(self._origin.timestamp_ms / 1000, dt.timezone.utc)

    @property
    def position(self) -> Position:
        """Where to go on after this change: `follow(start=position)`."""
        bucket = self._origin.bucket
        if self._origin.offsets is None:
            return Position(bucket.table_id, {}, full=True)
        return Position(bucket.table_id, {**self._origin.offsets, bucket: self.offset + 1})


class Change(_At, Generic[T]):
    """One change of a table: a row that was appended, inserted, updated (before and after) or deleted.

    Example:
        for change in orders.follow():
            print(change.kind, change.row, change.offset, change.timestamp)
    """

    __slots__ = ("_kind", "row")

    row: T
    """The row: a dict, or what the table's model makes of it."""

    def __init__(self, row: T, kind: int, offset: int, origin: Origin) -> None:
        self.row = row
        self._kind = kind
        self.offset = offset
        self._origin = origin

    @property
    def kind(self) -> Kind:
        """What the change did."""
        return KINDS[self._kind]

    def __repr__(self) -> str:
        return f"Change({self.kind}, {self.row!r}, bucket={self.bucket.bucket_id}, offset={self.offset})"


class ChangePair(_At, Generic[T]):
    """One change of a table with the row before and after it.

    Example:
        for change in orders.changes():
            print(change.kind, change.old, change.new)
    """

    __slots__ = ("kind", "new", "old")

    kind: PairKind
    """What happened: append, insert, update or delete."""
    old: T | None
    """The row before; None for inserts, and for updates of tables that do not keep it."""
    new: T | None
    """The row after; None for deletes."""

    def __init__(self, kind: PairKind, old: Change[T] | None, new: Change[T] | None) -> None:
        self.kind = kind
        self.old = None if old is None else old.row
        self.new = None if new is None else new.row
        last = new if new is not None else old
        assert last is not None
        self.offset = last.offset
        self._origin = last._origin

    def __repr__(self) -> str:
        return f"ChangePair({self.kind}, old={self.old!r}, new={self.new!r})"


class ChangeBatch(_At):
    """Changes of one bucket as Arrow.

    Example:
        for found in orders.follow(batches=True):
            print(found.batch.num_rows, found.kinds[0], found.position)
    """

    __slots__ = ("_kinds", "batch", "offsets")

    batch: pa.RecordBatch
    """The rows."""
    offsets: Sequence[int]
    """The offset of each row."""

    def __init__(self, found: RecordBatch, read: Mapping[TableBucket, int] | None) -> None:
        self.batch = found.batch
        self._kinds = found.change_types
        self.offsets = row_offsets(found)
        self.offset = found.last_offset
        self._origin = Origin(found.bucket, found.timestamp, read)

    @property
    def kinds(self) -> list[Kind]:
        """What each row did."""
        if self._kinds is None:
            return ["append"] * self.batch.num_rows
        return [KINDS[kind] for kind in self._kinds]

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __repr__(self) -> str:
        return f"ChangeBatch({len(self)} rows, bucket={self.bucket.bucket_id}, offset={self.offset})"

    def _expand(self, types: Sequence[DataType], model: RowModel[T]) -> Iterator[list[Change[T]]]:
        """The changes one by one, some at a time.

        A hundred thousand objects at once are slow to make, and so are a few while those before them are still held:
        the garbage collector looks at everything that lives again and again.
        """
        for start in range(0, self.batch.num_rows, _CHANGES_AT_ONCE):
            yield self._some(start, types, model)

    def _some(self, start: int, types: Sequence[DataType], model: RowModel[T]) -> list[Change[T]]:
        origin, end = self._origin, start + _CHANGES_AT_ONCE
        rows = model.make(rows_to_python(self.batch.slice(start, _CHANGES_AT_ONCE), types))
        offsets = self.offsets[start:end]
        if self._kinds is None:
            return [Change(row, 0, offset, origin) for row, offset in zip(rows, offsets)]
        return [Change(row, kind, offset, origin) for row, kind, offset in zip(rows, self._kinds[start:end], offsets)]


class Pairing(Generic[T]):
    """Joins the two records of an update. They follow each other in a bucket, but maybe in two batches."""

    def __init__(self) -> None:
        self._before: dict[TableBucket, Change[T]] = {}

    def pairs(self, changes: Sequence[Change[T]]) -> list[ChangePair[T]]:
        """The pairs that are complete."""
        found = []
        for change in changes:
            if change.kind == "update_before":
                self._before[change.bucket] = change
                continue
            if change.kind == "update_after":
                pair = ChangePair("update", self._before.pop(change.bucket, None), change)
            elif change.kind == "delete":
                pair = ChangePair("delete", change, None)
            else:
                pair = ChangePair("insert" if change.kind == "insert" else "append", None, change)
            if self._before:
                # To go on from here is to read the first half of what is not complete yet again.
                halves = {bucket: half.offset for bucket, half in self._before.items()}
                pair._origin = replace(pair._origin, offsets={**(pair._origin.offsets or {}), **halves})
            found.append(pair)
        return found


def position_of(position: Any, table_id: int, name: str) -> Position | None:
    """A position, given as one or as its text; None if it is neither."""
    if isinstance(position, str) and position.lstrip().startswith("{"):
        position = Position.parse(position)
    if not isinstance(position, Position):
        return None
    if position.table_id != table_id:
        raise InvalidArgumentError(
            f"the position belongs to table id {position.table_id}, but {name} has id {table_id}: it is another table, "
            "or it was dropped and created again. Start with 'full', 'earliest' or 'latest'"
        )
    return position
