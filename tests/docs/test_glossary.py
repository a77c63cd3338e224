# SPDX-License-Identifier: Apache-2.0
"""The glossary and the walks of docs/architecture.md name modules and classes that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "architecture.md"
SOURCES = ROOT / "src" / "fluss"
FOLDERS = SOURCES, SOURCES / "server", ROOT / "src" / "spark-bridge" / "fluss" / "spark"
WALK_MODULES_MAX = 20


def rows() -> list[list[str]]:
    cells = [line.strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    return [[cell.strip() for cell in row] for row in cells if len(row) == 3 and row[0].strip() not in ("term", "---")]


def test_terms_are_defined_once() -> None:
    terms = [row[0] for row in rows()]
    assert len(terms) > 20
    assert len(terms) == len(set(terms))


def test_modules_and_classes_of_the_glossary_exist() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    for term, _, where in rows():
        for name in re.findall(r"`([^`]+)`", where):
            found = (SOURCES / name).is_file() if name.endswith(".py") else f"class {name}" in code
            assert found, f"{term}: {name} does not exist"


def walks() -> dict[str, tuple[list[str], int]]:
    """The columns of the tables that follow a call: the modules of each, and how many the page says there are."""
    found: dict[str, tuple[list[str], int]] = {}
    for table in re.findall(r"(?:^\| .*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        if lines[0][0] != "step":
            continue
        assert lines[-1][0] == "modules"
        for name, *steps, number in list(zip(*lines))[1:]:
            modules = re.findall(r"`([^`]+\.(?:py|java))`", " ".join(steps))
            found[name] = list(dict.fromkeys(modules)), int(number)
    return found


def test_walks_pass_modules_that_exist_and_few_of_them() -> None:
    assert len(walks()) == 4 + 3 + 3
    for name, (modules, number) in walks().items():
        missing = [module for module in modules if not any((folder / module).is_file() for folder in FOLDERS)]
        assert not missing, f"{name}: {missing} do not exist"
        assert len(modules) == number <= WALK_MODULES_MAX, f"{name}: {len(modules)} modules, and the page says {number}"
