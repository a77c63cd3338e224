# SPDX-License-Identifier: Apache-2.0
"""The smaller JSON documents: lake snapshots, offsets, remote log manifests and file system tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluss.errors import FormatError
from fluss.metadata.checks import (
    JsonDocument,
    json_bytes,
    member,
    optional_member,
    parse_json,
    read_document,
    read_objects,
    require,
)
from fluss.metadata.path import TableBucket

UNKNOWN_OFFSET = -1

BUCKET_ID_MAX = 1_000_000
"""Offsets are stored as a list by bucket id; a larger id would make the list absurdly long."""


@dataclass(frozen=True)
class LakeSnapshotFiles:
    """One snapshot of a lake table: the files with the offsets it holds. The names are those of the document."""

    snapshot_id: int
    tiered_offsets: str | None
    readable_offsets: str | None = None


@dataclass(frozen=True)
class LakeTable(JsonDocument):
    """What is known of a lake table: its snapshots, oldest first.

    Version 1 of the document holds one snapshot with its offsets in it; version 2 names files.
    """

    document_name = "lake_table"

    snapshots: tuple[LakeSnapshotFiles, ...] = ()
    offsets: LakeOffsets | None = None
    """The offsets of a version 1 document."""

    def to_json(self) -> dict[str, Any]:
        """The document, in version 2."""
        items = [{name: value for name, value in vars(one).items() if value is not None} for one in self.snapshots]
        return {"version": 2, "lake_snapshots": items}

    @classmethod
    def from_json(cls, document: Any, where: str = "lake_table") -> LakeTable:
        """Read the document in version 1 or 2."""
        document = read_document(document, where, 2)
        if document.get("version", 1) == 1:
            snapshot_id = member(document, "snapshot_id", int, where)
            return LakeTable((LakeSnapshotFiles(snapshot_id, None),), _offsets_of_version_1(document, where))
        snapshots = [
            LakeSnapshotFiles(
                member(item, "snapshot_id", int, place),
                optional_member(item, "tiered_offsets", str, place),
                optional_member(item, "readable_offsets", str, place),
            )
            for item, place in read_objects(document.get("lake_snapshots"), f"{where}.lake_snapshots")
        ]
        return LakeTable(tuple(snapshots))


def _offsets_of_version_1(document: dict[str, Any], where: str) -> LakeOffsets:
    table_id = member(document, "table_id", int, where)
    offsets = {}
    for item, place in read_objects(document.get("buckets", []), f"{where}.buckets"):
        bucket_id = member(item, "bucket_id", int, place)
        bucket = TableBucket(table_id, bucket_id, optional_member(item, "partition_id", int, place))
        offset = optional_member(item, "log_end_offset", int, place)
        if offset is not None:
            offsets[bucket] = offset
    return LakeOffsets(table_id, offsets)


@dataclass(frozen=True)
class LakeOffsets(JsonDocument):
    """The offsets file of a snapshot: per bucket, where the log goes on."""

    document_name = "lake_offsets"

    table_id: int
    offsets: Mapping[TableBucket, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document. Buckets without an offset are written as -1."""
        by_partition: dict[int | None, dict[int, int]] = {}
        for bucket, offset in self.offsets.items():
            if not 0 <= bucket.bucket_id <= BUCKET_ID_MAX:
                raise FormatError(
                    f"lake offsets of table {self.table_id}: bucket id {bucket.bucket_id} is out of range"
                )
            by_partition.setdefault(bucket.partition_id, {})[bucket.bucket_id] = offset
        document: dict[str, Any] = {"version": 1, "table_id": self.table_id}
        if None in by_partition:
            if len(by_partition) > 1:
                raise FormatError(f"lake offsets of table {self.table_id}: buckets with and without a partition")
            document["bucket_offsets"] = _dense(by_partition[None])
        elif by_partition:
            document["partition_offsets"] = [
                {"partition_id": partition_id, "bucket_offsets": _dense(offsets)}
                for partition_id, offsets in by_partition.items()
            ]
        return document

    @classmethod
    def from_json(cls, document: Any, where: str = "lake_offsets") -> LakeOffsets:
        """Read the document."""
        document = read_document(document, where, 1)
        table_id = member(document, "table_id", int, where)
        if "bucket_offsets" in document and "partition_offsets" in document:
            raise FormatError(f"{where}: has both bucket_offsets and partition_offsets")
        offsets: dict[TableBucket, int] = {}

        def add(partition_id: int | None, items: Any, place: str) -> None:
            for bucket_id, offset in enumerate(require(items, list, place)):
                if require(offset, int, f"{place}[{bucket_id}]") != UNKNOWN_OFFSET:
                    offsets[TableBucket(table_id, bucket_id, partition_id)] = offset

        add(None, document.get("bucket_offsets", []), f"{where}.bucket_offsets")
        for item, place in read_objects(document.get("partition_offsets", []), f"{where}.partition_offsets"):
            partition_id = member(item, "partition_id", int, place)
            add(partition_id, item.get("bucket_offsets"), f"{place}.bucket_offsets")
        return LakeOffsets(table_id, offsets)


def _dense(offsets: dict[int, int]) -> list[int]:
    return [offsets.get(bucket_id, UNKNOWN_OFFSET) for bucket_id in range(max(offsets) + 1)]


@dataclass(frozen=True)
class RemoteLogSegment:
    """One log segment in remote storage. The names are those of the document."""

    segment_id: str
    start_offset: int
    end_offset: int
    """The offset after the last record."""
    max_timestamp: int
    size_in_bytes: int


@dataclass(frozen=True)
class RemoteLogManifestFile(JsonDocument):
    """The remote log segments of a bucket."""

    document_name = "remote_log_manifest"

    database: str
    table: str
    bucket: TableBucket
    partition_name: str | None = None
    segments: tuple[RemoteLogSegment, ...] = ()

    @property
    def end_offset(self) -> int:
        """The offset after the last record in remote storage; -1 if there is none."""
        return max((segment.end_offset for segment in self.segments), default=UNKNOWN_OFFSET)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        document: dict[str, Any] = {
            "version": 1,
            "database": self.database,
            "table": self.table,
            "table_id": self.bucket.table_id,
            "bucket_id": self.bucket.bucket_id,
            "remote_log_segments": [dict(vars(segment)) for segment in self.segments],
        }
        if self.partition_name is not None:
            document["partition_name"] = self.partition_name
            document["partition_id"] = self.bucket.partition_id
        return document

    @classmethod
    def from_json(cls, document: Any, where: str = "remote_log_manifest") -> RemoteLogManifestFile:
        """Read the document."""
        document = read_document(document, where, 1)
        numbers = ("start_offset", "end_offset", "max_timestamp", "size_in_bytes")
        segments = [
            RemoteLogSegment(
                member(item, "segment_id", str, place), *(member(item, key, int, place) for key in numbers)
            )
            for item, place in read_objects(document.get("remote_log_segments"), f"{where}.remote_log_segments")
        ]
        return RemoteLogManifestFile(
            member(document, "database", str, where),
            member(document, "table", str, where),
            TableBucket(
                member(document, "table_id", int, where),
                member(document, "bucket_id", int, where),
                optional_member(document, "partition_id", int, where),
            ),
            optional_member(document, "partition_name", str, where),
            tuple(segments),
        )


@dataclass(frozen=True)
class RemoteLogPointer:
    """Where the current manifest of a bucket lies, and how far it goes."""

    manifest_path: str
    end_offset: int

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "version": 1,
            "remote_log_manifest_path": self.manifest_path,
            "remote_log_end_offset": self.end_offset,
        }

    @staticmethod
    def from_json(document: Any, where: str = "remote_log_pointer") -> RemoteLogPointer:
        """Read the document."""
        document = read_document(document, where, 1)
        return RemoteLogPointer(
            member(document, "remote_log_manifest_path", str, where),
            member(document, "remote_log_end_offset", int, where),
        )


@dataclass(frozen=True)
class FileSystemCredentials:
    """Credentials for remote files. They never show in a repr."""

    access_key_id: str = field(repr=False)
    access_key_secret: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def to_json_bytes(self) -> bytes:
        """The token as UTF-8 text."""
        document = {"access_key_id": self.access_key_id, "access_key_secret": self.access_key_secret}
        if self.security_token is not None:
            document["security_token"] = self.security_token
        return json_bytes(document)

    @staticmethod
    def from_json_bytes(data: bytes | bytearray | memoryview) -> FileSystemCredentials | None:
        """Read a token; empty bytes mean that none is needed."""
        if not len(data):
            return None
        where = "file_system_token"
        document = parse_json(data, where)
        # The values are secrets, so no error may quote them.
        if not isinstance(document, dict):
            raise FormatError(f"{where}: expected an object")
        values = [document.get(key) for key in ("access_key_id", "access_key_secret", "security_token")]
        if not isinstance(values[0], str) or not isinstance(values[1], str):
            raise FormatError(f"{where}: access_key_id and access_key_secret must be strings")
        if values[2] is not None and not isinstance(values[2], str):
            raise FormatError(f"{where}: security_token must be a string")
        return FileSystemCredentials(values[0], values[1], values[2])
