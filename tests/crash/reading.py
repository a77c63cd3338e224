# SPDX-License-Identifier: Apache-2.0
"""Reads whole tables: the log of every bucket, the state that it leads to, and the same state by other ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fluss.aio as fluss
from fluss.metadata import ChangeType, TableBucket

Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One record of a log."""

    offset: int
    kind: ChangeType
    row: Row


class WrongRowsError(AssertionError):
    """The server served something that it must not serve."""


async def read_bucket(
    connection: fluss.FlussConnection,
    path: fluss.TablePath,
    bucket: TableBucket,
    known: Sequence[Change] = (),
    start: int = 0,
) -> tuple[list[Change], int]:
    """All records of a bucket and the offset after the last one. Offsets must rise, batches must not overlap.

    `known` are the first records of the bucket, which need not be read again. With EARLIEST_OFFSET as `start` some
    may have expired.
    """
    table = await connection.get_table(path)
    changes = list(known)
    position = known[-1].offset + 1 if known else start
    async for batch in table.new_scan().read_batches({bucket: position}):
        if batch.base_offset < position:
            raise WrongRowsError(f"{path} {bucket}: offset {batch.base_offset} comes after {position - 1}")
        kinds = batch.change_types or bytes(batch.num_records)
        for number, (row, kind) in enumerate(zip(batch.batch.to_pylist(), kinds)):
            changes.append(Change(batch.base_offset + number, ChangeType(kind), row))
        position = batch.last_offset + 1
    return changes, position


def replay(path: fluss.TablePath, key: str, changes: list[Change]) -> dict[Any, Row]:
    """The state that a changelog leads to; every record must fit the state before it."""
    state: dict[Any, Row] = {}
    before: Change | None = None
    for change in changes:
        now, known = change.row[key], state.get(change.row[key])
        fits = {
            ChangeType.Insert: known is None and before is None,
            ChangeType.UpdateBefore: known == change.row and before is None,
            ChangeType.UpdateAfter: before is not None
            and before.row[key] == now
            and before.offset == change.offset - 1,
            ChangeType.Delete: known == change.row and before is None,
        }
        if not fits.get(change.kind, False):
            raise WrongRowsError(f"{path}: {change} does not fit the state {known} (record before: {before})")
        before = change if change.kind is ChangeType.UpdateBefore else None
        if change.kind is ChangeType.Delete:
            del state[now]
        elif change.kind is not ChangeType.UpdateBefore:
            state[now] = change.row
    if before is not None:
        raise WrongRowsError(f"{path}: the log ends with {before}")
    return state


async def read_state(
    connection: fluss.FlussConnection,
    path: fluss.TablePath,
    key: str,
    changes: Mapping[TableBucket, list[Change]],
    keys: list[Any],
) -> dict[Any, Row]:
    """The rows of a primary-key table with this changelog. Log, full scan and lookups must agree."""
    state = replay(path, key, [change for bucket in changes.values() for change in bucket])
    table = await connection.get_table(path)
    scanned: list[Row] = []
    for bucket in changes:
        scanned += (await table.new_scan().create_bucket_batch_scanner(bucket).to_arrow()).to_pylist()
    if len(scanned) != len(state) or {row[key]: row for row in scanned} != state:
        raise WrongRowsError(f"{path}: the full scan gives {len(scanned)} rows, the log leads to {len(state)} others")
    found = (await table.new_lookup().create_lookuper().lookup_many([[k] for k in keys], missing="null")).to_pylist()
    looked_up = {k: row for k, row in zip(keys, found) if row[key] is not None}
    if looked_up != state:
        odd = [k for k in keys if looked_up.get(k) != state.get(k)]
        raise WrongRowsError(f"{path}: lookups disagree with the log about {odd[:5]}")
    return state
