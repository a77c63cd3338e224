# SPDX-License-Identifier: Apache-2.0
"""The assembly: one process, one event loop, both roles on every listener."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from fluss._version import VERSION
from fluss.errors import AuthenticateError
from fluss.metadata import TableBucket
from fluss.net.deadline import wait_for
from fluss.server.auth import ANONYMOUS, Principal, check_users, warn_of_open_listeners
from fluss.server.catalog import Catalog, Dropped
from fluss.server.catalog.lake_hook import LakeHook
from fluss.server.commit import GroupCommitter
from fluss.server.config import ServerConfig
from fluss.server.connections import Connections
from fluss.server.data_metrics import DataMetrics, add_process_gauges
from fluss.server.datadir import DataDir
from fluss.server.environment import Environment
from fluss.server.exposure import check_remote_dir
from fluss.server.group_lags import GroupLags
from fluss.server.handlers.registry import register_all
from fluss.server.handlers.request import Handler
from fluss.server.kv.service import STOP_SECONDS, Kv
from fluss.server.loop_watch import LoopWatch
from fluss.server.metrics import Labels
from fluss.server.metrics_page import MetricsPage
from fluss.server.quotas import Quotas
from fluss.server.replication.replicator import Replicator
from fluss.server.replication.sources import Sources
from fluss.server.scheduler import Share
from fluss.server.services import Services
from fluss.server.session import ServerSession
from fluss.server.tablets import Tablets
from fluss.server.tls import TlsListener, TlsSocket, check_tls

logger = logging.getLogger("fluss.server")

_DRAIN_SECONDS_MAX = 10.0


class Server(Services):
    """An embedded Fluss server. ``await start()``, then ``await stop()``."""

    def __init__(
        self, config: ServerConfig | Mapping[str, object] | None = None, *, environment: Environment | None = None
    ) -> None:
        initial = config if isinstance(config, ServerConfig) else ServerConfig(config)
        check_users(initial)
        check_tls(initial)
        for option in ("remote.data.dir", "replication.url"):
            check_remote_dir(initial.text(option), option)
        super().__init__(initial, environment or Environment())
        self.handlers: dict[int, Handler] = {}
        register_all(self.handlers)
        self.connections = Connections(self)
        self.sessions = self.connections.sessions
        self.loop_watch = LoopWatch(is_idle=lambda: not self.sessions)
        self.committer: GroupCommitter
        self.metrics_page: MetricsPage | None = None
        self.replicator: Replicator | None = None
        self._data_dir: DataDir | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._tls: dict[str, TlsListener] = {}
        self._started = False
        self._configured = asyncio.Event()
        """Set when options changed."""

    def _log_end_of(self, bucket: TableBucket) -> int | None:
        log = self.tablets.find(bucket)
        if log is None:
            return 0
        return None if log.damage is not None else log.end_offset

    # Life cycle --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Lock the folder, recover, listen. After this the server answers."""
        loop = asyncio.get_running_loop()
        started = self.clock.monotonic()
        _raise_file_limit()
        self._data_dir = DataDir(str(self.config.get("data.dir")))
        try:
            if not self._data_dir.was_clean:
                logger.warning("the data folder '%s' was not closed cleanly; recovering", self._data_dir.path)
            self.catalog = Catalog(
                self._data_dir.path, self.config, clock_ms=self.clock.now_ms, expiry_ms=self.clock.expiry_ms
            )
            self.config = self.catalog.configs.current
            self.catalog.configs.on_changed.append(self._config_changed)
            self.catalog.lake_hook = LakeHook(self.catalog.configs)
            self.authorizer = self.catalog.authorizer
            self.authorizer.on_denied = self.audit.denied
            self.committer = GroupCommitter(
                self.executor,
                self.environment.worker("fluss-flush"),
                sync=self.config.text("log.commit.sync") == "group",
                metrics=self.metrics,
            )
            self.tablets = Tablets(
                self._data_dir,
                self.catalog,
                self.config,
                environment=self.environment,
                committer=self.committer,
                executor=self.executor,
                metrics=self.metrics,
            )
            open_existing = partial(self.tablets.open_existing, clean=self._data_dir.was_clean)
            await loop.run_in_executor(self.executor, open_existing)
            newest = self.tablets.newest_timestamp
            self.clock.resume(*(self._data_dir.clock_state() or (newest, newest, 0)))
            self.catalog.lake.log_end_of = self._log_end_of
            writer = self.environment.kv_writer()
            self.kv = Kv(self.catalog, self.tablets, self.config, self.executor, self.clock, writer)
            if self.config.text("replication.url") is not None:
                self.replicator = Replicator(
                    self.config,
                    self.catalog,
                    Sources(self.catalog, self.tablets, self.kv.snapshotter),
                    self.environment.executor(1, "fluss-replication"),
                    self.clock,
                )
                await self.replicator.start()
            for table in self.catalog.unfinished_drops:
                await self.catalog.notify(self.catalog.on_dropped, Dropped(table))
            for endpoint in self.config.bind_endpoints:
                if self.config.is_encrypted(endpoint.listener):
                    self._tls[endpoint.listener] = TlsListener(
                        self.config, endpoint.listener, self.logins, self._serve, self.connections.free_places
                    )
                self.listeners[endpoint.listener] = self.environment.listen(
                    endpoint, self._accept, self.connections.make_room
                )
            if self.config.get("metrics.prometheus.port") is not None:
                self.metrics_page = MetricsPage(
                    self.metrics,
                    str(self.config.get("metrics.prometheus.host")),
                    self.config.integer("metrics.prometheus.port"),
                    self._obstacles,
                )
                await self.metrics_page.start()
        except BaseException:
            # No client has written anything: the folder is as clean as it was.
            self._release(clean=self._data_dir.was_clean)
            raise
        self.committer.start()
        self._add_gauges()
        self._every("server.writer-id.expiration-check-interval", self._expire_writers)
        self._every("log.retention.check-interval", self.tablets.expire_segments)
        self._every("log.retention.check-interval", self.kv.snapshotter.remove_what_is_left)
        self._every("kv.scanner.ttl", self.kv.cursors.expire)
        self._every("log.flush.offset.checkpoint-interval", self.tablets.checkpoint)
        self._every("remote.log.task-interval-duration", self.tablets.move_to_remote)
        self._every("server.data-disk.check-interval", self._check_disk)
        self._every("log.flush.offset.checkpoint-interval", self._record_clock, at_once=True)
        if self.replicator is not None:
            self._every("replication.interval", self.replicator.run_round)
        if self._tls:
            self._every("security.ssl.reload.interval", self._reload_certificates)
        self._tasks.append(loop.create_task(self._take_snapshots()))
        self._tasks.append(loop.create_task(self.kv.snapshotter.discard_lost()))
        self._tasks.append(loop.create_task(self.connections.watch()))
        self.loop_watch.start()
        # At once as well: time has passed while the server was down.
        self._every("auto-partition.check.interval", self.catalog.auto_partitioner.run, at_once=True)
        self._every("coordinator.producer-offsets.cleanup-interval", self.catalog.expire_producers, at_once=True)
        for listener in self.listeners.values():
            listener.start()
        self._started = True
        logger.info("%s", self._start_line(self.clock.monotonic() - started))
        warn_of_open_listeners(self.config)
        hidden = self.catalog.configs.hidden_lake_settings()
        if hidden:
            # Said because a reader that needs one of them has to bring it along.
            logger.info("settings of the lake that are not shown to readers: %s", ", ".join(hidden))

    def _start_line(self, seconds: float) -> str:
        """Describe in one line what runs where and who may use it. Names of options and users, never their values."""
        listeners = []
        for name, listener in self.listeners.items():
            protocol = self.config.protocol_of(name)
            users = f" with {len(self.accounts.names(name))} users" if self.config.asks_login(name) else ""
            internal = ", internal" if name == self.config.internal_listener else ""
            encrypted = " over TLS" if self.config.is_encrypted(name) else ""
            listeners.append(f"{name}://{listener.address} ({protocol}{encrypted}{users}{internal})")
        folder = self._data_dir.path if self._data_dir is not None else "-"
        return (
            f"fluss {VERSION} started in {seconds:.2f} s: data folder '{folder}', "
            f"{len(self.catalog.tables_by_id)} tables, listeners {', '.join(listeners)}, "
            f"authorizer {'on' if self.authorizer.enabled else 'off'}, process {os.getpid()}"
        )

    async def stop(self) -> None:
        """Answer what is in work, flush, mark the folder clean."""
        if self.stopping or self._data_dir is None:
            return
        self.stopping = True
        self.loop_watch.stop()
        for listener in self.listeners.values():
            listener.close()
        for encrypted in self._tls.values():
            encrypted.close()
        if self.metrics_page is not None:
            await self.metrics_page.stop()
        for session in tuple(self.sessions):
            if session.is_established:
                session.hold()
            else:
                session.close()  # a refused login is held back for up to ten seconds
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.tablets.wake_fetches()
        in_work = [asyncio.ensure_future(session.finish_requests()) for session in self.sessions]
        if in_work:
            await asyncio.wait(in_work, timeout=_DRAIN_SECONDS_MAX)
            for waiting in in_work:
                waiting.cancel()
        for session in tuple(self.sessions):
            session.channel.close_after_sending()
        if self.sessions:
            await self.connections.wait_until_closed(_DRAIN_SECONDS_MAX)
        for session in tuple(self.sessions):
            session.close()
        await self.committer.stop()
        clean = False
        # What is left saves the next start some reading. All that was acknowledged is on disk.
        deadline = self.clock.monotonic() + STOP_SECONDS
        try:
            if self.replicator is not None:
                await self.replicator.stop()
            with contextlib.suppress(OSError):
                await self._record_clock()
            await asyncio.get_running_loop().run_in_executor(None, lambda: self.kv.close(keep=True))
            clean = await self.tablets.close(deadline)
            await self.catalog.close()
        finally:
            self._release(clean=clean)
            how = "cleanly" if clean else "not cleanly, the next start recovers it"
            logger.info("stopped, data folder closed %s", how)

    def _release(self, *, clean: bool) -> None:
        for listener in self.listeners.values():
            with contextlib.suppress(OSError):
                listener.close()
        if getattr(self, "catalog", None) is not None and not self.stopping:
            self.catalog.close_now()
        self.executor.shutdown(wait=True)
        self.logins.shutdown(wait=True)
        self.codec.shutdown(wait=True)
        if "historical" in self.__dict__:
            self.historical.shut_down()
        if self._data_dir is not None:
            self._data_dir.release(clean=clean)
            self._data_dir = None

    def _accept(self, sock: socket.socket, listener: str, peer: str) -> None:
        if listener in self._tls:
            self._tls[listener].begin(sock, peer)
        else:
            self._serve(sock, listener, peer)

    def _serve(self, sock: socket.socket | TlsSocket, listener: str, peer: str) -> None:
        if not self.connections.admit(peer):
            sock.close()
            return
        try:
            session = ServerSession(self, self.connections, self.handlers, sock, listener, peer)
        except AuthenticateError as error:
            self.audit.login_failed(peer, listener, None, error.message)
            raise
        self.connections.add(session)
        if session.authenticated and not self.connections.has_room_for(session):
            session.close()
            return
        if session.principal is not ANONYMOUS:
            self.audit.logged_in(session, "certificate")
        session.adjust_reading()

    def _config_changed(self, config: ServerConfig) -> None:
        self.config = config
        if self.quotas != Quotas.of(config):
            self.quotas = Quotas.of(config)
            self.scheduler.forgive_debts()
        self.clock.jump_tolerance_ms = config.integer("clock.jump-tolerance")
        self._configured.set()

    # Housekeeping ------------------------------------------------------------------------------------------------

    def _every(self, option: str, work: Callable[[], Awaitable[None] | None], *, at_once: bool = False) -> None:
        seconds = self.config.integer(option) / 1000
        if seconds > 0:
            self._tasks.append(asyncio.get_running_loop().create_task(_repeat(option, seconds, work, at_once)))

    async def _reload_certificates(self) -> None:
        for listener in self._tls.values():
            await listener.reload()

    async def _record_clock(self) -> None:
        if self._data_dir is not None:
            record = self._data_dir.record_clock
            await asyncio.get_running_loop().run_in_executor(self.executor, record, self.clock.state())

    def _expire_writers(self) -> None:
        self.tablets.expire_writers(self.config.integer("server.writer-id.expiration-time"))

    async def _take_snapshots(self) -> None:
        """One round of snapshots after the other; a new interval counts from the moment it is set."""
        while True:
            self._configured.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_for(self._configured.wait(), self.config.integer("kv.snapshot.interval") / 1000)
                continue
            try:
                await self.kv.snapshotter.run_round(self.config.integer("kv.snapshot.num-retained"))
            except Exception:
                # As in `_repeat`.
                logger.exception("a round of snapshots failed")

    async def _check_disk(self) -> None:
        used = await asyncio.get_running_loop().run_in_executor(self.executor, self.tablets.disk_usage)
        if not self.disk_full and used >= self.config.number("server.data-disk.write-limit-ratio"):
            self.disk_full = True
            logger.error("the disk of the data folder is %.0f %% full; writes are refused", used * 100)
        elif self.disk_full and used <= self.config.number("server.data-disk.write-recover-ratio"):
            self.disk_full = False
            logger.warning("the disk of the data folder has room again; writes are accepted")

    def _obstacles(self) -> list[str]:
        """Return why the server cannot do its work now."""
        found = []
        if not self._started or self.stopping:
            found.append("the server is stopping" if self.stopping else "the server is starting")
        if self.disk_full:
            found.append("the disk of the data folder is full; writes are refused")
        if self._started and self.damaged_bucket_count:
            found.append(f"{self.damaged_bucket_count} buckets are out of service")
        return found

    def _add_gauges(self) -> None:
        add_process_gauges(self.metrics)
        DataMetrics(self)
        GroupLags(self)
        gauge = self.metrics.gauge
        replicator = self.replicator
        if replicator is not None:
            gauge("replication_behindBytes", lambda: replicator.behind_bytes)
            gauge("replication_behindSeconds", lambda: replicator.behind_seconds)
            gauge("replication_uploadedBytes", lambda: replicator.uploaded_bytes)
        gauge("coordinator_activeCoordinatorCount", lambda: 1)
        gauge("coordinator_aliveCoordinatorCount", lambda: 1)
        gauge("coordinator_activeTabletServerCount", lambda: 1)
        gauge("coordinator_tableCount", lambda: len(self.catalog.tables_by_id))
        gauge("coordinator_partitionCount", lambda: len(self.catalog.partitions_by_id))
        gauge("coordinator_offlineBucketCount", lambda: self.damaged_bucket_count)
        gauge("tabletserver_leaderCount", lambda: len(self.tablets))
        gauge("tabletserver_replicaCount", lambda: len(self.tablets))
        gauge("tabletserver_writerIdCount", lambda: sum(len(t.writers) for t in self.tablets))
        gauge("tabletserver_logicalStorage_logSize", lambda: sum(t.size_bytes for t in self.tablets))
        gauge("tabletserver_openConnections", lambda: len(self.sessions))
        gauge("tabletserver_unauthenticatedConnections", lambda: self.connections.unauthenticated_count)
        gauge("tabletserver_maxConnections", lambda: self.connections.maximum)
        gauge("tabletserver_eventLoop_longestDelayMs", lambda: self.loop_watch.delay_seconds * 1000)
        gauge("tabletserver_eventLoop_longestBusyMs", lambda: self.loop_watch.busy_seconds * 1000)
        gauge("tabletserver_eventLoop_stalls", lambda: self.loop_watch.stall_count)
        gauge("tabletserver_requestMemorySize", lambda: self.memory.taken_bytes)
        gauge("tabletserver_answerMemorySize", lambda: self.answers.held_bytes)
        series = self.metrics.series
        series("tabletserver_user_connections", lambda: self._by_user(lambda one: one.usage.connections))
        series("tabletserver_user_requestMemorySize", lambda: self._by_user(lambda one: self.memory.held_by(one.owner)))
        series("tabletserver_user_cpuTimeMs", lambda: self._by_user(lambda one: one.charged_seconds * 1000))
        series("tabletserver_user_throttleTimeMs", lambda: self._by_user(lambda one: one.usage.throttled_ms))
        series("tabletserver_user_cursors", lambda: self._by_user(lambda one: self.kv.cursors.held_by(one.owner)))
        gauge("tabletserver_request_requestQueueSize", lambda: sum(s.requests_in_work for s in self.sessions))

    def _by_user(self, figure: Callable[[Share], float]) -> list[tuple[Labels, float]]:
        """A figure of each user who is connected, and of each address whose clients do not log in."""
        return [((("user", _user_label(share.owner)),), figure(share)) for share in self.scheduler.shares]


def _user_label(owner: object) -> str:
    return owner.name if isinstance(owner, Principal) else f"anonymous@{owner}"


async def _repeat(name: str, seconds: float, work: Callable[[], Awaitable[None] | None], at_once: bool) -> None:
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        try:
            waiting = work()
            if waiting is not None:
                await waiting
        except Exception:
            # Housekeeping that failed once is tried again next round; the server serves on.
            logger.exception("the periodic work of '%s' failed", name)
        await asyncio.sleep(seconds)


def _raise_file_limit() -> None:
    """Every bucket that is written keeps a file open; the usual soft limit of 1024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft < hard):
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        if wanted > soft:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
