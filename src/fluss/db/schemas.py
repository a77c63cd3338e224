# SPDX-License-Identifier: Apache-2.0
"""What a new table can be made from: a schema, text, a model, or data that is loaded too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss.db.models import as_mapping, is_model, model_schema, python_data_type
from fluss.errors import InvalidArgumentError
from fluss.metadata import Column, DataType, Schema, data_type_from_arrow
from fluss.metadata.type_text import parse_data_type, parse_schema


@dataclasses.dataclass
class TableSource:
    """The columns of a new table, and the rows to load into it."""

    schema: Schema
    data: Any = None
    """Rows to load; None if there are none."""


def names(what: str, given: str | Sequence[str] | None) -> list[str]:
    """Names of columns: one, several or none."""
    if given is None:
        return []
    if isinstance(given, str):
        return [name.strip() for name in given.split(",")]
    if not all(isinstance(name, str) for name in given):
        raise InvalidArgumentError(f"{what} takes names of columns, not {given!r:.80}")
    return list(given)


def source_of(source: Any, primary_key: str | Sequence[str] | None) -> TableSource:
    """Read the source of a new table.

    Args:
        source: A schema (Fluss or Arrow), SQL text, a dataclass or pydantic model, or data.
        primary_key: The columns of the primary key.
    """
    key = names("primary_key", primary_key)
    if isinstance(source, Schema):
        return TableSource(with_key(source, key))
    if isinstance(source, str):
        return TableSource(with_key(parse_schema(source), key))
    if isinstance(source, pa.Schema):
        return TableSource(arrow_schema(source, key))
    if is_model(source):
        return TableSource(model_schema(source, key))
    if isinstance(source, Mapping) and source and all(_is_type(value) for value in source.values()):
        columns = [Column(str(name), column_type(value)) for name, value in source.items()]
        return TableSource(Schema.of(columns, key))
    if isinstance(source, type):
        raise InvalidArgumentError(f"rows are described by a dataclass or a pydantic model; {source!r} is neither")
    data = as_arrow(source, key)
    return TableSource(arrow_schema(data.schema, key), data)


def with_key(schema: Schema, key: Sequence[str]) -> Schema:
    """The schema with this primary key, unless it has one already."""
    if not key or list(schema.primary_key) == list(key):
        return schema
    if schema.primary_key:
        raise InvalidArgumentError(
            f"the schema has the primary key {list(schema.primary_key)}, and primary_key= says {list(key)}"
        )
    return Schema.of(schema.columns, key, schema.auto_increment_columns)


def _is_type(value: object) -> bool:
    return isinstance(value, (DataType, pa.DataType)) or (isinstance(value, str) and _reads_as_type(value))


def _reads_as_type(text: str) -> bool:
    try:
        parse_data_type(text)
    except InvalidArgumentError:
        return False
    return True


def column_type(value: Any) -> DataType:
    """A type as SQL text, as an Arrow type, as a Python type or as it is."""
    if isinstance(value, DataType):
        return value
    if isinstance(value, str):
        return parse_data_type(value)
    if isinstance(value, pa.DataType):
        return data_type_from_arrow(stored_type(value))
    if isinstance(value, type):
        return python_data_type(value)
    raise InvalidArgumentError(f"the type of a column is a text such as 'bigint' or a type, not {value!r:.80}")


def arrow_schema(schema: pa.Schema, key: Sequence[str]) -> Schema:
    """The schema of a table that holds everything an Arrow schema can."""
    columns = []
    for item in schema:
        try:
            columns.append(Column(item.name, data_type_from_arrow(stored_type(item.type), item.nullable)))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"column {item.name!r}: {error.message}") from None
    return Schema.of(columns, key)


_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}


def stored_type(arrow_type: pa.DataType) -> pa.DataType:
    """The Arrow type that a column of a frame is stored as: without dictionaries, and wide enough for its values."""
    kinds = pa.types
    if kinds.is_dictionary(arrow_type):
        return stored_type(arrow_type.value_type)
    if arrow_type in _UNSIGNED:
        return _UNSIGNED[arrow_type]
    if kinds.is_null(arrow_type) or getattr(kinds, "is_string_view", lambda _: False)(arrow_type):
        return pa.string()
    if getattr(kinds, "is_binary_view", lambda _: False)(arrow_type):
        return pa.binary()
    if kinds.is_float16(arrow_type):
        return pa.float32()
    if kinds.is_list(arrow_type) or kinds.is_large_list(arrow_type) or kinds.is_fixed_size_list(arrow_type):
        field = arrow_type.value_field
        return pa.list_(field.with_type(stored_type(field.type)))
    if kinds.is_struct(arrow_type):
        fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        return pa.struct([field.with_type(stored_type(field.type)) for field in fields])
    return arrow_type


def as_arrow(data: Any, wanted: Sequence[str] = ()) -> pa.Table:
    """Data as an Arrow table, to learn its columns: frames, Arrow, rows, or a dict of columns."""
    table = frame_to_arrow(data, wanted)
    if table is not None:
        return table
    if isinstance(data, Mapping):
        return _typed(lambda: pa.table(dict(data)))
    if isinstance(data, (list, tuple)) or hasattr(data, "__iter__"):
        rows = [as_mapping(row) for row in data]
        if not rows or any(row is None for row in rows):
            raise InvalidArgumentError(
                "a table is made from a schema, a text such as 'id bigint, name string', a dataclass or pydantic "
                "model, an Arrow, pandas or polars object, or rows that are dicts; the columns of "
                f"{'nothing' if not rows else type(data).__name__} are not known"
            )
        every = list(dict.fromkeys(name for row in rows for name in row or ()))
        return _typed(lambda: pa.table({name: [row.get(name) for row in rows if row is not None] for name in every}))
    raise InvalidArgumentError(
        f"a table is made from a schema, text, a model or data, not from {type(data).__name__} {data!r:.80}"
    )


def _typed(make: Any) -> pa.Table:
    try:
        return make()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"cannot tell the types of the columns: {error}; give a schema instead") from None


def is_pandas(value: object) -> bool:
    """Whether a value is a pandas DataFrame; pandas is not imported to find out."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")


def with_index(frame: Any, wanted: Sequence[str]) -> Any:
    """A pandas frame whose index is a column again, if columns are wanted that are in the index."""
    missing = [name for name in wanted if name not in frame.columns]
    return frame.reset_index() if missing and any(name in frame.index.names for name in missing) else frame


def frame_to_arrow(data: Any, wanted: Sequence[str] = ()) -> pa.Table | None:
    """A data frame or an Arrow object as an Arrow table; None if it is neither."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if is_pandas(data):
        frame = with_index(data, wanted)
        try:
            return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"the DataFrame has a column without one type: {error}") from None
    if type(data).__module__.partition(".")[0] == "polars":
        data = data.collect() if hasattr(data, "collect") else data
        if hasattr(data, "to_arrow") and hasattr(data, "columns"):
            return data.to_arrow()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if hasattr(data, "__arrow_c_array__") and hasattr(data, "schema"):
        return pa.Table.from_batches([pa.record_batch(data)])
    if hasattr(data, "to_reader") and hasattr(data, "scanner"):  # a pyarrow dataset
        return data.to_table()
    return None
