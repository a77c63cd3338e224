# SPDX-License-Identifier: Apache-2.0
"""What must hold for any rows: round trips, scalar and vectorised coders agree, and broken bytes are refused."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluss.errors import FlussError, FormatError
from fluss.metadata import types as t
from fluss.rows import aligned, compacted, indexed
from fluss.rows.aligned import encode_aligned
from fluss.rows.arrow_values import NANOS_PER_UNIT, conform, from_arrow, to_arrow
from fluss.rows.logical import from_python, to_python
from fluss.rows.python_columns import column_from_python
from fluss.rows.slices import Slices
from fluss.rows.vector import decode_compacted, decode_compacted_key, encode_compacted, encode_compacted_key

CODERS = [compacted, indexed, aligned]

Value = st.SearchStrategy[Any]

scalar_types: st.SearchStrategy[t.DataType] = st.one_of(
    st.sampled_from([
        t.BooleanType(), t.TinyIntType(), t.SmallIntType(), t.IntType(), t.BigIntType(), t.FloatType(),
        t.DoubleType(), t.StringType(), t.BytesType(), t.DateType(), t.CharType(200), t.BinaryType(3),
        t.BinaryType(12),
    ]),
    st.builds(t.TimeType, st.integers(0, 9)),
    st.builds(t.TimestampType, st.integers(0, 9)),
    st.builds(t.TimestampLtzType, st.integers(0, 9)),
    st.integers(1, 38).flatmap(lambda p: st.builds(t.DecimalType, st.just(p), st.integers(0, p))),
).flatmap(lambda dtype: st.sampled_from([dtype, dtype.with_nullable(False)]))  # fmt: skip

all_types: st.SearchStrategy[t.DataType] = st.recursive(
    scalar_types,
    lambda inner: st.one_of(
        st.builds(t.ArrayType, inner),
        st.builds(t.MapType, inner, inner),
        st.lists(inner, max_size=3).map(
            lambda types: t.RowType(tuple(t.DataField(f"f{i}", dtype) for i, dtype in enumerate(types)))
        ),
    ),
    max_leaves=4,
)


def integers(bits: int) -> Value:
    """Integers of all sizes: uniform ones would hardly ever give a short varint."""
    limit = 1 << bits - 1
    return st.one_of(
        st.integers(-limit, limit - 1),
        st.integers(0, bits - 2).flatmap(lambda shift: st.integers(-(1 << shift), 1 << shift)),
    )


def present(dtype: t.DataType) -> Value:
    match dtype:
        case t.BooleanType():
            return st.booleans()
        case t.TinyIntType():
            return integers(8)
        case t.SmallIntType():
            return integers(16)
        case t.IntType() | t.DateType():
            return integers(32)
        case t.BigIntType():
            return integers(64)
        case t.FloatType():
            return st.floats(width=32)
        case t.DoubleType():
            return st.floats()
        case t.CharType() | t.StringType():
            # Indexed CHAR values lose trailing zero bytes, and their length counts bytes.
            return st.text(max_size=20).map(lambda text: text.rstrip("\0"))
        case t.BinaryType(length=length):
            return st.binary(min_size=length, max_size=length)
        case t.BytesType():
            return st.one_of(st.binary(max_size=12), st.binary(min_size=120, max_size=150))
        case t.DecimalType(precision=precision):
            return st.integers(-(10**precision) + 1, 10**precision - 1).map(
                lambda number: Decimal(number).scaleb(-dtype.scale, Context(prec=60))  # type: ignore[attr-defined]
            )
        case t.TimeType(precision=precision):
            step = 1000 if precision == 0 else 1
            return st.integers(0, 86_400_000 // step - 1).map(lambda number: number * step)
        case t.TimestampType(precision=precision) | t.TimestampLtzType(precision=precision):
            unit = NANOS_PER_UNIT[t.arrow_time_unit(precision)]
            # Far away seconds do not fit the milliseconds they are stored as.
            limit = 2**63 // (1000 if unit == 10**9 else 1) - 1
            return st.one_of(st.integers(-limit, limit), st.integers(-(10**7), 10**7)).map(lambda n: n * unit)
        case t.ArrayType(element_type=element):
            return st.lists(values(element), max_size=3)
        case t.MapType(key_type=key, value_type=item):
            return st.lists(st.tuples(values(key), values(item)), max_size=3)
        case t.RowType(fields=fields):
            return st.tuples(*(values(field.data_type) for field in fields))
    raise AssertionError(dtype)


def values(dtype: t.DataType) -> Value:
    return st.one_of(st.none(), present(dtype)) if dtype.nullable else present(dtype)


@st.composite
def tables(
    draw: st.DrawFn, types: st.SearchStrategy[t.DataType] = all_types
) -> tuple[list[t.DataType], list[tuple[Any, ...]]]:
    columns = draw(st.lists(types, min_size=1, max_size=10))
    rows = draw(st.lists(st.tuples(*(values(dtype) for dtype in columns)), max_size=6))
    return columns, rows


def same(left: Any, right: Any) -> bool:
    """Equality in which NaN equals itself and a list equals a tuple."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) or (left != left and right != right)


def columns_of(types: list[t.DataType], rows: list[tuple[Any, ...]], offset: int = 0) -> list[pa.Array]:
    """Arrow arrays of the rows, cut out of longer arrays if an offset is given."""
    arrays = []
    for i, dtype in enumerate(types):
        column = [row[i] for row in rows]
        padded = column[:1] * offset + column + column[:1] * offset
        array = to_arrow(padded, dtype)
        arrays.append(array[offset : offset + len(column)] if column else array)
    return arrays


relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


@relaxed
@given(tables())
@pytest.mark.parametrize("coder", CODERS)
def test_round_trip(coder: Any, table: tuple[list[t.DataType], list[tuple[Any, ...]]]) -> None:
    types, rows = table
    for row in rows:
        assert same(coder.decode_row(types, coder.encode_row(types, row)), row)


@relaxed
@given(tables())
def test_arrow_round_trip(table: tuple[list[t.DataType], list[tuple[Any, ...]]]) -> None:
    types, rows = table
    for i, dtype in enumerate(types):
        column = [row[i] for row in rows]
        array = to_arrow(column, dtype)
        array.validate(full=True)
        assert array.type == dtype.to_arrow()
        assert same(from_arrow(array, dtype), column)
        assert same(from_arrow(array[1:], dtype), column[1:])
        assert same(from_arrow(pa.chunked_array([array[:1], array[1:]]), dtype), column)


@relaxed
@given(tables(), st.integers(0, 3))
def test_vectorised_rows_agree(table: tuple[list[t.DataType], list[tuple[Any, ...]]], offset: int) -> None:
    types, rows = table
    arrays = columns_of(types, rows, offset)
    expected = [compacted.encode_row(types, row) for row in rows]
    encoded = encode_compacted(types, arrays)
    assert encoded.to_list() == expected
    for slices in (encoded, Slices.from_arrow(encoded.to_arrow()), Slices.from_list(expected)):
        decoded = decode_compacted(types, slices)
        for array, original, dtype in zip(decoded, arrays, types):
            array.validate(full=True)
            assert array.type == dtype.to_arrow()
            assert same(from_arrow(array, dtype), from_arrow(original, dtype))
    assert encode_aligned(types, arrays).to_list() == [aligned.encode_row(types, row) for row in rows]


@relaxed
@given(tables(scalar_types.map(lambda dtype: dtype.with_nullable(False))), st.integers(0, 3))
def test_vectorised_keys_agree(table: tuple[list[t.DataType], list[tuple[Any, ...]]], offset: int) -> None:
    types, rows = table
    arrays = columns_of(types, rows, offset)
    keys = encode_compacted_key(types, arrays)
    assert keys.to_list() == [compacted.encode_key(types, row) for row in rows]
    for array, original, dtype in zip(decode_compacted_key(types, keys), arrays, types):
        assert same(from_arrow(array, dtype), from_arrow(original, dtype))
    prefixes = encode_compacted_key(types[:1], arrays[:1]).to_list()
    assert all(key.startswith(prefix) for key, prefix in zip(keys, prefixes))
    for row, key in zip(rows, keys):
        assert same(compacted.decode_key(types, key), row)


def refusal(work: Any) -> FlussError | None:
    """The error of our own tree; any other error passes through and fails the test."""
    try:
        work()
    except FlussError as error:
        return error
    return None


@relaxed
@given(tables(), st.data())
def test_broken_bytes_are_harmless(table: tuple[list[t.DataType], list[tuple[Any, ...]]], data: st.DataObject) -> None:
    types, rows = table
    for coder in CODERS:
        for row in rows[:2]:
            good = coder.encode_row(types, row)
            broken = bytearray(good[: data.draw(st.integers(0, len(good)))] if data.draw(st.booleans()) else good)
            for _ in range(data.draw(st.integers(0, 4)) if broken else 0):
                broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
            error = refusal(lambda coder=coder, broken=broken: coder.decode_row(types, broken))
            assert error is None or isinstance(error, FormatError)
            if coder is compacted:
                slices = Slices.from_list([good, bytes(broken), good])
                vector_error = refusal(lambda slices=slices: decode_compacted(types, slices))
                if error is not None:
                    assert isinstance(vector_error, FormatError)
                    assert vector_error.message.startswith(f"row 1: {error.message}")
                elif vector_error is None:
                    decoded = [from_arrow(a, t) for a, t in zip(decode_compacted(types, slices), types)]
                    assert same([column[0] for column in decoded], row)


@relaxed
@given(st.lists(all_types, min_size=1, max_size=4), st.lists(st.binary(max_size=60), max_size=4))
def test_random_bytes(types: list[t.DataType], rows: list[bytes]) -> None:
    slices = Slices.from_list(rows)
    errors = [refusal(lambda row=row: compacted.decode_row(types, row)) for row in rows]
    for coder in (indexed, aligned):
        for row in rows:
            refusal(lambda coder=coder, row=row: coder.decode_row(types, row))
    vector_error = refusal(lambda: decode_compacted(types, slices))
    assert vector_error is not None or not any(errors)
    refusal(lambda: decode_compacted_key(types, slices))


def near(dtype: t.DataType, value: Any) -> bool:
    """Whether Python's own types hold the value: their dates reach from year 1 to 9999, in microseconds."""
    if value is None:
        return True
    match dtype:
        case t.DateType():
            return abs(value) < 700_000
        case t.TimestampType() | t.TimestampLtzType():
            step = max(1000, 10 ** (9 - dtype.precision))
            return abs(value) < 700_000 * 86_400 * 10**9 and value % step == 0
        case t.TimeType(precision=0):
            return bool(value % 1000 == 0)
        case t.ArrayType(element_type=element):
            return all(near(element, item) for item in value)
        case t.MapType(key_type=key, value_type=item_type):
            # Equal keys fall together in a dict.
            keys = [repr(key) for key, _ in value]
            return len(set(keys)) == len(keys) and all(near(key, k) and near(item_type, i) for k, i in value)
        case t.RowType(fields=fields):
            return all(near(field.data_type, item) for field, item in zip(fields, value))
    return True


@relaxed
@given(tables())
def test_python_round_trip(table: tuple[list[t.DataType], list[tuple[Any, ...]]]) -> None:
    types, rows = table
    for i, dtype in enumerate(types):
        column = [row[i] for row in rows if near(dtype, row[i])]
        native = [to_python(value, dtype) for value in column]
        logical = [from_python(value, dtype, "c") for value in native]
        if not isinstance(dtype, (t.ArrayType, t.MapType, t.RowType)):
            assert same(logical, column)
        arrow = column_from_python(native, dtype)
        assert same(from_arrow(arrow, dtype), logical)
        assert arrow.type == dtype.to_arrow()


def test_empty_batches() -> None:
    types: list[t.DataType] = [t.IntType(), t.StringType(), t.BinaryType(3)]
    types += [t.ArrayType(t.IntType()), t.DecimalType(30, 1), t.BooleanType()]
    arrays = [to_arrow([], dtype) for dtype in types]
    assert len(encode_compacted(types, arrays)) == 0
    assert len(encode_aligned(types, arrays)) == 0
    assert [len(array) for array in decode_compacted(types, Slices.from_list([]))] == [0] * len(types)
    assert len(encode_compacted_key(types[:3], arrays[:3])) == 0
    assert len(encode_compacted([], [])) == 0
    assert decode_compacted([], Slices.from_list([])) == []


def test_many_rows() -> None:
    """Enough rows that nothing fits by accident, with nulls in many columns and more than 64 columns."""
    n = 3000
    rng = np.random.default_rng(7)
    types: list[t.DataType] = []
    arrays: list[pa.Array] = []
    for i in range(70):
        dtype: t.DataType = [t.BigIntType(), t.StringType(), t.DoubleType(), t.IntType()][i % 4]
        mask = rng.random(n) < (0.3 if i % 3 else 0)
        numbers = rng.integers(-(2**20), 2**40, n)
        if isinstance(dtype, t.StringType):
            array = pa.array(["x" * int(k % 40) + str(k) for k in numbers], mask=mask)
        elif isinstance(dtype, t.IntType):
            array = pa.array((numbers % 2**20).astype(np.int32), mask=mask)
        else:
            array = pa.array(numbers if isinstance(dtype, t.BigIntType) else numbers / 3, mask=mask)
        types.append(dtype)
        arrays.append(array)
    rows = encode_compacted(types, arrays)
    assert decode_compacted(types, rows) == arrays
    sample = [0, 1, n // 2, n - 1]
    columns = [from_arrow(array, dtype) for array, dtype in zip(arrays, types)]
    for i in sample:
        assert rows[i] == compacted.encode_row(types, [column[i] for column in columns])
    assert encode_aligned(types, arrays)[n - 1] == aligned.encode_row(types, [column[n - 1] for column in columns])
    # Rows in any order, pointing into one buffer.
    order = rng.permutation(n)
    taken = decode_compacted(types, rows.take(order))
    assert taken == [array.take(pa.array(order)) for array in arrays]


def test_conform_keeps_what_fits() -> None:
    assert conform(pa.array([], pa.int32()), t.BigIntType()).type == pa.int64()
