# SPDX-License-Identifier: Apache-2.0
"""Data: rows page by page, lookups by key, and changes of single rows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import sys
from collections import deque
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import JSONResponse, Response

from fluss.client.buckets import bucket_offsets, table_buckets
from fluss.client.scan.records import row_offsets
from fluss.console.clients import PageCursor
from fluss.console.json_values import from_text, paired_changes, rows_of
from fluss.console.settings import (
    CHANGES_OF_HISTORY_MAX,
    EDITED_CHARS_MAX,
    RECORDS_OF_HISTORY_MAX,
    ROWS_PER_PAGE_MAX,
)
from fluss.console.state import Call
from fluss.db.changes import KINDS
from fluss.errors import InvalidArgumentError
from fluss.metadata import OffsetSpec, PartitionInfo, TableBucket, TableInfo
from fluss.rows import ColumnConverter

_BUCKETS_NAMED = 20


def _types(info: TableInfo, columns: list[str]) -> list[str]:
    return [str(info.schema.column(name).data_type) for name in columns]


async def rows(call: Call) -> Any:
    """The first rows that match a filter, and a cursor to go on with."""
    table = await call.table()
    info = await table.refresh()
    chosen = call.names("columns") or list(table.columns)
    snapshot = call.maybe("snapshot")
    if snapshot is not None and not snapshot.isdecimal():
        raise InvalidArgumentError(f"A lake snapshot is named by its number, not {snapshot!r:.40}.")
    batches = table.batches(chosen, call.maybe("where"), None, int(snapshot) if snapshot else None)
    cursor = await call.client.open_cursor(batches)
    try:
        page = await _page(call, cursor)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error says what went wrong
            await call.client.close_cursor(cursor.id)
        raise
    return {"columns": chosen, "types": _types(info, chosen), "key": list(info.primary_keys), **page}


async def next_rows(call: Call) -> Any:
    """The next rows of a cursor."""
    return await _page(call, call.client.cursor(call.text("cursor")))


async def _page(call: Call, cursor: PageCursor) -> dict[str, Any]:
    """The next rows of a cursor, which is closed with the last ones."""
    found, more = await cursor.page(call.number("limit", 100, 1, ROWS_PER_PAGE_MAX))
    if not more:
        await call.client.close_cursor(cursor.id)
    return {"rows": [row for batch in found for row in rows_of(batch)], "cursor": cursor.id if more else None}


async def close_rows(call: Call) -> Any:
    """Give back a cursor that is not needed any more."""
    await call.client.close_cursor(call.text("cursor"))
    return {}


async def log_page(call: Call) -> Any:
    """Records of one bucket by offset: of the log, or of the changelog of a primary-key table."""
    table = await call.table()
    info: TableInfo = table.info
    limit = call.number("limit", 100, 1, ROWS_PER_PAGE_MAX)
    admin = await call.client.admin()
    buckets = await _buckets(call, admin, table)
    number = call.number("bucket", 0, 0, len(buckets) - 1)
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
    return {
        "columns": columns,
        "types": _types(info, columns),
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
    handle = await (await call.client.db()).connection.get_table(table.path)
    found: list[dict[str, Any]] = []
    async with contextlib.aclosing(handle.new_scan().read_batches({bucket: start}, {bucket: stop})) as batches:
        async for one in batches:
            kinds = one.change_types
            offsets = row_offsets(one)
            found += [
                {
                    "offset": int(offsets[at]),
                    "kind": KINDS[0 if kinds is None else kinds[at]],
                    "time_ms": one.timestamp,
                    "row": row,
                }
                for at, row in enumerate(rows_of(one.batch))
            ]
    return found


async def lookup(call: Call) -> Any:
    """The row with a key, for a change of it."""
    table = await call.table()
    found = await _find(table, _key(table.info, call.mapping("key")))
    return {"row": _shown(found), "version": _version(found)}


async def _find(table: Any, key: dict[str, Any]) -> pa.Table | None:
    """The row with a key as Arrow, which loses nothing of it."""
    found: pa.Table = await table.get_many([key], arrow=True)
    return None if found.column(table.primary_key[0]).null_count else found


def _shown(row: pa.Table | None) -> dict[str, Any] | None:
    return None if row is None else dict(zip(row.column_names, rows_of(row, EDITED_CHARS_MAX)[0]))


def _version(row: pa.Table | None) -> str | None:
    """What differs between any two states of a row."""
    return None if row is None else hashlib.sha256(json.dumps(rows_of(row, sys.maxsize)).encode()).hexdigest()


async def history(call: Call) -> Any:
    """All changes of the row with a key, newest first, as far as the changelog of its bucket has them."""
    table = await call.table()
    info: TableInfo = table.info
    key = _key(info, call.mapping("key"))
    handle = await (await call.client.db()).connection.get_table(table.path)
    partition, hashed = handle.new_lookup().create_lookuper().place_of(key)
    admin = await call.client.admin()
    buckets = await table_buckets(admin, info, lambda known: [one for one in known if one.partition_name == partition])
    bucket = next((one for one in buckets if one.bucket_id == hashed % len(buckets)), None)
    changes: list[dict[str, Any]] = []
    first = start = end = 0
    if bucket is not None:
        first = (await bucket_offsets(admin, info, {bucket: partition}, OffsetSpec.earliest()))[bucket]
        end = (await bucket_offsets(admin, info, {bucket: partition}, OffsetSpec.latest()))[bucket]
        start = max(first, end - RECORDS_OF_HISTORY_MAX)
        changes = await _changes_of_key(handle, info, bucket, start, end, key) if end > start else []
    return {
        "columns": list(table.columns),
        "changes": changes[: -CHANGES_OF_HISTORY_MAX - 1 : -1],
        "read": end - start,
        "complete": start == first and len(changes) <= CHANGES_OF_HISTORY_MAX,
    }


async def _changes_of_key(
    handle: Any, info: TableInfo, bucket: TableBucket, start: int, end: int, key: dict[str, Any]
) -> list[dict[str, Any]]:
    wanted = {name: ColumnConverter(info.schema.column(name).data_type, name).to_arrow([key[name]])[0] for name in key}
    # An update is two records, and one change more than are shown says that there are more.
    records: deque[tuple[str, list[Any], dict[str, Any]]] = deque(maxlen=2 * CHANGES_OF_HISTORY_MAX + 1)
    async with contextlib.aclosing(handle.new_scan().read_batches({bucket: start}, {bucket: end})) as batches:
        async for one in batches:
            masks = [pc.equal(one.batch.column(name), value) for name, value in wanted.items()]
            found = pc.indices_nonzero(functools.reduce(pc.and_, masks))[-(2 * CHANGES_OF_HISTORY_MAX + 1) :]
            offsets = row_offsets(one)
            for at, row in zip(found.to_pylist(), rows_of(one.batch.take(found))):
                kind = KINDS[0 if one.change_types is None else one.change_types[at]]
                records.append((kind, row, {"offset": int(offsets[at]), "time_ms": one.timestamp}))
    return paired_changes(*zip(*records)) if records else []


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
    """Append a row to a log, or insert one with a new key."""
    call.require_writable()
    table = await call.table()
    row = _row(table.info, call.mapping("row"))
    if not table.primary_key:
        return {"rows": (await table.append(row)).rows}
    key = {name: row.get(name) for name in table.primary_key}
    async with _row_lock(call, table, key):
        there = await _find(table, key)
        if there is not None:
            return _conflict("There is a row with this key already. Look it up to change it.", there)
        return {"rows": (await table.upsert(row, missing="null")).rows}


def _row_lock(call: Call, table: Any, key: dict[str, Any]) -> asyncio.Lock:
    """Held from the look at a row to the write: of two browsers that change it, the second one is refused."""
    return call.state.edits.setdefault(f"{table.name} {key}", asyncio.Lock())


def _conflict(reason: str, row: pa.Table | None) -> Response:
    return JSONResponse({"error": reason, "row": _shown(row)}, 409)


async def _expected(call: Call, table: Any, key: dict[str, Any]) -> pa.Table | Response:
    """The row with a key if it still is as the browser shows it, else the answer that says how it is now."""
    found = await _find(table, key)
    if found is None:
        return _conflict("The row was deleted since it was shown.", None)
    if _version(found) != call.text("version"):
        return _conflict("The row was changed since it was shown.", found)
    return found


async def update(call: Call) -> Any:
    """Change some columns of one row, if it is as it was shown."""
    call.require_writable()
    table = await call.table()
    info: TableInfo = table.info
    key = _key(info, call.mapping("key"))
    changed = _row(info, call.mapping("row"))
    if not key.keys().isdisjoint(changed):
        raise InvalidArgumentError("The key of a row cannot be changed. Insert a new row, and delete this one.")
    async with _row_lock(call, table, key):
        found = await _expected(call, table, key)
        if isinstance(found, Response):
            return found
        return {"rows": (await table.update([{**key, **changed}])).rows}


async def delete(call: Call) -> Any:
    """Delete the row with a key, if it is as it was shown."""
    call.require_writable()
    table = await call.table()
    key = _key(table.info, call.mapping("key"))
    async with _row_lock(call, table, key):
        found = await _expected(call, table, key)
        return found if isinstance(found, Response) else {"rows": (await table.delete([key])).rows}


ROUTES = (
    ("rows", rows, False),
    ("rows/next", next_rows, False),
    ("rows/close", close_rows, True),
    ("records", log_page, False),
    ("lookup", lookup, True),
    ("rows/history", history, True),
    ("rows/save", save, True),
    ("rows/update", update, True),
    ("rows/delete", delete, True),
)
