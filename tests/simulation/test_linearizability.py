# SPDX-License-Identifier: Apache-2.0
"""Histories of concurrent clients are linearizable, and the checker notices those that are not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from math import inf

import pytest
from tests.simulation.histories import KINDS, record
from tests.simulation.linearizability import Call, NotLinearizableError, State, check

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""The tasks and files of a killed server are never ended."""

A, B = (1, -1), (2, -2)


def put(row: State, called_at: float, returned_at: float = inf) -> Call:
    return Call(f"puts {row}", called_at, lambda _: row, returned_at)


def look(found: State, called_at: float, returned_at: float) -> Call:
    return Call("looks up", called_at, None, returned_at, found)


POSSIBLE: dict[str, list[Call]] = {
    "nothing": [],
    "one after the other": [put(A, 0, 1), look(A, 2, 3), put(B, 4, 5), look(B, 6, 7)],
    "during a write either row is seen": [put(A, 0, 1), put(B, 2, 9), look(A, 3, 4), look(B, 5, 6), look(B, 7, 8)],
    "writes at one time happen in any order": [put(A, 0, 5), put(B, 0, 5), look(A, 6, 7)],
    "a write without an answer happened": [put(A, 0, 1), put(B, 2), look(A, 3, 4), look(B, 5, 6)],
    "a write without an answer never happened": [put(A, 0, 1), put(B, 2), look(A, 3, 4), look(A, 50, 60)],
    "a delete": [put(A, 0, 1), put(None, 2, 3), look(None, 4, 5)],
}
IMPOSSIBLE: dict[str, list[Call]] = {
    "an acknowledged row is lost": [put(A, 0, 1), look(None, 2, 3)],
    "an old row comes back": [put(A, 0, 1), put(B, 2, 9), look(B, 3, 4), look(A, 5, 6)],
    "a row is seen before it was written": [look(A, 0, 1), put(A, 2, 3)],
    "a row that was never written": [put(A, 0, 1), look(B, 2, 3)],
    "a write without an answer happens twice": [put(A, 0), look(A, 1, 2), put(B, 3, 4), look(B, 5, 6), look(A, 7, 8)],
    "two clients saw two orders": [put(A, 0, 5), put(B, 0, 5), look(A, 6, 7), look(B, 8, 9)],
}


@pytest.mark.parametrize("calls", POSSIBLE.values(), ids=POSSIBLE)
def test_possible_histories(calls: Sequence[Call]) -> None:
    check(calls)


@pytest.mark.parametrize("calls", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_histories(calls: Sequence[Call]) -> None:
    with pytest.raises(NotLinearizableError, match="no order explains"):
        check(calls)


def is_possible(calls: Sequence[Call]) -> bool:
    """The definition itself: try all orders of all calls, with and without each write that was not answered."""
    open_ended = [call for call in calls if call.returned_at == inf]
    for count in range(len(open_ended) + 1):
        for left_out in itertools.combinations(open_ended, count):
            kept = [call for call in calls if call not in left_out]
            if any(_explains(order) for order in itertools.permutations(kept)):
                return True
    return False


def _explains(order: Sequence[Call]) -> bool:
    state: State = None
    for at, call in enumerate(order):
        if any(later.returned_at < call.called_at for later in order[at + 1 :]):
            return False
        if call.apply is not None:
            state = call.apply(state)
        elif call.found != state:
            return False
    return True


def test_the_search_agrees_with_the_definition() -> None:
    rng = random.Random(36)
    seen = {True: 0, False: 0}
    for _ in range(600):
        calls = []
        for _ in range(rng.randint(2, 5)):
            begin = rng.uniform(0, 4)
            end = begin + rng.uniform(0, 4)
            row = rng.choice((None, A, B))
            if rng.random() < 0.5:
                calls.append(look(row, begin, end))
            else:
                calls.append(put(row, begin, inf if rng.random() < 0.3 else end))
        expected = is_possible(calls)
        seen[expected] += 1
        if expected:
            check(calls)
        else:
            with pytest.raises(NotLinearizableError):
                check(calls)
    assert min(seen.values()) > 100


@pytest.mark.parametrize("seed", range(3 * len(KINDS)))
def test_recorded_histories(seed: int) -> None:
    assert record(seed).calls > 0
