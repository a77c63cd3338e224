# SPDX-License-Identifier: Apache-2.0
"""All open connections: how many there may be, and which ones are closed because they hold what others need."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest
from time import monotonic

from fluss.net.deadline import wait_for
from fluss.server.auth import Principal
from fluss.server.quotas import USER_SHARE
from fluss.server.scheduler import Share
from fluss.server.services import Services
from fluss.server.session import ServerSession

logger = logging.getLogger("fluss.server.connections")

_CHECK_SECONDS = 1.0
_SESSIONS_PER_SLICE = 500
_FRAME_BYTES_PER_SECOND_MIN = 1024
# While a large request waits for memory, the frames that hold it have to arrive at a fair pace all the time.
_WANTED_GRACE_SECONDS = 1.5
_WANTED_BYTES_PER_SECOND_MIN = 256 * 1024
_LOG_INTERVAL_SECONDS = 10.0
_IDLE_SECONDS_MIN = 0.2
_IDLE_SEARCH_SECONDS = 0.2
_IDLE_CLOSED_AT_ONCE = 16


@dataclass(slots=True)
class _Arrival:
    """How a frame arrives, as seen by the checks since it began."""

    position: int
    """Where in the stream the frame began, which distinguishes it from the one before."""
    since: float
    bytes_in: int
    """Bytes of the connection at that time."""
    checked_at: float
    checked_bytes: int
    paced_at: float
    """When it last arrived at a fair pace."""


class Connections:
    """Admit, count and close connections.

    A connection is new until its client has authenticated or, where that is not asked for, has sent its first request.
    Connections that are idle cost an attacker nothing, so they never keep others out: new ones have a deadline, and
    when no connection is left the oldest new one makes room, or else those of the user with the most connections that
    were idle for longest. Clients connect again when they have something to ask.
    """

    def __init__(self, server: Services) -> None:
        self._server = server
        self.sessions: set[ServerSession] = set()
        self._all_closed = asyncio.Event()
        self._new: dict[ServerSession, float] = {}
        """Connections that are not established, with the time at which they came, oldest first."""
        self._arrivals: dict[ServerSession, _Arrival] = {}
        """Connections in the middle of a frame."""
        self._untaken: dict[ServerSession, tuple[int, float]] = {}
        """Connections that hold answers while memory is short: what was sent, and since when no more was."""
        self._logged: dict[str, tuple[float, int]] = {}
        self._next_search = 0.0
        """When idle connections are looked for again after none was found: looking takes time."""

    @property
    def maximum(self) -> int:
        """How many connections there may be. Half of the handles of the process are kept for its files."""
        option = self._server.config.integer("server.max-connections")
        handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return option if handles == resource.RLIM_INFINITY else max(1, min(option, handles // 2))

    def free_places(self) -> int:
        """Return how many more connections there may be."""
        return self.maximum - len(self.sessions)

    @property
    def unauthenticated_count(self) -> int:
        """Connections that have not authenticated, or not sent a request yet."""
        return len(self._new)

    def admit(self, peer: str) -> bool:
        """Whether one more connection can be served; one that is still new, or idle, makes room for it."""
        maximum = self.maximum
        if len(self.sessions) < maximum or self.make_room():
            return True
        self._server.metrics.add("tabletserver_refusedConnections_total")
        self._log("refused", f"refused {peer}: {maximum} connections are open (option 'server.max-connections')")
        return False

    def has_room_for(self, session: ServerSession, share: Share | None = None) -> bool:
        """Whether the user of a session, or its future one, may have it; an idle connection of the user makes room."""
        share = share or session.share
        limit = self._server.quotas.connections_max
        if limit is None and isinstance(share.owner, Principal):
            limit = max(1, int(self.maximum * USER_SHARE))
        held = share.usage.connections - (share is session.share)
        if limit is None or held < limit or self._close_idle_of(share, session):
            return True
        self._server.metrics.add("tabletserver_refusedConnections_total")
        self._log("refused", f"refused {session}: {share.owner} has {held} connections, the limit of a user")
        return False

    def _close_idle_of(self, share: Share, kept: ServerSession) -> bool:
        """Close the connection of a user that was idle for longest; False if none is."""
        idle = [session for session in self._idle() if session is not kept and session.share is share]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: one.channel.last_activity)
        self._close(oldest, "idle", f"its place was needed by another connection of {share.owner}")
        return True

    def _idle(self) -> Iterator[ServerSession]:
        latest = monotonic() - _IDLE_SECONDS_MIN
        return (one for one in self.sessions if one.is_idle and one.channel.last_activity < latest)

    def make_room(self) -> bool:
        """Close the oldest connection that is not established, or else idle ones; False if there is none."""
        for session in self._new:
            self._close(session, "unauthenticated", "its place was needed before it authenticated")
            return True
        return self._close_idle()

    def _close_idle(self) -> bool:
        """Close some connections of the user with the most of them; False if none of them is idle."""
        now = monotonic()
        if now < self._next_search:
            return False
        counts = Counter(session.principal for session in self.sessions)
        user = max(counts, key=counts.__getitem__, default=None)
        idle = [session for session in self._idle() if session.principal == user]
        if not idle:
            self._next_search = now + _IDLE_SEARCH_SECONDS
            return False
        for session in nsmallest(_IDLE_CLOSED_AT_ONCE, idle, key=lambda one: one.channel.last_activity):
            self._close(session, "idle", f"its place was needed, and {user} has {counts[session.principal]} of them")
        return True

    def add(self, session: ServerSession) -> None:
        self.sessions.add(session)
        session.share.usage.connections += 1
        self._new[session] = monotonic()

    def established(self, session: ServerSession) -> None:
        self._new.pop(session, None)

    def remove(self, session: ServerSession) -> None:
        self.sessions.discard(session)
        session.share.usage.connections -= 1
        self._new.pop(session, None)
        self._arrivals.pop(session, None)
        self._untaken.pop(session, None)
        if not self.sessions:
            self._all_closed.set()

    async def wait_until_closed(self, seconds: float) -> None:
        """Wait until no connection is left, for so long at most."""
        if self.sessions:
            self._all_closed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_for(self._all_closed.wait(), seconds)

    # Deadlines -----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Close connections whose time is over, for ever."""
        config = self._server.config
        idle_seconds = config.integer("netty.connection.max-idle-time") / 1000
        authentication_seconds = config.integer("server.authentication.timeout") / 1000
        frame_seconds = config.integer("server.frame.timeout") / 1000
        shortest = min(idle_seconds, authentication_seconds, frame_seconds)
        while True:
            await asyncio.sleep(min(max(shortest / 4, 0.05), _CHECK_SECONDS))
            self._close_new(authentication_seconds)
            for number, session in enumerate(tuple(self.sessions)):
                if number % _SESSIONS_PER_SLICE == _SESSIONS_PER_SLICE - 1:
                    await asyncio.sleep(0)
                if not session.channel.closed:
                    self._check(session, idle_seconds, frame_seconds)

    def _close_new(self, seconds: float) -> None:
        latest = monotonic() - seconds
        for session in [session for session, since in self._new.items() if since < latest]:
            self._close(session, "unauthenticated", f"it did not authenticate within {seconds:g} s")

    def _check(self, session: ServerSession, idle_seconds: float, frame_seconds: float) -> None:
        channel = session.channel
        now = monotonic()
        if not session.requests_in_work and now - channel.last_activity > idle_seconds:
            session.close()
            return
        if self._holds_answers(session, now):
            self._close(session, "slow", "others wait for the memory of answers that this client does not take")
            return
        position = channel.frame_position
        if position is None or not session.waits_for_peer:
            self._arrivals.pop(session, None)
            return
        arrival = self._arrivals.get(session)
        arrived = channel.bytes_in
        if arrival is None or arrival.position != position:
            self._arrivals[session] = _Arrival(position, now, arrived, now, arrived, now)
            return
        if arrived - arrival.checked_bytes >= (now - arrival.checked_at) * _WANTED_BYTES_PER_SECOND_MIN:
            arrival.paced_at = now
        arrival.checked_at, arrival.checked_bytes = now, arrived
        if now - arrival.since > frame_seconds + (arrived - arrival.bytes_in) / _FRAME_BYTES_PER_SECOND_MIN:
            self._close(session, "slow", f"a request did not arrive within {frame_seconds:g} s")
        elif (
            self._server.memory.is_wanted
            and channel.is_receiving_large
            and now - arrival.paced_at > _WANTED_GRACE_SECONDS
        ):
            self._close(session, "slow", "others wait for the memory of a large request that arrives too slowly")

    def _holds_answers(self, session: ServerSession, now: float) -> bool:
        """Whether a client takes nothing while others wait for the memory of its answers."""
        channel = session.channel
        if not channel.held_bytes or not self._server.answers.exhausted:
            self._untaken.pop(session, None)
            return False
        sent_bytes, since = self._untaken.get(session, (-1, now))
        if sent_bytes != channel.bytes_out:
            self._untaken[session] = (channel.bytes_out, now)
            return False
        return now - since > _WANTED_GRACE_SECONDS

    def _close(self, session: ServerSession, kind: str, reason: str) -> None:
        self._server.metrics.add("tabletserver_closedConnections_total", 1, (("reason", kind),))
        self._log(kind, f"closed {session}: {reason}")
        session.close()

    def _log(self, kind: str, text: str) -> None:
        """Log an event of a kind that a flood may cause, with what was left out since the last line."""
        logged_at, left_out = self._logged.get(kind, (float("-inf"), 0))
        now = monotonic()
        if now - logged_at < _LOG_INTERVAL_SECONDS:
            self._logged[kind] = (logged_at, left_out + 1)
            return
        self._logged[kind] = (now, 0)
        logger.warning("%s%s", text, f" ({left_out} more since the last such line)" if left_out else "")
