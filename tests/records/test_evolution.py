# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pyarrow as pa
import pytest
from tests.records import vectors
from tests.records.tables import ID_NAME

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata import BigIntType, Column, DataType, IntType, Schema, StringType
from fluss.records import LogBatch, align_batch, decode_arrow_batch


def schema_of(*columns: tuple[str, DataType, int]) -> Schema:
    return Schema.of([Column(name, data_type, column_id=i) for name, data_type, i in columns], highest_field_id=99)


GROWN = schema_of(("id", IntType(), 0), ("name", StringType(), 1), ("score", BigIntType(), 2))
REARRANGED = schema_of(("score", BigIntType(), 2), ("label", StringType(), 1))
REPLACED = schema_of(("id", IntType(), 0), ("name", StringType(), 7))


@pytest.fixture
def batch() -> pa.RecordBatch:
    return decode_arrow_batch(LogBatch(vectors.ARROW_PLAIN), ID_NAME.arrow_schema)


def test_same_schema(batch: pa.RecordBatch) -> None:
    assert align_batch(batch, ID_NAME, ID_NAME).equals(batch)


def test_columns_added_later_are_null(batch: pa.RecordBatch) -> None:
    aligned = align_batch(batch, ID_NAME, GROWN)
    assert aligned.schema == GROWN.arrow_schema
    assert aligned.to_pydict() == {"id": [1, 2], "name": ["a", "bb"], "score": [None, None]}
    # Nothing is copied for the columns that were there.
    assert aligned.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


def test_columns_are_matched_by_id_not_by_name_or_place(batch: pa.RecordBatch) -> None:
    assert align_batch(batch, ID_NAME, REARRANGED).to_pydict() == {"score": [None, None], "label": ["a", "bb"]}
    assert align_batch(batch, ID_NAME, REPLACED).to_pydict() == {"id": [1, 2], "name": [None, None]}


def test_a_batch_of_another_width_is_refused(batch: pa.RecordBatch) -> None:
    with pytest.raises(InvalidArgumentError, match="the batch has 1 columns, expected 2"):
        align_batch(batch.select([1]), ID_NAME, GROWN)


def test_types_that_changed(batch: pa.RecordBatch) -> None:
    wider = schema_of(("id", BigIntType(), 0))
    assert align_batch(batch, ID_NAME, wider).column(0).type == pa.int64()
    other = schema_of(("id", IntType(), 1))
    with pytest.raises(FormatError, match="'id' was written as string and cannot be read as int32"):
        align_batch(batch, ID_NAME, other)
