# SPDX-License-Identifier: Apache-2.0
"""Batches that the loop of the client reads, for threads that wait for them: read ahead, in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from fluss.errors import ConnectionClosedError

AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""How much is read before it is asked for."""
_FIRST_AHEAD_BYTES_MAX = 1024 * 1024
"""At first it is less, and twice as much with every batch that is taken: decoding what comes later would take the
processor from the thread that shows the first rows, which may be all that are wanted."""
_CHECK_S = 0.5

Submit = Callable[[Coroutine[Any, Any, None]], "Future[None]"]
"""Starts a coroutine on the loop of the client."""


def read_ahead(
    submit: Submit, open_batches: Callable[[], AsyncGenerator[pa.RecordBatch, None]], owner: object = None
) -> Generator[pa.RecordBatch, None, None]:
    """The batches of an asynchronous generator, which runs ahead of the thread that takes them.

    Handing over each batch on request would cost two changes of thread per batch, during which nothing is read.
    `owner` is kept until the end: a connection that is dropped closes itself.
    """
    pipe = _Pipe()
    work = pipe.fill(open_batches)
    try:
        filling = submit(work)
    except BaseException:
        work.close()
        raise
    try:
        while (batch := pipe.take(filling)) is not None:
            yield batch
    finally:
        # Also where the reader stops early, as for a LIMIT: what was not read is not read any more.
        filling.cancel()


class _Pipe:
    def __init__(self) -> None:
        self._ready: queue.SimpleQueue[pa.RecordBatch | BaseException | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._bytes_max = min(_FIRST_AHEAD_BYTES_MAX, AHEAD_BYTES_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_room = asyncio.Event()

    async def fill(self, open_batches: Callable[[], AsyncGenerator[pa.RecordBatch, None]]) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            async with contextlib.aclosing(open_batches()) as batches:
                async for batch in batches:
                    with self._lock:
                        self._bytes += batch.nbytes
                        full = self._bytes > self._bytes_max
                        if full:
                            self._has_room.clear()
                    self._ready.put(batch)
                    if full:
                        await self._has_room.wait()
        except BaseException as error:
            self._ready.put(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._ready.put(None)

    def take(self, filling: Future[None]) -> pa.RecordBatch | None:
        """The next batch, or None at the end."""
        while True:
            try:
                # Not in one go: the system may hand Ctrl-C to any thread, and this one sees it between two waits.
                found = self._ready.get(timeout=_CHECK_S)
                break
            except queue.Empty:
                if filling.done() and self._ready.empty():
                    found = asyncio.CancelledError()  # the loop ended before it began
                    break
        if isinstance(found, asyncio.CancelledError):
            raise ConnectionClosedError("The connection was closed while the table was being read")
        if isinstance(found, BaseException):
            raise found
        if found is not None:
            with self._lock:
                was_full = self._bytes > self._bytes_max
                self._bytes -= found.nbytes
                self._bytes_max = min(2 * self._bytes_max, AHEAD_BYTES_MAX)
                wake = was_full and self._bytes <= self._bytes_max
            if wake and self._loop is not None:
                with contextlib.suppress(RuntimeError):  # closed: `take` will find out
                    self._loop.call_soon_threadsafe(self._has_room.set)
        return found
