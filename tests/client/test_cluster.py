# SPDX-License-Identifier: Apache-2.0
"""The view of the cluster: bootstrap, connections, caching, reconnecting."""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa
import pytest
from tests.ports import free_port, silent_address
from tests.waiting import at_most

from fluss import errors
from fluss.client.admin import FlussAdmin
from fluss.client.cluster import Cluster
from fluss.client.metrics import Metrics
from fluss.client.nodes import NodePool
from fluss.client.runner import Direct
from fluss.config import Config
from fluss.metadata import Schema, ServerNode, TableBucket, TableDescriptor, TablePath
from fluss.net.connection import Connection
from fluss.net.deadline import Deadline
from fluss.server.local import LocalServer


async def make_table(cluster: Cluster, database: str, name: str = "t", **options) -> TablePath:
    admin = FlussAdmin(Direct(cluster))
    path = TablePath(database, name)
    await admin.create_database(database, ignore_if_exists=True)
    schema = Schema(pa.schema([("id", pa.int32()), ("p", pa.string())]))
    await admin.create_table(path, TableDescriptor(schema, **options))
    return path


async def test_bootstrap_servers_are_tried_in_turn(config):
    config.bootstrap_servers = f"127.0.0.1:{free_port()},{config.bootstrap_servers}"

    cluster = await Cluster.connect(config)
    assert cluster.metadata.server_nodes()
    await cluster.close()


async def test_no_server_gives_an_error_that_names_the_addresses():
    port = free_port()

    with at_most(5):
        with pytest.raises(errors.NetworkError, match=f"127.0.0.1:{port}") as caught:
            await Cluster.connect(Config({"bootstrap.servers": f"127.0.0.1:{port}"}))
        assert caught.value.error_code == 1
        assert caught.value.is_retriable


async def test_a_deadline_that_is_over_before_the_first_server_is_asked():
    with pytest.raises(errors.DeadlineExceededError, match=r"127\.0\.0\.1:1.*timeout="):
        await Cluster.connect(Config({"bootstrap.servers": "127.0.0.1:1"}), timeout=1e-9)


async def test_a_silent_server_ends_the_wait_at_the_connect_timeout():
    with silent_address() as address, at_most(10), pytest.raises(errors.FlussError):
        await Cluster.connect(Config({"bootstrap.servers": address, "connect-timeout": 200}))


async def test_options_that_contradict_each_other_are_refused_before_connecting():
    with pytest.raises(errors.ConfigError, match=r"security\.sasl\.username"):
        await Cluster.connect(Config({"security.protocol": "sasl"}))


async def test_one_connection_per_node(cluster):
    tablets = await asyncio.gather(*(cluster.any_tablet(cluster.deadline()) for _ in range(10)))
    coordinators = await asyncio.gather(*(cluster.coordinator(cluster.deadline()) for _ in range(10)))
    assert len(set(map(id, tablets))) == 1
    assert len(set(map(id, coordinators))) == 1
    assert cluster.metrics.snapshot()["connections_opened_total"] == 3  # bootstrap, coordinator, tablet server
    assert cluster.metrics.snapshot()["connections_open"] == 2
    await cluster.close()
    assert cluster.metrics.snapshot()["connections_open"] == 0


async def test_table_metadata_is_cached_and_asked_for_once(cluster, database):
    path = await make_table(cluster, database, bucket_count=3)
    before = cluster.metrics.snapshot()["metadata_refreshes_total"]
    states = await asyncio.gather(*(cluster.table(path) for _ in range(20)))
    assert cluster.metrics.snapshot()["metadata_refreshes_total"] == before + 1
    state = states[0]
    assert state.num_buckets == 3
    assert await cluster.table(path) is state
    assert cluster.metrics.snapshot()["metadata_refreshes_total"] == before + 1
    bucket = state.bucket(2)
    assert cluster.metadata.leaders.get(bucket) == await cluster.leader_id(bucket, path)
    connection = await cluster.leader(bucket, path)
    assert not connection.closed
    cluster.metadata.invalidate_bucket(bucket)
    assert cluster.metadata.leaders.get(bucket) is None
    assert await cluster.leader(bucket, path) is connection
    assert cluster.metrics.snapshot()["metadata_refreshes_total"] == before + 2
    cluster.metadata.invalidate_table(path)
    await cluster.table(path)
    assert cluster.metrics.snapshot()["metadata_refreshes_total"] == before + 3


async def test_missing_things(cluster, database):
    path = await make_table(cluster, database, partition_keys=["p"])
    with pytest.raises(errors.TableNotExistError):
        await cluster.table(TablePath(database, "nope"))
    assert await cluster.partition(path, "nope") is None
    assert await cluster.partition_by_id(path, 10**9) is None
    state = await cluster.table(path)
    with pytest.raises(errors.LeaderNotAvailableError, match="No leader found"):
        await cluster.leader_id(TableBucket.with_partition(state.table_id, 10**9, 0), path)
    with pytest.raises(errors.TableNotExistError, match="created again"):
        await cluster.leader_id(TableBucket(state.table_id + 10**6, 0), path)
    with pytest.raises(errors.LeaderNotAvailableError, match="not in the cluster"):
        await cluster.node(10**6)


async def test_a_change_is_seen_by_those_who_ask_after_it(cluster, database, monkeypatch):
    """Also while an answer from before the change is still to come: it is neither shared nor kept."""
    admin, path = FlussAdmin(Direct(cluster)), TablePath(database, "late")
    await admin.create_database(database, ignore_if_exists=True)
    real = cluster.call
    late: list[tuple[asyncio.Event, asyncio.Event]] = []

    async def slow(connection, api, *arguments):
        answer = asyncio.ensure_future(real(connection, api, *arguments))
        await asyncio.wait([answer])
        if api.name == "GET_METADATA" and late:
            came, may_arrive = late.pop()
            came.set()
            await may_arrive.wait()
        return await answer

    monkeypatch.setattr(cluster, "call", slow)

    async def changed_meanwhile(change):
        came, may_arrive = asyncio.Event(), asyncio.Event()
        late.append((came, may_arrive))
        before = asyncio.ensure_future(cluster.table(path, refresh=True))
        await came.wait()
        await change
        now = await asyncio.wait_for(cluster.table(path, refresh=True), 10)
        may_arrive.set()
        return now, await before, await cluster.table(path)

    descriptor = TableDescriptor(Schema(pa.schema([("id", pa.int64())])))
    now, before, cached = await changed_meanwhile(admin.create_table(path, descriptor))
    assert now.table_id == before.table_id == cached.table_id
    found = await changed_meanwhile(admin.alter_table(path, add_columns={"more": pa.int32()}))
    assert [list(state.schema.column_names) for state in found] == [["id", "more"]] * 3


async def test_partitions_by_name_and_id(config, cluster, database):
    path = await make_table(cluster, database, partition_keys=["p"], bucket_count=2)
    admin = FlussAdmin(Direct(cluster))
    assert await cluster.partition(path, "eu") is None
    await admin.create_partition(path, {"p": "eu"})
    partition = await cluster.partition(path, "eu")
    assert partition.partition_name == "eu"
    assert await cluster.partition_by_id(path, partition.partition_id) is partition
    assert await cluster.leader_id(partition.bucket(1), path) == cluster.metadata.leaders.get(partition.bucket(1))
    other = await Cluster.connect(config)
    by_id = await other.partition_by_id(path, partition.partition_id)
    assert by_id.partition_name == "eu"
    await other.close()
    await admin.drop_partition(path, {"p": "eu"})
    assert await cluster.partition(path, "eu", refresh=True) is None


@pytest.mark.parametrize("times", [1, 4])
async def test_a_table_that_is_forgotten_while_its_partition_is_asked_for(cluster, database, monkeypatch, times):
    """A schema change, for instance, makes the client evict a table. Its partitions are there nevertheless."""
    path = await make_table(cluster, database, partition_keys=["p"])
    await FlussAdmin(Direct(cluster)).create_partition(path, {"p": "eu"})
    learn, left = cluster._learn, times

    def forget_first(response, partitions_of=None):
        nonlocal left
        if partitions_of is not None and left:
            left -= 1
            cluster.metadata.invalidate_table(partitions_of)
        learn(response, partitions_of)

    monkeypatch.setattr(cluster, "_learn", forget_first)
    partition = await cluster.partition(path, "eu")
    assert partition is not None
    assert partition.partition_name == "eu"


async def test_schema_versions(cluster, database):
    path = await make_table(cluster, database)
    await FlussAdmin(Direct(cluster)).alter_table(path, add_columns={"new": pa.int32()})
    state = await cluster.table(path, refresh=True)
    first = await cluster.schema(path, state.schema_id - 1)
    assert first.get_column_names() == ["id", "p"]
    assert await cluster.schema(path, state.schema_id - 1) is first, "kept"
    assert (await cluster.schema(path, state.schema_id)).get_column_names() == ["id", "p", "new"]


async def test_a_restarted_server_is_found_again(tmp_path, database):
    port = free_port()
    config = Config({"bootstrap.servers": f"127.0.0.1:{port}", "connect-timeout": 2000})

    first = LocalServer(tmp_path, port=port)
    await asyncio.to_thread(first.start)
    cluster = await Cluster.connect(config)
    try:
        path = await make_table(cluster, database)
        await cluster.table(path)
    finally:
        await asyncio.to_thread(first.stop)
    second = LocalServer(tmp_path, port=port)
    starting = asyncio.ensure_future(asyncio.to_thread(second.start))
    try:
        # Asked while the server is away: the call waits, with pauses, until it is back.
        assert await FlussAdmin(Direct(cluster)).table_exists(path)
        assert (await cluster.table(path, refresh=True)).table_path == path
    finally:
        await starting
        await cluster.close()
        await asyncio.to_thread(second.stop)


async def test_closing_ends_what_is_in_flight(cluster):
    await cluster.close()
    await cluster.close()
    with pytest.raises(errors.ConnectionClosedError):
        await cluster.coordinator(cluster.deadline())
    with pytest.raises(errors.ConnectionClosedError):
        await cluster.table(TablePath("a", "b"))


async def test_a_cancelled_call_leaves_nothing_behind(cluster):
    for delay in (0, 0.0001, 0.0005, 0.001):
        call = asyncio.ensure_future(FlussAdmin(Direct(cluster)).list_databases())
        await asyncio.sleep(delay)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # unless the answer was quicker
            await call
    assert "fluss" in await FlussAdmin(Direct(cluster)).list_databases()


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "left"])
async def test_a_connection_to_a_server_that_moves_or_leaves_while_it_is_opened(config, moved):
    [(host, port)] = config.bootstrap_addresses
    answers, opened = asyncio.Event(), []

    async def open_connection(at_host, at_port, role, deadline):
        if at_port != port:
            await answers.wait()
        opened.append(await Connection.open(host, port))
        return opened[-1]

    old, new = (ServerNode(1, host, at, "TabletServer") for at in (1, port))
    pool = NodePool(open_connection, Metrics())
    pool.update([old])
    opening = asyncio.ensure_future(pool.connection(old, Deadline(5000)))
    await asyncio.sleep(0.01)
    pool.update([new] if moved else [])
    if moved:
        found = await asyncio.wait_for(pool.connection(new, Deadline(5000)), 2)
        assert pool.ready(new) is found
    answers.set()
    with pytest.raises(errors.NetworkError, match="moved" if moved else "left"):
        await opening
    assert opened[-1].closed
    assert pool.open_count() == moved
    await pool.close()
