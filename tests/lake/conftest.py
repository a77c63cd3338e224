# SPDX-License-Identifier: Apache-2.0
"""An embedded server with a lake, for each format, shared by the tests; every test has a database of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.lake.support import PACKAGES, LakeHarness, lake_harness, lake_server_options

from fluss.client.blocking_client import close_shared_clients
from fluss.server.local import LocalServer

_numbers = itertools.count(1)


LakeServers = Callable[[str], tuple[LocalServer, Path]]
"""Gives the server of a format and its warehouse; it is started when it is first asked for."""


@pytest.fixture(scope="session")
def lake_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeServers]:
    running: dict[str, tuple[LocalServer, Path]] = {}

    def started(lake_format: str) -> tuple[LocalServer, Path]:
        if lake_format not in running:
            pytest.importorskip(PACKAGES[lake_format])
            warehouse = tmp_path_factory.mktemp(lake_format)
            server = LocalServer(options=lake_server_options(lake_format, warehouse)).start()
            running[lake_format] = (server, warehouse)
        return running[lake_format]

    try:
        yield started
    finally:
        close_shared_clients()
        for server, _ in running.values():
            server.stop()


@pytest.fixture(params=["paimon", "iceberg"])
def lake(request: pytest.FixtureRequest, lake_servers: LakeServers) -> Iterator[LakeHarness]:
    with _harness(lake_servers, request.param) as harness:
        yield harness


def _fixture_of(lake_format: str) -> Callable[[LakeServers], Iterator[LakeHarness]]:
    @pytest.fixture(name=lake_format)
    def fixture(lake_servers: LakeServers) -> Iterator[LakeHarness]:
        with _harness(lake_servers, lake_format) as harness:
            yield harness

    return fixture


paimon, iceberg, lance, delta = map(_fixture_of, ("paimon", "iceberg", "lance", "delta"))


def _harness(servers: LakeServers, lake_format: str) -> AbstractContextManager[LakeHarness]:
    server, warehouse = servers(lake_format)
    return lake_harness(server, lake_format, warehouse, f"lake_{next(_numbers)}")
