# SPDX-License-Identifier: Apache-2.0
"""Writes that look inside rows: partial updates, versions, aggregation, generated columns.

Old and new rows of a batch are decoded column by column and at once; only the merging itself is done row by row, since
every row may build on the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fluss.errors import InvalidTargetColumnError, UnknownServerError
from fluss.metadata import Schema
from fluss.rows import Slices
from fluss.server.kv.aggregate import Aggregate, aggregates_of
from fluss.server.kv.changes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Outcome, ReadOld, refuse_delete
from fluss.server.kv.values import Row, ValueCodec

Merge = Callable[[Row, Row], "Row | None"]
"""(old row, written row) to the new row; None keeps the old one."""


@dataclass(frozen=True)
class MergeRules:
    """How the rows of one write are merged into a table."""

    merge: Merge
    first: Callable[[Row], Row]
    """What a row becomes when its key is new."""
    delete: Callable[[Row], Row | None]
    """What a delete leaves of a row; None removes it."""


def check_targets(schema: Schema, targets: Sequence[int]) -> None:
    """The rules for the columns of a partial update."""
    width = len(schema.columns)
    for index in targets:
        if not 0 <= index < width:
            raise InvalidTargetColumnError(f"target column {index} is out of range: the table has {width} columns")
    names = {schema.columns[index].name for index in targets}
    missing = [name for name in schema.primary_key if name not in names]
    if missing:
        raise InvalidTargetColumnError(
            f"a partial update must name all primary key columns; missing: {', '.join(missing)}"
        )
    fixed = [c.name for c in schema.columns if c.name not in schema.primary_key and not c.data_type.nullable]
    if fixed:
        raise InvalidTargetColumnError(
            f"a partial update needs all columns outside the primary key to be nullable; NOT NULL: {', '.join(fixed)}"
        )


def partial_rules(schema: Schema, targets: Sequence[int], aggregates: Sequence[Aggregate | None] | None) -> MergeRules:
    """Only the target columns are written; with `aggregates` they go through their functions."""
    key = {schema.column_index(name) for name in schema.primary_key}
    chosen = [index for index in targets if index not in key]
    others = [index for index in range(len(schema.columns)) if index not in set(targets)]

    def merge(old: Row, new: Row) -> Row | None:
        if not chosen:
            return None
        row = list(old)
        for index in chosen:
            function = aggregates[index] if aggregates is not None else None
            row[index] = new[index] if function is None else function(old[index], new[index])
        return tuple(row)

    def first(new: Row) -> Row:
        row = list(new)
        for index in others:
            row[index] = None
        return tuple(row)

    def delete(old: Row) -> Row | None:
        if all(old[index] is None for index in others):
            return None
        row = list(old)
        for index in chosen:
            row[index] = None
        return tuple(row)

    return MergeRules(merge, first, delete)


def _same(row: Row) -> Row:
    return row


def _nothing(_: Row) -> None:
    return None


def versioned_rules(schema: Schema, column: str) -> MergeRules:
    """A row wins when its version is not older; no version is older than any."""
    at = schema.column_index(column)

    def merge(old: Row, new: Row) -> Row | None:
        before, after = old[at], new[at]
        if before is None or (after is not None and after >= before):
            return new
        return None

    return MergeRules(merge, _same, _nothing)


def aggregation_rules(schema: Schema) -> MergeRules:
    """Every column goes through its function."""
    functions = aggregates_of(schema)

    def merge(old: Row, new: Row) -> Row:
        return tuple(
            new_value if function is None else function(old_value, new_value)
            for function, old_value, new_value in zip(functions, old, new)
        )

    return MergeRules(merge, _same, _nothing)


def replace_rules() -> MergeRules:
    """The last write wins; for tables where rows must be looked into for another reason."""
    return MergeRules(lambda old, new: new, _same, _nothing)


def merge_rows(
    codec: ValueCodec,
    keys: Sequence[bytes],
    rows: Slices,
    schema_id: int,
    read_old: ReadOld,
    rules: MergeRules,
    *,
    delete_behavior: str,
    with_before: bool,
    generate: Callable[[], Any] | None,
    generated_column: int | None,
    where: str,
) -> Outcome:
    """Apply writes in their order. `generate` gives values of the auto-increment column to new rows."""
    lengths = rows.lengths
    upserts = [i for i in range(len(keys)) if lengths[i]]
    written: dict[int, Row] = {}
    if upserts:
        taken = rows if len(upserts) == len(keys) else rows.take(_indexes(upserts))
        written = dict(zip(upserts, codec.to_rows(codec.decode_rows(schema_id, taken))))
    distinct = list(dict.fromkeys(keys))
    stored = read_old(distinct)
    existing = [i for i, value in enumerate(stored) if value is not None]
    old_rows: list[Row] = []
    if existing:
        old_rows = codec.to_rows(codec.decode_values([value for value in stored if value is not None]))
    present: dict[bytes, Row | None] = dict.fromkeys(distinct)
    present.update((distinct[i], row) for i, row in zip(existing, old_rows))

    types = bytearray()
    records: list[Row] = []
    touched: dict[bytes, Row | None] = {}
    rows_added = 0
    for i, key in enumerate(keys):
        old = present[key]
        new = written.get(i)
        if new is None:
            if delete_behavior == "DISABLE":
                raise refuse_delete(where)
            if delete_behavior != "ALLOW" or old is None:
                continue
            left = rules.delete(old)
            if left is None:
                types.append(DELETE)
                records.append(old)
                present[key] = touched[key] = None
                rows_added -= 1
                continue
            result: Row | None = left
        elif old is None:
            row = rules.first(new)
            if generate is not None and generated_column is not None:
                row = (*row[:generated_column], generate(), *row[generated_column + 1 :])
            types.append(INSERT)
            records.append(row)
            present[key] = touched[key] = row
            rows_added += 1
            continue
        else:
            result = rules.merge(old, new)
        if result is None:
            continue
        assert old is not None
        if generated_column is not None and result[generated_column] is None:
            result = (*result[:generated_column], old[generated_column], *result[generated_column + 1 :])
        if with_before:
            types.append(UPDATE_BEFORE)
            records.append(old)
        types.append(UPDATE_AFTER)
        records.append(result)
        present[key] = touched[key] = result

    outcome = Outcome(change_types=types, rows_added=rows_added)
    if records:
        outcome.batch = codec.to_batch(records)
        live = [(key, row) for key, row in touched.items() if row is not None]
        outcome.changes = dict.fromkeys(touched)
        if live:
            encoded = codec.encode_batch(codec.to_batch([row for _, row in live]))
            outcome.changes.update(zip((key for key, _ in live), encoded))
    return outcome


def _indexes(values: list[int]) -> Any:
    import numpy as np

    return np.array(values, dtype=np.int64)


def refuse_partial(engine: str) -> UnknownServerError:
    return UnknownServerError(f"the merge engine '{engine}' does not support partial updates")
