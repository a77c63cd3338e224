# SPDX-License-Identifier: Apache-2.0
"""Our client against the official one, both on the same embedded server."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator

from benchmarks.harness import (
    Bar,
    Result,
    Settings,
    Worker,
    WorkerError,
    alternate,
    clean_python,
    free_python,
    ratio_of,
)

NONE = {"table.log.arrow.compression.type": "NONE"}


class _Equal:
    """Both sides must have read the same."""

    def __init__(self) -> None:
        self.expected: object = None

    def check(self, worker: Worker, result: object) -> None:
        if self.expected is None:
            self.expected = result
        if result != self.expected:
            raise WorkerError(f"{worker.name} read {result}, the other side {self.expected}")


def client_cases(settings: Settings, ours: Worker, peer: Worker, peer_python: str) -> Iterator[Result]:
    """All rows of the client's table, one result each."""
    repeats = settings.repeats

    def rates(name: str, rows: int, op: Callable[[Worker], float], bar: Bar) -> Result:
        mine, theirs = alternate(lambda: rows / op(ours) / 1e6, lambda: rows / op(peer) / 1e6, repeats)
        return Result(name, mine, theirs, "M rows/s", ratio_of(mine, theirs), bar)

    def on_new_table(op: str, properties: dict[str, str] | None = None, primary_key: bool = False, **args: object):  # type: ignore[no-untyped-def]
        def run(worker: Worker) -> float:
            worker.call("create", table="bench", properties=properties, primary_key=primary_key)
            return float(worker.call(op, table="bench", **args)["seconds"])

        return run

    rows = settings.rows(500_000)
    for kind in ("dict", "tuple"):
        if settings.wanted(f"append {kind}"):
            run = on_new_table("append_rows", rows=rows, kind=kind)
            yield rates(f"append {kind} rows", rows, run, Bar(1.5, 2.5))

    many = settings.rows(5_000_000)
    for label, properties, goals in (("zstd", None, (1.5, 2.0)), ("none", NONE, (2.0, 2.0))):
        if settings.wanted(f"arrow {label}"):
            run = on_new_table("write_batches", properties, rows=many)
            yield rates(f"write arrow batches, {label}", many, run, Bar(1.0, goals[0]))
        if settings.wanted(f"to_arrow {label}"):
            ours.call("create", table="read", properties=properties)
            ours.call("write_batches", table="read", rows=many)
            equal = _Equal()

            def read(worker: Worker, equal: _Equal = equal) -> float:
                answer = worker.call("to_arrow", table="read")
                equal.check(worker, answer["result"])
                return float(answer["seconds"])

            yield rates(f"to_arrow, {label}", many, read, Bar(1.0, goals[1]))

    if settings.wanted("to_arrow projection"):
        wide = settings.rows(1_000_000)
        ours.call("create", table="wide", columns=10)
        ours.call("write_wide", table="wide", rows=wide, columns=10)
        same = _Equal()

        def read_one(worker: Worker) -> float:
            answer = worker.call("to_arrow", table="wide", columns=["c4"])
            same.check(worker, answer["result"])
            return float(answer["seconds"])

        yield rates("to_arrow, 1 of 10 columns", wide, read_one, Bar(1.0, 2.0))
        ours.call("drop", table="wide")

    if settings.wanted("poll"):
        ours.call("create", table="polled")
        ours.call("write_batches", table="polled", rows=rows)
        seen = _Equal()

        def poll(worker: Worker) -> float:
            answer = worker.call("poll_rows", table="polled", rows=rows)
            seen.check(worker, answer["result"])
            return float(answer["seconds"])

        yield rates("poll, reading .row of each", rows, poll, Bar(1.0, 2.0))

    keyed = settings.rows(200_000)
    if settings.wanted("upsert"):
        run = on_new_table("upsert_rows", primary_key=True, rows=keyed)
        yield rates("upsert dict rows", keyed, run, Bar(1.0, 2.0))

    if settings.wanted("lookup"):
        ours.call("create", table="keyed", primary_key=True)
        ours.call("upsert_rows", table="keyed", rows=keyed)
        one = [
            float(ours.call("lookups", table="keyed", count=500, keys=keyed)["seconds"]) * 1e3 for _ in range(repeats)
        ]
        other = [float(peer.call("lookups", table="keyed", count=5, keys=keyed)["seconds"]) * 1e3]
        yield Result("lookup, one after another, p50", one, other, "ms", None, Bar(1.0, 0.3, "ms", higher=False))
        count = 64 * 100
        together = [
            count / float(ours.call("lookups_together", table="keyed", count=count, keys=keyed)["seconds"]) / 1e3
            for _ in range(repeats)
        ]
        theirs = [64 * 2 / float(peer.call("lookups_together", table="keyed", count=128, keys=keyed)["seconds"]) / 1e3]
        yield Result("lookup, 64 at a time", together, theirs, "k/s", None, Bar(10.0, 40.0, "k/s"))

    if settings.wanted("import"):
        code = "import fluss"
        own_python = clean_python()
        pair = alternate(lambda: _import_ms(own_python, code), lambda: _import_ms(peer_python, code), repeats * 3)
        yield Result("import time", *pair, "ms", ratio_of(*pair), Bar(1.0, 0.7, higher=False))

    if settings.wanted("memory"):
        yield _peak_memory(settings, ours, peer, peer_python, many)


def _import_ms(python: str, code: str) -> float:
    started = time.perf_counter()
    subprocess.run([python, "-c", code], check=True, cwd="/")
    return (time.perf_counter() - started) * 1e3


def _peak_memory(settings: Settings, ours: Worker, peer: Worker, peer_python: str, rows: int) -> Result:
    """Fresh processes that do nothing but one scan."""
    ours.call("create", table="memory")
    ours.call("write_batches", table="memory", rows=rows)

    def peak(python: str, name: str) -> float:
        worker = Worker(name, python, ours.servers)
        try:
            worker.call("to_arrow", table="memory")
            return float(worker.call("peak_memory")["seconds"]) / 1e6
        finally:
            worker.close()

    mine = [peak(free_python(), "ours") for _ in range(3)]
    theirs = [peak(peer_python, "peer") for _ in range(3)]
    ratio = statistics.median(mine) / statistics.median(theirs)
    return Result("peak memory of the scan", mine, theirs, "MB", ratio, Bar(1.0, 0.7, higher=False))
