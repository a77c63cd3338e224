# SPDX-License-Identifier: Apache-2.0
"""A few kills of members of a group; `make crash-groups` makes many."""

from __future__ import annotations

import pytest
from tests.crash.groups import run


@pytest.mark.timeout(180)
def test_every_change_is_handled_and_no_bucket_has_two_owners() -> None:
    outcome = run(kills=3, members=3, buckets=3, seed=5)
    assert outcome.problems == []
    assert outcome.handled >= outcome.written > 300
