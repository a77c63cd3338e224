# SPDX-License-Identifier: Apache-2.0
"""Columns that calls name, and what to do about tables that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluss._text import did_you_mean
from fluss.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fluss.metadata import TableInfo

CREATE_HINT = "create it with db.create_table()"
"""What to do about a table that does not exist, where no other has a similar name."""


def check_columns(columns: str | Sequence[str], info: TableInfo) -> list[str]:
    """The names of columns, all of which the table has; a text may have several: ``"id, price"``."""
    known = info.schema.column_names
    if not isinstance(columns, str):
        names = list(columns)
    else:
        names = [columns] if columns in known else [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in known:
            raise InvalidArgumentError(f"table {info.table_path} has no column {name!r}{did_you_mean(name, known)}")
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"table {info.table_path}: each column is named once, not {names}")
    return names
