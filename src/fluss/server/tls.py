# SPDX-License-Identifier: Apache-2.0
"""TLS on the server's side: handshakes beside the event loop, encrypted sockets for channels, new certificates."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import selectors
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from fluss.errors import AuthenticateError, ConfigError, FlussError
from fluss.net.eager import retrieve_exception, start_eagerly
from fluss.net.tls import TlsFiles, server_context
from fluss.server.config import ServerConfig

logger = logging.getLogger("fluss.server.tls")

HANDSHAKE_SECONDS_MAX = 10.0
HANDSHAKE_BYTES_MAX = 8 * 1024
"""What a handshake may take from its client: a hello, and a chain of certificates."""
HANDSHAKES_MAX = 1000
"""Handshakes at a time: those who never finish hold 64 KB each of 64 MB. The oldest one makes room for the next."""
_HANDSHAKES_MIN = 16
_RECEIVE_BYTES_MAX = 1024 * 1024
"""Decrypted at a time, before other connections are served."""
_RECORD_BYTES_MAX = 16 * 1024
"""The most plaintext of one TLS record, which is what one `send` takes."""
_PROTOCOL_ALERT = bytes.fromhex("15030300020246")  # fatal, protocol_version (RFC 8446, 6.2)
_WOULD_BLOCK = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
_RULE = re.compile(r"RULE:((?:[^/\\]|\\.)+)/((?:[^/\\]|\\.)*)/([LU]?)")
_SPECIAL = re.compile(r'[,+"\\<>;=]')
_SHORT_NAMES = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "domainComponent": "DC",
    "emailAddress": "emailAddress",
    "userId": "UID",
}


class TlsSocket:
    """What a `Channel` uses of a socket, over TLS. A call that would block raises `BlockingIOError`."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._sock.setsockopt(level, option, value)

    @property
    def has_decrypted(self) -> bool:
        """Whether bytes can be received although the socket may have none: they are decrypted already."""
        return self._sock.pending() > 0

    @property
    def subject(self) -> str | None:
        """The distinguished name of the client's certificate (RFC 2253); None if it showed none."""
        certificate: Any = self._sock.getpeercert()
        return distinguished_name(certificate["subject"]) if certificate else None

    def recv_into(self, buffer: memoryview) -> int:
        """Decrypt as much as has come and fits, record by record."""
        target = buffer[:_RECEIVE_BYTES_MAX]
        received = 0
        while received < len(target):
            try:
                count = self._sock.recv_into(target[received:])
            except _WOULD_BLOCK:
                break
            if not count:
                return received
            received += count
        if not received:
            raise BlockingIOError
        return received

    def send(self, data: bytes | memoryview) -> int:
        try:
            return self._sock.send(data)
        except _WOULD_BLOCK:
            raise BlockingIOError from None

    def sendmsg(self, parts: Sequence[memoryview], *_: Any) -> int:
        """Encrypt the first parts, as many as fill a record.

        After a call that would block OpenSSL wants the same bytes again, and perhaps more: parts wait in a queue, so
        the next call begins with those of this one.
        """
        first, size_bytes = parts[0], 0
        if first.nbytes >= _RECORD_BYTES_MAX or len(parts) == 1:
            return self.send(first)
        joined = []
        for part in parts:
            joined.append(part[: _RECORD_BYTES_MAX - size_bytes])
            size_bytes += joined[-1].nbytes
            if size_bytes == _RECORD_BYTES_MAX:
                break
        return self.send(b"".join(joined))

    def send_file(self, fd: int, position: int, size_bytes: int) -> int:
        """Encrypt bytes of a file: the system cannot send them as they lie there."""
        return self.send(os.pread(fd, min(size_bytes, _RECORD_BYTES_MAX), position))

    def close(self) -> None:
        self._sock.close()


class TlsListener:
    """Encrypt the accepted sockets of one listener."""

    def __init__(
        self,
        config: ServerConfig,
        listener: str,
        executor: Executor,
        accept: Callable[[TlsSocket, str, str], None],
        free_places: Callable[[], int],
    ) -> None:
        """`free_places` says how many connections there may still be: each handshake holds a handle as well."""
        self._free_places = free_places
        self._config = config
        self._listener = listener
        self._executor = executor
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._files = tls_files(config)
        self._versions = file_versions(self._files)
        self._context = _context(config, listener)

    def begin(self, sock: socket.socket, peer: str) -> None:
        """Start the handshake of an accepted socket; `accept` gets the encrypted one when it is done."""
        allowed = min(max(self._free_places(), _HANDSHAKES_MIN), HANDSHAKES_MAX)
        while len(self._handshakes) >= allowed:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        # Eagerly: a task that is cancelled before its first step would not close its socket.
        task = start_eagerly(self._loop, self._shake_hands(sock, peer))
        if task is not None:
            self._handshakes[task] = None
            task.add_done_callback(lambda task: self._handshakes.pop(task, None))
            timer = self._loop.call_later(HANDSHAKE_SECONDS_MAX, task.cancel)
            task.add_done_callback(lambda _: timer.cancel())

    async def _shake_hands(self, sock: socket.socket, peer: str) -> None:
        """Compute each step in a thread, since it takes up to a millisecond; only waiting is done here."""
        secured: ssl.SSLSocket | None = None
        step: Future[tuple[int, int]] | None = None
        wanted = selectors.EVENT_READ  # a client that sends nothing costs no state of OpenSSL
        taken_bytes = 0
        try:
            while wanted:
                await self._ready(sock if secured is None else secured, wanted)
                if secured is None:
                    secured = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                step = self._executor.submit(_advance, secured, taken_bytes)
                done = asyncio.wrap_future(step)
                done.add_done_callback(retrieve_exception)  # of a handshake that made room
                wanted, taken_bytes = await done
            assert secured is not None
            self._accept(TlsSocket(secured), self._listener, peer)
        except BaseException as error:
            unfinished = secured or sock
            if isinstance(error, ssl.SSLError):
                # OpenSSL sends no alert to a client that does not use TLS, and an alert says why it is refused.
                # Closing with bytes unread would reset the connection before the alert is read.
                with suppress(OSError):
                    os.read(unfinished.fileno(), _RECEIVE_BYTES_MAX)
                    os.write(unfinished.fileno(), _PROTOCOL_ALERT)
            if step is None:
                unfinished.close()
            else:
                # Not while a thread uses it: its number could be that of another connection by then.
                step.add_done_callback(lambda _: unfinished.close())
            if not isinstance(error, (OSError, FlussError)):
                raise
            logger.debug("the TLS handshake with %s failed: %s", peer, error)

    async def _ready(self, sock: socket.socket, event: int) -> None:
        ready = asyncio.Event()
        reading = event == selectors.EVENT_READ
        (self._loop.add_reader if reading else self._loop.add_writer)(sock.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            (self._loop.remove_reader if reading else self._loop.remove_writer)(sock.fileno())

    async def reload(self) -> None:
        """Use the certificates that the files have now, if they changed. Those that cannot be used are reported."""
        versions = await self._loop.run_in_executor(self._executor, file_versions, self._files)
        if versions == self._versions:
            return
        self._versions = versions
        try:
            self._context = await self._loop.run_in_executor(self._executor, _context, self._config, self._listener)
        except FlussError as error:
            logger.warning("the new TLS certificate is not used, the one before is kept: %s", error.message)
        else:
            logger.info("listener %s uses the renewed TLS certificate", self._listener)

    def close(self) -> None:
        for task in self._handshakes:
            task.cancel()


def _advance(sock: ssl.SSLSocket, taken_bytes: int) -> tuple[int, int]:
    """Go on with a handshake. Returns what it waits for, 0 at its end, and the bytes that it took so far.

    OpenSSL keeps the bytes of a message until all of it is there.
    """
    with suppress(BlockingIOError):
        # The encrypted bytes, which the method of an SSLSocket does not show.
        taken_bytes += len(socket.socket.recv(sock, HANDSHAKE_BYTES_MAX + 1, socket.MSG_PEEK))
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        if taken_bytes <= HANDSHAKE_BYTES_MAX:
            return selectors.EVENT_READ, taken_bytes
        sock.close()  # here: the event loop may be busy, and threads would fill memory faster than it closes sockets
        raise AuthenticateError(f"it takes more than {HANDSHAKE_BYTES_MAX} bytes") from None
    except ssl.SSLWantWriteError:
        return selectors.EVENT_WRITE, taken_bytes
    return 0, taken_bytes


def file_versions(files: TlsFiles) -> tuple[tuple[str, int, int], ...]:
    """What differs in a renewed file: where links lead to, time and size. Certificate managers swap links.

    The time is that of any change: a file that could not be read before a chmod has the same content and age after it.
    """
    versions = []
    for name in (files.certificate, files.key, files.ca):
        with suppress(OSError):
            path = Path(name).resolve(strict=True)
            stat = path.stat()
            versions.append((str(path), stat.st_ctime_ns, stat.st_size))
    return tuple(versions)


def tls_files(config: ServerConfig) -> TlsFiles:
    """The files and versions that the options name."""
    return TlsFiles(
        certificate=config.text("security.ssl.keystore.location") or "",
        key=config.text("security.ssl.key.location") or "",
        key_password=config.text("security.ssl.key.password") or config.text("security.ssl.keystore.password") or "",
        ca=config.text("security.ssl.truststore.location") or "",
        protocols=config.strings("security.ssl.enabled.protocols"),
        ciphers=config.strings("security.ssl.cipher.suites"),
    )


def _context(config: ServerConfig, listener: str) -> ssl.SSLContext:
    return server_context(tls_files(config), require_client_certificate=config.protocol_of(listener) == "MTLS")


def check_tls(config: ServerConfig) -> None:
    """Refuse options of TLS that no listener could start with."""
    parse_mapping_rules(config.text("security.ssl.principal.mapping.rules") or "DEFAULT")
    for endpoint in config.bind_endpoints:
        if config.is_encrypted(endpoint.listener):
            _context(config, endpoint.listener)


# Users of certificates ---------------------------------------------------------------------------------------------


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The name of a certificate's subject as RFC 2253 writes it, most specific part first."""
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_SPECIAL.sub(_escaped, value)}" for kind, value in part)
        for part in reversed(subject)
    )


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match.group()


class MappingRule:
    """`RULE:pattern/replacement/[LU]`, or `DEFAULT`, which takes the whole name."""

    def __init__(self, text: str) -> None:
        match = _RULE.fullmatch(text)
        if text == "DEFAULT":
            self._pattern, self._replacement, self._case = re.compile("(.*)"), r"\1", ""
            return
        if match is None:
            raise ConfigError(
                f"server option 'security.ssl.principal.mapping.rules' has the rule {text!r}; rules are DEFAULT or "
                "RULE:pattern/replacement/, with L or U behind it for lower or upper case."
            )
        pattern, replacement, self._case = match.groups()
        self._replacement = re.sub(r"\$(\d)", r"\\g<\1>", replacement)
        try:
            self._pattern = re.compile(pattern)
            # A group that the pattern does not have would fail with each connection.
            re.compile("()" * self._pattern.groups).match("").expand(self._replacement)  # type: ignore[union-attr]
        except (re.error, IndexError) as error:
            raise ConfigError(
                f"server option 'security.ssl.principal.mapping.rules' has the rule {text!r}, whose pattern or "
                f"replacement cannot be read: {error}."
            ) from None

    def apply(self, name: str) -> str | None:
        match = self._pattern.fullmatch(name)
        if match is None:
            return None
        found = match.expand(self._replacement)
        return {"L": found.lower(), "U": found.upper()}.get(self._case, found)


def parse_mapping_rules(text: str) -> list[MappingRule]:
    """Read the rules, separated by commas; commas inside of rules belong to them."""
    return [MappingRule(part.strip()) for part in re.split(r",\s*(?=DEFAULT|RULE:)", text.strip())]


def user_of_certificate(config: ServerConfig, subject: str) -> str | None:
    """The user that a client certificate stands for, by the first rule that fits; None if none does."""
    rules = parse_mapping_rules(config.text("security.ssl.principal.mapping.rules") or "DEFAULT")
    return next(filter(None, (rule.apply(subject) for rule in rules)), None)
