# SPDX-License-Identifier: Apache-2.0
"""The names of virtual tables: `orders$changelog`, `orders$binlog`. What they show is in `fluss.client.scan.views`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.errors import InvalidArgumentError
from fluss.metadata import TablePath

if TYPE_CHECKING:
    from fluss.metadata import TableInfo

VIEW_NAMES = ("changelog", "binlog")


def split_virtual(path: TablePath) -> tuple[TablePath, str | None]:
    """The table that a path names, and the view of it: ``changelog``, ``binlog`` or None."""
    name, dollar, view = path.table_name.partition("$")
    if not dollar:
        return path, None
    if view == "lake":
        raise InvalidArgumentError(
            f"'{path}': the lake of a table is read together with its log: open '{path.database_name}.{name}' and call "
            "to_arrow(include_lake=True) of a scanner, or read the lake table with its own library"
        )
    if view not in VIEW_NAMES:
        raise InvalidArgumentError(f"'{path}': there are the virtual tables $changelog and $binlog, not ${view}")
    return TablePath(path.database_name, name), view


def check_view(info: TableInfo, view: str) -> None:
    """Refuse a view that a table does not have."""
    if view == "binlog" and not info.has_primary_key():
        raise InvalidArgumentError(f"'{info.table_path}$binlog': only primary-key tables have a binlog")
