# SPDX-License-Identifier: Apache-2.0
"""Options of a running cluster as the wire describes and changes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class AlterConfigOp(IntEnum):
    """How a cluster option is changed; APPEND and SUBTRACT are for options that hold lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True)
class AlterConfig:
    """One change of a cluster option."""

    key: str
    value: str | None = None
    op: AlterConfigOp = AlterConfigOp.SET


@dataclass(frozen=True)
class ConfigEntry:
    """One cluster option in force; `source` says whether it was set at run time or at start."""

    key: str
    value: str | None
    source: str
