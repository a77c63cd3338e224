# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fluss.errors import InvalidArgumentError
from fluss.protocol.sasl import PLAIN, Credentials, encode_plain_token


def test_a_token_has_any_letters() -> None:
    credentials = Credentials("jürgen", "pass word €")
    assert encode_plain_token(credentials) == "\0jürgen\0pass word €".encode()
    assert credentials.mechanism == PLAIN


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
        encode_plain_token(Credentials(username, password))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_password_is_not_shown() -> None:
    credentials = Credentials("bob", "topsecret")
    assert "topsecret" not in repr(credentials)
    assert "topsecret" not in str(credentials)
