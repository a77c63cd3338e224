# SPDX-License-Identifier: Apache-2.0
"""A jump of the machine's clock has no effect until the clock has run on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.server.log_support import connected, make_batch, running_server

from fluss.metadata import TableBucket
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.server.clock import Clock

SECOND = 1000
MINUTE = 60 * SECOND
YEAR = 365 * 24 * 60 * MINUTE
NOW = 1_700_000_000_000


class MachineClock(Clock):
    """A clock of a machine that can be set."""

    def __init__(self, tolerance_ms: int = 10 * MINUTE, now_ms: int = NOW) -> None:
        self.jump_tolerance_ms = tolerance_ms
        self.steady_ms = 5_000
        self.set_ms = now_ms - self.steady_ms

    def _read_ms(self) -> tuple[int, int]:
        return self.set_ms + self.steady_ms, self.steady_ms

    def wait(self, ms: int) -> int:
        self.steady_ms += ms
        return self.now_ms()


@pytest.mark.parametrize("jump", [YEAR, -YEAR, 11 * MINUTE, -11 * MINUTE])
def test_a_jump_that_is_taken_back_has_no_effect(jump: int, caplog: pytest.LogCaptureFixture) -> None:
    clock = MachineClock()
    assert clock.now_ms() == NOW
    assert clock.wait(SECOND) == NOW + SECOND
    clock.set_ms += jump
    assert clock.now_ms() == NOW + SECOND
    assert clock.wait(9 * MINUTE) == NOW + 9 * MINUTE + SECOND
    clock.set_ms -= jump
    assert clock.now_ms() == NOW + 9 * MINUTE + SECOND
    assert clock.wait(20 * MINUTE) == NOW + 29 * MINUTE + SECOND
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert f"jumped by {jump // 1000} s" in texts[0]
    assert "is back" in texts[1]


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_a_jump_is_confirmed_by_time(jump: int, caplog: pytest.LogCaptureFixture) -> None:
    clock = MachineClock()
    clock.now_ms()
    clock.set_ms += jump
    assert clock.now_ms() == NOW
    assert clock.wait(5 * MINUTE) == NOW + 5 * MINUTE
    clock.set_ms += jump  # and again: the time to run on begins anew
    assert clock.wait(6 * MINUTE) == NOW + 11 * MINUTE
    assert clock.wait(10 * MINUTE) == NOW + 21 * MINUTE + 2 * jump
    assert clock.wait(SECOND) == NOW + 21 * MINUTE + 2 * jump + SECOND
    assert sum("its time counts now" in record.getMessage() for record in caplog.records) == 1


def test_steps_within_the_tolerance_count_at_once() -> None:
    clock = MachineClock()
    clock.now_ms()
    for _ in range(5):
        clock.set_ms += 9 * MINUTE
        assert clock.now_ms() == clock.set_ms + clock.steady_ms


def test_a_clock_that_was_not_set_yet_counts_once_it_is() -> None:
    clock = MachineClock(now_ms=100 * MINUTE)
    clock.now_ms()
    clock.set_ms = NOW
    assert clock.now_ms() == NOW + clock.steady_ms


def test_without_tolerance_every_time_counts() -> None:
    clock = MachineClock(tolerance_ms=0)
    clock.now_ms()
    clock.set_ms += YEAR
    assert clock.now_ms() == NOW + YEAR


def test_the_time_of_the_machine() -> None:
    clock = Clock()
    clock.jump_tolerance_ms = MINUTE
    for _ in range(3):
        assert abs(clock.now_ms() - time.time() * 1000) < 1000


async def test_nothing_expires_and_nothing_is_stamped_by_a_jump(tmp_path: Path) -> None:
    clock = MachineClock()
    options = {"log_retention_roll__active__segment_enabled": "true", "clock_jump__tolerance": "10 min"}
    async with running_server(tmp_path, clock, **options) as server, connected(server) as client:
        table = await client.create_table(table_log_ttl="1 d")
        await client.produce(table, make_batch(0))
        clock.set_ms += YEAR
        await server.tablets.expire_segments()
        await client.produce(table, make_batch(3))
        clock.set_ms -= YEAR
        clock.wait(MINUTE)
        await client.produce(table, make_batch(6))
        log = server.tablets.tablet(TableBucket(table, 0))
        assert (log.start_offset, log.max_timestamp) == (0, NOW + MINUTE)
        clock.set_ms += YEAR
        await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == 0
        request = pb.AlterClusterConfigsRequest()
        request.alter_configs.add(config_key="clock.jump-tolerance", config_value="0 s", op_type=0)
        await client.call(apis.ALTER_CLUSTER_CONFIGS, request)
        await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == 9, "a year has passed"
