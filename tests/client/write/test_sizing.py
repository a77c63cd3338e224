# SPDX-License-Identifier: Apache-2.0
"""The fitted batch size, and the waiting for memory."""

from __future__ import annotations

import threading
import time

import pytest

from fluss.client.write.batch import BatchSizer
from fluss.client.write.memory import MemoryBudget
from fluss.config import WAIT_FOREVER_MS
from fluss.errors import DeadlineExceededError


def test_sparse_batches_shrink_the_target_down_to_the_minimum():
    sizer = BatchSizer(1_000_000, 200_000, enabled=True)
    sizer.sealed(100)
    assert sizer.target == 950_000
    for _ in range(200):
        sizer.sealed(100)
    assert sizer.target == 200_000


def test_full_batches_grow_it_fast_up_to_the_maximum():
    sizer = BatchSizer(1_000_000, 200_000, enabled=True)
    for _ in range(200):
        sizer.sealed(100)
    for _ in range(3):
        sizer.sealed(sizer.target)
    assert sizer.target == 1_000_000


def test_batches_in_between_leave_it():
    sizer = BatchSizer(1_000_000, 200_000, enabled=True)
    for _ in range(10):
        sizer.sealed(600_000)
    assert sizer.target == 1_000_000


def test_it_stays_when_it_is_not_wanted():
    sizer = BatchSizer(1_000_000, 200_000, enabled=False)
    sizer.sealed(1)
    assert sizer.target == 1_000_000
    assert BatchSizer(100, 200_000, enabled=True).size_min == 100


@pytest.mark.parametrize("wait_ms", [WAIT_FOREVER_MS, 2**63 - 1, 10_000])
def test_a_thread_waits_until_there_is_room(wait_ms):
    memory = MemoryBudget(100, wait_ms)
    memory.reserve(100)
    waited = []

    def wait():
        memory.wait_for_room(may_block=True)
        waited.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    assert not waited
    memory.release(1)
    thread.join(5)
    assert waited


def test_the_loop_is_refused():
    memory = MemoryBudget(100, 0)
    memory.wait_for_room(may_block=False)
    memory.reserve(150)
    with pytest.raises(DeadlineExceededError, match="150 of 100 bytes"):
        memory.wait_for_room(may_block=False)
    with pytest.raises(DeadlineExceededError, match="stayed full for 0 ms"):
        memory.wait_for_room(may_block=True)
