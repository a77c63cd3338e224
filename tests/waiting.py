# SPDX-License-Identifier: Apache-2.0
"""Wait for something that happens by itself, with a limit; limit how long something takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes as long as this, or longer."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.2f} s, not less than {seconds:g} s"


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Return when the condition holds; fail when it does not within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.02)


async def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """The same on an event loop, whose other callbacks run meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        await asyncio.sleep(0.001)


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task, and check that it ends by that."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
