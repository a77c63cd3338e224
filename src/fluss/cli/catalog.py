# SPDX-License-Identifier: Apache-2.0
"""Looking around: ``fluss ls``, ``fluss tables``, ``fluss describe``."""

from __future__ import annotations

import datetime as dt
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fluss import aio
from fluss.cli.common import connected, parse_path, print_json, run


def _time(millis: int) -> str:
    return dt.datetime.fromtimestamp(millis / 1000, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _table_facts(info: aio.TableInfo) -> dict[str, Any]:
    return {
        "table": str(info.table_path),
        "kind": "primary key" if info.has_primary_key() else "log",
        "columns": len(info.schema.columns),
        "buckets": info.num_buckets,
        "partitioned_by": info.get_partition_keys(),
        "comment": info.comment,
    }


@click.command()
@click.argument("database", required=False)
@connected
def ls(database: str | None, bootstrap_servers: str, user: str | None, password: str | None, as_json: bool) -> None:
    """List databases, or the tables of DATABASE."""

    async def work(connection: aio.FlussConnection) -> list[str]:
        admin = connection.get_admin()
        return sorted(await (admin.list_databases() if database is None else admin.list_tables(database)))

    names = run(bootstrap_servers, user, password, work)
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(name)


@click.command()
@click.argument("database", required=False)
@connected
def tables(database: str | None, bootstrap_servers: str, user: str | None, password: str | None, as_json: bool) -> None:
    """Show the tables of DATABASE (of all databases without it)."""

    async def work(connection: aio.FlussConnection) -> list[dict[str, Any]]:
        admin = connection.get_admin()
        databases = [database] if database is not None else sorted(await admin.list_databases())
        return [
            _table_facts(await admin.get_table_info(aio.TablePath(name, table)))
            for name in databases
            for table in sorted(await admin.list_tables(name))
        ]

    facts = run(bootstrap_servers, user, password, work)
    if as_json:
        print_json(facts)
        return
    shown = Table("table", "kind", "columns", "buckets", "partitioned by", "comment")
    for fact in facts:
        partitions = ", ".join(fact["partitioned_by"])
        counts = str(fact["columns"]), str(fact["buckets"])
        shown.add_row(fact["table"], fact["kind"], *counts, partitions, fact["comment"] or "")
    Console().print(shown if facts else "no tables")


@click.command()
@click.argument("table")
@connected
def describe(table: str, bootstrap_servers: str, user: str | None, password: str | None, as_json: bool) -> None:
    """Show all about TABLE (database.table): columns, keys, properties, offsets."""
    path = parse_path(table)

    async def work(connection: aio.FlussConnection) -> dict[str, Any]:
        admin = connection.get_admin()
        info = await admin.get_table_info(path)
        buckets = list(range(info.num_buckets))
        facts: dict[str, Any] = {
            **_table_facts(info),
            "id": info.table_id,
            "schema_id": info.schema_id,
            "primary_key": list(info.get_primary_keys()),
            "bucket_key": list(info.get_bucket_keys()),
            "created": _time(info.created_time),
            "modified": _time(info.modified_time),
            "properties": info.get_properties(),
            "custom_properties": info.get_custom_properties(),
            "columns": [
                {"name": column.name, "type": str(column.data_type), "comment": column.comment}
                for column in info.schema.columns
            ],
        }
        if info.is_partitioned():
            facts["partitions"] = [
                {
                    "name": partition.partition_name,
                    "id": partition.partition_id,
                    "end_offsets": await admin.list_partition_offsets(
                        path, partition.partition_name, buckets, aio.OffsetSpec.latest()
                    ),
                }
                for partition in await admin.list_partition_infos(path)
            ]
        else:
            facts["end_offsets"] = await admin.list_offsets(path, buckets, aio.OffsetSpec.latest())
        return facts

    facts = run(bootstrap_servers, user, password, work)
    if as_json:
        print_json(facts)
        return
    console = Console()
    columns = Table("column", "type", "key", "comment", title=f"{facts['table']} ({facts['kind']} table)")
    for column in facts["columns"]:
        roles = [
            role
            for role, names in (
                ("primary", facts["primary_key"]),
                ("partition", facts["partitioned_by"]),
                ("bucket", facts["bucket_key"]),
            )
            if column["name"] in names
        ]
        columns.add_row(column["name"], column["type"], ", ".join(roles), column["comment"] or "")
    console.print(columns)
    rest = Table(show_header=False, box=None)
    for name in ("id", "schema_id", "buckets", "created", "modified", "comment"):
        rest.add_row(name, str(facts[name]))
    for kind in ("properties", "custom_properties"):
        for key, value in sorted(facts[kind].items()):
            rest.add_row(key, value)
    for bucket, offset in facts.get("end_offsets", {}).items():
        rest.add_row(f"end of bucket {bucket}", str(offset))
    for partition in facts.get("partitions", ()):
        rest.add_row(f"partition {partition['name']}", f"ends at {list(partition['end_offsets'].values())}")
    console.print(rest)
