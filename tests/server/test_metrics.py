# SPDX-License-Identifier: Apache-2.0
"""What is counted for tables, users and requests, and that the page has it under the names of Apache Fluss."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.client.support import write
from tests.server.log_support import Client, make_batch, running_server
from tests.server.metrics_support import check_page, figures, http
from tests.waiting import wait_until

import fluss.aio as fluss
from fluss.metadata.group_rows import GROUPS_TABLE
from fluss.server.distribution import Distribution
from fluss.server.metrics import ServerMetrics
from fluss.server.metrics_page import MetricsPage
from fluss.server.server import Server

_JAAS = 'org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required user_alice="secret";'
_LISTENERS = {
    "bind_listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "internal_listener_name": "FLUSS",
    "security_protocol_map": "CLIENT:sasl",
    "security_sasl_plain_jaas_config": _JAAS,
}
_ROWS = pa.schema([("id", pa.int32()), ("region", pa.string()), ("name", pa.string())])


async def client_of(server: Server, listener: str = "FLUSS", **options: Any) -> fluss.FlussConnection:
    address = f"127.0.0.1:{server.listeners[listener].port}"
    return await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address, **options}))


async def make_table(conn: fluss.FlussConnection, name: str, primary_keys: list[str] | None = None) -> fluss.FlussTable:
    path = fluss.TablePath("fluss", name)
    bucket_keys = {"bucket_keys": primary_keys[:1]} if primary_keys else {}
    descriptor = fluss.TableDescriptor(fluss.Schema(_ROWS, primary_keys=primary_keys), bucket_count=1, **bucket_keys)
    await conn.get_admin().create_table(path, descriptor)
    return await conn.get_table(path)


async def make_keyed_row(conn: fluss.FlussConnection) -> None:
    """Make a primary-key table with one row."""
    keyed = await make_table(conn, "keyed", ["region", "id"])
    async with keyed.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "region": "a", "name": "x"})


def of_table(name: str, table: str) -> str:
    return f'{name}{{database="fluss",table="{table}"}}'


async def test_requests_and_records_are_counted_by_table(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, await client_of(server) as conn:
        log, keyed = await make_table(conn, "log"), await make_table(conn, "keyed", ["region", "id"])
        await write(log, [{"id": number, "region": "a", "name": "x"} for number in range(5)])
        scanner = await log.new_scan().create_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        assert len(await scanner.poll(5000)) == 5
        await write(keyed, [{"id": number, "region": "a", "name": "x"} for number in range(3)])
        assert await keyed.new_lookup().create_lookuper().lookup({"region": "a", "id": 1})
        prefixes = keyed.new_lookup().lookup_by(["region"]).create_lookuper()
        assert len(await prefixes.lookup({"region": "a"})) == 3
        bucket = fluss.TableBucket(keyed.get_table_info().table_id, 0)
        await keyed.new_scan().limit(2).create_bucket_batch_scanner(bucket).to_arrow()
        text = server.metrics.text()
        check_page(text)
        found = figures(text)
        scope = "tabletserver_table_"
        assert found[of_table(f"{scope}messagesIn_total", "log")] == 5
        assert found[of_table(f"{scope}messagesIn_total", "keyed")] == 3
        assert found["tabletserver_messagesIn_total"] == 8
        assert found[of_table(f"{scope}totalProduceLogRequests_total", "log")] >= 1
        assert found[of_table(f"{scope}totalFetchLogRequests_total", "log")] >= 1
        assert found[of_table(f"{scope}totalPutKvRequests_total", "keyed")] >= 1
        assert found[of_table(f"{scope}totalLookupRequests_total", "keyed")] == 1
        assert found[of_table(f"{scope}totalPrefixLookupRequests_total", "keyed")] == 1
        assert found[of_table(f"{scope}totalLimitScanRequests_total", "keyed")] == 1
        assert not [name for name in found if name.startswith(f"{scope}failed")]
        assert of_table(f"{scope}totalPutKvRequests_total", "log") not in found
        assert found['tabletserver_request_requests_total{request="fetchLogClient"}'] >= 1
        assert found['tabletserver_request_requestBytes_count{request="putKv"}'] >= 1
        assert found['tabletserver_request_requests_total{request="metadata"}'] >= 1
        kv_size = found['tabletserver_table_bucket_logicalStorage_kvSize{database="fluss",table="keyed",bucket="0"}']
        assert kv_size == found["tabletserver_logicalStorage_kvSize"] > 0
        assert found["tabletserver_physicalStorage_localSize"] >= found["tabletserver_logicalStorage_logSize"] > 0
        assert found["tabletserver_logFlushLatencyMs_count"] >= 1


async def test_refused_buckets_are_counted_as_failures(server: Server, client: Client, table: int) -> None:
    await client.produce(table, b"\0" * 200)
    await client.produce(table, make_batch(0))
    found = figures(server.metrics.text())
    assert found[of_table("tabletserver_table_totalProduceLogRequests_total", "t")] == 2
    assert found[of_table("tabletserver_table_failedProduceLogRequests_total", "t")] == 1
    assert found[of_table("tabletserver_table_messagesIn_total", "t")] == 3


async def test_bytes_are_counted_by_user_until_the_table_is_dropped(tmp_path: Path) -> None:
    login = {
        "client.security.protocol": "sasl",
        "client.security.sasl.username": "alice",
        "client.security.sasl.password": "secret",
    }
    async with (
        running_server(tmp_path, **_LISTENERS) as server,
        await client_of(server) as plain,
        await client_of(server, "CLIENT", **login) as conn,
    ):
        table = await make_table(plain, "t")
        for one in (table, await conn.get_table(fluss.TablePath("fluss", "t"))):
            writer = one.new_append().create_writer()
            writer.append({"id": 1, "region": "a", "name": "x"})
            await writer.flush()
        found = figures(server.metrics.text())
        alice = '{user="alice",database="fluss",table="t"}'
        assert found[f"tabletserver_user_bytesIn{alice}"] * 2 == found["tabletserver_bytesIn_total"]
        await plain.get_admin().drop_table(fluss.TablePath("fluss", "t"))
        assert not [name for name in figures(server.metrics.text()) if 'table="t"' in name]


async def test_the_lag_of_groups_is_shown(tmp_path: Path) -> None:
    async with running_server(tmp_path, metrics_prometheus_port="0") as server:
        address = f"127.0.0.1:{server.listeners['FLUSS'].port}"
        async with await fluss.connect(address) as db:
            orders = await db.create_table("orders", {"id": "int"}, buckets=2, bucket_key="id")
            await orders.append([{"id": number} for number in range(10)])
            async with orders.follow(group='say "hi"', timeout=10, commit=False) as changes:
                for _ in range(4):
                    await anext(changes)
                await changes.commit()
                _, body = await http(server.metrics_page.port, "GET /metrics HTTP/1.1\r\n\r\n")
            check_page(body)
            found = figures(body)
            lags = [value for name, value in found.items() if name.startswith("coordinator_group_bucket_lag")]
            assert len(lags) == 2
            assert sum(lags) == 6
            of_group = 'coordinator_group_lag{group="say \\"hi\\"",database="fluss",table="orders"}'
            assert found[of_group] == 6
            other = asyncio.ensure_future(server.metrics.before_page[0]())
            await asyncio.sleep(0)
            assert figures(server.metrics.text())[of_group] == 6, "while another page is made"
            await other


async def test_a_broken_table_of_groups_leaves_other_figures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_server(tmp_path, metrics_prometheus_port="0") as server:
        async with await fluss.connect(f"127.0.0.1:{server.listeners['FLUSS'].port}") as db:
            await db.create_database(GROUPS_TABLE.database_name)
            table = await db.create_table(str(GROUPS_TABLE), {"id": "int"}, primary_key="id")
            await table.upsert([{"id": 1}])
        for _ in range(2):
            _, body = await http(server.metrics_page.port, "GET /metrics HTTP/1.1\r\n\r\n")
            assert "tabletserver_leaderCount" in body
        assert sum("lag of groups" in record.getMessage() for record in caplog.records) == 1
        server.metrics.gauge("tabletserver_leaderCount", lambda: 1 // 0)
        head, _ = await http(server.metrics_page.port, "GET /metrics HTTP/1.1\r\n\r\n")
        assert " 500 " in head


async def test_waiting_fetches_are_shown(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, await client_of(server) as conn:
        table = await make_table(conn, "t")
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        await scanner.poll(10)
        await wait_until(lambda: figures(server.metrics.text())["tabletserver_delayedFetchCount"] == 1)


async def test_snapshots_and_leases_are_shown(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, await client_of(server) as conn:
        await make_keyed_row(conn)
        await server.kv.snapshotter.run_round(2)
        [known] = server.kv.snapshotter.known
        await server.kv.snapshotter.acquire("lease", 60_000, {known.bucket: known.snapshots[0].snapshot_id})
        text = server.metrics.text()
        check_page(text)
        found = figures(text)
        bucket = '{database="fluss",table="keyed",bucket="0"}'
        assert found[f"coordinator_table_bucket_numKvSnapshots{bucket}"] == 1
        size = found[f"coordinator_table_bucket_allKvSnapshotSize{bucket}"]
        assert size == found["coordinator_physicalStorage_remoteKvSize"] > 0
        assert found["coordinator_kvSnapshotLeaseCount"] == found["coordinator_leasedKvSnapshotCount"] == 1


async def test_rocksdb_is_shown_when_rows_are_on_disk(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, await client_of(server) as conn:
        await make_keyed_row(conn)
        [tablet] = server.kv.open_tablets
        tablet.store.budget.spill(tablet.store)
        await tablet.store.budget.spilled(tablet.store)
        found = figures(server.metrics.text())
        assert found["tabletserver_kvFlush_total"] == found["tabletserver_kvFlushLatencyMs_count"] == 1
        assert found[of_table("tabletserver_table_rocksdbNumFilesAtLevel0Max", "keyed")] == 1
        assert found[of_table("tabletserver_table_rocksdbTableReadersMemoryUsageTotal", "keyed")] > 0
        assert found["tabletserver_rocksdbMemoryUsageTotal"] > 0
        assert found["tabletserver_logicalStorage_kvSize"] > 0


async def test_a_long_page_lets_requests_pass() -> None:
    metrics, order = ServerMetrics(), list[str]()

    def slow() -> float:
        time.sleep(0.01)
        order.append("figure")
        return 0

    async def others() -> None:
        while order.count("figure") < 3:
            order.append("request")
            await asyncio.sleep(0)

    for name in ("a", "b", "c"):
        metrics.gauge(name, slow)
    page = MetricsPage(metrics, "127.0.0.1", 0, list)
    await page.start()
    running = asyncio.ensure_future(others())
    _, body = await http(page.port, "GET /metrics HTTP/1.1\r\n\r\n")
    await running
    await page.stop()
    assert all(f"fluss_{name} 0" in body for name in "abc")
    first, last = order.index("figure"), len(order) - 1 - order[::-1].index("figure")
    assert order[first:last].count("request") >= 2


def test_bounds_of_a_distribution_double_and_counts_add_up() -> None:
    sizes = Distribution.of_sizes()
    for size in (1, 63, 64, 1000):
        sizes.add_bytes(size)
    assert list(sizes.cumulative()) == [(64, 2), (128, 3), (256, 3), (512, 3), (1024, 4)]
    assert (sizes.count, sizes.total) == (4, 1128)
    latencies = Distribution.of_latencies()
    latencies.add_seconds(0.003)
    bound, below = list(latencies.cumulative())[-1]
    assert (bound, below) == (pytest.approx(4.096), 1)
    assert latencies.total == pytest.approx(3)
