# SPDX-License-Identifier: Apache-2.0
"""Rows in key order: sorted runs in memory, rows on disk, and both merged."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Rdict
from tests.waiting import wait_for

from fluss.server.kv import ordered, rocksdb
from fluss.server.kv.ordered import Changes, DamagedStoreError, DiskRows, DiskValues, Layer, OrderedValues

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
    monkeypatch.setattr("fluss.server.kv.ordered._RUN_KEYS_MAX", 64)
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
    memory: dict[bytes, bool], spilling: dict[bytes, bool], disk: dict[bytes, bool], prefix: bytes, window_max: int
) -> None:
    sources = [changed(memory, 0), changed(spilling, 1), changed(disk, 2)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "_WINDOW_FIRST", min(window_max, 16))
        patch.setattr(ordered, "_WINDOW_MAX", window_max)
        patch.setattr(ordered, "_RUN_WINDOW_MIN", min(window_max, 16))
        patch.setattr("fluss.server.kv.ordered._RUN_KEYS_MAX", 20)
        writer = rocksdb.Writer()
        ordered.write_rows(writer, Path(folder), sources[2])
        db = rocksdb.open_view(folder)
        layers = [layer_of(rows) for rows in sources[:2] if rows]
        rows = DiskRows(db, Path(folder), prefix, many=True)
        plain = DiskValues(db, Path(folder), many=True)
        reading = OrderedValues(layers, rows, prefix)
        at_once = DiskRows(db, Path(folder), prefix, many=False)
        assert flat(OrderedValues(layers, at_once, prefix)) == in_order(sources, prefix)
        assert flat(plain) == in_order(sources[2:])
        # The view is that of its making.
        ordered.write_rows(writer, Path(folder), dict.fromkeys([*disk, b"new", b"\xff\xff\xff\xff"], b"\x01\x00later"))
        assert flat(reading) == in_order(sources, prefix)
        writer.stop()


def _filled(folder: Path, count: int) -> tuple[list[bytes], list[bytes]]:
    keys = [i.to_bytes(8, "big") for i in range(count)]
    rows: Changes = {key: value_of(key, 2) for key in keys}
    ordered.export(rocksdb.Writer(), rows, folder)
    return keys, [value_of(key, 2) for key in keys]


def _values(db: Rdict, folder: Path) -> DiskValues:
    return DiskValues(db, folder, many=True)


def _rows(db: Rdict, folder: Path) -> DiskRows:
    return DiskRows(db, folder, b"", many=True)


def _few_rows(db: Rdict, folder: Path) -> DiskRows:
    return DiskRows(db, folder, b"", many=False)


@pytest.mark.parametrize("reading", [_values, _rows, _few_rows])
def test_a_damaged_block_is_no_end(tmp_path: Path, reading: Callable[[Rdict, Path], DiskValues | DiskRows]) -> None:
    """The iterators of rocksdict just end there."""
    _, values = _filled(tmp_path / "kv", 20_000)
    [file] = (tmp_path / "kv").glob("*.sst")
    sound = file.read_bytes()
    for at in (10, len(sound) // 4, len(sound) // 2):
        damaged = bytearray(sound)
        damaged[at] ^= 0xFF
        file.write_bytes(damaged)
        db = rocksdb.open_view(str(tmp_path / "kv"))
        rows = reading(db, tmp_path)
        found: list[list[bytes]] = []
        with pytest.raises(DamagedStoreError, match=r"cannot be read: .*(checksum|before the last row)"):
            found.extend(OrderedValues([], rows, b"") if isinstance(rows, DiskRows) else rows)
        flat_found = list(itertools.chain.from_iterable(found))
        assert flat_found == values[: len(flat_found)]


def test_a_view_can_be_read_after_its_files_are_replaced_and_deleted(tmp_path: Path) -> None:
    keys, values = _filled(tmp_path / "kv", 20_000)
    db = rocksdb.open_view(str(tmp_path / "kv"))
    rows = DiskRows(db, tmp_path, b"", many=True)
    before = {file.name for file in (tmp_path / "kv").glob("*.sst")}
    writer = rocksdb.Writer()
    for _ in range(8):  # four files of a level are compacted into one of the next
        ordered.write_rows(writer, tmp_path / "kv", dict.fromkeys(keys, b"\x01\x00later"))
    wait_for(lambda: not before & {file.name for file in (tmp_path / "kv").glob("*.sst")})
    writer.stop()
    assert flat(OrderedValues([], rows, b"")) == values
    shutil.rmtree(tmp_path / "kv")
    assert ordered.get_many(db, keys) == values


def test_large_values_are_few_at_a_time(tmp_path: Path) -> None:
    rows: Changes = {bytes([i]): bytes([1, 0, i]) + random.Random(i).randbytes(100_000) for i in range(60)}
    ordered.export(rocksdb.Writer(), rows, tmp_path)
    db = rocksdb.open_view(str(tmp_path))
    disk = DiskRows(db, tmp_path, b"", many=True)
    parts = list(OrderedValues([layer_of({b"\0": None})], disk, b""))
    assert [value for part in parts for value in part] == [rows[key] for key in sorted(rows)][1:]
    assert max(map(len, parts[1:])) <= 3


# -- many keys --------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    stored=st.sets(st.binary(max_size=12), max_size=200),
    asked=st.lists(st.binary(max_size=12), max_size=50),
    seed=st.integers(0, 1_000),
)
def test_many_keys_are_found_in_the_order_of_the_request(stored: set[bytes], asked: list[bytes], seed: int) -> None:
    rows: Changes = {key: value_of(key, 0) for key in stored}
    keys = [*asked, *stored, *asked]
    random.Random(seed).shuffle(keys)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "_GET_KEYS", 7)
        writer = rocksdb.Writer()
        ordered.write_rows(writer, Path(folder), rows)
        assert ordered.get_many(rocksdb.open_view(folder), keys) == [rows.get(key) for key in keys]
        writer.stop()
