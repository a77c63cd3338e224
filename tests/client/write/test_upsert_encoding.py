# SPDX-License-Identifier: Apache-2.0
"""Rows of many buckets, encoded together and cut apart, and how batches share requests."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fluss.client.write.lane import share_out
from fluss.client.write.upsert import KvEncoder, KvRecords, KvRows
from fluss.records import KvBatch, encode_kv_records
from fluss.rows import Slices


def rows_of(numbers: list[int]) -> tuple[Slices, Slices, Any]:
    keys = Slices.from_list([b"k%d" % number for number in numbers])
    values = Slices.from_list([b"v" * (number % 7 + 1) for number in numbers])
    return keys, values, np.array([number % 5 == 0 for number in numbers])


@pytest.mark.parametrize("kinds", [["rows"], ["records"], ["rows", "records"], ["records", "rows", "rows", "records"]])
def test_parts_of_both_kinds_make_one_batch(kinds: list[str]) -> None:
    """A stretch of records that were encoded with those of other buckets, and rows that were not."""
    contents: list[KvRows | KvRecords] = []
    expected: list[tuple[bytes, bytes]] = []
    for part, kind in enumerate(kinds):
        numbers = list(range(100 * part, 100 * part + 90))
        own = slice(30, 60)
        keys, values, deletes = rows_of(numbers)
        if kind == "rows":
            contents.append(KvRows(keys.slice(30, 60), values.slice(30, 60), deletes[own]))
        else:
            records, ends = encode_kv_records(keys, values, deletes)
            contents.append(KvRecords(records[int(ends[29]) : int(ends[59])], 30))
        expected += [(b"k%d" % n, b"" if n % 5 == 0 else b"v" * (n % 7 + 1)) for n in numbers[own]]
    seal, _ = KvEncoder(1)(contents)
    batch = KvBatch.parse(memoryview(b"".join(seal(7, 3))))
    assert (batch.writer_id, batch.batch_sequence) == (7, 3)
    assert list(zip(batch.keys.to_list(), batch.rows.to_list())) == expected


@pytest.mark.parametrize("lanes", [1, 3, 50])
@pytest.mark.parametrize("size_bytes_max", [10, 25, 10_000])
def test_lanes_share_requests_and_keep_their_order(lanes: int, size_bytes_max: int) -> None:
    """As many requests as the longest lane has batches, unless they get too large; never two of a bucket in one."""
    chance = random.Random(lanes)
    entries: list[Any] = [
        (lane, SimpleNamespace(sequence=number, size_bytes=chance.randint(1, 9)))
        for lane in range(lanes)
        for number in range(4)
    ]
    groups = list(share_out(entries, size_bytes_max))
    for group in groups:
        assert len({lane for lane, _ in group}) == len(group)
        assert sum(batch.size_bytes for _, batch in group) <= size_bytes_max
    for lane in range(lanes):
        assert [batch.sequence for group in groups for own, batch in group if own == lane] == [0, 1, 2, 3]
    if size_bytes_max == 10_000:
        assert len(groups) == 4
