# SPDX-License-Identifier: Apache-2.0
"""Rows in key order: sorted runs in memory, rows on disk, and both merged."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Rdict

from fluss.errors import KvStorageError
from fluss.server.kv import engine, ordered
from fluss.server.kv.budget import StoreBudget
from fluss.server.kv.engine import DamagedStoreError
from fluss.server.kv.layer import Changes, Layer
from fluss.server.kv.ordered import DiskReaders, DiskRows, DiskValues, OrderedValues

KEYS = st.binary(max_size=3)
CHANGES = st.dictionaries(KEYS, st.booleans(), max_size=60)


def value_of(key: bytes, age: int) -> bytes:
    """No two rows have the same value."""
    return bytes([1, 0, age]) + key


def changed(keys: Mapping[bytes, bool], age: int) -> Changes:
    return {key: value_of(key, age) if lives else None for key, lives in keys.items()}


def layer_of(rows: Changes) -> Layer:
    layer = Layer(rows)
    layer.sort()
    return layer


def flat(values: Iterator[list[bytes]]) -> list[bytes]:
    parts = list(values)
    assert all(parts), "an empty part would look like the end"
    return list(itertools.chain.from_iterable(parts))


def in_order(sources: Sequence[Changes], prefix: bytes = b"") -> list[bytes]:
    """What a plain dict says; the newest source comes first."""
    rows: Changes = {}
    for source in reversed(sources):
        rows.update(source)
    return [value for key in sorted(rows) if key.startswith(prefix) and (value := rows[key]) is not None]


# -- memory -----------------------------------------------------------------------------------------------------------


@given(parts=st.lists(CHANGES, max_size=6), prefix=st.binary(max_size=2))
def test_a_layer_is_a_sorted_dict(parts: list[dict[bytes, bool]], prefix: bytes) -> None:
    layer, model = Layer(), Changes()
    snapshots: list[tuple[Layer, Changes]] = []
    for age, part in enumerate(parts):
        layer.rows.update(changed(part, age))
        model.update(changed(part, age))
        layer.sort()
        assert layer.unsorted_count == 0
        assert flat(OrderedValues([layer], None, prefix)) == in_order([model], prefix)
        snapshots.append((layer.snapshot(), dict(model)))
    for copied, then in snapshots:
        assert flat(OrderedValues([copied], None, b"")) == in_order([then])


def test_runs_of_a_layer_stay_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.server.kv.layer._RUN_KEYS_MAX", 64)
    layer = Layer()
    for i in range(1000):
        key = (i * 7919 % 1000).to_bytes(2, "big")
        layer.rows[key] = value_of(key, 0)
        layer.sort()
    expected = [value_of(i.to_bytes(2, "big"), 0) for i in range(1000)]
    assert flat(OrderedValues([layer], None, b"")) == expected
    assert all(len(keys) <= 64 for keys, _ in layer.runs())
    assert len(layer.runs()) < 1000 / 64 * 2 + 7
    # Another thread sorted the same keys meanwhile: the slower one changes nothing.
    before = layer.runs()
    layer.add_runs(5, [[b"zz"]])
    assert layer.runs() == before


# -- disk and memory --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    memory=CHANGES,
    spilling=CHANGES,
    disk=st.dictionaries(KEYS, st.just(True), max_size=120),
    prefix=st.binary(max_size=2),
    window_max=st.sampled_from([1, 3, 16, 1_024]),
)
def test_sources_are_merged_and_the_newest_row_counts(
    memory: dict[bytes, bool],
    spilling: dict[bytes, bool],
    disk: dict[bytes, bool],
    prefix: bytes,
    window_max: int,
) -> None:
    sources = [changed(memory, 0), changed(spilling, 1), changed(disk, 2)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "_WINDOW_FIRST", min(window_max, 16))
        patch.setattr(ordered, "_WINDOW_MAX", window_max)
        patch.setattr(ordered, "_RUN_WINDOW_MIN", min(window_max, 16))
        patch.setattr("fluss.server.kv.layer._RUN_KEYS_MAX", 20)
        db = engine.open_db(Path(folder))
        engine.write_rows(db, sources[2])
        layers = [layer_of(rows) for rows in sources[:2] if rows]
        rows = DiskRows(db, Path(folder), DiskReaders(), prefix, many=True)
        plain = DiskValues(db, Path(folder), DiskReaders(), many=True)
        reading = OrderedValues(layers, rows, prefix)
        at_once = DiskRows(db, Path(folder), DiskReaders(), prefix, many=False)
        assert flat(OrderedValues(layers, at_once, prefix)) == in_order(sources, prefix)
        at_once.close()
        assert flat(plain) == in_order(sources[2:])
        # The view is that of its making.
        engine.write_rows(db, dict.fromkeys([*disk, b"new", b"\xff\xff\xff\xff"], b"\x01\x00later"))
        assert flat(reading) == in_order(sources, prefix)
        rows.close()
        plain.close()
        db.close()


def _filled(folder: Path, count: int) -> tuple[list[bytes], list[bytes]]:
    keys = [i.to_bytes(8, "big") for i in range(count)]
    rows: Changes = {key: value_of(key, 2) for key in keys}
    engine.export(rows, folder)
    return keys, [value_of(key, 2) for key in keys]


def _values(db: Rdict, folder: Path) -> DiskValues:
    return DiskValues(db, folder, DiskReaders(), many=True)


def _rows(db: Rdict, folder: Path) -> DiskRows:
    return DiskRows(db, folder, DiskReaders(), b"", many=True)


def _few_rows(db: Rdict, folder: Path) -> DiskRows:
    return DiskRows(db, folder, DiskReaders(), b"", many=False)


@pytest.mark.parametrize("reading", [_values, _rows, _few_rows])
def test_a_damaged_block_is_an_error_and_not_the_end(
    tmp_path: Path, reading: Callable[[Rdict, Path], DiskValues | DiskRows]
) -> None:
    """The iterators of rocksdict just end there."""
    _, values = _filled(tmp_path / "kv", 20_000)
    [file] = (tmp_path / "kv").glob("*.sst")
    sound = file.read_bytes()
    for at in (10, len(sound) // 4, len(sound) // 2):
        damaged = bytearray(sound)
        damaged[at] ^= 0xFF
        file.write_bytes(damaged)
        db = engine.open_db(tmp_path / "kv")
        rows = reading(db, tmp_path)
        found: list[list[bytes]] = []
        with pytest.raises(DamagedStoreError, match=r"cannot be read: .*(checksum|before the last row)"):
            found.extend(OrderedValues([], rows, b"") if isinstance(rows, DiskRows) else rows)
        flat_found = list(itertools.chain.from_iterable(found))
        assert flat_found == values[: len(flat_found)]
        rows.close()
        db.close()


@pytest.mark.parametrize("reading", [_values, _rows, _few_rows])
def test_a_closed_part_is_not_read_on(tmp_path: Path, reading: Callable[[Rdict, Path], DiskValues | DiskRows]) -> None:
    _, values = _filled(tmp_path, 1_000)
    db = engine.open_db(tmp_path)
    rows = reading(db, tmp_path)
    parts = OrderedValues([], rows, b"") if isinstance(rows, DiskRows) else rows
    assert next(parts) == values[:16]
    rows.close()
    db.close()
    with pytest.raises(DamagedStoreError, match="closed or rebuilt"):
        next(parts)
    rows.close(reopened=True)
    with pytest.raises(KvStorageError, match="begin the scan again"):
        next(parts)
    engine.open_db(tmp_path).close()  # nothing holds the folder


def test_large_values_are_few_at_a_time(tmp_path: Path) -> None:
    rows: Changes = {bytes([i]): bytes([1, 0, i]) + random.Random(i).randbytes(100_000) for i in range(60)}
    engine.export(rows, tmp_path)
    db = engine.open_db(tmp_path)
    disk = DiskRows(db, tmp_path, DiskReaders(), b"", many=True)
    parts = list(OrderedValues([layer_of({b"\0": None})], disk, b""))
    assert [value for part in parts for value in part] == [rows[key] for key in sorted(rows)][1:]
    assert max(map(len, parts[1:])) <= 3
    disk.close()
    db.close()


# -- many keys --------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    stored=st.sets(st.binary(max_size=12), max_size=200),
    asked=st.lists(st.binary(max_size=12), max_size=50),
    seed=st.integers(0, 1_000),
)
def test_many_keys_are_found_in_the_order_in_which_they_were_asked_for(
    stored: set[bytes], asked: list[bytes], seed: int
) -> None:
    rows: Changes = {key: value_of(key, 0) for key in stored}
    keys = [*asked, *stored, *asked]
    random.Random(seed).shuffle(keys)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_GET_KEYS", 7)
        db = engine.open_db(Path(folder))
        engine.write_rows(db, rows)
        assert engine.get_many(db, keys) == [rows.get(key) for key in keys]
        db.close()


@pytest.mark.parametrize("prefix", [b"", b"\x0ccustomer-", b"\xff" * 20], ids=["none", "a name", "long"])
def test_keys_that_have_a_beginning_in_common_are_ordered_by_the_rest(
    prefix: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_ORDER_KEYS", 100)
    keys = [prefix + (i * 7919 % 1_000).to_bytes(8, "big") for i in range(1_000)]
    assert [keys[place] for place in engine._disk_order(keys).tolist()] == sorted(keys)
    assert engine._disk_order([]).tolist() == []
    assert engine._disk_order([prefix]).tolist() == [0]


# -- writing ----------------------------------------------------------------------------------------------------------


def test_writing_that_is_not_urgent_leaves_time_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Changes = {i.to_bytes(8, "big"): b"\1\0" + bytes(100) for i in range(5_000)}
    paused: list[float] = []

    def pauses(urgency: float) -> list[float]:
        paused.clear()
        db = engine.open_db(tmp_path / str(urgency))
        clock = itertools.count(step=0.01)  # processor time that is used between two looks
        time = SimpleNamespace(sleep=paused.append, thread_time=lambda: next(clock))
        with monkeypatch.context() as patch:
            patch.setattr(engine, "time", time)
            engine.write_rows(db, rows, lambda: urgency)
        assert engine.get_many(db, list(rows)) == list(rows.values())
        db.close()
        return list(paused)

    shortest = engine._WRITE_PAUSE_SECONDS
    assert set(pauses(1.0)) == {shortest}
    relaxed = pauses(0.0)
    assert len(relaxed) == 5_000 / engine._WRITE_ROWS
    assert relaxed == pytest.approx([0.01 * engine._PAUSE_TIMES_MAX] * len(relaxed))
    assert pauses(0.5) == pytest.approx([pause / 2 for pause in relaxed])


def test_writing_becomes_urgent_as_memory_fills() -> None:
    with ThreadPoolExecutor(1) as executor:
        budget = StoreBudget(1_000, executor)
        urgencies = []
        for memory_bytes in (0, 500, 750, 1_000, 2_000):
            budget.memory_bytes = memory_bytes
            urgencies.append(budget.urgency)
        assert urgencies == [0.0, 0.0, 0.5, 1.0, 1.0]
