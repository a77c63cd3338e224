# SPDX-License-Identifier: Apache-2.0
"""Small values of the public API: paths, buckets, change types, infos."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import metadata
from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ChangeType,
    DatabaseDescriptor,
    DatabaseInfo,
    LakeSnapshot,
    OffsetSpec,
    Schema,
    ServerNode,
    TableBucket,
    TableDescriptor,
    TableInfo,
    TablePath,
    epoch_millis,
    physical_primary_key,
)


def test_export_list() -> None:
    assert sorted(metadata.__all__) == metadata.__all__
    for name in metadata.__all__:
        assert hasattr(metadata, name)


@given(st.integers(-(10**13), 10**14))
def test_milliseconds_of_a_time(millis: int) -> None:
    assert epoch_millis(datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=millis)) == millis


def test_table_path() -> None:
    path = TablePath("db", "t")
    assert path == TablePath(database="db", table="t") == TablePath(database_name="db", table_name="t")
    assert (path.database_name, path.table_name, path.database, path.table) == ("db", "t", "db", "t")
    assert str(path) == path.table_path_str() == "db.t"
    assert repr(path) == "TablePath('db', 't')"
    assert len({path, TablePath("db", "t"), TablePath("db", "u")}) == 2
    assert sorted([TablePath("b", "a"), TablePath("a", "b"), TablePath("a", "a")])[0] == TablePath("a", "a")
    assert path != "db.t"
    assert pickle.loads(pickle.dumps(path)) == path
    with pytest.raises(TypeError):
        path < "db.t"  # type: ignore[operator]  # noqa: B015


@pytest.mark.parametrize(
    "arguments",
    [{}, {"database": "a"}, {"database": "a", "table": ""}, {"database": "a", "table": 5}],
)
def test_table_path_needs_two_names(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="non-empty string"):
        TablePath(**arguments)


def test_a_name_can_be_given_once() -> None:
    with pytest.raises(InvalidArgumentError, match="one database name"):
        TablePath("a", "b", database_name="a")


def test_table_bucket() -> None:
    bucket = TableBucket(table_id=1, bucket=0)
    assert (bucket.table_id, bucket.bucket_id, bucket.bucket, bucket.partition_id) == (1, 0, 0, None)
    assert str(bucket) == "TableBucket(table_id=1, bucket=0)"
    part = TableBucket.with_partition(1, 2, 0)
    assert part.partition_id == 2
    assert repr(part) == "TableBucket(table_id=1, partition_id=2, bucket=0)"
    assert part == TableBucket(1, 0, 2)
    assert len({bucket, part, TableBucket(1, 0)}) == 2
    assert bucket != (1, 0)
    assert pickle.loads(pickle.dumps(part)) == part
    for arguments in ((None, 0), (1, "0"), (1, 0, "p")):
        with pytest.raises(InvalidArgumentError):
            TableBucket(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "number", "short"),
    [
        ("AppendOnly", 0, "+A"),
        ("Insert", 1, "+I"),
        ("UpdateBefore", 2, "-U"),
        ("UpdateAfter", 3, "+U"),
        ("Delete", 4, "-D"),
    ],
)
def test_change_type(name: str, number: int, short: str) -> None:
    change_type = ChangeType[name]
    assert change_type == number
    assert ChangeType(number) is change_type
    assert change_type.short_string() == str(change_type) == short
    assert repr(change_type) == f"ChangeType.{name}"


def test_change_type_in_capitals() -> None:
    assert ChangeType.UPDATE_BEFORE is ChangeType.UpdateBefore
    assert len(ChangeType) == 5


FIELDS = pa.schema([("dt", pa.string()), ("id", pa.int64()), ("v", pa.float64())])


def _info(descriptor: TableDescriptor) -> TableInfo:
    return TableInfo(TablePath("db", "t"), 7, 1, descriptor, 100, 200)


def test_table_info_of_a_primary_key_table() -> None:
    schema = Schema(FIELDS, ["dt", "id"])
    info = _info(
        TableDescriptor(
            schema,
            partition_keys=["dt"],
            bucket_count=3,
            comment="c",
            properties={
                "table.datalake.format": "PAIMON",
                "table.kv.format-version": "2",
                "table.auto-partition.enabled": "true",
            },
            custom_properties={"a": "b"},
        )
    )
    assert (info.table_id, info.schema_id, info.created_time, info.modified_time) == (7, 1, 100, 200)
    assert info.table_path == TablePath("db", "t")
    assert info.num_buckets == 3
    assert info.comment == "c"
    assert info.schema is info.get_schema() is schema
    assert info.primary_keys == ("dt", "id")
    assert info.get_primary_keys() == ["dt", "id"]
    assert info.physical_primary_key == ("id",)
    assert info.get_physical_primary_keys() == ["id"]
    assert info.get_partition_keys() == ["dt"]
    assert info.get_bucket_keys() == ["id"]
    assert info.has_primary_key()
    assert info.has_bucket_key()
    assert info.is_partitioned()
    assert info.is_auto_partitioned()
    assert info.has_default_bucket_key
    assert info.get_column_names() == ["dt", "id", "v"]
    assert info.get_column_count() == 3
    assert info.get_properties()["table.datalake.format"] == "PAIMON"
    assert info.get_custom_properties() == info.custom_properties == {"a": "b"}
    assert info.lake_format == "paimon"
    assert info.kv_format_version == 2
    assert info.row_type == schema.row_type
    assert info.to_table_descriptor() == info.descriptor
    assert info.remote_data_dir is None
    assert physical_primary_key(schema, ("dt",)) == ("id",)
    assert pickle.loads(pickle.dumps(info)) == info
    assert hash(info) == hash(pickle.loads(pickle.dumps(info)))


def test_table_info_of_a_log_table() -> None:
    info = _info(TableDescriptor(Schema(FIELDS), bucket_count=1))
    assert not info.has_primary_key()
    assert not info.has_bucket_key()
    assert not info.is_partitioned()
    assert not info.is_auto_partitioned()
    assert info.has_default_bucket_key
    assert (info.log_format, info.kv_format, info.kv_format_version) == ("ARROW", "COMPACTED", 1)
    assert info.lake_format is None
    assert info.arrow_compression == ("ZSTD", 3)
    assert info.comment is None
    keyed = _info(TableDescriptor(Schema(FIELDS), bucket_count=1, bucket_keys=["id"]))
    assert not keyed.has_default_bucket_key
    assert keyed.has_bucket_key()


def test_bucket_key_that_is_not_the_default() -> None:
    descriptor = TableDescriptor(Schema(FIELDS, ["dt", "id"]), bucket_count=1, bucket_keys=["dt"])
    assert not _info(descriptor).has_default_bucket_key


def test_table_info_needs_the_number_of_buckets() -> None:
    with pytest.raises(FormatError, match=r"db\.t lacks bucket_count"):
        _info(TableDescriptor(Schema(FIELDS)))


def test_database_info() -> None:
    info = DatabaseInfo("db", DatabaseDescriptor("c"), 1, 2)
    assert (info.database_name, info.created_time, info.modified_time) == ("db", 1, 2)
    assert info.get_database_descriptor() == info.database_descriptor == DatabaseDescriptor("c")
    assert "database_name='db'" in repr(info)


def test_server_node() -> None:
    coordinator = ServerNode(0, "h", 1, "CoordinatorServer")
    assert (coordinator.id, coordinator.host, coordinator.port, coordinator.uid) == (0, "h", 1, "cs-0")
    assert ServerNode(1, "h", 2, "TabletServer").uid == "ts-1"
    assert str(coordinator) == "cs-0 at h:1"
    assert len({coordinator, ServerNode(0, "h", 1, "CoordinatorServer")}) == 1


def test_lake_snapshot() -> None:
    buckets = {TableBucket(1, 0): 10, TableBucket(1, 1): 20}
    snapshot = LakeSnapshot(5, buckets)
    assert snapshot.snapshot_id == 5
    assert snapshot.table_buckets_offset == buckets
    assert snapshot.get_bucket_offset(TableBucket(1, 1)) == 20
    assert snapshot.get_bucket_offset(TableBucket(2, 1)) is None
    assert snapshot.get_table_buckets() == list(buckets)
    assert str(snapshot) == "LakeSnapshot(snapshot_id=5, buckets_count=2)"
    assert snapshot == LakeSnapshot(5, dict(buckets))
    assert hash(snapshot) == hash(LakeSnapshot(5, buckets))
    assert snapshot != LakeSnapshot(5)
    assert snapshot != 5
    assert LakeSnapshot(snapshot_id=3).get_table_buckets() == []


def test_offset_spec() -> None:
    assert repr(OffsetSpec.earliest()) == "OffsetSpec.earliest()"
    assert repr(OffsetSpec.latest()) == "OffsetSpec.latest()"
    assert repr(OffsetSpec.timestamp(5)) == "OffsetSpec.timestamp(5)"
    assert OffsetSpec.timestamp(5).timestamp_ms == 5
    assert OffsetSpec.latest() == OffsetSpec("latest")
    assert (EARLIEST_OFFSET, LATEST_OFFSET) == (-2, -1)
    for arguments in (("first",), ("latest", 5), ("timestamp",), ("timestamp", "now"), ("timestamp", True)):
        with pytest.raises(InvalidArgumentError):
            OffsetSpec(*arguments)  # type: ignore[arg-type]
