# SPDX-License-Identifier: Apache-2.0
"""What a lake implementation may do when a lake-enabled table changes.

The server keeps the books of the lake and does not write to it. Without a hook the tiering worker creates the lake
table when it first writes; with one the lake is changed before the catalog, and a refusal (code 54) stops the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fluss.metadata import Column, TableDescriptor, TablePath


class LakeHook(Protocol):
    async def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        """Create the lake table, or check that the one there fits; raise LakeTableAlreadyExistError if it does not."""

    async def add_columns(self, path: TablePath, columns: Sequence[Column]) -> None:
        """Add columns to the lake table; must be repeatable."""
