# SPDX-License-Identifier: Apache-2.0
"""Two worlds with members of a group that fail; ``python -m tests.simulation.groups`` simulates many."""

from __future__ import annotations

import pytest
from tests.simulation.groups import simulate

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""The tasks and sockets of a killed member are never ended."""


@pytest.mark.parametrize("seed", [2, 3], ids=["members fail", "server and network fail too"])
def test_no_bucket_has_two_owners_and_every_change_is_handled(seed: int) -> None:
    outcome, _ = simulate(seed, disturbances=4)
    assert outcome.kills + outcome.stops + outcome.leaves > 0
