# SPDX-License-Identifier: Apache-2.0
"""Changes of columns that not every server supports: dropping and renaming them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluss.db.suggest import check_columns

if TYPE_CHECKING:
    from fluss.db.blocking import Database


def drop_column(db: Database, table: str, column: str) -> None:
    """Drop a column. A server that cannot do it says so.

    Example:
        drop_column(db, "orders", "note")
    """
    _alter(db, table, column, drop_columns=[column])


def rename_column(db: Database, table: str, column: str, name: str) -> None:
    """Rename a column. A server that cannot do it says so.

    Example:
        rename_column(db, "orders", "note", "remark")
    """
    _alter(db, table, column, rename_columns={column: name})


def _alter(db: Database, name: str, column: str, **changes: Any) -> None:
    table = db.table(name)
    check_columns([column], table.info)
    db._bridge.run(db._core._admin.alter_table(table.path, **changes))
    table.refresh()
