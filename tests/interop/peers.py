# SPDX-License-Identifier: Apache-2.0
"""Client programs as the scenarios see them: a process that takes commands and answers with canonical values."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.interop import environment
from tests.interop.cluster import Lines

OURS = ("fluss", "fluss.aio")
WHEELS = tuple(f"pyfluss-{version}" for version in environment.WHEELS)
JAVA = tuple(f"java-{version}" for version in environment.JAVA_CLIENTS)
FLINK = "flink"  # runs SQL, not the scenarios of the clients: see flink.py
ALL = (*OURS, *WHEELS, *JAVA)

# What a client has beyond the common ground. A scenario that needs more is not asked of it.
_FIRST_WHEEL = frozenset({"arrow", "partial_update"})
_SECOND_WHEEL = _FIRST_WHEEL | {
    "auto_increment", "binary", "changelog", "evolution", "filter", "limit_scan", "nested", "prefix_lookup",
}  # fmt: skip
_JAVA = frozenset({
    "acl", "aggregation", "alter", "auto_increment", "binary", "changelog", "char", "dynamic_partitions",
    "evolution", "indexed_log", "limit_scan", "nested", "partial_update", "prefix_lookup", "snapshots",
})  # fmt: skip
_OURS = _SECOND_WHEEL | _JAVA | {"before_1970", "bucketing", "evolution_projected", "full_scan"}
CAPABILITIES: dict[str, frozenset[str]] = {
    OURS[0]: _OURS | {"wire"}, OURS[1]: _OURS, WHEELS[0]: _FIRST_WHEEL, WHEELS[1]: _SECOND_WHEEL,
    **dict.fromkeys(JAVA, _JAVA), FLINK: frozenset(),
}  # fmt: skip

# On our server, which fills columns that were added later; Apache Fluss 0.9.1 refuses them.
_ON_OURS = dict.fromkeys((WHEELS[1], *JAVA), frozenset({"evolution_projected"}))


def capabilities(client: str, server: str) -> frozenset[str]:
    """What a client is asked for on a server."""
    more = _ON_OURS.get(client, frozenset()) if server == "ours" else frozenset()
    return CAPABILITIES[client] | more


# Generous: the slowest single command is a large batch through a cold JVM on a busy machine.
_ANSWER_S_MAX = 60.0


class PeerError(Exception):
    """The client under test refused a command; ``code`` is the Fluss error code, -2 for errors of its own."""

    def __init__(self, client: str, op: str, code: int, kind: str, message: str) -> None:
        super().__init__(f"{client}: {op} failed with {kind} (code {code}): {message}")
        self.code = code
        self.message = message


class PeerDied(Exception):
    """The client process ended or stopped answering."""


class Peer:
    """One client process. ``peer.call("append", table=t, rows=[…])`` returns the answer or raises ``PeerError``."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout)
        self.capabilities = CAPABILITIES[name]
        self._connected: dict[str, Any] | None = None
        try:
            answered = self.call("hello")["client"]
            if answered != name:
                raise PeerDied(f"asked for {name}, {answered} answered")
        except BaseException:
            self.close()
            raise

    def send(self, op: str, **arguments: Any) -> None:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerDied(f"{self.name} is gone: {self.tail()}") from error

    def receive(self, op: str, timeout_s: float = _ANSWER_S_MAX) -> Any:
        try:
            line = self._lines.next(timeout_s)
        except queue.Empty:
            self._process.kill()
            raise PeerDied(f"{self.name} did not answer {op} within {timeout_s:.0f} s: {self.tail()}") from None
        if line is None:
            raise PeerDied(f"{self.name} ended during {op}: {self.tail()}")
        answer = json.loads(line)
        if "ok" in answer:
            return answer["ok"]
        if "unsupported" in answer:
            raise PeerError(self.name, op, -2, "unsupported", answer["unsupported"])
        error = answer["error"]
        raise PeerError(self.name, op, error["code"], error["type"], error["message"])

    def call(self, op: str, timeout_s: float = _ANSWER_S_MAX, **arguments: Any) -> Any:
        self.send(op, **arguments)
        return self.receive(op, timeout_s)

    def connect(self, bootstrap: str, **options: Any) -> None:
        """Connects unless the same connection is already open; scenarios may ask as often as they like."""
        wanted = {"bootstrap": bootstrap, **options}
        if self._connected != wanted:
            self._connected = None
            self.call("connect", **wanted)
            self._connected = wanted

    def reconnect(self) -> None:
        """Replace the connection by a new one to the same server."""
        wanted, self._connected = self._connected, None
        assert wanted is not None, "the client is not connected"
        self.connect(**wanted)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return " | ".join(lines[-8:])

    def close(self) -> None:
        if self._process.poll() is None:
            try:
                assert self._process.stdin is not None
                self._process.stdin.close()
                self._process.wait(10)
            except (OSError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait(10)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._lines.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start(name: str, logs: Path) -> Peer:
    """Starts the driver of a client; ``environment.Unavailable`` says why when it cannot be had."""
    logs.mkdir(parents=True, exist_ok=True)
    if name in JAVA:
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *environment.JAVA_OPENS]
        driver = environment.java_driver(name.removeprefix("java-"))
        command = [environment.java(), *options, "-cp", driver, "Driver", name]
    elif name == FLINK:
        options = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *environment.FLINK_OPENS]
        command = [environment.java(), *options, "-cp", environment.flink_driver(), "FlinkDriver"]
    elif name in WHEELS:
        # -E: a PYTHONPATH that leads to our own `fluss` must not hide the wheel's.
        python = environment.wheel_python(name.removeprefix("pyfluss-"))
        command = [str(python), "-E", str(environment.HERE / "driver_pyfluss.py")]
    else:
        command = [sys.executable, str(environment.HERE / "driver_fluss.py"), *name.split(".")[1:]]
    return Peer(name, command, logs / f"client-{name}.log")
