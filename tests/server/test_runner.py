# SPDX-License-Identifier: Apache-2.0
"""A server in the foreground."""

from __future__ import annotations

import asyncio
import sys

import pytest

from fluss.server import runner
from fluss.server.config import ServerConfig


def test_it_runs_on_uvloop_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []

    async def serve(config: ServerConfig, *, watch_stdin: bool) -> None:
        seen.append((type(asyncio.get_running_loop()).__module__.partition(".")[0], watch_stdin))

    monkeypatch.setattr(runner, "serve", serve)
    runner.run(ServerConfig({}), watch_stdin=True)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    runner.run(ServerConfig({}))
    assert seen == [("uvloop", True), ("asyncio", False)]
