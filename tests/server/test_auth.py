# SPDX-License-Identifier: Apache-2.0
"""SASL/PLAIN tokens, and the texts of the Java server with which they are refused."""

from __future__ import annotations

import pytest

from fluss.errors import AuthenticateError
from fluss.server.auth import Accounts, Principal, user_of_token
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
