# SPDX-License-Identifier: Apache-2.0
"""The smaller JSON documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FormatError
from fluss.metadata import (
    FileSystemCredentials,
    LakeOffsets,
    LakeSnapshotFiles,
    LakeTable,
    RemoteLogManifestFile,
    RemoteLogPointer,
    RemoteLogSegment,
    TableBucket,
)

MANIFEST: dict[str, Any] = {
    "version": 1,
    "database": "db",
    "table": "t",
    "partition_name": "20240115",
    "table_id": 7,
    "partition_id": 2,
    "bucket_id": 0,
    "remote_log_segments": [
        {
            "segment_id": "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
            "start_offset": 0,
            "end_offset": 1000,
            "max_timestamp": 1700000000000,
            "size_in_bytes": 65536,
        }
    ],
}


def test_lake_table() -> None:
    document = {
        "version": 2,
        "lake_snapshots": [
            {"snapshot_id": 5, "tiered_offsets": "p/metadata/a.offsets", "readable_offsets": "p/metadata/b.offsets"},
            {"snapshot_id": 6, "tiered_offsets": "p/metadata/c.offsets"},
            {"snapshot_id": 7},
        ],
    }
    lake_table = LakeTable.from_json(document)
    assert lake_table.snapshots[0] == LakeSnapshotFiles(5, "p/metadata/a.offsets", "p/metadata/b.offsets")
    assert lake_table.snapshots[1].readable_offsets is None
    assert lake_table.to_json() == document
    assert LakeTable.from_json_bytes(lake_table.to_json_bytes()) == lake_table
    assert LakeTable().to_json() == {"version": 2, "lake_snapshots": []}


def test_lake_table_of_version_1() -> None:
    text = (
        b'{"version":1,"snapshot_id":5,"table_id":7,"buckets":[{"partition_id":2,"bucket_id":0,"log_end_offset":100},'
        b'{"partition_id":2,"bucket_id":1}]}'
    )
    lake_table = LakeTable.from_json_bytes(text)
    assert lake_table.snapshots == (LakeSnapshotFiles(5, None),)
    assert lake_table.offsets == LakeOffsets(7, {TableBucket(7, 0, 2): 100})


@pytest.mark.parametrize(
    ("document", "offsets"),
    [
        (
            {"version": 1, "table_id": 7, "bucket_offsets": [100, -1, 55]},
            {TableBucket(7, 0): 100, TableBucket(7, 2): 55},
        ),
        (
            {"version": 1, "table_id": 7, "partition_offsets": [{"partition_id": 2, "bucket_offsets": [100]}]},
            {TableBucket(7, 0, 2): 100},
        ),
        ({"version": 1, "table_id": 7}, {}),
    ],
)
def test_lake_offsets(document: dict[str, Any], offsets: dict[TableBucket, int]) -> None:
    read = LakeOffsets.from_json(document)
    assert read == LakeOffsets(7, offsets)
    assert read.to_json() == document
    assert LakeOffsets.from_json_bytes(read.to_json_bytes()) == read


@given(
    st.dictionaries(st.integers(0, 20), st.integers(0, 2**62), max_size=5),
    st.lists(st.integers(0, 3), unique=True, max_size=3),
)
def test_any_lake_offsets_survive(offsets: dict[int, int], partitions: list[int]) -> None:
    buckets = {
        TableBucket(1, bucket, partition): offset
        for partition in (partitions or [None])  # type: ignore[list-item]
        for bucket, offset in offsets.items()
    }
    assert LakeOffsets.from_json_bytes(LakeOffsets(1, buckets).to_json_bytes()) == LakeOffsets(1, buckets)


def test_lake_offsets_that_cannot_be_written() -> None:
    with pytest.raises(FormatError, match="with and without a partition"):
        LakeOffsets(1, {TableBucket(1, 0): 1, TableBucket(1, 0, 5): 1}).to_json()
    for bucket_id in (-1, 2**31):
        with pytest.raises(FormatError, match="out of range"):
            LakeOffsets(1, {TableBucket(1, bucket_id): 1}).to_json()


def test_remote_log_manifest() -> None:
    manifest = RemoteLogManifestFile.from_json(MANIFEST)
    assert manifest.bucket == TableBucket(7, 0, 2)
    assert manifest.segments[0].size_in_bytes == 65536
    assert manifest.end_offset == 1000
    assert manifest.to_json() == MANIFEST
    assert RemoteLogManifestFile.from_json_bytes(manifest.to_json_bytes()) == manifest
    plain = RemoteLogManifestFile("db", "t", TableBucket(7, 0), segments=(RemoteLogSegment("x", 0, 1, 2, 3),))
    assert "partition_id" not in plain.to_json()
    assert RemoteLogManifestFile.from_json(plain.to_json()) == plain
    assert RemoteLogManifestFile("db", "t", TableBucket(7, 0)).end_offset == -1


def test_remote_log_pointer() -> None:
    document = {"version": 1, "remote_log_manifest_path": "p/m", "remote_log_end_offset": 1000}
    pointer = RemoteLogPointer.from_json(document)
    assert (pointer.manifest_path, pointer.end_offset) == ("p/m", 1000)
    assert pointer.to_json() == document


@pytest.mark.parametrize(
    ("read", "document", "place"),
    [
        (LakeTable.from_json, {"version": 3}, "lake_table.version"),
        (LakeTable.from_json, {"version": 2}, "lake_table.lake_snapshots"),
        (LakeTable.from_json, {"version": 2, "lake_snapshots": [1]}, "lake_snapshots[0]"),
        (LakeTable.from_json, {"version": 2, "lake_snapshots": [{}]}, "lake_snapshots[0].snapshot_id"),
        (LakeTable.from_json, {"version": 1, "table_id": 1}, "lake_table.snapshot_id"),
        (LakeTable.from_json, {"version": 1, "snapshot_id": 1, "table_id": 1, "buckets": [{}]}, "buckets[0].bucket_id"),
        (LakeOffsets.from_json, {"table_id": 1, "bucket_offsets": ["x"]}, "bucket_offsets[0]"),
        (LakeOffsets.from_json, {"table_id": 1, "bucket_offsets": [], "partition_offsets": []}, "both"),
        (LakeOffsets.from_json, {"table_id": 1, "partition_offsets": [{}]}, "partition_offsets[0].partition_id"),
        (LakeOffsets.from_json, {}, "lake_offsets.table_id"),
        (
            RemoteLogManifestFile.from_json,
            {**MANIFEST, "remote_log_segments": [{}]},
            "remote_log_segments[0].segment_id",
        ),
        (RemoteLogManifestFile.from_json, {**MANIFEST, "table_id": None}, "remote_log_manifest.table_id"),
        (RemoteLogPointer.from_json, {}, "remote_log_manifest_path"),
    ],
)
def test_broken_documents_name_the_place(read: Any, document: dict[str, Any], place: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(document)
    assert place in caught.value.message


def test_file_system_token() -> None:
    assert FileSystemCredentials.from_json_bytes(b"") is None
    token = FileSystemCredentials("id", "hidden", "hidden too")
    assert FileSystemCredentials.from_json_bytes(token.to_json_bytes()) == token
    short = FileSystemCredentials("id", "hidden")
    assert json.loads(short.to_json_bytes()) == {"access_key_id": "id", "access_key_secret": "hidden"}
    assert FileSystemCredentials.from_json_bytes(short.to_json_bytes()) == short
    assert "hidden" not in repr(token)


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b'{"access_key_id":"hidden"}',
        b'{"access_key_id":"hidden","access_key_secret":["hidden"]}',
        b'{"access_key_id":"hidden","access_key_secret":"hidden","security_token":["hidden"]}',
        b'{"access_key_id":"hidden"',
    ],
)
def test_broken_tokens_stay_secret(text: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        FileSystemCredentials.from_json_bytes(text)
    assert "hidden" not in str(caught.value)
