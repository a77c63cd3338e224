# SPDX-License-Identifier: Apache-2.0
"""A sample of `python -m tests.faults`: single operations of the disk fail, and each kind for a while."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.disk_faults import count_operations, run_trial, trial_folder


@pytest.fixture(scope="module")
def counts() -> Iterator[Counter[str]]:
    with trial_folder() as folder:
        yield count_operations(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    with trial_folder() as folder:
        yield folder


@pytest.mark.parametrize("share", [0.35, 0.7])
@pytest.mark.parametrize("kind", ["open", "write", "fsync", "rename", "mkdir", "read"])
def test_one_operation_fails(folder: Path, counts: Counter[str], kind: str, share: float) -> None:
    trial = run_trial(folder, kind, int(counts[kind] * share))
    assert trial.faults.failed
    assert trial.wrong == [], trial.faults.failed


@pytest.mark.parametrize("kind", ["open", "write", "fsync"])
def test_the_disk_is_full_for_a_while(folder: Path, counts: Counter[str], kind: str) -> None:
    trial = run_trial(folder, kind, counts[kind] // 2, code=errno.ENOSPC, length=10)
    assert trial.faults.failed
    assert trial.wrong == [], trial.faults.failed
