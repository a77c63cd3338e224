# SPDX-License-Identifier: Apache-2.0
"""Layers: a module imports only from layers below its own, and modules import each other in no circle.

All imports count: those of modules, of functions, of `TYPE_CHECKING` blocks, and names of modules in strings, from
which modules are loaded later. Names with an underscore stay within their package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        *("_arrow_buffers", "_checksum", "_lazy", "_plugins", "_shadow", "_text", "_version"),
        *("errors", "options", "config_providers", "config"),
    ),
    ("metadata",),
    ("rows",),
    ("records",),
    ("protocol",),
    ("net",),
    ("client", "server"),
    ("lake",),
    ("db",),
    ("tools",),
    ("", "aio", "_exports"),
    ("spark", "cli", "console", "testing"),
    ("__main__",),
)
"""The packages and lone modules of `fluss`, low to high; the empty name is `fluss` itself."""

APART = frozenset({"client", "server"})
"""Packages of one layer that never import each other."""

FORMATS = frozenset({"metadata", "rows", "records", "protocol"})
"""Packages without any I/O: pure functions and small state machines over bytes."""

KNOWN_UPWARD: frozenset[tuple[str, str]] = frozenset()
"""Upward imports that are still there. The list only gets shorter."""

KNOWN_PRIVATE: frozenset[tuple[str, str]] = frozenset(
    ("db", name) for name in ("_cluster", "_failures", "_log_scanner", "_shown_info", "_state", "_view")
)
"""Private names of other packages that a package still uses. The list only gets shorter."""

FOREIGN_PRIVATE = frozenset({"_make", "_metrics"})
"""Names of libraries (named tuples, prometheus_client) that packages here happen to define too."""


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


class _Imports(ast.NodeVisitor):
    """Collects the modules of this project that a module names."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
        self.found: set[str] = set()

    def add(self, name: str) -> None:
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name and name != self.module:
            self.found.add(name)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])])
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            self.add(whole if whole in MODULES else base)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger":
            return  # loggers have the names of packages
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # The face `fluss.aio` is a key of the table of names, which it reads itself.
        if isinstance(node.value, str) and "." in node.value and node.value in MODULES and node.value != "fluss.aio":
            self.add(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and str(first.value).startswith("fluss.") and str(first.value).endswith("."):
            package = str(first.value).rstrip(".")
            if package in MODULES and package not in ("fluss", self.package):
                self.add(package)


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports. Not read while tests are collected, which every process does."""
    graph = {}
    for module, path in MODULES.items():
        visitor = _Imports(module)
        visitor.visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
        graph[module] = visitor.found
    return graph


def _part(module: str) -> str:
    if module.startswith("pyspark_fluss"):
        return "spark"
    return module.split(".")[1] if "." in module else ""


def _layer(module: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if _part(module) in parts)


def _edges(graph: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    for module, targets in graph.items():
        for target in sorted(targets):
            yield module, target


def _circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Remove modules without imports or importers until only circles are left."""
    left = {module: set(targets) for module, targets in graph.items()}
    shrinking = True
    while shrinking:
        imported = {target for targets in left.values() for target in targets}
        gone = {module for module, targets in left.items() if not targets or module not in imported}
        left = {module: targets - gone for module, targets in left.items() if module not in gone}
        shrinking = bool(gone)
    return [[module, *sorted(targets)] for module, targets in sorted(left.items())]


def _private_names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """The names with an underscore that a module defines, and those of other objects than `self` that it uses."""
    defined, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own:
                used.add(node.attr)
            elif isinstance(node.ctx, ast.Store):
                defined.add(node.attr)
    private = re.compile("_[^_]")
    return {name for name in defined if private.match(name)}, {name for name in used if private.match(name)}


def _private_names_of_others() -> set[tuple[str, str]]:
    """The packages that use a private name which is defined in other packages only, and the name."""
    defined: dict[str, set[str]] = {}
    used: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        names = _private_names(ast.parse(path.read_text(encoding="utf-8"), str(path)))
        defined.setdefault(_part(module), set()).update(names[0])
        used.setdefault(_part(module), set()).update(names[1])
    every = set().union(*defined.values()) - FOREIGN_PRIVATE
    return {(part, name) for part, names in used.items() for name in (names & every) - defined[part]}


def test_every_module_has_a_layer() -> None:
    known = {part for parts in LAYERS for part in parts}
    assert {_part(module) for module in MODULES} <= known


def test_the_reader_of_imports_finds_all_kinds() -> None:
    visitor = _Imports("fluss.client.connection")
    visitor.visit(
        ast.parse(
            "import fluss.net.background\n"
            "from fluss.rows import slices, missing\n"
            "from .scan import plan\n"
            "if TYPE_CHECKING:\n    from fluss.lake.api import Lake\n"
            "def f():\n    import fluss.server.config\n"
            "import_module('fluss.spark.reader')\n"
            "import_module(f'fluss.cli.{name}')\n"
            "logging.getLogger('fluss.testing')\n"
        )
    )
    found = ("net.background", "rows.slices", "rows", "client.scan.plan", "lake.api", "server.config", "spark.reader")
    assert visitor.found == {f"fluss.{name}" for name in (*found, "cli")}
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"], ["c", "b"]]


def test_no_module_imports_from_a_layer_above() -> None:
    upward = {(module, target) for module, target in _edges(imports()) if _layer(target) > _layer(module)}
    assert upward - KNOWN_UPWARD == set()
    assert KNOWN_UPWARD - upward == set(), "these are gone: take them off the list"


def test_client_and_server_do_not_import_each_other() -> None:
    across = [(a, b) for a, b in _edges(imports()) if {_part(a), _part(b)} == APART]
    assert not across


def test_formats_know_no_sockets_files_or_clocks() -> None:
    outside = {"asyncio", "io", "os", "pathlib", "random", "shutil", "socket", "ssl", "tempfile", "threading", "time"}
    found = {
        (module, name)
        for module, path in MODULES.items()
        if _part(module) in FORMATS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))
        for name in _imported(node)
        if name in outside
    }
    assert found == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) and not node.level else []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not _circles(imports())


def test_private_names_are_used_in_their_own_package() -> None:
    tree = ast.parse("_a = 1\ndef _f(self, one):\n    self._b = one._c + self._d + one.__class__ + one.e")
    assert _private_names(tree) == ({"_a", "_f", "_b"}, {"_c"})
    found = _private_names_of_others()
    assert found - KNOWN_PRIVATE == set()
    assert KNOWN_PRIVATE - found == set(), "these are gone: take them off the list"
