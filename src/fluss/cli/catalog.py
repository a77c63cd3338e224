# SPDX-License-Identifier: Apache-2.0
"""Looking around: ``fluss ls``, ``fluss tables``, ``fluss describe``."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from fluss._text import escaped
from fluss.cli.common import (
    CliTarget,
    check_database,
    connected,
    note,
    print_json,
    print_names,
    table_argument,
)
from fluss.cli.show import echo, facts, grid, size_text

if TYPE_CHECKING:
    from fluss import TableInfo


def _time(millis: int) -> str:
    return dt.datetime.fromtimestamp(millis / 1000, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _table_facts(info: TableInfo) -> dict[str, Any]:
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
def ls(link: CliTarget, database: str | None) -> None:
    """List databases, or the tables of DATABASE.

    Example: fluss ls fluss
    """
    with link.database() as db:
        names = sorted(db.databases() if database is None else db.tables(check_database(db, database)))
    print_names(link.as_json, names)


@click.command()
@click.argument("database", required=False)
@connected
def tables(link: CliTarget, database: str | None) -> None:
    """Show the tables of DATABASE (of all databases without it).

    Example: fluss tables
    """
    from fluss.tools.status import data_folder, table_size

    with link.database() as db:
        databases = [check_database(db, database)] if database is not None else sorted(db.databases())
        infos = [db.table(f"{name}.{table}").info for name in databases for table in sorted(db.tables(name))]
        folder = data_folder(db)
        found = [{**_table_facts(info), "bytes": table_size(folder, info)} for info in infos]
    if link.as_json:
        print_json(found)
        return
    if not found:
        note("no tables")
        return
    grid(
        ["table", "kind", "columns", "buckets", "size", "partitioned by", "comment"],
        [
            [
                *(one[name] for name in ("table", "kind", "columns", "buckets")),
                size_text(one["bytes"]),
                ", ".join(one["partitioned_by"]),
                one["comment"] or "",
            ]
            for one in found
        ],
    )


@click.command()
@table_argument()
@connected
def describe(link: CliTarget, table: str) -> None:
    """Describe TABLE: columns, keys, properties, rows, size, offsets, how evenly buckets are filled, lag of the lake.

    Example: fluss describe orders
    """
    from fluss.tools.status import measure_table

    with link.database() as db:
        opened = db.table(table)
        info = opened.info
        figures = measure_table(db, opened)
        partitions = opened.partitions()
    found: dict[str, Any] = {
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
            {
                "name": column.name,
                "type": str(column.data_type),
                "aggregation": None if column.agg_function is None else column.agg_function.to_json(),
                "comment": column.comment,
            }
            for column in info.schema.columns
        ],
        "rows": figures.rows,
        "bytes": figures.size_bytes,
        "skew": None if figures.skew is None else round(figures.skew, 3),
        "lake_lag": figures.lake_lag,
        "bucket_figures": [{**vars(one), "bucket": one.bucket.bucket_id} for one in figures.buckets],
    }
    ends = [(one.partition, one.bucket.bucket_id, one.latest) for one in figures.buckets]
    if info.is_partitioned():
        found["partitions"] = [
            {
                "name": one.partition_name,
                "id": one.partition_id,
                "end_offsets": {bucket: end for name, bucket, end in ends if name == one.partition_name},
            }
            for one in partitions
        ]
    else:
        found["end_offsets"] = {bucket: end for _, bucket, end in ends}
    if link.as_json:
        print_json(found)
    else:
        _show(found)


def _aggregation(function: dict[str, Any] | None) -> str:
    """How the values of a column are combined, such as ``listagg delimiter=;``."""
    if function is None:
        return ""
    return " ".join([function["type"], *(f"{name}={value}" for name, value in function.get("parameters", {}).items())])


def _show(found: dict[str, Any]) -> None:
    echo(click.style(f"{escaped(found['table'])} ({found['kind']} table)", bold=True))
    roles = (("primary", found["primary_key"]), ("partition", found["partitioned_by"]), ("bucket", found["bucket_key"]))
    aggregates = any(column["aggregation"] for column in found["columns"])
    grid(
        ["column", "type", "key", *(["aggregation"] if aggregates else []), "comment"],
        [
            [
                column["name"],
                column["type"],
                ", ".join(role for role, names in roles if column["name"] in names),
                *([_aggregation(column["aggregation"])] if aggregates else []),
                column["comment"] or "",
            ]
            for column in found["columns"]
        ],
    )
    echo("")
    pairs = [
        ("rows", "unknown" if found["rows"] is None else f"{found['rows']:,}"),
        ("size", size_text(found["bytes"])),
        ("buckets", found["buckets"]),
    ]
    if found["skew"] is not None and len(found["bucket_figures"]) > 1:
        pairs.append(("skew", f"{found['skew']:.2f} (fullest bucket by average)"))
    if found["lake_lag"] is not None:
        pairs.append(("lake lag", f"{found['lake_lag']:,} rows"))
    pairs += [(name, found[name]) for name in ("id", "schema_id", "created", "modified")]
    pairs += [("comment", found["comment"])] if found["comment"] else []
    for kind in ("properties", "custom_properties"):
        pairs += sorted(found[kind].items())
    facts(pairs)
    if found["bucket_figures"]:
        echo("")
        names = ["partition", "bucket", "earliest", "latest", "rows"]
        grid(names, [[one["partition"] or "", *(one[name] for name in names[1:])] for one in found["bucket_figures"]])
