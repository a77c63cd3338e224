# SPDX-License-Identifier: Apache-2.0
"""Upload: a CSV or Parquet file becomes a table, after a look at the schema that was inferred."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fluss.console.json_values import rows_of
from fluss.console.settings import DECODED_BYTES_MAX, UPLOAD_BYTES_MAX, UPLOAD_S_MAX
from fluss.console.state import Call, read_body
from fluss.db.schemas import source_of
from fluss.errors import InvalidArgumentError
from fluss.metadata.type_text import parse_data_type
from fluss.tools.files import UTF8, check_quotes, check_text, code_columns, delimiter_of, header_of

_ROWS_SHOWN = 20
_VALUE_BYTES = 8
_BATCH_ROWS = 4_096
_NESTED_BATCH_ROWS = 64
_TEXT_TYPES = ("string", "large_string", "binary", "large_binary")


def read_file(name: str, content: bytes, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """The rows of a file, by the ending of its name; `types` of columns go before those that are inferred."""
    wanted = types or {}
    try:
        if name.lower().endswith((".parquet", ".pq")):
            found = _read_parquet(content)
            return found.cast(pa.schema([one.with_type(wanted.get(one.name, one.type)) for one in found.schema]))
        if name.lower().endswith((".csv", ".tsv", ".txt")):
            return _read_csv(name, content, wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgumentError(f"The file {name[:100]!r} cannot be read: {error}") from None
    raise InvalidArgumentError(f"The file {name[:100]!r} is neither CSV (.csv, .tsv) nor Parquet (.parquet).")


def _read_csv(name: str, content: bytes, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Read a CSV file. Digits that zeros lead are no numbers, but codes: they stay texts."""
    import pyarrow.csv

    label = f"The file {name[:100]!r}"
    header = header_of(io.BytesIO(content), label)
    delimiter = delimiter_of(name, header)
    # Texts take what they take in the file; each value takes some bytes besides, or instead if it is a number.
    _check_decoded(content.count(b"\n") * (header.count(delimiter) + 1) * _VALUE_BYTES)
    # Of a single column, an empty line is a row with null.
    options = pyarrow.csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=delimiter in header
    )

    def read(chosen: Mapping[str, pa.DataType]) -> pa.Table:
        convert = pyarrow.csv.ConvertOptions(
            column_types=dict(chosen),
            null_values=UTF8.nulls,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return pyarrow.csv.read_csv(io.BytesIO(content), parse_options=options, convert_options=convert)

    found = read(types)
    inferred = pa.schema([one for one in found.schema if one.name not in types])
    codes = code_columns(content, options, inferred, UTF8.nulls)
    if codes:
        found = read({**dict.fromkeys(codes, pa.string()), **types})
    check_text(found.schema, label)
    if found.num_rows and pa.types.is_string(found.columns[-1].type):
        check_quotes(label, found.columns[-1][-1].as_py(), content.rstrip(b"\r\n")[-1:])
    return found


def _read_parquet(content: bytes) -> pa.Table:
    """Read rows that take at most `DECODED_BYTES_MAX`: encodings and compression make a small file of much data.

    The number of values is known before anything is decoded. Texts are decoded as dictionaries, in which repeated ones
    take no memory, and expanded batch by batch; those in lists and rows cannot be, so their batches are small.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(io.BytesIO(content))
    chunks = [
        metadata.row_group(i).column(j) for i in range(metadata.num_row_groups) for j in range(metadata.num_columns)
    ]
    _check_decoded(sum(max(chunk.num_values * _VALUE_BYTES, chunk.total_uncompressed_size) for chunk in chunks))
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    schema = pq.read_schema(io.BytesIO(content))
    flat = [path for path in texts if path in schema.names and str(schema.field(path).type) in _TEXT_TYPES]
    file = pq.ParquetFile(io.BytesIO(content), read_dictionary=flat)
    batches: list[pa.RecordBatch] = []
    decoded_bytes = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS if flat == texts else _NESTED_BATCH_ROWS):
        decoded_bytes += sum(map(_decoded_bytes, batch.columns))
        _check_decoded(decoded_bytes)
        batches.append(batch.cast(schema))
    return pa.Table.from_batches(batches, schema)


def _decoded_bytes(column: pa.Array) -> int:
    """The size of a column once its dictionary is expanded."""
    if not isinstance(column, pa.DictionaryArray) or str(column.type.value_type) not in _TEXT_TYPES:
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(column.indices.nbytes + (pc.sum(lengths).as_py() or 0))


def _check_decoded(size_bytes: int) -> None:
    if size_bytes > DECODED_BYTES_MAX:
        raise InvalidArgumentError(
            f"The rows of the file would take more than {DECODED_BYTES_MAX} bytes in memory. Split the file, or use "
            "'fluss load'."
        )


@contextlib.asynccontextmanager
async def _table(call: Call) -> AsyncIterator[pa.Table]:
    chosen = {name: parse_data_type(text).to_arrow() for name, text in call.pairs("types").items()}
    async with call.state.uploads:
        content = await read_body(call.request, UPLOAD_BYTES_MAX, UPLOAD_S_MAX)
        if not content:
            raise InvalidArgumentError("The file is empty.")
        yield await asyncio.to_thread(read_file, call.text("file"), content, chosen)


async def preview(call: Call) -> Any:
    """The schema that was inferred, and the first rows."""
    async with _table(call) as table:
        schema = (await asyncio.to_thread(source_of, table, None)).schema
        return {
            "columns": [[column.name, str(column.data_type)] for column in schema.columns],
            "rows": rows_of(table.slice(0, _ROWS_SHOWN)),
            "total": table.num_rows,
        }


async def create(call: Call) -> Any:
    """Create a table from the file, and load it."""
    call.require_writable()
    name = call.text("name").strip()
    if not name:
        raise InvalidArgumentError("Enter a name for the table.")
    key = [one for one in (call.maybe("key") or "").split("\n") if one]
    buckets = call.number("buckets", 1, 1, 100_000)
    async with _table(call) as table:
        made = await (await call.client.db()).create_table(name, table, primary_key=key or None, buckets=buckets)
        return {"name": made.name, "rows": table.num_rows}


ROUTES = (("upload/preview", preview, True), ("upload/create", create, True))
