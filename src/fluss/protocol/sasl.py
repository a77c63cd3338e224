# SPDX-License-Identifier: Apache-2.0
"""The PLAIN mechanism: how user name and password travel inside an Authenticate request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fluss.errors import AuthenticateError, InvalidArgumentError

PLAIN: Final = "PLAIN"
PLAINTEXT: Final = "PLAINTEXT"
TOKEN_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class PlainCredentials:
    """A user name and a password. The password is kept out of `repr` and out of every error."""

    username: str
    password: str = field(repr=False)

    @property
    def mechanism(self) -> str:
        return PLAIN

    def password_is(self, expected: str) -> bool:
        """Compare passwords in a time that does not depend on where they differ."""
        import hmac  # drags in OpenSSL, and only servers compare passwords

        return hmac.compare_digest(self.password.encode("utf-8"), expected.encode("utf-8"))


def encode_plain_token(credentials: PlainCredentials) -> bytes:
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


def parse_plain_token(token: bytes) -> PlainCredentials:
    """What a client claims; the caller still has to compare the password."""
    if len(token) > TOKEN_BYTES_MAX:
        raise AuthenticateError(f"SASL/PLAIN token of {len(token)} bytes is larger than {TOKEN_BYTES_MAX} bytes")
    try:
        parts = token.decode("utf-8").split("\0")
    except UnicodeDecodeError:
        raise AuthenticateError("SASL/PLAIN token is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticateError(f"SASL/PLAIN token must have 3 parts separated by NUL, this one has {len(parts)}")
    authorization_id, username, password = parts
    if not username:
        raise AuthenticateError("SASL/PLAIN token has no user name")
    if not password:
        raise AuthenticateError("SASL/PLAIN token has no password")
    if authorization_id and authorization_id != username:
        raise AuthenticateError("SASL/PLAIN token asks to act as another user, which is not supported")
    return PlainCredentials(username, password)
