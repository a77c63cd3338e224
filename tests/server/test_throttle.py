# SPDX-License-Identifier: Apache-2.0
"""How often a password may be tried."""

from __future__ import annotations

import pytest

from fluss.server.throttle import LoginThrottle


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def guesses(throttle: LoginThrottle, clock: Clock, seconds: float, users: int = 1, addresses: int = 1) -> int:
    """Try all the time, with wrong passwords; returns how many were checked."""
    checked, end, number = 0, clock.now + seconds, 0
    while clock.now < end:
        number += 1
        user, address = f"user{number % users}", f"10.0.0.{number % addresses}"
        wait = throttle.reserve(address, user)
        if wait is None:
            clock.now += 0.01
            continue
        if wait:
            clock.now += wait
        throttle.failed(address, user)
        checked += 1
        clock.now += 0.0001
    return checked


def test_guesses_of_one_password() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    assert guesses(throttle, clock, 3600) < 140  # 10,000 a second before


def test_guesses_with_many_user_names() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    assert guesses(throttle, clock, 3600, users=100_000) < 3700
    assert len(throttle) <= 20_000


def test_parallel_attempts_are_spaced() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    for _ in range(5):
        throttle.failed("a", "u")
    waits = [throttle.reserve("a", "u") for _ in range(20)]
    given = [wait for wait in waits if wait is not None]
    assert given == sorted(given)
    assert given == pytest.approx(range(1, 11))
    assert waits[10:] == [None] * 10  # further ones would wait for more than ten seconds


def test_others_are_hardly_slowed_down() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    for _ in range(1000):
        throttle.failed("a", "u")
    assert throttle.reserve("b", "u") == 0
    wait = throttle.reserve("a", "v")
    assert wait is not None
    assert wait <= 1.0


def test_success_and_time_forgive() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    for _ in range(6):
        throttle.failed("a", "u")
    assert throttle.reserve("a", "u") == pytest.approx(2.0)
    throttle.succeeded("a", "u")
    assert throttle.reserve("a", "u") == 0
    for _ in range(12):
        throttle.failed("a", "u")
    assert throttle.reserve("a", "u") is None
    clock.now += 700
    assert throttle.reserve("a", "u") == 0
