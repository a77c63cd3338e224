# SPDX-License-Identifier: Apache-2.0
"""One connection per server node, opened when first needed and opened again, with pauses, when it breaks.

`first_that_answers` asks the bootstrap servers, before the nodes are known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from fluss._text import escaped
from fluss.client.metrics import Metrics
from fluss.client.retry import CHECK_SERVERS, Backoff, may_pass
from fluss.client.singleflight import SingleFlight
from fluss.config import Config
from fluss.errors import (
    AuthenticateError,
    ConnectionClosedError,
    DeadlineExceededError,
    FlussError,
    NetworkError,
)
from fluss.metadata import ServerNode
from fluss.net.connection import SOFTWARE_NAME, Connection
from fluss.net.deadline import Deadline
from fluss.net.tls import ClientTls, TlsFiles
from fluss.protocol import ServerType
from fluss.protocol.sasl import Credentials

logger = logging.getLogger("fluss.client")

CLOSED = "The connection is closed; create a new one with FlussConnection.create(config)"
RECONNECT_BACKOFF = Backoff(first_ms=50.0, max_ms=1_000.0)
BOOTSTRAP_ATTEMPTS_MAX = 4
BOOTSTRAP_BACKOFF = Backoff(first_ms=100.0, max_ms=400.0)

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Longest response accepted. A fetch answers with `scanner.log.fetch.max-bytes` (16 MB) plus at most one batch."""

OpenConnection = Callable[[str, int, "ServerType | None", Deadline], Awaitable[Connection]]
"""Opens a connection to host and port: the role the server must have (None for any), and the deadline of the call."""

_ROLES = {"CoordinatorServer": ServerType.COORDINATOR, "TabletServer": ServerType.TABLET}


class ConnectionOpener:
    """Opens connections with the login, the certificates and the limits of a configuration."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._tls = _tls(config)

    async def __call__(self, host: str, port: int, role: ServerType | None, deadline: Deadline) -> Connection:
        config = self._config
        try:
            connection = await Connection.open(
                host,
                port,
                software_name=f"{SOFTWARE_NAME} ({config.client_id})" if config.client_id else SOFTWARE_NAME,
                connect_timeout_ms=deadline.limit_ms(config.connect_timeout_ms),
                request_timeout_ms=config.request_timeout_ms,
                credentials=_credentials(config),
                tls=self._tls,
                max_frame_bytes=MAX_FRAME_BYTES,
                expected_server_type=role,
                read_only=config.read_only,
            )
        except FlussError:
            self._metrics.add("connections_failed_total")
            raise
        self._metrics.add("connections_opened_total")
        return connection


def _credentials(config: Config) -> Credentials | None:
    if not config.is_sasl:
        return None
    return Credentials(config.security_sasl_username, config.security_sasl_password, config.security_sasl_mechanism)


def _tls(config: Config) -> ClientTls | None:
    if not config.is_encrypted:
        return None
    files = TlsFiles(
        certificate=config.security_ssl_keystore_location,
        key=config.security_ssl_key_location,
        key_password=config.security_ssl_key_password or config.security_ssl_keystore_password,
        ca=config.security_ssl_truststore_location,
        protocols=_names(config.security_ssl_enabled_protocols),
        ciphers=_names(config.security_ssl_cipher_suites),
    )
    return ClientTls(
        files,
        check_hostname=bool(config.security_ssl_endpoint_identification_algorithm),
        fingerprint=config.security_ssl_fingerprint,
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass(eq=False)
class _Slot:
    node: ServerNode
    connection: Connection | None = None
    discarded: FlussError | None = None
    """Why the node is not known at this address any more."""
    error: FlussError | None = None
    """Why the last attempt to connect failed."""
    failures: int = 0
    retry_at: float = 0.0


class NodePool:
    """The connections to the nodes of a cluster."""

    def __init__(self, open_connection: OpenConnection, metrics: Metrics) -> None:
        self._open = open_connection
        self._metrics = metrics
        self._slots: dict[str, _Slot] = {}
        self._flights = SingleFlight()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        metrics.gauge("connections_open", self.open_count)

    def open_count(self) -> int:
        return sum(1 for slot in self._slots.values() if slot.connection is not None and not slot.connection.closed)

    def update(self, nodes: Iterable[ServerNode]) -> None:
        """Learn the complete list of nodes; connections to nodes that left or moved are closed."""
        known = {node.uid: node for node in nodes}
        for uid in [uid for uid in self._slots if uid not in known]:
            self._discard(self._slots.pop(uid), NetworkError(f"Server {uid} left the cluster"))
        for uid, node in known.items():
            slot = self._slots.get(uid)
            if slot is not None and (slot.node.host, slot.node.port) != (node.host, node.port):
                self._discard(slot, NetworkError(f"Server {uid} moved to {node.host}:{node.port}"))
                slot = None
            if slot is None:
                self._slots[uid] = _Slot(node)

    def ready(self, node: ServerNode) -> Connection | None:
        """The open connection to a node, if there is one: no waiting."""
        slot = self._slots.get(node.uid)
        if slot is None or slot.connection is None or slot.connection.closed:
            return None
        return slot.connection

    async def connection(self, node: ServerNode, deadline: Deadline) -> Connection:
        """Return the connection to a node, opened if need be. Callers that ask at the same time share one."""
        if self._closed:
            raise ConnectionClosedError(CLOSED)
        slot = self._slots.get(node.uid)
        if slot is None:
            slot = self._slots[node.uid] = _Slot(node)
        if slot.connection is not None and not slot.connection.closed:
            return slot.connection
        return await self._flights.run(slot, lambda: self._connect(slot, deadline), deadline)

    async def _connect(self, slot: _Slot, deadline: Deadline) -> Connection:
        node = slot.node
        pause_ms = (slot.retry_at - time.monotonic()) * 1000.0
        if pause_ms > 0:
            if slot.error is not None and pause_ms >= deadline.remaining_ms:
                raise slot.error.replace()
            await asyncio.sleep(pause_ms / 1000.0)
        try:
            connection = await self._open(node.host, node.port, _ROLES.get(node.server_type), deadline)
        except FlussError as error:
            slot.error = error.replace()
            delay_ms = RECONNECT_BACKOFF.delay_ms(slot.failures)
            slot.failures += 1
            slot.retry_at = time.monotonic() + delay_ms / 1000.0
            logger.info(
                "no connection to %s at %s:%d: %s", node.uid, escaped(node.host), node.port, escaped(str(error))
            )
            raise
        slot.error = None
        slot.failures = 0
        slot.retry_at = 0.0
        if self._closed:
            slot.discarded = ConnectionClosedError("The connection was closed while it was connecting to a server")
        if slot.discarded is not None:
            await connection.close()
            raise slot.discarded.replace()
        slot.connection = connection
        logger.debug("connected to %s at %s:%d", node.uid, node.host, node.port)
        return connection

    def _discard(self, slot: _Slot, reason: FlussError | None = None) -> None:
        slot.discarded = reason
        if slot.connection is not None and not slot.connection.closed:
            task = asyncio.get_running_loop().create_task(slot.connection.close(reason))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        slot.connection = None

    async def close(self) -> None:
        self._closed = True
        self._flights.cancel_all(ConnectionClosedError("The connection was closed while it was connecting to a server"))
        for slot in self._slots.values():
            self._discard(slot)
        self._slots.clear()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)


async def first_that_answers(
    addresses: Sequence[tuple[str, int]], ask: Callable[[str, int, Deadline], Awaitable[None]], deadline: Deadline
) -> None:
    """Ask one address after the other until one answers; several rounds before the error that names them all."""
    failures: dict[str, FlussError] = {}
    attempts = 0
    while attempts < BOOTSTRAP_ATTEMPTS_MAX and not deadline.expired:
        if attempts:
            await asyncio.sleep(deadline.limit_ms(BOOTSTRAP_BACKOFF.delay_ms(attempts - 1)) / 1000.0)
        attempts += 1
        for position, (host, port) in enumerate(addresses):
            try:
                # One address that swallows packets must not take the time of the others.
                await ask(host, port, deadline.share(len(addresses) - position))
                return
            except (AuthenticateError, ConnectionClosedError):
                raise
            except FlussError as error:
                failures[f"{host}:{port}"] = error
        if not any(may_pass(error) for error in failures.values()):
            break
    if not failures:
        listed = ", ".join(f"{host}:{port}" for host, port in addresses)
        raise DeadlineExceededError(f"No time was left to connect to {listed}. {CHECK_SERVERS}")
    details = "; ".join(f"{address}: {error.message}" for address, error in failures.items())
    last = next(reversed(failures.values()))
    counted = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    raise type(last)(
        f"No address of 'bootstrap.servers' answered after {counted}: {details}", last.error_code
    ) from last
