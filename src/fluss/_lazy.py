# SPDX-License-Identifier: Apache-2.0
"""Modules that are loaded when something of them is first used."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module, and becomes it with the first look at one of its names.

    Example:
        pc = LazyModule("pyarrow.compute")  # 8 MB that a plain scan never needs
        pc.min_max([1, 2, 3])
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found

    def __repr__(self) -> str:
        return f"LazyModule({self._name!r})"
