# SPDX-License-Identifier: Apache-2.0
"""What the server tells the console about itself."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

import pytest
from tests.server.log_support import Client, make_batch

from fluss.metadata import TableBucket
from fluss.server.distribution import percentile_ms
from fluss.server.inspection import Inspector, RecentLog
from fluss.server.metrics import ServerMetrics
from fluss.server.server import Server


def test_percentiles_are_close_to_the_true_ones() -> None:
    metrics = ServerMetrics()
    for number in range(1, 1_001):
        metrics.request(1014, seconds=number / 1e5, size_bytes=1, error_code=0)
    (figures,) = metrics.latencies().values()
    assert figures["count"] == 1_000
    assert percentile_ms(figures["slots"], 0.5) == pytest.approx(5.0, rel=0.1)
    highest = percentile_ms(figures["slots"], 0.99)
    assert highest is not None
    assert 9.9 <= highest <= 2 * 9.9


def test_extreme_times_have_a_slot() -> None:
    metrics = ServerMetrics()
    for seconds in (0.0, 1e-9, 1e9):
        metrics.request(1014, seconds=seconds, size_bytes=1, error_code=0)
    (figures,) = metrics.latencies().values()
    assert sum(figures["slots"]) == 3
    assert percentile_ms([0] * 64, 0.5) is None
    assert percentile_ms(figures["slots"], 0.5) < 0.01  # type: ignore[operator]


async def test_of_a_fetch_only_its_positions_are_kept(server: Server, client: Client, table: int) -> None:
    """A filter of 4 MB takes many times as much once it is parsed, and each connection would keep one."""
    await client.produce(table, make_batch(count=3))
    await client.fetch(table, 1)
    (session,) = server.sessions
    assert session.last_fetch == [(TableBucket(table, 0), 1)]
    with socket.socket() as sock:
        shown = (await Inspector(server, sock).answer(b'{"ask": "clients"}'))["clients"]
    assert [one["reads"] for one in shown] == [[{"table": "fluss.t", "buckets": 1, "lag": 2}]]


async def test_figures_for_the_console_leave_others_served(server: Server) -> None:
    slow = [lambda: time.sleep(0.006) or 1.0] * 20
    for number, read in enumerate(slow):
        server.metrics.gauge(f"slow{number:02}", read)
    iterations = 0

    async def count() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    with socket.socket() as sock:
        answer = await Inspector(server, sock).answer(b'{"ask": "figures"}')
    counting.cancel()
    assert "fluss_slow19 1\n" in answer["metrics"]
    assert iterations >= 20


def test_the_newest_log_lines_are_kept_by_level() -> None:
    log = RecentLog(lines_max=3)
    for number, level in enumerate((logging.ERROR, logging.INFO, logging.WARNING, logging.INFO)):
        log.handle(logging.LogRecord("fluss.x", level, "", 0, "line %d", (number,), None))
    assert [line["message"] for line in log.lines(logging.INFO, 10)] == ["line 1", "line 2", "line 3"]
    assert [line["message"] for line in log.lines(logging.WARNING, 10)] == ["line 2"]
    assert [line["message"] for line in log.lines(logging.DEBUG, 1)] == ["line 3"]
    assert log.lines(logging.DEBUG, 0) == []
