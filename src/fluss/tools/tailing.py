# SPDX-License-Identifier: Apache-2.0
"""Following a table for people: a start as they write it, and only the rows and columns they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.db.changes import Position
from fluss.db.conditions import Condition, parse_condition
from fluss.db.file_writers import python_dicts
from fluss.db.follow import Start
from fluss.db.suggest import check_columns
from fluss.errors import InvalidArgumentError
from fluss.metadata import OffsetSpec, TableBucket, epoch_millis
from fluss.tools.status import bucket_offsets, parse_time

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Follow, Table
    from fluss.db.changes import ChangeBatch

_ROW = "__row"


@dataclass(frozen=True)
class TailRecord:
    """One change, with where it stands in the log."""

    bucket: TableBucket
    offset: int
    timestamp_ms: int
    kind: str
    row: dict[str, Any]


def matching_positions(batch: pa.RecordBatch, expression: Any) -> list[int]:
    """The positions of the rows of a batch for which an expression holds."""
    numbers = pa.array(range(batch.num_rows), pa.int64())
    found: list[int] = pa.Table.from_batches([batch]).append_column(_ROW, numbers).filter(expression)[_ROW].to_pylist()
    return found


def start_of(db: Database, table: Table[Any], text: str) -> Start:
    """Where to begin: ``full``, ``earliest``, ``latest``, a time, how long ago (``10m``), an offset, or a position."""
    text = text.strip()
    if text in ("full", "earliest", "latest") or text.startswith("{"):
        return text
    if text.isdecimal():
        return _position(db, table, lambda end: min(int(text), end))
    found = parse_time(text)
    if found is None:
        raise InvalidArgumentError(
            f"cannot begin at {text!r}: write full, earliest, latest, an offset, 10m (minutes ago) or 2026-01-01T00:00"
        )
    return found


def before_end(db: Database, table: Table[Any], records: int) -> Position:
    """The position so many records before the end of each bucket."""
    return _position(db, table, lambda end: end - records)


def _position(db: Database, table: Table[Any], offset: Callable[[int], int]) -> Position:
    first = bucket_offsets(db, table, OffsetSpec.earliest())
    last = bucket_offsets(db, table, OffsetSpec.latest())
    wanted = {key[1]: max(first.get(key, end), offset(end)) for key, end in last.items()}
    return Position(table.info.table_id, wanted)


class Tail:
    """The changes of a table, filtered, some at a time.

    Example:
        with Tail(db, db.table("orders"), "earliest", where="price > 10", stop_at_end=True) as tail:
            for records in tail:
                print(len(records))
    """

    def __init__(
        self,
        db: Database,
        table: Table[Any],
        start: str,
        *,
        columns: list[str] | None = None,
        where: str | None = None,
        stop_at_end: bool = False,
        timeout: float | None = None,
        group: str | None = None,
    ) -> None:
        schema = table.schema
        self.columns = list(schema.column_names) if columns is None else check_columns(columns, table.info)
        self._condition = Condition(None) if where is None else parse_condition(where, schema)
        predicate = self._condition.predicate
        self._expression = None if predicate is None else predicate.to_arrow_expression(schema)
        needed = list(dict.fromkeys([*self.columns, *check_columns(self._condition.columns(), table.info)]))
        self._follow: Follow[ChangeBatch] = table.follow(
            start_of(db, table, start),
            batches=True,
            columns=needed,
            stop_at_end=stop_at_end,
            timeout=timeout,
            group=group,
        )

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self._follow.close()

    def __iter__(self) -> Iterator[list[TailRecord]]:
        for found in self._follow:
            batch, positions = found.batch, list(range(found.batch.num_rows))
            if self._expression is not None:
                positions = matching_positions(batch, self._expression)
                batch = batch.take(pa.array(positions, pa.int64()))
            if self._condition.computed is not None:
                mask = self._condition.computed.mask(batch)
                positions = pa.array(positions, pa.int64()).filter(mask).to_pylist()
                batch = batch.filter(mask)
            kinds = found.kinds
            rows = python_dicts(batch.select(self.columns))
            millis = epoch_millis(found.timestamp)
            yield [
                TailRecord(found.bucket, int(found.offsets[position]), millis, kinds[position], row)
                for position, row in zip(positions, rows)
            ]
