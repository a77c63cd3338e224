# SPDX-License-Identifier: Apache-2.0
"""What a batch of writes does: the changelog records it makes, and the values it leaves.

Writes of whole rows work on the bytes of the rows and never look inside them; the place of every changelog record is
computed for the whole batch at once. Whatever needs to look into rows goes through `merge.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import array_of
from fluss.errors import DeletionDisabledError
from fluss.metadata import ChangeType
from fluss.records import KvBatch
from fluss.rows import KeyEncoder, Slices
from fluss.server.kv.ordered import Changes
from fluss.server.kv.values import ValueCodec, check_keys, values_of

INSERT = int(ChangeType.Insert)
UPDATE_BEFORE = int(ChangeType.UpdateBefore)
UPDATE_AFTER = int(ChangeType.UpdateAfter)
DELETE = int(ChangeType.Delete)

ReadOld = Callable[[Sequence[bytes]], "list[bytes | None]"]
"""The present values of many keys, changes in flight included."""

Mask = npt.NDArray[np.bool_]
Wins = Callable[[list[bytes], npt.NDArray[np.int64]], Mask]
"""(old values, positions of the records that meet them) to whether the record replaces the old value."""


@dataclass
class Outcome:
    """The effect of one batch of writes."""

    change_types: bytes = b""
    records: pa.RecordBatch | None = None
    """The rows of the changelog in the table's present schema; None when nothing changed."""
    changes: Changes = field(default_factory=dict)
    rows_added: int = 0
    highest_number: int = 0
    """The largest auto-increment number given out, 0 if none was."""


def apply_delete_behavior(batch: KvBatch, behavior: str, where: str) -> KvBatch:
    """The batch as the table's delete behaviour lets it through."""
    if behavior == "ALLOW" or not bool(batch.deletes.any()):
        return batch
    if behavior == "DISABLE":
        raise DeletionDisabledError(f"{where} forbids deletes: its property 'table.delete.behavior' is DISABLE")
    kept = np.flatnonzero(~batch.deletes)
    return batch._replace(keys=batch.keys.take(kept), rows=batch.rows.take(kept), deletes=batch.deletes[kept])


def is_distinct(keys: Sequence[bytes]) -> bool:
    return len(set(keys)) == len(keys)


BucketBatch = tuple[KvBatch, ReadOld]
"""A batch, and how to read what is in its bucket."""


def replace_rows(
    codec: ValueCodec,
    writes: Sequence[BucketBatch],
    *,
    with_before: bool = True,
    blind: bool = False,
    keep_first: bool = False,
    wins: Wins | None = None,
    checked: KeyEncoder | None = None,
) -> list[Outcome]:
    """Upserts of whole rows and deletes, in different buckets of one table.

    Every step is taken for all records at once: most of the cost of a small batch is the fixed cost of the steps.

    Args:
        with_before: Updates also record the row before.
        blind: Upserts do not read what was there and count as updates; only deletes read the old row.
        keep_first: A row that is there stays; such a batch has no deletes.
        wins: Decides per record whether it replaces what is there; only for one batch, of distinct keys without
            deletes.
        checked: Encodes keys that have to be those of their rows.
    """
    joined = _Joined.of([batch for batch, _ in writes])
    keys, deletes, count = joined.keys, joined.deletes, len(joined.keys)
    new = joined.values
    values: list[Any] = new.to_list()
    for i in np.flatnonzero(deletes).tolist():
        values[i] = None
    changes: list[Changes] = [dict(zip(keys[part], values[part])) for part in joined.parts]
    previous = None if sum(map(len, changes)) == count else _previous_positions(keys, joined.parts)

    # Which records meet a row: one that was stored, or one that an earlier record of the batch left.
    asks = deletes if blind else np.ones(count, np.bool_)
    if previous is not None:
        asks = asks & (previous < 0)
    asked = np.flatnonzero(asks)
    stored = _read_stored(keys, asked, joined, [read_old for _, read_old in writes])
    found = _is_present(stored)
    present = np.zeros(count, np.bool_)
    present[asked] = found
    if previous is not None:
        later = previous >= 0
        present[later] = ~deletes[previous[later]]
    for i in asked[~found & deletes[asked]].tolist():
        # A key that was never there needs no mark that it is gone.
        changed = changes[joined.part_of(i)]
        if changed.get(keys[i], b"") is None:
            del changed[keys[i]]

    loses = np.zeros(count, np.bool_)
    if keep_first:
        loses = present
        if previous is not None:
            changes = [dict(zip(reversed(keys[part]), reversed(values[part]))) for part in joined.parts]
    elif wins is not None and bool(found.any()):
        met = asked[found]
        loses[met] = ~wins([value for value in stored if value is not None], met)
    if bool(loses.any()):
        for changed, part in zip(changes, joined.parts):
            lost = loses[part]
            gone = set(compress(keys[part], lost.tolist()))
            if previous is not None:
                gone.difference_update(compress(keys[part], (~lost).tolist()))
            for key in gone:
                del changed[key]

    records_old = present & ~loses & (deletes | with_before) if not blind else present & deletes
    records_new = ~deletes & ~loses
    ends = np.cumsum(records_old.astype(np.int64) + records_new)
    total = int(ends[-1]) if count else 0
    if not total:
        return [Outcome(changes=changed) for changed in changes]
    old_at = (ends - 1 - records_new)[records_old]
    new_at = (ends - 1)[records_new]
    types = np.empty(total, np.uint8)
    types[old_at] = np.where(deletes[records_old], DELETE, UPDATE_BEFORE)
    types[new_at] = UPDATE_AFTER if blind else np.where(present[records_new], UPDATE_AFTER, INSERT)

    recorded = records_old[asked]
    # Mostly all of them or none.
    values_before = stored if bool(recorded.all()) else list(compress(stored, recorded.tolist()))
    before = Slices.from_list(values_before)  # type: ignore[arg-type]
    starts, lengths = np.empty(total, np.int64), np.empty(total, np.int64)
    starts[new_at], lengths[new_at] = new.starts[records_new], new.lengths[records_new]
    from_store = asks[records_old]
    starts[old_at[from_store]] = before.starts + new.data.size
    lengths[old_at[from_store]] = before.lengths
    if previous is not None:
        from_batch = previous[records_old][~from_store]
        starts[old_at[~from_store]], lengths[old_at[~from_store]] = new.starts[from_batch], new.lengths[from_batch]
    data = np.concatenate((new.data, before.data)) if len(before) else new.data
    records = codec.decode_values(Slices.trusted(data, starts, lengths))
    if checked is not None:
        sent = [records.column(name).take(array_of(new_at)) for name in checked.names]
        check_keys(checked, list(compress(keys, records_new.tolist())), sent)
    record_ends = [int(ends[part.stop - 1]) if part.stop else 0 for part in joined.parts]
    return _split(changes, types.tobytes(), records, record_ends)


def _split(changes: list[Changes], types: bytes, records: pa.RecordBatch, ends: list[int]) -> list[Outcome]:
    """The outcome of each write, of which `ends` says where its records end among those of all."""
    outcomes: list[Outcome] = []
    start = 0
    for changed, end in zip(changes, ends):
        if end == start:
            outcomes.append(Outcome(changes=changed))
            continue
        own = types[start:end]
        rows_added = own.count(INSERT) - own.count(DELETE)
        outcomes.append(Outcome(own, records.slice(start, end - start), changed, rows_added))
        start = end
    return outcomes


class _Joined(NamedTuple):
    """The records of some batches, one batch after the other."""

    keys: list[bytes]
    values: Slices
    """What is stored of each record."""
    deletes: Mask
    parts: list[slice]
    """Where the records of each batch are."""

    @classmethod
    def of(cls, batches: Sequence[KvBatch]) -> _Joined:
        bounds = [0, *accumulate(len(batch.keys) for batch in batches)]
        parts = [slice(start, end) for start, end in pairwise(bounds)]
        if len(batches) == 1:
            (batch,) = batches
            return cls(batch.keys.to_list(), values_of(batch.rows, batch.schema_id), batch.deletes, parts)
        schema_ids = np.repeat([batch.schema_id for batch in batches], [len(batch.keys) for batch in batches])
        return cls(
            Slices.concat([batch.keys for batch in batches]).to_list(),
            values_of(Slices.concat([batch.rows for batch in batches]), schema_ids),
            np.concatenate([batch.deletes for batch in batches]),
            parts,
        )

    def part_of(self, position: int) -> int:
        """The number of the batch that a record is of."""
        return bisect_right(self.parts, position, key=lambda part: part.stop)


def _read_stored(
    keys: list[bytes], asked: npt.NDArray[np.int64], joined: _Joined, readers: Sequence[ReadOld]
) -> list[bytes | None]:
    """Read what is stored of the keys at some positions, each in the bucket it is of."""
    if len(asked) == len(keys):
        if len(readers) == 1:
            return readers[0](keys)
        return [value for read, part in zip(readers, joined.parts) for value in read(keys[part])]
    ends = np.searchsorted(asked, [part.stop for part in joined.parts]).tolist()
    stored: list[bytes | None] = []
    for read, start, end in zip(readers, [0, *ends], ends):
        if start < end:
            stored += read([keys[i] for i in asked[start:end].tolist()])
    return stored


def _previous_positions(keys: Sequence[bytes], parts: Sequence[slice]) -> npt.NDArray[np.int64]:
    """For every record the position of the record before it with the same key in its batch, or -1."""
    previous: list[int] = []
    for part in parts:
        last: dict[bytes, int] = {}
        for i, key in enumerate(keys[part], part.start):
            previous.append(last.get(key, -1))
            last[key] = i
    return np.array(previous, np.int64)


def _is_present(values: Sequence[bytes | None]) -> Mask:
    absent = values.count(None)
    if absent == len(values):
        return np.zeros(len(values), np.bool_)
    if not absent:
        return np.ones(len(values), np.bool_)
    return np.fromiter((value is not None for value in values), np.bool_, len(values))
