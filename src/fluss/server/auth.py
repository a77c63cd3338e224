# SPDX-License-Identifier: Apache-2.0
"""Who may log in: SASL/PLAIN users per listener, read from the options."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass

from fluss.errors import AuthenticateError, ConfigError
from fluss.server.config import ServerConfig

_USER_ENTRY = re.compile(r'user_([^\s="]+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_TOKEN_PARTS = 3
_WRONG = "Authentication failed: Invalid username or password"
_NAME_BYTES_MAX = 256


@dataclass(frozen=True)
class Principal:
    """An authenticated identity, written ``User:alice``."""

    name: str
    type: str = "User"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


class WrongCredentialsError(AuthenticateError):
    """A login that looked right and was not: perhaps a guess."""


ANONYMOUS = Principal("ANONYMOUS")


def parse_jaas_users(option: str, text: str) -> dict[str, str]:
    """The ``user_NAME="PASSWORD"`` entries of a login module line. Never quotes the text: it holds passwords."""
    users = {name: re.sub(r"\\(.)", r"\1", password) for name, password in _USER_ENTRY.findall(text)}
    if not users:
        raise ConfigError(f"server option '{option}' names no user; expected entries like user_NAME=\"PASSWORD\".")
    if not all(users.values()):
        raise ConfigError(f"server option '{option}' has a user with an empty password.")
    return users


def users_of(config: ServerConfig, listener: str) -> dict[str, str]:
    """Names and passwords accepted on a listener; the listener's own option wins over the common one."""
    own = f"security.sasl.listener.name.{listener.lower()}.plain.jaas.config"
    text = config.text(own)
    if text is not None:
        return parse_jaas_users(own, text)
    users = config.mapping("security.sasl.plain.credentials")
    common = config.text("security.sasl.plain.jaas.config")
    if common is not None:
        users.update(parse_jaas_users("security.sasl.plain.jaas.config", common))
    return users


def check_users(config: ServerConfig) -> None:
    """Refuse a configuration with a SASL listener on which no user could log in."""
    for endpoint in config.bind_endpoints:
        if config.protocol_of(endpoint.listener) == "SASL" and not users_of(config, endpoint.listener):
            raise ConfigError(
                f"listener '{endpoint.listener}' uses SASL but no user is configured; "
                "set 'security.sasl.plain.jaas.config'."
            )


def user_of_token(token: bytes) -> str:
    """The user name of a PLAIN token, as it stands there, shortened; empty if it has none."""
    parts = token.split(b"\0", 2)
    return parts[1][:_NAME_BYTES_MAX].decode("utf-8", "replace") if len(parts) == _TOKEN_PARTS else ""


def authenticate_plain(token: bytes, users: dict[str, str]) -> Principal:
    """Check ``authzid NUL user NUL password``. One text for a wrong user and a wrong password: no hints.

    The texts are those of the Java server, which clients and their tests compare.
    """
    parts = token.split(b"\0", _TOKEN_PARTS)
    if len(parts) != _TOKEN_PARTS:
        raise AuthenticateError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    try:
        authorization_id, name, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError:
        # No name or password that was configured is like this one.
        raise WrongCredentialsError(_WRONG) from None
    if not name:
        raise AuthenticateError("Authentication failed: username not specified")
    if not password:
        raise AuthenticateError("Authentication failed: password not specified")
    expected = users.get(name)
    # The comparison also runs for unknown users, so that the time taken does not tell which users exist.
    same = hmac.compare_digest(password.encode(), (expected if expected is not None else "\0").encode())
    if expected is None or not same:
        raise WrongCredentialsError(_WRONG)
    if authorization_id and authorization_id != name:
        raise AuthenticateError(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    return Principal(name)
