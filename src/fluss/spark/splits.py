# SPDX-License-Identifier: Apache-2.0
"""What one Spark task reads, and how a table is cut into such pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from fluss.spark.layout import Bucket

LOG = "log"
"""Every record between two offsets."""
ROWS = "rows"
"""The current rows of a primary-key table as of an offset."""
FOLDED = "folded"
"""The last row of every key changed between two offsets."""


class Split(InputPartition):  # type: ignore[misc]
    """A range of one bucket's log, or its rows as of the end of that range."""

    def __init__(self, table_id: int, bucket: Bucket, start: int, stop: int, kind: str = LOG) -> None:
        self.table_id = table_id
        self.bucket = bucket
        self.start = start
        self.stop = stop
        self.kind = kind

    @property
    def rows_max(self) -> int:
        return self.stop - self.start


class FoundRows(InputPartition):  # type: ignore[misc]
    """Rows of a primary-key table that a filter names by their keys, looked up when the read was planned.

    A task that runs again must not see newer rows: an UPDATE that adds to a column would add twice.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows


class Nothing(InputPartition):  # type: ignore[misc]
    """Nothing to read: Spark wants at least one partition."""

    def __init__(self) -> None:
        super().__init__(None)


def cut(
    table_id: int,
    start: Mapping[Bucket, int],
    stop: Mapping[Bucket, int],
    *,
    rows_max: int | None = None,
    splits_min: int | None = None,
) -> list[Split]:
    """One piece per bucket with rows; more where there is a limit, or too few of them."""
    ranges = [(bucket, start[bucket], stop[bucket]) for bucket in sorted(start) if stop[bucket] > start[bucket]]
    total = sum(end - begin for _, begin, end in ranges)
    size = rows_max or 2**63
    if splits_min is not None and total and len(ranges) < splits_min:
        size = min(size, math.ceil(total / splits_min))
        # Rounding up per bucket gives at least the number asked for.
    splits = []
    for bucket, begin, end in ranges:
        parts = max(1, math.ceil((end - begin) / size))
        bounds = [begin + (end - begin) * i // parts for i in range(parts + 1)]
        splits += [Split(table_id, bucket, low, high) for low, high in itertools.pairwise(bounds) if high > low]
    return splits
