# SPDX-License-Identifier: Apache-2.0
"""Modules that are loaded when something of them is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fluss.errors import MissingDependencyError


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


def import_extra(module: str, need: str, extra: str) -> Any:
    """Import a package that comes with an extra; without it, report what needs the package and how to install it.

    Example:
        duckdb = import_extra("duckdb", "sql() needs DuckDB", "sql")
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(f"{need}: pip install 'fluss-python[{extra}]'") from error


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """Make `__getattr__` and `__all__` of a package whose names load the modules that define them, and only those.

    `homes` has the names by module, separated by blanks. ``make generate`` writes the stub of such a package from its
    table `NAMES`.

    Example:
        NAMES = {"fluss.rows.slices": "Slices"}
        __getattr__, __all__ = lazy_names(__name__, NAMES)
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return get, sorted(modules)
