# SPDX-License-Identifier: Apache-2.0
"""The embedded server against raw limits of the machine: a loopback socket and a file."""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Bar, Result, Settings, Worker, alternate, ratio_of

NONE = {"table.log.arrow.compression.type": "NONE"}
_CHUNK_BYTES = 1 << 20


def _into_file(size_bytes: int, folder: Path) -> float:
    """Seconds to send bytes through a loopback socket into a file, which is then flushed like a commit is."""
    payload = memoryview(bytes(_CHUNK_BYTES))
    listener = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        with socket.create_connection(listener.getsockname()) as out:
            for _ in range(size_bytes // _CHUNK_BYTES):
                out.sendall(payload)

    sender = threading.Thread(target=send)
    path = folder / "raw"
    started = time.perf_counter()
    sender.start()
    connection, _ = listener.accept()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with connection, open(path, "wb", buffering=0) as file:
        while count := connection.recv_into(buffer):
            file.write(buffer[:count])
    sender.join()
    seconds = time.perf_counter() - started
    listener.close()
    path.unlink()
    return seconds


def _from_file(path: Path) -> float:
    """Seconds to send a file through a loopback socket to a process that throws it away."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = 0

    def drain() -> None:
        nonlocal received
        with socket.create_connection(listener.getsockname()) as source:
            buffer = bytearray(_CHUNK_BYTES)
            while count := source.recv_into(buffer):
                received += count

    reader = threading.Thread(target=drain)
    started = time.perf_counter()
    reader.start()
    connection, _ = listener.accept()
    with connection, open(path, "rb") as file:
        connection.sendfile(file)
    reader.join()
    seconds = time.perf_counter() - started
    listener.close()
    return seconds


def raw_cases(settings: Settings, ours: Worker) -> Iterator[Result]:
    """Appends and scans of uncompressed batches, in bytes a second."""
    rows = settings.rows(5_000_000)
    size = rows * 28 // _CHUNK_BYTES * _CHUNK_BYTES
    folder = Path(tempfile.mkdtemp(prefix="fluss-bench-"))
    try:
        if settings.wanted("server append"):

            def append() -> float:
                ours.call("create", table="raw", properties=NONE)
                return size / float(ours.call("write_batches", table="raw", rows=rows)["seconds"]) / 1e6

            pair = alternate(append, lambda: size / _into_file(size, folder) / 1e6, settings.repeats)
            yield Result("append against socket into file", *pair, "MB/s", ratio_of(*pair), Bar(0.4, 0.7))
        if settings.wanted("server scan"):
            ours.call("create", table="raw", properties=NONE)
            ours.call("write_batches", table="raw", rows=rows)
            path = folder / "file"
            path.write_bytes(bytes(size))

            def scan() -> float:
                return size / float(ours.call("to_arrow", table="raw")["seconds"]) / 1e6

            pair = alternate(scan, lambda: size / _from_file(path) / 1e6, settings.repeats)
            yield Result("scan against file into socket", *pair, "MB/s", ratio_of(*pair), Bar(0.4, 0.7))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def life_cases(settings: Settings) -> Iterator[Result]:
    """Starting, and what an idle server costs."""
    if settings.wanted("server start"):
        times = []
        memory = []
        for _ in range(settings.repeats):
            with tempfile.TemporaryDirectory() as folder:
                seconds, rss = _start_once(folder)
                times.append(seconds)
                memory.append(rss)
        yield Result("start to ready, empty", times, [], "s", None, Bar(1.0, 0.5, "s", higher=False))
        yield Result("memory, idle", memory, [], "MB", None, Bar(150.0, 100.0, "MB", higher=False))


def _start_once(folder: str) -> tuple[float, float]:
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "fluss.server", "--port", "0", "--data-dir", folder], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), line
        seconds = time.perf_counter() - started
        status = Path(f"/proc/{process.pid}/status").read_text()
        rss = next(int(text.split()[1]) for text in status.splitlines() if text.startswith("VmRSS"))
        return seconds, rss / 1024
    finally:
        process.terminate()
        process.wait(20)


def growth_cases(settings: Settings, ours: Worker) -> Iterator[Result]:
    """Whether appends and lookups stay as quick when there is a hundred times the data."""
    if not settings.wanted("growth"):
        return
    small, large = settings.rows(50_000), settings.rows(5_000_000)
    ours.call("create", table="grow")
    first = [small / float(ours.call("write_batches", table="grow", rows=small)["seconds"]) for _ in range(5)]
    ours.call("write_batches", table="grow", rows=large)
    later = [small / float(ours.call("write_batches", table="grow", rows=small)["seconds"]) for _ in range(5)]
    ratio = statistics.median(later) / statistics.median(first)
    rates = ([rate / 1e6 for rate in later], [rate / 1e6 for rate in first])
    yield Result("append at 100 x the data", *rates, "M rows/s", ratio, Bar(0.8, 0.95))
