# SPDX-License-Identifier: Apache-2.0
"""The lake: tables in Apache Paimon or Apache Iceberg behind one small interface, filled from Fluss, read with it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluss.lake.api import LakeTableChangedError
    from fluss.lake.layout import LakeConfig, lake_config
    from fluss.lake.registry import open_lake
    from fluss.lake.service import TieringService
    from fluss.lake.union import plan_union, read_union_split, union_read

_WHERE = {
    "LakeConfig": "layout",
    "LakeTableChangedError": "api",
    "TieringService": "service",
    "lake_config": "layout",
    "open_lake": "registry",
    "plan_union": "union",
    "read_union_split": "union",
    "union_read": "union",
}

__all__ = [
    "LakeConfig",
    "LakeTableChangedError",
    "TieringService",
    "lake_config",
    "open_lake",
    "plan_union",
    "read_union_split",
    "union_read",
]


def __getattr__(name: str) -> Any:
    # Imported when used: a server that only creates lake tables needs no client.
    if name in _WHERE:
        return getattr(import_module(f"fluss.lake.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'fluss.lake' has no attribute {name!r}")
