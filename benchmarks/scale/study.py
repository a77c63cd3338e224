# SPDX-License-Identifier: Apache-2.0
"""What every axis of the study uses: points, a server of its own, clients in processes of their own."""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Worker, free_python
from fluss.server.local import LocalServer

NO_COMPRESSION = {"table.log.arrow.compression.type": "NONE"}


@dataclass(frozen=True)
class Point:
    """How much of something there was, and what a unit of work then cost, by the name of the cost."""

    x: float
    costs: dict[str, float]


@dataclass
class Study:
    """How far to go, and how often to measure each point."""

    x_max: float = float("inf")
    repeats: int = 3
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))

    def points(self, *xs: int) -> Sequence[int]:
        return [x for x in xs if x <= self.x_max] or xs[:1]

    @contextmanager
    def server(self, options: Mapping[str, object] | None = None) -> Iterator[LocalServer]:
        """A fresh server; its data goes with it."""
        with tempfile.TemporaryDirectory(prefix="fluss-scale-", dir=self.folder) as data:
            server = LocalServer(data, options=options, start_timeout_s=300, stop_timeout_s=120)
            try:
                yield server.start()
            finally:
                server.kill()

    def middle(self, measure: Callable[[], float]) -> float:
        return statistics.median(measure() for _ in range(self.repeats))

    def restart_ms(self, server: LocalServer, *, clean: bool = True) -> float:
        """How long the server takes to start again on its data, after a stop or after a kill."""

        def restart() -> float:
            server.stop() if clean else server.crash()
            began = time.perf_counter()
            server.start()
            return (time.perf_counter() - began) * 1e3

        return self.middle(restart)


@contextmanager
def client(server: LocalServer) -> Iterator[Worker]:
    worker = Worker("client", free_python(), server.bootstrap_servers, ops="scale_ops")
    try:
        yield worker
    finally:
        worker.close()


def seconds(worker: Worker, op: str, **args: Any) -> float:
    return float(worker.call(op, **args)["seconds"])


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def figure(metrics_port: int, name: str) -> float:
    """A figure without labels of the metrics page of a server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"fluss_{name} "))


def memory_mb(server: LocalServer) -> float:
    """What the server holds that belongs to it alone; pages of files it has mapped are the system's to take back."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def folder_bytes(folder: Path) -> int:
    return sum(os.stat(os.path.join(at, name)).st_blocks * 512 for at, _, names in os.walk(folder) for name in names)
