# SPDX-License-Identifier: Apache-2.0
"""Ten kills in every run of the suite; `make crash N=1000` for more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.harness import CrashRun
from tests.crash.lost import LostRun


def survive(folder: Path, rounds: int, seed: int) -> None:
    run = CrashRun(folder / "data", rounds, seed)
    report = run.run()
    print(report)
    assert report.kills >= rounds
    assert report.failed_writes == []
    assert report.complaints == []
    # A run in which nothing was written would prove nothing.
    assert all(count > 0 for count in report.operations.values())


def test_ten_kills(tmp_path: Path) -> None:
    survive(tmp_path, 10, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 104))
def test_two_hundred_kills(tmp_path: Path, seed: int) -> None:
    survive(tmp_path, 200, seed)


@pytest.mark.slow
def test_three_losses_of_the_machine(tmp_path: Path) -> None:
    run = LostRun(tmp_path, str(tmp_path / "backup"), seed=1)
    run.run(3)
    assert run.batches > 6
