# SPDX-License-Identifier: Apache-2.0
"""SASL logins: which tokens a client sends inside Authenticate requests, by mechanism."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from fluss.errors import AuthenticateError, InvalidArgumentError
from fluss.protocol.scram import ScramClient

PLAIN: Final = "PLAIN"


class SaslLogin(Protocol):
    """One login: `first`, then `answer` with each challenge of the server until it returns None, then `finish`."""

    def first(self) -> bytes: ...

    def answer(self, challenge: bytes) -> bytes | None: ...

    def finish(self) -> None:
        """Check that the server has done its part."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name and a password. The password is kept out of `repr` and out of every error."""

    username: str
    password: str = field(repr=False)
    mechanism: str = PLAIN

    def login(self, nonce: str) -> SaslLogin:
        """Start a login. `nonce` is random text that no other login has; PLAIN does not use it."""
        if self.mechanism == PLAIN:
            return _PlainLogin(self)
        return ScramClient(self.mechanism, self.username, self.password, nonce)


class _PlainLogin:
    def __init__(self, credentials: Credentials) -> None:
        self._token = encode_plain_token(credentials)
        self._acknowledged = False

    def first(self) -> bytes:
        return self._token

    def answer(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise AuthenticateError("The server sent a challenge, but PLAIN has none to answer")
        if self._acknowledged:
            return None
        # An empty challenge is how servers acknowledge PLAIN; some wait for it to be acknowledged in turn.
        self._acknowledged = True
        return b""

    def finish(self) -> None:
        pass


def encode_plain_token(credentials: Credentials) -> bytes:
    """NUL user NUL password; the authorization id before the first NUL stays empty."""
    for name, value in (("user name", credentials.username), ("password", credentials.password)):
        if not value:
            raise InvalidArgumentError(f"The {name} for SASL/PLAIN is empty; set both user name and password")
        if "\0" in value:
            raise InvalidArgumentError(f"The {name} for SASL/PLAIN contains a NUL character, which PLAIN cannot carry")
    try:
        return f"\0{credentials.username}\0{credentials.password}".encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("User name or password for SASL/PLAIN cannot be written as UTF-8") from None
