# SPDX-License-Identifier: Apache-2.0
"""Rows one by one into chunks: nothing lost, nothing mixed up, with any number of threads."""

from __future__ import annotations

import sys
import threading

import pyarrow as pa

from fluss.client.write.accumulator import RowAccumulator, RowReader, row_taker
from fluss.client.write.handle import Ticket
from fluss.metadata import Schema

SCHEMA = Schema(pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())]))


class Desk:
    """A accumulator with the `_collect` of a writer, and the chunks that left it."""

    def __init__(self, rows_max: int) -> None:
        self.accumulator = RowAccumulator(lambda: Ticket(lambda: None, 2), 2, rows_max)
        self.collected = 0
        self.chunks: list = []
        self.take = row_taker(self.accumulator, RowReader("table t", SCHEMA.columns), self._collect)

    def _collect(self, values):
        accumulator = self.accumulator
        with accumulator.lock:
            self.collected += 1
            last = len(accumulator.flat) >= accumulator.last
            handle = accumulator.add(values, False)
            if last:
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
    tickets = {i: handle.ticket for i, handle in kept.items()}
    desk.finish()
    assert all(tickets[i] is desk.chunks[i // 50].ticket for i in kept)


def test_many_threads_lose_and_double_nothing_and_keep_their_own_order():
    desk = Desk(rows_max=64)
    mixed = []

    def produce(thread: int) -> None:
        for i in range(5_000):
            handle = desk.take((thread * 10_000 + i, "x"))
            if i % 1000 == 0:
                mixed.append((thread * 10_000 + i, handle))

    threads = [threading.Thread(target=produce, args=(i,)) for i in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet everywhere
    try:
        for thread in threads:
            thread.start()
        for _ in range(50):
            with desk.accumulator.lock:
                desk.chunks.append(desk.accumulator.take())
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    chunks = desk.finish()
    ids = [value for chunk in chunks for value in chunk.flat[::2]]
    assert sorted(ids) == sorted(t * 10_000 + i for t in range(4) for i in range(5_000))
    for t in range(4):
        own = [value for value in ids if value // 10_000 == t]
        assert own == sorted(own)
    by_ticket = {id(chunk.ticket): chunk for chunk in chunks}
    for value, handle in mixed:
        assert by_ticket[id(handle.ticket)].flat[handle.place] == value
