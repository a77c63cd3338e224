# SPDX-License-Identifier: Apache-2.0
"""The matrix that runs on GitHub is the one that runs here."""

from __future__ import annotations

import re
import sys

from tests.matrix.__main__ import EXTRAS, PYTHONS, RESOLUTIONS, ROOT, TESTS, find_interpreter

WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_workflow_has_the_same_matrix() -> None:
    assert re.findall(r'"(3\.\d+)"', WORKFLOW[WORKFLOW.index("python: [") :].partition("]")[0]) == list(PYTHONS)
    assert f"dependencies: [{', '.join(RESOLUTIONS)}]" in WORKFLOW


def test_the_classifiers_name_every_version() -> None:
    assert re.findall(r'Python :: (3\.\d+)"', PROJECT) == list(PYTHONS)


def test_what_it_names_is_there() -> None:
    for extra in EXTRAS:
        assert re.search(rf"(?m)^{extra} = \[", PROJECT), extra
    for path in TESTS:
        assert (ROOT / path).exists(), path


def test_interpreters_are_found_by_version() -> None:
    assert find_interpreter(f"3.{sys.version_info.minor}") is not None
    assert find_interpreter("3.99") is None
