# SPDX-License-Identifier: Apache-2.0
"""What the server asks of the lake when a table is created or gets columns. It is the plugin ``server.lake``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from fluss.lake.api import LakeTableChangedError
from fluss.lake.layout import LakeConfig, strip_prefix
from fluss.lake.registry import FORMATS, open_lake
from fluss.metadata import Column, TableDescriptor, TablePath


def create_table(
    lake_format: str, options: Mapping[str, str], path: TablePath, descriptor: TableDescriptor, must_be_empty: bool
) -> None:
    """Create the lake table, or make sure that the one there fits (else code 54)."""
    if lake_format in FORMATS:
        with open_lake(LakeConfig(lake_format, strip_prefix(lake_format, options))) as lake:
            lake.create_table(path, descriptor, must_be_empty=must_be_empty)


def add_columns(lake_format: str, options: Mapping[str, str], path: TablePath, columns: Sequence[Column]) -> None:
    """Add columns to the lake table. One that is not there gets them when the tiering service creates it."""
    if lake_format in FORMATS:
        with (
            open_lake(LakeConfig(lake_format, strip_prefix(lake_format, options))) as lake,
            contextlib.suppress(LakeTableChangedError),
        ):
            lake.add_columns(path, columns)
