# SPDX-License-Identifier: Apache-2.0
"""How tables and databases look in a notebook: compact HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fluss.metadata import TableInfo

_TABLES_SHOWN = 50


def table_html(info: TableInfo) -> str:
    """A table: its name, what it is, its columns."""
    kind = f"primary key ({', '.join(info.primary_keys)})" if info.has_primary_key() else "log table"
    facts = [kind, f"{info.num_buckets} bucket{'' if info.num_buckets == 1 else 's'}"]
    if info.is_partitioned():
        facts.append(f"partitioned by {', '.join(info.partition_keys)}")
    if info.lake_format is not None and info.config.lake_enabled:
        facts.append(f"lake: {info.lake_format}")
    rows = "".join(
        f"<tr><td>{escape(column.name)}</td><td><code>{escape(str(column.data_type))}</code></td>"
        f"<td>{escape(column.comment or '')}</td></tr>"
        for column in info.schema.columns
    )
    comment = f"<br>{escape(info.comment)}" if info.comment else ""
    return (
        f"<div><b>{escape(str(info.table_path))}</b> <small>{escape(' · '.join(facts))}</small>{comment}"
        f"<table><thead><tr><th>column</th><th>type</th><th>comment</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def database_html(name: str, address: str, tables: Sequence[str]) -> str:
    """A database: where it is, and its tables."""
    shown = ", ".join(escape(table) for table in tables[:_TABLES_SHOWN]) or "<i>no tables</i>"
    more = f" and {len(tables) - _TABLES_SHOWN} more" if len(tables) > _TABLES_SHOWN else ""
    return f"<div><b>{escape(name)}</b> <small>at {escape(address)}</small><br>{shown}{more}</div>"
