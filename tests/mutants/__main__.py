# SPDX-License-Identifier: Apache-2.0
"""Plant bugs, one at a time, and check that the tests named for each of them fail: `make mutants`.

Each worker has a copy of the tree, so the sources themselves never change. First the tests run without any bug: a test
that fails anyway would catch everything.

Tests that hang count as a catch, because no run of them ends well; they passed in the same time without the bug.

With ``--simulation SECONDS`` the simulation alone has to find the bugs of durability and recovery, each within this
time: at least three quarters of those that one of its faults can bring out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.mutants.planted import DURABILITY, MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
SECONDS_MAX = 900
SHARE_MIN = 0.75
"""Of the bugs of durability and recovery, those that the simulation has to find."""
PASSED, CAUGHT, HUNG, ESCAPED, ERROR = "passed", "caught", "hung", "ESCAPED", "ERROR"
_PASSED, _FAILED = 0, 1
"""Exit codes of pytest. All others mean that the tests did not run."""
_times = itertools.count(1)


class Verdict(NamedTuple):
    name: str
    outcome: str
    seconds: float
    detail: str = ""


class Tree:
    """A copy of the sources and tests, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in ROOT.iterdir():
            if path.name not in ("src", "tests", ".git", "build", "dist"):
                (folder / path.name).symlink_to(path)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.file
        source = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied_to(source))
        try:
            yield
        finally:
            self._write(path, source)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Compiled files are recognised as old by a time in whole seconds.
        os.utime(path, (time.time(), 1_000_000_000 + next(_times)))

    def test(self, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return self._run(SECONDS_MAX, "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests)

    def simulate(self, seconds: float) -> subprocess.CompletedProcess[str]:
        arguments = ("--seed=1", "--rounds=1000000", f"--seconds={seconds}", "--jobs=1")
        return self._run(SECONDS_MAX + seconds, "tests.simulation", *arguments)

    def _run(self, seconds_max: float, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONHASHSEED": "0"}
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_max,
        )


Test = Callable[[Tree], subprocess.CompletedProcess[str]]


def run_control(tree: Tree, name: str, test: Test) -> Verdict:
    """Run tests, or the simulation, without a bug: they must pass."""
    try:
        done = test(tree)
    except subprocess.TimeoutExpired:
        return Verdict(f"(no bug) {name}", ERROR, 0.0, "hung")
    passed = done.returncode == _PASSED
    return Verdict(f"(no bug) {name}", PASSED if passed else ERROR, 0.0, "" if passed else _last_line(done.stdout))


def run_mutant(tree: Tree, mutant: Mutant, test: Test) -> Verdict:
    """Run the tests of a mutant, or the simulation: they must fail."""
    with tree.planted(mutant):
        try:
            done = test(tree)
        except subprocess.TimeoutExpired:
            return Verdict(mutant.name, HUNG, 0.0)
    outcome = {_PASSED: ESCAPED, _FAILED: CAUGHT}.get(done.returncode, ERROR)
    return Verdict(mutant.name, outcome, 0.0, _last_line(done.stdout, "FAILED" if outcome == CAUGHT else ""))


def _last_line(text: str, start: str = "") -> str:
    lines = [line for line in text.splitlines() if line.startswith(start) and line.strip()]
    return lines[-1][:160] if lines else ""


def run_all(jobs: Sequence[Callable[[Tree], Verdict]], workers: int) -> list[Verdict]:
    """Run jobs on a few copies of the tree, and print each result."""
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()

    def run(job: Callable[[Tree], Verdict]) -> Verdict:
        tree = trees.get()
        began = time.monotonic()
        try:
            verdict = job(tree)._replace(seconds=time.monotonic() - began)
        finally:
            trees.put(tree)
        print(f"{verdict.outcome:8} {verdict.seconds:6.1f} s  {verdict.name}  {verdict.detail}", flush=True)
        return verdict

    with tempfile.TemporaryDirectory(prefix="fluss-mutants-") as folder, ThreadPoolExecutor(workers) as threads:
        for number in range(workers):
            trees.put(Tree(Path(folder) / str(number)))
        return list(threads.map(run, jobs))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("-k", metavar="TEXT", default="", help="only mutants whose name contains this text")
    parser.add_argument("--list", action="store_true", help="list the mutants, and check that each of them applies")
    parser.add_argument("--no-control", action="store_true", help="do not run the tests without a bug first")
    parser.add_argument("--simulation", metavar="SECONDS", type=float, help="let the simulation find them")
    parser.add_argument("--jobs", type=int, default=WORKERS, help="mutants at a time")
    options = parser.parse_args()
    seconds = options.simulation
    chosen = [mutant for mutant in (MUTANTS if seconds is None else DURABILITY) if options.k in mutant.name]
    stale = [problem for mutant in chosen if (problem := mutant.problem(ROOT)) is not None]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:44} {mutant.file:44} {' '.join(mutant.tests)}")
    for problem in stale:
        print(problem)
    if options.list or stale:
        return 1 if stale else 0
    if seconds is not None:
        for mutant in chosen:
            if mutant.not_simulated:
                print(f"left out        {mutant.name}: {mutant.not_simulated}")
        chosen = [mutant for mutant in chosen if not mutant.not_simulated]
    tests = {mutant.tests: partial(Tree.test, tests=mutant.tests) for mutant in chosen}
    controls = {" ".join(names): test for names, test in tests.items()}
    if seconds is not None:
        controls = {"simulation": partial(Tree.simulate, seconds=seconds)}
    verdicts: list[Verdict] = []
    if not options.no_control:
        verdicts = run_all(
            [partial(run_control, name=name, test=test) for name, test in controls.items()], options.jobs
        )
    if seconds is not None and any(verdict.outcome == ERROR for verdict in verdicts):
        return 1  # it would find every bug
    simulated = controls.get("simulation")
    verdicts += run_all(
        [partial(run_mutant, mutant=one, test=simulated or tests[one.tests]) for one in chosen], options.jobs
    )
    return report(verdicts, len(chosen), 1.0 if seconds is None else SHARE_MIN)


def report(verdicts: Sequence[Verdict], count: int, share_min: float) -> int:
    """Print how many bugs were caught; returns the exit status."""
    hung = sum(verdict.outcome == HUNG for verdict in verdicts)
    caught = sum(verdict.outcome == CAUGHT for verdict in verdicts) + hung
    share = caught / max(count, 1)
    print(f"\n{caught} of {count} mutants caught ({share:.0%}), {hung} of them by a hang; {share_min:.0%} are needed")
    for verdict in verdicts:
        if verdict.outcome in (ESCAPED, ERROR):
            print(f"  {verdict.outcome:8} {verdict.name}  {verdict.detail}")
    return 1 if share < share_min or any(verdict.outcome == ERROR for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
