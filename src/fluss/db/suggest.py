# SPDX-License-Identifier: Apache-2.0
"""Errors about names that suggest the nearest one that exists."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fluss.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fluss.metadata import TableInfo

_NAMES_SHOWN = 20
CREATE_HINT = "create it with db.create_table()"
"""What to do about a table that does not exist, where no other has a similar name."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to add to an error about an unknown name: the nearest one, or all there are."""
    names = list(known)
    lower = {one.lower(): one for one in reversed(names)}
    near = difflib.get_close_matches(str(name).lower(), list(lower), 1)
    if near:
        return f"; did you mean {lower[near[0]]!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"; there {'is' if len(names) == 1 else 'are'} {shown}{', …' if len(names) > _NAMES_SHOWN else ''}"


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
