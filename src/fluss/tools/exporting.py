# SPDX-License-Identifier: Apache-2.0
"""Exporting a table to a file or to folders, at one point in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from fluss.errors import InvalidArgumentError
from fluss.tools.files import format_of, open_writer, write_folders

if TYPE_CHECKING:
    from fluss.db.blocking import Table


def export_table(
    table: Table[Any],
    target: str | IO[bytes],
    *,
    kind: str | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    partitioned: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the rows a table has now; gives how many there are.

    Example:
        export_table(db.table("orders"), "orders.parquet")
    """
    rows = 0

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            yield batch
            rows += batch.num_rows
            if progress is not None:
                progress(batch.num_rows)

    if partitioned:
        keys = list(table.info.partition_keys)
        if not keys:
            raise InvalidArgumentError(f"table {table.path} is not partitioned: export it to one file")
        if not isinstance(target, str):
            raise InvalidArgumentError("partitions are written to a folder: name one")
        reader = table.to_reader(columns, where)
        missing = [key for key in keys if key not in reader.schema.names]
        if missing:
            raise InvalidArgumentError(
                f"the partition column {missing[0]!r} is needed for folders: add it to the columns"
            )
        write_folders(counted(iter(reader)), reader.schema, target, keys, kind or "parquet")
        return rows
    if isinstance(target, str):
        kind = format_of(target, kind)
    assert kind is not None
    reader = table.to_reader(columns, where)
    with open_writer(target, kind, reader.schema) as write:
        for batch in counted(iter(reader)):
            write(batch)
    return rows
