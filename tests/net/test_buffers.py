# SPDX-License-Identifier: Apache-2.0
"""Buffers of large frames: used again, but never while a view of them exists."""

from __future__ import annotations

import numpy as np
from tests.threads import in_threads

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
    assert len({address(view) for view in views}) == 8
    assert buffers.kept_bytes == 2 * LARGE
    views.clear()
    buffers.take(64 * LARGE)  # more than all that may be kept
    assert buffers.kept_bytes <= 2 * LARGE


def test_what_no_longer_fits_makes_room() -> None:
    buffers = FrameBuffers(kept_bytes_max=2 * LARGE)
    old = [buffers.take(LARGE), buffers.take(LARGE)]
    held = address(old[0])
    del old[1]
    buffers.take(LARGE // 2)
    where = address(buffers.take(LARGE // 2))
    assert address(buffers.take(LARGE // 2)) == where
    old.clear()
    assert address(buffers.take(LARGE)) == held  # it was in use when room was made


def test_a_small_request_does_not_hold_a_large_buffer() -> None:
    buffers = FrameBuffers()
    where = address(buffers.take(LARGE))
    small = buffers.take(300 * 1024)
    assert address(small) != where
    assert len(small) == 300 * 1024
    tiny = buffers.take(100)
    assert len(tiny) == 100


def test_threads_never_share_a_buffer() -> None:
    buffers = FrameBuffers()

    def work(mark: int) -> None:
        for size in (LARGE, LARGE // 2, LARGE // 4) * 50:
            view = buffers.take(size)
            assert len(view) == size
            view[:1024] = bytes([mark]) * 1024
            assert view[:1024].tobytes() == bytes([mark]) * 1024

    in_threads(work, range(4))
    assert 0 < buffers.kept_bytes <= 16 * 1024 * 1024
