# SPDX-License-Identifier: Apache-2.0
"""Plant bugs, one at a time, and check that the tests named for each of them fail: `make mutants`.

Each worker has a copy of the tree, so the sources themselves never change. First the tests run without any bug: a test
that fails anyway would catch everything.

With ``--simulation SECONDS`` the simulation alone has to find each bug of durability and recovery, within this time.
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
CAUGHT, ESCAPED, ERROR = "caught", "ESCAPED", "ERROR"
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
        return self._run("pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests)

    def simulate(self, seconds: float) -> subprocess.CompletedProcess[str]:
        return self._run("tests.simulation", "--seed=1", "--rounds=1000000", f"--seconds={seconds}", "--jobs=1")

    def _run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONHASHSEED": "0"}
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
        )


def run_control(tree: Tree, tests: Sequence[str]) -> Verdict:
    """Run tests without a bug: they must pass."""
    done = tree.test(tests)
    outcome = CAUGHT if done.returncode == _PASSED else ERROR
    return Verdict(f"(no bug) {' '.join(tests)}", outcome, 0.0, "" if outcome == CAUGHT else _last_line(done.stdout))


def run_mutant(tree: Tree, mutant: Mutant, simulated_s: float | None = None) -> Verdict:
    """Run the tests of a mutant, or the simulation: they must fail."""
    with tree.planted(mutant):
        try:
            done = tree.test(mutant.tests) if simulated_s is None else tree.simulate(simulated_s)
        except subprocess.TimeoutExpired:
            return Verdict(mutant.name, CAUGHT, 0.0, "the tests hung")
    outcome = {_PASSED: ESCAPED, _FAILED: CAUGHT}.get(done.returncode, ERROR)
    return Verdict(mutant.name, outcome, 0.0, _last_line(done.stdout, "FAILED" if outcome == CAUGHT else ""))


def _last_line(text: str, start: str = "") -> str:
    lines = [line for line in text.splitlines() if line.startswith(start) and line.strip()]
    return lines[-1][:160] if lines else ""


def run_all(jobs: Sequence[Callable[[Tree], Verdict]]) -> list[Verdict]:
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

    with tempfile.TemporaryDirectory(prefix="fluss-mutants-") as folder, ThreadPoolExecutor(WORKERS) as threads:
        for number in range(WORKERS):
            trees.put(Tree(Path(folder) / str(number)))
        return list(threads.map(run, jobs))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("-k", metavar="TEXT", default="", help="only mutants whose name contains this text")
    parser.add_argument("--list", action="store_true", help="list the mutants, and check that each of them applies")
    parser.add_argument("--no-control", action="store_true", help="do not run the tests without a bug first")
    parser.add_argument("--simulation", metavar="SECONDS", type=float, help="let the simulation find them")
    options = parser.parse_args()
    planted = MUTANTS if options.simulation is None else DURABILITY
    chosen = [mutant for mutant in planted if options.k in mutant.name]
    stale = [problem for mutant in chosen if (problem := mutant.problem(ROOT)) is not None]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:44} {mutant.file:44} {' '.join(mutant.tests)}")
    for problem in stale:
        print(problem)
    if options.list or stale:
        return 1 if stale else 0
    suites = [] if options.no_control or options.simulation else list(dict.fromkeys(mutant.tests for mutant in chosen))
    jobs: list[Callable[[Tree], Verdict]] = [lambda tree, tests=tests: run_control(tree, tests) for tests in suites]  # type: ignore[misc]
    jobs += [partial(run_mutant, mutant=mutant, simulated_s=options.simulation) for mutant in chosen]
    verdicts = run_all(jobs)
    bad = [verdict for verdict in verdicts if verdict.outcome != CAUGHT]
    print(f"\n{len(chosen)} mutants, {len(bad)} not caught or not tested")
    for verdict in bad:
        print(f"  {verdict.outcome:8} {verdict.name}  {verdict.detail}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
