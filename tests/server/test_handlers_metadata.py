# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.server.catalog.support import Harness, alter, create, create_partition, log_table, partitioned_table, path

from fluss.protocol import fluss_pb2 as pb
from fluss.server.handlers import admin


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, {"tablet-server.id": 3, "tablet-server.rack": "r1"})


def ask(harness: Harness, *tables: str, listener: str = "FLUSS") -> pb.MetadataResponse:
    request = pb.MetadataRequest(table_path=[path(table) for table in tables])
    answer = harness.call(admin.get_metadata, request, listener=listener)
    assert isinstance(answer, pb.MetadataResponse)
    return answer


def physical(partition: str, table: str = "t") -> pb.PbPhysicalTablePath:
    return pb.PbPhysicalTablePath(database_name="fluss", table_name=table, partition_name=partition)


def test_the_first_call_of_every_client(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    answer = ask(harness)
    assert (answer.coordinator_server.node_id, answer.coordinator_server.port) == (0, 9000)
    assert [(node.node_id, node.host, node.port, node.rack) for node in answer.tablet_servers] == [
        (3, "fluss.example", 9000, "r1")
    ]
    assert not answer.coordinator_server.HasField("rack")
    assert not answer.table_metadata
    assert not answer.partition_metadata


def test_a_client_is_told_the_address_of_its_own_listener(harness: Harness) -> None:
    answer = ask(harness, listener="CLIENT")
    assert {node.host for node in (answer.coordinator_server, *answer.tablet_servers)} == {"client.example"}


def test_a_table(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table(bucket_count=2)))
    info = harness.call(admin.get_table_info, pb.GetTableInfoRequest(table_path=path()))
    answer = ask(harness, "t")
    (table,) = answer.table_metadata
    assert table.table_path == path()
    for field in ("table_id", "schema_id", "table_json", "created_time", "modified_time", "remote_data_dir"):
        assert getattr(table, field) == getattr(info, field)
    assert [(b.bucket_id, b.leader_id, list(b.replica_id), b.leader_epoch) for b in table.bucket_metadata] == [
        (0, 3, [3], 0),
        (1, 3, [3], 0),
    ]
    # The complete list of servers comes with every answer: clients replace theirs.
    assert len(answer.tablet_servers) == 1


def test_a_change_is_seen_at_once(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    ask(harness, "t")
    harness.call(admin.alter_table, alter({"k": "v"}))
    (table,) = ask(harness, "t").table_metadata
    assert json.loads(table.table_json)["custom_properties"] == {"k": "v"}
    request = pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False)
    request.add_columns.add(column_name="c", data_type_json=b'{"type":"STRING"}', column_position_type=0)
    harness.call(admin.alter_table, request)
    (table,) = ask(harness, "t").table_metadata
    assert table.schema_id == 2
    assert len(json.loads(table.table_json)["schema"]["columns"]) == 3
    harness.call(admin.drop_table, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False))
    harness.call(admin.create_table, create(log_table()))
    assert ask(harness, "t").table_metadata[0].table_id == 1


def test_a_missing_table_is_code_7(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    for table in ("missing", ""):
        request = pb.MetadataRequest(table_path=[path("t"), path(table)])
        harness.fails(7, admin.get_metadata, request, f"Table 'fluss.{table}' does not exist")


def test_partitions(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(bucket_count=2)))
    for value in ("a", "b"):
        harness.call(admin.create_partition, create_partition(dt=value))
    assert not ask(harness, "t").table_metadata[0].bucket_metadata
    # Partitions that were not asked for would make old clients abort.
    assert not ask(harness, "t").partition_metadata
    request = pb.MetadataRequest(partitions_path=[physical("b")])
    (partition,) = harness.call(admin.get_metadata, request).partition_metadata
    assert (partition.table_id, partition.partition_name, partition.partition_id) == (0, "b", 1)
    assert [bucket.leader_id for bucket in partition.bucket_metadata] == [3, 3]
    request = pb.MetadataRequest(table_path=[path()], partitions_id=[1, 0])
    answer = harness.call(admin.get_metadata, request)
    assert [p.partition_name for p in answer.partition_metadata] == ["b", "a"]


def test_missing_partitions_are_code_36(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table()))
    harness.call(admin.create_table, create(partitioned_table(), "other"))
    harness.call(admin.create_partition, create_partition("other", dt="a"))
    text = harness.fails(36, admin.get_metadata, pb.MetadataRequest(partitions_path=[physical("no")]))
    assert "fluss.t" in text
    assert "no" in text
    harness.fails(36, admin.get_metadata, pb.MetadataRequest(partitions_path=[physical("a", "missing")]))
    request = pb.MetadataRequest(table_path=[path()], partitions_id=[99])
    harness.fails(36, admin.get_metadata, request, "does not exist", "not permitted")
    # An id of a table that the request does not name cannot be placed by the client.
    request = pb.MetadataRequest(table_path=[path()], partitions_id=[0])
    harness.fails(36, admin.get_metadata, request)


def test_metadata_is_filtered_by_access(tmp_path: Path) -> None:
    harness = Harness(
        tmp_path,
        {
            "authorizer.enabled": "true",
            "super.users": "User:root",
            "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
        },
    )
    harness.call(admin.create_table, create(log_table()))
    harness.call(admin.create_table, create(partitioned_table(), "part"))
    harness.call(admin.create_partition, create_partition("part", dt="a"))
    request = pb.MetadataRequest(
        table_path=[path(), path("missing"), path("part")], partitions_path=[physical("a", "part")]
    )
    answer = harness.call(admin.get_metadata, request, user="bob", listener="CLIENT")
    assert not answer.table_metadata
    assert not answer.partition_metadata
    assert len(answer.tablet_servers) == 1
    request = pb.MetadataRequest(table_path=[path("part")], partitions_id=[0])
    harness.fails(36, admin.get_metadata, request, user="bob", listener="CLIENT")
    assert harness.call(admin.get_metadata, request, user="root", listener="CLIENT").partition_metadata
