# SPDX-License-Identifier: Apache-2.0
"""Buffers of large frames: used again, but never while somebody can still see them."""

from __future__ import annotations

import threading

import numpy as np

from fluss.net.buffers import FrameBuffers

LARGE = 2 * 1024 * 1024


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_a_buffer_is_used_again_when_its_last_view_is_gone() -> None:
    buffers = FrameBuffers()
    first = buffers.take(LARGE)
    where = address(first)
    part = first[100:200]
    part[:] = b"x" * 100
    del first
    second = buffers.take(LARGE)
    assert address(second) != where  # a view of the first one lives on
    second[100:200] = b"y" * 100
    assert bytes(part) == b"x" * 100
    del part
    third = buffers.take(LARGE - 1000)
    assert address(third) == where
    assert len(third) == LARGE - 1000


def test_arrays_made_of_a_view_keep_its_buffer() -> None:
    buffers = FrameBuffers()
    view = buffers.take(LARGE)
    array = np.frombuffer(view[8:16], np.uint8)
    where = address(view)
    del view
    assert address(buffers.take(LARGE)) != where
    assert len(array) == 8


def test_what_is_kept_is_bounded() -> None:
    buffers = FrameBuffers(kept_bytes_max=2 * LARGE)
    views = [buffers.take(LARGE) for _ in range(8)]
    views.clear()
    assert 0 < buffers.idle_bytes <= 2 * LARGE
    buffers.take(64 * LARGE)  # larger than all that may be kept, and one idle buffer made room
    assert buffers.idle_bytes <= 2 * LARGE


def test_a_small_request_does_not_hold_a_large_buffer() -> None:
    buffers = FrameBuffers()
    buffers.take(LARGE)
    small = buffers.take(300 * 1024)
    assert sum(buffer.nbytes for _, buffer in buffers._lent.values()) < LARGE
    assert len(small) == 300 * 1024
    tiny = buffers.take(100)
    assert len(tiny) == 100


def test_buffers_come_back_from_other_threads() -> None:
    buffers = FrameBuffers()

    def work() -> None:
        for size in (LARGE, LARGE // 2, LARGE // 4) * 50:
            view = buffers.take(size)
            assert len(view) == size
            view[0] = view[size - 1] = 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert buffers.idle_bytes <= 16 * 1024 * 1024
    assert not buffers._lent
