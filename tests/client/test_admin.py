# SPDX-License-Identifier: Apache-2.0
"""Admin calls against the embedded server."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from tests.client.support import write

import fluss.aio as fluss
from fluss.server.local import LocalServer

LOG_SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])


@pytest.fixture
async def conn(config):
    async with await fluss.FlussConnection.create(config) as conn:
        yield conn


@pytest.fixture
async def admin(conn, database):
    """The admin of a connection, with a database."""
    admin = conn.get_admin()
    await admin.create_database(database, ignore_if_exists=True)
    yield admin
    await admin.drop_database(database, ignore_if_not_exists=True, cascade=True)


@pytest.fixture
async def path(admin, database):
    """A log table."""
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(LOG_SCHEMA)))
    return path


async def test_databases(config, database):
    async with await fluss.FlussConnection.create(config) as conn:
        admin = await conn.get_admin()
        assert not await admin.database_exists(database)
        descriptor = fluss.DatabaseDescriptor(comment="c", custom_properties={"a": "1", "b": "2"})
        await admin.create_database(database, descriptor)
        assert await admin.database_exists(database)
        assert database in await admin.list_databases()
        info = await admin.get_database_info(database)
        assert info.database_name == database
        assert info.get_database_descriptor().comment == "c"
        assert info.get_database_descriptor().get_custom_properties() == {"a": "1", "b": "2"}
        assert info.created_time > 0
        with pytest.raises(fluss.DatabaseAlreadyExistError):
            await admin.create_database(database)
        await admin.create_database(database, ignore_if_exists=True)
        await admin.create_table(fluss.TablePath(database, "t"), fluss.TableDescriptor(fluss.Schema(LOG_SCHEMA)))
        with pytest.raises(fluss.DatabaseNotEmptyError):
            await admin.drop_database(database, cascade=False)
        await admin.drop_database(database)
        with pytest.raises(fluss.DatabaseNotExistError) as caught:
            await admin.drop_database(database)
        assert caught.value.error_code == fluss.ErrorCode.DATABASE_NOT_EXIST
        await admin.drop_database(database, ignore_if_not_exists=True)
        with pytest.raises(fluss.DatabaseNotExistError):
            await admin.get_database_info(database)
        with pytest.raises(fluss.DatabaseNotExistError):
            await admin.list_tables(database)


async def test_database_summaries(admin, database, path):
    summaries = {summary.database_name: summary for summary in await admin.list_database_summaries()}
    assert summaries[database].table_count == 1
    assert summaries[database].created_time > 0


async def test_tables(conn, admin, database):
    path = fluss.TablePath(database, "t")
    assert not await admin.table_exists(path)
    schema = fluss.Schema(pa.schema([("id", pa.int32()), ("v", pa.string())]), primary_keys=["id"])
    descriptor = fluss.TableDescriptor(
        schema,
        bucket_count=3,
        bucket_keys=["id"],
        comment="about",
        log_format="arrow",
        kv_format="indexed",
        properties={"table.replication.factor": "1"},
        custom_properties={"who": "me"},
    )
    await admin.create_table(path, descriptor, ignore_if_exists=False)
    assert await admin.table_exists(path)
    assert await admin.list_tables(database) == ["t"]
    info = await admin.get_table_info(path)
    assert info.table_path == path
    assert info.num_buckets == 3
    assert info.get_primary_keys() == ["id"]
    assert info.get_bucket_keys() == ["id"]
    assert info.get_column_names() == ["id", "v"]
    assert info.comment == "about"
    assert info.get_custom_properties() == {"who": "me"}
    assert (await admin.get_table(path)).table_id == info.table_id
    with pytest.raises(fluss.TableAlreadyExistError):
        await admin.create_table(path, descriptor)
    await admin.create_table(path, descriptor, ignore_if_exists=True)
    await admin.drop_table(path)
    with pytest.raises(fluss.TableNotExistError):
        await admin.drop_table(path)
    await admin.drop_table(path, ignore_if_not_exists=True)
    with pytest.raises(fluss.TableNotExistError) as caught:
        await admin.get_table_info(path)
    assert caught.value.error_code == 7
    with pytest.raises(fluss.TableNotExistError):
        await conn.get_table(path)


async def test_wrong_arguments_say_what_is_wanted(conn, admin):
    with pytest.raises(fluss.InvalidArgumentError, match="Expected a TablePath, got int 7"):
        await admin.get_table_info(7)
    with pytest.raises(fluss.InvalidArgumentError, match=r"such as TableDescriptor\(schema\), got Schema"):
        await admin.create_table(fluss.TablePath("a", "b"), pa.schema([]))
    with pytest.raises(fluss.InvalidArgumentError, match="database name must be a non-empty string"):
        await admin.create_database("")
    with pytest.raises(fluss.InvalidArgumentError, match="Expected a TablePath"):
        await conn.get_table(7)


async def test_arguments_have_the_names_of_the_reference_too(conn, admin, database):
    await admin.create_database(name=f"{database}_named", ignore_if_exists=True)
    assert await admin.database_exists(name=f"{database}_named")
    assert (await admin.get_database_info(name=f"{database}_named")).database_name == f"{database}_named"
    await admin.drop_database(name=f"{database}_named")
    with pytest.raises(fluss.InvalidArgumentError, match="database name must be a non-empty string, got 7"):
        await admin.database_exists(name=7)
    path = fluss.TablePath(database, "keyed")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(LOG_SCHEMA, primary_keys=["id"])))
    upsert = (await conn.get_table(path)).new_upsert()
    assert repr(upsert.partial_update_by_index(indices=[0])) == repr(upsert.partial_update_by_index([0]))


async def test_alter_table(conn, admin, database, path):
    before = await conn.get_table(path)
    await admin.alter_table(
        path, add_columns={"age": pa.int64(), "tags": fluss.DataTypes.array(fluss.DataTypes.string())}
    )
    latest = await admin.get_table_schema(path)
    assert latest.schema.get_column_names() == ["id", "name", "age", "tags"]
    first = await admin.get_table_schema(path, before.get_table_info().schema_id)
    assert first.schema.get_column_names() == ["id", "name"]
    assert latest.schema_id == first.schema_id + 1
    after = await conn.get_table(path)
    assert after.arrow_schema.names == ["id", "name", "age", "tags"]
    await admin.alter_table(path, set_properties={"mine": "1", "other": "2"})
    await admin.alter_table(path, reset_properties=["other"])
    assert (await admin.get_table_info(path)).get_custom_properties() == {"mine": "1"}
    with pytest.raises(fluss.InvalidAlterTableError):
        await admin.alter_table(path, add_columns={"age": pa.int64()})
    with pytest.raises(fluss.InvalidArgumentError, match="something to change"):
        await admin.alter_table(path)
    with pytest.raises(fluss.InvalidArgumentError, match="list of strings, got str"):
        await admin.alter_table(path, reset_properties="other")
    with pytest.raises(fluss.TableNotExistError):
        await admin.alter_table(fluss.TablePath(database, "nope"), set_properties={"a": "b"})
    await admin.alter_table(fluss.TablePath(database, "nope"), set_properties={"a": "b"}, ignore_if_not_exists=True)


async def test_partitions(admin, database):
    path = fluss.TablePath(database, "t")
    fields = pa.schema([("id", pa.int32()), ("dt", pa.string()), ("region", pa.string())])
    schema = fluss.Schema(fields, primary_keys=["id", "dt", "region"])
    await admin.create_table(path, fluss.TableDescriptor(schema, partition_keys=["dt", "region"]))
    assert await admin.list_partition_infos(path) == []
    await admin.create_partition(path, {"dt": "2024-01-15", "region": "EMEA"})
    with pytest.raises(fluss.PartitionAlreadyExistsError):
        await admin.create_partition(path, {"region": "EMEA", "dt": "2024-01-15"})
    await admin.create_partition(path, fluss.PartitionSpec({"dt": "2024-01-15", "region": "APAC"}))
    await admin.create_partition(path, {"dt": "2024-01-15", "region": "APAC"}, ignore_if_exists=True)
    names = {info.partition_name for info in await admin.list_partition_infos(path)}
    assert names == {"2024-01-15$EMEA", "2024-01-15$APAC"}
    [only] = await admin.list_partition_infos(path, {"region": "EMEA"})
    assert only.partition_name == "2024-01-15$EMEA"
    assert only.partition_spec.get_spec_map() == {"dt": "2024-01-15", "region": "EMEA"}
    assert await admin.list_partition_infos_with_spec(path, None) == await admin.list_partition_infos(path)
    offsets = await admin.list_partition_offsets(path, only.partition_name, [0], fluss.OffsetSpec.latest())
    assert offsets == {0: 0}
    await admin.drop_partition(path, {"dt": "2024-01-15", "region": "EMEA"})
    with pytest.raises(fluss.PartitionNotExistsError):
        await admin.list_partition_offsets(path, only.partition_name, [0], fluss.OffsetSpec.latest())
    with pytest.raises(fluss.PartitionNotExistsError):
        await admin.drop_partition(path, {"dt": "2024-01-15", "region": "EMEA"})
    await admin.drop_partition(path, {"dt": "2024-01-15", "region": "EMEA"}, ignore_if_not_exists=True)
    with pytest.raises(TypeError):
        await admin.create_partition(path, {"dt": 1, "region": "x"})
    plain = fluss.TablePath(database, "plain")
    await admin.create_table(plain, fluss.TableDescriptor(fluss.Schema(LOG_SCHEMA)))
    with pytest.raises(fluss.TableNotPartitionedError):
        await admin.list_partition_infos(plain)
    with pytest.raises(fluss.TableNotPartitionedError):
        await admin.list_partition_offsets(plain, "x", [0], fluss.OffsetSpec.latest())
    with pytest.raises(fluss.InvalidArgumentError, match="name a partition"):
        await admin.list_offsets(path, [0], fluss.OffsetSpec.latest())


async def test_offsets_in_both_forms(admin, database):
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(LOG_SCHEMA), bucket_count=2))
    assert await admin.list_offsets(path, [0, 1], fluss.OffsetSpec.earliest()) == {0: 0, 1: 0}
    assert await admin.list_offsets(path, bucket_ids=[1], offset_type="latest") == {1: 0}
    assert await admin.list_offsets(path, [0], offset_type="timestamp", timestamp=1) == {0: 0}
    assert await admin.list_offsets(path, [0], "earliest") == {0: 0}
    with pytest.raises(fluss.InvalidArgumentError, match="Bucket 2 does not exist"):
        await admin.list_offsets(path, [2], fluss.OffsetSpec.latest())
    with pytest.raises(fluss.InvalidArgumentError, match="needs timestamp"):
        await admin.list_offsets(path, [0], offset_type="timestamp")
    with pytest.raises(fluss.InvalidArgumentError, match="OffsetSpec"):
        await admin.list_offsets(path, [0])
    with pytest.raises(fluss.InvalidTimestampError):
        await admin.list_offsets(path, [0], fluss.OffsetSpec.timestamp(2**45))


async def test_offsets_of_a_table_created_again(conn, admin, database):
    """The old ids are cached; the server's answer about them leads to fresh metadata, not to an error."""
    path = fluss.TablePath(database, "t")
    for _ in range(2):
        await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(LOG_SCHEMA)))
        assert await admin.list_offsets(path, [0], fluss.OffsetSpec.latest()) == {0: 0}
        async with await fluss.FlussConnection.create(conn.config) as other:
            await other.get_admin().drop_table(path)
    with pytest.raises(fluss.TableNotExistError):
        await admin.list_offsets(path, [0], fluss.OffsetSpec.latest())


async def test_server_nodes(admin):
    nodes = await admin.get_server_nodes()
    assert [node.server_type for node in nodes] == ["CoordinatorServer", "TabletServer"]
    assert all(node.host and node.port > 0 and node.uid for node in nodes)
    assert nodes[0].uid.startswith("cs-")
    assert nodes[1].uid.startswith("ts-")


async def test_cluster_options(admin):
    entries = await admin.describe_cluster_configs()
    assert all(entry.key and entry.source for entry in entries)
    with pytest.raises(fluss.FlussError):
        await admin.alter_cluster_configs({"no.such.option": "1"})


async def test_acls_need_an_authorizer(admin):
    binding = fluss.AclBinding(fluss.ResourceType.TABLE, "a.b", "alice", fluss.OperationType.READ)
    for call in (admin.list_acls(), admin.create_acls([binding]), admin.drop_acls([fluss.AclFilter()])):
        with pytest.raises(fluss.SecurityDisabledError):
            await call


async def test_lake_snapshot_of_a_table_that_was_never_tiered(admin, path):
    for ask in (admin.get_latest_lake_snapshot, admin.get_readable_lake_snapshot):
        with pytest.raises(fluss.LakeSnapshotNotExistError):
            await ask(path)
    with pytest.raises(fluss.FlussError):
        await admin.get_lake_snapshot(path, 1)


async def test_producer_offsets(admin, database, path):
    bucket = fluss.TableBucket((await admin.get_table_info(path)).table_id, 0)
    producer = f"producer-{database}"
    assert await admin.register_producer_offsets(producer, {bucket: 5})
    assert not await admin.register_producer_offsets(producer, {bucket: 9})
    assert (await admin.get_producer_offsets(producer)).offsets == {bucket: 5}
    await admin.delete_producer_offsets(producer)
    assert (await admin.get_producer_offsets(producer)).offsets == {}


async def test_table_stats(conn, admin, database):
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(LOG_SCHEMA), bucket_count=2))
    await write(await conn.get_table(path), [(number, "x") for number in range(10)])
    stats = await admin.get_table_stats(path)
    assert stats.row_count == 10
    assert len(stats.bucket_row_counts) == 2


async def test_lake_tiering_round(tmp_path, database):
    """Heartbeat, prepare and commit as the tiering service calls them."""
    options = {"datalake.format": "paimon", "datalake.paimon.metastore": "filesystem"}
    options["datalake.paimon.warehouse"] = str(tmp_path / "lake")

    with LocalServer(options=options) as server:
        async with await fluss.FlussConnection.create(server.config()) as conn:
            admin = conn.get_admin()
            path = fluss.TablePath("fluss", "t")
            properties = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 s"}
            await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(LOG_SCHEMA), properties=properties))
            info = await admin.get_table_info(path)
            bucket = fluss.TableBucket(info.table_id, 0)
            writer = (await conn.get_table(path)).new_append().create_writer()
            writer.write_arrow(pa.Table.from_pylist([{}] * 3, schema=LOG_SCHEMA))
            await writer.flush()
            for _ in range(100):
                beat = await admin.lake_tiering_heartbeat(request_table=True)
                if beat.table is not None:
                    break
                await asyncio.sleep(0.1)
            assert beat.table is not None
            assert beat.table.table_path == path
            assert beat.table.table_id == info.table_id
            stored = await admin.prepare_lake_table_snapshot(path, info.table_id, {bucket: 3})
            await admin.commit_lake_table_snapshot(info.table_id, 11, stored)
            finished = await admin.lake_tiering_heartbeat(finished={beat.table: fluss.TieringStats(10, 3)})
            assert finished.errors == {}
            snapshot = await admin.get_latest_lake_snapshot(path)
            assert snapshot.snapshot_id == 11
            assert snapshot.get_bucket_offset(bucket) == 3
            stale = fluss.TieringTable(info.table_id, beat.table.tiering_epoch - 1, beat.coordinator_epoch)
            answer = await admin.lake_tiering_heartbeat(tiering=[stale])
            assert isinstance(answer.errors[info.table_id], fluss.FlussError)


async def test_server_tags_and_rebalance_of_a_single_node(config):
    async with await fluss.FlussConnection.create(config) as conn:
        admin = conn.get_admin()
        [tablet] = [node for node in await admin.get_server_nodes() if node.server_type == "TabletServer"]
        await admin.add_server_tag([tablet.id], fluss.ServerTag.TEMPORARY_OFFLINE)
        await admin.add_server_tag([tablet.id], "temporary_offline")
        with pytest.raises(fluss.FlussError, match=r"(?i)tag"):
            await admin.add_server_tag([tablet.id], fluss.ServerTag.PERMANENT_OFFLINE)
        with pytest.raises(fluss.FlussError, match="77"):
            await admin.add_server_tag([77], "PERMANENT_OFFLINE")
        await admin.remove_server_tag([tablet.id], fluss.ServerTag.TEMPORARY_OFFLINE)
        with pytest.raises(fluss.FlussError, match="No server is in rack 'r9': the option"):
            await admin.add_server_tag_by_rack(["r9"], "TEMPORARY_OFFLINE")
        with pytest.raises(fluss.InvalidArgumentError, match="expected a list of names of racks"):
            await admin.remove_server_tag_by_rack("r9", "TEMPORARY_OFFLINE")
        started = await admin.rebalance([fluss.GoalType.REPLICA_DISTRIBUTION, "leader_distribution"])
        for asked in (started, None):
            progress = await admin.list_rebalance_progress(asked)
            assert (progress.rebalance_id, progress.status) == (started, fluss.RebalanceStatus.COMPLETED)
            assert progress.status.is_final
            assert progress.progress is None, "a single server has nothing to move"
        await admin.cancel_rebalance(started)  # it is done: there is nothing to cancel, as on a cluster
        with pytest.raises(fluss.FlussError, match="is not the last one"):
            await admin.cancel_rebalance("another")
        with pytest.raises(fluss.InvalidArgumentError, match="expected one of PERMANENT_OFFLINE"):
            await admin.add_server_tag([tablet.id], "gone")
        with pytest.raises(fluss.InvalidArgumentError, match="at least one goal"):
            await admin.rebalance([])
        with pytest.raises(fluss.InvalidArgumentError, match="list of ids"):
            await admin.remove_server_tag([], "PERMANENT_OFFLINE")


async def test_columns_cannot_be_dropped_or_renamed_yet(admin, path):
    with pytest.raises(fluss.FlussError, match="Not support drop column now"):
        await admin.alter_table(path, drop_columns=["name"])
    with pytest.raises(fluss.FlussError, match="Not support rename column now"):
        await admin.alter_table(path, rename_columns={"name": "other"})


async def test_offsets_of_a_table_that_another_client_created_again(admin, config, database):
    """With more buckets, and with partitions: what the cache knows of the table is refreshed, not trusted."""
    path, schema = fluss.TablePath(database, "again"), fluss.Schema(LOG_SCHEMA)
    async with await fluss.FlussConnection.create(config) as other:
        await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        assert await admin.list_offsets(path, [0], "latest") == {0: 0}
        await other.get_admin().drop_table(path)
        await other.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=3))
        assert await admin.list_offsets(path, [0, 1, 2], "latest") == {0: 0, 1: 0, 2: 0}
        await other.get_admin().drop_table(path)
        parts = fluss.TableDescriptor(schema, bucket_count=1, partition_keys=["name"])
        await other.get_admin().create_table(path, parts)
        await other.get_admin().create_partition(path, {"name": "a"})
        assert await admin.list_partition_offsets(path, "a", [0], "latest") == {0: 0}
        with pytest.raises(fluss.InvalidArgumentError, match="name a partition"):
            await admin.list_offsets(path, [0], "latest")
