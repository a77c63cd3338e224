# SPDX-License-Identifier: Apache-2.0
"""Schemas and random rows for the tests of this package."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from tests.rows import samples

from fluss.metadata import Column, Schema
from fluss.metadata import types as t
from fluss.records import LogBatch, Part, cut_batch
from fluss.rows import logical

ID_NAME = Schema.of([Column("id", t.IntType()), Column("name", t.StringType())])

ALL_TYPES = Schema.of([Column(f"f{i}", data_type) for i, data_type in enumerate(samples.ALL_TYPES)])
ROW_A = tuple(samples.ROW_A)
ROW_B = tuple(samples.ROW_B)

NESTED = Schema.of(
    [
        Column("id", t.IntType(nullable=False)),
        Column("numbers", t.ArrayType(t.IntType())),
        Column("words", t.ArrayType(t.StringType())),
        Column("properties", t.MapType(t.StringType(nullable=False), t.IntType())),
        Column("pair", t.RowType((t.DataField("a", t.IntType()), t.DataField("b", t.StringType())))),
    ]
)
NESTED_ROWS: list[tuple[Any, ...]] = [
    (1, [1, None, 3], ["a", "longer than seven", None], [("x", 1), ("y", None)], (7, "q")),
    (2, None, None, None, None),
]


def to_batch(schema: Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of logical values as a record batch."""
    columns = list(zip(*rows)) if rows else [() for _ in schema.columns]
    arrays = [logical.to_arrow(list(v), c.data_type) for v, c in zip(columns, schema.columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema)


def to_rows(batch: pa.RecordBatch, schema: Schema) -> list[tuple[Any, ...]]:
    """A record batch as rows of logical values."""
    return list(zip(*(logical.from_arrow(a, c.data_type) for a, c in zip(batch.columns, schema.columns))))


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda n: decimal.Decimal(n).scaleb(-scale, decimal.Context(prec=60)))


_text = st.text(st.characters(codec="utf-8"), max_size=12)
# CHAR is padded with zero bytes in indexed rows, so values must not end in them.
_char = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=5)
_numbers = st.floats(allow_nan=False)

FLAT: list[tuple[t.DataType, st.SearchStrategy[Any]]] = [
    (t.BooleanType(), st.booleans()),
    (t.TinyIntType(), _ints(8)),
    (t.SmallIntType(), _ints(16)),
    (t.IntType(), _ints(32)),
    (t.BigIntType(), _ints(64)),
    (t.FloatType(), st.floats(width=32, allow_nan=False)),
    (t.DoubleType(), _numbers),
    (t.CharType(5), _char),
    (t.StringType(), _text),
    (t.BinaryType(4), st.binary(min_size=4, max_size=4).filter(lambda b: b[-1] != 0)),
    (t.BytesType(), st.binary(max_size=12)),
    (t.DecimalType(10, 2), _decimals(10, 2)),
    (t.DecimalType(38, 5), _decimals(38, 5)),
    (t.DateType(), _ints(32)),
    (t.TimeType(3), st.integers(0, 86_399_999)),
    (t.TimestampType(3), st.integers(-(2**41), 2**41).map(lambda ms: ms * 1_000_000)),
    (t.TimestampType(6), st.integers(-(2**51), 2**51).map(lambda us: us * 1_000)),
    (t.TimestampLtzType(9), _ints(62)),
]
NESTED_TYPES: list[tuple[t.DataType, st.SearchStrategy[Any]]] = [
    (t.ArrayType(t.IntType()), st.lists(st.none() | _ints(32), max_size=4)),
    (t.ArrayType(t.ArrayType(t.StringType())), st.lists(st.lists(_text, max_size=3), max_size=3)),
    (t.MapType(t.StringType(nullable=False), t.BigIntType()), st.lists(st.tuples(_text, _ints(64)), max_size=3)),
    (
        t.RowType((t.DataField("a", t.IntType()), t.DataField("b", t.ArrayType(t.StringType())))),
        st.tuples(_ints(32), st.lists(_text, max_size=3)),
    ),
]


@st.composite
def tables(
    draw: st.DrawFn, *, nested: bool = True, rows_min: int = 0, rows_max: int = 20
) -> tuple[Schema, list[tuple[Any, ...]]]:
    """A schema and rows of it."""
    palette = FLAT + (NESTED_TYPES if nested else [])
    chosen = draw(st.lists(st.sampled_from(palette), min_size=1, max_size=5))
    # Fields of a ROW carry ids of their own; a schema numbers them.
    schema = Schema.of([Column(f"c{i}", data_type) for i, (data_type, _) in enumerate(chosen)])
    row = st.tuples(*(st.none() | values for _, values in chosen))
    return schema, draw(st.lists(row, min_size=rows_min, max_size=rows_max))


def project_batch(
    batch: LogBatch, positions: Sequence[int], arrow_schema: pa.Schema, added: pa.Schema | None = None
) -> list[Part]:
    """The parts of a batch with some of its columns, as a server sends them."""
    return cut_batch(batch, positions, arrow_schema, added).parts(batch.view)
