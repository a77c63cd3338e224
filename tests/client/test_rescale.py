# SPDX-License-Identifier: Apache-2.0
"""Tables whose partitions have different numbers of buckets, before, during and after the change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.client.support import write
from tests.server.log_support import running_server

import fluss as blocking
import fluss.aio as fluss
from fluss import errors
from fluss.client.buckets import table_buckets
from fluss.metadata import Column, IntType, Schema, StringType, TableBucket, TableDescriptor, TablePath
from fluss.protocol import apis, fluss_pb2
from fluss.server.local import LocalServer

ROWS = 40
Connection = fluss.FlussConnection


def schema(*primary_key: str) -> Schema:
    return Schema.of(
        [Column("k", IntType()), Column("v", StringType()), Column("p", StringType())], primary_key=primary_key
    )


LOG = TableDescriptor(schema(), partition_keys=["p"], bucket_count=2, bucket_keys=["k"])
KEYED = TableDescriptor(schema("k", "p"), partition_keys=["p"], bucket_count=2)


@pytest.fixture
async def connection(config: fluss.Config) -> AsyncIterator[fluss.FlussConnection]:
    async with await fluss.FlussConnection.create(config) as opened:
        yield opened


@pytest.fixture
def path(database: str) -> TablePath:
    return TablePath(database, "t")


async def create(connection: Connection, path: TablePath, descriptor: TableDescriptor) -> None:
    """Make a table with the partitions `old` of 2 buckets and `new` of 5."""
    admin = connection.get_admin()
    await admin.create_database(path.database_name)
    await admin.create_table(path, descriptor)
    await admin.create_partition(path, {"p": "old"})
    await admin.alter_table(path, set_properties={"bucket.num": 5})
    await admin.create_partition(path, {"p": "new"})


def rows_of(partition: str) -> list[dict[str, object]]:
    return [{"k": k, "v": f"v{k}", "p": partition} for k in range(ROWS)]


async def counts(connection: Connection, path: TablePath) -> dict[str, int | None]:
    return {p.partition_name: p.bucket_count for p in await connection.get_admin().list_partition_infos(path)}


async def read_all(table: fluss.FlussTable, connection: Connection) -> dict[TableBucket, list[int]]:
    info = table.get_table_info()
    scanner = await table.new_scan().create_log_scanner()
    partitions = await connection.get_admin().list_partition_infos(info.table_path)
    scanner.subscribe_partition_buckets(
        {(p.partition_id, b): fluss.EARLIEST_OFFSET for p in partitions for b in range(p.bucket_count or 0)}
    )
    found: dict[TableBucket, list[int]] = {}
    while sum(map(len, found.values())) < ROWS * len(partitions):
        records = await scanner.poll(1000)
        for bucket in records.buckets():
            found.setdefault(bucket, []).extend(record.row["k"] for record in records.records(bucket))
    return found


async def test_each_partition_keeps_its_count(connection: Connection, path: TablePath) -> None:
    await create(connection, path, KEYED)
    assert await counts(connection, path) == {"old": 2, "new": 5}
    admin = connection.get_admin()
    info = await admin.get_table_info(path)
    assert (info.num_buckets, info.bucket_count_epoch) == (5, 1)
    await admin.alter_table(path, set_properties={"bucket.num": 5})  # the same again is no change
    assert (await admin.get_table_info(path)).bucket_count_epoch == 1
    assert set(await admin.list_partition_offsets(path, "new", range(5), fluss.OffsetSpec.latest())) == set(range(5))
    with pytest.raises(fluss.FlussError, match=r"Bucket 2 .* partition 'old' .* buckets 0 to 1"):
        await admin.list_partition_offsets(path, "old", [2], fluss.OffsetSpec.latest())


async def test_a_log_is_routed_by_the_counts_of_its_partitions(connection: Connection, path: TablePath) -> None:
    await create(connection, path, LOG)
    table = await connection.get_table(path)
    await write(table, rows_of("old") + rows_of("new"))
    found = await read_all(table, connection)
    by_partition = {p.partition_id: p for p in await connection.get_admin().list_partition_infos(path)}
    for bucket, keys in found.items():
        assert bucket.bucket_id < (by_partition[bucket.partition_id].bucket_count or 0)
        assert len(set(keys)) == len(keys)
    assert sorted(k for keys in found.values() for k in keys) == sorted([*range(ROWS), *range(ROWS)])
    assert {bucket.bucket_id for bucket in found} > {0, 1}


async def test_keys_are_found_in_every_way(connection: Connection, path: TablePath) -> None:
    await create(connection, path, KEYED)
    table = await connection.get_table(path)
    rows = rows_of("old") + rows_of("new")
    await write(table, rows)
    lookuper = table.new_lookup().create_lookuper()
    assert [await lookuper.lookup({"k": row["k"], "p": row["p"]}) for row in rows] == rows
    assert (await lookuper.lookup_many([(row["k"], row["p"]) for row in rows])).to_pylist() == rows
    assert (await lookuper.lookup_many([(1, "old"), (1, "none"), (1, "new")], missing="null")).num_rows == 3
    assert (await connection.get_admin().get_table_stats(path)).row_count == 2 * ROWS
    for bucket in await table_buckets(connection.get_admin(), table.get_table_info()):
        found = await table.new_scan().create_bucket_batch_scanner(bucket).to_arrow()
        rows = [row for row in rows if row not in found.to_pylist()]
    assert not rows
    assert sum(map(len, (await read_all(table, connection)).values())) == 2 * ROWS


async def test_prefixes_are_found(connection: Connection, path: TablePath) -> None:
    keyed = TableDescriptor(schema("k", "v", "p"), partition_keys=["p"], bucket_count=2, bucket_keys=["k"])
    await create(connection, path, keyed)
    table = await connection.get_table(path)
    await write(table, rows_of("old") + rows_of("new"))
    lookuper = table.new_lookup().lookup_by(["k", "p"]).create_lookuper()
    for row in rows_of("old") + rows_of("new"):
        assert await lookuper.lookup({"k": row["k"], "p": row["p"]}) == [row]


async def test_an_old_writer_uses_the_new_count(config: fluss.Config, connection: Connection, path: TablePath) -> None:
    """On the event loop rows wait until their partition is known; rows given after them wait too."""
    admin = connection.get_admin()
    await admin.create_database(path.database_name)
    await admin.create_table(path, KEYED)
    async with await fluss.FlussConnection.create(config) as other:
        table = await other.get_table(path)
        writer = table.new_upsert().create_writer()
        await admin.alter_table(path, set_properties={"bucket.num": 5})
        for row in rows_of("new"):
            writer.upsert({**row, "v": "before"})
        for row in rows_of("new"):
            writer.upsert(row)
        writer.write_arrow(pa.Table.from_pylist(rows_of("newer"), schema=KEYED.schema.arrow_schema))
        await writer.flush()
        rows = rows_of("new") + rows_of("newer")
        lookuper = table.new_lookup().create_lookuper()
        assert [await lookuper.lookup((row["k"], row["p"])) for row in rows] == rows
    assert await counts(connection, path) == {"new": 5, "newer": 5}


def test_threads_look_a_partition_up_before_they_route_rows(embedded_server: LocalServer, path: TablePath) -> None:
    with blocking.connect(embedded_server.bootstrap_servers) as db:
        table = db.create_table(str(path), KEYED)
        table.upsert(rows_of("old"))
        with blocking.connect(embedded_server.bootstrap_servers) as other:
            other.table(str(path)).set_properties({"bucket.num": 5})
        table.upsert(rows_of("new"))
        assert all(table.get((row["k"], row["p"])) == row for row in rows_of("old") + rows_of("new"))
        assert table.count() == 2 * ROWS


async def test_rows_of_a_missing_partition_fail(config: fluss.Config, connection: Connection, path: TablePath) -> None:
    await create(connection, path, KEYED)
    config = config.copy()
    config.writer_dynamic_create_partition_enabled = False
    async with await fluss.FlussConnection.create(config) as other:
        writer = (await other.get_table(path)).new_upsert().create_writer()
        lost = writer.upsert({"k": 1, "v": "x", "p": "none"})
        kept = writer.upsert({"k": 1, "v": "x", "p": "new"})
        with pytest.raises(errors.PartitionNotExistsError):
            await lost.wait()
        await kept.wait()


async def test_rows_for_a_partition_that_came_again_with_another_count_fail(
    config: fluss.Config, connection: Connection, path: TablePath
) -> None:
    await create(connection, path, KEYED)
    admin = connection.get_admin()
    async with await fluss.FlussConnection.create(config) as other:
        writer = (await other.get_table(path)).new_upsert().create_writer()
        await writer.upsert(rows_of("new")[0]).wait()
        await admin.drop_partition(path, {"p": "new"})
        await admin.alter_table(path, set_properties={"bucket.num": 9})
        await admin.create_partition(path, {"p": "new"})
        failed = []
        for handle, row in [(writer.upsert(row), row) for row in rows_of("new")]:
            try:
                await handle.wait()
            except errors.InvalidBucketRoutingError:
                failed.append(row)
        assert failed == rows_of("new")
        for row in failed:
            writer.upsert(row)
        await writer.flush()
    lookuper = (await connection.get_table(path)).new_lookup().create_lookuper()
    assert [await lookuper.lookup((row["k"], "new")) for row in rows_of("new")] == rows_of("new")


@pytest.mark.parametrize("descriptor", [LOG, KEYED], ids=["log", "keyed"])
def test_writes_and_reads_go_on(embedded_server: LocalServer, path: TablePath, descriptor: TableDescriptor) -> None:
    old, new = rows_of("old"), rows_of("new")
    with blocking.connect(embedded_server.bootstrap_servers) as db:
        table = db.create_table(str(path), descriptor)
        write = table.upsert if descriptor is KEYED else table.append
        write(old)
        seen: list[str] = []
        for change in table.follow(start="earliest", timeout=30):
            seen.append(f"{change.row['p']}{change.row['k']}")
            if len(seen) == ROWS:
                table.set_properties({"bucket.num": 5})
                write(new)
            if len(seen) == 2 * ROWS:
                break
        assert sorted(seen) == sorted(f"{row['p']}{row['k']}" for row in old + new)
        assert sorted(table.to_arrow().to_pylist(), key=str) == sorted(old + new, key=str)
        if descriptor is KEYED:
            write([{**row, "v": "again"} for row in old])  # goes where the rows lie, by the count of their partition
            assert {row["v"] for row in table.get_many([(row["k"], row["p"]) for row in old])} == {"again"}
            assert [table.get((row["k"], row["p"])) for row in new] == new
            assert len(table.to_arrow()) == 2 * ROWS


@pytest.mark.parametrize("count", [None, 2, 6])
async def test_the_server_refuses_other_counts(connection: Connection, path: TablePath, count: int | None) -> None:
    """A client that sends none is too old for a table with different counts."""
    await create(connection, path, KEYED)
    [new] = [p for p in await connection.get_admin().list_partition_infos(path) if p.partition_name == "new"]
    table_id = (await connection.get_admin().get_table_info(path)).table_id
    cluster = connection._cluster
    for request_of in REQUESTS.values():
        api, request = request_of(table_id, new.partition_id, count)
        response = await cluster.call(await cluster.any_tablet(cluster.deadline()), api, request, cluster.deadline())
        parts = getattr(response, "buckets_resp", None) or getattr(response, "tables_resp", None) or [response]
        part = parts[0].buckets_resp[0] if api is apis.FETCH_LOG else parts[0]
        assert part.error_code == errors.InvalidBucketRoutingError("").error_code, api


Request = Callable[[int, int, "int | None"], tuple[Any, Any]]


def _requests() -> dict[str, Request]:
    def fetch(table_id: int, partition_id: int, count: int | None) -> tuple[Any, Any]:
        request = fluss_pb2.FetchLogRequest(follower_server_id=-1, max_bytes=1000)
        table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
        table.buckets_req.add(
            partition_id=partition_id, bucket_id=0, fetch_offset=0, max_fetch_bytes=9, routing_bucket_count=count
        )
        return apis.FETCH_LOG, request

    def offsets(table_id: int, partition_id: int, count: int | None) -> tuple[Any, Any]:
        return apis.LIST_OFFSETS, fluss_pb2.ListOffsetsRequest(
            follower_server_id=-1,
            offset_type=1,
            table_id=table_id,
            partition_id=partition_id,
            bucket_id=[0],
            routing_bucket_count=count,
        )

    def limit(table_id: int, partition_id: int, count: int | None) -> tuple[Any, Any]:
        return apis.LIMIT_SCAN, fluss_pb2.LimitScanRequest(
            table_id=table_id, partition_id=partition_id, bucket_id=0, limit=1, routing_bucket_count=count
        )

    def scan(table_id: int, partition_id: int, count: int | None) -> tuple[Any, Any]:
        request = fluss_pb2.ScanKvRequest(call_seq_id=0, batch_size_bytes=100)
        request.bucket_scan_req.CopyFrom(
            fluss_pb2.PbScanReqForBucket(
                table_id=table_id, partition_id=partition_id, bucket_id=0, routing_bucket_count=count
            )
        )
        return apis.SCAN_KV, request

    def of_buckets(api: Any, **more: object) -> Request:
        def make(table_id: int, partition_id: int, count: int | None) -> tuple[Any, Any]:
            request = api.request(table_id=table_id, **(WRITE if api in (apis.PUT_KV, apis.PRODUCE_LOG) else {}))
            request.buckets_req.add(partition_id=partition_id, bucket_id=0, routing_bucket_count=count, **more)
            return api, request

        return make

    return {
        "fetch": fetch,
        "offsets": offsets,
        "limit": limit,
        "scan": scan,
        "put": of_buckets(apis.PUT_KV, records=b""),
        "lookup": of_buckets(apis.LOOKUP, keys=[b"x"]),
        "prefix": of_buckets(apis.PREFIX_LOOKUP, keys=[b"x"]),
        "stats": of_buckets(apis.GET_TABLE_STATS),
    }


WRITE = {"acks": -1, "timeout_ms": 1000}
REQUESTS = _requests()


@pytest.mark.parametrize(
    ("descriptor", "count", "reason"),
    [
        (TableDescriptor(schema("k", "p"), bucket_count=2), 3, "Non-partitioned table rescale is not yet supported"),
        (KEYED, 0, "1 or more"),
        (KEYED, 100_000, r"the most allowed is \d+"),
    ],
)
async def test_what_cannot_be_altered(
    connection: Connection, path: TablePath, descriptor: TableDescriptor, count: int, reason: str
) -> None:
    admin = connection.get_admin()
    await admin.create_database(path.database_name)
    await admin.create_table(path, descriptor)
    with pytest.raises(fluss.FlussError, match=reason):
        await admin.alter_table(path, set_properties={"bucket.num": count})
    with pytest.raises(errors.InvalidAlterTableError, match="table properties, table schema, or table distribution"):
        await admin.alter_table(path, set_properties={"bucket.num": 3, "a": "b"})
    assert (await admin.get_table_info(path)).num_buckets == 2


async def test_counts_survive_a_restart(tmp_path: Path) -> None:
    """Also those of partitions that an older release made, which did not write their counts down."""
    path = TablePath("fluss", "t")
    data = tmp_path / "data"

    async def connect(server: object) -> fluss.FlussConnection:
        address = server.listeners["FLUSS"].address  # type: ignore[attr-defined]
        return await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address}))

    async with running_server(data) as server, await connect(server) as connection:
        admin = connection.get_admin()
        await admin.create_table(path, KEYED)
        await admin.create_partition(path, {"p": "old"})
        entry = server.catalog.table(path)
        entry.partitions["old"].bucket_count = None
        server.catalog.storage.write_partition(entry.table_id, entry.partitions["old"])
    async with running_server(data) as server, await connect(server) as connection:
        assert server.catalog.table(path).partitions["old"].bucket_count is None
        await connection.get_admin().alter_table(path, set_properties={"bucket.num": 5})
        await connection.get_admin().create_partition(path, {"p": "new"})
    async with running_server(data) as server, await connect(server) as connection:
        assert await counts(connection, path) == {"old": 2, "new": 5}
        entry = server.catalog.table(path)
        assert entry.bucket_total == 7
        old = entry.partitions["old"].partition_id
        with pytest.raises(errors.UnknownTableOrBucketError):
            server.tablets.tablet(TableBucket.with_partition(entry.table_id, old, 2))
