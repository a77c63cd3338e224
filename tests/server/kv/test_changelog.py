# SPDX-License-Identifier: Apache-2.0
"""What writes do to rows and to the changelog, case by case."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.server.kv.support import SCHEMA, Bucket, Delete, keyed_schema, kv_batch, opened, table, with_columns

from fluss import errors
from fluss.metadata import AggFunction, Column, Schema, TableInfo
from fluss.metadata import types as t
from fluss.server.kv import prepare as preparing

A, B, C = (1, "a", 1.0), (1, "b", 2.0), (2, "c", None)


async def test_partial_updates_of_a_key_within_one_batch_keep_the_other_columns(bucket: Bucket) -> None:
    """Such a batch is merged row by row, one with distinct keys by columns."""
    await bucket.put([A, C])
    await bucket.put([(1, "x", None), (2, "z", None), (1, "y", None)], [0, 1])
    assert await bucket.rows() == [(1, "y", 1.0), (2, "z", None)]
    await bucket.put([(1, None, 5.0), (1, None, 6.0)], [0, 2])
    assert await bucket.rows() == [(1, "y", 6.0), (2, "z", None)]


async def test_full_image(bucket: Bucket) -> None:
    assert (await bucket.put([A])).end_offset == 1
    assert (await bucket.put([B])).end_offset == 3
    assert (await bucket.put([B])).end_offset == 5  # the same row again is an update all the same
    assert (await bucket.put([Delete(1)])).end_offset == 6
    assert (await bucket.put([Delete(1)])).end_offset == 7  # nothing happened, but an offset is used
    assert (await bucket.put([C, A, Delete(2), C, B])).end_offset == 13
    assert bucket.changelog() == [
        ("+I", A), ("-U", A), ("+U", B), ("-U", B), ("+U", B), ("-D", B),
        ("+I", C), ("+I", A), ("-D", C), ("+I", C), ("-U", A), ("+U", B),
    ]  # fmt: skip
    assert await bucket.rows() == [B, C]
    assert bucket.store.row_count == 2
    assert await bucket.get(3) is None


@pytest.mark.parametrize("log_format", ["arrow", "compacted"])
@pytest.mark.parametrize("kv_format", ["compacted", "indexed"])
async def test_formats(tmp_path: Path, log_format: str, kv_format: str) -> None:
    entry = table(log_format=log_format, kv_format=kv_format)
    async with opened(tmp_path / "a", entry) as bucket:
        await bucket.put([A, C])
        await bucket.put([Delete(9)])
        await bucket.put([B, Delete(2)])
        expected = [("+I", A), ("+I", C), ("-U", A), ("+U", B), ("-D", C)]
        assert bucket.changelog() == expected
        assert await bucket.rows() == [B]
        copy = bucket.copy(tmp_path / "b")
    async with opened(copy, entry) as bucket:
        assert await bucket.rows() == [B]
        assert bucket.changelog() == expected


async def test_indexed_changelog(tmp_path: Path) -> None:
    async with opened(tmp_path, table(log_format="indexed", kv_format="indexed")) as bucket:
        await bucket.put([A, Delete(5)])
        await bucket.put([Delete(5)])
        await bucket.put([Delete(1)])
        assert bucket.changelog() == [("+I", A), ("-D", A)]


async def test_wal_image(tmp_path: Path) -> None:
    async with opened(tmp_path, table(changelog_image="WAL")) as bucket:
        await bucket.put([A])
        await bucket.put([B, C, Delete(1), A, Delete(1), Delete(7)])
        await bucket.put([Delete(2), C, Delete(2)])
        assert bucket.changelog() == [
            ("+U", A), ("+U", B), ("+U", C), ("-D", B), ("+U", A), ("-D", A), ("-D", C), ("+U", C), ("-D", C),
        ]  # fmt: skip
        assert await bucket.rows() == []
    # A partial update has to read the old row, and then knows whether it inserts.
    async with opened(tmp_path / "p", table(changelog_image="WAL")) as bucket:
        await bucket.put([(1, "x", None)], [0, 1])
        await bucket.put([(1, None, 5.0)], [0, 2])
        assert bucket.changelog() == [("+I", (1, "x", None)), ("+U", (1, "x", 5.0))]
    async with opened(tmp_path / "f", table(changelog_image="WAL", merge__engine="first_row")) as bucket:
        await bucket.put([A, B])
        assert bucket.changelog() == [("+I", A)]


@pytest.mark.parametrize("repeated", [False, True])
async def test_partial_update(tmp_path: Path, repeated: bool) -> None:
    """Batches with a repeated key go row by row; the outcome is the same."""
    extra: list[Any] = [(9, "z", None), (9, "z", None)] if repeated else []
    repeated_changes = [("+I", (9, "z", None)), ("-U", (9, "z", None)), ("+U", (9, "z", None))] if repeated else []
    async with opened(tmp_path, table()) as bucket:
        await bucket.put([(1, "a", 9.5), *extra], [0, 1])  # what is not named counts as null
        assert bucket.changelog() == [("+I", (1, "a", None)), *repeated_changes]
        await bucket.put([A])
        start = bucket.log.high_watermark
        await bucket.put([(1, None, None), (3, "n", None)], [1, 0])
        assert bucket.changelog(start) == [
            ("-U", A), ("+U", (1, None, 1.0)), ("+I", (3, "n", None)),
        ]  # fmt: skip
        start = bucket.log.high_watermark
        await bucket.put([(1, None, None), (4, None, None)], [0])  # only the key: nothing to change
        assert bucket.changelog(start) == [("+I", (4, None, None))]
        start = bucket.log.high_watermark
        await bucket.put([(1, None, None)], [0])
        assert bucket.changelog(start) == []
        assert bucket.log.high_watermark == start + 1
        await bucket.put([(1, "full", None)], [2, 1, 0])  # every column: a whole row
        assert await bucket.get(1) == (1, "full", None)


async def test_partial_delete(bucket: Bucket) -> None:
    await bucket.put([A, (2, "x", None)])
    start = bucket.log.high_watermark
    await bucket.put([Delete(1), Delete(2), Delete(3)], [0, 1])
    assert bucket.changelog(start) == [("-U", A), ("+U", (1, None, 1.0)), ("-D", (2, "x", None))]
    assert await bucket.rows() == [(1, None, 1.0)]
    assert bucket.store.row_count == 1


@pytest.mark.parametrize(("targets", "column"), [([1, 2], None), ([0, 7], None), ([-1, 0], None), ([0, 1], "score")])
async def test_bad_target_columns(tmp_path: Path, targets: list[int], column: str | None) -> None:
    columns = [
        dataclasses.replace(c, data_type=c.data_type.with_nullable(False)) if c.name == column else c
        for c in SCHEMA.columns
    ]
    schema = Schema.of(columns, primary_key=("id",))
    async with opened(tmp_path, table(schema)) as bucket:
        with pytest.raises(errors.InvalidTargetColumnError):
            await bucket.put([A], targets)
        assert bucket.log.end_offset == 0
        await bucket.put([A], [0, 1, 2])  # all columns are no partial update


@pytest.mark.parametrize("image", ["FULL", "WAL"])
async def test_first_row(tmp_path: Path, image: str) -> None:
    async with opened(tmp_path, table(merge__engine="first_row", changelog_image=image)) as bucket:
        await bucket.put([A, C, B, Delete(1)])
        await bucket.put([B, (3, "n", None)])
        assert bucket.changelog() == [("+I", A), ("+I", C), ("+I", (3, "n", None))]
        assert await bucket.rows() == [A, C, (3, "n", None)]
        end = bucket.log.end_offset
        assert (await bucket.put([B])).end_offset == end + 1
        for targets in ([0, 1], [0, 1, 2]):
            with pytest.raises(errors.UnknownServerError, match="partial"):
                await bucket.put([A], targets)
        await bucket.put([B, Delete(2)], agg_mode=1)  # past the engine: the row is replaced, the delete counts
        assert await bucket.rows() == [B, (3, "n", None)]


@pytest.mark.parametrize("image", ["FULL", "WAL"])
@pytest.mark.parametrize("repeated", [False, True])
async def test_versioned(tmp_path: Path, image: str, repeated: bool) -> None:
    properties = {"merge__engine": "versioned", "changelog_image": image}
    extra: list[Any] = [(9, "z", 0.0), (9, "z", -1.0)] if repeated else []
    schema = with_columns(Schema.of(SCHEMA.columns[:2], primary_key=("id",)), Column("version", t.BigIntType()))

    entry = table(schema, **properties, merge__engine_versioned_ver__column="version")
    async with opened(tmp_path, entry) as bucket:
        writes = [(1, "a", 5), (2, "b", None), (3, "c", 7), *((9, "z", 4) for _ in extra)]
        await bucket.put(writes)
        start = bucket.log.high_watermark
        await bucket.put([(1, "old", 4), (2, "none", None), (3, "none", None), *((9, "y", 3) for _ in extra)])
        before: list[Any] = [("-U", (2, "b", None))] if image == "FULL" else []
        assert bucket.changelog(start) == [*before, ("+U", (2, "none", None))]
        await bucket.put([(1, "same", 5), (2, "new", 0), (4, "d", 1)])
        wanted = [(1, "same", 5), (2, "new", 0), (3, "c", 7), (4, "d", 1)]
        assert await bucket.rows() == wanted + [(9, "z", 4)] * bool(extra)
        await bucket.put([Delete(1)])
        assert await bucket.get(1) is not None
        with pytest.raises(errors.UnknownServerError, match="partial"):
            await bucket.put([(1, "a", 9)], [0, 1])


@pytest.mark.parametrize("engine", [None, "first_row", "aggregation"])
async def test_deletes_can_be_forbidden(tmp_path: Path, engine: str | None) -> None:
    properties = {"merge__engine": engine} if engine else {}
    async with opened(tmp_path, table(**properties, delete_behavior="disable")) as bucket:
        with pytest.raises(errors.DeletionDisabledError):
            await bucket.put([A, Delete(1)])
        assert bucket.log.end_offset == 0
        await bucket.put([A])
        assert await bucket.rows() == [A]


async def test_deletes_can_be_ignored(tmp_path: Path) -> None:
    async with opened(tmp_path, table(delete_behavior="ignore")) as bucket:
        await bucket.put([A, Delete(1), C])
        await bucket.put([Delete(1)])
        await bucket.put([Delete(1)], [0, 1])
        assert bucket.changelog() == [("+I", A), ("+I", C)]
        assert bucket.log.high_watermark == 4


AGGREGATED = Schema.of(
    [
        Column("id", t.BigIntType(nullable=False)),
        Column("total", t.TinyIntType(), agg_function=AggFunction("sum")),
        Column("price", t.DecimalType(6, 2), agg_function=AggFunction("product")),
        Column("top", t.DoubleType(), agg_function=AggFunction("max")),
        Column("low", t.StringType(), agg_function=AggFunction("min")),
        Column("all", t.BooleanType(), agg_function=AggFunction("bool_and")),
        Column("names", t.StringType(), agg_function=AggFunction("listagg", {"delimiter": "|"})),
        Column("first", t.IntType(), agg_function=AggFunction("first_value")),
        Column("last", t.IntType(), agg_function=AggFunction("last_value")),
        Column("plain", t.ArrayType(t.IntType())),
        Column("single", t.FloatType(), agg_function=AggFunction("SUM")),
    ],
    primary_key=("id",),
)


async def test_columns_that_are_added_while_a_write_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = table(AGGREGATED, merge__engine="aggregation")
    schemas = {1: AGGREGATED, 2: with_columns(AGGREGATED, Column("more", t.StringType()))}
    altered = table(schemas, merge__engine="aggregation")
    prepare = preparing.prepare

    def prepare_late(writes: Sequence[preparing.Write]) -> Any:
        entry.table_info, entry.schemas = altered.table_info, altered.schemas
        return prepare(writes)

    async with opened(tmp_path, entry) as bucket:
        row = (1,) + (None,) * (len(AGGREGATED.columns) - 1)
        await bucket.put([row])
        monkeypatch.setattr(preparing, "prepare", prepare_late)
        await bucket.put([row])
        assert await bucket.get(1) == (*row, None)


@pytest.mark.parametrize("repeated", [False, True])
async def test_aggregation(tmp_path: Path, repeated: bool) -> None:
    first = (1, 100, Decimal("1.50"), 2.0, "m", True, "x", None, 1, [1], 0.5)
    second = (1, 100, Decimal("3.33"), 1.0, "k", False, "y", 7, None, None, 0.25)
    merged = (1, -56, Decimal("5.00"), 2.0, "k", False, "x|y", 7, None, [1], 0.75)
    empty = (1, *([None] * 10))
    async with opened(tmp_path, table(AGGREGATED, merge__engine="aggregation")) as bucket:
        if repeated:
            await bucket.put([first, second])
        else:
            await bucket.put([first])
            await bucket.put([second, (2, *first[1:])])
            assert await bucket.get(2) == (2, *first[1:])
        assert await bucket.get(1) == merged
        await bucket.put([empty, empty] if repeated else [empty])
        assert await bucket.get(1) == merged
        assert bucket.changelog()[-2:] == [("-U", merged), ("+U", merged)]  # recorded although nothing changed
        await bucket.put([empty])
        await bucket.put([Delete(1)])
        assert await bucket.get(1) == merged
        start = bucket.log.high_watermark
        await bucket.put([first], [0, 1])
        assert (await bucket.get(1) or ())[1:3] == (44, Decimal("5.00"))
        await bucket.put([empty], [0])
        assert [kind for kind, _ in bucket.changelog(start)] == ["-U", "+U", "-U", "+U"]
        await bucket.put([first], agg_mode=1)
        assert await bucket.get(1) == first
        await bucket.put([(1, 5, *([None] * 9))], [0, 1], agg_mode=1)
        assert await bucket.get(1) == (1, 5, *first[2:])


async def test_aggregation_with_deletes(tmp_path: Path) -> None:
    entry = table(AGGREGATED, merge__engine="aggregation", delete_behavior="allow")
    async with opened(tmp_path, entry) as bucket:
        row = (1, 1, Decimal("1.00"), *([None] * 8))
        await bucket.put([row])
        await bucket.put([Delete(1)], [0, 1])
        assert await bucket.get(1) == (1, None, *row[2:])
        await bucket.put([Delete(1)], [0, 2])
        assert await bucket.get(1) is None
        await bucket.put([row, Delete(1)])
        assert await bucket.rows() == []
        assert bucket.changelog()[-1] == ("-D", row)
        assert bucket.store.row_count == 0


async def test_partial_aggregation_needs_nullable_columns(tmp_path: Path) -> None:
    schema = with_columns(
        Schema.of(AGGREGATED.columns[:2], primary_key=("id",)), Column("n", t.IntType(nullable=False))
    )
    async with opened(tmp_path, table(schema, merge__engine="aggregation")) as bucket:
        for targets in ([0, 1], [0, 1, 2], [1, 2]):
            with pytest.raises(errors.InvalidTargetColumnError):
                await bucket.put([(1, 2, 3)], targets)
        await bucket.put([(1, 2, 3)])


async def test_rows_of_older_schemas(tmp_path: Path) -> None:
    wide = with_columns(SCHEMA, Column("more", t.StringType()))
    schemas = {1: SCHEMA, 2: wide}

    entry = table()
    async with opened(tmp_path / "a", entry) as bucket:
        await bucket.put([A, C])
        entry.schemas[2] = wide
        old = entry.table_info
        descriptor = old.descriptor.replace(schema=wide)
        entry.table_info = TableInfo(old.table_path, 1, 2, descriptor, 0, 0)
        await bucket.put([(1, "n", 3.0, "m"), (3, "n", None, None)])
        await bucket.put([(3, "older", None), (4, "older", None)], schema_id=1)
        await bucket.put([(2, None, None, "p")], [0, 3])
        await bucket.put([Delete(1), (2, "again", 1.0)], schema_id=1)
        expected = [
            ("+I", A), ("+I", C),
            ("-U", (*A, None)), ("+U", (1, "n", 3.0, "m")), ("+I", (3, "n", None, None)),
            ("-U", (3, "n", None, None)), ("+U", (3, "older", None, None)), ("+I", (4, "older", None, None)),
            ("-U", (*C, None)), ("+U", (2, "c", None, "p")),
            ("-D", (1, "n", 3.0, "m")), ("-U", (2, "c", None, "p")), ("+U", (2, "again", 1.0, None)),
        ]  # fmt: skip
        assert bucket.changelog() == expected
        rows = await bucket.rows()
        assert rows == [(2, "again", 1.0, None), (3, "older", None, None), (4, "older", None, None)]
        unknown = kv_batch(entry.table_info, wide, 3, [(1, None, None, None)])
        with pytest.raises(errors.SchemaNotExistError):
            await bucket.tablet.put(memoryview(unknown), (), 0)
        copy = bucket.copy(tmp_path / "b")
    async with opened(copy, table(schemas)) as bucket:
        assert await bucket.rows() == rows


async def test_idempotent_writers(tmp_path: Path) -> None:
    async with opened(tmp_path / "a", table()) as bucket:
        await bucket.put([A], writer_id=7, sequence=0)
        first = await bucket.put([B], writer_id=7, sequence=1)
        assert await bucket.put([Delete(8)], writer_id=7, sequence=2) is not None
        again = await bucket.put([B], writer_id=7, sequence=1)
        assert (again.end_offset, again.duplicate) == (first.end_offset, True)
        with pytest.raises(errors.OutOfOrderSequenceError):
            await bucket.put([B], writer_id=7, sequence=4)
        with pytest.raises(errors.OutOfOrderSequenceError):
            await bucket.put([B], writer_id=8, sequence=1)
        with pytest.raises(errors.FormatError):
            await bucket.put([B], writer_id=8, sequence=-1)
        assert bucket.changelog() == [("+I", A), ("-U", A), ("+U", B)]
        copy = bucket.copy(tmp_path / "b")
    async with opened(copy, table()) as bucket:
        assert (await bucket.put([Delete(8)], writer_id=7, sequence=2)).end_offset == 4
        assert (await bucket.put([B], writer_id=7, sequence=3)).end_offset == 6


async def test_damaged_batches_are_refused_whole(bucket: Bucket) -> None:
    await bucket.put([A])
    good = kv_batch(bucket.entry.table_info, SCHEMA, 1, [B, Delete(1)])
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x40
        with pytest.raises(errors.FlussError) as caught:
            await bucket.tablet.put(memoryview(bad), (), 0)
        if at >= 5:
            assert isinstance(caught.value, errors.CorruptMessageError)
    for length in (0, 5, len(good) - 1):
        with pytest.raises(errors.FormatError):
            await bucket.tablet.put(memoryview(good)[:length], (), 0)
    assert await bucket.rows() == [A]
    assert bucket.log.end_offset == 1


async def test_rows_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """The batch is whole, but its rows are not rows of this table."""
    other = keyed_schema("id", id=t.BigIntType(), name=t.BooleanType())

    async def work(bucket: Bucket) -> None:
        for targets in ((), (0, 1)):
            with pytest.raises(errors.FormatError):
                await bucket.tablet.put(
                    memoryview(kv_batch(bucket.entry.table_info, other, 1, [(1, True)])), targets, 0
                )
        assert bucket.log.end_offset == 0

    async with opened(tmp_path / "compacted", table()) as bucket:
        await work(bucket)
    async with opened(tmp_path / "indexed", table(kv_format="indexed")) as bucket:
        await work(bucket)
