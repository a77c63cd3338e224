# SPDX-License-Identifier: Apache-2.0
"""What a new table can be made from: a schema, text, a model, or data that is loaded too."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss._text import did_you_mean
from fluss.db.models import annotated_data_type, is_model, model_schema
from fluss.errors import InvalidArgumentError
from fluss.metadata import AggFunction, Column, DataType, Schema, TablePath, data_type_from_arrow
from fluss.metadata.properties import TABLE_PROPERTIES
from fluss.metadata.type_text import parse_data_type, parse_schema
from fluss.rows.named_fields import as_mapping

_OF_A_COLUMN = "fields."
_AUTO_INCREMENT = "auto-increment.fields"


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
    if isinstance(given, (bytes, Mapping)) or not all(isinstance(name, str) for name in given):
        raise InvalidArgumentError(f"{what} takes names of columns, not {given!r:.80}")
    return list(given)


def check_existing(path: TablePath, wanted: Schema, found: Schema, *, names_only: bool) -> None:
    """Refuse a table that exists without columns that are wanted: rows would not fit. It may have others."""
    types = {column.name: column.data_type.with_nullable(True) for column in found.columns}
    other = [
        column
        for column in wanted.columns
        if column.name not in types or (not names_only and types[column.name] != column.data_type.with_nullable(True))
    ]
    if other:
        has = "has no such column" if other[0].name not in types else f"has it as {types[other[0].name]}"
        what = f"other columns: {other[0].name} {other[0].data_type} was asked for, and it {has}"
    elif wanted.primary_key != found.primary_key:
        what = f"another primary key: {', '.join(found.primary_key) or 'none'}"
    else:
        return
    raise InvalidArgumentError(
        f"table {path} exists with {what}", hint="choose another name, add the column, or replace the table"
    )


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


def with_column_properties(schema: Schema, given: Mapping[str, Any]) -> tuple[Schema, dict[str, Any]]:
    """The schema with what properties say about its columns, and the other properties; the names are of Flink SQL.

    ``fields.NAME.agg`` is the aggregation function of a column, ``fields.NAME.FUNCTION.PARAMETER`` a parameter of that
    function, and ``auto-increment.fields`` names the column that the server numbers.
    """
    functions: dict[str, AggFunction] = {}
    parameters: list[tuple[str, str, str, str]] = []
    others: dict[str, Any] = {}
    generated: Sequence[str] = schema.auto_increment_columns
    for name, value in given.items():
        column, _, last = name.removeprefix(_OF_A_COLUMN).rpartition(".")
        if name == _AUTO_INCREMENT:
            generated = [one.strip() for one in str(value).split(",")]
        elif not name.startswith(_OF_A_COLUMN):
            others[name] = value
        elif last == "agg":
            functions[column] = AggFunction(str(value))
        else:
            column, _, function = column.rpartition(".")
            parameters.append((name, column, function, str(value)))
    for column in functions:
        if column not in schema.column_names:
            near = did_you_mean(column, schema.column_names)
            raise InvalidArgumentError(f"property 'fields.{column}.agg': there is no column {column!r}{near}")
    for name, column, function, value in parameters:
        of_column = functions.get(column)
        if of_column is None or of_column.name != AggFunction(function or "none").name:
            raise InvalidArgumentError(
                f"property {name!r} belongs to no aggregation function; 'fields.NAME.agg' chooses that of a column, "
                "and 'fields.NAME.FUNCTION.PARAMETER' is a parameter of it"
            )
        more = {**of_column.parameters, name.rpartition(".")[2]: value}
        functions[column] = AggFunction(of_column.name, more)
    if len(others) == len(given):
        return schema, others
    columns = [
        dataclasses.replace(one, agg_function=functions.get(one.name, one.agg_function)) for one in schema.columns
    ]
    return Schema.of(columns, schema.primary_key, generated), others


def split_properties(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Table properties, and those that mean nothing to the server. A misspelt one is refused."""
    own: dict[str, Any] = {}
    custom: dict[str, Any] = {}
    for name, value in given.items():
        if name == _AUTO_INCREMENT or name.startswith(_OF_A_COLUMN):
            raise InvalidArgumentError(f"property {name!r} is about columns: give it when the table is created")
        if not name.startswith("table."):
            custom[name] = value
        elif name in TABLE_PROPERTIES or name.startswith("table.datalake."):
            own[name] = value
        else:
            raise InvalidArgumentError(f"unknown table property {name!r}{did_you_mean(name, TABLE_PROPERTIES)}")
    return own, custom


def _is_type(value: object) -> bool:
    return (
        isinstance(value, (DataType, pa.DataType, type))
        or typing.get_origin(value) is not None
        or (isinstance(value, str) and _reads_as_type(value))
    )


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
    if isinstance(value, type) or typing.get_origin(value) is not None:
        return annotated_data_type(value).with_nullable(True)
    raise InvalidArgumentError(f"the type of a column is a text such as 'bigint' or a type, not {value!r:.80}")


def arrow_schema(schema: pa.Schema, key: Sequence[str]) -> Schema:
    """The schema of a table that holds everything an Arrow schema can."""
    columns = []
    for item in schema:
        try:
            columns.append(Column(item.name, data_type_from_arrow(stored_type(item.type), item.nullable)))
        except InvalidArgumentError as error:
            advice = next((text for is_kind, text in _ADVICE if is_kind(item.type)), "")
            raise InvalidArgumentError(f"column {item.name!r}: {error.message}{advice}") from None
    return Schema.of(columns, key)


_ADVICE: tuple[tuple[typing.Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_duration, "; convert it to a number first, such as its total seconds"),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), "; convert it first, such as to text"),
)


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
    if kinds.is_decimal(arrow_type) and arrow_type.bit_width < 128:
        return pa.decimal128(arrow_type.precision, arrow_type.scale)
    if kinds.is_list(arrow_type) or kinds.is_large_list(arrow_type) or kinds.is_fixed_size_list(arrow_type):
        field = arrow_type.value_field
        return pa.list_(field.with_type(stored_type(field.type)))
    if kinds.is_struct(arrow_type):
        fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        return pa.struct([field.with_type(stored_type(field.type)) for field in fields])
    return arrow_type


def as_arrow(data: Any, wanted: Sequence[str] = ()) -> pa.Table:
    """Data as an Arrow table, to learn its columns: frames, Arrow, rows, or a dict of columns."""
    if is_pandas(data):
        # An index with a name is data too, such as the keys of a group by.
        wanted = [*wanted, *(str(name) for name in data.index.names if name is not None)]
    table = frame_to_arrow(data, wanted)
    if table is not None:
        return table
    check_not_column(data)
    if isinstance(data, Mapping):
        return _table_of(data)
    if isinstance(data, (list, tuple)) or hasattr(data, "__iter__"):
        rows = [as_mapping(row) for row in data]
        if not rows or any(row is None for row in rows):
            raise InvalidArgumentError(
                "a table is made from a schema, a text such as 'id bigint, name string', a dataclass or pydantic "
                "model, an Arrow, pandas or polars object, or rows that are dicts; the columns of "
                f"{'nothing' if not rows else type(data).__name__} are not known"
            )
        every = list(dict.fromkeys(name for row in rows for name in row or ()))
        return _table_of({name: [row.get(name) for row in rows if row is not None] for name in every})
    raise InvalidArgumentError(
        f"a table is made from a schema, text, a model or data, not from {type(data).__name__} {data!r:.80}"
    )


def _table_of(columns: Mapping[Any, Any]) -> pa.Table:
    arrays = {}
    for name, values in columns.items():
        if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__iter__"):
            raise InvalidArgumentError(
                f"a dict of columns has a list of values for each; {name!r} has {values!r:.60}. One row goes into a "
                "list: [{…}]"
            )
        try:
            arrays[str(name)] = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = "a number is too large" if isinstance(error, OverflowError) else one_line(error)
            raise InvalidArgumentError(
                f"cannot infer the type of column {name!r}: {reason}",
                hint="create the table with a schema, then load the rows",
            ) from None
    try:
        return pa.table(arrays)
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"the columns make no table: {one_line(error)}") from None


def one_line(error: Exception) -> str:
    """What an error of Arrow says. One about a column has its reason and its place as two arguments."""
    return "; ".join(str(argument) for argument in error.args) or type(error).__name__


def is_pandas(value: object) -> bool:
    """Whether a value is a pandas DataFrame; pandas is not imported to find out."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")


def is_column(value: object) -> bool:
    """Whether a value is one column: a Series or index of pandas, a Series of polars, an Arrow array."""
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return not pa.types.is_struct(value.type)
    module = type(value).__module__.partition(".")[0]
    return module in ("pandas", "polars") and hasattr(value, "dtype") and not hasattr(value, "columns")


def check_not_column(data: Any) -> None:
    """Refuse one column where rows are meant."""
    if is_column(data):
        pandas = type(data).__module__.startswith("pandas")
        row = "; if it is a row, give its to_dict()" if pandas else ""
        raise InvalidArgumentError(
            f"a {type(data).__name__} is one column: put it into a frame with the name of the column{row}"
        )


def with_index(frame: Any, wanted: Sequence[str]) -> Any:
    """A pandas frame whose columns have texts as names, with the levels of its index that are wanted as columns."""
    if not all(isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    if not all(name is None or isinstance(name, str) for name in frame.index.names):
        frame = frame.rename_axis(index=[None if name is None else str(name) for name in frame.index.names])
    levels = [name for name in frame.index.names if name in wanted and name not in frame.columns]
    return frame.reset_index(level=levels) if levels else frame


def frame_to_arrow(data: Any, wanted: Sequence[str] = ()) -> pa.Table | None:
    """A data frame or an Arrow object as an Arrow table; None if it is neither."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if is_column(data):
        return None
    if is_pandas(data):
        return _pandas_to_arrow(with_index(data, wanted))
    try:
        if type(data).__module__.partition(".")[0] == "polars":
            data = data.collect() if hasattr(data, "collect") else data
            if hasattr(data, "to_arrow") and hasattr(data, "columns"):
                from fluss.client.write.arrow_input import polars_to_arrow

                return polars_to_arrow(data)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
        if hasattr(data, "__arrow_c_array__") and hasattr(data, "schema"):
            return pa.Table.from_batches([pa.record_batch(data)])
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"a {type(data).__name__} cannot be read as Arrow: {one_line(error)}") from None
    if hasattr(data, "to_reader") and hasattr(data, "scanner"):  # a pyarrow dataset
        return data.to_table()
    return None


def _pandas_to_arrow(frame: Any) -> pa.Table:
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InvalidArgumentError(f"the DataFrame has more than one column {twice!r}: rename them")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"the DataFrame has a column without one type: {one_line(error)}. Convert it first, such as with "
            "astype(str), or create the table with a schema"
        ) from None
