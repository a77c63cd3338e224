# SPDX-License-Identifier: Apache-2.0
"""Writes that look inside rows: partial updates, versions, aggregation, generated columns.

Where every key of a batch occurs once and nothing is deleted, whole columns are merged. Otherwise a row may build on
the one before it, and merging goes row by row; decoding and encoding are done by column in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import array_of, numpy_of, valid_mask
from fluss._lazy import LazyModule
from fluss.errors import UnknownServerError
from fluss.metadata import Schema
from fluss.records import KvBatch
from fluss.rows import KeyEncoder, Slices
from fluss.server.kv.aggregate import aggregates_of, column_aggregates_of
from fluss.server.kv.changes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Mask, Outcome, ReadOld, Wins
from fluss.server.kv.ordered import Changes
from fluss.server.kv.values import Row, ValueCodec, check_keys

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

Generate = Callable[[], int]
"""The next value of the auto-increment column."""


@dataclass(frozen=True)
class MergeRules:
    """How the rows of one write are merged into a table, row by row and, where possible, by column."""

    merge: Callable[[Row, Row], Row | None]
    """(old row, written row) to the new row; None keeps the old one."""
    first: Callable[[Row], Row]
    """What a row becomes when its key is new."""
    delete: Callable[[Row], Row | None]
    """What a delete leaves of a row; None removes it."""
    merge_columns: Callable[[list[pa.Array], list[pa.Array]], list[pa.Array]] | None = None
    """`merge` for columns; the old ones are null where the key is new."""
    keeps_old: bool = False
    """Rows that are there already stay, whatever is written."""


def _removes(_: Row) -> None:
    return None


def _as_sent(row: Row) -> Row:
    return row


def partial_rules(schema: Schema, targets: Sequence[int]) -> MergeRules:
    """Only the target columns are written."""
    key = {schema.column_index(name) for name in schema.primary_key}
    chosen = sorted(set(targets) - key)
    others = [index for index in range(len(schema.columns)) if index not in set(targets)]

    def merge(old: Row, new: Row) -> Row | None:
        if not chosen:
            return None
        row = list(old)
        for index in chosen:
            row[index] = new[index]
        return tuple(row)

    def first(new: Row) -> Row:
        row = list(new)
        for index in others:
            row[index] = None
        return tuple(row)

    def merge_columns(old: list[pa.Array], new: list[pa.Array]) -> list[pa.Array]:
        kept = set(others)
        return [old[i] if i in kept else new[i] for i in range(len(new))]

    return MergeRules(merge, first, _partial_delete(chosen, others), merge_columns, keeps_old=not chosen)


def _partial_delete(chosen: Sequence[int], others: Sequence[int]) -> Callable[[Row], Row | None]:
    def delete(old: Row) -> Row | None:
        if all(old[index] is None for index in others):
            return None
        row = list(old)
        for index in chosen:
            row[index] = None
        return tuple(row)

    return delete


def aggregation_rules(schema: Schema, targets: Sequence[int]) -> MergeRules:
    """Every target column goes through its function; without targets every column does."""
    key = {schema.column_index(name) for name in schema.primary_key}
    chosen = sorted(set(targets or range(len(schema.columns))) - key)
    others = [index for index in range(len(schema.columns)) if index not in {*chosen, *key}]
    functions, on_columns = aggregates_of(schema), column_aggregates_of(schema)

    def merge(old: Row, new: Row) -> Row:
        row = list(old)
        for index in chosen:
            function = functions[index]
            assert function is not None
            row[index] = function(old[index], new[index])
        return tuple(row)

    def merge_columns(old: list[pa.Array], new: list[pa.Array]) -> list[pa.Array]:
        columns = list(old)
        for index in chosen:
            function = on_columns[index]
            assert function is not None
            columns[index] = function(old[index], new[index])
        return columns

    delete = _partial_delete(chosen, others) if targets else _removes
    return MergeRules(merge, _as_sent, delete, merge_columns)


def versioned_rules(schema: Schema, column: str) -> MergeRules:
    """A row wins when its version is not older; no version is older than any."""
    at = schema.column_index(column)

    def merge(old: Row, new: Row) -> Row | None:
        before, after = old[at], new[at]
        return new if before is None or (after is not None and after >= before) else None

    return MergeRules(merge, _as_sent, _removes)


def version_wins(codec: ValueCodec, batch: KvBatch, column: str) -> Wins:
    """The same rule for many records at once."""

    def wins(old_values: list[bytes], positions: npt.NDArray[np.int64]) -> Mask:
        old = codec.decode_values(Slices.from_list(old_values)).column(column)
        new = codec.decode_rows(batch.schema_id, batch.rows.take(positions)).column(column)
        compared = pc.greater_equal(new, old)
        return (numpy_of(compared) & valid_mask(compared)) | ~valid_mask(old)

    return wins


def merge_batch(
    codec: ValueCodec,
    batch: KvBatch,
    read_old: ReadOld,
    rules: MergeRules,
    *,
    with_before: bool,
    generate: Generate | None = None,
    generated_column: int | None = None,
    checked: KeyEncoder | None = None,
) -> Outcome:
    """Apply writes in their order.

    `generate` gives values of the auto-increment column to new rows; `checked` encodes keys that have to be those of
    their rows.
    """
    keys = batch.keys.to_list()
    distinct = list(dict.fromkeys(keys))
    stored = read_old(distinct)
    upserts = np.flatnonzero(~batch.deletes)
    new = codec.decode_rows(batch.schema_id, batch.rows.take(upserts))
    if checked is not None:
        check_keys(checked, [keys[i] for i in upserts.tolist()], [new.column(name) for name in checked.names])
    numbers = _Numbers(generate, generated_column)
    if len(distinct) == len(keys) and rules.merge_columns is not None and len(upserts) == len(keys) > 0:
        outcome = _merge_columns(codec, new, keys, stored, rules, with_before, numbers)
    else:
        written = dict(zip(upserts.tolist(), codec.to_rows(new)))
        outcome = _merge_rows(codec, written, keys, dict(zip(distinct, stored)), rules, with_before, numbers)
    outcome.highest_number = numbers.highest
    return outcome


class _Numbers:
    """Fills the auto-increment column of new rows."""

    def __init__(self, generate: Generate | None, column: int | None) -> None:
        self._generate = generate
        self._column = column
        self.highest = 0

    def fill_row(self, row: Row) -> Row:
        if self._generate is None or self._column is None:
            return row
        self.highest = self._generate()
        return (*row[: self._column], self.highest, *row[self._column + 1 :])

    def fill_columns(self, columns: list[pa.Array], is_new: Mask) -> None:
        if self._generate is None or self._column is None or not bool(is_new.any()):
            return
        at = np.flatnonzero(is_new)
        drawn = np.zeros(len(is_new), np.int64)
        for i in at.tolist():
            drawn[i] = self.highest = self._generate()
        old = columns[self._column]
        columns[self._column] = pc.if_else(array_of(is_new), array_of(drawn).cast(old.type, safe=False), old)


def _merge_columns(
    codec: ValueCodec,
    new: pa.RecordBatch,
    keys: list[bytes],
    stored: list[bytes | None],
    rules: MergeRules,
    with_before: bool,
    numbers: _Numbers,
) -> Outcome:
    """For batches of distinct keys without deletes: column by column."""
    assert rules.merge_columns is not None
    present = np.fromiter((value is not None for value in stored), np.bool_, len(stored))
    if rules.keeps_old and bool(present.any()):
        absent = np.flatnonzero(~present)
        new, keys, present = new.take(array_of(absent)), [keys[i] for i in absent.tolist()], present[absent]
        stored = [None] * len(keys)
        if not keys:
            return Outcome()
    existing = codec.decode_values(Slices.from_list([value for value in stored if value is not None]))
    where = array_of(np.cumsum(present) - 1, ~present)
    old = [column.take(where) for column in existing.columns]
    merged = rules.merge_columns(old, new.columns)
    if rules.first is _as_sent and not bool(present.all()):
        choose = array_of(np.where(present, 0, len(keys)) + np.arange(len(keys)))
        merged = [
            pa.concat_arrays([conformed(column, kind.type), sent]).take(choose)
            for column, sent, kind in zip(merged, new.columns, codec.arrow_schema)
        ]
    numbers.fill_columns(merged, ~present)
    result = pa.RecordBatch.from_arrays(
        [conformed(column, kind.type) for column, kind in zip(merged, codec.arrow_schema)], schema=codec.arrow_schema
    )
    changes: Changes = dict(zip(keys, codec.encode_batch(result)))
    rows_added = int((~present).sum())
    if not with_before or rows_added == len(keys):
        types = np.where(present, UPDATE_AFTER, INSERT).astype(np.uint8)
        return Outcome(types.tobytes(), result, changes, rows_added)
    ends = np.cumsum(present.astype(np.int64) + 1)
    total = int(ends[-1])
    types = np.empty(total, np.uint8)
    types[ends - 1] = np.where(present, UPDATE_AFTER, INSERT)
    types[(ends - 2)[present]] = UPDATE_BEFORE
    source = np.empty(total, np.int64)
    source[ends - 1] = np.arange(len(keys))
    source[(ends - 2)[present]] = len(keys) + np.arange(len(existing))
    records = pa.Table.from_batches([result, existing]).take(array_of(source)).combine_chunks().to_batches()[0]
    return Outcome(types.tobytes(), records, changes, rows_added)


def conformed(column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """A column in exactly the table's type; functions may widen it."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column if column.type == arrow_type else column.cast(arrow_type, safe=False)


def _merge_rows(
    codec: ValueCodec,
    written: dict[int, Row],
    keys: list[bytes],
    stored: dict[bytes, bytes | None],
    rules: MergeRules,
    with_before: bool,
    numbers: _Numbers,
) -> Outcome:
    """For all batches: row by row, in the order in which they were sent; `written` has no deletes."""
    present = _rows_stored(codec, stored)
    types = bytearray()
    records: list[Row] = []
    touched: dict[bytes, Row | None] = {}
    rows_added = 0
    for i, key in enumerate(keys):
        old, new = present[key], written.get(i)
        result: Row | None
        if old is None:
            if new is None:
                continue
            result = numbers.fill_row(rules.first(new))
            types.append(INSERT)
            rows_added += 1
        elif new is None:
            result = rules.delete(old)
            if result is None:
                types.append(DELETE)
                records.append(old)
                present[key] = touched[key] = None
                rows_added -= 1
                continue
        else:
            result = rules.merge(old, new)
            if result is None:
                continue
        if old is not None:
            if with_before:
                types.append(UPDATE_BEFORE)
                records.append(old)
            types.append(UPDATE_AFTER)
        records.append(result)
        present[key] = touched[key] = result
    if not records:
        return Outcome()
    return Outcome(bytes(types), codec.to_batch(records), _values_to_store(codec, stored, touched), rows_added)


def _rows_stored(codec: ValueCodec, stored: dict[bytes, bytes | None]) -> dict[bytes, Row | None]:
    """Return the rows that are there before the batch, None for keys without one."""
    present: dict[bytes, Row | None] = dict.fromkeys(stored)
    existing = [(key, value) for key, value in stored.items() if value is not None]
    if existing:
        rows = codec.to_rows(codec.decode_values(Slices.from_list([value for _, value in existing])))
        present.update((key, row) for (key, _), row in zip(existing, rows))
    return present


def _values_to_store(codec: ValueCodec, stored: dict[bytes, bytes | None], touched: dict[bytes, Row | None]) -> Changes:
    """Return the changes of the store; a row that came and went within the batch is none."""
    changes: Changes = {key: None for key, row in touched.items() if stored[key] is not None or row is not None}
    live = [(key, row) for key, row in touched.items() if row is not None]
    if live:
        encoded = codec.encode_batch(codec.to_batch([row for _, row in live]))
        changes.update(zip((key for key, _ in live), encoded))
    return changes


def refuse_partial(engine: str) -> UnknownServerError:
    return UnknownServerError(f"the merge engine '{engine}' does not support partial updates")
