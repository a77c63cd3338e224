# SPDX-License-Identifier: Apache-2.0
"""What `connect` connects to: a folder, an address, what the environment or a profile says, or something temporary."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ipaddress
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fluss.client.arguments import is_number
from fluss.config import DEFAULT_SERVER, Config, Login
from fluss.db.profiles import active_profile
from fluss.errors import (
    AuthenticateError,
    ConfigError,
    DeadlineExceededError,
    FlussError,
    InvalidArgumentError,
    NetworkError,
)
from fluss.net.deadline import wait_for
from fluss.net.tls import TlsError
from fluss.server.datadir import check_new_folder, is_in_use, is_replaceable, live_addresses
from fluss.server.local import LocalServer

DEFAULT_DATABASE = "fluss"
DEFAULT_PORT = 9123
_PROBE_TIMEOUT_S = 0.5
DEFAULT_TIMEOUT_S = 2.0
_LONGEST_S = 24 * 3600.0
_START_TIMEOUT_S = 30.0
_LOOK_AGAIN_S = 0.05
_ADDRESSES = re.compile(r"(?:fluss://)?(?P<list>[^/,\s]+:\d+(?:,[^/,\s]+:\d+)*)/?")
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}

T = TypeVar("T")


@dataclass
class Target:
    """Where to connect, once it is known: a server that runs, or one that was started for this program."""

    servers: str
    login: Login = field(default_factory=Login)
    server: LocalServer | None = None
    """The embedded server that this program has started; None if another one runs it."""
    folder: Path | None = None
    successor: Successor | None = None
    """Starts another server when the one of another program, which was joined, has ended."""
    origin: str = "the argument of connect()"
    """Who named the servers, for errors."""

    def config(self, timeout_s: float, options: Mapping[str, Any]) -> Config:
        """The client options."""
        properties: dict[str, Any] = {"bootstrap.servers": self.servers}
        if self.server is None:
            properties["connect-timeout"] = max(1, int(min(timeout_s, _LONGEST_S) * 1000))
        return Config({**properties, **self.login.options(), **options})

    def stop(self) -> None:
        """Stop the server that was started, if any. Stopping twice is fine."""
        if self.successor is not None:
            self.successor.stop()
        server, self.server = self.server, None
        if server is None:
            return
        atexit.unregister(self._stop_at_exit)
        with _sharing:
            users = _users.pop(server) - 1
            if users:
                _users[server] = users
                return
            if self.folder is not None:
                _servers.pop(self.folder, None)
            server.stop()

    def _stop_at_exit(self) -> None:
        # Standard streams may be gone by now, and every acknowledged write is durable anyway.
        with contextlib.suppress(FlussError):
            self.stop()


_sharing = threading.RLock()
_servers: dict[Path, LocalServer] = {}
"""The servers that this program has started, by their folders: who connects to a folder again shares its server."""
_users: dict[LocalServer, int] = {}
"""How many connections use a server. It stops with the last of them."""


def check_arguments(
    login: Login,
    database: str,
    timeout: float,
    options: Mapping[str, Any] | None,
    server: Mapping[str, Any] | None,
) -> None:
    """Refuse arguments of `connect` that make no sense, before a server is started for them."""
    # Of a password and of options, which may have one, only the type is shown.
    for name, fits, accepted, value in (
        ("user", login.user is None or isinstance(login.user, str), "a string or None", login.user),
        ("password", isinstance(login.password, (str, type(None))), "a string or None", type(login.password)),
        ("tls", isinstance(login.tls, bool), "True or False", login.tls),
        ("ca", isinstance(login.ca, (str, type(None))), "the path of a PEM file or None", login.ca),
        ("fingerprint", isinstance(login.fingerprint, (str, type(None))), "a string or None", login.fingerprint),
        ("database", isinstance(database, str) and bool(database), "the name of a database", database),
        ("timeout", is_number(timeout) and timeout == timeout, "a number of seconds", timeout),  # not nan
        ("options", options is None or isinstance(options, Mapping), "a dict of options or None", type(options)),
        ("server", server is None or isinstance(server, Mapping), "a dict of options or None", type(server)),
    ):
        if not fits:
            raise InvalidArgumentError(f"connect(): {name} must be {accepted}, got {value!r:.80}")


def find_target(
    where: str | os.PathLike[str] | None,
    login: Login,
    server: Mapping[str, Any] | None = None,
    read_only: bool = False,
) -> Target:
    """Find the server to connect to, and start the embedded one if a folder is meant and none runs on it.

    What is not named is found in this order, by the command line too: ``FLUSS_BOOTSTRAP_SERVERS``, the active profile.
    If neither is there, `connect` makes a temporary folder, and the command line asks `DEFAULT_SERVER`.

    `server` has options for a server that is started. With `read_only`, no database is created.
    """
    if where is None:
        if servers := os.environ.get("FLUSS_BOOTSTRAP_SERVERS"):
            return Target(_addresses(servers), login.or_else(Login.of_environment()), origin="FLUSS_BOOTSTRAP_SERVERS")
        profile = active_profile()
        if profile is not None:
            found = login.or_else(profile.login(with_password=login.user is None and login.password is None))
            return Target(_addresses(profile.bootstrap_servers), found, origin=f"profile {profile.name!r}")
        # Not the server at the default address, if one runs there: a test that means to be alone would change its data.
        other = f", or use the server that runs: fluss.connect('{DEFAULT_SERVER}')" if _is_listening() else ""
        print(
            f"fluss: temporary data, deleted with the connection. Keep it with fluss.connect('./shop'){other}",
            file=sys.stderr,
        )
        return _started(LocalServer(options=server), login, None)
    if not isinstance(where, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"connect() takes a folder such as './shop' or an address such as 'host:9123', not {where!r:.80}"
        )
    text = os.fspath(where)
    if isinstance(where, str):
        match = _ADDRESSES.fullmatch(text)
        if match is not None and not os.path.isdir(text):
            return Target(match["list"], login)
        if _is_host(text):
            return Target(f"{text}:{DEFAULT_PORT}", login)
        if "://" in text or not text.strip() or _looks_like_address(text):
            raise InvalidArgumentError(
                f"cannot connect to {text!r}: write an address as host:port, or a folder such as './shop'. Without an "
                "argument, connect() uses a temporary folder"
            )
    folder = Path(text).expanduser().resolve()
    if read_only and not (folder / "catalog").is_dir():
        raise InvalidArgumentError(f"there is no database in '{folder}' to read; without read_only=True one is created")
    return _join_or_start(folder, login, server)


def read_only_options(options: Mapping[str, Any] | None, read_only: bool) -> Mapping[str, Any]:
    """The options of the client, for a connection that may be read-only."""
    return {**(options or {}), **({"client.read-only": True} if read_only else {})}


def _is_listening() -> bool:
    host, _, port = DEFAULT_SERVER.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False


def _is_host(text: str) -> bool:
    if text == "localhost":
        return not os.path.isdir(text)
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(text).version == 4
    return False


def _looks_like_address(text: str) -> bool:
    """Whether a text is meant as an address with a mistake, not as a folder: ``host:912x``, ``:memory:``, ``9123``."""
    return (":" in text or text.isdigit()) and os.sep not in text and "/" not in text and not os.path.isdir(text)


def _addresses(text: str) -> str:
    match = _ADDRESSES.fullmatch(text.strip())
    return match["list"] if match is not None else text.strip()


def _join_or_start(folder: Path, login: Login, options: Mapping[str, Any] | None) -> Target:
    if folder.exists() and not folder.is_dir():
        raise InvalidArgumentError(f"cannot use '{folder}' for a database: it is a file, not a folder")
    with _sharing:
        known = _servers.get(folder)
        if known is not None and known.pid is not None:
            if options and dict(options) != known.options:
                warnings.warn(
                    f"the server of '{folder}' runs already, with other options: server= has no effect. Close the "
                    "connections to it first",
                    stacklevel=2,
                )
            return _using(known, login, folder)
        return _join_other_or_start(folder, login, options)


def _join_other_or_start(folder: Path, login: Login, options: Mapping[str, Any] | None) -> Target:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        addresses = live_addresses(folder)
        if addresses:
            joined = Target(reachable(addresses[0]), login, folder=folder)
            if is_replaceable(folder):
                joined.successor = Successor(joined, folder)
            return joined
        if not is_in_use(folder):
            check_new_folder(folder)
            try:
                return _started(LocalServer(folder, options=options), login, folder)
            except ConfigError:
                # Another program may have started a server there in this very moment: then that one is joined.
                if not is_in_use(folder) or time.monotonic() > deadline:
                    raise
        elif time.monotonic() > deadline:
            raise ConfigError(
                f"a server uses the folder '{folder}', but does not say under which address. Stop it, or connect to "
                "its address"
            )
        time.sleep(_LOOK_AGAIN_S)  # the other server is about to start


class Successor:
    """Starts the server of a folder again, at the same address, when the program that ran it has ended.

    It holds a connection to the server, whose end it notices at once.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._stopped = threading.Event()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="fluss-successor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the server alone from now on."""
        self._stopped.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_START_TIMEOUT_S)

    def _run(self) -> None:
        host, _, port = self._target.servers.rpartition(":")
        while not self._stopped.is_set():
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as self._socket:
                while not self._stopped.is_set() and self._socket.recv(1):
                    pass
            if self._take_over(host, int(port)):
                return
            self._stopped.wait(_LOOK_AGAIN_S)

    def _take_over(self, host: str, port: int) -> bool:
        """Start a server if none runs; False if another program did, or is about to."""
        with _sharing:
            if self._stopped.is_set():
                return False
            known = _servers.get(self._folder)
            if known is None or known.pid is None:
                if is_in_use(self._folder):
                    return False
                known = LocalServer(self._folder, host=host, port=port)
                try:
                    known.start()
                except FlussError:  # another program was faster
                    return False
                _servers[self._folder] = known
            _own(self._target, known)
            return True


def reachable(address: str) -> str:
    """The address of a server on this machine, which may listen on every address."""
    host, _, port = address.rpartition(":")
    return f"{_EVERY_ADDRESS.get(host, host)}:{port}"


def _started(server: LocalServer, login: Login, folder: Path | None) -> Target:
    server.start()
    if problems := server.problems:
        warnings.warn(f"the server of '{server.data_dir}' reports: {problems}", stacklevel=2)
    with _sharing:
        if folder is not None:
            _servers[folder] = server
        return _using(server, login, folder)


def _using(server: LocalServer, login: Login, folder: Path | None) -> Target:
    target = Target(server.bootstrap_servers, login, folder=folder)
    _own(target, server)
    return target


def _own(target: Target, server: LocalServer) -> None:
    _users[server] = _users.get(server, 0) + 1
    target.server = server
    atexit.register(target._stop_at_exit)


class TargetSearch:
    """`find_target` in a thread of its own, while the caller imports what it will need."""

    def __init__(
        self,
        where: str | os.PathLike[str] | None,
        login: Login,
        server: Mapping[str, Any] | None,
        read_only: bool,
    ) -> None:
        self._found: Future[Target] = Future()
        # No executor: its threads hold up the end of the program, and begin no work once that has begun.
        arguments = where, login, server, read_only
        threading.Thread(target=self._find, args=arguments, name="fluss-connect", daemon=True).start()

    def _find(self, *arguments: Any) -> None:
        try:
            self._found.set_result(find_target(*arguments))
        except BaseException as error:
            self._found.set_exception(error)

    def result(self) -> Target:
        """Wait for it."""
        try:
            return self._found.result()
        except BaseException:
            if self._found.exception() is None:  # an interrupt: a server that starts now must not be left behind
                self._found.result().stop()
            raise


async def reach(target: Target, timeout_s: float, connect: Callable[[], Awaitable[T]]) -> T:
    """Connect within the timeout, or say what could not be reached and what to start."""
    try:
        return await wait_for(connect(), min(timeout_s, _LONGEST_S) if target.server is None else None)
    except TlsError:
        raise
    except AuthenticateError as error:
        # An answer has a code and a text, and the code is that of a wrong password too. Both servers use these words.
        if "protocol of server is 'PLAINTEXT'" in error.message:
            raise AuthenticateError(
                f"the server at {target.servers} asks for no login: connect without a user and a password"
            ) from None
        if target.login.user is not None:
            raise
        raise AuthenticateError(
            f"the server at {target.servers} asks for a login", hint="connect with user= and password="
        ) from None
    except (NetworkError, DeadlineExceededError, asyncio.TimeoutError) as error:
        reason = f": {error.message}" if isinstance(error, FlussError) else ""
        raise NetworkError(
            f"Cannot reach a Fluss server at {target.servers} ({target.origin}) within {timeout_s:g} s{reason}",
            hint=f"start one with 'fluss server --port {target.servers.rpartition(':')[2]}', or use an embedded server "
            "with fluss.connect('./folder')",
        ) from None
