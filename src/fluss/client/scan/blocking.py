# SPDX-License-Identifier: Apache-2.0
"""Bounded reads for code that waits with its whole thread."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.metadata import TableBucket
from fluss.net.background import LoopThread
from fluss.net.deadline import Deadline

if TYPE_CHECKING:
    from fluss.client.scan.scan import ScanPlan


def blocking_batches(
    plan: ScanPlan, start_offsets: dict[TableBucket, int], loop: asyncio.AbstractEventLoop, deadline: Deadline | None
) -> Generator[pa.RecordBatch, None, None]:
    """The batches of `plan.read`, one at a time, for a plain `for` loop.

    Who reads, and in which thread, is known when the first batch is asked for.
    """
    if asyncio._get_running_loop() is loop:
        yield from _with_own_connection(plan, start_offsets, deadline)
    else:
        yield from _on_loop(plan, start_offsets, loop, deadline)


def _on_loop(
    plan: ScanPlan, start_offsets: dict[TableBucket, int], loop: asyncio.AbstractEventLoop, deadline: Deadline | None
) -> Generator[pa.RecordBatch, None, None]:
    batches = plan.read(start_offsets, None, deadline)

    async def step() -> Any:
        return await anext(batches, None)

    async def stop() -> None:
        await batches.aclose()

    try:
        while (found := asyncio.run_coroutine_threadsafe(step(), loop).result()) is not None:
            yield found.batch
    finally:
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(stop(), loop)


def _with_own_connection(
    plan: ScanPlan, start_offsets: dict[TableBucket, int], deadline: Deadline | None
) -> Generator[pa.RecordBatch, None, None]:
    """Where the caller sits on the very loop that would have to work, the read gets a loop of its own."""
    thread = LoopThread()
    try:
        cluster = thread.run(type(plan.cluster).connect(plan.config, deadline))
        try:
            yield from _on_loop(replace(plan, cluster=cluster), start_offsets, thread.loop, deadline)
        finally:
            thread.run(cluster.close())
    finally:
        thread.close()
