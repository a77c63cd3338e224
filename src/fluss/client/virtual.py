# SPDX-License-Identifier: Apache-2.0
"""The names of virtual tables: `orders$changelog`, `orders$binlog`, `orders$lake`.

What the first two show is in `fluss.client.scan.views`; `$lake` shows the newest snapshot of the lake alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.errors import InvalidArgumentError
from fluss.metadata import TablePath

if TYPE_CHECKING:
    from fluss.metadata import TableInfo

LAKE = "lake"
VIEW_NAMES = ("changelog", "binlog", LAKE)


def split_virtual(path: TablePath) -> tuple[TablePath, str | None]:
    """The table that a path names, and the view of it: ``changelog``, ``binlog``, ``lake`` or None."""
    name, dollar, view = path.table_name.partition("$")
    if not dollar:
        return path, None
    if view not in VIEW_NAMES:
        raise InvalidArgumentError(f"'{path}': there are the virtual tables $changelog, $binlog and $lake, not ${view}")
    return TablePath(path.database_name, name), view


def check_view(info: TableInfo, view: str) -> None:
    """Refuse a view that a table does not have."""
    if view == "binlog" and not info.has_primary_key():
        raise InvalidArgumentError(f"'{info.table_path}$binlog': only primary-key tables have a binlog")
    if view == LAKE and not info.config.lake_enabled:
        raise InvalidArgumentError(
            f"'{info.table_path}$lake': the table has no lake; it has one with the property table.datalake.enabled"
        )
