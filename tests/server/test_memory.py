# SPDX-License-Identifier: Apache-2.0
"""The budgets for the bytes of requests and answers: charged before they are there, in order, without a deadlock."""

from __future__ import annotations

import random
from functools import partial

from fluss.server.memory import LARGE_BYTES_MIN, RequestMemory, UnsentAnswers

SIZE = LARGE_BYTES_MIN


def test_large_frames_are_granted_in_order() -> None:
    budget = RequestMemory(4 * SIZE)
    granted: list[str] = []
    assert budget.charge(3 * SIZE, lambda: granted.append("never called"))
    first, second = (lambda: granted.append("first")), (lambda: granted.append("second"))
    assert not budget.charge(2 * SIZE, first)
    # It would fit, but it came later: small frames must not starve a large one.
    assert not budget.charge(SIZE, second)
    assert budget.is_wanted
    assert budget.taken_bytes == 3 * SIZE
    budget.give_back(3 * SIZE)
    assert granted == ["first", "second"]
    assert budget.taken_bytes == budget.large_bytes == 3 * SIZE
    assert not budget.is_wanted


def test_who_waits_counts_as_if_it_had_its_memory() -> None:
    budget = RequestMemory(4 * SIZE)
    assert budget.charge(3 * SIZE, lambda: None)
    assert not budget.exhausted
    waiting = lambda: None  # noqa: E731
    assert not budget.charge(2 * SIZE, waiting)
    assert budget.exhausted
    woken: list[bool] = []
    budget.wait_for_room(lambda: woken.append(True))
    budget.cancel(waiting)
    assert woken == [True]


def test_a_frame_larger_than_the_budget_is_granted_alone() -> None:
    budget = RequestMemory(2 * SIZE)
    budget.take(100)  # a small request, which comes and goes all the time
    granted: list[bool] = []
    assert budget.charge(SIZE, lambda: None)
    assert not budget.charge(50 * SIZE, lambda: granted.append(True))
    budget.give_back(SIZE)
    assert granted == [True]


def test_who_is_gone_is_not_called() -> None:
    budget = RequestMemory(2 * SIZE)
    assert budget.charge(2 * SIZE, lambda: None)
    called: list[bool] = []
    callback = lambda: called.append(True)  # noqa: E731
    assert not budget.charge(SIZE, callback)
    budget.cancel(callback)
    budget.wait_for_room(callback)
    budget.stop_waiting(callback)
    budget.give_back(2 * SIZE)
    assert called == []
    assert budget.taken_bytes == budget.large_bytes == 0


def test_everything_is_granted_in_the_end() -> None:
    """Whatever sizes come in whatever order: as long as what is held is given back, nothing waits for ever."""
    chance = random.Random(3)
    budget = RequestMemory(10 * SIZE)
    held: list[int] = []
    finished = asked = 0
    while finished < 300:
        if asked < 300 and (not held or chance.random() < 0.6):
            asked += 1
            size = chance.randrange(SIZE, 15 * SIZE)
            if budget.charge(size, lambda size=size: held.append(size)):  # type: ignore[misc]
                held.append(size)
        else:
            assert held, "frames wait while nothing is held"
            budget.give_back(held.pop(chance.randrange(len(held))))
            finished += 1
        assert budget.large_bytes == sum(held)
        assert budget.taken_bytes <= max(10 * SIZE, max(held, default=0))
    assert budget.taken_bytes == 0


def test_answers_are_charged_before_they_are_made() -> None:
    answers = UnsentAnswers(100)
    granted: list[str] = []
    assert answers.reserve(300, "a", lambda: granted.append("first")), "one is made in any case"
    for number in range(3):
        assert not answers.reserve(60, "a", partial(granted.append, f"a{number}"))
    assert not answers.reserve(60, "b", partial(granted.append, "b"))
    assert answers.reserve(0, "c", lambda: granted.append("from files")), "takes no memory"
    answers.release(0)
    answers.release(300)
    assert granted == ["a0"]
    answers.release(60)
    assert granted == ["a0", "b"], "users are served in rotation"
    answers.add(101)
    answers.release(60)
    assert granted == ["a0", "b"], "clients have to take theirs first"
    answers.remove(1)
    assert granted == ["a0", "b", "a1"]
    answers.release(60)
    answers.release(60)
    assert granted == ["a0", "b", "a1", "a2"]
    assert answers.reserved_bytes == 0


def test_an_answer_that_is_no_longer_wanted_makes_way() -> None:
    answers = UnsentAnswers(100)
    granted: list[str] = []
    waiting = [partial(granted.append, name) for name in ("large", "small")]
    assert answers.reserve(50, "a", lambda: None)
    assert not answers.reserve(90, "a", waiting[0])
    assert not answers.reserve(40, "b", waiting[1])
    assert answers.cancel("a", waiting[0])
    assert granted == ["small"]
    assert not answers.cancel("b", waiting[1]), "it was granted"
