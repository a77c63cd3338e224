# SPDX-License-Identifier: Apache-2.0
"""No class name stands for two concepts: a name that is defined twice is listed here, with the reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src" / "fluss"

OF_BOTH_FACES = (
    *(
        "AppendWriter",
        "BatchScanner",
        "Database",
        "FlussConnection",
        "FlussTable",
        "Follow",
        "LogScanner",
        "MultiTable",
    ),
    *("MultiTableLogScanner", "MultiTableScan", "MultiTableWrite", "MultiTableWriter", "Table", "TableBatchScanner"),
    *("TableScan", "TableWriter", "UpsertWriter"),
)
DEFINED_TWICE = {
    **dict.fromkeys(OF_BOTH_FACES, "the blocking and the asynchronous face of one concept"),
    "TableBase": "what the two faces of a table share, in the client and in `db`",
}
"""Class names with two definitions, and why. The list only gets shorter."""


def definitions() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    return found


def test_a_class_name_stands_for_one_concept() -> None:
    twice = {name: places for name, places in definitions().items() if len(places) > 1}
    new = {name: places for name, places in twice.items() if name not in DEFINED_TWICE}
    assert not new, f"choose another name: {new}"
    gone = DEFINED_TWICE.keys() - twice.keys()
    assert not gone, f"defined once now; take off the list: {gone}"
    assert all(len(places) == 2 for places in twice.values()), "defined more than twice"
