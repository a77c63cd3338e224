# SPDX-License-Identifier: Apache-2.0
"""One deadline per call: every public call ends in time, whatever the server does, and says why."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.faults.proxy import Answer, Fault, FaultProxy, ProxiedServer, Refusal
from tests.ports import free_port, silent_address
from tests.waiting import at_most

import fluss
import fluss.aio
from fluss.errors import ErrorCode
from fluss.metadata.acl import AclBinding, AclFilter, OperationType, ResourceType

TIMEOUT_S = 0.3
SLACK_S = 1.0
"""Other processes of a busy machine, and the grace that lets the more specific error come first."""

PATH, KEYED = fluss.TablePath("deadlines", "log"), fluss.TablePath("deadlines", "keyed")
FIELDS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def proxied() -> Iterator[FaultProxy]:
    with FaultProxy() as proxy, ProxiedServer(proxy):

        async def prepare() -> None:
            config = fluss.Config({"bootstrap.servers": proxy.address})
            async with await fluss.aio.FlussConnection.create(config) as conn:
                admin = conn.get_admin()
                await admin.create_database("deadlines")
                await admin.create_table(PATH, fluss.TableDescriptor(fluss.Schema(FIELDS), bucket_count=1))
                keyed = fluss.Schema(FIELDS, primary_keys=["id"])
                await admin.create_table(KEYED, fluss.TableDescriptor(keyed, bucket_count=1))
                async with (await conn.get_table(PATH)).new_append().create_writer() as writer:
                    writer.append((1, "a"))
                async with (await conn.get_table(KEYED)).new_upsert().create_writer() as writer:
                    writer.upsert((1, "a"))

        asyncio.run(prepare())
        yield proxy


@pytest.fixture
def proxy(proxied: FaultProxy) -> Iterator[FaultProxy]:
    yield proxied
    proxied.calm()


class World:
    """A connection that worked, and everything a call may need of it."""

    def __init__(self, conn: Any, log: Any, keyed: Any) -> None:
        self.conn, self.log, self.keyed = conn, log, keyed
        self.admin = conn.get_admin()
        self.lookuper = keyed.new_lookup().create_lookuper()
        self.log_bucket = fluss.TableBucket(log.get_table_info().table_id, 0)
        self.keyed_bucket = fluss.TableBucket(keyed.get_table_info().table_id, 0)


ANSWERS: dict[str, Any] = {
    "closing": Fault.CUT,
    "retriable": Refusal(ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION, "not yet"),
    "garbage": Answer(b"\xff" * 7),
}


def fail_with(proxy: FaultProxy, fault: str) -> None:
    if fault == "dead":
        proxy.refuse = True
        proxy.cut()
    elif fault == "silent":
        proxy.stall()
    else:
        proxy.on_request = lambda api_key, body: ANSWERS[fault]


async def scanner(world: World) -> Any:
    found = await world.log.new_scan().create_record_batch_log_scanner()
    found.subscribe(0, fluss.EARLIEST_OFFSET)
    return found


async def read(world: World, method: str, timeout: float | None) -> None:
    async with await scanner(world) as found:
        await getattr(found, method)(timeout=timeout)


async def read_batches(world: World, timeout: float | None) -> None:
    async for _ in world.log.new_scan().read_batches({world.log_bucket: 0}, timeout=timeout):
        pass


async def batch_reader(world: World, timeout: float | None) -> None:
    async with await scanner(world) as found:
        await asyncio.to_thread(found.to_arrow_batch_reader(timeout=timeout).read_all)


async def latest(world: World, timeout: float | None) -> None:
    async with await world.log.new_scan().create_log_scanner() as found:
        found.subscribe(0, fluss.LATEST_OFFSET, timeout=timeout)
        await found.resolved()


async def flush(world: World, timeout: float | None) -> None:
    writer = world.log.new_append().create_writer()
    writer.append((2, "b"))
    await writer.flush(timeout=timeout)


async def flush_connection(world: World, timeout: float | None) -> None:
    world.keyed.new_upsert().create_writer().upsert((2, "b"))
    await world.conn.flush(timeout=timeout)


async def wait(world: World, timeout: float | None) -> None:
    await world.keyed.new_upsert().create_writer().upsert((2, "b")).wait(timeout=timeout)


BUCKET = fluss.TableBucket(1, 0)
ACL = AclBinding(ResourceType.TABLE, "deadlines.log", "alice", OperationType.READ)
DESCRIPTOR = fluss.TableDescriptor(fluss.Schema(FIELDS))

CALLS: dict[str, Callable[[World, float | None], Any]] = {
    "get_table": lambda w, t: w.conn.get_table(PATH, timeout=t),
    "lookup": lambda w, t: w.lookuper.lookup([1], timeout=t),
    "lookup of the builder": lambda w, t: w.keyed.new_lookup().lookup([1], timeout=t),
    "lookup_many": lambda w, t: w.lookuper.lookup_many([[1], [2]], timeout=t),
    "flush": flush,
    "connection.flush": flush_connection,
    "handle.wait": wait,
    "to_arrow": lambda w, t: read(w, "to_arrow", t),
    "to_pandas": lambda w, t: read(w, "to_pandas", t),
    "to_polars": lambda w, t: read(w, "to_polars", t),
    "to_arrow_batch_reader": batch_reader,
    "read_batches": read_batches,
    "subscribe to the latest offset": latest,
    "limit scan": lambda w, t: w.log.new_scan().limit(3).create_bucket_batch_scanner(w.log_bucket).to_arrow(timeout=t),
    "KV scan": lambda w, t: w.keyed.new_scan().create_bucket_batch_scanner(w.keyed_bucket).to_arrow(timeout=t),
    "next_batch": lambda w, t: w.keyed.new_scan().create_bucket_batch_scanner(w.keyed_bucket).next_batch(timeout=t),
    "create_database": lambda w, t: w.admin.create_database("d", ignore_if_exists=True, timeout=t),
    "drop_database": lambda w, t: w.admin.drop_database("none", ignore_if_not_exists=True, timeout=t),
    "alter_database": lambda w, t: w.admin.alter_database("deadlines", comment="c", timeout=t),
    "list_databases": lambda w, t: w.admin.list_databases(timeout=t),
    "list_database_summaries": lambda w, t: w.admin.list_database_summaries(timeout=t),
    "database_exists": lambda w, t: w.admin.database_exists("deadlines", timeout=t),
    "get_database_info": lambda w, t: w.admin.get_database_info("deadlines", timeout=t),
    "create_table": lambda w, t: w.admin.create_table(PATH, DESCRIPTOR, ignore_if_exists=True, timeout=t),
    "drop_table": lambda w, t: w.admin.drop_table("deadlines.none", ignore_if_not_exists=True, timeout=t),
    "alter_table": lambda w, t: w.admin.alter_table(PATH, set_properties={"a": "b"}, timeout=t),
    "get_table_info": lambda w, t: w.admin.get_table_info(PATH, timeout=t),
    "admin.get_table": lambda w, t: w.admin.get_table(PATH, timeout=t),
    "get_table_schema": lambda w, t: w.admin.get_table_schema(PATH, timeout=t),
    "list_tables": lambda w, t: w.admin.list_tables("deadlines", timeout=t),
    "table_exists": lambda w, t: w.admin.table_exists(PATH, timeout=t),
    "create_partition": lambda w, t: w.admin.create_partition(PATH, {"p": "1"}, ignore_if_exists=True, timeout=t),
    "drop_partition": lambda w, t: w.admin.drop_partition(PATH, {"p": "1"}, ignore_if_not_exists=True, timeout=t),
    "list_partition_infos": lambda w, t: w.admin.list_partition_infos(PATH, timeout=t),
    "list_partition_infos_with_spec": lambda w, t: w.admin.list_partition_infos_with_spec(PATH, None, timeout=t),
    "list_offsets": lambda w, t: w.admin.list_offsets(PATH, [0], fluss.OffsetSpec.latest(), timeout=t),
    "list_partition_offsets": lambda w, t: w.admin.list_partition_offsets(
        fluss.TablePath("deadlines", "other"), "p", [0], fluss.OffsetSpec.latest(), timeout=t
    ),
    "get_table_stats": lambda w, t: w.admin.get_table_stats(PATH, timeout=t),
    "get_server_nodes": lambda w, t: w.admin.get_server_nodes(timeout=t),
    "create_acls": lambda w, t: w.admin.create_acls([ACL], timeout=t),
    "list_acls": lambda w, t: w.admin.list_acls(timeout=t),
    "drop_acls": lambda w, t: w.admin.drop_acls([AclFilter()], timeout=t),
    "describe_cluster_configs": lambda w, t: w.admin.describe_cluster_configs(timeout=t),
    "alter_cluster_configs": lambda w, t: w.admin.alter_cluster_configs({"a": "b"}, timeout=t),
    "get_cluster_health": lambda w, t: w.admin.get_cluster_health(timeout=t),
    "get_latest_lake_snapshot": lambda w, t: w.admin.get_latest_lake_snapshot(PATH, timeout=t),
    "get_lake_snapshot": lambda w, t: w.admin.get_lake_snapshot(PATH, 1, timeout=t),
    "get_readable_lake_snapshot": lambda w, t: w.admin.get_readable_lake_snapshot(PATH, timeout=t),
    "lake_tiering_heartbeat": lambda w, t: w.admin.lake_tiering_heartbeat(timeout=t),
    "prepare_lake_table_snapshot": lambda w, t: w.admin.prepare_lake_table_snapshot(PATH, 1, {BUCKET: 1}, timeout=t),
    "commit_lake_table_snapshot": lambda w, t: w.admin.commit_lake_table_snapshot(1, 1, "p", timeout=t),
    "get_latest_kv_snapshots": lambda w, t: w.admin.get_latest_kv_snapshots(KEYED, timeout=t),
    "list_kv_snapshots": lambda w, t: w.admin.list_kv_snapshots(KEYED, timeout=t),
    "get_kv_snapshot_metadata": lambda w, t: w.admin.get_kv_snapshot_metadata(BUCKET, 1, timeout=t),
    "acquire_kv_snapshot_lease": lambda w, t: w.admin.acquire_kv_snapshot_lease("l", 1, {BUCKET: 1}, timeout=t),
    "release_kv_snapshot_lease": lambda w, t: w.admin.release_kv_snapshot_lease("l", [BUCKET], timeout=t),
    "drop_kv_snapshot_lease": lambda w, t: w.admin.drop_kv_snapshot_lease("l", timeout=t),
    "list_remote_log_manifests": lambda w, t: w.admin.list_remote_log_manifests(PATH, timeout=t),
    "get_file_system_security_token": lambda w, t: w.admin.get_file_system_security_token(timeout=t),
    "register_producer_offsets": lambda w, t: w.admin.register_producer_offsets("p", {BUCKET: 1}, timeout=t),
    "get_producer_offsets": lambda w, t: w.admin.get_producer_offsets("p", timeout=t),
    "delete_producer_offsets": lambda w, t: w.admin.delete_producer_offsets("p", timeout=t),
    "add_server_tag": lambda w, t: w.admin.add_server_tag([0], "TEMPORARY_OFFLINE", timeout=t),
    "remove_server_tag": lambda w, t: w.admin.remove_server_tag([0], "TEMPORARY_OFFLINE", timeout=t),
    "add_server_tag_by_rack": lambda w, t: w.admin.add_server_tag_by_rack(["r"], "TEMPORARY_OFFLINE", timeout=t),
    "remove_server_tag_by_rack": lambda w, t: w.admin.remove_server_tag_by_rack(["r"], "TEMPORARY_OFFLINE", timeout=t),
    "rebalance": lambda w, t: w.admin.rebalance(["REPLICA_DISTRIBUTION"], timeout=t),
    "list_rebalance_progress": lambda w, t: w.admin.list_rebalance_progress(timeout=t),
    "cancel_rebalance": lambda w, t: w.admin.cancel_rebalance(timeout=t),
}


def test_the_table_names_every_call_of_the_admin() -> None:
    calls = {name for name in dir(fluss.aio.FlussAdmin) if not name.startswith("_")}
    asking = {name.removeprefix("admin.") for name in CALLS}
    assert calls - asking == {"create_kv_snapshot_lease"}  # names a lease and asks no server


@contextlib.asynccontextmanager
async def connected(proxy: FaultProxy, **options: Any) -> AsyncIterator[World]:
    """A connection that works, and is closed when the proxy works again."""
    conn = await fluss.aio.FlussConnection.create(
        fluss.Config({"bootstrap.servers": proxy.address, "writer.delivery-timeout-ms": 3000, **options})
    )
    world = World(conn, await conn.get_table(PATH), await conn.get_table(KEYED))
    assert await world.lookuper.lookup([1]) == {"id": 1, "name": "a"}
    try:
        yield world
    finally:
        proxy.calm()
        await conn.close()


@pytest.mark.parametrize("fault", ["dead", "silent", *ANSWERS])
def test_every_call_ends_with_its_timeout(proxy: FaultProxy, fault: str) -> None:
    """All calls at once, each measured: what one of them does to the connection must not make another one late."""

    async def timed(world: World, name: str) -> tuple[str, float, BaseException | None]:
        started = time.monotonic()
        try:
            await CALLS[name](world, TIMEOUT_S)
            error: BaseException | None = None
        except Exception as failure:
            error = failure
        return name, time.monotonic() - started, error

    async def main() -> list[tuple[str, float, BaseException | None]]:
        async with connected(proxy) as world:
            fail_with(proxy, fault)
            return await asyncio.gather(*(timed(world, name) for name in CALLS))

    for name, seconds, error in asyncio.run(main()):
        assert seconds < TIMEOUT_S + SLACK_S, f"{name} took {seconds:.2f} s: {error}"
        assert isinstance(error, fluss.FlussError), f"{name}: {error!r}"
        assert len(str(error)) > 30, f"{name} does not say enough: {error}"


@pytest.mark.parametrize("name", ["list_databases", "get_table", "lookup", "lookup_many", "to_arrow", "KV scan"])
async def test_calls_without_a_timeout_take_twice_the_request_timeout(proxy: FaultProxy, name: str) -> None:
    async with connected(proxy, **{"request-timeout": 400}) as world:
        fail_with(proxy, "closing")
        started = time.monotonic()
        with pytest.raises(fluss.FlussError):
            await CALLS[name](world, None)
        assert 0.2 < time.monotonic() - started < 0.8 + SLACK_S


async def test_a_long_retry_warns_with_cause_and_time_left(proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(proxy) as world:
        fail_with(proxy, "retriable")
        caplog.clear()
        with pytest.raises(fluss.LeaderNotAvailableError) as failed:
            await world.admin.table_exists(PATH, timeout=4.0)
    for words in ("TABLE_EXISTS of table 'deadlines.log'", proxy.address, "attempts in 4000 ms: not yet", "timeout="):
        assert words in str(failed.value)
    [first] = [record.getMessage() for record in caplog.records if record.name.startswith("fluss.client")]
    assert "failed: not yet" in first
    assert float(re.findall(r"retrying for up to (.*) s", first)[0]) <= 3.0


@pytest.mark.parametrize("what", ["list_databases", "lookup", "flush", "to_arrow"])
@pytest.mark.parametrize("lasting", [False, True], ids=["passing", "lasting"])
async def test_a_bucket_without_a_leader_is_nothing_to_warn_of_at_first(
    proxy: FaultProxy, caplog: pytest.LogCaptureFixture, what: str, lasting: bool
) -> None:
    """Right after a table was created, and while a bucket moves, that is routine."""
    async with connected(proxy) as world:
        fail_with(proxy, "retriable")
        caplog.clear()
        if lasting:
            with pytest.raises(fluss.FlussError):
                await CALLS[what](world, 4.0)
        else:
            asyncio.get_running_loop().call_later(0.3, proxy.calm)
            await CALLS[what](world, 30)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (1 if lasting else 0), warnings


@pytest.mark.parametrize("what", ["lookup", "flush", "to_arrow"])
async def test_every_operation_warns_of_retries(proxy: FaultProxy, caplog: pytest.LogCaptureFixture, what: str) -> None:
    async with connected(proxy) as world:
        fail_with(proxy, "closing")
        caplog.clear()
        with pytest.raises(fluss.FlussError):
            await CALLS[what](world, 0.5)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("retrying for up to" in warning for warning in warnings), warnings
    assert len(warnings) < 6, "a warning is for the first retry, not for each"


async def test_a_lookup_names_its_table_cause_and_attempts(proxy: FaultProxy) -> None:
    async with connected(proxy) as world:
        fail_with(proxy, "dead")
        with pytest.raises(fluss.NetworkError) as failed:
            await world.lookuper.lookup([1], timeout=2.5)
    for words in ("Lookup in", "table 'deadlines.keyed'", "in 2500 ms", " attempts", proxy.address):
        assert words in str(failed.value)


def create(address: str, timeout: float | None, **options: Any) -> tuple[float, fluss.FlussError]:
    started = time.monotonic()
    config = fluss.Config({"bootstrap.servers": address, **options})
    with pytest.raises(fluss.FlussError) as failed:
        asyncio.run(fluss.FlussConnection.create(config, timeout=timeout))
    return time.monotonic() - started, failed.value


def test_an_address_where_nothing_listens_fails_soon() -> None:
    address = f"127.0.0.1:{free_port()}"
    seconds, error = create(address, None)
    assert seconds < 10
    for words in (address, "bootstrap.servers", "4 attempts"):
        assert words in str(error)


def test_a_name_that_does_not_exist_fails_soon() -> None:
    seconds, error = create("no-such-host.invalid:9123", 2)
    assert seconds < 2 + SLACK_S
    assert "no-such-host.invalid:9123" in str(error)


def test_a_server_that_accepts_and_keeps_silent_is_named() -> None:
    with silent_address() as address:
        seconds, error = create(address, 0.5)
        assert seconds < 0.5 + SLACK_S
        assert f"{address} did not answer its first request" in str(error)
        # The configured connect timeout is the default.
        seconds, error = create(address, None, **{"connect-timeout": 400})
        assert seconds < 0.4 + SLACK_S


async def test_a_silent_address_leaves_time_for_the_next_one(proxy: FaultProxy) -> None:
    with silent_address() as address:
        config = fluss.Config({"bootstrap.servers": f"{address},{proxy.address}"})
        async with await fluss.aio.FlussConnection.create(config, timeout=2) as conn:
            assert "deadlines" in await conn.get_admin().list_databases()


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("nan")])
async def test_a_timeout_that_makes_no_sense_is_refused(proxy: FaultProxy, timeout: Any) -> None:
    async with await fluss.aio.FlussConnection.create(fluss.Config({"bootstrap.servers": proxy.address})) as conn:
        with pytest.raises(fluss.InvalidArgumentError, match="timeout must be a positive number of seconds"):
            await conn.get_table(PATH, timeout=timeout)


async def test_the_blocking_face_has_the_same_timeouts(proxy: FaultProxy) -> None:
    with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": proxy.address})) as conn:
        table = await conn.get_table(PATH, timeout=5)
        keyed = await conn.get_table(KEYED)
        lookuper = keyed.new_lookup().create_lookuper()
        assert await lookuper.lookup([1], timeout=5) == {"id": 1, "name": "a"}
        found = await table.new_scan().create_record_batch_log_scanner()
        found.subscribe(0, fluss.EARLIEST_OFFSET, timeout=5)
        assert found.to_arrow(timeout=5).num_rows >= 1
        bucket = fluss.TableBucket(keyed.get_table_info().table_id, 0)
        fail_with(proxy, "silent")
        calls: list[Callable[[], Any]] = [
            lambda: found.to_arrow(timeout=TIMEOUT_S),
            lambda: found.to_pandas(timeout=TIMEOUT_S),
            lambda: found.to_arrow_batch_reader(timeout=TIMEOUT_S).read_all(),
            lambda: found.subscribe(0, fluss.LATEST_OFFSET, timeout=TIMEOUT_S),
            lambda: keyed.new_scan().create_bucket_batch_scanner(bucket).next_batch(timeout=TIMEOUT_S),
            lambda: list(table.new_scan().read_batches({bucket: 0}, timeout=TIMEOUT_S)),
        ]
        for call in calls:
            with at_most(TIMEOUT_S + SLACK_S), pytest.raises(fluss.FlussError):
                call()
        with at_most(TIMEOUT_S + SLACK_S), pytest.raises(fluss.DeadlineExceededError):
            await lookuper.lookup([1], timeout=TIMEOUT_S)
        proxy.calm()
