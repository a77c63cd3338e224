# SPDX-License-Identifier: Apache-2.0
"""Arrow columns to Python values, a whole column at a time.

pyarrow's own `to_pylist` makes a scalar object per value; numpy's `tolist` is several times faster where it gives the
same values. What it does not cover goes through the logical values, which every other reader uses too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import bytes_list, numpy_of, pandas_is_loaded, string_list, valid_mask
from fluss.metadata import (
    BigIntType,
    BooleanType,
    BytesType,
    CharType,
    DataType,
    DoubleType,
    FloatType,
    IntType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TinyIntType,
)
from fluss.rows import logical

_NUMBERS = (TinyIntType, SmallIntType, IntType, BigIntType, FloatType, DoubleType, BooleanType)
_OBJECTS = (StringType, CharType, BytesType)
_UTC = dt.timezone.utc
_GENERATED_WIDTH_MAX = 64
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
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    columns = [column_to_python(batch.column(i), data_type, map_pairs=map_pairs) for i, data_type in enumerate(types)]
    if len(names) > _GENERATED_WIDTH_MAX:
        return [dict(zip(names, values)) for values in zip(*columns)]
    return _row_maker(len(names))(*names)(*columns)


@lru_cache(maxsize=_GENERATED_WIDTH_MAX)
def _row_maker(width: int) -> Callable[..., Callable[..., list[dict[str, Any]]]]:
    """A function of `width` names that gives a function of as many columns.

    Written out, `{name0: value0, name1: value1}` takes a third of the time of `dict(zip(names, values))`, and that is
    most of what a row costs. The text that is compiled holds nothing but the width.
    """
    numbers = range(width)
    names = ", ".join(f"name{i}" for i in numbers)
    columns = ", ".join(f"column{i}" for i in numbers)
    values = "".join(f"value{i}, " for i in numbers)
    row = ", ".join(f"name{i}: value{i}" for i in numbers)
    source = f"lambda {names}: lambda {columns}: [{{{row}}} for ({values}) in zip({columns})]"
    made: Callable[..., Callable[..., list[dict[str, Any]]]] = eval(source)
    return made
