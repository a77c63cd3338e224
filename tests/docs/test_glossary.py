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


def test_retired_words_stay_away() -> None:
    """Words that the style guide replaced by those of the glossary."""
    retired = re.compile(
        r"\b(homeless|_note_strange|misfit|let_pass|fall_silent|put_back|give_up_id|given_up_id|_WRITTEN_PERHAPS"
        r"|LoopLines|Nearby|Handover|OpenBatch|KvPiece|ArrowPiece|under way|on their way|whoever|nobody|somebody)\b",
        re.IGNORECASE,
    )
    for package in ("client", "net", "server"):
        for path in sorted((SOURCES / package).rglob("*.py")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                assert not retired.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_formats_lake_and_spark_name_actors_and_use_standard_terms() -> None:
    private = re.compile(
        r"\b(whoever|nobody|somebody|anybody|under way|on (their|its) way|side by side|set_aside\w*|given up"
        r"|[hH]ouse|honest)\b",
    )
    for package in ("lake", "metadata", "options", "protocol", "records", "rows", "spark", "testing"):
        for path in sorted((SOURCES / package).rglob("*.py")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                assert not private.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
