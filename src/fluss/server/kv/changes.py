# SPDX-License-Identifier: Apache-2.0
"""What a batch of writes does: the changelog records it makes, and the values it leaves.

Plain upserts and deletes work on the bytes of the rows and never look inside them. Whatever needs to (partial updates,
versions, aggregation, generated columns) goes through `merge.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from fluss.errors import DeletionDisabledError
from fluss.metadata import ChangeType
from fluss.server.kv.store import Changes
from fluss.server.kv.values import ValueCodec

INSERT = int(ChangeType.Insert)
UPDATE_BEFORE = int(ChangeType.UpdateBefore)
UPDATE_AFTER = int(ChangeType.UpdateAfter)
DELETE = int(ChangeType.Delete)

ReadOld = Callable[[Sequence[bytes]], "list[bytes | None]"]
"""The present values of many keys, changes on their way included."""


@dataclass
class Outcome:
    """The effect of one batch of writes."""

    change_types: bytearray = field(default_factory=bytearray)
    values: list[bytes] = field(default_factory=list)
    """Stored values of the changelog records, unless `batch` has them."""
    batch: pa.RecordBatch | None = None
    changes: Changes = field(default_factory=dict)
    rows_added: int = 0

    def records(self, codec: ValueCodec) -> pa.RecordBatch:
        """The rows of the changelog, in the table's present schema."""
        return self.batch if self.batch is not None else codec.decode_values(self.values)


def refuse_delete(where: str) -> DeletionDisabledError:
    return DeletionDisabledError(f"{where} forbids deletes: its property 'table.delete.behavior' is DISABLE")


def replace_rows(
    keys: Sequence[bytes],
    rows: Sequence[bytes],
    prefix: bytes,
    read_old: ReadOld,
    *,
    delete_behavior: str,
    keep_first: bool,
    where: str,
) -> Outcome:
    """Upserts of whole rows and deletes: the last write wins, or with `keep_first` the first one.

    An empty row is a delete.
    """
    present = dict(zip(keys, read_old(keys)))
    out = Outcome()
    types, values, changes = out.change_types, out.values, out.changes
    for key, row in zip(keys, rows):
        old = present[key]
        if row:
            if old is None:
                types.append(INSERT)
                out.rows_added += 1
            elif keep_first:
                continue
            else:
                types.append(UPDATE_BEFORE)
                values.append(old)
                types.append(UPDATE_AFTER)
            new = prefix + row
            values.append(new)
            present[key] = changes[key] = new
        elif delete_behavior == "ALLOW":
            if old is not None:
                types.append(DELETE)
                values.append(old)
                present[key] = changes[key] = None
                out.rows_added -= 1
        elif delete_behavior == "DISABLE":
            raise refuse_delete(where)
    return out


def overwrite_rows(
    keys: Sequence[bytes],
    rows: Sequence[bytes],
    prefix: bytes,
    read_old: ReadOld,
    *,
    delete_behavior: str,
    where: str,
) -> Outcome:
    """The same for a changelog without "before" images: old rows are looked up for deletes only."""
    deleted = [key for key, row in zip(keys, rows) if not row]
    if deleted and delete_behavior == "DISABLE":
        raise refuse_delete(where)
    present = dict(zip(deleted, read_old(deleted)))
    out = Outcome()
    types, values, changes = out.change_types, out.values, out.changes
    for key, row in zip(keys, rows):
        if row:
            new = prefix + row
            types.append(UPDATE_AFTER)
            values.append(new)
            changes[key] = new
            if key in present:
                present[key] = new
        elif delete_behavior == "ALLOW":
            old = present[key]
            if old is not None:
                types.append(DELETE)
                values.append(old)
                present[key] = changes[key] = None
    return out
