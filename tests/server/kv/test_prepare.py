# SPDX-License-Identifier: Apache-2.0
"""Writes that are prepared together come to the same as each alone, and an error stays with its write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.kv.support import NUMBERED, SCHEMA, Delete, Row, kv_batch, table, with_columns
from tests.shared import raising

from fluss.errors import CorruptMessageError, FlussError, FormatError, SchemaNotExistError
from fluss.metadata import Column, DataType, Schema
from fluss.metadata import types as t
from fluss.records import decode_log_batch, encode_kv_body, iter_log_batches, seal_kv_batch
from fluss.rows import Slices, compacted
from fluss.server.catalog import TableEntry
from fluss.server.kv import prepare as preparing
from fluss.server.kv.ordered import Changes
from fluss.server.kv.prepare import Prepared, Preparer, Write, prepare
from fluss.server.kv.values import ValueCodec
from fluss.server.log.writers import WriterStates

WIDER = with_columns(SCHEMA, Column("extra", t.IntType()))
ENTRIES = {
    "plain": table(),
    "wal": table(changelog_image="wal"),
    "first row": table(merge__engine="first_row"),
    "versioned": table(merge__engine="versioned", merge__engine_versioned_ver__column="id"),
    "changed": table({1: SCHEMA, 2: WIDER}),
    "no deletes": table(delete_behavior="disable"),
}


class Stored:
    """What the bucket of a write holds, and what went in."""

    def __init__(self, entry: TableEntry, writes: Sequence[Row | Delete], schema_id: int, before: Changes) -> None:
        info = entry.table_info
        self.before = before
        self.write = Write(
            info,
            ValueCodec(info.kv_format, entry.schemas, info.schema_id),
            lambda keys: [before.get(key) for key in keys],
            None,
            WriterStates(),
            memoryview(kv_batch(info, entry.schemas[schema_id], schema_id, writes)),
            (),
            0,
        )


def rows(width: int) -> st.SearchStrategy[Row]:
    id_ = st.integers(0, 6)
    name = st.one_of(st.none(), st.sampled_from(["", "a", "ü" * 40]))
    score = st.one_of(st.none(), st.just(1.5))
    return st.tuples(id_, name, score, *[st.just(7)] * (width - 3))


@st.composite
def buckets(draw: st.DrawFn) -> list[Stored]:
    kind = draw(st.sampled_from(sorted(ENTRIES)))
    entry = ENTRIES[kind]
    found: list[Stored] = []
    for _ in range(draw(st.integers(1, 5))):
        schema_id = draw(st.sampled_from(sorted(entry.schemas)))
        width = len(entry.schemas[schema_id].columns)
        before: Changes = {}
        held = draw(st.lists(rows(width), max_size=4))
        if held:
            prepared = prepare([Stored(entry, held, schema_id, {}).write])[0]
            assert isinstance(prepared, Prepared)
            before = prepared.outcome.changes
        write = st.one_of(rows(width), st.builds(Delete, st.integers(0, 6)))
        found.append(Stored(entry, draw(st.lists(write, max_size=8)), schema_id, before))
    return found


def seen(result: Any, schema: Schema) -> Any:
    """What a result says, in a form that can be compared."""
    if not isinstance(result, Prepared):
        return type(result), str(result)
    outcome = result.outcome
    changelog = [
        (batch.header.schema_id, decode_log_batch(batch, schema, "ARROW").to_pylist())
        for batch in iter_log_batches(result.changelog, strict=True, verify=True)
    ]
    return changelog, outcome.change_types, outcome.changes, outcome.rows_added, outcome.highest_number


@given(buckets())
def test_together_and_alone_come_to_the_same(stored: list[Stored]) -> None:
    writes = [one.write for one in stored]
    schema = writes[0].info.schema
    alone = [prepare([write])[0] for write in writes]
    assert [seen(result, schema) for result in prepare(writes)] == [seen(result, schema) for result in alone]


def many(count: int, rows_each: int = 30) -> list[Write]:
    entry = ENTRIES["plain"]
    return [
        Stored(entry, [(i * 1000 + k, f"name {k}", 0.5) for k in range(rows_each)], 1, {}).write for i in range(count)
    ]


def test_an_error_stays_with_its_write() -> None:
    writes = many(4)
    flipped = bytearray(writes[1].records)
    flipped[-1] ^= 1
    writes[1] = writes[1]._replace(records=memoryview(flipped))
    unknown = bytearray(kv_batch(writes[2].info, SCHEMA, 9, [(1, "a", None)]))
    writes[2] = writes[2]._replace(records=memoryview(unknown))

    writes[3] = writes[3]._replace(read_old=raising(OSError, "the disk is gone"))
    first, second, third, fourth = prepare(writes)
    assert isinstance(first, Prepared)
    assert isinstance(second, CorruptMessageError)
    assert isinstance(third, SchemaNotExistError)
    assert isinstance(fourth, OSError)


def test_numbers_are_drawn_once() -> None:
    """Merges are never prepared together: trying again would use numbers up."""
    entry, drawn = table(NUMBERED), iter(range(100))
    writes = [
        Stored(entry, [(f"k{i}", None, "v")], 1, {}).write._replace(target_columns=(0, 2), generate=drawn.__next__)
        for i in range(3)
    ]
    results = prepare(writes)
    assert [result.outcome.highest_number for result in results if isinstance(result, Prepared)] == [0, 1, 2]
    assert next(drawn) == 3


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many writes each job was given."""
    sizes: list[int] = []

    def counted(part: Sequence[Write]) -> Any:
        sizes.append(len(part))
        return prepare(part)

    monkeypatch.setattr(preparing, "prepare", counted)
    return sizes


async def test_writes_of_one_turn_share_jobs(monkeypatch: pytest.MonkeyPatch, jobs: list[int]) -> None:
    """Also those of other tables. Jobs are bounded: a few writes never wait for all of a large request."""
    other = Stored(ENTRIES["first row"], [(1, "a", None)], 1, {}).write
    writes = [*many(15), other, *many(25)]
    monkeypatch.setattr(preparing, "_TOGETHER_BYTES_MAX", 10 * len(writes[0].records))

    with ThreadPoolExecutor(2) as executor:
        preparer = Preparer(executor, jobs_max=2)
        results = await asyncio.gather(*(preparer.prepare(write) for write in writes))
    assert all(isinstance(result, Prepared) for result in results)
    assert sum(jobs) == len(writes)
    assert len(jobs) == 5


async def test_jobs_have_few_writes_however_small_they_are(jobs: list[int]) -> None:
    """The event loop goes on with all writes of a job at once."""
    with ThreadPoolExecutor(1) as executor:
        preparer = Preparer(executor, jobs_max=1)
        await asyncio.gather(*(preparer.prepare(write) for write in many(1_000)))
    assert sum(jobs) == 1_000
    assert max(jobs) <= 256


async def test_writes_that_find_the_thread_busy_wait_and_share_a_job(jobs: list[int]) -> None:
    """Small ones do not wait: they take less time than the way to a thread."""
    go_on = threading.Event()

    def read_slowly(keys: Sequence[bytes]) -> list[bytes | None]:
        assert go_on.wait(20)
        return [None] * len(keys)

    with ThreadPoolExecutor(4) as executor:
        preparer = Preparer(executor, jobs_max=1)
        try:
            slow = preparer.prepare(many(1, 300)[0]._replace(read_old=read_slowly))
            await asyncio.sleep(0)
            small = await asyncio.wait_for(preparer.prepare(many(1, 3)[0]), 10)
            assert isinstance(small, Prepared)
            assert not slow.done()
            waiting = []
            for write in many(5, 300):
                waiting.append(preparer.prepare(write))
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            assert not any(future.done() for future in waiting)
        finally:
            go_on.set()
        await asyncio.gather(slow, *waiting)
    assert jobs == [1, 1, 5]


async def test_numbers_are_drawn_in_a_thread() -> None:
    """Also for few bytes: to reserve numbers may wait for the disk."""
    drawn_in: list[threading.Thread] = []

    def draw() -> int:
        drawn_in.append(threading.current_thread())
        return 1

    write = Stored(table(NUMBERED), [("k", None, "v")], 1, {}).write._replace(target_columns=(0, 2), generate=draw)
    with ThreadPoolExecutor(1) as executor:
        assert isinstance(await Preparer(executor, jobs_max=1).prepare(write), Prepared)
    assert drawn_in
    assert threading.main_thread() not in drawn_in


async def test_a_pool_without_threads_fails_the_writes() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    preparer = Preparer(executor, jobs_max=1)
    for outcome in await asyncio.gather(*(preparer.prepare(w) for w in many(3, 200)), return_exceptions=True):
        assert isinstance(outcome, (FlussError, RuntimeError))


@pytest.mark.parametrize("properties", [{}, {"merge__engine": "aggregation"}])
@pytest.mark.parametrize(
    ("dtype", "sent", "good", "bad"),
    [
        (t.TimestampType(0, nullable=False), t.TimestampType(3), 1_000_000_000, 1_001_000_000),
        (t.TimestampLtzType(6, nullable=False), t.TimestampLtzType(9), 1_000, 1_001),
        (t.TimeType(0, nullable=False), t.TimeType(3), 1_000, 1_001),
        (t.BinaryType(4, nullable=False), t.BytesType(), b"abcd", b"ab"),
    ],
    ids=lambda value: str(value),
)
def test_a_cut_key_is_refused(dtype: DataType, sent: DataType, good: Any, bad: Any, properties: dict[str, str]) -> None:
    """Clients of Apache Fluss neither cut nor pad; the columns of the changelog do."""
    entry = table(Schema.of([Column("k", dtype), Column("v", t.IntType())], primary_key=("k",)), **properties)
    info = entry.table_info
    for value in (good, bad):
        key = compacted.encode_key([sent.with_nullable(False)], [value])
        row = compacted.encode_row([sent, t.IntType()], [value, 1])
        parts = seal_kv_batch(encode_kv_body(Slices.from_list([key]), Slices.from_list([row])), 1, -1, -1)
        records = memoryview(b"".join(map(bytes, parts)))
        codec = ValueCodec(info.kv_format, entry.schemas, 1)
        write = Write(info, codec, lambda keys: [None] * len(keys), None, WriterStates(), records, (), 0)
        (result,) = prepare([write])
        if value is good:
            assert isinstance(result, Prepared), result
        else:
            assert isinstance(result, FormatError)
            assert "is not that of the key columns ('k' " in str(result)
