# SPDX-License-Identifier: Apache-2.0
"""Waiting for memory; `test_writers.py` has the fitted batch size and the loop, which may not wait."""

from __future__ import annotations

import threading
import time

import pytest

from fluss.client.write.memory import MemoryBudget
from fluss.config import WAIT_FOREVER_MS


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
