# SPDX-License-Identifier: Apache-2.0
"""What an upsert does on a table with a merge engine."""

from __future__ import annotations

from enum import IntEnum

from fluss.errors import InvalidArgumentError


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
