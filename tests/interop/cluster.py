# SPDX-License-Identifier: Apache-2.0
"""Starts servers for the interop runs, as real processes on loopback: the real Apache Fluss, and ours.

Both offer the same thing to the scenarios: ``plain`` and ``sasl`` bootstrap addresses, the SASL users below, and
authorisation switched on with ``admin`` as super user (the plain listener is the internal one, which may do anything).
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.interop import environment, wire

USERS = {"admin": "admin-secret", "alice": "alice-secret"}
_JAAS = (
    "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    + ";"
)
_SECURITY = {
    "security.protocol.map": "CLIENT:sasl",
    "security.sasl.enabled.mechanisms": "plain",
    "security.sasl.plain.jaas.config": _JAAS,
    "authorizer.enabled": "true",
    # ANONYMOUS too: lists are filtered by rights even on the internal listener, where nothing else is checked.
    "super.users": "User:admin;User:ANONYMOUS",
    # Often enough for a scenario to wait for the next one.
    "kv.snapshot.interval": "1 s",
}
# What our server prints when it listens: the addresses in the order of `bind.listeners`.
_READY = re.compile(r"^ready (\S+)$", re.MULTILINE)
_ZOOKEEPER = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain"
_COORDINATOR = "org.apache.fluss.server.coordinator.CoordinatorServer"
_TABLET = "org.apache.fluss.server.tablet.TabletServer"

_LOG4J = """\
status = error
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %-40.40c{1} - %m%n
"""


class StartError(Exception):
    """A server did not come up; the text carries the end of its log."""


def free_ports(count: int) -> list[int]:
    """Ports that are free now. Held together until all are chosen, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Process:
    """One child process with its log file; stopped by its own pid and never by name."""

    def __init__(self, name: str, command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.env = env
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=self.env,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """The crash: no farewell, no controlled shutdown."""
        self._end(signal.SIGKILL)

    def stop(self, patience_s: float = 10.0) -> None:
        self._end(signal.SIGTERM, patience_s)

    def _end(self, how: signal.Signals, patience_s: float = 10.0) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        self._process = None

    def tail(self, lines: int = 30) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"


class Server:
    """What a scenario sees of a server. Use as a context manager; logs are kept when the block fails."""

    name = ""

    def __init__(self, keep_logs_in: Path | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="fluss-interop-"))
        self.keep_logs_in = keep_logs_in
        self.plain = ""
        self.sasl = ""
        self.failed = False
        self.processes: list[Process] = []

    def start(self) -> None:
        raise AssertionError("each kind of server says how it starts")

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.failed = True
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.failed = self.failed or kind is not None
        self.stop()

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()
        if self.failed and self.keep_logs_in is not None:
            kept = self.keep_logs_in / self.name
            kept.mkdir(parents=True, exist_ok=True)
            for process in self.processes:
                if process.log.exists():
                    shutil.copy(process.log, kept / process.log.name)
            print(f"logs of {self.name} kept in {kept}", file=sys.stderr)
        shutil.rmtree(self.home, ignore_errors=True)


_SMALL_SEGMENTS = {"log.segment.file-size": "1 mb", "remote.log.task-interval-duration": "1 s"}
"""So that a table of some megabytes has segments in remote storage after a few seconds."""


class RealCluster(Server):
    """Apache Fluss itself: ZooKeeper, one coordinator and several tablet servers, each a JVM of its own."""

    def __init__(
        self,
        version: str = environment.FLUSS_VERSION,
        *,
        tablets: int = 2,
        options: dict[str, str] | None = None,
        heap_mb: int = 512,
        extra_jars: str = "",
        keep_logs_in: Path | None = None,
    ) -> None:
        super().__init__(keep_logs_in)
        self.name = f"fluss-{version}"
        self.version = version
        self.tablet_count = tablets
        self.options = options or {}
        self.heap_mb = heap_mb
        self.extra_jars = extra_jars
        self.tablets: dict[int, Process] = {}

    def start(self) -> None:
        path = os.pathsep.join(filter(None, [environment.classpath(self.version), self.extra_jars]))
        ports = free_ports(1 + 2 * (1 + self.tablet_count))
        zookeeper_port = ports.pop()
        (self.home / "log4j2.properties").write_text(_LOG4J)
        (self.home / "zoo.cfg").write_text(
            f"dataDir={self.home / 'zookeeper'}\nclientPort={zookeeper_port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\ntickTime=1000\nmaxClientCnxns=0\n"
        )
        zookeeper = self._jvm("zookeeper", path, 128, _ZOOKEEPER, str(self.home / "zoo.cfg"))
        zookeeper.start()
        _until(lambda: _listening(zookeeper_port), zookeeper, 30)

        plain, sasl = [], []

        def node(name: str, main: str, extra: dict[str, str]) -> Process:
            a, b = ports.pop(), ports.pop()
            plain.append(f"127.0.0.1:{a}")
            sasl.append(f"127.0.0.1:{b}")
            config = {
                "zookeeper.address": f"127.0.0.1:{zookeeper_port}",
                "bind.listeners": f"FLUSS://127.0.0.1:{a},CLIENT://127.0.0.1:{b}",
                "internal.listener.name": "FLUSS",
                **_SECURITY,
                "default.bucket.number": "3",
                "default.replication.factor": "1",
                "remote.data.dir": str(self.home / "remote"),
                **_SMALL_SEGMENTS,
                # A dead server must be noticed in a time a test can wait for.
                "zookeeper.client.session-timeout": "6 s",
                "log.replica.max-lag-time": "5 s",
                **extra,
                **self.options,
            }
            directory = self.home / f"conf-{name}"
            directory.mkdir()
            lines = [f"{key}: {value}" for key, value in config.items()]
            # The file is read line by line: quotes would become part of the value.
            (directory / "server.yaml").write_text("\n".join(lines) + "\n")
            process = self._jvm(name, path, self.heap_mb, main, "--configDir", str(directory))
            process.start()
            return process

        coordinator = node("coordinator", _COORDINATOR, {})
        for server_id in range(self.tablet_count):
            self.tablets[server_id] = node(
                f"tablet-{server_id}",
                _TABLET,
                {"tablet-server.id": str(server_id), "data.dir": str(self.home / f"data-{server_id}")},
            )
        self.plain = ",".join(plain)
        self.sasl = ",".join(sasl)
        self.plain_addresses = plain
        self.wait_for_tablets(self.tablet_count, coordinator)

    def wait_for_tablets(self, count: int, watched: Process | None = None, timeout_s: float = 90) -> None:
        """Until every live node lists one coordinator and ``count`` tablet servers."""

        def complete() -> bool:
            addresses = [self.plain_addresses[0]]
            addresses += [self.plain_addresses[1 + i] for i, p in self.tablets.items() if p.running]
            for address in addresses:
                coordinators, tablets = wire.servers(address)
                if coordinators != 1 or len(tablets) != count:
                    return False
            return True

        _until(complete, watched or next(iter(self.tablets.values())), timeout_s)

    def _jvm(self, name: str, path: str, heap_mb: int, main: str, *arguments: str) -> Process:
        command = [
            environment.java(), f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
            *environment.JAVA_OPENS, f"-Dlog4j.configurationFile={self.home / 'log4j2.properties'}",
            f"-Djava.io.tmpdir={self.home}", "-cp", path, main, *arguments,
        ]  # fmt: skip
        process = Process(name, command, self.home / f"{name}.log")
        self.processes.append(process)
        return process


class OurServer(Server):
    """The embedded server of this package, started by its own command line."""

    def __init__(self, options: dict[str, str] | None = None, keep_logs_in: Path | None = None) -> None:
        super().__init__(keep_logs_in)
        self.name = "ours"
        self.options = options or {}

    def start(self) -> None:
        config = {
            "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
            "internal.listener.name": "FLUSS",
            **_SECURITY,
            "default.bucket.number": "3",
            "remote.data.dir": str(self.home / "remote"),
            **_SMALL_SEGMENTS,
            # So that the state of a table of some size is on disk, as that of a large one always is.
            "kv.memory-size": "1 mb",
            **self.options,
        }
        command = [sys.executable, "-m", "fluss.server", "--data-dir", str(self.home / "data")]
        for key, value in config.items():
            command += ["-D", f"{key}={value}"]
        process = Process("server", command, self.home / "server.log", {**os.environ, "PYTHONUNBUFFERED": "1"})
        self.processes.append(process)
        process.start()
        _until(lambda: _READY.search(process.log.read_text(errors="replace")) is not None, process, 60)
        found = _READY.search(process.log.read_text(errors="replace"))
        self.plain, self.sasl = found.group(1).split(",")
        _until(lambda: wire.servers(self.plain)[1] != [], process, 30)


def _listening(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def _until(ready: Callable[[], bool], watched: Process, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    last: Exception | None = None
    while time.monotonic() < deadline:
        if not watched.running:
            raise StartError(f"{watched.name} ended while starting:\n{watched.tail()}")
        try:
            if ready():
                return
        except (OSError, ValueError, IndexError) as error:
            last = error
        time.sleep(0.2)
    raise StartError(f"{watched.name} was not ready after {timeout_s:.0f} s (last: {last}):\n{watched.tail()}")


class Lines:
    """Lines of a stream, read by a thread so that a reader can wait with a deadline."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        for line in self._stream:
            self._queue.put(line)
        self._queue.put(None)

    def next(self, timeout_s: float) -> str | None:
        """The next line, ``None`` at the end; ``queue.Empty`` when none comes in time."""
        return self._queue.get(timeout=timeout_s)

    def close(self) -> None:
        """Call when the writing process has ended."""
        self._thread.join(10)
        self._stream.close()


if __name__ == "__main__":
    with RealCluster(sys.argv[1] if len(sys.argv) > 1 else environment.FLUSS_VERSION) as cluster:
        print(f"plain {cluster.plain}\nsasl  {cluster.sasl}\nhome  {cluster.home}\nCtrl-C ends it", flush=True)
        for how in (signal.SIGINT, signal.SIGTERM):
            signal.signal(how, lambda *_: sys.exit(0))
        signal.pause()
