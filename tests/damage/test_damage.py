# SPDX-License-Identifier: Apache-2.0
"""Damaged files never lead to wrong rows. The trials run in a process of their own: one that dies is a finding too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_trials(rounds: int, seconds: float, seed: int) -> int:
    """The number of trials made; fails if one of them went wrong."""
    command = [sys.executable, "-m", "tests.damage", "--rounds", str(rounds), "--seconds", str(seconds)]
    done = subprocess.run([*command, "--seed", str(seed)], capture_output=True, text=True, timeout=1800, cwd=ROOT)
    report = done.stdout[-6000:] + done.stderr[-3000:]
    assert done.returncode == 0, report
    counted = re.search(r"(\d+) trials in", done.stdout)
    assert counted is not None, report
    return int(counted.group(1))


@pytest.mark.timeout(900)
def test_every_kind_of_file() -> None:
    # Two folders with over twenty kinds of files each: all have their turn, even on a slow machine.
    assert run_trials(48, 800, seed=1) == 48


@pytest.mark.slow
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("seed", range(100, 104))
def test_many_damages(seed: int) -> None:
    run_trials(1000, 1500, seed)
