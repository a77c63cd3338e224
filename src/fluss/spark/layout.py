# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a table lie: its buckets, and their offsets now, at a time, or as a user gave them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluss.client.blocking_client import BlockingClient
from fluss.errors import ConfigError, InvalidTimestampError
from fluss.metadata import OffsetSpec, TableBucket, TableInfo
from fluss.spark.option_types import EARLIEST, LATEST, Offsets


@dataclass(frozen=True, order=True)
class Bucket:
    """One bucket of a table or of one of its partitions."""

    partition_id: int
    """-1 where the table has no partitions."""
    bucket: int
    partition_name: str = ""

    @property
    def key(self) -> str:
        """How the bucket is called in the offsets of a stream."""
        return str(self.bucket) if self.partition_id < 0 else f"{self.partition_id}/{self.bucket}"

    def of(self, table_id: int) -> TableBucket:
        if self.partition_id < 0:
            return TableBucket(table_id, self.bucket)
        return TableBucket.with_partition(table_id, self.partition_id, self.bucket)

    def __str__(self) -> str:
        where = f" of partition '{self.partition_name}'" if self.partition_id >= 0 else ""
        return f"bucket {self.bucket}{where}"


@dataclass(frozen=True)
class Layout:
    """The buckets of a table at one moment."""

    client: BlockingClient
    info: TableInfo
    partitions: Mapping[int, str]
    """Id to name; -1 to the empty name where the table has no partitions."""
    counts: Mapping[int, int | None] = field(default_factory=dict)
    """How many buckets partitions have, by id; without an entry as many as the table."""

    @staticmethod
    def load(client: BlockingClient, info: TableInfo, wanted: Collection[str] | None = None) -> Layout:
        """The buckets of a table, or of the wanted partitions of it."""
        if not info.is_partitioned():
            if wanted is not None:
                raise ConfigError(f"scan.partitions: table {info.table_path} has no partitions")
            return Layout(client, info, {-1: ""})
        found = client.run(client.admin.list_partition_infos(info.table_path))
        partitions = {part.partition_id: part.partition_name for part in found}
        if wanted is not None:
            missing = set(wanted) - set(partitions.values())
            if missing:
                raise ConfigError(
                    f"scan.partitions: table {info.table_path} has no partition {', '.join(sorted(missing))}"
                )
            partitions = {i: name for i, name in partitions.items() if name in wanted}
        return Layout(client, info, partitions, {part.partition_id: part.bucket_count for part in found})

    def keep(self, partitions: Mapping[int, str]) -> Layout:
        return Layout(self.client, self.info, partitions, self.counts)

    @property
    def buckets(self) -> list[Bucket]:
        return [
            Bucket(partition_id, bucket, name)
            for partition_id, name in sorted(self.partitions.items())
            for bucket in range(self.counts.get(partition_id) or self.info.num_buckets)
        ]

    # -- offsets --------------------------------------------------------------------------------------------------

    def earliest(self) -> dict[Bucket, int]:
        return self._offsets(OffsetSpec.earliest())

    def latest(self) -> dict[Bucket, int]:
        return self._offsets(OffsetSpec.latest())

    def at(self, timestamp_ms: int) -> dict[Bucket, int]:
        """The first offset committed at that time or later; the end for times that have not come yet."""
        try:
            return self._offsets(OffsetSpec.timestamp(timestamp_ms))
        except InvalidTimestampError:
            return self.latest()

    def given(self, name: str, offsets: Offsets, others: int) -> dict[Bucket, int]:
        """Offsets as a user gave them; `others` (earliest or latest) where none was given.

        An offset beyond the end of its bucket is refused: a reader would wait there, and skip the rows before it.
        """
        known = {(bucket.partition_name, bucket.bucket): bucket for bucket in self.buckets}
        wanted = dict.fromkeys(self.buckets, others)
        for partition, by_bucket in offsets.items():
            for number, offset in by_bucket.items():
                bucket = known.get((partition, number))
                if bucket is None:
                    where = f"partition '{partition}', " if partition else ""
                    raise ConfigError(f"{name}: table {self.info.table_path} has no {where}bucket {number}")
                wanted[bucket] = offset
        found = {}
        special: dict[int, dict[Bucket, int]] = {}
        if EARLIEST in wanted.values():
            special[EARLIEST] = self.earliest()
        if LATEST in wanted.values() or any(offset > 0 for offset in wanted.values()):
            special[LATEST] = self.latest()
        for bucket, offset in wanted.items():
            if offset > 0 and offset > (end := special[LATEST].get(bucket, 0)):
                raise ConfigError(
                    f"{name}: offset {offset} is beyond the end of {bucket} of {self.info.table_path}, which is {end}; "
                    "give an offset up to it, or -1 for the end"
                )
            found[bucket] = special[offset][bucket] if offset < 0 else offset
        return found

    def _offsets(self, spec: OffsetSpec) -> dict[Bucket, int]:
        """Offsets of all buckets. Partitions dropped since they were listed have no rows any more, and are left out."""
        buckets = {bucket.of(self.info.table_id): bucket for bucket in self.buckets}
        names = {one: bucket.partition_name or None for one, bucket in buckets.items()}
        found = self.client.offsets(self.info, names, spec)
        return {buckets[one]: offset for one, offset in found.items()}


def to_json(info: TableInfo, offsets: Mapping[Bucket, int]) -> dict[str, Any]:
    """Offsets as Spark keeps them in a checkpoint."""
    names = {str(b.partition_id): b.partition_name for b in offsets if b.partition_id >= 0}
    document: dict[str, Any] = {"table_id": info.table_id, "offsets": {b.key: o for b, o in sorted(offsets.items())}}
    if names:
        document["partitions"] = names
    return document


def from_json(document: Mapping[str, Any]) -> dict[Bucket, int]:
    """The reverse of `to_json`."""
    names = document.get("partitions", {})
    offsets = {}
    for key, offset in document["offsets"].items():
        partition, _, bucket = key.rpartition("/")
        if partition:
            offsets[Bucket(int(partition), int(bucket), names[partition])] = int(offset)
        else:
            offsets[Bucket(-1, int(bucket))] = int(offset)
    return offsets


def rows_between(start: Mapping[Bucket, int], stop: Mapping[Bucket, int], buckets: Iterable[Bucket]) -> int:
    return sum(max(0, stop[bucket] - start.get(bucket, 0)) for bucket in buckets)
