# SPDX-License-Identifier: Apache-2.0
"""Work in other threads than the test's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


def in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Give each item to a thread of its own, and return the results; the first error is raised."""
    given = list(items)
    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(work, given))


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    """Do some work in another thread while the block runs, and wait for its end; its error is raised then."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        yield
        running.result()


@contextmanager
def in_background(step: Callable[[int], object]) -> Iterator[None]:
    """Call `step` with 0, 1, 2, ... in another thread until the block is left; its error is raised then."""
    ended = threading.Event()

    def run() -> None:
        for number in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
            step(number)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            ended.set()
        running.result()
