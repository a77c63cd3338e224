# SPDX-License-Identifier: Apache-2.0
"""Data: rows page by page, lookups by key, changes of single rows, and SQL."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
from starlette.responses import Response

from fluss.client.buckets import bucket_offsets, table_buckets
from fluss.client.scan.records import rows_to_python
from fluss.console.json_values import from_text, row_values, to_json
from fluss.console.settings import BODY_BYTES_MAX, ROWS_PER_PAGE_MAX
from fluss.console.state import Call
from fluss.db.changes import KINDS
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import DataType, OffsetSpec, PartitionInfo, TableBucket, TableInfo

_BUCKETS_NAMED = 20


def rows_of(batches: list[pa.RecordBatch], types: list[DataType], columns: list[str]) -> list[Any]:
    """The cells of batches."""
    return [row_values(row, columns) for batch in batches for row in rows_to_python(batch, types)]


def _types(info: TableInfo, columns: list[str]) -> list[DataType]:
    return [info.schema.column(name).data_type for name in columns]


async def rows(call: Call) -> Any:
    """The first rows that match a filter, and a cursor to go on with."""
    table = await call.table()
    info = await table.refresh()
    chosen = [name for name in (call.maybe("columns") or "").split("\n") if name] or list(table.columns)
    snapshot = call.maybe("snapshot")
    if snapshot is not None and not snapshot.isdigit():
        raise InvalidArgumentError(f"A lake snapshot is named by its number, not {snapshot!r:.40}.")
    batches = table.batches(chosen, call.maybe("where"), None, int(snapshot) if snapshot else None)
    cursor = await call.client.open_cursor(batches)
    try:
        found, more = await cursor.page(call.number("limit", 100, 1, ROWS_PER_PAGE_MAX))
    except BaseException:
        with contextlib.suppress(Exception):  # the first error says what went wrong
            await call.client.close_cursor(cursor.id)
        raise
    types = _types(info, chosen)
    if not more:
        await call.client.close_cursor(cursor.id)
    return {
        "columns": chosen,
        "types": [str(kind) for kind in types],
        "key": list(info.primary_keys),
        "rows": rows_of(found, types, chosen),
        "cursor": cursor.id if more else None,
    }


async def next_rows(call: Call) -> Any:
    """The next rows of a cursor."""
    table = await call.table()
    cursor = call.client.cursor(call.text("cursor"))
    found, more = await cursor.page(call.number("limit", 100, 1, ROWS_PER_PAGE_MAX))
    if not more:
        await call.client.close_cursor(cursor.id)
    columns = list(found[0].schema.names) if found else []
    return {
        "rows": rows_of(found, _types(table.info, columns), columns),
        "cursor": cursor.id if more else None,
    }


async def close_rows(call: Call) -> Any:
    """Give back a cursor that is not needed any more."""
    await call.client.close_cursor(call.text("cursor"))
    return {}


async def log_page(call: Call) -> Any:
    """Records of one bucket by offset: of the log, or of the changelog of a primary-key table."""
    table = await call.table()
    info: TableInfo = table.info
    number = call.number("bucket", 0, 0, max(0, info.num_buckets - 1))
    limit = call.number("limit", 100, 1, ROWS_PER_PAGE_MAX)
    admin = await call.client.admin()
    buckets = await _buckets(call, admin, table)
    firsts = await bucket_offsets(admin, info, buckets, OffsetSpec.earliest())
    ends = await bucket_offsets(admin, info, buckets, OffsetSpec.latest())
    bucket = next(one for one in buckets if one.bucket_id == number)
    earliest, latest = firsts[bucket], ends[bucket]
    filled = [one.bucket_id for one in buckets if ends[one] > firsts[one]]
    wanted = call.number("offset", earliest, -(2**62), 2**62)
    # A negative offset counts from the end, as in Python.
    start = min(max(latest + wanted if wanted < 0 else wanted, earliest), latest)
    stop = min(start + limit, latest)
    columns = list(table.columns)
    types = _types(info, columns)
    return {
        "columns": columns,
        "types": [str(kind) for kind in types],
        "records": (await _records(call, table, bucket, start, stop))[:limit] if stop > start else [],
        "earliest": earliest,
        "latest": latest,
        "start": start,
        "next": stop if stop < latest else None,
        "other_buckets": [] if latest > earliest else filled[:_BUCKETS_NAMED],
    }


async def _buckets(call: Call, admin: Any, table: Any) -> dict[TableBucket, str | None]:
    """The buckets of the table, or of the partition that is asked for."""
    partition = call.maybe("partition")
    names: list[str] = []

    def choose(known: list[PartitionInfo]) -> list[PartitionInfo]:
        names.extend(sorted(one.partition_name for one in known)[:20])
        return [one for one in known if one.partition_name == partition]

    found = await table_buckets(admin, table.info, choose)
    if not found:
        raise InvalidArgumentError(f"Choose a partition of {table.name}: {', '.join(names) or 'none'}.")
    return found


async def _records(call: Call, table: Any, bucket: TableBucket, start: int, stop: int) -> list[dict[str, Any]]:
    """The records of a bucket from one offset up to another."""
    columns = list(table.columns)
    types = _types(table.info, columns)
    handle = await (await call.client.db()).connection.get_table(table.path)
    found: list[dict[str, Any]] = []
    async with contextlib.aclosing(handle.new_scan().read_batches({bucket: start}, {bucket: stop})) as batches:
        async for one in batches:
            kinds = one.change_types
            offsets = one.offsets if one.offsets is not None else range(one.base_offset, one.last_offset + 1)
            found += [
                {
                    "offset": int(offsets[at]),
                    "kind": KINDS[0 if kinds is None else kinds[at]],
                    "time_ms": one.timestamp,
                    "row": row_values(row, columns),
                }
                for at, row in enumerate(rows_to_python(one.batch, types))
            ]
    return found


async def lookup(call: Call) -> Any:
    """The row with a key; uncut, so that it can be changed."""
    table = await call.table()
    row = await table.get(_key(table.info, call.mapping("key")))
    return {"row": None if row is None else {name: to_json(row[name], BODY_BYTES_MAX) for name in table.columns}}


def _key(info: TableInfo, given: dict[str, Any]) -> dict[str, Any]:
    if not info.primary_keys:
        raise InvalidArgumentError(f"Table {info.table_path} has no primary key: its rows cannot be looked up.")
    return {name: from_text(given.get(name), info.schema.column(name).data_type, name) for name in info.primary_keys}


def _row(info: TableInfo, given: dict[str, Any]) -> dict[str, Any]:
    known = set(info.schema.column_names)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InvalidArgumentError(f"Table {info.table_path} has no column {unknown[0]!r}.")
    return {name: from_text(value, info.schema.column(name).data_type, name) for name, value in given.items()}


async def save(call: Call) -> Any:
    """Append a row to a log, or insert or replace the row with its key."""
    call.require_writable()
    table = await call.table()
    row = _row(table.info, call.mapping("row"))
    # The form shows the whole row: what is left empty in it is null.
    result = await (table.upsert(row, missing="null") if table.primary_key else table.append(row))
    return {"rows": result.rows}


async def update(call: Call) -> Any:
    """Change some columns of one row."""
    call.require_writable()
    table = await call.table()
    changed = _row(table.info, call.mapping("row"))
    result = await table.update([{**_key(table.info, call.mapping("key")), **changed}])
    return {"rows": result.rows}


async def delete(call: Call) -> Any:
    """Delete the row with a key."""
    call.require_writable()
    table = await call.table()
    result = await table.delete([_key(table.info, call.mapping("key"))])
    return {"rows": result.rows}


_TABLES_MAX = 200
_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


async def run(call: Call) -> Any:
    """Run a query and give its first rows."""
    return await call.client.sql.query(call.text("query"))


async def export(call: Call) -> Any:
    """The result of a query as a file."""
    form = call.text("format")
    content = await call.client.sql.export(call.text("query"), form)
    name = f"result.{form}"
    return Response(content, media_type=_TYPES[form], headers={"content-disposition": f'attachment; filename="{name}"'})


async def words(call: Call) -> Any:
    """The names of tables and their columns, for the completion of the editor."""
    db = await call.client.db()
    found: dict[str, list[str]] = {}
    for database in await db.databases():
        for name in await db.tables(database):
            if len(found) >= _TABLES_MAX:
                return {"tables": found}
            try:
                columns = (await db.table(f"{database}.{name}")).columns
            except FlussError:
                continue  # dropped since it was listed, or hidden
            found[name if database == db.name else f"{database}.{name}"] = columns
    return {"tables": found}


ROUTES = (
    ("rows", rows, False),
    ("rows/next", next_rows, False),
    ("rows/close", close_rows, True),
    ("records", log_page, False),
    ("lookup", lookup, True),
    ("rows/save", save, True),
    ("rows/update", update, True),
    ("rows/delete", delete, True),
    ("sql", run, True),
    ("sql/export", export, True),
    ("sql/words", words, False),
)
