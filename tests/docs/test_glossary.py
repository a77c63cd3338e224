# SPDX-License-Identifier: Apache-2.0
"""The glossary of docs/architecture.md names modules and classes that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "architecture.md"
SOURCES = ROOT / "src" / "fluss"


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
