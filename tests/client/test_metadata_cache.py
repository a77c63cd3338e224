# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pyarrow as pa

from fluss.client.metadata_cache import MetadataCache
from fluss.metadata import Schema, TableBucket, TableDescriptor, TablePath
from fluss.protocol import messages as pb

PATH = TablePath("db", "t")


def answer(table_id=1, schema_id=1, modified=5, leaders=(1, 2), partitions=(), partition_keys=None):
    response = pb.MetadataResponse()
    response.coordinator_server.CopyFrom(pb.PbServerNode(node_id=0, host="c", port=1))
    for node_id in (1, 2):
        response.tablet_servers.add(node_id=node_id, host="t", port=10 + node_id)
    schema = Schema(pa.schema([("id", pa.int32()), ("p", pa.string())]))
    descriptor = TableDescriptor(schema, bucket_count=2, partition_keys=partition_keys)
    ids = {"table_id": table_id, "schema_id": schema_id, "created_time": 1, "modified_time": modified}
    table = response.table_metadata.add(table_json=descriptor.to_json_bytes(), **ids)
    table.table_path.CopyFrom(pb.PbTablePath(database_name="db", table_name="t"))
    for bucket_id, leader in enumerate(leaders):
        table.bucket_metadata.add(bucket_id=bucket_id, leader_id=leader)
    for partition_id, name in partitions:
        partition = response.partition_metadata.add(table_id=table_id, partition_id=partition_id, partition_name=name)
        partition.bucket_metadata.add(bucket_id=0, leader_id=2)
    return response


def test_learns_nodes_tables_and_leaders():
    cache = MetadataCache()
    cache.learn(answer())
    assert [node.uid for node in cache.server_nodes()] == ["cs-0", "ts-1", "ts-2"]
    assert cache.tables[PATH].table_id == 1
    assert cache.leaders == {TableBucket(1, 0): 1, TableBucket(1, 1): 2}


def test_a_bucket_without_leader_is_not_known():
    cache = MetadataCache()
    cache.learn(answer())
    cache.learn(answer(leaders=(1, None)))
    assert cache.leaders == {TableBucket(1, 0): 1}
    assert cache.tables[PATH].leaders == {0: 1, 1: None}


def test_unchanged_tables_keep_their_description():
    cache = MetadataCache()
    cache.learn(answer())
    info = cache.tables[PATH].table_info
    cache.learn(answer())
    assert cache.tables[PATH].table_info is info
    cache.learn(answer(modified=6))
    assert cache.tables[PATH].table_info is not info


def test_a_table_created_again_forgets_the_old_one():
    cache = MetadataCache()
    cache.learn(answer(table_id=1, partition_keys=["p"], leaders=()))
    cache.learn(answer(table_id=1, partition_keys=["p"], leaders=(), partitions=[(7, "eu")]), PATH)
    assert cache.partition_by_id(PATH, 7).partition_name == "eu"
    cache.learn(answer(table_id=9))
    assert set(cache.leaders) == {TableBucket(9, 0), TableBucket(9, 1)}
    assert cache.partition_by_id(PATH, 7) is None


def test_a_partition_created_again_forgets_the_old_one():
    cache = MetadataCache()
    cache.learn(answer(partition_keys=["p"], leaders=(), partitions=[(7, "eu")]), PATH)
    cache.learn(answer(partition_keys=["p"], leaders=(), partitions=[(8, "eu")]), PATH)
    assert cache.partition_by_id(PATH, 7) is None
    assert cache.tables[PATH].partitions["eu"].partition_id == 8
    assert set(cache.leaders) == {TableBucket.with_partition(1, 8, 0)}


def test_invalidation():
    cache = MetadataCache()
    cache.learn(answer())
    cache.invalidate_bucket(TableBucket(1, 0))
    assert cache.leaders == {TableBucket(1, 1): 2}
    cache.invalidate_node(2)
    assert cache.leaders == {}
    cache.learn(answer(partition_keys=["p"], leaders=(), partitions=[(7, "eu")]), PATH)
    cache.invalidate_partition(PATH, "eu")
    assert cache.tables[PATH].partitions == {}
    cache.invalidate_table(PATH)
    assert cache.tables == {}
    cache.learn(answer())
    cache.invalidate_table(PATH)
    assert cache.tables == {}
    assert cache.leaders == {}


def test_schemas_belong_to_a_table_id():
    cache = MetadataCache()
    cache.learn(answer(schema_id=2))
    state = cache.tables[PATH]
    assert cache.schema(state, 2) is state.schema
    assert cache.schema(state, 1) is None
    old = Schema(pa.schema([("id", pa.int32())]))
    cache.keep_schema(state, 1, old)
    assert cache.schema(state, 1) is old
    cache.learn(answer(table_id=5, schema_id=2))
    assert cache.schema(cache.tables[PATH], 1) is None


def test_partitions_that_come_and_go_for_months_are_forgotten():
    now = 0.0
    cache = MetadataCache(lambda: now)
    cache.learn(answer(leaders=(), partition_keys=["p"]))
    for number in range(10_000):
        now += 60
        cache.learn(answer(leaders=(), partitions=[(number, f"p{number}")]), PATH)
        state = cache.tables[PATH]
        assert state.partitions[f"p{number}"].partition_id == number
        assert cache.leaders[TableBucket.with_partition(1, number, 0)] == 2
        assert max(len(state.partitions), len(cache._partition_names), len(cache.leaders)) <= 1024
        assert len(cache._heard_partitions._at) == len(state.partitions)


def test_partitions_that_are_all_in_use_are_kept():
    cache = MetadataCache(lambda: 0.0)
    cache.learn(answer(leaders=(), partition_keys=["p"]))
    cache.learn(answer(leaders=(), partitions=[(number, f"p{number}") for number in range(5_000)]), PATH)
    assert len(cache.tables[PATH].partitions) == len(cache.leaders) == 5_000


def test_tables_that_others_drop_are_forgotten():
    now = 0.0
    cache = MetadataCache(lambda: now)
    for number in range(3_000):
        now += 60
        response = answer(table_id=number)
        response.table_metadata[0].table_path.table_name = f"t{number}"
        cache.learn(response)
    assert TablePath("db", "t2999") in cache.tables
    assert len(cache.tables) == len(cache._heard_tables._at) <= 1024
    assert len(cache.leaders) == 2 * len(cache.tables)
