# SPDX-License-Identifier: Apache-2.0
"""Partitions made and dropped by time, with a clock the test moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.server.catalog.support import NOW_MS, Harness, alter, create, create_partition, partitioned_table
from tests.server.log_support import FakeClock, running_server
from tests.waiting import wait_until

from fluss.metadata import TablePath
from fluss.server.handlers import admin

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TABLE = TablePath("fluss", "t")


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def auto(**properties: str) -> dict[str, str]:
    given = {f"table.auto-partition.{key.replace('_', '-')}": value for key, value in properties.items()}
    return {"table.auto-partition.enabled": "true", "table.auto-partition.time-zone": "UTC", **given}


def names(harness: Harness) -> list[str]:
    return list(harness.catalog.table(TABLE).partitions)


# The clock of the tests stands at 2023-11-14 22:13:20 UTC.
@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ["20231114", "20231115"]),
        ({"time_unit": "HOUR"}, ["2023111422", "2023111423"]),
        ({"time_unit": "HOUR", "num_precreate": "4"}, ["2023111422", "2023111423", "2023111500", "2023111501"]),
        ({"time_unit": "month", "num_precreate": "3"}, ["202311", "202312", "202401"]),
        ({"time_unit": "QUARTER"}, ["20234", "20241"]),
        ({"time_unit": "YEAR"}, ["2023", "2024"]),
        ({"time_zone": "Asia/Shanghai"}, ["20231115", "20231116"]),
        ({"time_zone": "+08:00", "time_unit": "HOUR"}, ["2023111506", "2023111507"]),
        ({"time_format": "yyyy-MM-dd"}, ["2023-11-14", "2023-11-15"]),
        ({"num_precreate": "0"}, []),
    ],
)
def test_partitions_exist_with_the_table(harness: Harness, properties: dict[str, str], expected: list[str]) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties=auto(**properties))))
    assert names(harness) == expected


def test_the_server_zone_is_the_default(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        properties = {"table.auto-partition.enabled": "true", "table.auto-partition.time-unit": "HOUR"}
        harness.call(admin.create_table, create(partitioned_table(properties=properties)))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert names(harness) == ["2023111507", "2023111508"]


def test_a_round_follows_the_clock(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties=auto(num_retention="1"))))
    harness.clock.now_ms += DAY_MS
    harness.run(harness.catalog.auto_partitioner.run())
    assert names(harness) == ["20231114", "20231115", "20231116"]
    harness.clock.now_ms += DAY_MS
    harness.run(harness.catalog.auto_partitioner.run())
    assert names(harness) == ["20231115", "20231116", "20231117"]
    harness.clock.now_ms += 40 * DAY_MS
    harness.run(harness.catalog.auto_partitioner.run())
    assert names(harness) == ["20231226", "20231227"]
    harness.reopen()
    assert names(harness) == ["20231226", "20231227"]


def test_negative_retention_keeps_all(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties=auto(num_retention="-1"))))
    harness.clock.now_ms += 400 * DAY_MS
    harness.run(harness.catalog.auto_partitioner.run())
    assert names(harness) == ["20231114", "20231115", "20241218", "20241219"]


def test_several_keys_are_not_made_ahead_but_expire(harness: Harness) -> None:
    table = partitioned_table(("region", "dt"), properties=auto(key="dt", num_retention="2"))
    harness.call(admin.create_table, create(table))
    assert names(harness) == []
    for region, day in (("eu", "20231113"), ("us", "20231113"), ("eu", "20231114")):
        harness.call(admin.create_partition, create_partition(region=region, dt=day))
    harness.fails(43, admin.create_partition, create_partition(region="eu", dt="20231111"), "out-of-date")
    harness.clock.now_ms += 2 * DAY_MS
    harness.run(harness.catalog.auto_partitioner.run())
    assert names(harness) == ["eu$20231114"]


def test_explicit_partitions_must_fit(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties=auto())))
    harness.fails(43, admin.create_partition, create_partition(dt="today"))
    harness.fails(43, admin.create_partition, create_partition(dt="20231340"))
    harness.fails(43, admin.create_partition, create_partition(dt="20231106"), "out-of-date")
    harness.call(admin.create_partition, create_partition(dt="20231107"))
    harness.call(admin.create_partition, create_partition(dt="20991231"))


def test_an_explicit_format_binds_without_auto_partitioning(harness: Harness) -> None:
    properties = {"table.auto-partition.time-format": "yyyy-MM-dd"}
    harness.call(admin.create_table, create(partitioned_table(properties=properties)))
    assert names(harness) == []
    harness.fails(43, admin.create_partition, create_partition(dt="20231114"))
    harness.call(admin.create_partition, create_partition(dt="1999-01-01"))


def test_altering_takes_effect_at_once(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties={"table.auto-partition.time-zone": "UTC"})))
    assert names(harness) == []
    for day in ("20231101", "20231113"):
        harness.call(admin.create_partition, create_partition(dt=day))
    harness.call(admin.alter_table, alter({"table.auto-partition.enabled": "true"}))
    assert names(harness) == ["20231113", "20231114", "20231115"]
    harness.call(admin.alter_table, alter({"table.auto-partition.num-precreate": "4"}))
    assert names(harness)[-2:] == ["20231116", "20231117"]
    harness.call(admin.alter_table, alter({"table.auto-partition.num-retention": "0"}))
    assert names(harness) == ["20231114", "20231115", "20231116", "20231117"]
    harness.call(admin.alter_table, alter({"table.auto-partition.enabled": "false"}))
    harness.clock.now_ms += 100 * DAY_MS
    harness.run(harness.catalog.auto_partitioner.run())
    assert names(harness) == ["20231114", "20231115", "20231116", "20231117"]
    harness.call(admin.create_partition, create_partition(dt="anything"))


def test_partitions_of_another_format_do_not_expire(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties={"table.auto-partition.time-zone": "UTC"})))
    others = ["2023-11-14", "1", "12", "0EU", "20230231"]
    for value in ("20231101", *others):
        harness.call(admin.create_partition, create_partition(dt=value))
    harness.call(admin.alter_table, alter({"table.auto-partition.enabled": "true"}))
    assert names(harness) == [*others, "20231114", "20231115"]


def test_too_many_partitions_stop_nothing_else(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"max.partition.num": 2})
    harness.call(admin.create_table, create(partitioned_table(properties=auto(num_precreate="5"))))
    assert names(harness) == ["20231114", "20231115"]
    harness.call(admin.create_table, create(partitioned_table(properties=auto()), "other"))
    harness.clock.now_ms += DAY_MS
    harness.run(harness.catalog.auto_partitioner.run())
    assert len(harness.catalog.table(TablePath("fluss", "other")).partitions) == 2
    # The next room is used as soon as retention makes some.
    harness.clock.now_ms += 20 * DAY_MS
    harness.run(harness.catalog.auto_partitioner.run())
    assert names(harness) == ["20231205", "20231206"]


def test_a_failing_replication_factor_does_not_fail_the_table(harness: Harness) -> None:
    table = partitioned_table(properties={**auto(), "table.replication.factor": "3"})
    harness.call(admin.create_table, create(table))
    assert names(harness) == []


def test_the_timer_runs_at_start_and_again(harness: Harness, tmp_path: Path) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties=auto(num_retention="0"))))
    harness.close()
    clock = FakeClock(NOW_MS + DAY_MS)

    async def live() -> None:
        async with running_server(tmp_path, clock, **{"auto-partition.check.interval": "20 ms"}) as server:
            partitions = server.catalog.table(TABLE).partitions
            await wait_until(lambda: list(partitions) == ["20231115", "20231116"])
            clock.time_ms += DAY_MS
            await wait_until(lambda: list(partitions) == ["20231116", "20231117"])

    asyncio.run(live())
