# SPDX-License-Identifier: Apache-2.0
"""What a process pays that uses our client, or the official one: the import, and the memory of a scan."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

from benchmarks.cases.pair import Pair
from benchmarks.harness import Bar, Result, Worker, alternate, clean_python, ratio_of


def imports(pair: Pair, peer_python: str) -> Iterator[Result]:
    if pair.settings.wanted(name := "import time"):
        own_python = clean_python()
        repeats = pair.settings.repeats * 3
        found = alternate(lambda: _import_ms(own_python), lambda: _import_ms(peer_python), repeats)
        yield Result(name, *found, "ms", ratio_of(*found), Bar(1.0, 0.7, higher=False))


def _import_ms(python: str) -> float:
    started = time.perf_counter()
    subprocess.run([python, "-c", "import fluss"], check=True, cwd="/")
    return (time.perf_counter() - started) * 1e3


def memory(pair: Pair, peer_python: str) -> Iterator[Result]:
    """Fresh processes that do nothing but one scan, each side in an environment with nothing else in it."""
    if not pair.settings.wanted(name := "peak memory of the scan"):
        return
    own_python = clean_python()
    pair.ours.call("create", table="memory")
    pair.ours.call("write_batches", table="memory", rows=pair.settings.rows(5_000_000))

    def peak_mb(python: str, name: str) -> float:
        worker = Worker(name, python, pair.ours.servers)
        try:
            return float(worker.call("to_arrow", table="memory")["peak_bytes"]) / 1e6
        finally:
            worker.close()

    found = alternate(lambda: peak_mb(own_python, "ours"), lambda: peak_mb(peer_python, "peer"), pair.settings.repeats)
    yield Result(name, *found, "MB", ratio_of(*found), Bar(1.0, 0.7, higher=False))
