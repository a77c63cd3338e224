# SPDX-License-Identifier: Apache-2.0
"""Tables of Auto CDC flows of type 2, which keep the history of rows.

Spark knows a version of a row by its key and a field within a column, the sequence of the change. A primary key of
Fluss has whole columns. So these tables have one more column with a copy of that field, as the last of their key. Spark
sees it as a metadata column, and writes fill it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from fluss.metadata import TableInfo

SEQUENCE = "_record_start_at"
_METADATA = "__spark_autocdc_metadata"
_FIELD = "__RECORD_START_AT"


def with_sequence(columns: StructType, primary_key: Sequence[str]) -> StructType:
    """The columns of a new table: with the copy if its key names it and Spark's column is there."""
    if SEQUENCE not in primary_key or SEQUENCE in columns.names or _METADATA not in columns.names:
        return columns
    copied = columns[_METADATA].dataType[_FIELD].dataType
    return StructType([*columns.fields, StructField(SEQUENCE, copied, False)])


def has_sequence(info: TableInfo) -> bool:
    """Whether a table has the copy."""
    return SEQUENCE in info.primary_keys and _METADATA in info.schema.column_names


def source_of(column: str, names: Sequence[str]) -> str | None:
    """The column of a DataFrame that a column of the table is copied from, where it is the copy."""
    return _METADATA if column == SEQUENCE and _METADATA in names else None


def copied(column: pa.Array) -> pa.Array:
    """The values of the copy."""
    return pc.struct_field(column, _FIELD)
