# SPDX-License-Identifier: Apache-2.0
"""Stores, aggregation functions, keys, sequences and cursors by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.kv.support import NUMBERED, SCHEMA, opened, table
from tests.server.log_support import run
from tests.simulation.disk import SimDisk

from fluss import errors
from fluss.metadata import AggFunction, Column, TableBucket
from fluss.metadata import types as t
from fluss.records import decode_value_batch
from fluss.rows import CompactedKeyEncoder, IcebergKeyEncoder, PaimonKeyEncoder
from fluss.rows.logical import from_arrow, to_arrow
from fluss.server.auth import Principal
from fluss.server.config import ServerConfig
from fluss.server.kv import budget as budget_module
from fluss.server.kv.aggregate import aggregate_of, column_aggregate_of
from fluss.server.kv.budget import StoreBudget
from fluss.server.kv.cursors import Cursor, Cursors
from fluss.server.kv.ordered import DamagedStoreError
from fluss.server.kv.rocksdb import WriterProcess
from fluss.server.kv.sequence import FILE_NAME, BlockSource, NumberSequence
from fluss.server.kv.store import META_NAME, Store
from fluss.server.kv.values import ValueCodec, decode_keys, rows_of_keys
from fluss.server.scheduler import Scheduler

NAN = float("nan")


# -- stores -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def new_store(tmp_path: Path, executor: ThreadPoolExecutor) -> Callable[..., Store]:
    """Makes a store of the folder `kv`, and opens it."""

    def new_store(*, is_open: bool = True, **options: int) -> Store:
        store = Store(tmp_path / "kv", StoreBudget(1 << 20, executor, **options))
        if is_open:
            store.open()
        return store

    return new_store


def test_a_store_counts_its_memory(tmp_path: Path, new_store: Callable[..., Store]) -> None:
    store = new_store()
    store.apply({i.to_bytes(8, "big"): b"x" * 20 for i in range(1000)}, 1000, 1000)
    full = store.memory_bytes
    assert 150_000 < full < 300_000
    for _ in range(20):  # the same keys again take no more
        store.apply({i.to_bytes(8, "big"): b"y" * 20 for i in range(1000)}, 2000, 0)
    assert store.memory_bytes == pytest.approx(full, rel=0.02)
    store.apply({i.to_bytes(8, "big"): b"y" * 2000 for i in range(1000)}, 3000, 0)
    assert store.memory_bytes > 2_000_000
    store.close(keep=False)
    assert not (tmp_path / "kv").exists()


def open_tables(folder: Path) -> set[str]:
    """The folders below one of which the process has files of RocksDB open."""
    found = set()
    for handle in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if path.suffix == ".sst" and folder in path.parents:
                found.add(path.parent.name)
    return found


def test_few_stores_hold_files(tmp_path: Path, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "_VIEWS_MAX", 2, raising=False)
    budget = StoreBudget(1 << 20, executor, writer=WriterProcess())
    stores = [Store(tmp_path / str(number), budget) for number in range(5)]
    for number, store in enumerate(stores):
        store.apply({bytes([number, i]): bytes([i]) for i in range(100)}, 100, 100)
        store.start_spill().result()
        assert store.finish_spill()
    assert open_tables(tmp_path) == {"3", "4"}
    scan = stores[0].snapshot()
    assert next(scan)[0] == b"\0"
    sizes = [store.size_bytes for store in stores]
    assert all(sizes)
    for number, store in enumerate(stores):
        assert not store.is_in_memory
        assert store.get_many([bytes([number, 7]), b"other"]) == [b"\x07", None]
        assert list(itertools.chain.from_iterable(store.values())) == [bytes([i]) for i in range(100)]
    assert open_tables(tmp_path) == {"0", "3", "4"}, "a scan keeps its files open"
    assert budget.views_reopened == 5
    assert sum(map(len, scan)) == 100 - 16
    del scan
    assert open_tables(tmp_path) == {"3", "4"}
    assert [store.size_bytes for store in stores] == sizes
    # What is written while a view is closed is there, and what is wiped is gone.
    stores[0].apply({b"more": b"more"}, 101, 1)
    spill = stores[0].start_spill()
    assert stores[0].get_many([b"more", bytes([0, 7])]) == [b"more", b"\x07"]
    spill.result()
    assert stores[0].finish_spill()
    assert stores[0].get_many([b"more", bytes([0, 7])]) == [b"more", b"\x07"]
    stores[1].wipe()
    assert stores[1].get_many([bytes([1, 7])]) == [None]
    for store in stores:
        store.close(keep=True)
    budget.writer.stop()
    assert open_tables(tmp_path) == set()


def test_a_spill_that_never_began_is_taken_back(executor: ThreadPoolExecutor, new_store: Callable[..., Store]) -> None:
    """The thread that wipes may be the only one there is."""
    store = new_store()
    store.apply({b"k": b"v"}, 1, 1)
    executor.submit(lambda: (store.start_spill(), store.wipe())).result(10)
    assert store.get_many([b"k"]) == [None]
    assert store.generation == 2
    store.apply({b"k": b"v"}, 1, 1)
    store.close(keep=True)
    again = new_store()
    assert (again.get_many([b"k", b"m"]), again.applied_offset, again.row_count) == ([b"v", None], 1, 1)
    assert list(again.values()) == [[b"v"]]
    again.close(keep=True)


def test_a_reopened_store_has_its_filter_and_the_shared_cache(tmp_path: Path, new_store: Callable[..., Store]) -> None:
    """Neither is written down in the files, so a store that was there before once had to do without them."""
    for offset in (1, 2, 3):
        store = new_store(cache_bytes=12345678)
        assert store.get_many([b"1"]) == [b"v" if offset > 1 else None]
        assert bool(store.budget.blocks.get_usage()) == (offset > 1)
        store.apply({b"%d" % offset: b"v"}, offset, 1)
        store.close(keep=True)
        assert "filter_policy: bloomfilter" in (tmp_path / "kv" / "LOG").read_text()


def test_a_store_with_a_damaged_head(tmp_path: Path, new_store: Callable[..., Store]) -> None:
    store = new_store()
    store.apply({b"k": b"v"}, 1, 1)
    store.start_spill().result()
    store.finish_spill()
    store.close(keep=True)
    head = tmp_path / "kv" / META_NAME
    good = head.read_bytes()
    for bad in (good.replace(b'"rows": 1', b'"rows": 7'), good[:-2]):
        head.write_bytes(bad)
        again = new_store(is_open=False)
        with pytest.raises(DamagedStoreError):
            again.open()
        again.close(keep=False)
    # A store of an earlier release has none, and is as good as none itself.
    head.unlink()
    again = new_store()
    assert (again.applied_offset, again.get_many([b"k"])) == (0, [None])
    again.close(keep=False)


# -- aggregation ------------------------------------------------------------------------------------------------------


def _functions(name: str, data_type: t.DataType, **parameters: str) -> Any:
    column = Column("c", data_type, agg_function=AggFunction(name, parameters))
    one, many = aggregate_of(column), column_aggregate_of(column)

    def both(acc: Any, new: Any) -> Any:
        result = one(acc, new)
        by_column = many(to_arrow([acc, None], data_type), to_arrow([new, None], data_type))
        by_column = by_column.combine_chunks() if isinstance(by_column, pa.ChunkedArray) else by_column
        found, nothing = from_arrow(by_column.cast(data_type.to_arrow(), safe=False), data_type)
        assert nothing is None
        assert repr(found) == repr(result), f"{name}({acc}, {new}) by column is {found}, by value {result}"
        return result

    return both


CASES: list[tuple[str, t.DataType, Any, Any, Any]] = [
    ("sum", t.TinyIntType(), 127, 1, -128),
    ("sum", t.SmallIntType(), -32768, -1, 32767),
    ("sum", t.IntType(), 2**31 - 1, 1, -(2**31)),
    ("sum", t.BigIntType(), 2**63 - 1, 1, -(2**63)),
    ("sum", t.DoubleType(), 0.5, 0.25, 0.75),
    ("sum", t.FloatType(), 1.0, 0.10000000149011612, 1.100000023841858),
    ("sum", t.FloatType(), 3.4028234663852886e38, 3.4028234663852886e38, float("inf")),
    ("sum", t.DecimalType(5, 2), Decimal("1.25"), Decimal("2.50"), Decimal("3.75")),
    ("sum", t.DecimalType(3, 2), Decimal("9.25"), Decimal("2.50"), None),
    ("product", t.TinyIntType(), 100, 3, 44),
    ("product", t.BigIntType(), 2**40, 2**40, 0),
    ("product", t.DoubleType(), 1.5, 2.0, 3.0),
    ("product", t.DecimalType(5, 2), Decimal("1.25"), Decimal("1.30"), Decimal("1.63")),
    ("max", t.IntType(), 1, 2, 2),
    ("min", t.IntType(), 1, 2, 1),
    ("max", t.DateType(), 5, 3, 5),
    ("min", t.TimeType(3), 5, 3, 3),
    ("max", t.TimestampType(6), 1000, 5000, 5000),
    ("max", t.StringType(), "a\U0001f600", "a\uffff", "a\U0001f600"),
    ("min", t.CharType(2), "b", "a", "a"),
    ("max", t.DoubleType(), NAN, 1.0, NAN),
    ("min", t.DoubleType(), NAN, 1.0, 1.0),
    ("max", t.DoubleType(), -0.0, 0.0, 0.0),
    ("min", t.FloatType(), 0.0, -0.0, -0.0),
    ("max", t.DecimalType(5, 2), Decimal("1.20"), Decimal("1.10"), Decimal("1.20")),
    ("last_value", t.IntType(), 1, 2, 2),
    ("last_value_ignore_nulls", t.IntType(), 1, 2, 2),
    ("first_value", t.IntType(), 1, 2, 1),
    ("FIRST-VALUE-ignore_nulls", t.IntType(), 1, 2, 1),
    ("listagg", t.StringType(), "a", "b", "a,b"),
    ("string_agg", t.CharType(9), "a", "b", "a,b"),
    ("bool_and", t.BooleanType(), True, False, False),
    ("bool_and", t.BooleanType(), True, True, True),
    ("bool_or", t.BooleanType(), False, False, False),
    ("bool_or", t.BooleanType(), False, True, True),
]


@pytest.mark.parametrize(("name", "data_type", "acc", "new", "expected"), CASES)
def test_functions(name: str, data_type: t.DataType, acc: Any, new: Any, expected: Any) -> None:
    function = _functions(name, data_type)
    assert repr(function(acc, new)) == repr(expected)
    plain_name = name.lower().replace("-", "_")
    assert repr(function(acc, None)) == ("None" if plain_name == "last_value" else repr(acc))
    assert repr(function(None, new)) == repr(new)


def test_delimiter_of_listagg() -> None:
    function = _functions("listagg", t.StringType(), delimiter=" / ")
    assert function("a", "b") == "a / b"
    assert function("", "b") == " / b"


def test_unknown_function() -> None:
    strange = SimpleNamespace(name="c", data_type=t.IntType(), agg_function=SimpleNamespace(name="median"))
    with pytest.raises(errors.UnknownServerError, match="median"):
        aggregate_of(strange)  # type: ignore[arg-type]


# -- keys -------------------------------------------------------------------------------------------------------------

KEY_TYPES: list[tuple[t.DataType, Any]] = [
    (t.IntType(nullable=False), st.integers(-(2**31), 2**31 - 1)),
    (t.BigIntType(nullable=False), st.integers(-(2**63), 2**63 - 1)),
    (t.DateType(nullable=False), st.integers(-10_000, 100_000)),
    (t.TimeType(3, nullable=False), st.integers(0, 86_399_999)),
    (t.TimestampType(6, nullable=False), st.integers(-(10**15), 10**15).map(lambda n: n * 1000)),
    (t.FloatType(nullable=False), st.floats(width=32, allow_nan=False)),
    (t.DoubleType(nullable=False), st.floats(allow_nan=False)),
    (t.StringType(nullable=False), st.text(st.characters(codec="utf-8"), max_size=20)),
    (t.BytesType(nullable=False), st.binary(max_size=20)),
    (t.BinaryType(3, nullable=False), st.binary(min_size=3, max_size=3)),
    (t.DecimalType(9, 2, nullable=False), st.integers(-(10**8), 10**8).map(lambda n: Decimal(n).scaleb(-2))),
    (t.DecimalType(38, 0, nullable=False), st.integers(-(10**37), 10**37).map(Decimal)),
]


@pytest.mark.parametrize("kind", [CompactedKeyEncoder, PaimonKeyEncoder, IcebergKeyEncoder])
@pytest.mark.parametrize("number", range(len(KEY_TYPES)))
@settings(max_examples=8)
@given(data=st.data())
def test_keys_come_back(kind: Any, number: int, data: st.DataObject) -> None:
    dtype, values = KEY_TYPES[number]
    drawn = data.draw(st.lists(values, min_size=1, max_size=4))
    encoder = kind(["k"], [dtype])
    (column,) = decode_keys(encoder, [encoder.encode([value]) for value in drawn])
    assert from_arrow(column, dtype) == drawn


def test_keys_that_are_none() -> None:
    for dtype, bad in ((t.IntType(nullable=False), b"1234"), (t.StringType(nullable=False), b"\xff")):
        with pytest.raises(errors.FormatError):
            decode_keys(IcebergKeyEncoder(["k"], [dtype]), [bad])
    null = PaimonKeyEncoder(["k"], [t.IntType()])
    with pytest.raises(errors.FormatError, match="null"):
        decode_keys(null, [b"\x00\x01" + bytes(14)])


def test_rows_of_keys() -> None:
    info = table().table_info
    codec = ValueCodec("INDEXED", {1: SCHEMA}, 1)
    keys = [CompactedKeyEncoder(["id"], [t.BigIntType(nullable=False)]).encode([i]) for i in (5, 300)]
    assert codec.to_rows(codec.decode_rows(1, rows_of_keys(info, codec, keys))) == [(5, None, None), (300, None, None)]


# -- auto-increment ---------------------------------------------------------------------------------------------------


def test_blocks_of_numbers(tmp_path: Path) -> None:
    source = BlockSource(tmp_path / "t", lambda: 3)
    first = NumberSequence(source, "0", 100, "n")
    second = NumberSequence(source, "1", 100, "n")
    assert [first(), second(), first(), first(), first(), second()] == [1, 4, 2, 3, 7, 5]
    again = BlockSource(tmp_path / "t", lambda: 3)
    resumed = NumberSequence(again, "0", 100, "n")
    resumed.resume(7)
    assert resumed() == 8
    resumed.resume(3)  # only a start counts
    assert resumed() == 9
    fresh = NumberSequence(again, "2", 11, "n")
    fresh.resume(0)
    assert fresh() == 10
    assert fresh() == 11
    with pytest.raises(errors.UnknownServerError, match="run out"):
        fresh()


def test_a_block_of_numbers_survives_a_loss_of_power(tmp_path: Path) -> None:
    for seed in range(20):
        with SimDisk.of_seed(tmp_path, seed) as (root, sim):
            source = BlockSource(root / "t", lambda: 3)
            assert (source.take("0"), source.take("1")) == ((1, 3), (4, 6))
            sim.lose_power()
            assert BlockSource(root / "t", lambda: 3).take("2") == (7, 9)


def test_damaged_numbers_are_not_guessed(tmp_path: Path) -> None:
    source = BlockSource(tmp_path, lambda: 3)
    source.take("0")
    path = tmp_path / FILE_NAME
    good = path.read_bytes()
    for at in range(len(good) - 1):
        bad = bytearray(good)
        bad[at] ^= 1
        path.write_bytes(bad)
        with pytest.raises(errors.UnknownServerError, match="damaged"):
            source.take("0")
    path.write_bytes(good)
    assert source.take("1").first == 4
    path.unlink()
    path.mkdir()
    with pytest.raises(errors.KvStorageError):
        source.take("0")


@pytest.mark.parametrize("image", ["FULL", "WAL"])
async def test_auto_increment(tmp_path: Path, image: str) -> None:
    entry = table(NUMBERED, changelog_image=image)

    async with opened(tmp_path / "a", entry) as bucket:
        await bucket.put([("a", None, "x"), ("b", None, "y")], [0, 2])
        await bucket.put([("b", None, "z"), ("c", None, "x"), ("c", None, "w")], [0, 2])
        await bucket.put([("d", None, None)], [0])
        rows = [("a", 1, "x"), ("b", 2, "z"), ("c", 3, "w"), ("d", 4, None)]
        assert await bucket.rows() == rows
        for targets in ([], [0, 1, 2], [0, 1]):
            with pytest.raises(errors.InvalidTargetColumnError):
                await bucket.put([("e", None, "x")], targets)
        copy = bucket.copy(tmp_path / "b")
    async with opened(copy, entry) as bucket:  # after a crash
        await bucket.put([("e", None, "x")], [0, 2])
        assert (await bucket.get("e")) == ("e", 5, "x")
    async with opened(copy, entry) as bucket:  # after a clean end
        await bucket.put([("f", None, "x")], [0, 2])
        assert (await bucket.get("f")) == ("f", 6, "x")


@pytest.mark.parametrize("found", ["older", "missing"])
async def test_numbers_of_rows_are_not_given_again_when_their_file_is_older(tmp_path: Path, found: str) -> None:
    entry = table(NUMBERED, auto__increment_cache__size="2")
    async with opened(tmp_path, entry) as bucket:
        await bucket.put([("a", None, "x")], [0, 2])
        older = (tmp_path / FILE_NAME).read_bytes()
        await bucket.put([("b", None, "x"), ("c", None, "x")], [0, 2])
    if found == "older":
        (tmp_path / FILE_NAME).write_bytes(older)
    else:
        (tmp_path / FILE_NAME).unlink()
    async with opened(tmp_path, entry) as bucket:
        await bucket.put([("d", None, "x"), ("e", None, "x")], [0, 2])
        assert [row[1] for row in await bucket.rows()] == [1, 2, 3, 4, 5]


# -- cursors ----------------------------------------------------------------------------------------------------------


def _tablet(number: int = 0) -> Any:
    """All that a cursor wants to know of a tablet."""
    return SimpleNamespace(log=SimpleNamespace(bucket=TableBucket(1, number)))


def read(cursor: Cursor, size_max: int) -> list[bytes]:
    batch = b"".join(run(cursor.read(size_max, Scheduler().begin())))
    return decode_value_batch(batch).to_list() if batch else []


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 300), max_size=80),
    limit=st.none() | st.integers(0, 100),
    sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=5),
)
def test_batches_of_a_cursor_are_full_and_lose_nothing(lengths: list[int], limit: int | None, sizes: list[int]) -> None:
    values = [bytes([number % 256]) * length for number, length in enumerate(lengths)]
    cursor = Cursor(_tablet(), iter([values[at : at + 7] for at in range(0, len(values), 7)]), limit, 0.0)
    found: list[bytes] = []
    for size_max in itertools.cycle(sizes):
        batch = read(cursor, size_max)
        size = sum(len(value) + 4 for value in batch)
        assert size <= size_max or len(batch) == 1
        found += batch
        if not cursor.has_more:
            break
        following = values[len(found)]
        assert batch
        assert size + len(following) + 4 > size_max, "another value would have fitted"
    assert found == values[:limit]


def test_cursors() -> None:
    now = 0.0
    options = {"kv.scanner.max-per-bucket": "2", "kv.scanner.max-per-server": "3", "kv.scanner.ttl": "10 s"}
    cursors = Cursors(ServerConfig(options), lambda: now)
    parts = [[bytes(10)] * 4, [bytes(10)] * 6]
    first = cursors.open(_tablet(), iter(parts), None)
    assert len(read(first, 30)) == 2
    assert first.has_more
    with pytest.raises(errors.InvalidScanRequestError):
        cursors.resume(first.scanner_id, 2)
    assert cursors.resume(first.scanner_id, 1) is first
    assert len(read(first, 1)) == 1  # at least one
    assert len(read(first, 1 << 20)) == 7
    assert not first.has_more
    limited = cursors.open(_tablet(), iter(parts), 4)
    assert len(read(limited, 20)) == 1
    assert len(read(limited, 1 << 20)) == 3
    assert not limited.has_more
    with pytest.raises(errors.TooManyScannersError, match="open scans"):
        cursors.open(_tablet(), iter(parts), None)
    cursors.open(_tablet(1), iter(parts), None)
    with pytest.raises(errors.TooManyScannersError, match="server"):
        cursors.open(_tablet(2), iter(parts), None)
    now = 11.0
    with pytest.raises(errors.ScannerExpiredError):
        cursors.resume(first.scanner_id, 2)
    with pytest.raises(errors.UnknownScannerIdError):
        cursors.resume(b"unknown", 1)
    assert len(cursors) == 0
    cursors.end(b"unknown")
    kept = cursors.open(_tablet(), iter(parts), None)
    cursors.drop(kept.bucket)
    with pytest.raises(errors.UnknownScannerIdError):
        cursors.resume(kept.scanner_id, 1)


def test_cursors_of_one_state_share_its_memory_and_the_others_count() -> None:
    cursors = Cursors(ServerConfig({"kv.memory-size": "1mb"}))
    for _ in range(3):
        cursors.open(_tablet(), iter([]), None, log_offset=5, row_count=8_000)
    assert cursors.memory_bytes == 800_000
    cursors.open(_tablet(), iter([]), None, log_offset=6, row_count=4_000)
    with pytest.raises(errors.TooManyScannersError, match=r"kv\.memory-size"):
        cursors.open(_tablet(1), iter([]), None, log_offset=6, row_count=1)
    cursors.drop(TableBucket(1, 0))
    assert cursors.memory_bytes == 0


def test_cursors_of_one_user_leave_room_for_others() -> None:
    cursors = Cursors(ServerConfig({"kv.scanner.max-per-bucket": "4", "kv.scanner.max-per-server": "8"}))
    for _ in range(3):
        cursors.open(_tablet(), iter([]), None, owner=Principal("mallory"))
    with pytest.raises(errors.TooManyScannersError, match="User:mallory has 3 of the 4 scans that TableBucket"):
        cursors.open(_tablet(), iter([]), None, owner=Principal("mallory"))
    cursors.open(_tablet(), iter([]), None, owner=Principal("alice"))
    for _ in range(3):
        cursors.open(_tablet(1), iter([]), None, owner=Principal("mallory"))
    with pytest.raises(errors.TooManyScannersError, match="User:mallory has 6 of the 8 scans that the server"):
        cursors.open(_tablet(2), iter([]), None, owner=Principal("mallory"))
    cursors.open(_tablet(2), iter([]), None, owner=Principal("alice"))


def test_expired_cursors_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.server.kv.cursors._EXPIRED_REMEMBERED", 2)
    now = 0.0
    cursors = Cursors(ServerConfig({}), lambda: now)
    opened_ = [cursors.open(_tablet(), iter([]), None) for _ in range(3)]
    now = 1e6
    with pytest.raises(errors.ScannerExpiredError):
        cursors.resume(opened_[2].scanner_id, 1)
    with pytest.raises(errors.UnknownScannerIdError):
        cursors.resume(opened_[0].scanner_id, 1)


async def test_budget_outlives_its_loop(executor: ThreadPoolExecutor, new_store: Callable[..., Store]) -> None:
    """A spill may end after the loop of its server."""
    store = new_store()
    store.apply({bytes([i % 256, i // 256]): b"v" for i in range(20_000)}, 1, 1)
    store.budget.spill(store)
    await asyncio.sleep(0)
    executor.shutdown()
    assert store.finish_spill()
    store.close(keep=False)
