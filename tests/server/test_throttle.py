# SPDX-License-Identifier: Apache-2.0
"""How long refusals of wrong passwords are held back."""

from __future__ import annotations

from fluss.server.throttle import LoginThrottle


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_refusals_are_held_back_for_longer_and_longer() -> None:
    throttle = LoginThrottle(Clock())
    assert [throttle.failed("a", "u") for _ in range(10)] == [0, 0, 0, 0.5, 1, 2, 4, 8, 10, 10]


def test_other_users_and_addresses_are_not_delayed() -> None:
    throttle = LoginThrottle(Clock())
    for _ in range(1000):
        throttle.failed("a", "u")
    assert throttle.failed("b", "u") == 0
    assert throttle.failed("a", "v") == 0


def test_success_and_time_forgive() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    for _ in range(6):
        throttle.failed("a", "u")
    throttle.succeeded("a", "u")
    assert throttle.failed("a", "u") == 0
    for _ in range(12):
        throttle.failed("a", "u")
    clock.now += 700
    assert throttle.failed("a", "u") == 0


def test_memory_is_bounded() -> None:
    throttle = LoginThrottle(Clock())
    for number in range(30_000):
        throttle.failed("a", f"user{number}")
    assert len(throttle) == 10_000
