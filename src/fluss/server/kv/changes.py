# SPDX-License-Identifier: Apache-2.0
"""What a batch of writes does: the changelog records it makes, and the values it leaves.

Writes of whole rows work on the bytes of the rows and never look inside them; the place of every changelog record is
computed for the whole batch at once. Whatever needs to look into rows goes through `merge.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.errors import DeletionDisabledError
from fluss.metadata import ChangeType
from fluss.records import KvBatch
from fluss.rows import Slices
from fluss.server.kv.layer import Changes
from fluss.server.kv.values import ValueCodec, values_of

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


def refuse_delete(where: str) -> DeletionDisabledError:
    return DeletionDisabledError(f"{where} forbids deletes: its property 'table.delete.behavior' is DISABLE")


def apply_delete_behavior(batch: KvBatch, behavior: str, where: str) -> KvBatch:
    """The batch as the table's delete behaviour lets it through."""
    if behavior == "ALLOW" or not bool(batch.deletes.any()):
        return batch
    if behavior == "DISABLE":
        raise refuse_delete(where)
    kept = np.flatnonzero(~batch.deletes)
    return batch._replace(keys=batch.keys.take(kept), rows=batch.rows.take(kept), deletes=batch.deletes[kept])


def is_distinct(keys: Sequence[bytes]) -> bool:
    return len(set(keys)) == len(keys)


def replace_rows(
    codec: ValueCodec,
    batch: KvBatch,
    read_old: ReadOld,
    *,
    with_before: bool = True,
    blind: bool = False,
    keep_first: bool = False,
    wins: Wins | None = None,
) -> Outcome:
    """Upserts of whole rows and deletes.

    Args:
        with_before: Updates also tell the row before.
        blind: Upserts do not read what was there and count as updates; only deletes read the old row.
        keep_first: A row that is there stays; such a batch has no deletes.
        wins: Decides per record whether it replaces what is there; only for batches of distinct keys without deletes.
    """
    keys = batch.keys.to_list()
    new = values_of(batch.rows, batch.schema_id)
    values: list[Any] = new.to_list()
    deletes = batch.deletes
    for i in np.flatnonzero(deletes).tolist():
        values[i] = None
    changes: Changes = dict(zip(keys, values))
    count = len(keys)
    previous = None if len(changes) == count else _previous_positions(keys)

    # Which records meet a row: one that was stored, or one that an earlier record of the batch left.
    asks = deletes if blind else np.ones(count, np.bool_)
    if previous is not None:
        asks = asks & (previous < 0)
    asked = np.flatnonzero(asks)
    stored = read_old(keys if len(asked) == count else [keys[i] for i in asked.tolist()])
    found = _is_present(stored)
    present = np.zeros(count, np.bool_)
    present[asked] = found
    if previous is not None:
        later = previous >= 0
        present[later] = ~deletes[previous[later]]
    for i in asked[~found & deletes[asked]].tolist():
        # A key that was never there needs no mark that it is gone.
        if changes.get(keys[i], b"") is None:
            del changes[keys[i]]

    loses = np.zeros(count, np.bool_)
    if keep_first:
        loses = present
        changes = dict(zip(reversed(keys), reversed(values))) if previous is not None else changes
    elif wins is not None and bool(found.any()):
        met = asked[found]
        loses[met] = ~wins([value for value in stored if value is not None], met)
    if bool(loses.any()):
        gone = {keys[i] for i in np.flatnonzero(loses).tolist()}
        if previous is not None:
            gone -= {keys[i] for i in np.flatnonzero(~loses).tolist()}
        for key in gone:
            del changes[key]

    tells_old = present & ~loses & (deletes | with_before) if not blind else present & deletes
    tells_new = ~deletes & ~loses
    ends = np.cumsum(tells_old.astype(np.int64) + tells_new)
    total = int(ends[-1]) if count else 0
    if not total:
        return Outcome(changes=changes)
    old_at = (ends - 1 - tells_new)[tells_old]
    new_at = (ends - 1)[tells_new]
    types = np.empty(total, np.uint8)
    types[old_at] = np.where(deletes[tells_old], DELETE, UPDATE_BEFORE)
    types[new_at] = UPDATE_AFTER if blind else np.where(present[tells_new], UPDATE_AFTER, INSERT)

    told = tells_old[asked]
    # Mostly all of them or none.
    values_before = stored if bool(told.all()) else list(compress(stored, told.tolist()))
    before = Slices.from_list(values_before)  # type: ignore[arg-type]
    starts, lengths = np.empty(total, np.int64), np.empty(total, np.int64)
    starts[new_at], lengths[new_at] = new.starts[tells_new], new.lengths[tells_new]
    from_store = asks[tells_old]
    starts[old_at[from_store]] = before.starts + new.data.size
    lengths[old_at[from_store]] = before.lengths
    if previous is not None:
        from_batch = previous[tells_old][~from_store]
        starts[old_at[~from_store]], lengths[old_at[~from_store]] = new.starts[from_batch], new.lengths[from_batch]
    data = np.concatenate((new.data, before.data)) if len(before) else new.data
    return Outcome(
        change_types=types.tobytes(),
        records=codec.decode_values(Slices.trusted(data, starts, lengths)),
        changes=changes,
        rows_added=int((types == INSERT).sum()) - int((types == DELETE).sum()),
    )


def _previous_positions(keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """For every record the position of the record before it with the same key, or -1."""
    last: dict[bytes, int] = {}
    previous: list[int] = []
    for i, key in enumerate(keys):
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
