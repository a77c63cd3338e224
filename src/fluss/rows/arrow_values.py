# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays to logical values and back.

`conform` is the gate through which every Arrow array enters the row coders: behind it an array has exactly the Arrow
type of its column, and what could not be converted without loss has been refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import typed_array
from fluss._lazy import LazyModule
from fluss.errors import InvalidRowError
from fluss.metadata import types as t
from fluss.rows import value_checks as v

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

NANOS_PER_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

_is = pa.types
_INTEGER_DIGITS_MAX = 20


def _is_text(kind: pa.DataType) -> bool:
    return bool(_is.is_string(kind) or _is.is_large_string(kind) or _is.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        _is.is_binary(kind) or _is.is_large_binary(kind) or _is.is_fixed_size_binary(kind) or _is.is_binary_view(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(_is.is_integer(kind) or _is.is_floating(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(_is.is_list(kind) or _is.is_large_list(kind) or _is.is_fixed_size_list(kind))


_FAMILIES = (
    _is.is_boolean,
    _is_number,
    _is_text,
    _is_bytes,
    _is.is_decimal,
    _is.is_date,
    _is.is_time,
    _is.is_timestamp,
    _is_list,
    _is.is_map,
    _is.is_struct,
)


def conform(array: pa.Array | pa.ChunkedArray, dtype: t.DataType) -> pa.Array:
    """The array in the Arrow type of ``dtype``; `InvalidRowError` if that would lose something.

    Numbers may change their width if every value fits, times their unit if nothing is cut off; floats may be rounded.
    Structs are matched by field name, and fields they lack are null. Top-level nulls are not looked at.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    target = dtype.to_arrow()
    source = array.type
    if source == target:
        return array
    try:
        if _is.is_dictionary(source):
            return conform(array.dictionary_decode(), dtype)
        _check_family(source, dtype)
        if isinstance(dtype, t.DecimalType) and _is.is_integer(source):
            # Arrow wants room for any integer in between, also for those that are not there.
            array = array.cast(pa.decimal128(min(38, _INTEGER_DIGITS_MAX + dtype.scale), dtype.scale))
        elif isinstance(dtype, t.RowType) and _is.is_struct(source):
            array = _in_field_order(array, dtype)
        # Arrow refuses to cast to NOT NULL fields whatever they hold.
        result = array.cast(_relaxed(dtype).to_arrow(), safe=True)
        check_overflow(array, result)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise InvalidRowError(f"an Arrow array of type {source} does not hold {dtype} without loss: {error}") from None
    try:
        return result.view(target)
    except pa.ArrowInvalid:
        # A null in a NOT NULL field. Inside a null row that is no mistake, so it is left to the coders.
        return result


def _in_field_order(array: pa.Array, dtype: t.RowType) -> pa.Array:
    """A struct with its fields in the order of the type; Arrow casts by name, but not across each other."""
    order = [name for name in dtype.field_names if array.type.get_field_index(name) >= 0]
    if [field.name for field in array.type] == order:
        return array
    mask = array.is_null() if array.null_count else None
    fields = [array.type.field(name) for name in order]
    return pa.StructArray.from_arrays([array.field(name) for name in order], fields=fields, mask=mask)


def _relaxed(dtype: t.DataType) -> t.DataType:
    """The same type with nulls allowed everywhere."""
    if isinstance(dtype, t.ArrayType):
        return t.ArrayType(_relaxed(dtype.element_type))
    if isinstance(dtype, t.MapType):
        return t.MapType(dtype.key_type, _relaxed(dtype.value_type))
    if isinstance(dtype, t.RowType):
        return t.RowType(tuple(t.DataField(item.name, _relaxed(item.data_type)) for item in dtype.fields))
    return dtype.with_nullable(True)


def _check_family(source: pa.DataType, dtype: t.DataType) -> None:
    """Arrow would also parse strings and count booleans; only types of one kind are taken for each other here."""
    if _is.is_null(source):
        return
    if _is.is_dictionary(source):  # inside a list or a struct, such as categories of polars
        source = source.value_type
    target = dtype.to_arrow()
    if not any(family(source) and family(target) for family in _FAMILIES) and not (
        _is.is_integer(source) and _is.is_decimal(target)
    ):
        raise InvalidRowError(f"an Arrow array of type {source} does not hold {dtype}: convert the column first")
    if isinstance(dtype, t.TimestampType) and source.tz is not None:
        raise InvalidRowError(f"an Arrow array of type {source} has a time zone, but {dtype} has none")
    if isinstance(dtype, t.ArrayType):
        _check_family(source.value_type, dtype.element_type)
    elif isinstance(dtype, t.MapType):
        _check_family(source.key_type, dtype.key_type)
        _check_family(source.item_type, dtype.value_type)
    elif isinstance(dtype, t.RowType):
        types = dict(zip(dtype.field_names, dtype.field_types))
        for field in source:
            if field.name not in types:
                raise InvalidRowError(
                    f"an Arrow array of type {source} has a field {field.name!r}, but {dtype} has not"
                )
            _check_family(field.type, types[field.name])


def leaves(before: pa.Array, after: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The values inside an array and its cast to another type, those of structs, maps and lists each for itself."""
    if not _is.is_nested(after.type) or _is.is_null(before.type):
        yield before, after
    elif _is.is_struct(after.type):
        for field in after.type:
            if before.type.get_field_index(field.name) >= 0:
                yield from leaves(before.field(field.name), after.field(field.name))
    elif _is.is_map(after.type):
        yield from leaves(_within(before, before.keys), _within(after, after.keys))
        yield from leaves(_within(before, before.items), _within(after, after.items))
    else:
        yield from leaves(before.flatten(), after.flatten())


def check_overflow(before: pa.Array, after: pa.Array) -> None:
    """Arrow turns floats that are too large for 32 bits into infinity."""
    for given, cast in leaves(before, after):
        if (
            _is.is_float32(cast.type)
            and _is.is_float64(given.type)
            and pc.any(pc.and_(pc.is_inf(cast), pc.is_finite(given))).as_py()
        ):
            raise InvalidRowError(f"an Arrow array of type {given.type} has values that do not fit 32 bits")


def from_arrow(array: pa.Array | pa.ChunkedArray, dtype: t.DataType) -> list[Any]:
    """The logical values of an array."""
    array = conform(array, dtype)
    if not len(array):
        return []
    try:
        if isinstance(dtype, t.DateType):
            return list(array.cast(pa.int32()).to_pylist())
        if isinstance(dtype, t.TimeType):
            return _time_millis(array, dtype)
        if isinstance(dtype, t.TIMESTAMP_TYPES):
            factor = NANOS_PER_UNIT[array.type.unit]
            return [None if item is None else item * factor for item in array.cast(pa.int64()).to_pylist()]
        if isinstance(dtype, t.ArrayType):
            return _grouped(array, from_arrow(_within(array, array.values), dtype.element_type))
        if isinstance(dtype, t.MapType):
            keys = from_arrow(_within(array, array.keys), dtype.key_type)
            items = from_arrow(_within(array, array.items), dtype.value_type)
            return _grouped(array, list(zip(keys, items)))
        if isinstance(dtype, t.RowType):
            columns = [from_arrow(array.field(i), item.data_type) for i, item in enumerate(dtype.fields)]
            rows = list(zip(*columns)) if columns else [()] * len(array)
            if array.null_count:
                return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist())]
            return rows
        return list(array.to_pylist())
    except (pa.ArrowException, OverflowError, ValueError) as error:
        # An array from foreign memory may hold, say, a string that is not UTF-8.
        raise InvalidRowError(f"an Arrow array of type {array.type} has unreadable values: {error}") from None


def _time_millis(array: pa.Array, dtype: t.TimeType) -> list[Any]:
    nanos = NANOS_PER_UNIT[array.type.unit]
    ints = array.cast(pa.int32() if nanos >= v.NANOS_PER_MILLI else pa.int64()).to_pylist()
    if nanos >= v.NANOS_PER_MILLI:
        factor = nanos // v.NANOS_PER_MILLI
        return [None if item is None else item * factor for item in ints]
    divisor = v.NANOS_PER_MILLI // nanos
    for item in ints:
        if item is not None and item % divisor:
            raise InvalidRowError(
                f"{item} {array.type.unit} of the day has a part below the millisecond, {dtype} loses it"
            )
    return [None if item is None else item // divisor for item in ints]


def _within(array: pa.Array, values: pa.Array) -> pa.Array:
    """Those of the values, keys or items of an array that are its own: they go beyond the ends of a slice."""
    if not len(array):
        return values[:0]  # it may come without any offsets
    first = array.offsets[0].as_py()
    return values.slice(first, array.offsets[-1].as_py() - first)


def _grouped(array: pa.Array, items: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    groups: list[Any] = [items[start - offsets[0] : end - offsets[0]] for start, end in pairwise(offsets)]
    if array.null_count:
        return [group if valid else None for group, valid in zip(groups, array.is_valid().to_pylist())]
    return groups


def to_arrow(values: Sequence[Any], dtype: t.DataType) -> pa.Array:
    """An array of logical values."""
    try:
        return _nested_array(values, dtype) if isinstance(dtype, t.NESTED_TYPES) else _flat_array(values, dtype)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidRowError(f"values do not fit an Arrow array of type {dtype.to_arrow()}: {error}") from None


def _flat_array(values: Sequence[Any], dtype: t.DataType) -> pa.Array:
    target = dtype.to_arrow()
    if isinstance(dtype, t.DateType):
        return typed_array(values, target)
    if isinstance(dtype, t.TimeType):
        nanos = NANOS_PER_UNIT[t.arrow_time_unit(dtype.precision)]
        ints = [None if item is None else item * v.NANOS_PER_MILLI // nanos for item in values]
        return typed_array(ints, target)
    if isinstance(dtype, t.TIMESTAMP_TYPES):
        nanos = NANOS_PER_UNIT[target.unit]
        return typed_array([None if item is None else item // nanos for item in values], target)
    if isinstance(dtype, t.BinaryType):
        check_fixed_bytes(len(values), dtype)
        return pa.array([None if item is None else item.ljust(dtype.length, b"\0") for item in values], target)
    return typed_array(values, target)


def _nested_array(values: Sequence[Any], dtype: t.DataType) -> pa.Array:
    target = dtype.to_arrow()
    n = len(values)
    if isinstance(dtype, t.ArrayType):
        child = to_arrow([item for group in values if group is not None for item in group], dtype.element_type)
        return pa.Array.from_buffers(target, n, [_validity(values), _offsets(values)], children=[child])
    if isinstance(dtype, t.MapType):
        pairs = [pair for group in values if group is not None for pair in group]
        keys = to_arrow([key for key, _ in pairs], dtype.key_type)
        items = to_arrow([item for _, item in pairs], dtype.value_type)
        if keys.null_count:
            raise ValueError("a key of a map is null")  # Arrow would end the process
        entry = pa.struct([target.key_field, target.item_field])
        child = pa.Array.from_buffers(entry, len(pairs), [None], children=[keys, items])
        return pa.Array.from_buffers(target, n, [_validity(values), _offsets(values)], children=[child])
    assert isinstance(dtype, t.RowType)
    children = [
        to_arrow([None if row is None else row[i] for row in values], item.data_type)
        for i, item in enumerate(dtype.fields)
    ]
    return pa.Array.from_buffers(target, n, [_validity(values)], children=children)


def check_fixed_bytes(count: int, dtype: t.BinaryType) -> None:
    """Arrow gives every row the declared length, even null rows."""
    if count * dtype.length > v.FIXED_BYTES_MAX:
        raise InvalidRowError(f"{count} rows of {dtype} need more than {v.FIXED_BYTES_MAX} bytes")


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    return bitmap(np.fromiter((item is not None for item in values), bool, len(values)))


def bitmap(valid: Any) -> pa.Buffer | None:
    """An Arrow validity bitmap; none if everything is valid."""
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _offsets(values: Sequence[Any]) -> pa.Buffer:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(
        np.fromiter((0 if group is None else len(group) for group in values), np.int64, len(values)), out=offsets[1:]
    )
    if offsets[-1] > v.INT32_MAX:
        raise OverflowError("more than 2^31 elements")
    return pa.py_buffer(offsets.astype(np.int32))
