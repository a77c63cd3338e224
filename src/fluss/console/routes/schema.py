# SPDX-License-Identifier: Apache-2.0
"""Schema: what a table is, how it became so, and forms to create and alter tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fluss.console.json_values import hint_of
from fluss.console.state import Call
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import BooleanType, TableInfo
from fluss.metadata.properties import TABLE_PROPERTIES

_VERSIONS_MAX = 50
_OPTIONS = {
    "primary_key": "--key",
    "partition_by": "--partition-by",
    "buckets": "--buckets",
    "comment": "--comment",
}
"""Arguments of `create_table` as options of `fluss create`."""


def describe_columns(info: TableInfo) -> list[dict[str, Any]]:
    """The columns, with what each is used for."""
    generated = info.schema.get_auto_increment_columns()
    return [
        {
            "name": column.name,
            "type": str(column.data_type),
            "nullable": column.data_type.nullable,
            "boolean": isinstance(column.data_type, BooleanType),
            "comment": column.comment,
            "key": column.name in info.primary_keys,
            "partition": column.name in info.partition_keys,
            "bucket": column.name in info.bucket_keys,
            "generated": column.name in generated,
            "hint": hint_of(column.data_type),
        }
        for column in info.schema.columns
    ]


async def table(call: Call) -> Any:
    """All about one table."""
    opened = await call.table()
    info: TableInfo = opened.info
    return {
        "name": opened.name,
        "id": info.table_id,
        "schema_id": info.schema_id,
        "kind": "primary key" if info.has_primary_key() else "log",
        "columns": describe_columns(info),
        "primary_key": list(info.primary_keys),
        "partition_keys": list(info.partition_keys),
        "bucket_keys": list(info.bucket_keys),
        "buckets": info.num_buckets,
        "comment": info.comment,
        "created_ms": info.created_time,
        "modified_ms": info.modified_time,
        "lake": info.lake_format if info.config.lake_enabled else None,
        "partitions": [one.partition_name for one in (await opened.partitions())[:500]],
        "properties": describe_properties(info.properties),
        "custom_properties": dict(list(info.custom_properties.items())[:200]),
    }


def describe_properties(values: dict[str, str]) -> list[dict[str, Any]]:
    """Every property with its value, default and meaning; the given ones that are not in the table come last."""
    known = [
        {
            "name": row.key,
            "type": row.kind,
            "default": row.default_text,
            "meaning": row.doc,
            "alterable": row.dynamic,
            "value": values.get(row.key),
        }
        for row in TABLE_PROPERTIES.values()
    ]
    others = [
        {"name": name, "type": "", "default": "", "meaning": "", "alterable": False, "value": value}
        for name, value in values.items()
        if name not in TABLE_PROPERTIES
    ]
    return known + others


async def properties(call: Call) -> Any:
    """The properties that a new table can have."""
    return {"properties": describe_properties({})}


async def history(call: Call) -> Any:
    """The versions of the schema, newest first."""
    opened = await call.table()
    admin = await call.client.admin()
    newest = opened.info.schema_id
    found: list[dict[str, Any]] = []
    for number in range(newest, max(0, newest - _VERSIONS_MAX), -1):
        try:
            version = await admin.get_table_schema(opened.path, number)
        except FlussError:
            break  # versions before a certain one may be gone
        columns = [[column.name, str(column.data_type)] for column in version.schema.columns]
        found.append({"schema_id": version.schema_id, "columns": columns})
    return {"versions": found}


def _form(call: Call) -> tuple[str, str, dict[str, Any]]:
    """What the form for a new table holds: its name, its columns as text, and the other arguments that are given."""
    name, columns = call.text("name").strip(), call.text("columns").strip()
    if not name or not columns:
        raise InvalidArgumentError("A new table needs a name and columns, such as: id bigint not null, item string")
    buckets = call.maybe("buckets")
    given = {
        "primary_key": call.names("primary_key"),
        "partition_by": call.names("partition_by"),
        "buckets": call.number("buckets", None, 1, 100_000) if buckets else None,
        "properties": {str(key): str(value) for key, value in (call.body.get("properties") or {}).items()},
        "comment": call.maybe("comment"),
    }
    return name, columns, {name: value for name, value in given.items() if value}


async def create_preview(call: Call) -> Any:
    """The code that does what the form for a new table does."""
    return _create_code(*_form(call), call.state.settings.bootstrap_servers)


async def create(call: Call) -> Any:
    """Create a table."""
    call.require_writable()
    name, columns, arguments = _form(call)
    db = await call.client.db()
    made = await db.create_table(name, columns, **arguments)
    return {"name": made.name}


def _alteration(call: Call) -> tuple[list[tuple[str, str]], dict[str, str | None]]:
    added = []
    for item in call.body.get("add_columns") or []:
        name, kind = str(item.get("name", "")).strip(), str(item.get("type", "")).strip()
        if not name or not kind:
            raise InvalidArgumentError("A new column needs a name and a type.")
        added.append((name, kind))
    changed = {
        str(name): None if value is None else str(value) for name, value in (call.body.get("properties") or {}).items()
    }
    return added, changed


async def alter_preview(call: Call) -> Any:
    """The code that does what the form for changes does."""
    return _alter_code(call.text("table"), call.state.settings.bootstrap_servers, *_alteration(call))


async def alter(call: Call) -> Any:
    """Add columns, set and reset properties."""
    call.require_writable()
    opened = await call.table()
    added, changed = _alteration(call)
    for name, kind in added:
        await opened.add_column(name, kind)
    if changed:
        await opened.set_properties(changed)
    return {"name": opened.name}


async def drop(call: Call) -> Any:
    """Drop a table; the browser repeats its name, so that a slip of the mouse is not enough."""
    call.require_writable()
    name = call.text("table")
    if call.text("confirm") != name:
        raise InvalidArgumentError(f"Enter the name {name!r} to drop the table with all its rows.")
    await (await call.client.db()).drop_table(name)
    return {}


ROUTES = (
    ("table", table, False),
    ("table/history", history, False),
    ("table/properties", properties, False),
    ("table/create/code", create_preview, True),
    ("table/create", create, True),
    ("table/alter/code", alter_preview, True),
    ("table/alter", alter, True),
    ("table/drop", drop, True),
)


def _create_code(table: str, columns: str, arguments: Mapping[str, Any], server: str) -> dict[str, str]:
    """The code that creates a table."""
    python = (
        f"import fluss\n\ndb = fluss.connect({server!r})\n"
        f"db.create_table(\n    {table!r},\n    {columns!r}{_written(arguments)},\n)\n"
    )
    words = ["fluss", "create", table, columns]
    for name, value in arguments.items():
        if name == "properties":
            words += [word for key, one in value.items() for word in ("-p", f"{key}={one}")]
        else:
            words += [_OPTIONS[name], ",".join(value) if isinstance(value, list) else str(value)]
    named = {{"partition_by": "partitioned_by"}.get(name, name): value for name, value in arguments.items()}
    spark = (
        f"from fluss.spark import create_table\n\nframe = spark.createDataFrame([], {columns!r})\n"
        f"create_table(\n    frame,\n    {table!r},\n    {server!r}{_written(named)},\n)\n"
    )
    return {"python": python, "cli": _cli(words, server), "spark": spark}


def _written(arguments: Mapping[str, Any]) -> str:
    return "".join(f",\n    {name}={value!r}" for name, value in arguments.items())


def _alter_code(
    name: str, server: str, add_columns: Sequence[tuple[str, str]], properties: Mapping[str, str | None]
) -> dict[str, str]:
    """The code that adds columns and sets properties; a property of None is reset."""
    if not add_columns and not properties:
        raise InvalidArgumentError("Name a column or a property to change.")
    python = f"import fluss\n\ntable = fluss.connect({server!r}).table({name!r})\n"
    python += "".join(f"table.add_column({column!r}, {kind!r})\n" for column, kind in add_columns)
    if properties:
        python += f"table.set_properties({dict(properties)!r})\n"
    lines = [_cli(["fluss", "alter", name, "add", "column", column, kind], server) for column, kind in add_columns]
    chosen = [f"{key}={value}" for key, value in properties.items() if value is not None]
    reset = [key for key, value in properties.items() if value is None]
    lines += [_cli(["fluss", "alter", name, "set", *chosen], server)] if chosen else []
    lines += [_cli(["fluss", "alter", name, "reset", *reset], server)] if reset else []
    spark = "# A table is altered with the Python API on the driver; a stream that reads it sees new columns\n"
    spark += "# when it is started again.\n" + python
    return {"python": python, "cli": "".join(lines), "spark": spark}


def _cli(words: Sequence[str], server: str) -> str:
    return " ".join(shlex.quote(word) for word in [*words, "-b", server]) + "\n"
