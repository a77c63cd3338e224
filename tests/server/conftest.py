# SPDX-License-Identifier: Apache-2.0
"""A server with default options in the process of the test, and a bare connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.server.log_support import OPENED, Client, FakeClock, connected, running_server

from fluss.server.server import Server


@pytest.fixture(autouse=True)
def _harnesses_closed() -> Iterator[None]:
    yield
    while OPENED:
        harness = OPENED.pop()
        getattr(harness, "crash", harness.close)()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_server(tmp_path) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client


@pytest.fixture
async def table(client: Client) -> int:
    """The id of a new log table with one bucket."""
    return await client.create_table()
