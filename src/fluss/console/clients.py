# SPDX-License-Identifier: Apache-2.0
"""What the console holds for one user: the connection, open result lists and live feeds."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, replace
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

import fluss
from fluss import aio
from fluss.console.feeds import Events, SharedFeed
from fluss.console.settings import Settings
from fluss.console.table_stats import TableStatsCache
from fluss.errors import InvalidArgumentError, NetworkError
from fluss.net.deadline import wait_for

CURSORS_MAX = 32
CURSOR_IDLE_S = 120.0
_CONNECT_S_MAX = 10.0
_ANSWER_S_MAX = 5.0
_ANSWER_VALID_S = 1.0
_OPTIONS = {"scanner.kv.fetch.max-bytes": "64kb"}
"""A page has a hundred rows: with steps of 4 MB, as for whole tables, the first page of a large one takes seconds."""

T = TypeVar("T")


class PageCursor:
    """Rows that are read page by page: the next ones are read when they are asked for."""

    def __init__(self, batches: AsyncGenerator[pa.RecordBatch, None]) -> None:
        self.id = secrets.token_urlsafe(12)
        self.used_at = monotonic()
        self._batches = batches
        self._rest: list[pa.RecordBatch] = []
        self._ended = False
        self._lock = asyncio.Lock()

    async def page(self, rows: int) -> tuple[list[pa.RecordBatch], bool]:
        """The next rows, and whether there are more."""
        async with self._lock:
            # One row more than wanted is read, so that the last page is known to be the last.
            while not self._ended and sum(batch.num_rows for batch in self._rest) <= rows:
                batch = await anext(self._batches, None)
                if batch is None:
                    self._ended = True
                else:
                    self._rest.append(batch)
            page: list[pa.RecordBatch] = []
            while self._rest and rows > 0:
                first = self._rest.pop(0)
                page.append(first.slice(0, rows))
                if first.num_rows > rows:
                    self._rest.insert(0, first.slice(rows))
                rows -= page[-1].num_rows
            self.used_at = monotonic()
            return page, bool(self._rest)

    @property
    def is_idle(self) -> bool:
        """Whether no page is being read, which may take minutes if few rows match."""
        return not self._lock.locked()

    async def close(self) -> None:
        """Stop reading, and give back what the server holds for it."""
        async with self._lock:
            self._ended = True
            await self._batches.aclose()


class Client:
    """The connection of one user (or of the console), shared by the sessions of that user."""

    def __init__(self, settings: Settings, user: str | None, password: str | None) -> None:
        self.user = user
        self._settings = settings
        self._password = password
        self._db: aio.Database | None = None
        self._connecting = asyncio.Lock()
        self._cursors: dict[str, PageCursor] = {}
        self._answered_at = -_ANSWER_VALID_S
        self.table_stats = TableStatsCache()
        self._feeds: WeakValueDictionary[str, SharedFeed] = WeakValueDictionary()

    def has_password(self, password: str) -> bool:
        return self._password is not None and hmac.compare_digest(password.encode(), self._password.encode())

    async def db(self) -> aio.Database:
        """The connection; made at first use."""
        async with self._connecting:
            if self._db is None:
                self._db = await aio.connect(**self._target(), options=_OPTIONS)
            return self._db

    def _target(self) -> dict[str, Any]:
        """Where and as whom to connect, as arguments of `connect`."""
        settings = self._settings
        login = asdict(settings.login(self.user, self._password))
        servers = settings.bootstrap_servers
        return {"target": servers, **login, "timeout": _CONNECT_S_MAX, "read_only": settings.read_only}

    async def table(self, name: str) -> aio.Table[dict[str, Any]]:
        """Open a table by its full name."""
        return await (await self.db()).table(name)

    async def admin(self) -> aio.FlussAdmin:
        """The full client's view of the cluster."""
        return (await self.db()).connection.get_admin()

    @property
    def settings(self) -> Settings:
        """The settings of the console, with the user as whom this one connects."""
        return replace(self._settings, user=self.user, password=self._password)

    async def require_connected(self) -> None:
        """Fail at once if the server does not answer, rather than after all retries of a long request."""
        if monotonic() - self._answered_at < _ANSWER_VALID_S:
            return
        try:
            await wait_for((await self.admin()).list_databases(), _ANSWER_S_MAX)
        except asyncio.TimeoutError:
            raise NetworkError(f"The server {self._settings.bootstrap_servers} does not answer.") from None
        self._answered_at = monotonic()

    async def in_thread(self, work: Callable[[fluss.Database], T]) -> T:
        """Run something that needs the synchronous API, on a connection of its own."""
        await self.require_connected()

        def run() -> T:
            with fluss.connect(**self._target()) as db:
                return work(db)

        return await asyncio.to_thread(run)

    def config(self) -> dict[str, Any]:
        """The options of the full client, for what opens connections of its own."""
        login = self._settings.login(self.user, self._password)
        return {"bootstrap.servers": self._settings.bootstrap_servers, **login.options()}

    async def require_operator(self) -> None:
        """Fail unless the user may see the configuration of the cluster, and so figures, clients, users and log."""
        await (await self.admin()).describe_cluster_configs()

    def shared_feed(self, key: str, events: Events) -> AsyncGenerator[bytes, None]:
        """The newest changes of a table, read once for all browsers that look at them."""
        feed = self._feeds.get(key)
        if feed is None or feed.ended:
            feed = self._feeds[key] = SharedFeed(events)
        return feed.subscribe()

    # -- result lists ---------------------------------------------------------------------------------------------

    async def open_cursor(self, batches: AsyncGenerator[pa.RecordBatch, None]) -> PageCursor:
        """Keep a result list open; the one that was not used for longest is closed if there are too many."""
        if len(self._cursors) >= CURSORS_MAX:
            if not self._idle:
                raise InvalidArgumentError(f"{CURSORS_MAX} lists of rows are being read. Try again when one is done.")
            await self.close_cursor(min(self._idle, key=lambda one: one.used_at).id)
        cursor = PageCursor(batches)
        self._cursors[cursor.id] = cursor
        return cursor

    @property
    def _idle(self) -> list[PageCursor]:
        return [cursor for cursor in self._cursors.values() if cursor.is_idle]

    def cursor(self, cursor_id: str) -> PageCursor:
        found = self._cursors.get(cursor_id)
        if found is None:
            raise InvalidArgumentError(
                f"This list of rows was closed, because it was not used for {CURSOR_IDLE_S:.0f} s or {CURSORS_MAX} "
                "newer ones were opened. Load it again."
            )
        return found

    async def close_cursor(self, cursor_id: str) -> None:
        cursor = self._cursors.pop(cursor_id, None)
        if cursor is not None:
            await cursor.close()

    async def close_idle(self) -> None:
        """Close the lists that no browser asks for any more."""
        limit = monotonic() - CURSOR_IDLE_S
        for cursor in [one for one in self._idle if one.used_at < limit]:
            await self.close_cursor(cursor.id)

    async def close(self) -> None:
        for cursor in self._idle:
            with contextlib.suppress(Exception):  # the connection is closed next, whatever state the list is in
                await self.close_cursor(cursor.id)
        await self.table_stats.close()
        for feed in list(self._feeds.values()):
            await feed.close()
        if self._db is not None:
            await self._db.close()
