# SPDX-License-Identifier: Apache-2.0
"""Options of a running cluster as the wire describes and changes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fluss.errors import InvalidArgumentError
from fluss.metadata.checks import check_string, member_of


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

    def __post_init__(self) -> None:
        check_string("key of an AlterConfig", self.key)
        if self.value is not None and not isinstance(self.value, str):
            # It may be a secret: what was given is not shown.
            raise InvalidArgumentError(
                f"value of the AlterConfig of {self.key!r} must be a string or None, not {type(self.value).__name__}"
            )
        op = member_of(AlterConfigOp, f"op of the AlterConfig of {self.key!r}", self.op)
        object.__setattr__(self, "op", op)


@dataclass(frozen=True)
class ConfigEntry:
    """One cluster option in force; `source` says whether it was set at run time or at start."""

    key: str
    value: str | None
    source: str
