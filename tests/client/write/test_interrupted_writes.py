# SPDX-License-Identifier: Apache-2.0
"""Writes that Ctrl-C interrupts in another thread than the event loop's: later rows are written, and none twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS, read_all

from fluss.errors import InvalidRowError

SCHEMA = pa.schema(LOG_FIELDS)
BATCH = pa.Table.from_pylist([{"id": 10, "name": "b", "score": 0.5}], SCHEMA)


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, which would end the event loop of the test as well."""


def interrupt_once(owner: Any, name: str, *, after: bool = False) -> None:
    """Interrupt the next call of a method, before or after it does its work."""
    method = getattr(owner, name)

    def interrupt(*args: Any, **options: Any) -> None:
        setattr(owner, name, method)
        if after:
            method(*args, **options)
        raise Interrupt

    setattr(owner, name, interrupt)


async def interrupted(call: Callable[[], object]) -> None:
    def run() -> None:
        with pytest.raises(Interrupt):
            call()

    await asyncio.to_thread(run)


async def ids(table: Any) -> list[int]:
    found: list[int] = (await read_all(table))["id"].to_pylist()
    return found


async def test_after_a_chunk_was_added_and_before_the_loop_is_called(table, writer: Any) -> None:
    interrupt_once(writer._chunks, "put", after=True)
    await interrupted(lambda: writer.write_arrow(BATCH))
    await asyncio.wait_for(writer.flush(), 5)
    assert await ids(table) == [10]


async def test_while_the_rows_before_a_batch_are_converted(table, writer: Any) -> None:
    interrupt_once(writer._converter, "convert")

    def write() -> None:
        writer.append((1, "a", 0.5))
        writer.write_arrow(BATCH)

    await interrupted(write)
    await asyncio.to_thread(writer.append, (2, "c", 0.5))
    with pytest.raises(InvalidRowError, match="interrupted"):
        await asyncio.wait_for(writer.flush(), 5)
    assert await ids(table) == [2]


async def test_while_the_chunk_of_another_thread_is_converted(table, writer: Any) -> None:
    writer.append((1, "a", 0.5))
    writer._accumulator.limit(1)
    interrupt_once(writer._converter, "convert")
    await interrupted(lambda: writer.append((2, "b", 0.5)))
    await asyncio.to_thread(writer.append, (3, "c", 0.5))
    with pytest.raises(InvalidRowError, match="interrupted"):
        await asyncio.wait_for(writer.flush(), 5)
    assert await ids(table) == [2, 3]
