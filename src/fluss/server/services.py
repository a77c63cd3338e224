# SPDX-License-Identifier: Apache-2.0
"""The parts of a running server that connections and requests use. `Server` assembles, starts and stops them."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Coroutine
from typing import Any

from fluss.net.buffers import FrameBuffers
from fluss.server.audit import AuditLog
from fluss.server.auth import Accounts, LoginThrottle
from fluss.server.catalog import Catalog
from fluss.server.catalog.acl import Authorizer
from fluss.server.config import Endpoint, ServerConfig
from fluss.server.environment import Environment
from fluss.server.historical import HistoricalLookups
from fluss.server.kv.service import Kv
from fluss.server.listener import Listener
from fluss.server.memory import RequestMemory, UnsentAnswers
from fluss.server.metrics import ServerMetrics
from fluss.server.quotas import Quotas
from fluss.server.scheduler import Scheduler
from fluss.server.store_tokens import StoreTokens
from fluss.server.tablets import Tablets


class Services:
    """Storage, limits and configuration of one server, shared by all its connections."""

    catalog: Catalog
    authorizer: Authorizer
    tablets: Tablets
    kv: Kv

    def __init__(self, config: ServerConfig, environment: Environment) -> None:
        self.config = config
        """As of now: options that can be changed at run time replace it."""
        self.environment = environment
        self.clock = environment.clock
        self.clock.jump_tolerance_ms = self.config.integer("clock.jump-tolerance")
        self.metrics = ServerMetrics()
        self.audit = AuditLog()
        self.memory = RequestMemory(config.integer("server.buffer.memory-size"))
        self.answers = UnsentAnswers(config.integer("server.buffer.memory-size"))
        self.frame_buffers = FrameBuffers(huge_pages=True)
        self.executor = environment.executor(config.integer("server.io-pool.size"), "fluss-io")
        self.logins = environment.executor(2, "fluss-login")
        """What clients that are not known yet ask for: TLS handshakes, and hashes of passwords."""
        # Large messages are decoded and encoded in one thread: the interpreter runs one at a time anyway, and each
        # thread keeps the memory of the largest message it had.
        self.codec = environment.executor(1, "fluss-codec")
        self.scheduler = Scheduler()
        self.quotas = Quotas.of(config)
        self.accounts = Accounts(lambda: self.config)
        self.login_throttle = LoginThrottle()
        self.listeners: dict[str, Listener] = {}
        self.disk_full = False
        self.stopping = False
        self._spawned: set[asyncio.Task[None]] = set()

    @functools.cached_property
    def store_tokens(self) -> StoreTokens:
        """The credentials that clients get for the remote data directory."""
        options = self.catalog.configs.initial.store_options
        return StoreTokens(self.catalog.remote_data_dir, options, self.executor, self.clock.now_ms)

    @functools.cached_property
    def historical(self) -> HistoricalLookups:
        """The lookups of partitions that have expired here and are in the lake."""
        threads = self.config.integer("server.historical-partition.thread-pool.max-size")
        return HistoricalLookups(
            self.catalog.configs,
            self.environment.executor(threads, "fluss-historical"),
            self.config.integer("netty.server.max-queued-historical-requests"),
        )

    @property
    def damaged_bucket_count(self) -> int:
        return sum(1 for tablet in self.tablets if tablet.damage is not None or tablet.failure is not None)

    @property
    def tablet_server_id(self) -> int:
        return self.config.integer("tablet-server.id")

    def advertised_endpoint(self, listener: str) -> Endpoint:
        """Return where clients of a listener find this server."""
        advertised = self.config.advertised_endpoints.get(listener)
        bound = self.listeners[listener]
        host, port = (advertised.host, advertised.port) if advertised else (bound.host, bound.port)
        if host in ("", "0.0.0.0", "::"):
            # A client cannot connect to a wildcard address; the host name is the best guess without an option.
            host = socket.gethostname()
        return Endpoint(listener, host, port or bound.port)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work of a request that continues whether or not its client waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
