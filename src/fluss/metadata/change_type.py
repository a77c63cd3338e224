# SPDX-License-Identifier: Apache-2.0
"""What happened to a row of a log."""

from __future__ import annotations

from enum import IntEnum


class ChangeType(IntEnum):
    """The kind of change a record of a log stands for."""

    AppendOnly = 0
    """A row appended to a log table."""
    Insert = 1
    """A row whose key was not there before."""
    UpdateBefore = 2
    """The previous value of an updated row."""
    UpdateAfter = 3
    """The new value of an updated row."""
    Delete = 4
    """The last value of a deleted row."""

    APPEND_ONLY = 0
    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4

    def short_string(self) -> str:
        """``+A``, ``+I``, ``-U``, ``+U`` or ``-D``."""
        return _SHORT_STRINGS[self.value]

    def __str__(self) -> str:
        return self.short_string()

    def __repr__(self) -> str:
        return f"ChangeType.{self.name}"


_SHORT_STRINGS = ("+A", "+I", "-U", "+U", "-D")
