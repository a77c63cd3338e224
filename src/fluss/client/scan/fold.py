# SPDX-License-Identifier: Apache-2.0
"""A changelog folded into the rows it leaves: the last image of every key, without those that were deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import array_of, numpy_of
from fluss.client.scan.records import RecordBatch, offset_array
from fluss.metadata import ChangeType

_AT = "__position"


def fold_changelog(batches: Sequence[RecordBatch], key: Sequence[int], schema: pa.Schema) -> pa.Table:
    """The live rows after all changes of one bucket, in the order of their last change.

    `key` holds the positions of the primary key columns. Only the last change of a key counts: a delete removes it,
    anything else is its row.
    """
    table = pa.Table.from_batches([batch.batch for batch in batches], schema)
    if not table.num_rows:
        return table
    live = np.zeros(table.num_rows, np.bool_)
    live[_live(table, batches, key)] = True
    # Not `take`, which fails where the texts of a column have more than two GB together.
    return table.filter(array_of(live)).combine_chunks()


def fold_batches(batches: Sequence[RecordBatch], key: Sequence[int]) -> list[RecordBatch]:
    """The same rows as parts of their batches, with their offsets and change types."""
    if not batches:
        return []
    live = _live(pa.Table.from_batches([batch.batch for batch in batches]), batches, key)
    ends = np.cumsum([batch.num_records for batch in batches])
    folded = []
    for found, end in zip(batches, ends.tolist()):
        first = end - found.num_records
        at = live[(live >= first) & (live < end)] - first
        if len(at):
            offsets = offset_array(found)[at].tolist()
            kinds = None if found.change_types is None else bytes(found.change_types[i] for i in at.tolist())
            rows = found.batch.take(array_of(at))
            folded.append(
                RecordBatch(
                    rows, found.bucket, offsets[0], offsets[-1], found.timestamp, kinds, offsets, found.writer_id
                )
            )
    return folded


def _live(table: pa.Table, batches: Sequence[RecordBatch], key: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The positions of the last changes of all keys that are no deletes."""
    kinds = b"".join(batch.change_types or bytes(batch.num_records) for batch in batches)
    changes = np.frombuffer(kinds, np.uint8)
    keys = table.select(list(key)).append_column(_AT, array_of(np.arange(table.num_rows)))
    names = [name for name in keys.column_names if name != _AT]
    last = numpy_of(keys.group_by(names).aggregate([(_AT, "max")]).column(f"{_AT}_max").combine_chunks())
    # An "update before" is the last one only where a range of offsets ends within an update.
    return np.sort(last[~np.isin(changes[last], (int(ChangeType.Delete), int(ChangeType.UpdateBefore)))])


def merge_by_key(base: pa.Table, batches: Sequence[RecordBatch], key: Sequence[int]) -> pa.Table:
    """`base` (live rows) with a later changelog applied."""
    if not batches:
        return base
    inserts = [RecordBatch(batch, batches[0].bucket, -1, -1) for batch in base.to_batches()]
    return fold_changelog([*inserts, *batches], key, base.schema)
