# SPDX-License-Identifier: Apache-2.0
"""The programs of the reference documents, run against the embedded server.

Each document is a text whose blocks share their names, as a reader would type them one after the other. It runs as it
stands, with three changes made to its syntax tree: the address becomes that of the test's server, `while True` goes
round twice, and waits are short. The lines with `expect(found, expected)` are ours.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tests.client.support import write

import fluss
from fluss.server.local import LocalServer

Namespace = dict[str, Any]

ADDRESS = "127.0.0.1:9123"
ROUNDS = 2


class Patch(ast.NodeTransformer):
    """What has to differ from the document."""

    def __init__(self, address: str) -> None:
        self._address = address

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant(self._address), node) if node.value == ADDRESS else node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        assert isinstance(node.test, ast.Constant)
        assert node.test.value is True
        rounds = ast.parse(f"range({ROUNDS})", mode="eval").body
        loop = ast.For(ast.Name("_round", ast.Store()), rounds, node.body, node.orelse)
        return ast.fix_missing_locations(ast.copy_location(loop, node))

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self.generic_visit(node)
        if node.arg == "timeout_ms":
            node.value = ast.copy_location(ast.Constant(300), node.value)
        return node


async def run_block(source: str, names: Namespace, address: str) -> None:
    tree = Patch(address).visit(ast.parse(source))
    linecache.cache["<document>"] = (len(source), None, source.splitlines(True), "<document>")  # shown by failures
    code = compile(tree, "<document>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result


async def run_document(source: str, names: Namespace, address: str) -> None:
    await asyncio.wait_for(run_block(source, names, address), 30)


def expect(found: object, expected: object) -> None:
    assert found == expected


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    lake = {"datalake.format": "paimon", "datalake.paimon.metastore": "filesystem"}
    lake["datalake.paimon.warehouse"] = str(tmp_path_factory.mktemp("lake"))
    with LocalServer(options=lake) as server:
        yield server


@pytest.fixture
def server(running: LocalServer) -> Iterator[LocalServer]:
    """Every document begins with an empty catalog: the names of tables and databases are the document's."""
    yield running

    async def clear() -> None:
        config = fluss.Config({"bootstrap.servers": running.bootstrap_servers})
        with await fluss.FlussConnection.create(config) as conn:
            admin = await conn.get_admin()
            for database in await admin.list_databases():
                for table in await admin.list_tables(database):
                    await admin.drop_table(fluss.TablePath(database, table))
                if database != "fluss":
                    await admin.drop_database(database)

    asyncio.run(clear())


@pytest.fixture
async def names(server: LocalServer) -> AsyncIterator[Namespace]:
    """What the documents take for granted: a connection and the admin."""
    config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
    conn = await fluss.FlussConnection.create(config)
    made = {"fluss": fluss, "pa": pa, "expect": expect, "conn": conn, "admin": await conn.get_admin(), "config": config}
    yield made
    made["conn"].close()


# -- the API reference ------------------------------------------------------------------------------------------------

REFERENCE = """
scan_records = scanner.poll(timeout_ms=5000)

# Sequence access
scan_records[0]
scan_records[-1]
scan_records[:5]

# Per-bucket access
for bucket, records in scan_records.items():
    for record in records:
        print(f"bucket={bucket.bucket_id}, offset={record.offset}, row={record.row}")

# Flat iteration
for record in scan_records:
    print(record.row)
expect(len(scan_records), 6)
expect(scan_records.count(), 6)
expect([record.offset for record in scan_records[:5]], [0, 1, 2, 3, 4])
expect(scan_records[-1].row["id"], 5)

offsets = await admin.list_offsets(table_path, [0], fluss.OffsetSpec.latest())
scanner.subscribe(bucket_id=0, start_offset=offsets[0])
expect(offsets, {0: 6})
expect(len(scanner.poll(50)), 0)
"""


async def test_api_reference(server: LocalServer, names: Namespace) -> None:
    path = names["table_path"] = fluss.TablePath("fluss", "reference")
    schema = fluss.Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
    await names["admin"].create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
    table = await names["conn"].get_table(path)
    await write(table, [(i, f"n{i}") for i in range(6)])
    names["scanner"] = await table.new_scan().create_log_scanner()
    names["scanner"].subscribe(0, fluss.EARLIEST_OFFSET)
    await run_document(REFERENCE, names, server.bootstrap_servers)


# -- the Rust reference, in Python form -------------------------------------------------------------------------------

RUST = """
for record in records:
    print(f"offset={record.offset}")
expect(record.offset, 2)

# Fire-and-forget (batched)
writer.append(row)
await writer.flush()

# Per-record acknowledgment
await writer.append(row)

offsets = await admin.list_offsets(table_path, [0], fluss.OffsetSpec.latest())
latest = offsets[0]
log_scanner.subscribe(0, latest)
expect(latest, 5)

schema = (
    fluss.Schema.builder()
    .column("id", fluss.DataTypes.int())
    .column("amount", fluss.DataTypes.decimal(10, 2))
    .column("tags", fluss.DataTypes.array(fluss.DataTypes.string()))
    .column("place", fluss.DataTypes.row([fluss.DataField("city", fluss.DataTypes.string(), None)]))
    .primary_key(["id"])
    .build()
)
descriptor = (
    fluss.TableDescriptor.builder()
    .schema(schema)
    .distributed_by(3, ["id"])
    .property("table.replication.factor", "1")
    .custom_property("owner", "me")
    .comment("orders")
    .build()
)
database = fluss.DatabaseDescriptor.builder().comment("shop").custom_property("k", "v").build()
await admin.create_database("shop", database, ignore_if_exists=True)
path = fluss.TablePath("shop", "orders")
await admin.create_table(path, descriptor, ignore_if_exists=True)
orders = await conn.get_table(path)
upsert = orders.new_upsert().create_writer()
await upsert.upsert({"id": 1, "amount": 5, "tags": ["a", None], "place": {"city": "Ulm"}})
partial = orders.new_upsert().partial_update_by_index([0, 2]).create_writer()
await partial.upsert([1, ["b"]])
found = await orders.new_lookup().create_lookuper().lookup({"id": 1})
info = await admin.get_table_info(path)
nodes = await admin.get_server_nodes()
expect(found["tags"], ["b"])
expect(found["place"], {"city": "Ulm"})
expect(info.comment, "orders")
expect(info.num_buckets, 3)
expect({node.server_type for node in nodes}, {"CoordinatorServer", "TabletServer"})

batch_scanner = await table.new_scan().create_record_batch_log_scanner()
batch_scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
batches = batch_scanner.poll_record_batch(timeout_ms=1000)
first = batches[0]
print(first.bucket, first.base_offset, first.last_offset, first.num_records)
positions = batch_scanner.get_subscribed_buckets()
expect(first.base_offset, 0)
expect(sum(batch.num_records for batch in batches), 5)
expect(batch_scanner.is_partitioned(), False)
"""


async def test_rust_reference_in_python_form(server: LocalServer, names: Namespace) -> None:
    path = names["table_path"] = fluss.TablePath("fluss", "rust")
    schema = fluss.Schema(pa.schema([("id", pa.int32())]))
    await names["admin"].create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
    table = names["table"] = await names["conn"].get_table(path)
    names["writer"] = table.new_append().create_writer()
    names["row"] = [7]
    for i in range(3):
        await names["writer"].append([i])
    names["log_scanner"] = await table.new_scan().create_log_scanner()
    names["log_scanner"].subscribe(0, fluss.EARLIEST_OFFSET)
    names["records"] = names["log_scanner"].poll(2000)
    await run_document(RUST, names, server.bootstrap_servers)


# -- the guide (older names) ------------------------------------------------------------------------------------------

QUICK_START = """
import asyncio
import pyarrow as pa
import fluss

async def main():
    # Connect
    config = fluss.Config({"bootstrap.servers": "127.0.0.1:9123"})
    conn = await fluss.FlussConnection.connect(config)
    admin = await conn.get_admin()

    # Create a log table
    schema = fluss.Schema(pa.schema([
        pa.field("id", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("score", pa.float32()),
    ]))
    table_path = fluss.TablePath("fluss", "quick_start")
    await admin.create_table(table_path, fluss.TableDescriptor(schema), ignore_if_exists=True)

    # Write
    table = await conn.get_table(table_path)
    writer = await table.new_append_writer()
    writer.append({"id": 1, "name": "Alice", "score": 95.5})
    writer.append({"id": 2, "name": "Bob", "score": 87.0})
    await writer.flush()

    # Read
    num_buckets = (await admin.get_table(table_path)).num_buckets
    scanner = await table.new_scan().create_batch_scanner()
    scanner.subscribe_buckets({i: fluss.EARLIEST_OFFSET for i in range(num_buckets)})
    print(scanner.to_pandas())

    # Cleanup
    await admin.drop_table(table_path, ignore_if_not_exists=True)
    conn.close()

asyncio.run(main())
"""

GUIDE_CONNECT = """
config = fluss.Config({"bootstrap.servers": "127.0.0.1:9123"})
conn = await fluss.FlussConnection.connect(config)
expect(isinstance(conn, fluss.FlussConnection), True)

with await fluss.FlussConnection.connect(config) as conn:
    ...
expect(conn.closed, True)

conn = await fluss.FlussConnection.connect(config)
expect(isinstance(conn, fluss.FlussConnection), True)
"""

DATABASES = """
admin = await conn.get_admin()

await admin.create_database("my_database", ignore_if_exists=True)
databases = await admin.list_databases()
exists = await admin.database_exists("my_database")
await admin.drop_database("my_database", ignore_if_not_exists=True, cascade=True)
expect("my_database" in databases, True)
expect(exists, True)

await admin.create_database("my_database", ignore_if_exists=True)
"""

TABLES = """
import pyarrow as pa

schema = fluss.Schema(pa.schema([
    pa.field("id", pa.int32()),
    pa.field("name", pa.string()),
    pa.field("amount", pa.int64()),
]))

table_path = fluss.TablePath("my_database", "my_table")
await admin.create_table(table_path, fluss.TableDescriptor(schema), ignore_if_exists=True)

table_info = await admin.{info}(table_path)
tables = await admin.list_tables("my_database")
await admin.drop_table(table_path, ignore_if_not_exists=True)
expect(tables, ["my_table"])
expect(table_info.get_column_names(), ["id", "name", "amount"])
expect(table_info.get_column_count(), 3)
"""

GUIDE_TABLES = """
await admin.create_table(
    table_path,
    fluss.TableDescriptor(
        schema,
        partition_keys=["name"],
        bucket_count=2,
        bucket_keys=["id"],
        comment="with all there is",
        log_format="ARROW",
        properties={"table.replication.factor": "1"},
        custom_properties={"mine": "yes"},
    ),
)
await admin.create_partition(table_path, {"name": "US"})
offsets = await admin.list_partition_offsets(
    table_path, partition_name="US", bucket_ids=[0], offset_type="latest"
)
await admin.drop_table(table_path)
await admin.create_table(table_path, fluss.TableDescriptor(schema, bucket_count=2))
expect(offsets, {0: 0})

# Latest offsets for buckets
offsets = await admin.list_offsets(table_path, bucket_ids=[0, 1], offset_type="latest")

# By timestamp
by_time = await admin.list_offsets(
    table_path, bucket_ids=[0], offset_type="timestamp", timestamp=1704067200000
)
expect(offsets, {0: 0, 1: 0})
expect(by_time, {0: 0})
"""

LOG_TABLE = """
import pyarrow as pa

schema = fluss.Schema(pa.schema([
    pa.field("id", pa.int32()),
    pa.field("name", pa.string()),
    pa.field("score", pa.float32()),
]))
table_path = fluss.TablePath("fluss", "events")
await admin.create_table(table_path, fluss.TableDescriptor(schema), ignore_if_exists=True)
"""

WRITING = """
table = await conn.get_table(table_path)
writer = {create}

# Fire-and-forget: queue writes, flush at the end
writer.append({{"id": 1, "name": "Alice", "score": 95.5}})
writer.append([2, "Bob", 87.0])
await writer.flush()

# Per-record acknowledgment
handle = writer.append({{"id": 3, "name": "Charlie", "score": 91.0}})
await handle.wait()

# Bulk writes
writer.write_arrow(pa_table)
writer.write_arrow_batch(record_batch)
writer.write_pandas(df)
await writer.flush()
"""

BATCH_READ = """
num_buckets = (await admin.{info}(table_path)).num_buckets

scanner = await table.new_scan().{create}()
scanner.subscribe_buckets({{i: fluss.EARLIEST_OFFSET for i in range(num_buckets)}})

# Reads everything up to current latest offset, then returns
arrow_table = scanner.to_arrow()
df = scanner.to_pandas()
expect((arrow_table.num_rows, len(df)), (6, 6))
expect(sorted(df["id"]), [1, 2, 3, 4, 5, 6])
"""

POLLING_BATCHES = """
# Batch scanner: poll as Arrow Tables
scanner = await table.new_scan().{create}()
scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
polled = 0

while True:
    result = scanner.poll_arrow(timeout_ms=5000)
    polled += result.num_rows
    if result.num_rows > 0:
        print(result.to_pandas())
expect(polled, 6)
"""

POLLING_RECORDS = """
# Record scanner: poll individual records with metadata
scanner = await table.new_scan().create_log_scanner()
scanner.subscribe_buckets({i: fluss.EARLIEST_OFFSET for i in range(num_buckets)})
seen = []

while True:
    scan_records = scanner.poll(timeout_ms=5000)

    for record in scan_records:
        seen.append(record.offset)
        print(f"offset={record.offset}, change={record.change_type.short_string()}, row={record.row}")

    # Or per-bucket access (dict-like)
    for bucket, records in scan_records.items():
        for record in records:
            print(f"bucket={bucket.bucket_id}, offset={record.offset}, row={record.row}")
expect(seen, [0, 1, 2, 3, 4, 5])
"""

PROJECTION = """
scanner = await table.new_scan().project([0, 2]).{create}()
# or by name
scanner = await table.new_scan().project_by_name(["id", "score"]).{create}()
scanner.subscribe(0, fluss.EARLIEST_OFFSET)
expect(scanner.to_arrow().column_names, ["id", "score"])
"""


async def run_log_blocks(names: Namespace, address: str, create: str, info: str, batch_scanner: str) -> None:
    await run_document(WRITING.format(create=create), names, address)
    await run_document(BATCH_READ.format(info=info, create=batch_scanner), names, address)
    await run_document(POLLING_BATCHES.format(create=batch_scanner), names, address)
    await run_document(POLLING_RECORDS, names, address)


GUIDE_LATEST = """
scanner = await table.new_scan().create_batch_scanner()
scanner.subscribe(bucket_id=0, start_offset=fluss.LATEST_OFFSET)
"""

KEYED = """
schema = fluss.Schema(
    pa.schema([
        pa.field("id", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("age", pa.int64()),
    ]),
    primary_keys=["id"],
)
table_path = fluss.TablePath("fluss", "users")
await admin.create_table(table_path, fluss.TableDescriptor(schema, bucket_count=3), ignore_if_exists=True)

table = await conn.get_table(table_path)

# Upsert (fire-and-forget, flush at the end)
writer = table.new_upsert()
writer.upsert({"id": 1, "name": "Alice", "age": 25})
writer.upsert({"id": 2, "name": "Bob", "age": 30})
await writer.flush()

# Per-record acknowledgment (for read-after-write)
handle = writer.upsert({"id": 3, "name": "Charlie", "age": 35})
await handle.wait()

# Delete by primary key
handle = writer.delete({"id": 2})
await handle.wait()

# Lookup
lookuper = table.new_lookup()
result = await lookuper.lookup({"id": 1})
if result:
    print(f"Found: name={result['name']}, age={result['age']}")
expect(result, {"id": 1, "name": "Alice", "age": 25})
expect(await lookuper.lookup({"id": 2}), None)

partial_writer = table.new_upsert(columns=["id", "age"])
partial_writer.upsert({"id": 1, "age": 27})  # only updates age
await partial_writer.flush()
expect(await lookuper.lookup({"id": 1}), {"id": 1, "name": "Alice", "age": 27})
"""

PARTITIONED = """
schema = fluss.Schema(pa.schema([
    pa.field("id", pa.int32()),
    pa.field("region", pa.string()),
    pa.field("value", pa.int64()),
]))

table_path = fluss.TablePath("fluss", "partitioned_events")
await admin.create_table(
    table_path,
    fluss.TableDescriptor(schema, partition_keys=["region"], bucket_count=1),
    ignore_if_exists=True,
)

# Create partitions
await admin.create_partition(table_path, {"region": "US"}, ignore_if_exists=True)
await admin.create_partition(table_path, {"region": "EU"}, ignore_if_exists=True)

# List partitions
partition_infos = await admin.list_partition_infos(table_path)
expect({info.partition_name for info in partition_infos}, {"US", "EU"})

table = await conn.get_table(table_path)
writer = await table.new_append_writer()
writer.append({"id": 1, "region": "US", "value": 100})
writer.append({"id": 2, "region": "EU", "value": 200})
await writer.flush()

scanner = await table.new_scan().create_batch_scanner()

# Subscribe to individual partitions
for p in partition_infos:
    scanner.subscribe_partition(
        partition_id=p.partition_id, bucket_id=0, start_offset=fluss.EARLIEST_OFFSET
    )

# Or batch-subscribe
scanner.subscribe_partition_buckets({
    (p.partition_id, 0): fluss.EARLIEST_OFFSET for p in partition_infos
})

print(scanner.to_pandas())
expect(sorted(scanner.to_pandas()["value"]), [100, 200])

schema = fluss.Schema(
    pa.schema([
        pa.field("user_id", pa.int32()),
        pa.field("region", pa.string()),
        pa.field("score", pa.int64()),
    ]),
    primary_keys=["user_id", "region"],
)

table_path = fluss.TablePath("fluss", "partitioned_users")
await admin.create_table(
    table_path,
    fluss.TableDescriptor(schema, partition_keys=["region"]),
    ignore_if_exists=True,
)

await admin.create_partition(table_path, {"region": "US"}, ignore_if_exists=True)

table = await conn.get_table(table_path)
writer = table.new_upsert()
writer.upsert({"user_id": 1, "region": "US", "score": 1234})
await writer.flush()

# Lookup includes partition columns
lookuper = table.new_lookup()
result = await lookuper.lookup({"user_id": 1, "region": "US"})
expect(result["score"], 1234)
"""

ERRORS = """
table_descriptor = fluss.TableDescriptor(schema, partition_keys=["region"])
said = None
try:
    await admin.create_table(table_path, table_descriptor)
except fluss.FlussError as e:
    said = e.message
    print(f"Fluss error: {e.message}")
expect("partitioned_users" in said, True)
"""


def _frames(names: Namespace) -> None:
    """The data that a document speaks of without making it."""
    rows = [{"id": i, "name": f"n{i}", "score": float(i)} for i in (4, 5, 6)]
    fields = pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float32())])
    names["pa_table"] = pa.Table.from_pylist(rows[:1], schema=fields)
    names["record_batch"] = pa.RecordBatch.from_pylist(rows[1:2], schema=fields)
    names["df"] = pd.DataFrame(rows[2:])


def test_guide_quick_start(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    tree = Patch(server.bootstrap_servers).visit(ast.parse(QUICK_START))
    exec(compile(tree, "<quick start>", "exec"), {"__name__": "__main__"})
    assert "Alice" in capsys.readouterr().out


async def test_guide(server: LocalServer) -> None:
    names: Namespace = {"fluss": fluss, "pa": pa, "expect": expect}
    address = server.bootstrap_servers
    for block in (GUIDE_CONNECT, DATABASES, TABLES.format(info="get_table"), GUIDE_TABLES, LOG_TABLE):
        await run_document(block, names, address)
    _frames(names)
    await run_log_blocks(names, address, "await table.new_append_writer()", "get_table", "create_batch_scanner")
    await run_document(GUIDE_LATEST, names, address)
    await names["writer"].append([7, "new", 1.0]).wait()
    assert names["scanner"].poll_arrow(3000).column("id").to_pylist() == [7]
    for block in (PROJECTION.format(create="create_batch_scanner"), KEYED, PARTITIONED, ERRORS):
        await run_document(block, names, address)
    names["conn"].close()


# -- log tables (current names) ---------------------------------------------------------------------------------------

LATEST = """
scanner.unsubscribe(bucket_id=0)
expect(scanner.get_subscribed_buckets(), [])

admin = await conn.get_admin()
offsets = await admin.list_offsets(table_path, [0], fluss.OffsetSpec.latest())
latest = offsets[0]
scanner = await table.new_scan().create_record_batch_log_scanner()
scanner.subscribe(bucket_id=0, start_offset=latest)
expect(latest, 6)
"""


async def test_log_tables(server: LocalServer, names: Namespace) -> None:
    address, batch_scanner = server.bootstrap_servers, "create_record_batch_log_scanner"
    await run_document(LOG_TABLE, names, address)
    _frames(names)
    await run_log_blocks(names, address, "table.new_append().create_writer()", "get_table_info", batch_scanner)
    await run_document(LATEST, names, address)
    assert names["scanner"].poll_arrow(50).num_rows == 0
    await names["writer"].append((7, "new", 1.0)).wait()
    assert names["scanner"].poll_arrow(3000).column("id").to_pylist() == [7]
    await run_document(PROJECTION.format(create=batch_scanner), names, address)


# -- admin operations -------------------------------------------------------------------------------------------------

ADMIN = """
await admin.create_table(table_path, fluss.TableDescriptor(schema, bucket_count=2))

# Latest offsets for buckets
offsets = await admin.list_offsets(table_path, bucket_ids=[0, 1], offset_spec=fluss.OffsetSpec.latest())

# By timestamp
by_time = await admin.list_offsets(
    table_path, bucket_ids=[0], offset_spec=fluss.OffsetSpec.timestamp(1704067200000)
)
expect(offsets, {0: 0, 1: 0})
expect(by_time, {0: 0})

regions = fluss.TablePath("my_database", "regions")
await admin.create_table(regions, fluss.TableDescriptor(schema, partition_keys=["name"], bucket_count=1))
await admin.create_partition(regions, {"name": "US"})

# Per-partition offsets
offsets = await admin.list_partition_offsets(
    regions, partition_name="US", bucket_ids=[0], offset_spec=fluss.OffsetSpec.latest()
)
expect(offsets, {0: 0})
"""

LAKE = """
snapshot = await admin.get_latest_lake_snapshot(table_path)
print(f"Snapshot ID: {snapshot.snapshot_id}")
print(f"Table buckets: {snapshot.get_table_buckets()}")

bucket = fluss.TableBucket(table_id=1, bucket=0)
offset = snapshot.get_bucket_offset(bucket)
"""


async def test_admin_operations(server: LocalServer, names: Namespace) -> None:
    for block in (DATABASES, TABLES.format(info="get_table_info"), ADMIN):
        await run_document(block, names, server.bootstrap_servers)
    # Lake integration is on, but nothing was tiered yet.
    with pytest.raises(fluss.LakeSnapshotNotExistError):
        await run_block(LAKE, names, server.bootstrap_servers)
    admin, path = names["admin"], fluss.TablePath("my_database", "tiered")
    on = {"table.datalake.enabled": "true"}
    await admin.create_table(path, fluss.TableDescriptor(names["schema"], bucket_count=1, properties=on))
    table_id = (await admin.get_table_info(path)).table_id
    bucket = fluss.TableBucket(table_id, 0)
    stored = await admin.prepare_lake_table_snapshot(path, table_id, {bucket: 0})
    await admin.commit_lake_table_snapshot(table_id, 11, stored)
    names["table_path"] = path
    await run_block(LAKE, names, server.bootstrap_servers)
    assert names["snapshot"].snapshot_id == 11
    assert names["snapshot"].get_table_buckets() == [bucket]
    assert names["snapshot"].get_bucket_offset(bucket) == 0
