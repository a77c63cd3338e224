# SPDX-License-Identifier: Apache-2.0
"""A disk whose flushes take long holds up those who wait for it, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.waiting import at_most

import fluss
from fluss.server.local import LocalServer

_FLUSH_SECONDS = 0.15
_ATTEMPTS = 4
"""A busy machine delays a lookup now and then. A server that waits is late in every snapshot, by ten flushes."""
_SLOW_FLUSHES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int slow(const char *name, int fd) {
    struct timespec pause = {0, %d};
    nanosleep(&pause, 0);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}
int fsync(int fd) { return slow("fsync", fd); }
int fdatasync(int fd) { return slow("fdatasync", fd); }
"""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.fixture(scope="module")
def slow_flushes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that, loaded first, makes every flush of a process slow."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.c").write_text(_SLOW_FLUSHES % int(_FLUSH_SECONDS * 1e9))
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", str(folder / "slow.so"), str(folder / "slow.c"), "-ldl"],
        check=True,
        timeout=60,
    )
    return folder / "slow.so"


@pytest.mark.parametrize("memory", ["64mb", "16kb"], ids=["in memory", "on disk"])
def test_snapshots_on_a_slow_disk_hold_up_no_lookup(memory: str, tmp_path: Path, slow_flushes: Path) -> None:
    options = {"kv.memory-size": memory, "kv.snapshot.interval": "500ms"}
    server = LocalServer(tmp_path / "data", options=options, start_timeout_s=60, stop_timeout_s=60)
    with mock.patch.dict(os.environ, LD_PRELOAD=str(slow_flushes)):
        server.start()
    try:
        with fluss.connect(server.bootstrap_servers) as db:
            table = db.create_table("t", {"id": "bigint", "name": "string"}, primary_key="id")
            table.upsert([{"id": i, "name": f"n{i}"} for i in range(1_000)])
            end = threading.Event()
            writer = threading.Thread(target=_write, args=(server.bootstrap_servers, end))
            writer.start()
            try:
                longest = []
                for number in range(_ATTEMPTS):
                    text = f"snapshot {number} of"
                    longest.append(max(_waits_of_lookups(table, lambda text=text: text in server.log_text)))  # type: ignore[misc]
                    if longest[-1] < _FLUSH_SECONDS:
                        break
            finally:
                end.set()
                writer.join(60)
        assert min(longest) < _FLUSH_SECONDS, f"a lookup waited for a flush, in each snapshot: {longest}"
    finally:
        with at_most(30):
            server.stop()


def _write(servers: str, end: threading.Event) -> None:
    with fluss.connect(servers) as db:
        table = db.table("t")
        number = 0
        while not end.is_set():
            table.upsert([{"id": i, "name": f"m{number}"} for i in range(1_000)])
            number += 1


def _waits_of_lookups(table: fluss.Table[Any], is_over: Callable[[], bool]) -> list[float]:
    waits: list[float] = []
    deadline = time.monotonic() + 60
    while not is_over():
        assert time.monotonic() < deadline
        started = time.monotonic()
        assert table.get(7) is not None
        waits.append(time.monotonic() - started)
        time.sleep(0.005)
    return waits
