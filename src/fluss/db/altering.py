# SPDX-License-Identifier: Apache-2.0
"""Changes of columns that not every server supports: dropping and renaming them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.db.suggest import check_columns
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb

if TYPE_CHECKING:
    from fluss.db.blocking import Database


def drop_column(db: Database, table: str, column: str) -> None:
    """Drop a column. A server that cannot do it says so.

    Example:
        drop_column(db, "orders", "note")
    """
    _alter(db, table, [column], pb.AlterTableRequest(drop_columns=[pb.PbDropColumn(column_name=column)]))


def rename_column(db: Database, table: str, column: str, name: str) -> None:
    """Rename a column. A server that cannot do it says so.

    Example:
        rename_column(db, "orders", "note", "remark")
    """
    change = pb.PbRenameColumn(old_column_name=column, new_column_name=name)
    _alter(db, table, [column], pb.AlterTableRequest(rename_columns=[change]))


def _alter(db: Database, name: str, columns: list[str], request: pb.AlterTableRequest) -> None:
    table = db.table(name)
    check_columns(columns, table.info)
    request.table_path.database_name = table.path.database_name
    request.table_path.table_name = table.path.table_name
    request.ignore_if_not_exists = False
    db._bridge.run(db._core._admin._change(apis.ALTER_TABLE, request, idempotent=False, timeout=None))
    table.refresh()
