# SPDX-License-Identifier: Apache-2.0
"""What a scan gives: single records with their metadata, or Arrow batches with theirs."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import bytes_list, numpy_of, pandas_is_loaded, string_list, valid_mask
from fluss._lazy import import_extra
from fluss.client.arguments import instance
from fluss.metadata import (
    BigIntType,
    BooleanType,
    BytesType,
    ChangeType,
    CharType,
    DataType,
    DoubleType,
    FloatType,
    IntType,
    SmallIntType,
    StringType,
    TableBucket,
    TimestampLtzType,
    TimestampType,
    TinyIntType,
)
from fluss.rows import logical

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_CHANGE_TYPES = tuple(ChangeType)


class ScanRecord:
    """One record of a log: its row, where it stands in the log, and what it did."""

    # Without an `__init__`, making one costs 100 ns less: a fifth of what a record costs.
    __slots__ = ("_change", "offset", "row", "timestamp")

    _change: int
    offset: int
    """The position of this record in its bucket's log."""
    timestamp: int
    """When the server committed it, in milliseconds since 1970."""
    row: dict[str, Any]
    """The row as `{column name: value}`."""

    @property
    def change_type(self) -> ChangeType:
        """What this record did: appended, inserted, updated (before and after) or deleted."""
        return _CHANGE_TYPES[self._change]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScanRecord):
            return NotImplemented
        mine = (self.offset, self.timestamp, self._change, self.row)
        return mine == (other.offset, other.timestamp, other._change, other.row)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"ScanRecord(offset={self.offset}, timestamp={self.timestamp}, "
            f"change_type={self.change_type.short_string()}, row={self.row})"
        )


class Run:
    """Consecutive records of one bucket as a slice of an Arrow batch, turned into records when they are looked at."""

    __slots__ = ("_rows", "batch", "change_types", "map_pairs", "offsets", "timestamp", "types")

    def __init__(
        self,
        batch: pa.RecordBatch,
        types: Sequence[DataType],
        offsets: Sequence[int],
        timestamp: int,
        change_types: bytes | None,
        *,
        map_pairs: bool = False,
    ) -> None:
        self.batch = batch
        self.types = types
        self.map_pairs = map_pairs
        self.offsets = offsets
        self.timestamp = timestamp
        self.change_types = change_types
        self._rows: list[dict[str, Any]] | None = None
        """Made once: a caller that goes through the records twice sees what it did to a row."""

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def records(self) -> Iterator[ScanRecord]:
        """Make the records, each when it is asked for.

        A record that is dropped before the next one is made never reaches the garbage collector, which would otherwise
        come by after every 700 of them.
        """
        rows = self._rows
        if rows is None:
            rows = self._rows = rows_to_python(self.batch, self.types, map_pairs=self.map_pairs)
        timestamp = self.timestamp
        changes = itertools.repeat(0) if self.change_types is None else self.change_types
        for offset, change, row in zip(self.offsets, changes, rows):
            record = ScanRecord()
            record.offset = offset
            record.timestamp = timestamp
            record._change = change
            record.row = row
            yield record


class ScanRecords:
    """The records of one poll, grouped by bucket: a sequence of records and a mapping from buckets to them.

    Example:
        records = await scanner.poll(timeout_ms=1000)
        first, last, some = records[0], records[-1], records[1:5]
        for bucket, found in records.items():
            print(bucket.bucket_id, len(found))
        for record in records:
            print(record.offset, record.row)
    """

    __slots__ = ("_flat", "_lists", "_runs")

    def __init__(self, runs: dict[TableBucket, list[Run]]) -> None:
        self._runs = runs
        self._lists: dict[TableBucket, list[ScanRecord]] = {}
        self._flat: list[ScanRecord] | None = None

    def _list(self, bucket: TableBucket) -> list[ScanRecord]:
        known = self._lists.get(bucket)
        if known is None:
            known = [record for run in self._runs[bucket] for record in run.records()]
            self._lists[bucket] = known
        return known

    def _all(self) -> list[ScanRecord]:
        if self._flat is None:
            lists = [self._list(bucket) for bucket in self._runs]
            self._flat = lists[0] if len(lists) == 1 else [record for records in lists for record in records]
        return self._flat

    def buckets(self) -> list[TableBucket]:
        """The buckets that have records here."""
        return list(self._runs)

    def records(self, bucket: TableBucket) -> list[ScanRecord]:
        """The records of one bucket in offset order; empty if it has none here."""
        instance("records", "bucket", bucket, TableBucket)
        return list(self._list(bucket)) if bucket in self._runs else []

    def records_by_buckets(self) -> dict[TableBucket, list[ScanRecord]]:
        """All records, grouped by bucket."""
        return {bucket: self._list(bucket) for bucket in self._runs}

    def count(self) -> int:
        """How many records there are in all buckets together."""
        return sum(len(run) for runs in self._runs.values() for run in runs)

    def is_empty(self) -> bool:
        """Whether there is no record at all."""
        return self.count() == 0

    def keys(self) -> list[TableBucket]:
        """Same as `buckets()`."""
        return self.buckets()

    def values(self) -> Iterator[list[ScanRecord]]:
        """The lists of records, one per bucket."""
        return (self._list(bucket) for bucket in self._runs)

    def items(self) -> Iterator[tuple[TableBucket, list[ScanRecord]]]:
        """Pairs of bucket and its records."""
        return ((bucket, self._list(bucket)) for bucket in self._runs)

    def __len__(self) -> int:
        return self.count()

    @overload
    def __getitem__(self, index: int, /) -> ScanRecord: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[ScanRecord]: ...
    @overload
    def __getitem__(self, index: TableBucket, /) -> list[ScanRecord]: ...
    def __getitem__(self, index: int | slice | TableBucket, /) -> ScanRecord | list[ScanRecord]:
        if isinstance(index, TableBucket):
            return self.records(index)
        return self._all()[index]

    def __contains__(self, bucket: object, /) -> bool:
        return bucket in self._runs

    def __iter__(self) -> Iterator[ScanRecord]:
        if self._lists:
            return iter(self._all())
        return itertools.chain.from_iterable(run.records() for runs in self._runs.values() for run in runs)

    def __repr__(self) -> str:
        return f"ScanRecords({self.count()} records of {len(self._runs)} buckets)"


class RecordBatch:
    """An Arrow batch of one bucket with the offsets of its first and last record.

    Example:
        for found in await scanner.poll_record_batch(timeout_ms=1000):
            print(found.bucket.bucket_id, found.base_offset, found.last_offset, found.batch.to_pandas())
    """

    __slots__ = ("base_offset", "batch", "bucket", "change_types", "last_offset", "offsets", "timestamp", "writer_id")

    def __init__(
        self,
        batch: pa.RecordBatch,
        bucket: TableBucket,
        base_offset: int,
        last_offset: int,
        timestamp: int = -1,
        change_types: bytes | None = None,
        offsets: Sequence[int] | None = None,
        writer_id: int = -1,
    ) -> None:
        self.batch = batch
        self.bucket = bucket
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.timestamp = timestamp
        """When the server committed it, in milliseconds since 1970; -1 where it is not known."""
        self.change_types = change_types
        """One byte per row (see `ChangeType`) for the changelog of a primary-key table, else None."""
        self.offsets = offsets
        """The offset of each row where they are not consecutive (after a filter), else None."""
        self.writer_id = writer_id
        """The idempotent writer these rows came from; -1 where there was none."""

    @property
    def num_records(self) -> int:
        """How many rows the batch has."""
        return int(self.batch.num_rows)

    def __repr__(self) -> str:
        return (
            f"RecordBatch({self.num_records} rows of {self.bucket}, offsets {self.base_offset} to {self.last_offset})"
        )


def row_offsets(found: RecordBatch) -> Sequence[int]:
    """The offset of each row."""
    if found.offsets is not None:
        return found.offsets
    return range(found.base_offset, found.base_offset + found.num_records)


def offset_array(found: RecordBatch) -> npt.NDArray[np.int64]:
    """The offset of each row, for arithmetic on all of them."""
    if found.offsets is not None:
        return np.asarray(found.offsets, np.int64)
    return np.arange(found.base_offset, found.base_offset + found.num_records, dtype=np.int64)


def part_of(found: RecordBatch, start: int, length: int) -> RecordBatch:
    """Some of the rows of a batch. The range of offsets shrinks with them."""
    change_types = None if found.change_types is None else found.change_types[start : start + length]
    offsets = None if found.offsets is None else found.offsets[start : start + length]
    first = offsets[0] if offsets else found.base_offset + start
    if start + length == found.num_records:
        last = found.last_offset
    else:
        last = offsets[-1] if offsets else first + length - 1
    batch = found.batch.slice(start, length)
    return RecordBatch(batch, found.bucket, first, last, found.timestamp, change_types, offsets, found.writer_id)


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as a pandas DataFrame."""
    import_extra("pandas", "to_pandas() needs pandas", "pandas")  # only to say clearly that it is missing
    return table.to_pandas()


def to_polars(table: pa.Table) -> pl.DataFrame:
    """The table as a polars DataFrame."""
    frame: pl.DataFrame = import_extra("polars", "to_polars() needs polars", "polars").from_arrow(table)
    return frame


_NUMBERS = (TinyIntType, SmallIntType, IntType, BigIntType, FloatType, DoubleType, BooleanType)
_OBJECTS = (StringType, CharType, BytesType)
_UTC = dt.timezone.utc
_SECONDS_MIN, _SECONDS_MAX = (
    (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(seconds=1) for moment in (dt.datetime.min, dt.datetime.max)
)
_DATETIME_RANGES = {
    **{unit: (_SECONDS_MIN * n, _SECONDS_MAX * n) for unit, n in (("s", 1), ("ms", 10**3), ("us", 10**6))},
    "ns": (1 - 2**63, 2**63 - 1),
}
"""Per unit of a timestamp what Python's datetime holds. The least number of 64 bits means "no time" to numpy."""


def column_to_python(array: pa.Array, data_type: DataType, *, map_pairs: bool = False) -> list[Any]:
    """The values of a column as Python objects of the types the reference names; nulls are None.

    A MAP becomes a dict, or with `map_pairs` a list of (key, value) pairs.
    """
    if isinstance(data_type, _NUMBERS):
        values: list[Any] = numpy_of(array).tolist()
        for position in np.flatnonzero(~valid_mask(array)).tolist() if array.null_count else ():
            values[position] = None
        return values
    if isinstance(data_type, _OBJECTS):
        if pandas_is_loaded():
            return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        return bytes_list(array) if isinstance(data_type, BytesType) else string_list(array)
    if isinstance(data_type, TimestampType | TimestampLtzType) and not array.null_count and len(array):
        ticks = numpy_of(array.view(pa.int64()))
        unit = array.type.unit
        least, greatest = _DATETIME_RANGES[unit]
        # numpy wraps around (or, in some versions, raises OverflowError) where a datetime of Python has no room: years
        # beyond 9999 are left to the way below, which says so.
        if least <= int(ticks.min()) and int(ticks.max()) <= greatest:
            # Python knows microseconds, for which numpy gives datetime objects.
            datetimes: list[Any] = ticks.astype(f"M8[{unit}]").astype("M8[us]").tolist()
            if isinstance(data_type, TimestampLtzType):
                return [value.replace(tzinfo=_UTC) for value in datetimes]
            return datetimes
    values = logical.from_arrow(array, data_type)
    return [logical.to_python(value, data_type, map_pairs=map_pairs) for value in values]


def rows_to_python(
    batch: pa.RecordBatch, types: Sequence[DataType], *, map_pairs: bool = False
) -> list[dict[str, Any]]:
    """The rows of a batch as dicts."""
    rows: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
    # Column by column: that takes half the time of making each dict whole from its values.
    for i, (name, data_type) in enumerate(zip(batch.schema.names, types)):
        for row, value in zip(rows, column_to_python(batch.column(i), data_type, map_pairs=map_pairs)):
            row[name] = value
    return rows
