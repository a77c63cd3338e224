# SPDX-License-Identifier: Apache-2.0
"""The rows of a primary-key bucket: as of an offset of its changelog, as of now, or as some changes leave them."""

from __future__ import annotations

from collections.abc import Iterator

from fluss import aio
from fluss.aio import RecordBatch
from fluss.client.blocking_client import BlockingClient
from fluss.client.scan.fold import fold_batches
from fluss.metadata import TableBucket, TableInfo


def rows_as_of(
    client: BlockingClient, table: aio.FlussTable, bucket: TableBucket, offset: int | None, columns: list[str]
) -> Iterator[RecordBatch]:
    """The live rows of a bucket after all changes below `offset` (None: as of now, in whatever state it is)."""
    info = table.get_table_info()
    needed = _with_key(columns, info)
    if offset is not None:
        yield from client.rows_as_of(info, bucket, offset, needed)
        return
    scanner = client.call(lambda: table.new_scan().project_by_name(needed).create_bucket_batch_scanner(bucket))
    try:
        while (found := client.run(scanner.next_batch())) is not None:
            yield found
    finally:
        client.run(scanner.close())


def folded_rows(
    client: BlockingClient, table: aio.FlussTable, bucket: TableBucket, start: int, stop: int, columns: list[str]
) -> list[RecordBatch]:
    """The last row of each key changed in [start, stop), without those whose last change is a delete."""
    info = table.get_table_info()
    needed = _with_key(columns, info)
    scan = client.call(lambda: table.new_scan().project_by_name(needed))
    batches = list(client.iterate(scan.read_batches({bucket: start}, {bucket: stop})))
    return fold_batches(batches, [needed.index(name) for name in info.physical_primary_key])


def _with_key(columns: list[str], info: TableInfo) -> list[str]:
    return list(dict.fromkeys([*columns, *info.physical_primary_key]))
