# SPDX-License-Identifier: Apache-2.0
"""Chunks of several threads on their way to the event loop."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from fluss.client.write.chunk_queue import ChunkQueue, ConvertedChunk
from fluss.client.write.handle import Failures, Ticket


def chunk(number: int) -> ConvertedChunk:
    return ConvertedChunk(number, (), Ticket(lambda: None, Failures()), 0)


def test_chunks_are_taken_in_the_order_of_their_numbers() -> None:
    queue = ChunkQueue()
    assert queue.put(chunk(1))
    assert [found.number for found in queue.take()] == []
    assert queue.put(chunk(0))
    assert not queue.put(chunk(2)), "the call for the chunk before it takes this one too"
    assert [found.number for found in queue.take()] == [0, 1, 2]


def test_the_loop_is_called_when_two_threads_add_chunks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread adds its chunk before the other one decides whether the loop has to be called."""
    both_added = Barrier(2, timeout=30)

    class Arrived(deque[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            both_added.wait()

    queue = ChunkQueue()
    monkeypatch.setattr(queue, "_arrived", Arrived())
    with ThreadPoolExecutor(2) as threads:
        assert any(list(threads.map(queue.put, map(chunk, range(2)))))
    assert [found.number for found in queue.take()] == [0, 1]


async def test_chunks_that_arrive_after_the_end_are_all_handed_out() -> None:
    """Those too that the loop had taken in early: their rows have to fail."""
    queue = ChunkQueue()
    queue.put(chunk(2))
    queue.take()
    queue.put(chunk(1))
    assert sorted(found.number for found in queue.take_all()) == [1, 2]
    assert list(queue.take_all()) == []
