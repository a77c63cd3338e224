# SPDX-License-Identifier: Apache-2.0
"""Which strategy a round of the group commit gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from fluss.server.commit import LOGS_PER_THREAD, FlushPolicy, FlushStrategy
from fluss.server.log.flush import CommittableLog, SyncPlan
from fluss.server.log.segment import Segment


def plan(folders: tuple[Path, ...] = ()) -> SyncPlan:
    """A plan as the policy sees it, which reads its folders only."""
    return SyncPlan(cast(CommittableLog, None), (), 1, cast(Segment, None), 0, None, None, folders)


def policy(*, sync: bool = True, is_quiet: Callable[[int], bool] = lambda appends: True) -> FlushPolicy:
    return FlushPolicy(sync=sync, is_quiet=is_quiet)


def test_without_sync_nothing_is_flushed() -> None:
    assert policy(sync=False).choose([plan()] * 20, 20) is FlushStrategy.UNSYNCED
    assert policy().choose([], 0) is FlushStrategy.UNSYNCED


def test_one_log_of_a_quiet_server_is_flushed_inline() -> None:
    asked: list[int] = []
    quiet = policy(is_quiet=lambda appends: asked.append(appends) or True)  # type: ignore[func-returns-value]
    assert quiet.choose([plan()], 3) is FlushStrategy.INLINE
    assert asked == [3]
    assert policy(is_quiet=lambda appends: False).choose([plan()], 1) is FlushStrategy.WORKER


def test_new_names_and_a_slow_disk_are_not_waited_for_inline(tmp_path: Path) -> None:
    chosen = policy()
    assert chosen.choose([plan((tmp_path,))], 1) is FlushStrategy.WORKER
    chosen.round_took(0.1)
    assert chosen.choose([plan()], 1) is FlushStrategy.WORKER
    chosen.round_took(0.001)
    assert chosen.choose([plan()], 1) is FlushStrategy.INLINE


def test_several_logs_go_to_one_thread_until_they_are_too_many() -> None:
    assert policy().choose([plan()] * 2, 2) is FlushStrategy.WORKER
    assert policy().choose([plan()] * LOGS_PER_THREAD, 2) is FlushStrategy.WORKER
    assert policy().choose([plan()] * (LOGS_PER_THREAD + 1), 2) is FlushStrategy.POOL


def test_a_server_that_cannot_tell_is_not_quiet(caplog: pytest.LogCaptureFixture) -> None:
    def broken(appends: int) -> bool:
        raise ValueError("broken")

    assert policy(is_quiet=broken).choose([plan()], 1) is FlushStrategy.WORKER
    assert "cannot tell" in caplog.text
