# SPDX-License-Identifier: Apache-2.0
"""Who may log in: users of the options, per listener, and users of the file of users; and how soon after a failure."""

from __future__ import annotations

import functools
import hmac
import ipaddress
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from fluss.errors import AuthenticateError, ConfigError, InvalidArgumentError
from fluss.protocol.scram import ITERATIONS_DEFAULT, SCRAM_SHA_256, ScramKeys
from fluss.server.config import ServerConfig
from fluss.server.users import USERS_FILE, UserFile

_USER_ENTRY = re.compile(r'user_([^\s="]+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_TOKEN_PARTS = 3
_NAME_BYTES_MAX = 256

FAILURES_PER_CONNECTION_MAX = 3
_ENTRIES_MAX = 10_000
_EXPIRY_SECONDS = 600.0
_FREE_FAILURES = 3
_FIRST_SECONDS = 0.5
_SECONDS_MAX = 10.0

logger = logging.getLogger("fluss.server.auth")


@dataclass(frozen=True)
class Principal:
    """An authenticated identity, written ``User:alice``."""

    name: str
    type: str = "User"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


class WrongCredentialsError(AuthenticateError):
    """A login that looked right and was not: perhaps a guess. One text for a wrong user and a wrong password."""

    def __init__(self) -> None:
        super().__init__("Authentication failed: Invalid username or password")


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


def user_file_of(config: ServerConfig) -> UserFile:
    """The file of users that the options name."""
    return UserFile(config.text("security.users.file") or Path(str(config.get("data.dir"))) / USERS_FILE)


def warn_of_open_listeners(config: ServerConfig) -> None:
    """Warn of listeners that everyone in reach can use."""
    for endpoint in config.bind_endpoints:
        is_open = config.protocol_of(endpoint.listener) in ("PLAINTEXT", "SSL") and not config.asks_login(
            endpoint.listener
        )
        if is_open and not is_loopback(endpoint.host):
            logger.warning(
                "listener '%s' on %s asks for no login: everyone who can reach it can read and change all tables. "
                "Add users with 'fluss user add NAME' and start with --login, or listen on 127.0.0.1",
                endpoint.listener,
                endpoint.host or "all addresses",
            )


def check_users(config: ServerConfig) -> None:
    """Refuse a configuration in which no user could log in, or in which passwords cross a network in clear text."""
    file = user_file_of(config)
    file.check()
    for endpoint in config.bind_endpoints:
        if not config.asks_login(endpoint.listener):
            continue
        if not users_of(config, endpoint.listener) and not file.names():
            raise ConfigError(
                f"listener '{endpoint.listener}' uses SASL but no user is configured; "
                "add one with 'fluss user add NAME', or set 'security.sasl.plain.jaas.config'."
            )
        if _sends_passwords(config, endpoint.listener) and not is_loopback(endpoint.host):
            raise ConfigError(
                f"listener '{endpoint.listener}' would take passwords in clear text on "
                f"{endpoint.host or 'all addresses'}. Use TLS (protocol SASL_SSL, --tls-cert), or only SCRAM "
                "(security.sasl.enabled.mechanisms: "
                "SCRAM-SHA-256), or set 'security.sasl.plain.allow-unencrypted' on a network that is trusted."
            )


def _sends_passwords(config: ServerConfig, listener: str) -> bool:
    offers_plain = "PLAIN" in {name.upper() for name in config.strings("security.sasl.enabled.mechanisms")}
    return (
        offers_plain
        and not config.is_encrypted(listener)
        and not config.boolean("security.sasl.plain.allow-unencrypted")
    )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Accounts:
    """Checks logins against the users of the options and of the file of users.

    Keys of unknown users are made up, the same for the same name, so that neither answers nor times show which users
    exist. Deriving keys takes milliseconds: `log_in_plain` and `scram_keys` run in a thread.
    """

    def __init__(self, config: Callable[[], ServerConfig]) -> None:
        self._config = config
        self._file = user_file_of(config())
        self._secret = secrets.token_bytes(32)
        self._no_password = secrets.token_hex(32)
        self._derive = functools.lru_cache(maxsize=256)(ScramKeys.derive)

    def names(self, listener: str) -> list[str]:
        return sorted({*users_of(self._config(), listener), *self._file.names()})

    def log_in_plain(self, listener: str, token: bytes) -> Principal:
        """Check ``authzid NUL user NUL password``.

        The texts are those of the Java server, which clients and their tests compare.
        """
        parts = token.split(b"\0", _TOKEN_PARTS)
        if len(parts) != _TOKEN_PARTS:
            raise AuthenticateError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        try:
            authorization_id, name, password = (part.decode("utf-8") for part in parts)
        except UnicodeDecodeError:
            # No name or password that was configured is like this one.
            raise WrongCredentialsError from None
        if not name:
            raise AuthenticateError("Authentication failed: username not specified")
        if not password:
            raise AuthenticateError("Authentication failed: password not specified")
        if not self._is_password(listener, name, password):
            raise WrongCredentialsError
        if authorization_id and authorization_id != name:
            raise AuthenticateError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return Principal(name)

    def _is_password(self, listener: str, name: str, password: str) -> bool:
        configured = users_of(self._config(), listener).get(name)
        # Comparisons run for unknown users too: the time taken must not show which users exist.
        is_configured = hmac.compare_digest(password.encode(), (configured or "\0").encode())
        if configured is not None and is_configured:
            return True
        if not self._file.names():
            return False
        keys = self._file.find(name, SCRAM_SHA_256)
        is_stored = (keys or self._made_up(name)).matches(SCRAM_SHA_256, password)
        return keys is not None and is_stored

    def scram_keys(self, listener: str, name: str, mechanism: str) -> ScramKeys:
        """The keys that a login of this name has to fit; those of an unknown user fit no password."""
        keys = self._file.find(name, mechanism)
        users = users_of(self._config(), listener)
        if not users:
            return keys or self._made_up(name)
        # Derived for every name: the time taken must not show which ones are configured.
        try:
            derived = self._derive(mechanism, users.get(name, self._no_password), self._salt(name))
        except InvalidArgumentError:  # SCRAM takes no such password
            derived = self._derive(mechanism, self._no_password, self._salt(name))
        return keys or derived

    def _made_up(self, name: str) -> ScramKeys:
        return ScramKeys(self._salt(name), ITERATIONS_DEFAULT, secrets.token_bytes(32), secrets.token_bytes(32))

    def _salt(self, name: str) -> bytes:
        return hmac.digest(self._file.salt_key() or self._secret, name.encode("utf-8", "replace"), "sha256")[:16]


def user_of_token(token: bytes) -> str:
    """The user name of a PLAIN token, as it stands there, shortened; empty if it has none."""
    parts = token.split(b"\0", 2)
    return parts[1][:_NAME_BYTES_MAX].decode("utf-8", "replace") if len(parts) == _TOKEN_PARTS else ""


class LoginThrottle:
    """Computes how long the refusal of a login is held back, so that passwords cannot be guessed quickly.

    A password is checked at once, and only the refusal of a wrong one is held back: clients share an address with
    others behind a proxy, and a user name with an attacker who guesses its password. Neither may keep the right
    password out.

    Three failures are free. The next is held back for 0.5 s, and each further one for twice as long, up to 10 s. Of
    many pairs of address and user, those that failed longest ago are evicted first.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, address: str, user: str) -> float:
        """Count a wrong password; returns the seconds to wait before it is refused."""
        now = self._now()
        failures, failed_at = self._failures.pop((address, user), (0, now))
        failures = 1 if now - failed_at > _EXPIRY_SECONDS else failures + 1
        self._failures[address, user] = failures, now
        if len(self._failures) > _ENTRIES_MAX:
            self._failures.popitem(last=False)
        excess = failures - _FREE_FAILURES
        return 0.0 if excess <= 0 else min(_FIRST_SECONDS * 2.0 ** min(excess - 1, 30), _SECONDS_MAX)

    def succeeded(self, address: str, user: str) -> None:
        """Forgive the failures of a user who knows the password after all."""
        self._failures.pop((address, user), None)
