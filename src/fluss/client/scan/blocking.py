# SPDX-License-Identifier: Apache-2.0
"""Bounded reads for blocking code."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace

from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch
from fluss.metadata import TableBucket
from fluss.net.background import Bridge, LoopThread, RunningLoop, running_loop
from fluss.net.deadline import Deadline


def blocking_batches(
    plan: ScanPlan,
    start_offsets: dict[TableBucket, int],
    loop: asyncio.AbstractEventLoop,
    deadline: Deadline | None,
) -> Generator[RecordBatch, None, None]:
    """Give the batches of `plan.read` to a plain `for` loop, one at a time.

    Which thread reads is known when the first batch is asked for.
    """
    if running_loop() is loop:
        yield from _with_own_connection(plan, start_offsets, deadline)
    else:
        yield from _batches(plan, start_offsets, RunningLoop(loop), deadline)


def _batches(
    plan: ScanPlan, start_offsets: dict[TableBucket, int], bridge: Bridge, deadline: Deadline | None
) -> Generator[RecordBatch, None, None]:
    for group in bridge.iterate(plan.read_groups(start_offsets, None, deadline)):
        yield from group


def _with_own_connection(
    plan: ScanPlan, start_offsets: dict[TableBucket, int], deadline: Deadline | None
) -> Generator[RecordBatch, None, None]:
    """Read on a loop of its own: the caller runs on the loop that would otherwise have to do the work."""
    with LoopThread() as thread:
        cluster = thread.run(type(plan.cluster).connect(plan.config, deadline))
        try:
            yield from _batches(replace(plan, cluster=cluster), start_offsets, thread, deadline)
        finally:
            thread.run(cluster.close())
