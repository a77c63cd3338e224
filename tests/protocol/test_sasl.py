# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fluss.errors import AuthenticateError, ErrorCode, InvalidArgumentError
from fluss.protocol.sasl import PLAIN, PlainCredentials, encode_plain_token, parse_plain_token


def test_round_trip_with_any_letters() -> None:
    credentials = PlainCredentials("jürgen", "pass word €")
    assert encode_plain_token(credentials) == "\0jürgen\0pass word €".encode()
    assert parse_plain_token(encode_plain_token(credentials)) == credentials
    assert credentials.mechanism == PLAIN


def test_authorization_id_may_repeat_the_user() -> None:
    assert parse_plain_token(b"bob\0bob\0pw") == PlainCredentials("bob", "pw")


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"", "must have 3 parts"),
        (b"bob\0topsecret", "has 2"),
        (b"\0bob\0top\0secret", "has 4"),
        (b"\0\0topsecret", "no user name"),
        (b"\0bob\0", "no password"),
        (b"eve\0bob\0topsecret", "act as another user"),
        (b"\0bob\0\xff", "not UTF-8"),
        (b"\0bob\0" + b"x" * 70_000, "larger than"),
    ],
)
def test_bad_tokens(token: bytes, message: str) -> None:
    with pytest.raises(AuthenticateError, match=message) as caught:
        parse_plain_token(token)
    assert caught.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("username", "password", "message"),
    [
        ("", "pw", "user name .* is empty"),
        ("bob", "", "password .* is empty"),
        ("b\0b", "pw", "user name .* NUL"),
        ("bob", "top\0secret", "password .* NUL"),
        ("bob", "top\udcffsecret", "cannot be written as UTF-8"),
    ],
)
def test_credentials_that_cannot_travel(username: str, password: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        encode_plain_token(PlainCredentials(username, password))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_password_is_not_shown() -> None:
    credentials = PlainCredentials("bob", "topsecret")
    assert "topsecret" not in repr(credentials)
    assert "topsecret" not in str(credentials)
    assert credentials.password_is("topsecret")
    assert not credentials.password_is("topsecre")
