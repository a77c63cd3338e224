# SPDX-License-Identifier: Apache-2.0
"""Sample data for a first look: a table of orders, and a writer that keeps adding to it and changing it."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import fluss
from fluss.console.clients import Client
from fluss.errors import FlussError
from fluss.tools.bench import LiveOrders

_ROWS_AT_FIRST = 200
_ROWS_PER_SECOND = 20.0


class SampleWriter:
    """Writes in a task of the console, until it is stopped or the console ends."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self, client: Client) -> None:
        """Write the first rows, then go on in the background."""
        if self.running:
            return
        self._ended = ended = threading.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._run(client, ended, ready))
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _run(self, client: Client, ended: threading.Event, ready: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()

        def work(db: fluss.Database) -> None:
            orders = LiveOrders(db, _ROWS_PER_SECOND)
            orders.write(_ROWS_AT_FIRST)
            loop.call_soon_threadsafe(ready.set_result, None)
            orders.run(ended)

        await client.in_thread(work)

    async def stop(self) -> None:
        self._ended.set()
        if self._task is not None:
            with contextlib.suppress(FlussError):  # the server may be gone
                await self._task
            self._task = None
