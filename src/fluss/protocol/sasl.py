# SPDX-License-Identifier: Apache-2.0
"""The PLAIN mechanism: how user name and password travel inside an Authenticate request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fluss.errors import InvalidArgumentError

PLAIN: Final = "PLAIN"


@dataclass(frozen=True, slots=True)
class PlainCredentials:
    """A user name and a password. The password is kept out of `repr` and out of every error."""

    username: str
    password: str = field(repr=False)

    @property
    def mechanism(self) -> str:
        return PLAIN


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
