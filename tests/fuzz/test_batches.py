# SPDX-License-Identifier: Apache-2.0
"""The short version of ``python -m tests.fuzz``, in processes of their own: a crash is a failed case."""

from __future__ import annotations

from tests.fuzz.campaign import run_campaign
from tests.fuzz.targets import all_targets, case

CASES = 3_000


def test_unchanged_batches_are_read() -> None:
    for target in all_targets():
        target.run([])


def test_changed_batches_are_read_or_refused() -> None:
    report = run_campaign(CASES, seed=20, processes=1)
    assert report.failures == [], "\n".join(map(str, report.failures))
    assert report.accepted + report.refused == report.cases == CASES
    assert min(report.accepted, report.refused) > CASES // 20


def test_a_crash_is_found_and_the_next_case_is_run() -> None:
    # This case changes the offsets of a list: without the checks Arrow trusts them, and aborts the process.
    report = run_campaign(2, seed=1, start=564, processes=1, without_checks=True)
    assert report.cases == 2
    [failure] = report.failures
    assert failure.case == 564
    assert failure.problem.startswith("ended by SIG")
    assert failure.target == "deeply nested, NONE, taken apart"
    assert failure.changes.startswith("[('buffer', ")


def test_a_case_is_always_the_same() -> None:
    for number in range(200):
        assert case(number, seed=3)[1] == case(number, seed=3)[1]
    assert sum(case(number, seed=3)[1] != case(number, seed=4)[1] for number in range(200)) > 190
