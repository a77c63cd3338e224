# SPDX-License-Identifier: Apache-2.0
"""Rows that went to disk, as memory remembers them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.server.kv import engine, row_cache
from fluss.server.kv.budget import StoreBudget
from fluss.server.kv.row_cache import UNKNOWN, CachedRows, RowCache
from fluss.server.kv.store import Store

MEGABYTE = 1 << 20

Spill = dict[bytes, "bytes | None"]


@pytest.fixture(autouse=True)
def _few_keys_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "_KEYS_MIN", 1)
    monkeypatch.setattr(row_cache, "_SAMPLE_STEP", 1)


@pytest.fixture
def _colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of two bits: nearly every key meets another one."""
    hashes_of = row_cache._hashes_of
    monkeypatch.setattr(row_cache, "_hashes_of", lambda keys: hashes_of(keys) & np.uint32(3))


def added(rows: CachedRows, spilled: Spill) -> None:
    rows.add(rows.prepare(spilled))


def known(rows: CachedRows, keys: list[bytes]) -> Spill:
    """What it tells of the keys it knows."""
    values: list[Any] = rows.get_many(keys) or [UNKNOWN] * len(keys)
    return {key: value for key, value in zip(keys, values) if value is not UNKNOWN}


_keys = st.one_of(
    st.integers(0, 40).map(lambda number: b"%d" % number),
    st.binary(max_size=70),
    st.integers(55, 75).map(lambda length: b"k" * length),
)
_values = st.one_of(st.none(), st.binary(min_size=1, max_size=40))
_spills = st.lists(st.dictionaries(_keys, _values, max_size=40), max_size=12)


@settings(max_examples=150)
@given(spills=_spills, limit_bytes=st.sampled_from([0, 300, 2_000, MEGABYTE]))
def test_what_is_known_is_what_went_to_disk_last(spills: list[Spill], limit_bytes: int) -> None:
    cache = RowCache(limit_bytes)
    rows = cache.join()
    disk: Spill = {}
    for spilled in spills:
        added(rows, spilled)
        disk |= spilled
        asked = [*disk, b"never written"]
        found = known(rows, asked)
        assert found == {key: disk[key] for key in found}
        if limit_bytes == MEGABYTE:
            assert found.keys() == {key for key in disk if len(key) <= row_cache._KEY_BYTES_MAX}
        assert cache.size_bytes <= limit_bytes


@pytest.mark.usefixtures("_colliding")
@settings(max_examples=150)
@given(spills=_spills)
def test_keys_with_the_same_hash_are_never_mixed_up(spills: list[Spill]) -> None:
    rows = RowCache(MEGABYTE).join()
    disk: Spill = {}
    for spilled in spills:
        added(rows, spilled)
        disk |= spilled
        found = known(rows, list(disk))
        assert found == {key: disk[key] for key in found}
    assert not disk or len(known(rows, list(disk))) <= 4


def test_many_small_spills_become_few_parts() -> None:
    rows = RowCache(MEGABYTE).join()
    for number in range(200):
        added(rows, {b"%d" % (number * 10 + i): b"value" for i in range(10)})
    assert len(rows.parts) < 12
    assert len(known(rows, [b"%d" % number for number in range(2_000)])) == 2_000


def test_the_oldest_rows_of_the_largest_store_go_first() -> None:
    cache = RowCache(100_000)
    small, large = cache.join(), cache.join()
    added(small, {b"small": b"value"})
    spills = [{b"%d-%d" % (number, i): b"x" * 80 for i in range(100)} for number in range(20)]
    for spilled in spills:
        added(large, spilled)
    assert 50_000 < cache.size_bytes <= 100_000
    assert known(small, [b"small"]) == {b"small": b"value"}
    assert known(large, list(spills[0])) == {}
    assert known(large, list(spills[-1])) == spills[-1]


def test_rows_that_do_not_fit_leave_nothing_older_behind() -> None:
    rows = RowCache(10_000).join()
    added(rows, {b"k": b"old"})
    added(rows, {b"k": b"new", b"other": b"x" * 20_000})
    assert known(rows, [b"k"]) == {}


def test_a_store_that_is_gone_takes_no_room() -> None:
    cache = RowCache(MEGABYTE)
    rows = cache.join()
    added(rows, {b"k": b"value"})
    assert cache.size_bytes > 0
    del rows
    gc.collect()
    assert cache.size_bytes == 0


def test_new_keys_are_not_looked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "_SAMPLE_STEP", 16)
    rows = RowCache(MEGABYTE).join()
    added(rows, {b"%d" % number: b"value" for number in range(1_000)})
    assert rows.get_many([b"new-%d" % number for number in range(1_000)]) is None
    mixed = [b"%d" % number for number in range(500, 1_500)]
    assert known(rows, mixed) == dict.fromkeys(mixed[:500], b"value")


# -- in a store -------------------------------------------------------------------------------------------------------


def opened(folder: Path, executor: ThreadPoolExecutor) -> Store:
    store = Store(folder / "kv", StoreBudget(MEGABYTE, executor, cache_bytes=MEGABYTE))
    store.open()
    return store


def spilled(store: Store) -> bool:
    store.start_spill().exception()
    return store.finish_spill()


def test_a_store_reads_spilled_rows_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as executor:
        store = opened(tmp_path, executor)
        store.apply({b"a": b"1", b"b": b"1", b"c": b"1"}, 3, 3)
        assert spilled(store)
        store.apply({b"a": b"2", b"b": None}, 5, -1)
        assert spilled(store)
        asked: list[list[bytes]] = []
        get_many = engine.get_many

        def counted(db: Any, keys: list[bytes]) -> list[bytes | None]:
            asked.append(keys)
            return get_many(db, keys)

        monkeypatch.setattr(engine, "get_many", counted)
        assert store.get_many([b"a", b"b", b"c", b"d"]) == [b"2", None, b"1", None]
        assert asked == [[b"d"]]
        store.apply({b"c": b"3"}, 6, 0)
        assert store.get_many([b"c", b"a"]) == [b"3", b"2"]

        store.wipe()
        store.apply({b"d": b"4"}, 1, 1)
        assert spilled(store)
        assert store.get_many([b"a", b"d"]) == [None, b"4"]
        store.close(keep=False)
        assert store.budget.cache.size_bytes == 0


def test_a_spill_that_fails_leaves_the_newer_rows_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as executor:
        store = opened(tmp_path, executor)
        store.apply({b"a": b"1"}, 1, 1)
        assert spilled(store)
        store.apply({b"a": b"2"}, 2, 0)
        with monkeypatch.context() as patched:
            patched.setattr(engine, "write_rows", lambda *_: (_ for _ in ()).throw(OSError("no space")))
            assert not spilled(store)
        assert store.get_many([b"a"]) == [b"2"]
        assert spilled(store)
        assert store.get_many([b"a"]) == [b"2"]
        store.close(keep=False)


def test_without_memory_for_it_a_spill_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as executor:
        store = opened(tmp_path, executor)
        store.apply({b"a": b"1"}, 1, 1)
        assert spilled(store)

        def no_memory(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(CachedRows, "prepare", no_memory)
        store.apply({b"a": b"2"}, 2, 0)
        assert spilled(store)
        assert store.get_many([b"a"]) == [b"2"]
        assert store.budget.cache.size_bytes == 0
        store.close(keep=False)


# -- after a start ----------------------------------------------------------------------------------------------------


def windows_of(rows: Spill, size: int) -> Iterator[dict[bytes, bytes]]:
    there = [(key, value) for key, value in rows.items() if value is not None]
    for at in range(0, len(there), size):
        yield dict(there[at : at + size])


@settings(max_examples=150)
@given(
    stored=st.dictionaries(_keys, st.binary(min_size=1, max_size=40), max_size=60),
    spills=_spills,
    limit_bytes=st.sampled_from([300, 2_000, MEGABYTE]),
    data=st.data(),
)
def test_rows_that_are_read_from_disk_never_hide_newer_ones(
    stored: Spill, spills: list[Spill], limit_bytes: int, data: st.DataObject
) -> None:
    """Spills of this store and of another one come between the steps of the read."""
    cache = RowCache(limit_bytes)
    rows, other = cache.join(), cache.join()
    disk = dict(stored)
    before = data.draw(st.integers(0, len(spills)))
    for spilled in spills[:before]:
        added(rows, spilled)
        disk |= spilled
    assert rows.begin_load(1)
    with mock.patch.multiple(row_cache, _LOADED_ROWS=7, _STEP_WINDOWS=1):
        steps = rows.load(windows_of(dict(disk), 3))
        for spilled in spills[before:]:
            next(steps, None)
            if data.draw(st.booleans()):
                added(other, {b"%d" % number: b"x" * 50 for number in range(5)})
            added(rows, spilled)
            disk |= spilled
            found = known(rows, list(disk))
            assert found == {key: disk[key] for key in found}
        for _ in steps:
            pass
    found = known(rows, list(disk))
    assert found == {key: disk[key] for key in found}
    assert cache.size_bytes <= limit_bytes
    if limit_bytes == MEGABYTE:
        there = {key for key, value in disk.items() if value is not None and len(key) <= row_cache._KEY_BYTES_MAX}
        assert found.keys() >= there
    assert not rows.begin_load(1), "once"
    assert other.begin_load(1), "the next store may begin"


def test_a_read_ends_when_rows_are_forgotten() -> None:
    cache = RowCache(MEGABYTE)
    rows = cache.join()
    assert rows.begin_load(1)
    with mock.patch.multiple(row_cache, _LOADED_ROWS=1, _STEP_WINDOWS=1):
        steps = rows.load(windows_of({b"a": b"1", b"b": b"1", b"c": b"1"}, 1))
        next(steps)
        assert known(rows, [b"a", b"b"]) == {b"a": b"1"}
        rows.clear()
        for _ in steps:
            pass
    assert known(rows, [b"a", b"b", b"c"]) == {}


def test_a_store_that_is_opened_again_reads_its_rows_into_memory(tmp_path: Path) -> None:
    rows = {b"%d" % number: b"v%d" % number for number in range(5_000)}
    with ThreadPoolExecutor(1) as executor:
        store = opened(tmp_path, executor)
        store.apply(rows, len(rows), len(rows))
        store.close(keep=True)
        again = opened(tmp_path, executor)
        assert again.get_many(list(rows)) == list(rows.values())
        for _ in range(1_000):
            executor.submit(lambda: None).result()  # every step is a turn of the thread
            if again.budget.cache.size_bytes:
                break
        again.apply({b"7": b"new"}, len(rows) + 1, 0)
        with mock.patch.object(engine, "get_many", side_effect=AssertionError):
            assert again.get_many([b"7", b"8", b"4999"]) == [b"new", b"v8", b"v4999"]
        again.close(keep=True)
        third = opened(tmp_path, executor)
        assert third.get_many([b"7", b"8"]) == [b"new", b"v8"]
        third.close(keep=False)


def test_a_store_may_be_wiped_while_it_reads_its_rows(tmp_path: Path) -> None:
    rows = {b"%d" % number: b"old" for number in range(20_000)}
    with ThreadPoolExecutor(2) as executor, mock.patch.object(row_cache, "_STEP_WINDOWS", 1):
        store = opened(tmp_path, executor)
        store.apply(rows, len(rows), len(rows))
        assert spilled(store)
        store._cached.clear()
        assert store.get_many(list(rows)) == list(rows.values())
        store.wipe()
        store.apply({b"7": b"new"}, 1, 1)
        assert spilled(store)
        executor.submit(lambda: None).result()
        assert store.get_many([b"7", b"8"]) == [b"new", None]
        store.close(keep=False)


def test_a_read_ends_when_newer_rows_had_to_make_room() -> None:
    """What is still to be read may be older than what was forgotten."""
    cache = RowCache(4_000)
    rows = cache.join()
    assert rows.begin_load(1)
    with mock.patch.multiple(row_cache, _LOADED_ROWS=1, _STEP_WINDOWS=1):
        steps = rows.load(windows_of({b"a": b"1", b"k": b"old"}, 1))
        next(steps)
        added(rows, {b"k": b"new", b"large": b"x" * 2_500})
        added(rows, {b"larger": b"x" * 2_000})
        assert known(rows, [b"a", b"k"]) == {}, "both made room"
        for _ in steps:
            pass
    assert known(rows, [b"k"]) == {}
