# SPDX-License-Identifier: Apache-2.0
"""No request keeps the event loop busy for more than 50 ms, however much it asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.abuse.loop_stalls import MeasuredServer

from fluss.protocol.frames import ResponseKind, parse_response

ROWS = 150_000
ATTEMPTS = 4
"""A machine that is busy with other things slows down every instruction: a slow request stalls the loop each time."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredServer]:
    with MeasuredServer(tmp_path_factory.mktemp("stalls")) as server:
        server.load(ROWS)
        yield server


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredServer]:
    with MeasuredServer(tmp_path_factory.mktemp("stalls")) as server:
        server.load(500_000)
        yield server


def check_no_stall(measured: MeasuredServer) -> None:
    for name, api, body in measured.requests():
        longest = []
        for _ in range(ATTEMPTS):
            before = measured.stalls
            answer = measured.ask(api, body)
            assert answer is not None, name
            assert parse_response(memoryview(answer)).kind in (ResponseKind.SUCCESS, ResponseKind.ERROR)
            stalls = measured.stalls - before
            if not stalls:
                break
            longest.append(stalls)
        assert len(longest) < ATTEMPTS, f"{name}: {longest} stalls of the event loop"


def test_no_request_stalls_the_event_loop(measured: MeasuredServer) -> None:
    check_no_stall(measured)


@pytest.mark.slow
def test_no_request_stalls_the_event_loop_with_500_000_rows(large: MeasuredServer) -> None:
    check_no_stall(large)
