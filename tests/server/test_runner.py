# SPDX-License-Identifier: Apache-2.0
"""A server in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import wait_until

from fluss.server import runner
from fluss.server.config import ServerConfig


def test_it_runs_on_uvloop_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []

    async def serve(config: ServerConfig, *, watch_stdin: bool, companion: object, **_: object) -> None:
        seen.append((type(asyncio.get_running_loop()).__module__.partition(".")[0], watch_stdin))

    monkeypatch.setattr(runner, "serve", serve)
    runner.run(ServerConfig({}), watch_stdin=True)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    runner.run(ServerConfig({}))
    assert seen == [("uvloop", True), ("asyncio", False)]


async def test_what_a_start_loads_is_not_searched_for_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr("gc.freeze", lambda: done.append("freeze"))

    @contextlib.contextmanager
    def short_searches() -> Iterator[None]:
        done.append("short")
        yield
        done.append("as before")

    monkeypatch.setattr(runner, "short_searches", short_searches)
    said = lambda line, flush: done.append(line.partition(" ")[0])  # noqa: E731
    monkeypatch.setattr(runner, "print", said, raising=False)
    options = {"data.dir": str(tmp_path), "bind.listeners": "FLUSS://127.0.0.1:0"}

    serving = asyncio.ensure_future(runner.serve(ServerConfig(options)))
    await wait_until(lambda: "ready" in done)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 10)
    # Before tables are loaded, and then for those.
    assert done == ["short", "freeze", "ready", "as before"]
