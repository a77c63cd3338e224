# SPDX-License-Identifier: Apache-2.0
"""Two worlds with members of a group that fail; ``python -m tests.simulation.groups`` simulates many."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest
from tests.simulation.groups import settle, simulate

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""The tasks and sockets of a killed member are never ended."""


@pytest.fixture(autouse=True)
def _collected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collect what killed members left while its warnings are ignored, not in the tests that follow."""
    for name in ("asyncio", "fluss"):  # what is logged is kept until a test has ended
        caplog.set_level(logging.CRITICAL, name)
    yield
    for _ in range(3):  # what one round ends frees more
        gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [12, 3], ids=["a newcomer takes over", "server and network fail"])
def test_no_bucket_has_two_owners_and_every_change_is_handled(seed: int) -> None:
    simulate(seed)


def test_members_that_join_together_settle_soon_and_with_few_rows() -> None:
    seen = settle(30)
    assert seen.seconds < 4
    # Each writes that it is there, what it wants and what it owns, and some renew their lease meanwhile.
    assert seen.rows_written <= 4 * 30
    assert set(seen.timeouts_ms) == {3000}, "a tenth of a second for each member"


def test_a_killed_member_is_replaced() -> None:
    outcome = simulate(22, disturbances=1)
    assert outcome.kills + outcome.stops + outcome.leaves == 1
