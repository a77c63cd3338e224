# SPDX-License-Identifier: Apache-2.0
"""Rows one by one into chunks: nothing lost, nothing mixed up, with any number of threads."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from fluss.client.write.accumulator import RowAccumulator, row_taker
from fluss.client.write.handle import Ticket
from fluss.client.write.row_reader import RowReader
from fluss.metadata import Schema

SCHEMA = Schema(pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())]))


class Desk:
    """An accumulator with the `_collect` of a writer, and the chunks that left it."""

    def __init__(self, rows_max: int) -> None:
        self.accumulator = RowAccumulator(lambda: Ticket(lambda: None, 2), 2, rows_max)
        self.collected = 0
        self.chunks: list = []
        self.take = row_taker(self.accumulator, RowReader("t", SCHEMA.columns), self._collect)

    def _collect(self, values):
        accumulator = self.accumulator
        with accumulator.lock:
            self.collected += 1
            self.chunks.append(accumulator.enter())
            is_last = accumulator.is_full
            handle = accumulator.add(values, False)
            if is_last:
                self.chunks.append(accumulator.take())
        return handle

    def finish(self):
        with self.accumulator.lock:
            self.chunks.append(self.accumulator.take())
        return [chunk for chunk in self.chunks if chunk is not None]


def rows_of(chunk):
    return list(zip(chunk.flat[::2], chunk.flat[1::2]))


def test_rows_keep_their_order():
    desk = Desk(rows_max=100)
    given = [(i, f"n{i}") for i in range(1050)]
    for i, row in enumerate(given):
        desk.take(row if i % 2 else {"name": row[1], "id": row[0]})
    chunks = desk.finish()
    assert [row for chunk in chunks for row in rows_of(chunk)] == given
    assert [chunk.rows for chunk in chunks] == [100] * 10 + [50]
    assert [chunk.number for chunk in chunks] == list(range(11))
    assert desk.collected == 2 * 10 + 1, "only the first and the last row of a chunk are collected"


def test_a_kept_handle_stays_the_one_of_its_row():
    desk = Desk(rows_max=50)
    kept = {}
    for i in range(200):
        handle = desk.take((i, "x"))
        if i % 3 == 0:
            kept[i] = handle
    for i, handle in kept.items():
        assert handle.place == (i % 50) * 2
    assert len({id(handle) for handle in kept.values()}) == len(kept)
    chunks = desk.finish()
    assert all(handle.ticket is chunks[i // 50].ticket for i, handle in kept.items())


def test_a_chunk_passes_from_the_thread_that_began_it_to_all_threads():
    desk = Desk(rows_max=100)
    desk.take((0, "own"))
    desk.take((1, "own"))
    with ThreadPoolExecutor(1) as pool:
        handle = pool.submit(desk.take, (2, "of another thread")).result()
    desk.take((3, "shared"))
    chunks = desk.finish()
    assert [rows_of(chunk) for chunk in chunks] == [
        [(0, "own"), (1, "own")],
        [(2, "of another thread"), (3, "shared")],
    ]
    assert (handle.ticket, handle.place) == (chunks[1].ticket, 0)


@pytest.mark.parametrize("producers", [1, 4])
def test_threads_lose_and_double_nothing_and_keep_their_own_order(producers):
    """While one more thread takes chunks, full or not, as the event loop does."""
    desk = Desk(rows_max=64)
    handles = []

    def produce(thread: int) -> None:
        for number in range(thread * 10_000, thread * 10_000 + 5_000):
            handle = desk.take((number, "x"))
            handles.append((number, handle))

    threads = [threading.Thread(target=produce, args=(i,)) for i in range(producers)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet everywhere
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            with desk.accumulator.lock:
                desk.chunks.append(desk.accumulator.take())
    finally:
        sys.setswitchinterval(interval)
    chunks = desk.finish()
    ids = [value for chunk in chunks for value in chunk.flat[::2]]
    assert sorted(ids) == sorted(t * 10_000 + i for t in range(producers) for i in range(5_000))
    for t in range(producers):
        own = [value for value in ids if value // 10_000 == t]
        assert own == sorted(own)
    by_ticket = {id(chunk.ticket): chunk for chunk in chunks}
    for value, handle in handles:
        assert by_ticket[id(handle.ticket)].flat[handle.place] == value
