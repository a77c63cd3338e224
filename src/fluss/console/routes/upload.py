# SPDX-License-Identifier: Apache-2.0
"""Upload: a CSV or Parquet file becomes a table, after a look at the schema that was inferred."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pyarrow as pa

from fluss.console.json_values import to_json
from fluss.console.settings import UPLOAD_BYTES_MAX
from fluss.console.state import Call, read_body
from fluss.db.schemas import source_of
from fluss.errors import InvalidArgumentError
from fluss.tools.files import check_text, delimiter_of, header_of

_ROWS_SHOWN = 20


def read_file(name: str, content: bytes) -> pa.Table:
    """The rows of a file, by the ending of its name."""
    try:
        if name.lower().endswith((".parquet", ".pq")):
            import pyarrow.parquet

            return pyarrow.parquet.read_table(io.BytesIO(content))
        if name.lower().endswith((".csv", ".tsv", ".txt")):
            import pyarrow.csv

            label = f"The file {name[:100]!r}"
            delimiter = delimiter_of(name, header_of(io.BytesIO(content), label))
            options = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            found = pyarrow.csv.read_csv(io.BytesIO(content), parse_options=options)
            check_text(found.schema, label)
            return found
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgumentError(f"The file {name[:100]!r} cannot be read: {error}") from None
    raise InvalidArgumentError(f"The file {name[:100]!r} is neither CSV (.csv, .tsv) nor Parquet (.parquet).")


async def _table(call: Call) -> pa.Table:
    content = await read_body(call.request, UPLOAD_BYTES_MAX)
    if not content:
        raise InvalidArgumentError("The file is empty.")
    return await asyncio.to_thread(read_file, call.text("file"), content)


async def preview(call: Call) -> Any:
    """The schema that was inferred, and the first rows."""
    table = await _table(call)
    schema = (await asyncio.to_thread(source_of, table, None)).schema
    first = table.slice(0, _ROWS_SHOWN)
    return {
        "columns": [[column.name, str(column.data_type)] for column in schema.columns],
        "rows": [[to_json(value) for value in row] for row in zip(*(column.to_pylist() for column in first.columns))],
        "total": table.num_rows,
    }


async def create(call: Call) -> Any:
    """Create a table from the file, and load it."""
    call.require_writable()
    name = call.text("name").strip()
    if not name:
        raise InvalidArgumentError("Enter a name for the table.")
    table = await _table(call)
    key = [one for one in (call.maybe("key") or "").split("\n") if one]
    buckets = call.number("buckets", 1, 1, 100_000)
    made = await (await call.client.db()).create_table(name, table, primary_key=key or None, buckets=buckets)
    return {"name": made.name, "rows": table.num_rows}


ROUTES = (("upload/preview", preview, True), ("upload/create", create, True))
