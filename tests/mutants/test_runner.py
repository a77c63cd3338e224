# SPDX-License-Identifier: Apache-2.0
"""The runner of planted bugs: which tests catch a bug, which miss it, and which bugs cannot be planted any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants import __main__ as runner
from tests.mutants.planted import MUTANTS, Mutant

SOURCE = "def add(a, b):\n    return a + b\n"
TEST = "import sys\nsys.path.insert(0, 'src')\nfrom sums import add\n\n\ndef test_add():\n    assert add(2, %d) == %d\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> runner.Tree:
    root = tmp_path / "root"
    for folder in ("src", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "src" / "sums.py").write_text(SOURCE)
    (root / "tests" / "test_good.py").write_text(TEST % (3, 5))
    (root / "tests" / "test_weak.py").write_text(TEST % (2, 4))
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    monkeypatch.setattr(runner, "ROOT", root)
    return runner.Tree(tmp_path / "copy")


def planted(test: str, search: str = "a + b") -> Mutant:
    return Mutant("sum", "src/sums.py", search, "a * b", (test,))


@pytest.mark.parametrize(
    ("test", "outcome"),
    [("tests/test_good.py", runner.CAUGHT), ("tests/test_weak.py", runner.ESCAPED), ("tests/none.py", runner.ERROR)],
)
def test_a_bug_is_caught_by_a_test_that_fails(tree: runner.Tree, test: str, outcome: str) -> None:
    def run(tree: runner.Tree) -> subprocess.CompletedProcess[str]:
        return tree.test((test,))

    assert runner.run_mutant(tree, planted(test), run).outcome == outcome
    assert (tree.folder / "src" / "sums.py").read_text() == SOURCE, "the bug is gone afterwards"
    assert (runner.run_control(tree, test, run).outcome == runner.PASSED) == (outcome != runner.ERROR)


def test_tests_that_hang_are_a_catch_and_no_control(tree: runner.Tree) -> None:
    def hang(_: runner.Tree) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.1, text=True)

    assert runner.run_mutant(tree, planted("tests/test_good.py"), hang).outcome == runner.HUNG
    assert runner.run_control(tree, "", hang).outcome == runner.ERROR


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([runner.CAUGHT, runner.CAUGHT, runner.HUNG, runner.ESCAPED], 0),
        ([runner.CAUGHT, runner.CAUGHT, runner.ESCAPED, runner.ESCAPED], 1),
        ([runner.CAUGHT, runner.CAUGHT, runner.CAUGHT, runner.ERROR], 1),
        ([runner.ERROR, runner.CAUGHT, runner.CAUGHT, runner.CAUGHT, runner.CAUGHT], 1),
    ],
)
def test_a_share_that_is_too_low_and_a_run_that_failed_are_reported(outcomes: list[str], status: int) -> None:
    verdicts = [runner.Verdict("one", outcome, 0.0) for outcome in outcomes]
    assert runner.report(verdicts, 4, 0.75) == status


def test_a_bug_whose_place_has_changed_is_reported(tree: runner.Tree) -> None:
    assert planted("tests/test_good.py").problem(runner.ROOT) is None
    problem = planted("tests/test_good.py", "a - b").problem(runner.ROOT)
    assert problem == "mutant 'sum' no longer applies: its text stands 0 times in src/sums.py"
    assert "do not exist" in str(planted("tests/none.py").problem(runner.ROOT))


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_bug_can_be_planted() -> None:
    assert [problem for mutant in MUTANTS if (problem := mutant.problem(runner.ROOT))] == []
