# SPDX-License-Identifier: Apache-2.0
"""Random writes against a plain model: with spills, crashes, damaged files, and logs that lost their end."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.kv.support import Bucket, Delete, Row, keyed_schema, opened, replayed, table
from tests.shared import raising
from tests.waiting import wait_until

from fluss.errors import KvStorageError, StorageBackpressureError, UnknownServerError
from fluss.metadata import AggFunction, BigIntType, Column, Schema, StringType
from fluss.rows import prefix_key_encoder
from fluss.server.kv import budget as budget_module
from fluss.server.kv.ordered import DamagedStoreError, read_rows
from fluss.server.kv.store import StoreMeta
from fluss.server.kv.tablet import _Pending

COUNTED = Schema.of(
    [
        Column("id", BigIntType(nullable=False)),
        Column("name", StringType(), agg_function=AggFunction("last_value")),
        Column("count", BigIntType(), agg_function=AggFunction("sum")),
    ],
    primary_key=("id",),
)

Model = dict[int, Row]
Batch = tuple[tuple[int, ...], list[Any]]
"""Target columns and writes."""


def in_order(bucket: Bucket, rows: Iterable[Row]) -> list[Row]:
    """Rows in the order of their encoded keys."""
    return sorted(rows, key=lambda row: bucket.key(row[0]))


def plain(model: Model, targets: Sequence[int], writes: Sequence[Any]) -> None:
    for write in writes:
        if isinstance(write, Delete):
            key = write.key[0]
            if key in model and targets:
                others = [i for i in range(3) if i not in targets]
                if any(model[key][i] is not None for i in others):
                    model[key] = tuple(v if i == 0 or i in others else None for i, v in enumerate(model[key]))
                    continue
            model.pop(key, None)
        elif targets:
            old = model.get(write[0], (write[0], None, None))
            model[write[0]] = tuple(write[i] if i in targets else old[i] for i in range(3))
        else:
            model[write[0]] = write


def first_row(model: Model, _: Sequence[int], writes: Sequence[Any]) -> None:
    for write in writes:
        if not isinstance(write, Delete):
            model.setdefault(write[0], write)


def versioned(model: Model, _: Sequence[int], writes: Sequence[Any]) -> None:
    for write in writes:
        if isinstance(write, Delete):
            continue
        old = model.get(write[0])
        if old is None or old[2] is None or (write[2] is not None and write[2] >= old[2]):
            model[write[0]] = write


def aggregation(model: Model, targets: Sequence[int], writes: Sequence[Any]) -> None:
    for write in writes:
        if isinstance(write, Delete):
            continue
        old = model.get(write[0])
        if old is None:
            model[write[0]] = write
            continue
        chosen = targets or (0, 1, 2)
        total = old[2] if write[2] is None else write[2] + (old[2] or 0)
        model[write[0]] = (old[0], write[1] if 1 in chosen else old[1], total if 2 in chosen else old[2])


ENGINES: dict[str, tuple[dict[str, str], Callable[[Model, Sequence[int], Sequence[Any]], None], bool]] = {
    "plain": ({}, plain, True),
    "first_row": ({"merge__engine": "first_row"}, first_row, False),
    "versioned": ({"merge__engine": "versioned", "merge__engine_versioned_ver__column": "count"}, versioned, False),
    "aggregation": ({"merge__engine": "aggregation"}, aggregation, True),
}

KEYS = st.integers(0, 12)
TEXTS = st.one_of(st.none(), st.text("ab\U0001f600", max_size=3))
COUNTS = st.one_of(st.none(), st.integers(-5, 5))
WRITES = st.lists(st.one_of(KEYS.map(Delete), st.tuples(KEYS, TEXTS, COUNTS)), max_size=12)
TARGETS: Any = st.sampled_from([(), (), (), (0, 1), (0, 2), (0,), (0, 1, 2)])


def _masked(targets: Sequence[int], writes: Sequence[Any]) -> list[Any]:
    """Clients send null where a column is not named."""
    if not targets:
        return list(writes)
    return [
        write if isinstance(write, Delete) else tuple(v if i in targets else None for i, v in enumerate(write))
        for write in writes
    ]


@pytest.mark.parametrize("image", ["FULL", "WAL"])
@pytest.mark.parametrize("engine", list(ENGINES))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.tuples(TARGETS, WRITES), min_size=1, max_size=8),
    steps=st.lists(st.sampled_from(["", "", "spill", "crash", "close"]), min_size=8, max_size=8),
)
async def test_any_writes(
    tmp_path_factory: pytest.TempPathFactory, engine: str, image: str, batches: list[Batch], steps: list[str]
) -> None:
    properties, expect, partial = ENGINES[engine]
    entry = table(COUNTED, changelog_image=image, **properties)

    model: Model = {}
    folder = tmp_path_factory.mktemp("bucket")
    bucket = Bucket(folder / "0", entry)
    bucket.committer.start()
    for number, ((named, sent), step) in enumerate(zip(batches, steps)):
        targets = named if partial else ()
        writes = _masked(targets, sent)
        end = bucket.log.end_offset
        result = await bucket.put(writes, targets)
        expect(model, () if engine == "plain" and len(targets) == 3 else targets, writes)
        assert result.end_offset > end
        if step == "spill":
            await bucket.spill()
        elif step:
            copied = bucket.copy(folder / f"{number}-copy")
            await bucket.close()
            bucket = Bucket(copied if step == "crash" else bucket.folder, entry)
            bucket.committer.start()
        assert await bucket.rows() == in_order(bucket, model.values())
        if image == "FULL":
            assert bucket.store.row_count == len(model)
    if image == "FULL":
        assert replayed(bucket.changelog(), [0]) == {(key,): row for key, row in model.items()}
    await bucket.close()


@pytest.mark.parametrize("seed", range(3))
async def test_larger_batches_with_little_memory(tmp_path: Path, seed: int) -> None:
    """Rows move to disk all the time while others are written, looked up and scanned."""
    chance = random.Random(seed)
    entry = table()

    model: Model = {}
    async with opened(tmp_path / "a", entry, memory_bytes=200_000) as bucket:
        spills = 0
        for _ in range(40):
            writes: list[Any] = []
            for _ in range(chance.choice([1, 50, 400])):
                key = chance.randrange(3000)
                writes.append(Delete(key) if chance.random() < 0.2 else (key, f"n{chance.random()}", None))
            await bucket.put(writes)
            plain(model, (), writes)
            spills += bucket.store.is_spilling
            probe = [chance.randrange(3000) for _ in range(20)]
            found = await bucket.tablet.lookup([bucket.key(key) for key in probe])
            for key, value in zip(probe, found):
                assert (None if value is None else bucket.decode([value])[0]) == model.get(key)
            first = bucket.decode(await bucket.tablet.first(5))
            assert first == in_order(bucket, model.values())[:5]
        assert spills
        assert bucket.budget.memory_bytes <= 200_000
        assert await bucket.rows() == in_order(bucket, model.values())
        copy = bucket.copy(tmp_path / "b")
    for folder in (copy, tmp_path / "a"):
        async with opened(folder, entry) as bucket:
            assert await bucket.rows() == in_order(bucket, model.values())
            assert bucket.store.row_count == len(model)


async def test_scans_keep_their_view(bucket: Bucket) -> None:
    await bucket.put([(i, "disk", None) for i in range(100)])
    await bucket.spill()
    await bucket.put([(i, "memory", None) for i in range(50, 150)])
    parts, offset = await bucket.tablet.snapshot()
    values = itertools.chain.from_iterable(parts)
    expected = {i: "disk" if i < 50 else "memory" for i in range(150)}
    assert offset == 250
    seen = [bucket.decode([next(values)])[0][:2] for _ in range(10)]
    await bucket.put([(i, "later", None) for i in range(200)])
    await bucket.put([Delete(i) for i in range(60, 100)])
    seen += [bucket.decode([next(values)])[0][:2] for _ in range(10)]
    await bucket.spill()
    await bucket.put([(i, "last", None) for i in range(200)])
    await bucket.spill()
    seen += [bucket.decode([value])[0][:2] for value in values]
    assert seen == list(expected.items())


async def test_spill_that_ends_while_a_view_is_made(bucket: Bucket) -> None:
    """Rows are then both in memory and on disk, and must count once."""
    await bucket.put([(i, "a", None) for i in range(1000)])
    spill = bucket.store.start_spill()
    await bucket.put([(i, "b", None) for i in range(500, 1500)])
    views = []
    while bucket.store.is_spilling:
        views.append((await bucket.tablet.snapshot())[0])
        if spill.done():
            views.append((await bucket.tablet.snapshot())[0])
            bucket.store.finish_spill()
        await asyncio.sleep(0.001)  # the thread of the spill needs the interpreter too
    assert len(views) >= 2
    for parts in views:
        rows = bucket.decode(itertools.chain.from_iterable(parts))
        assert [row[1] for row in sorted(rows)] == ["a"] * 500 + ["b"] * 1000


async def test_prefix_lookup(tmp_path: Path) -> None:
    schema = keyed_schema("a", "b", a=BigIntType(), b=StringType(), v=BigIntType())
    entry = table(schema, bucket_keys=["a"])
    async with opened(tmp_path, entry) as bucket:
        prefix = prefix_key_encoder(entry.table_info)
        model: dict[int, list[Row]] = {}
        for step in range(4):
            writes = [(a, f"{step}-{i}", i) for a in (1, 255, 256, 2**40, -1) for i in range(30)]
            await bucket.put(writes)
            for row in writes:
                model.setdefault(row[0], []).append(row)
            if step == 1:
                await bucket.spill()
            for a, rows in model.items():
                found = bucket.decode(await bucket.tablet.prefix_lookup(prefix.encode([a])))
                assert found == sorted(rows, key=lambda row: (len(row[1]), row[1]))
        assert await bucket.tablet.prefix_lookup(prefix.encode([77])) == []
        await bucket.put([Delete(1, f"{step}-{i}") for step in range(4) for i in range(30)])
        assert await bucket.tablet.prefix_lookup(prefix.encode([1])) == []
        assert len(await bucket.tablet.prefix_lookup(b"")) == 480


async def test_ordered_reads_of_many_keys_sort_beside_the_loop(bucket: Bucket) -> None:
    await bucket.put([(i, None, None) for i in range(20_000)])
    reads = asyncio.gather(bucket.tablet.first(3), bucket.tablet.first(3))
    await bucket.put([(-i, None, None) for i in range(1, 20_000)])
    await reads
    assert [row[0] for row in bucket.decode(await bucket.tablet.first(2))] == [0, 1]  # unsigned byte order
    assert len(await bucket.rows()) == 39_999


# -- damage -----------------------------------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


async def test_damaged_files_of_the_state(tmp_path: Path) -> None:
    """Whatever byte of whatever file is wrong: the rows are right, because the log has them."""
    entry = table()
    expected = [(i, "x" * (i % 40), i / 2) for i in range(600)]

    async def check(folder: Path) -> None:
        async with opened(folder, entry) as bucket:
            keys = [bucket.key(i) for i in range(700)]
            found = await bucket.tablet.lookup(keys)
            assert bucket.decode(value for value in found if value is not None) == expected
            assert all(value is None for value in found[600:])
            assert sorted(await bucket.rows()) == expected
            assert await bucket.get(7) == expected[7]
            assert bucket.store.row_count == 600
            await bucket.put([(7, "again", None)])
            assert await bucket.get(7) == (7, "again", None)

    async with opened(tmp_path / "good", entry) as bucket:
        await bucket.put([(i, "old", None) for i in range(700)])
        await bucket.spill()
        await bucket.put([Delete(i) for i in range(600, 700)])
        await bucket.put(expected)
    chance = random.Random(5)
    files = _files(tmp_path / "good" / "kv-0")
    assert any(path.suffix == ".sst" for path in files)
    for path in files:
        size = path.stat().st_size
        places = {0, size - 1, size // 2, *(chance.randrange(size) for _ in range(4 if size > 200 else 1))}
        actions: list[int | str] = [*sorted(places), "cut", "gone"]
        for action in actions:
            folder = tmp_path / "bad"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(tmp_path / "good", folder)
            target = folder / path.relative_to(tmp_path / "good")
            data = bytearray(target.read_bytes())
            if action == "gone":
                target.unlink()
            elif action == "cut":
                target.write_bytes(data[: size // 2])
            else:
                data[int(action)] ^= chance.choice([1, 0x80, 0xFF])
                target.write_bytes(data)
            await check(folder)


async def test_damage_found_while_reading(tmp_path: Path) -> None:
    """The files go bad under an open store."""
    entry = table()
    async with opened(tmp_path, entry) as bucket:
        expected = [(i, "x", None) for i in range(2000)]
        await bucket.put(expected)
        await bucket.spill()
        for path in (tmp_path / "kv-0").glob("*.sst"):
            data = bytearray(path.read_bytes())
            data[: len(data) - 100] = bytes(len(data) - 100)
            path.write_bytes(data)
        keys = [bucket.key(i) for i in range(2000)]
        found, one, scanned = await asyncio.gather(
            bucket.tablet.lookup(keys), bucket.tablet.lookup(keys[:1]), bucket.tablet.first(5)
        )
        assert bucket.decode(v for v in found if v is not None) == expected
        assert bucket.decode(v for v in one if v is not None) == expected[:1]
        assert bucket.decode(scanned) == expected[:5]
        assert sorted(await bucket.rows()) == expected
        assert bucket.store.generation >= 1


async def test_a_read_during_a_rebuild_is_repeated(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another caller finds damage after a lookup has begun, and the store is empty until it is rebuilt."""
    expected = [(i, "x", None) for i in range(2000)]
    await bucket.put(expected)
    keys = [bucket.key(i) for i in range(2000)]
    loop, get_many, generation = asyncio.get_running_loop(), bucket.store.get_many, bucket.store.generation

    def late(wanted: Sequence[bytes]) -> list[bytes | None]:
        if bucket.store.generation == generation:
            loop.call_soon_threadsafe(bucket.tablet.damaged, DamagedStoreError("found by another caller"))
            while bucket.store.generation == generation:
                time.sleep(0.001)
        return get_many(wanted)

    monkeypatch.setattr(bucket.store, "get_many", late)
    found = await bucket.tablet.lookup(keys)
    assert bucket.decode(v for v in found if v is not None) == expected


async def test_damage_found_while_writing(tmp_path: Path) -> None:
    """A compaction meets a damaged block that no reader met. No spill would succeed any more."""
    async with opened(tmp_path, table(changelog_image="WAL")) as bucket:  # writes do not read old rows
        await bucket.put([(i, "a", None) for i in range(5_000)])
        await bucket.spill()
        [file] = (tmp_path / "kv-0").glob("*.sst")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
        # As long as a file is in use, its damage is not seen: RocksDB has it in memory.
        bucket.budget.writer.close(str(tmp_path / "kv-0"))
        for number in range(6):
            await bucket.put([(i, f"b{number}", None) for i in range(4_999)])
            await bucket.spill()
            await asyncio.sleep(0.1)
        await wait_until(lambda: bucket.store.generation > 1 and not bucket.store.spill_failed)
        await bucket.tablet.ready()
        await bucket.spill()
        assert not bucket.store.spill_failed
        assert sorted(await bucket.rows()) == [*((i, "b5", None) for i in range(4_999)), (4_999, "a", None)]


async def test_writes_wait_for_a_rebuild(bucket: Bucket) -> None:
    await bucket.put([(i, "a", None) for i in range(300)])
    await bucket.spill()
    parts, _ = await bucket.tablet.snapshot()
    next(parts)
    # A write whose changelog is appended but not committed when the state proves damaged.
    data = [(i, "b", None) for i in range(100, 200)]
    first = asyncio.ensure_future(bucket.put(data))
    bucket.tablet.damaged(DamagedStoreError("said so"))
    second = asyncio.ensure_future(bucket.put([(i, "c", None) for i in range(150, 250)]))
    looked = await bucket.tablet.lookup([bucket.key(0), bucket.key(299)])
    assert None not in looked
    await asyncio.gather(first, second)
    names = [row[1] for row in sorted(await bucket.rows())]
    assert names == ["a"] * 100 + ["b"] * 50 + ["c"] * 100 + ["a"] * 50
    assert replayed(bucket.changelog(), [0]) == {(row[0],): row for row in await bucket.rows()}
    # A scan that began before goes on with the rows as they were.
    assert [row[1] for part in parts for row in bucket.decode(part)] == ["a"] * 284
    await bucket.spill()
    assert len(await bucket.rows()) == 300


async def test_a_log_that_lost_its_end(tmp_path: Path) -> None:
    """The state may not know more than the log."""
    entry = table()
    async with opened(tmp_path / "a", entry) as bucket:
        await bucket.put([(i, "kept", None) for i in range(100)])
        shutil.copytree(tmp_path / "a" / "log-0", tmp_path / "b" / "log-0")
        await bucket.put([(i, "lost", None) for i in range(50, 150)])
        await bucket.spill()
    shutil.copytree(tmp_path / "a" / "kv-0", tmp_path / "b" / "kv-0")
    async with opened(tmp_path / "b", entry) as bucket:
        assert await bucket.rows() == [(i, "kept", None) for i in range(100)]


async def test_a_spill_cut_short_is_known_to_reach_further(tmp_path: Path) -> None:
    """Some of its rows are on disk, the note that it is complete is not; then the log loses its end."""
    entry = table()
    async with opened(tmp_path / "a", entry) as bucket:
        await bucket.put([(i, "kept", None) for i in range(100)])
        await bucket.spill()
        shutil.copytree(tmp_path / "a" / "log-0", tmp_path / "b" / "log-0")
        await bucket.put([(i, "lost", None) for i in range(50, 150)])
        before = StoreMeta.read(tmp_path / "a" / "kv-0")
        await bucket.spill()
        before._replace(reaches=bucket.store.applied_offset).write(tmp_path / "a" / "kv-0")
        shutil.copytree(tmp_path / "a", tmp_path / "c")
    shutil.copytree(tmp_path / "c" / "kv-0", tmp_path / "b" / "kv-0")
    async with opened(tmp_path / "b", entry) as bucket:
        assert await bucket.rows() == [(i, "kept", None) for i in range(100)]
    async with opened(tmp_path / "c", entry) as bucket:
        assert [row[1] for row in sorted(await bucket.rows())] == ["kept"] * 50 + ["lost"] * 100
        assert bucket.store.row_count == 150


async def test_a_log_that_lost_its_beginning(bucket: Bucket) -> None:
    bucket.log.start_offset = 5
    with pytest.raises(UnknownServerError, match="cannot be rebuilt"):
        await bucket.rows()
    bucket.log.start_offset = 0
    assert await bucket.rows() == []  # tried again


# -- memory -----------------------------------------------------------------------------------------------------------


async def test_back_pressure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers wait for the disk, and are refused when it does not come; nothing is lost meanwhile."""
    monkeypatch.setattr(budget_module, "_WAIT_SECONDS_MAX", 0.2)
    async with opened(tmp_path / "a", table(), memory_bytes=100_000) as bucket:
        writer, done = bucket.budget.writer, 0
        refused: list[StorageBackpressureError] = []
        with mock.patch.object(writer, "put", raising(OSError, "no space")):
            while not refused and done < 10_000:
                try:
                    await bucket.put([(done + i, "x", None) for i in range(100)])
                    done += 100
                except StorageBackpressureError as error:
                    refused.append(error)
            assert refused
            assert len(await bucket.rows()) == done
        await bucket.spill()
        await bucket.put([(done, "x", None)])
        assert len(await bucket.rows()) == done + 1

        # A disk that is only slow makes writers wait.
        flush = writer.flush

        def slow(folder: str) -> Any:
            time.sleep(0.05)
            return flush(folder)

        monkeypatch.setattr(writer, "flush", slow)
        for start in range(10_000, 13_000, 100):
            await bucket.put([(start + i, "x", None) for i in range(100)])
            assert bucket.budget.memory_bytes <= 150_000
        assert len(await bucket.rows()) == done + 1 + 3000


async def test_replay_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table that changes all the time goes to disk as well: a restart must not replay everything."""
    monkeypatch.setattr("fluss.server.kv.store._REPLAY_OFFSETS_MAX", 1000)

    async with opened(tmp_path / "a", table()) as bucket:
        for _ in range(30):
            await bucket.put([(i, "x", None) for i in range(50)])
            await wait_until(lambda: not bucket.store.is_spilling)
        assert bucket.log.end_offset - bucket.store._spilled_offset <= 1100
        assert bucket.store.memory_bytes < 100_000
        copy = bucket.copy(tmp_path / "b")
    async with opened(copy, table()) as bucket:
        bucket.store.open()
        assert bucket.store.applied_offset > 1500


async def test_a_closed_bucket_refuses(bucket: Bucket) -> None:
    await bucket.put([(1, "x", None)])
    bucket.tablet.close(keep=True)
    with pytest.raises(KvStorageError):
        await bucket.get(1)
    with pytest.raises(KvStorageError):
        await bucket.put([(1, "y", None)])
    bucket.tablet.close(keep=True)


async def test_a_bucket_that_was_closed_is_not_rebuilt(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A drop takes the files away below a look-up in a thread, whose view of them was closed."""
    await bucket.put([(i, "x", None) for i in range(100)])
    await bucket.spill()
    bucket.store.close_view()
    bucket.store._is_written = False  # the writer has closed the folder as well
    begun, dropped = threading.Event(), threading.Event()
    read = bucket.store.get_many

    def late(keys: Sequence[bytes]) -> list[bytes | None]:
        begun.set()
        dropped.wait(30)
        return read(keys)

    monkeypatch.setattr(bucket.store, "get_many", late)
    found = asyncio.ensure_future(bucket.tablet.lookup([bucket.key(i) for i in range(100)]))
    await wait_until(begun.is_set)
    shutil.rmtree(bucket.folder / "kv-0")
    bucket.tablet.close(keep=False)
    dropped.set()
    with pytest.raises(KvStorageError, match="is closed"):
        await found
    bucket.tablet.damaged(DamagedStoreError("for this test"))
    assert "rebuilt" not in caplog.text
    # A store without a view and without a writer has nothing to close, but no longer looks for its files.
    assert read([bucket.key(1)]) == [None]


async def test_a_state_is_closed_in_a_thread_while_a_write_waits_for_room(tmp_path: Path) -> None:
    """As a server that stops does: futures are completed on their event loop, also in its debug mode."""
    loop = asyncio.get_running_loop()
    async with opened(tmp_path, table(), memory_bytes=1000) as bucket:
        await bucket.tablet.ready()
        bucket.tablet._pending.append(_Pending(1, {}, 0, 0, 2000))
        bucket.budget.count_uncommitted(2000)
        waiting = asyncio.ensure_future(bucket.budget.room())
        await asyncio.sleep(0)
        loop.set_debug(True)
        try:
            await loop.run_in_executor(None, lambda: bucket.tablet.close(keep=False))
            await asyncio.wait_for(waiting, 5)
        finally:
            loop.set_debug(False)


async def test_a_stop_leaves_few_offsets_to_a_replay(tmp_path: Path) -> None:
    """Thousands of buckets with some rows each would otherwise take minutes to write."""
    for rows, is_written in ((50, False), (200, True)):
        folder = tmp_path / str(rows)
        expected = [(i, "x", None) for i in range(rows)]
        async with opened(folder, table()) as bucket:
            await bucket.put(expected)
            bucket.tablet.close(keep=True, replayed_max=100)
            assert bool(list(folder.rglob("*.sst"))) == is_written
        async with opened(folder, table()) as bucket:
            assert [await bucket.get(i) for i in range(rows)] == expected


async def test_dropping_a_store_does_not_wait_for_its_spill(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    await bucket.put([(i, "x", None) for i in range(20_000)])
    dropped, writer = threading.Event(), bucket.budget.writer
    flush = writer.flush

    def flush_when_dropped(folder: str) -> Any:
        assert dropped.wait(10)
        return flush(folder)

    monkeypatch.setattr(writer, "flush", flush_when_dropped)
    spill = bucket.store.start_spill()
    await wait_until(spill.running)
    bucket.tablet.close(keep=False)
    assert not spill.done()
    dropped.set()
    await asyncio.wrap_future(spill)
    await wait_until(lambda: bucket.store._db is None)


async def test_no_state_moves_to_disk_while_its_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows in memory alone would pass for all that the changelog says, also after a restart."""
    rows = [(i, "a", None) for i in range(300)]
    async with opened(tmp_path, table()) as bucket:
        await bucket.put(rows[:200])
        await bucket.spill()
        await bucket.put(rows[200:])
        removing, removed, others_done = threading.Event(), threading.Event(), threading.Event()
        writer = bucket.budget.writer
        close = writer.close

        def slowly(folder: str) -> None:
            close(folder)
            removing.set()
            removed.wait(10)

        monkeypatch.setattr(writer, "close", slowly)
        bucket.tablet.damaged(DamagedStoreError("said so"))
        await wait_until(removing.is_set)
        bucket.executor.submit(others_done.wait, 10)  # what is moved to disk now waits for a thread
        bucket.budget.limit_bytes = 1
        bucket.budget.check()
        bucket.budget.limit_bytes = 1 << 28
        removed.set()
        await bucket.tablet.ready()
        others_done.set()
        await bucket.budget.spilled(bucket.store)
        assert sorted(await bucket.rows()) == rows
    async with opened(tmp_path, table()) as bucket:
        assert sorted(await bucket.rows()) == rows


async def test_a_snapshot_waits_for_a_rebuild_that_began_while_it_waited(tmp_path: Path) -> None:
    """The spill before it finds the files gone."""
    rows = [(i, "a", None) for i in range(300)]
    async with opened(tmp_path / "bucket", table()) as bucket:
        await bucket.put(rows[:200])
        await bucket.spill()
        await bucket.put(rows[200:])
        shutil.rmtree(tmp_path / "bucket" / "kv-0")
        bucket.budget.spill(bucket.store)
        taken = await bucket.tablet.checkpoint(tmp_path / "snapshot")
        assert taken.meta.offset == 300
        assert sorted(read_rows(taken.folder)) == sorted(bucket.key(i) for i in range(300))
        assert sorted(await bucket.rows()) == rows
    async with opened(tmp_path / "bucket", table()) as bucket:
        assert sorted(await bucket.rows()) == rows
