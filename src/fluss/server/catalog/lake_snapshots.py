# SPDX-License-Identifier: Apache-2.0
"""What the lake holds of one table: committed snapshots, each with the log offset its buckets reach."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fluss.errors import FormatError

BucketKey = tuple["int | None", int]
"""Partition id (None without partitions) and bucket id."""

Offsets = Mapping[BucketKey, int]
"""Exclusive end offsets: everything below is in the lake. Buckets that were never tiered are absent."""

_BUCKETS_MAX = 10_000_000


@dataclass(frozen=True)
class LakeSnapshotEntry:
    snapshot_id: int
    offsets: Offsets
    tiered_path: str | None = None
    readable_path: str | None = None
    readable_offsets: Offsets | None = None
    max_timestamps: Mapping[BucketKey, int] = field(default_factory=dict)
    committed_time: int = 0

    def of_partitions(self, partition_ids: Container[int]) -> LakeSnapshotEntry:
        readable = self.readable_offsets
        return replace(
            self,
            offsets=of_partitions(self.offsets, partition_ids),
            readable_offsets=None if readable is None else of_partitions(readable, partition_ids),
            max_timestamps=of_partitions(self.max_timestamps, partition_ids),
        )

    def is_ahead_of(self, other: LakeSnapshotEntry) -> bool:
        """Whether it has rows that the other one lacks, and all rows that the other one has."""
        has_all = all(offset <= self.offsets.get(bucket, -1) for bucket, offset in other.offsets.items())
        return has_all and any(offset > other.offsets.get(bucket, -1) for bucket, offset in self.offsets.items())


class LakeSnapshots:
    """The retained snapshots of a table, oldest first, and the highest offset each bucket ever reached."""

    def __init__(self, snapshots: Iterable[LakeSnapshotEntry] = (), end_offsets: Offsets | None = None) -> None:
        self.snapshots = tuple(snapshots)
        self.end_offsets: dict[BucketKey, int] = dict(end_offsets or {})

    @property
    def latest(self) -> LakeSnapshotEntry | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def latest_readable(self) -> LakeSnapshotEntry | None:
        return next((entry for entry in reversed(self.snapshots) if entry.readable_offsets is not None), None)

    def by_id(self, snapshot_id: int) -> LakeSnapshotEntry | None:
        return next((entry for entry in self.snapshots if entry.snapshot_id == snapshot_id), None)

    def end_offset(self, partition_id: int | None, bucket_id: int) -> int | None:
        return self.end_offsets.get((partition_id, bucket_id))

    def with_commit(self, entry: LakeSnapshotEntry, keep_from_id: int | None) -> LakeSnapshots:
        """``keep_from_id``: None keeps only the newest; an id keeps from there on; -1 or an unknown id keeps all."""
        # Committing an id again replaces it: the two-step commit of a worker may be repeated after a crash.
        at = self._place_of(entry)
        placed = (*self.snapshots[:at], entry, *self.snapshots[at:])
        kept = [one for one in placed if one is entry or one.snapshot_id != entry.snapshot_id]
        ids = [one.snapshot_id for one in kept]
        if keep_from_id is None:
            kept = kept[-1:]
        elif keep_from_id in ids:
            kept = kept[ids.index(keep_from_id) :]
        ends = dict(self.end_offsets)
        for bucket, offset in entry.offsets.items():
            ends[bucket] = max(offset, ends.get(bucket, offset))
        return LakeSnapshots(kept, ends)

    def _place_of(self, entry: LakeSnapshotEntry) -> int:
        """Return how many snapshots are older: a worker may report its own after the next worker reported a newer one.

        Ids do not decide that, because those of Iceberg are random numbers.
        """
        for place, old in enumerate(self.snapshots):
            is_repeated = old.snapshot_id == entry.snapshot_id and old.offsets == entry.offsets
            if is_repeated or old.is_ahead_of(entry):
                return place
        return len(self.snapshots)

    def of_partitions(self, partition_ids: Container[int]) -> LakeSnapshots:
        """The same without partitions that are gone: their ids never come back, and there are more every day."""
        snapshots = (entry.of_partitions(partition_ids) for entry in self.snapshots)
        return LakeSnapshots(snapshots, of_partitions(self.end_offsets, partition_ids))

    def to_json(self) -> dict[str, Any]:
        return {
            "snapshots": [
                {
                    "snapshot_id": entry.snapshot_id,
                    "offsets": _offsets_to_list(entry.offsets),
                    "tiered_path": entry.tiered_path,
                    "readable_path": entry.readable_path,
                    "readable_offsets": None
                    if entry.readable_offsets is None
                    else _offsets_to_list(entry.readable_offsets),
                    "max_timestamps": _offsets_to_list(entry.max_timestamps),
                    "committed_time": entry.committed_time,
                }
                for entry in self.snapshots
            ],
            "end_offsets": _offsets_to_list(self.end_offsets),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> LakeSnapshots:
        snapshots = [
            LakeSnapshotEntry(
                int(item["snapshot_id"]),
                _offsets_from_list(item["offsets"]),
                item["tiered_path"],
                item["readable_path"],
                None if item["readable_offsets"] is None else _offsets_from_list(item["readable_offsets"]),
                _offsets_from_list(item["max_timestamps"]),
                int(item["committed_time"]),
            )
            for item in content["snapshots"]
        ]
        return cls(snapshots, _offsets_from_list(content["end_offsets"]))


def of_partitions(offsets: Offsets, partition_ids: Container[int]) -> dict[BucketKey, int]:
    """The offsets of these partitions, and of buckets without one."""
    return {key: offset for key, offset in offsets.items() if key[0] is None or key[0] in partition_ids}


def _offsets_to_list(offsets: Offsets) -> list[list[int | None]]:
    return [[partition_id, bucket_id, offset] for (partition_id, bucket_id), offset in offsets.items()]


def _offsets_from_list(items: Iterable[Any]) -> dict[BucketKey, int]:
    return {(partition_id, bucket_id): offset for partition_id, bucket_id, offset in items}


# ---------------------------------------------------------------------- the offsets file, which other programs read


def encode_offsets_file(table_id: int, offsets: Offsets, *, partitioned: bool) -> bytes:
    def by_bucket(part: Mapping[int, int]) -> list[int]:
        return [part.get(bucket, -1) for bucket in range(max(part, default=-1) + 1)]

    document: dict[str, Any] = {"version": 1, "table_id": table_id}
    if partitioned:
        parts: dict[int, dict[int, int]] = {}
        for (partition_id, bucket), offset in offsets.items():
            if partition_id is not None:
                parts.setdefault(partition_id, {})[bucket] = offset
        document["partition_offsets"] = [
            {"partition_id": partition_id, "bucket_offsets": by_bucket(part)}
            for partition_id, part in sorted(parts.items())
        ]
    else:
        document["bucket_offsets"] = by_bucket({bucket: offset for (_, bucket), offset in offsets.items()})
    return json.dumps(document, separators=(",", ":")).encode()


def decode_offsets_file(data: bytes, table_id: int) -> dict[BucketKey, int]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the lake offsets file of table {table_id} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != 1:
        raise FormatError(f"the lake offsets file of table {table_id} is no document of version 1")
    if document.get("table_id") != table_id:
        raise FormatError(f"the lake offsets file is about table {document.get('table_id')!r}, not {table_id}")
    offsets: dict[BucketKey, int] = {}

    def add(partition_id: int | None, values: object) -> None:
        if not isinstance(values, list) or len(values) > _BUCKETS_MAX:
            raise FormatError(f"field 'bucket_offsets' of the lake offsets file of table {table_id} is no list")
        for bucket, offset in enumerate(values):
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise FormatError(
                    f"offset of bucket {bucket} in the lake offsets file of table {table_id} is no integer"
                )
            if offset >= 0:
                offsets[(partition_id, bucket)] = offset

    if "partition_offsets" in document:
        parts = document["partition_offsets"]
        if not isinstance(parts, list):
            raise FormatError(f"field 'partition_offsets' of the lake offsets file of table {table_id} is no list")
        for part in parts:
            if not isinstance(part, dict) or not isinstance(part.get("partition_id"), int):
                raise FormatError(f"field 'partition_id' of the lake offsets file of table {table_id} is no integer")
            add(part["partition_id"], part.get("bucket_offsets"))
    else:
        add(None, document.get("bucket_offsets"))
    return offsets
