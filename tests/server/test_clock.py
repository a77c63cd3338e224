# SPDX-License-Identifier: Apache-2.0
"""A jump of the machine's clock has no effect until the clock has run on."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from tests.server.catalog.support import create, partitioned_table
from tests.server.log_support import connected, ids_of, make_batch, running_server

from fluss.metadata import TableBucket, TablePath
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.server.clock import Clock
from fluss.server.datadir import CLOCK_NAME, DataDir
from fluss.server.log.segment import expired_count

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


@pytest.fixture
def clock() -> MachineClock:
    return MachineClock()


@pytest.mark.parametrize("jump", [YEAR, -YEAR, 11 * MINUTE, -11 * MINUTE])
def test_a_jump_that_is_undone_has_no_effect(clock: MachineClock, jump: int, caplog: pytest.LogCaptureFixture) -> None:
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
def test_a_jump_is_confirmed_by_time(clock: MachineClock, jump: int, caplog: pytest.LogCaptureFixture) -> None:
    clock.now_ms()
    clock.set_ms += jump
    assert clock.now_ms() == NOW
    assert clock.wait(5 * MINUTE) == NOW + 5 * MINUTE
    clock.set_ms += jump  # and again: the time to run on begins anew
    assert clock.wait(6 * MINUTE) == NOW + 11 * MINUTE
    assert clock.wait(10 * MINUTE) == NOW + 21 * MINUTE + 2 * jump
    assert clock.wait(SECOND) == NOW + 21 * MINUTE + 2 * jump + SECOND
    assert sum("its time counts now" in record.getMessage() for record in caplog.records) == 1


def test_steps_within_the_tolerance_count_at_once(clock: MachineClock) -> None:
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


async def test_nothing_expires_and_nothing_is_stamped_by_a_jump(clock: MachineClock, tmp_path: Path) -> None:
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


# A server that was switched off -----------------------------------------------------------------------------------


def restarted(clock: MachineClock, off_ms: int) -> MachineClock:
    """The clock of a server that goes on from this one, on a machine that was started again."""
    new = MachineClock(clock.jump_tolerance_ms, clock.set_ms + clock.steady_ms + off_ms)
    new.resume(*clock.state())
    return new


def test_what_passed_while_the_server_was_off_counts_once_the_clock_ran_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = MachineClock()
    clock.now_ms()
    clock = restarted(clock, YEAR)
    assert (clock.now_ms(), clock.expiry_ms()) == (NOW + YEAR, NOW), "rows must not be stamped too early"
    clock.wait(9 * MINUTE)
    assert (clock.now_ms(), clock.expiry_ms()) == (NOW + YEAR + 9 * MINUTE, NOW + 9 * MINUTE)
    clock.wait(MINUTE)
    assert clock.expiry_ms() == clock.now_ms() == NOW + YEAR + 10 * MINUTE
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert f"last ran {YEAR // 1000} s ago" in texts[0]


def test_starts_that_follow_each_other_confirm_nothing(clock: MachineClock) -> None:
    clock.now_ms()
    clock = restarted(clock, YEAR)
    for _ in range(4):
        clock.wait(MINUTE)
        clock = restarted(clock, MINUTE)
        assert clock.expiry_ms() < NOW + 9 * MINUTE
    clock.wait(5 * MINUTE)
    assert clock.expiry_ms() < NOW + 11 * MINUTE
    clock.wait(MINUTE)
    assert clock.expiry_ms() == clock.now_ms() > NOW + YEAR, "it has run for ten minutes in all"


def test_a_second_wrong_start_does_not_confirm_the_first(clock: MachineClock) -> None:
    clock.now_ms()
    clock = restarted(clock, YEAR)
    clock = restarted(clock, YEAR)
    assert clock.expiry_ms() == NOW


def test_a_server_that_never_runs_for_long_lets_rows_expire(clock: MachineClock) -> None:
    clock.now_ms()
    for _ in range(11):
        clock = restarted(clock, 24 * 60 * MINUTE)
        clock.wait(MINUTE)
    assert clock.expiry_ms() > NOW + 9 * 24 * 60 * MINUTE


@pytest.mark.parametrize("tolerance", [0, 10 * MINUTE])
def test_a_short_stop_counts_at_once(tolerance: int) -> None:
    clock = MachineClock(tolerance)
    clock.now_ms()
    clock = restarted(clock, 9 * MINUTE)
    assert clock.expiry_ms() == clock.now_ms() == NOW + 9 * MINUTE
    assert clock.state() == (clock.now_ms(), clock.now_ms(), 0)


def test_a_clock_that_is_behind_at_a_start_does_not_count(clock: MachineClock) -> None:
    clock.now_ms()
    clock = restarted(clock, -YEAR)
    assert (clock.now_ms(), clock.expiry_ms()) == (NOW, NOW - YEAR), "nothing expires, nothing is stamped too early"
    clock.set_ms += YEAR + 30 * MINUTE
    clock.wait(MINUTE)
    assert (clock.now_ms(), clock.expiry_ms()) == (NOW + 31 * MINUTE, NOW + MINUTE)


def test_timestamps_fall_only_when_a_clock_was_ahead(clock: MachineClock) -> None:
    for ahead in (1, MINUTE, 10 * MINUTE):
        assert clock.stamp_ms(NOW + ahead) == NOW + ahead
    assert clock.stamp_ms(NOW + 10 * MINUTE + 1) == NOW
    assert clock.stamp_ms(NOW - 1) == NOW


async def test_a_start_with_a_clock_a_year_ahead(tmp_path: Path) -> None:
    """Nothing expires by it; and once the clock is right, rows are stamped and expire as if it always had been."""
    options = {"log_retention_roll__active__segment_enabled": "true"}
    async with running_server(tmp_path, MachineClock(), **options) as server, connected(server) as client:
        table = await client.create_table(table_log_ttl="1 d")
        await client.produce(table, make_batch(0, writer_id=7, sequence=0))
    for minute in (1, 2):  # a second start with the wrong clock does not make it right
        wrong = MachineClock(now_ms=NOW + YEAR + minute * MINUTE)
        async with running_server(tmp_path, wrong, **options) as server, connected(server) as client:
            server._expire_writers()
            await server.tablets.expire_segments()
            assert (await client.offsets(table, 0)).offset == 0
            again = await client.produce(table, make_batch(0, writer_id=7, sequence=0))
            assert (again.error_code, again.base_offset) == (0, 0), "the writer repeats its last batch"
            await client.produce(table, make_batch(minute * 3))
    clock = MachineClock(now_ms=NOW + 5 * MINUTE)
    async with running_server(tmp_path, clock, **options) as server, connected(server) as client:
        await client.produce(table, make_batch(9))
        log = server.tablets.tablet(TableBucket(table, 0))
        assert log.max_timestamp == NOW + 5 * MINUTE
    async with running_server(tmp_path, clock, **options) as server, connected(server) as client:
        await client.produce(table, make_batch(12))
        log = server.tablets.tablet(TableBucket(table, 0))
        assert (log.damage, log.max_timestamp) == (None, NOW + 5 * MINUTE)
        assert ids_of((await client.fetch(table, 0)).records) == list(range(9))
        assert ids_of((await client.fetch(table, 9)).records) == list(range(9, 15))
        assert [(await client.offsets(table, 2, NOW + at)).offset for at in (0, 1, 5 * MINUTE)] == [0, 3, 3]
        clock.wait(MINUTE)
        await client.produce(table, make_batch(15))
        assert (await client.offsets(table, 2, NOW + 6 * MINUTE)).offset == 15
        clock.wait(25 * 60 * MINUTE)
        for _ in range(2):
            await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == 18, "what was stamped ahead expires with what came later"


async def test_partitions_stay_at_a_start_with_a_clock_a_year_ahead(tmp_path: Path) -> None:
    path = TablePath("fluss", "t")
    properties = {
        "table.auto-partition.enabled": "true",
        "table.auto-partition.time-zone": "UTC",
        "table.auto-partition.num-retention": "1",
    }
    async with running_server(tmp_path, MachineClock()) as server, connected(server) as client:
        await client.send(create(partitioned_table(properties=properties)))
        assert list(server.catalog.table(path).partitions) == ["20231114", "20231115"]
    wrong = MachineClock(now_ms=NOW + YEAR)
    async with running_server(tmp_path, wrong) as server:
        await server.catalog.auto_partitioner.run()
        found = list(server.catalog.table(path).partitions)
        assert found == ["20231114", "20231115", "20241113", "20241114"], "new rows need partitions; none is dropped"
        wrong.wait(10 * MINUTE)
        await server.catalog.auto_partitioner.run()
        assert list(server.catalog.table(path).partitions) == ["20241113", "20241114"], "it was switched off for a year"


@pytest.mark.parametrize(
    ("newest", "expired"),
    [
        ([1, 2, 50], 2),
        ([1, 900, 2, 50], 3),  # stamped ahead by a wrong clock, then put right
        ([1, 900, 50], 1),
        ([900, -1], 0),  # nothing is known of the time of what is behind
        ([1, 900, -1], 1),
        ([1, -1], 1),
        ([-1, 50], 0),
        ([-1, 2, 50], 2),
    ],
)
def test_segments_expire_by_times_that_are_known(newest: list[int], expired: int) -> None:
    assert expired_count(newest, oldest_kept_ms=10, now_ms=100) == expired


async def test_rows_past_the_time_that_counts_stay_before_an_empty_segment(clock: MachineClock, tmp_path: Path) -> None:
    async with running_server(tmp_path, clock) as server, connected(server) as client:
        table = await client.create_table(table_log_ttl="1 h")
        clock.set_ms += 5 * MINUTE
        await client.produce(table, make_batch(0))
        clock.set_ms -= 5 * MINUTE
        server.tablets.tablet(TableBucket(table, 0)).roll_if_not_empty()
        await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == 0


async def test_a_row_stamped_ahead_sets_no_clock(tmp_path: Path) -> None:
    """Folders of earlier releases and restored ones have no record of the time."""
    path = TablePath("fluss", "t")
    properties = {"table.auto-partition.enabled": "true", "table.auto-partition.num-retention": "1"}
    async with running_server(tmp_path, MachineClock(now_ms=NOW + YEAR)) as server, connected(server) as client:
        await client.produce(await client.create_table("ahead"), make_batch(0))
    (tmp_path / CLOCK_NAME).unlink()
    async with running_server(tmp_path, MachineClock()) as server, connected(server) as client:
        assert server.clock.expiry_ms() == NOW
        await client.send(create(partitioned_table(properties=properties)))
        found = list(server.catalog.table(path).partitions)
        await server.catalog.auto_partitioner.run()
        assert list(server.catalog.table(path).partitions) == found


async def test_a_stop_records_the_clock(tmp_path: Path) -> None:
    for minute in (0, 24 * 60):
        clock = MachineClock(now_ms=NOW + minute * MINUTE)
        async with running_server(tmp_path, clock):
            clock.wait(MINUTE)
    folder = DataDir(tmp_path)
    assert folder.clock_state() == (NOW + 2 * MINUTE, NOW + (24 * 60 + 1) * MINUTE, MINUTE)
    folder.release(clean=True)
