# SPDX-License-Identifier: Apache-2.0
"""Between Arrow arrays, numpy and Python values through the buffers of the arrays.

The first conversion that pyarrow itself makes (`pa.array`, `Array.to_numpy`) imports pandas where it is installed: it
has to know whether it was given a data frame. That takes a third of a second and 60 MB, in a process that may write a
single row. Here are the conversions that hot paths need; once pandas is loaded anyway, pyarrow's own are used for
Python values, some of which are faster.
"""

from __future__ import annotations

import datetime as dt
import importlib
import sys
from array import array as packed
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEPARATOR_CHARS_MAX = 32
"""Strings of this length on average are cut apart faster at separators than by their lengths."""
_FEW_ROWS = 8
"""For fewer rows, a call of numpy costs more than it saves."""
_OFFSET_MAX = 2**31 - 1
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=dt.timezone.utc)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)
_NUMPY_KINDS = {
    getattr(pa, name)(): np.dtype(name)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
}


def pandas_is_loaded() -> bool:
    """Whether pyarrow's own conversions cost no import any more."""
    return "pandas" in sys.modules


# -- compute -------------------------------------------------------------------------------------------------------


@cache
def _kernels() -> Any:
    """The module that calls Arrow's compute functions, without one Python function for each of them.

    `pyarrow.compute` takes 50 ms to make those, and `Array.take` imports it: as long as encoding 100,000 rows.
    """
    try:
        return importlib.import_module("pyarrow._compute")
    except ImportError:  # a later pyarrow may rename it; the public module has the same names
        return importlib.import_module("pyarrow.compute")


def taken(array: pa.Array, indices: pa.Array) -> pa.Array:
    """The elements at `indices`, as `Array.take` gives them; the caller answers for the bounds."""
    kernels = _kernels()
    return kernels.call_function("take", [array, indices], kernels.TakeOptions(boundscheck=False))


def joined_elements(columns: Sequence[pa.Array], separator: pa.Scalar) -> pa.Array:
    """Row by row, the byte strings of all columns with the separator between them; null where one of them is."""
    kernels = _kernels()
    return kernels.call_function("binary_join_element_wise", [*columns, separator], kernels.JoinOptions())


# -- numpy ---------------------------------------------------------------------------------------------------------


def array_of(values: npt.NDArray[Any], nulls: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array of numbers or booleans, without copying numbers. `nulls` says which of them count as null."""
    count = len(values)
    validity = None if nulls is None or not nulls.any() else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    if values.dtype == np.bool_:
        data = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), count, [validity, pa.py_buffer(data)])
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), count, [validity, pa.py_buffer(data)])


def numpy_of(array: pa.Array) -> npt.NDArray[Any]:
    """The values of an array of numbers or booleans; nulls hold anything. Numbers are not copied."""
    if array.type == pa.bool_():
        return _bits(array.buffers()[1], array.offset, len(array))
    kind = _NUMPY_KINDS[array.type]
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), kind)
    return np.frombuffer(data, kind, count=len(array), offset=array.offset * kind.itemsize)


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """For each position whether it is not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    return _bits(array.buffers()[0], array.offset, len(array))


def _bits(data: pa.Buffer | None, offset: int, count: int) -> npt.NDArray[np.bool_]:
    if data is None:
        return np.zeros(count, np.bool_)
    first, skipped = divmod(offset, 8)
    size = (skipped + count + 7) // 8
    whole = np.unpackbits(np.frombuffer(data, np.uint8, count=size, offset=first), bitorder="little")
    return whole[skipped : skipped + count].view(np.bool_)


# -- Python values to Arrow ----------------------------------------------------------------------------------------


def doubles_array(values: Sequence[float | None]) -> pa.Array:
    """Floats, or None."""
    return _numbers_array("d", np.float64, values)


def integers_array(values: Sequence[int | None]) -> pa.Array:
    """Integers of 64 bits, or None. Raises OverflowError for larger ones."""
    return _numbers_array("q", np.int64, values)


def _numbers_array(code: str, kind: type[Any], values: Sequence[Any]) -> pa.Array:
    try:
        return array_of(np.frombuffer(packed(code, values), kind))
    except TypeError:
        nulls = _nulls(values)
        filled = packed(code, [0 if value is None else value for value in values])
        return array_of(np.frombuffer(filled, kind), nulls)


def narrowed(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The same integers in fewer bits, or None when one does not fit."""
    if array.type == kind:
        return array
    numbers = numpy_of(array)
    narrow = numbers.astype(_NUMPY_KINDS[kind])
    return _retyped(array_of(narrow), kind, array.buffers()[0]) if (narrow == numbers).all() else None


def booleans_array(values: Sequence[bool | None]) -> pa.Array:
    """Booleans, or None."""
    nulls = _nulls(values) if None in values else None
    return array_of(np.fromiter(map(bool, values), np.bool_, len(values)), nulls)


def strings_array(values: Sequence[str | None]) -> pa.Array:
    """Strings, or None. Raises TypeError when there is anything else among them."""
    try:
        text = "\0".join(values)  # type: ignore[arg-type]
    except TypeError:
        nulls = _nulls(values)
        if not nulls.any():
            raise
        return _with_nulls(strings_array(["" if value is None else value for value in values]), nulls)
    count = len(values)
    if count and len(text) <= _SEPARATOR_CHARS_MAX * count:
        data = text.encode()
        ends = np.flatnonzero(np.frombuffer(data, np.int8) == 0)
        if len(ends) == count - 1 and len(data) <= _OFFSET_MAX:
            offsets = np.zeros(count + 1, np.int32)
            np.subtract(ends, np.arange(count - 1), out=offsets[1:-1], casting="unsafe")
            offsets[-1] = len(data) - (count - 1)
            return _binary_array(pa.string(), offsets, data.translate(None, b"\0"))
    return _joined(pa.string(), [value.encode() for value in values])  # type: ignore[union-attr]


def bytes_array(values: Sequence[bytes | None]) -> pa.Array:
    """Byte strings, or None."""
    if None in values:
        filled = [b"" if value is None else value for value in values]
        return _with_nulls(_joined(pa.binary(), filled), _nulls(values))
    return _joined(pa.binary(), values)  # type: ignore[arg-type]


def micros_array(values: Sequence[dt.datetime | None]) -> pa.Array:
    """Datetimes as microseconds since the epoch. Those without a time zone are taken for UTC."""
    return integers_array([None if value is None else _micros(value) for value in values])


def _micros(value: dt.datetime) -> int:
    return (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND


def dates_array(values: Sequence[dt.date | None]) -> pa.Array:
    """Days."""
    days = integers_array([None if value is None else value.toordinal() - _EPOCH_ORDINAL for value in values])
    return _retyped(array_of(numpy_of(days).astype(np.int32)), pa.date32(), days.buffers()[0])


def _nulls(values: Sequence[Any]) -> npt.NDArray[np.bool_]:
    return np.fromiter((value is None for value in values), np.bool_, len(values))


def _joined(kind: pa.DataType, values: Sequence[bytes]) -> pa.Array:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    if offsets[-1] > _OFFSET_MAX:
        raise OverflowError("the values of a column take more than 2 GB")
    return _binary_array(kind, offsets.astype(np.int32), b"".join(values))


def _binary_array(kind: pa.DataType, offsets: npt.NDArray[np.int32], data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _with_nulls(array: pa.Array, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    return _retyped(array, array.type, pa.py_buffer(np.packbits(~nulls, bitorder="little")))


def _retyped(array: pa.Array, kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(array), [validity, *array.buffers()[1:]])


def typed_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of one type: numbers, strings, bytes and booleans, and counts of days or of units of a time.

    Other types, and other values, are left to pyarrow, which also has the error for those that do not fit.
    """
    make = _MAKERS.get(kind.id)
    if make is not None and not pandas_is_loaded():
        try:
            return make(values, kind)
        except (TypeError, ValueError, OverflowError):
            pass
    storage = pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) else pa.int32()
    if pa.types.is_temporal(kind) and not pa.types.is_date64(kind):
        return pa.array(values, storage).view(kind)
    return pa.array(values, kind)


def _narrow_integers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    array = narrowed(integers_array(values), kind)
    if array is None:
        raise OverflowError(f"an integer does not fit {kind}")
    return array


def _narrow_floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    array = doubles_array(values)
    with np.errstate(over="ignore"):
        return _retyped(array_of(numpy_of(array).astype(np.float32)), kind, array.buffers()[0])


def _of_64_bits(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return integers_array(values).view(kind)


def _of_32_bits(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return _narrow_integers(values, pa.int32()).view(kind)


_MAKERS: dict[int, Callable[[Sequence[Any], pa.DataType], pa.Array]] = {
    pa.string().id: lambda values, _: strings_array(values),
    pa.binary().id: lambda values, _: bytes_array(values),
    pa.bool_().id: lambda values, _: booleans_array(values),
    pa.float64().id: lambda values, _: doubles_array(values),
    pa.float32().id: _narrow_floats,
    **{kind.id: _narrow_integers for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind.id: _of_64_bits for kind in (pa.timestamp("us"), pa.time64("us"))},
    **{kind.id: _of_32_bits for kind in (pa.date32(), pa.time32("ms"))},
}


# -- Arrow to Python values ----------------------------------------------------------------------------------------


def string_list(array: pa.Array) -> list[str | None]:
    """The values of a string array."""
    count = len(array)
    if count < _FEW_ROWS:
        return array.to_pylist()  # type: ignore[no-any-return]
    offsets, data = _offsets_and_data(array)
    if not array.null_count and count > 1 and len(data) <= _SEPARATOR_CHARS_MAX * count and not (data == 0).any():
        size = len(data) + count - 1
        is_data = np.ones(size, np.bool_)
        is_data[offsets[1:-1] + np.arange(count - 1)] = False
        separated = np.zeros(size, np.uint8)
        separated[is_data] = data
        return str(separated.data, "utf-8").split("\0")  # type: ignore[return-value]
    return [None if value is None else str(value, "utf-8") for value in bytes_list(array)]


def bytes_list(array: pa.Array) -> list[bytes | None]:
    """The values of a binary array."""
    offsets, data = _offsets_and_data(array)
    whole = data.tobytes()
    bounds = offsets.tolist()
    values: list[bytes | None] = [whole[start:end] for start, end in pairwise(bounds)]
    for position in np.flatnonzero(~valid_mask(array)).tolist() if array.null_count else ():
        values[position] = None
    return values


def _offsets_and_data(array: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """The offsets, from 0 on, and the bytes of a string or binary array. Of nulls as well, which may have some."""
    if not len(array):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    _, positions, data = array.buffers()
    offsets = np.frombuffer(positions, np.int32, count=len(array) + 1, offset=4 * array.offset)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, np.frombuffer(data or b"", np.uint8)[first:last]
