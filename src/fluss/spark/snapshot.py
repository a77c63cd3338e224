# SPDX-License-Identifier: Apache-2.0
"""The rows of a primary-key bucket as they were at one offset of its changelog.

A server lists rows as of the moment it is asked, and says which offset that was. What changed between the offset we
want and that one is undone with the images the changelog holds: the first change of a key tells what it was before. So
all buckets show the table at one moment, and reading again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fluss import aio
from fluss.aio import RecordBatch
from fluss.client.blocking_client import BlockingClient
from fluss.errors import InvalidArgumentError, LogOffsetOutOfRangeError
from fluss.metadata import EARLIEST_OFFSET, ChangeType, OffsetSpec, TableBucket, TableInfo
from fluss.rows import Slices, kv_key_encoder


def rows_as_of(
    client: BlockingClient,
    table: aio.FlussTable,
    bucket: TableBucket,
    partition: str,
    offset: int | None,
    columns: list[str],
) -> Iterator[RecordBatch]:
    """The live rows of a bucket after all changes below `offset` (None: as of now, in whatever state it is)."""
    info = table.get_table_info()
    needed = list(dict.fromkeys([*columns, *info.physical_primary_key]))
    scan = client.call(lambda: table.new_scan().project_by_name(needed))
    scanner = client.call(scan.create_bucket_batch_scanner, bucket)
    try:
        first = client.run(scanner.next_batch())
        if offset is None:
            while first is not None:
                yield first
                first = client.run(scanner.next_batch())
            return
        seen = scanner.log_offset
        if seen is None:
            yield from _folded(client, table, bucket, partition, EARLIEST_OFFSET, offset, needed)
            return
        changed = _Changed(info, client, scan, bucket, offset, seen)
        while first is not None:
            yield changed.without(first)
            first = client.run(scanner.next_batch())
        if changed.before is not None:
            yield changed.before
    finally:
        client.run(scanner.close())


class _Changed:
    """The keys that changed in a range of the changelog, and what they were before it."""

    def __init__(
        self, info: TableInfo, client: BlockingClient, scan: aio.TableScan, bucket: TableBucket, start: int, stop: int
    ) -> None:
        self._encoder = kv_key_encoder(info)
        self._names = info.physical_primary_key
        self._keys: set[bytes] = set()
        self.before: RecordBatch | None = None
        if stop <= start:
            return
        parts: list[pa.RecordBatch] = []
        for found in client.iterate(scan.read_batches({bucket: start}, {bucket: stop})):
            at = []
            changes = found.change_types or bytes(found.num_records)
            for i, key in enumerate(self._encode(found.batch)):
                if key in self._keys:
                    continue
                self._keys.add(key)
                if changes[i] in (ChangeType.UpdateBefore, ChangeType.Delete):
                    at.append(i)
                elif changes[i] != ChangeType.Insert:
                    raise InvalidArgumentError(
                        f"table {info.table_path} keeps no images before updates (table.changelog.image), so its rows "
                        "cannot be read as of one moment; set the option read.optimized to true"
                    )
            if at:
                parts.append(found.batch.take(pa.array(at)))
        if parts:
            joined = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
            self.before = RecordBatch(joined, bucket, start, start)

    def without(self, rows: RecordBatch) -> RecordBatch:
        """Rows of the listing whose keys did not change since."""
        if not self._keys:
            return rows
        keep = np.fromiter((key not in self._keys for key in self._encode(rows.batch)), np.bool_, rows.num_records)
        if keep.all():
            return rows
        kept = rows.batch.filter(pa.array(keep))
        return RecordBatch(kept, rows.bucket, rows.base_offset, rows.base_offset + kept.num_rows - 1)

    def _encode(self, batch: pa.RecordBatch) -> list[bytes]:
        names = batch.schema.names
        keys: Slices = self._encoder.encode_columns([batch.column(names.index(name)) for name in self._names])
        return keys.to_list()


def _folded(
    client: BlockingClient,
    table: aio.FlussTable,
    bucket: TableBucket,
    partition: str,
    start: int,
    stop: int,
    columns: list[str],
) -> Iterator[RecordBatch]:
    """For servers that cannot list rows: the whole changelog, folded. It must reach back to the first change."""
    info = table.get_table_info()
    if start == EARLIEST_OFFSET:
        earliest = client.run(_earliest(client, info, bucket, partition))
        if earliest > 0:
            raise LogOffsetOutOfRangeError(
                f"this server cannot list the rows of {info.table_path}, and the changelog of bucket "
                f"{bucket.bucket_id} no longer reaches back to its first change (it starts at {earliest})"
            )
    yield from folded_rows(client, table, bucket, start, stop, columns)


def folded_rows(
    client: BlockingClient, table: aio.FlussTable, bucket: TableBucket, start: int, stop: int, columns: list[str]
) -> Iterator[RecordBatch]:
    """The last row of each key changed in [start, stop), without those whose last change is a delete."""
    info = table.get_table_info()
    encoder, key_names = kv_key_encoder(info), info.physical_primary_key
    needed = list(dict.fromkeys([*columns, *key_names]))
    scan = client.call(lambda: table.new_scan().project_by_name(needed))
    batches: list[RecordBatch] = []
    last: dict[bytes, tuple[int, int]] = {}
    for found in client.iterate(scan.read_batches({bucket: start}, {bucket: stop})):
        names = found.batch.schema.names
        keys = encoder.encode_columns([found.batch.column(names.index(name)) for name in key_names]).to_list()
        last.update(zip(keys, ((len(batches), i) for i in range(len(keys)))))
        batches.append(found)
    wanted: dict[int, list[int]] = {}
    for number, i in last.values():
        changes = batches[number].change_types
        if changes is None or changes[i] not in (ChangeType.Delete, ChangeType.UpdateBefore):
            wanted.setdefault(number, []).append(i)
    for number, at in sorted(wanted.items()):
        found = batches[number]
        at.sort()
        changes = found.change_types
        offsets = [found.base_offset + i for i in at]
        kinds = None if changes is None else bytes(changes[i] for i in at)
        rows = found.batch.take(pa.array(at))
        yield RecordBatch(rows, bucket, offsets[0], offsets[-1], found.timestamp, kinds, offsets, found.writer_id)


async def _earliest(client: BlockingClient, info: TableInfo, bucket: TableBucket, partition: str) -> int:
    spec, buckets = OffsetSpec.earliest(), [bucket.bucket_id]
    if bucket.partition_id is None:
        found = await client.admin.list_offsets(info.table_path, buckets, spec)
    else:
        found = await client.admin.list_partition_offsets(info.table_path, partition, buckets, spec)
    return found[bucket.bucket_id]
