# SPDX-License-Identifier: Apache-2.0
"""What happened to a row of a log, and what an upsert does on a table with a merge engine."""

from __future__ import annotations

from enum import IntEnum

from fluss.errors import InvalidArgumentError


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


class MergeMode(IntEnum):
    """How rows that are upserted meet the stored ones. The numbers are those of the protocol.

    Example:
        writer = table.new_upsert().merge_mode(fluss.MergeMode.OVERWRITE).create_writer()
    """

    DEFAULT = 0
    """The merge engine of the table decides: it aggregates, keeps the first row, or the newest version."""
    OVERWRITE = 1
    """Values replace the stored ones, past the merge engine: to restore exact values after a failure."""

    @classmethod
    def of(cls, mode: MergeMode | str) -> MergeMode:
        """The mode, or the one of this name in any case."""
        if isinstance(mode, cls):
            return mode
        found = cls.__members__.get(mode.upper()) if isinstance(mode, str) else None
        if found is None:
            raise InvalidArgumentError(f"a merge mode is 'default' or 'overwrite', not {mode!r}")
        return found
