# SPDX-License-Identifier: Apache-2.0
"""The embedded server against raw limits of the machine: a loopback socket and a file."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.client_ops import arrow_batches
from benchmarks.harness import Bar, Result, Settings, Worker, alternate, free_python, ratio_of
from fluss import LocalServer

APPEND, SCAN = "append against socket into file", "scan against file into socket"
APPEND_LARGE, LOOKUP_LARGE = "append at 100 x the data", "lookup at 100 x the data"
NONE = {"table.log.arrow.compression.type": "NONE"}
_CHUNK_BYTES = 1 << 20
_TIMES_AS_OFTEN = 3
"""As other short cases. How quickly memory can be copied changes most of all on a shared machine."""
_SPILL_S = 5.0
"""Until rows that do not fit in memory are on disk: the rate is that among much data, not that while it moves."""


def _bytes_of(rows: int) -> memoryview:
    """The columns of the rows that our side writes, byte for byte."""
    buffers = [
        buffer
        for batch in arrow_batches(rows, 65_536)
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None
    ]
    return memoryview(b"".join(buffers))


def _into_file(payload: memoryview, folder: Path) -> float:
    """Seconds to send bytes through a loopback socket into a file, and to flush it: ours is on the disk by then too."""
    listener = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        with socket.create_connection(listener.getsockname()) as out:
            for at in range(0, len(payload), _CHUNK_BYTES):
                out.sendall(payload[at : at + _CHUNK_BYTES])

    sender = threading.Thread(target=send)
    path = folder / "raw"
    started = time.perf_counter()
    sender.start()
    connection, _ = listener.accept()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with connection, open(path, "wb", buffering=0) as file:
        while count := connection.recv_into(buffer):
            file.write(buffer[:count])
        os.fsync(file.fileno())
    sender.join()
    seconds = time.perf_counter() - started
    listener.close()
    path.unlink()
    return seconds


def _from_file(path: Path) -> float:
    """Seconds to send a file through a loopback socket into new memory, where a reader has it at the end too."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = 0

    def drain() -> None:
        nonlocal received
        with socket.create_connection(listener.getsockname()) as source:
            while count := source.recv_into(memory[received : received + _CHUNK_BYTES]):
                received += count

    reader = threading.Thread(target=drain)
    size = path.stat().st_size
    started = time.perf_counter()
    memory = memoryview(np.empty(size + 1, np.uint8))  # one more: to read nothing is the end
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
    if not settings.wanted(APPEND, SCAN):
        return
    rows = settings.rows(5_000_000)
    payload = _bytes_of(rows)
    size = len(payload)
    folder = Path(tempfile.mkdtemp(prefix="fluss-bench-"))

    def in_rounds(mine: Callable[[], float], limit: Callable[[], float]) -> tuple[list[float], list[float]]:
        seconds = alternate(mine, limit, settings.repeats, rounds=_TIMES_AS_OFTEN * settings.rounds)
        ours_rates, limits = ([size / taken / 1e6 for taken in side] for side in seconds)
        return ours_rates, limits

    try:
        if settings.wanted(APPEND):

            def append() -> float:
                ours.call("create", table="raw", properties=NONE)
                return float(ours.call("write_batches", table="raw", rows=rows)["seconds"])

            pair = in_rounds(append, lambda: _into_file(payload, folder))
            yield Result(APPEND, *pair, "MB/s", ratio_of(*pair), Bar(0.4, 0.7))
        if settings.wanted(SCAN):
            ours.call("create", table="raw", properties=NONE)
            ours.call("write_batches", table="raw", rows=rows)
            path = folder / "file"
            path.write_bytes(payload)

            def scan() -> float:
                return float(ours.call("to_arrow", table="raw")["seconds"])

            pair = in_rounds(scan, lambda: _from_file(path))
            yield Result(SCAN, *pair, "MB/s", ratio_of(*pair), Bar(0.4, 0.7))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def life_cases(settings: Settings) -> Iterator[Result]:
    """Starting, and what an idle server costs."""
    if settings.wanted("start to ready, empty", "memory, idle"):
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
    small, large = settings.rows(50_000), settings.rows(5_000_000)
    if settings.wanted(LOOKUP_LARGE):
        yield _lookup_growth(settings, small, large)
    if not settings.wanted(APPEND_LARGE):
        return
    yield _append_growth(settings, ours, small, large)


def _append_growth(settings: Settings, ours: Worker, small: int, large: int) -> Result:
    """A table that holds much, and one that is made anew each time, in turn."""

    def seconds(table: str) -> float:
        ours.call("write_batches", table=table, rows=small)  # the table's leader and files are found, out of the clock
        return float(ours.call("write_batches", table=table, rows=small)["seconds"])

    def new() -> float:
        ours.call("create", table="sparse")
        return seconds("sparse")

    ours.call("create", table="grow")
    ours.call("write_batches", table="grow", rows=large)
    pair = alternate(lambda: seconds("grow"), new, settings.repeats, rounds=_TIMES_AS_OFTEN * settings.rounds)
    later, first = ([small / taken / 1e6 for taken in side] for side in pair)
    return Result(APPEND_LARGE, later, first, "M rows/s", ratio_of(later, first), Bar(0.8, 0.95))


def _lookup_growth(settings: Settings, small: int, large: int) -> Result:
    """Two servers that differ in nothing but how much they hold, asked in turn."""
    together = 64 * 300
    with LocalServer() as full, LocalServer() as sparse:
        sides = [
            (Worker("ours", free_python(), server.bootstrap_servers, ops="scale_ops"), keys)
            for server, keys in ((full, large), (sparse, small))
        ]
        try:
            for worker, keys in sides:
                worker.call("create", table="grow_keyed", primary_key=True)
                worker.call("upsert_range", table="grow_keyed", start=0, stop=keys)
            time.sleep(_SPILL_S)

            def rate(worker: Worker, keys: int) -> float:
                answer = worker.call("lookups_together", table="grow_keyed", count=together, keys=keys)
                return together / float(answer["seconds"]) / 1e3

            later, first = alternate(lambda: rate(*sides[0]), lambda: rate(*sides[1]), settings.repeats)
        finally:
            for worker, _ in sides:
                worker.close()
    return Result(LOOKUP_LARGE, later, first, "k/s", ratio_of(later, first), Bar(0.8, 0.95))
