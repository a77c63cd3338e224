# SPDX-License-Identifier: Apache-2.0
"""The part of the matrix that needs PyPI alone: our client and both official wheels on our server.

Runs with `make test`; the rest, with Java and the real cluster, is `make interop`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.interop import environment, matrix, peers
from tests.interop.cluster import OurServer
from tests.interop.scenarios import SCENARIOS, Scenario

_CLIENTS = (*peers.OURS, *peers.WHEELS)
# Only what a client can do is asked of it; see `peers.CAPABILITIES`.
_CELLS = [
    pytest.param(client, one, id=f"{client}: {one.name}")
    for client in _CLIENTS
    for one in SCENARIOS
    if one.requires <= peers.CAPABILITIES[client]
]
_PAIRS = [("fluss", wheel) for wheel in peers.WHEELS] + [(wheel, "fluss") for wheel in peers.WHEELS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    with OurServer(keep_logs_in=tmp_path_factory.mktemp("logs")) as started:
        assert isinstance(started, OurServer)
        yield started


@pytest.fixture(scope="module")
def crew(server: OurServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[matrix.Crew]:
    with matrix.crew_of(tmp_path_factory.mktemp("clients")) as made:
        yield made


@pytest.fixture(scope="module")
def wheels() -> None:
    """Both wheels in their environments. Where PyPI cannot be reached this says so, unless the run must have them."""
    try:
        for version in environment.WHEELS:
            environment.wheel_python(version)
    except environment.Unavailable as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))


@pytest.mark.parametrize(("client", "one"), _CELLS)
def test_scenario(
    server: OurServer, crew: matrix.Crew, client: str, one: Scenario, request: pytest.FixtureRequest
) -> None:
    if client in peers.WHEELS:
        request.getfixturevalue("wheels")
    outcome = matrix.run_scenario(server, crew, client, "fluss", one)
    assert not outcome.problem, outcome.problem


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize(("writer", "reader"), _PAIRS)
def test_pair(server: OurServer, crew: matrix.Crew, writer: str, reader: str) -> None:
    outcome = matrix.run_pair(server, crew, writer, reader)
    assert not outcome.problem, outcome.problem
