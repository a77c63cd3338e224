# SPDX-License-Identifier: Apache-2.0
"""HTTP with time limits for what a browser has to do: send its request, and take the answer.

uvicorn limits the time between two requests only. Connections that send nothing, or their headers byte by byte, would
take all there are.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S_MAX = 30.0
"""Time for the headers of a request, after those of the one before or its answer."""
STALLED_S_MAX = 30.0
"""Time in which a browser takes nothing of an answer."""
CONNECTIONS_MAX = 400
"""Beyond it the connection that has waited longest for its request makes room."""
_CHECK_S = 1.0


class TimedProtocol(H11Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._active_at = self._sent_at = self.loop.time()
        self._unsent_bytes = 0
        self._seen_cycle: object = None
        self._check_timer: asyncio.TimerHandle | None = self.loop.call_later(_CHECK_S, self._check)
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not self._seen_cycle:
            self._seen_cycle = self.cycle
            self._active_at = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None

    @property
    def waits_for_request(self) -> bool:
        """Whether no request is in work."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        waiting = [
            one
            for one in self.connections
            if isinstance(one, TimedProtocol) and one.waits_for_request and not one.transport.is_closing()
        ]
        min(waiting, key=lambda one: one._active_at).transport.abort()

    def _check(self) -> None:
        now = self.loop.time()
        if not self.waits_for_request:
            self._active_at = now
        unsent_bytes = self.transport.get_write_buffer_size()
        if not unsent_bytes or unsent_bytes != self._unsent_bytes:
            self._sent_at, self._unsent_bytes = now, unsent_bytes
        if now - self._active_at > REQUEST_S_MAX or now - self._sent_at > STALLED_S_MAX:
            self.transport.abort()
            return
        self._check_timer = self.loop.call_later(_CHECK_S, self._check)
