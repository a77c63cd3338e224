# SPDX-License-Identifier: Apache-2.0
"""Keys as users write them, to partition, bucket and bytes."""

from __future__ import annotations

import datetime as dt
from collections import ChainMap
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pytest

from fluss.client.convert import KeyMaker
from fluss.client.lookup import check_prefix_columns
from fluss.client.lookup_many import key_columns, route
from fluss.client.metadata_cache import PartitionState
from fluss.errors import FlussError, InvalidRowError, NonPrimaryKeyTableError
from fluss.metadata import Schema, TableDescriptor, TableInfo, TablePath
from fluss.net.deadline import Deadline


def table(fields, keys, **options):
    descriptor = TableDescriptor(Schema(pa.schema(fields), primary_keys=keys), bucket_count=4, **options)
    return TableInfo(TablePath("d", "t"), 1, 1, descriptor, 0, 0)


SIMPLE = table([("id", pa.int64()), ("v", pa.string())], ["id"])
EVENTS = [("region", pa.string()), ("user", pa.int32()), ("event", pa.int64()), ("v", pa.float64())]
COMPOSITE = table(EVENTS, ["region", "user", "event"], bucket_keys=["region", "user"])
DAYS = [("id", pa.int32()), ("day", pa.date32()), ("n", pa.string())]
PARTITIONED = table(DAYS, ["id", "day"], partition_keys=["day"])
PARTITIONED_PREFIX = table(EVENTS[:3], ["region", "user", "event"], bucket_keys=["user"], partition_keys=["region"])


@dataclass
class User:
    id: int
    v: str = "x"


def test_every_form_of_a_key_gives_the_same_key():
    maker = KeyMaker.for_primary_key(SIMPLE, "java")
    forms = [{"id": 5}, [5], (5,), ChainMap({"id": 5}), User(5), {"id": 5, "v": "other columns do not matter"}]
    assert len({maker.make(form) for form in forms}) == 1
    assert maker.make([5]) == (None, maker.make([5])[1], b"\x05")


def test_composite_keys_are_hashed_by_their_bucket_key():
    maker = KeyMaker.for_primary_key(COMPOSITE, "java")
    first, second = maker.make(("eu", 1, 10)), maker.make({"event": 11, "user": 1, "region": "eu"})
    assert first[1] == second[1]
    assert first[2][:-1] == second[2][:-1]
    prefix = KeyMaker.for_prefix(COMPOSITE, ["region", "user"], "java").make(["eu", 1])
    assert prefix[1] == first[1]
    assert first[2].startswith(prefix[2])


def test_partition_values_choose_the_partition_and_leave_the_key():
    maker = KeyMaker.for_primary_key(PARTITIONED, "java")
    partition, _, key = maker.make({"id": 9, "day": dt.date(2024, 1, 15)})
    assert partition == "2024-01-15"
    assert key == b"\x09"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ({}, "lacks column 'id'"),
        ({"id": None}, "'id' of the primary key must not be null"),
        ({"id": "five"}, "Column 'id' of the primary key.*five"),
        ({"id": 2**63}, "Column 'id' of the primary key"),
        ({"id": 1, "typo": 2}, "Unknown column name 'typo'"),
        ([], "needs 1 values"),
        ([1, 2], "got 2"),
        (5, "must be a dict, list or tuple"),
        ("5", "must be a dict, list or tuple"),
    ],
)
def test_bad_keys_say_which_column_and_value(key, text):
    with pytest.raises(InvalidRowError, match=text):
        KeyMaker.for_primary_key(SIMPLE, "java").make(key)


@pytest.mark.parametrize(
    ("info", "keys"),
    [
        (SIMPLE, [[number] for number in range(-50, 50)]),
        (COMPOSITE, [("eu" if n % 3 else "us", n % 7, n) for n in range(100)]),
        (PARTITIONED, [(n, dt.date(2024, 1, 1 + n % 5)) for n in range(100)]),
    ],
)
async def test_columns_give_the_same_keys_as_rows(info, keys):
    maker = KeyMaker.for_primary_key(info, "java")
    columns = key_columns(maker, keys)
    by_columns = {}
    for partition, bucket, count, positions, encoded in await route(Partitions(), maker, columns, Deadline(1000)):
        assert count == (info.num_buckets if partition is None else Partitions.COUNTS[partition])
        for position, key in zip(positions.tolist(), encoded):
            by_columns[position] = (partition, bucket, count, key)
    for position, (partition, hashed, key) in enumerate(map(maker.make, keys)):
        if partition in (None, *Partitions.COUNTS):
            found = by_columns.pop(position)
            assert found == (partition, hashed % found[2], found[2], key)
    assert not by_columns


class Partitions:
    """Knows some partitions, which differ in their numbers of buckets."""

    COUNTS: ClassVar = {f"2024-01-0{day}": day for day in range(1, 5)}

    async def partition(self, path, name, deadline, table_id):
        return PartitionState(path, 1, 7, name, self.COUNTS[name]) if name in self.COUNTS else None


def test_key_columns_from_arrow_pandas_and_polars():
    maker = KeyMaker.for_primary_key(SIMPLE, "java")
    arrow = pa.table({"v": ["a", "b"], "id": pa.array([1, 2], pa.int32())})
    wanted = [pa.array([1, 2], pa.int64())]
    assert key_columns(maker, arrow) == wanted
    assert key_columns(maker, arrow.to_batches()[0]) == wanted
    assert key_columns(maker, arrow.to_pandas()) == wanted
    polars = pytest.importorskip("polars")
    assert key_columns(maker, polars.from_arrow(arrow)) == wanted
    assert key_columns(maker, []) == [pa.array([], pa.int64())]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (pa.table({"x": [1]}), "lack column 'id'"),
        (pa.table({"id": ["x"]}), "does not fit"),
        (pa.table({"id": pa.array([1, None])}), "must not be null"),
        ([[None]], "must not be null"),
        ([["x"]], "Column 'id' of the keys"),
        ({"id": 1}, "for one key use lookup"),
    ],
)
def test_bad_key_columns(keys, text):
    with pytest.raises(FlussError, match=text):
        key_columns(KeyMaker.for_primary_key(SIMPLE, "java"), keys)


@pytest.mark.parametrize(
    ("info", "columns", "text"),
    [
        (COMPOSITE, ["region", "user", "event"], "prefix lookup"),
        (COMPOSITE, ["region", "event"], "bucket keys"),
        (COMPOSITE, ["region", "missing"], "Unknown column name"),
        (SIMPLE, ["id"], "does not allow prefix lookup"),
        (PARTITIONED_PREFIX, ["user"], "partition fields"),
        (PARTITIONED_PREFIX, ["region", "event"], "bucket keys"),
    ],
)
def test_columns_that_are_no_prefix(info, columns, text):
    with pytest.raises(FlussError, match=text):
        check_prefix_columns(info, columns)


def test_columns_that_are_a_prefix():
    check_prefix_columns(COMPOSITE, ["region", "user"])
    check_prefix_columns(PARTITIONED_PREFIX, ["region", "user"])
    with pytest.raises(NonPrimaryKeyTableError):
        check_prefix_columns(table([("a", pa.int32())], None), ["a"])
