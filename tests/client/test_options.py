# SPDX-License-Identifier: Apache-2.0
"""Client options of lookups, scans and metrics do what they say."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from tests.client.support import open_table, write

import fluss
from fluss.client.metrics import PrometheusCollector
from fluss.records.log_batch import LogBatch

FIELDS = [("id", pa.int64()), ("name", pa.string())]


async def fill(table: fluss.aio.FlussTable, count: int) -> None:
    await write(table, [(i, f"n{i}") for i in range(count)])


@pytest.mark.parametrize(("limit", "requests"), [(None, 1), (3, 4)])
async def test_the_keys_of_a_request_are_limited(config, database, limit, requests):
    if limit is not None:
        config.set("client.lookup.max-batch-size", limit)
    async with open_table(config, database, FIELDS, keys=["id"]) as (conn, table):
        await fill(table, 10)
        before = conn.metrics()["requests_total"]
        found = await table.new_lookup().create_lookuper().lookup_many([(i,) for i in range(10)])
        assert found.num_rows == 10
        assert conn.metrics()["requests_total"] - before == requests


async def test_single_lookups_travel_in_batches_of_the_allowed_size(config, database):
    config.set("lookup.max-batch-size", 2)
    config.set("lookup.max-inflight-requests", 1)
    async with open_table(config, database, FIELDS, keys=["id"]) as (conn, table):
        await fill(table, 9)
        lookuper = table.new_lookup().create_lookuper()
        await lookuper.lookup((0,))
        before = conn.metrics()["lookup_batches_total"]
        rows = await asyncio.gather(*(lookuper.lookup((i,)) for i in range(9)))
        assert [row["name"] for row in rows] == [f"n{i}" for i in range(9)]
        assert conn.metrics()["lookup_batches_total"] - before >= 5


async def test_more_waiting_lookups_than_allowed_are_refused(config, database):
    config.set("lookup.queue-size", 1)
    async with open_table(config, database, FIELDS, keys=["id"]) as (_, table):
        await fill(table, 5)
        lookuper = table.new_lookup().create_lookuper()
        found = await asyncio.gather(*(lookuper.lookup((i,)) for i in range(5)), return_exceptions=True)
        refused = [result for result in found if isinstance(result, fluss.DeadlineExceededError)]
        assert 0 < len(refused) < 5
        assert "More than 1 lookups are waiting" in str(refused[0])


@pytest.mark.parametrize("check", [True, False])
async def test_checksums_are_checked_unless_switched_off(config, database, monkeypatch, check):
    config.set("client.scanner.log.check-crc", str(check))
    checked = []
    verify = LogBatch.verify_crc
    monkeypatch.setattr(LogBatch, "verify_crc", lambda batch: checked.append(verify(batch)))

    async with open_table(config, database, FIELDS) as (_, table):
        await write(table, [(1, "a")])
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        assert (await scanner.poll(5000)).count() == 1
        await scanner.close()
    assert bool(checked) == check


async def test_metrics_can_be_switched_off(config, database):
    config.set("client.metrics.enabled", "false")
    async with open_table(config, database, FIELDS, keys=["id"]) as (conn, table):
        await fill(table, 3)
        assert set(conn.metrics().values()) == {0}


async def test_the_id_of_a_client_is_a_label_of_its_metrics(config, database):
    core = pytest.importorskip("prometheus_client.core")
    config.client_id = "loader-7"
    async with open_table(config, database, FIELDS) as (conn, _):
        collector = PrometheusCollector(conn, registry=core.CollectorRegistry(), labels={"env": "test"})
        labels = [sample.labels for family in collector.collect() for sample in family.samples]
    assert labels[0] == {"client_id": "loader-7", "env": "test"}
