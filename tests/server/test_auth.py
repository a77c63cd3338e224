# SPDX-License-Identifier: Apache-2.0
"""SASL/PLAIN tokens, and the texts of the Java server with which they are refused, sooner or later."""

from __future__ import annotations

import pytest

from fluss.errors import AuthenticateError
from fluss.server.auth import Accounts, LoginThrottle, Principal, user_of_token
from fluss.server.config import ServerConfig

CONFIG = ServerConfig({"security.sasl.plain.credentials": {"alice": "alice-secret", "bob": "pässword"}})


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"\0alice\0alice-secret", "alice"),
        (b"alice\0alice\0alice-secret", "alice"),
        ("\0bob\0pässword".encode(), "bob"),
    ],
)
def test_users_log_in(token: bytes, user: str) -> None:
    assert Accounts(lambda: CONFIG).log_in_plain("FLUSS", token) == Principal(user)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0alice-secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0alice-secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0" * 10, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0alice-secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0alice-secret", "Authentication failed: Invalid username or password"),
        (b"\0\xff\0alice-secret", "Authentication failed: Invalid username or password"),
        (b"bob\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (
            b"bob\0alice\0alice-secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
    ],
)
def test_refusals_have_the_texts_of_the_java_server(token: bytes, text: str) -> None:
    with pytest.raises(AuthenticateError) as caught:
        Accounts(lambda: CONFIG).log_in_plain("FLUSS", token)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("token", "user"), [(b"\0alice\0x", "alice"), (b"\0\xff\0x", "�"), (b"\0\0x", ""), (b"x", ""), (b"", "")]
)
def test_the_user_of_a_token(token: bytes, user: str) -> None:
    assert user_of_token(token) == user


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
