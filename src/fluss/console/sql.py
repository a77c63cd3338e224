# SPDX-License-Identifier: Apache-2.0
"""SQL of the console: a DuckDB in a child process for each browser tab, which can be ended at any time.

DuckDB does not count all memory towards its limit, and some functions cannot be interrupted. A process can be limited
and killed, so a query harms neither the console nor the queries of others; and what a tab defines is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from fluss import errors
from fluss.console.clients import Client
from fluss.console.settings import (
    SQL_MEMORY_BYTES_MAX,
    SQL_OUT_OF_MEMORY,
    SQL_SECONDS_MAX,
    SQL_SESSION_IDLE_S,
    SQL_SESSIONS_MAX,
    SQL_SESSIONS_OF_USER_MAX,
    child_environment,
)
from fluss.errors import DeadlineExceededError, FlussError, InvalidArgumentError
from fluss.net.deadline import wait_for

_START_S_MAX = 30.0
_ANSWER_BYTES_MAX = 256 * 1024 * 1024
_TAB_CHARS_MAX = 64


class _Session:
    """The child process of one tab."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.used_at = monotonic()
        self.busy = False
        self._cancelled = False
        self._folder = tempfile.TemporaryDirectory(prefix="fluss-sql-", ignore_cleanup_errors=True)
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask the process, which is started first if there is none; the time limit counts from then on."""
        self.busy = True
        try:
            if self._process is None:
                await self._start()
            answer = await self._answer(question, SQL_SECONDS_MAX)
        except asyncio.TimeoutError:
            await self.kill()
            raise DeadlineExceededError(f"The query was stopped after {SQL_SECONDS_MAX:.0f} s.") from None
        except BaseException:
            # Also when the request was cancelled: the answer to this question must not become that to the next one.
            await self.kill()
            raise
        finally:
            self.busy = False
            self.used_at = monotonic()
        return _checked(answer)

    async def _start(self) -> None:
        self._cancelled = False
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fluss.console.sql_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
            limit=_ANSWER_BYTES_MAX,
        )
        # Not as arguments, which other users of the machine can see.
        settings = {"settings": asdict(self.client.settings), "folder": self._folder.name}
        _checked(await self._answer(settings, _START_S_MAX))

    async def _answer(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it has ended: the empty answer says so
            process.stdin.write(json.dumps(question).encode() + b"\n")
            await process.stdin.drain()
        line = await wait_for(process.stdout.readline(), seconds)
        if self._cancelled:
            raise InvalidArgumentError("The query was cancelled.")
        if not line:
            code = await process.wait()
            if code >= 0 and code != SQL_OUT_OF_MEMORY:
                raise FlussError(
                    f"The process that runs the SQL of this tab ended with code {code}. Run the query again."
                )
            # Also of a signal: libraries abort, or the system kills the process.
            raise InvalidArgumentError(
                f"The query was stopped: it needs more than the {SQL_MEMORY_BYTES_MAX / 1e9:.1f} GB of memory that a "
                "query may use."
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def cancel(self) -> None:
        """End the query that runs. Its caller gets an error."""
        if self.busy:
            self._cancelled = True
            self._end()

    async def kill(self) -> None:
        self._end()
        if self._process is not None:
            process, self._process = self._process, None
            await process.wait()

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        await self.kill()
        await asyncio.to_thread(self._folder.cleanup)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" not in answer:
        return answer
    kind = getattr(errors, str(answer.get("kind")), InvalidArgumentError)
    raise (kind if issubclass(kind, FlussError) else InvalidArgumentError)(answer["error"])


class SqlSessions:
    """The sessions of all tabs: bounded in number, per user and together."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[Client, str], _Session] = {}

    async def query(self, client: Client, tab: str, text: str) -> dict[str, Any]:
        """Run statements; the first rows of the last one's result."""
        return await (await self._session(client, tab)).ask({"ask": "query", "text": text})

    async def export(self, client: Client, tab: str, result: str, form: str) -> Path:
        """Write a result that a tab shows to a file of its session."""
        answer = await (await self._session(client, tab)).ask({"ask": "export", "result": result, "form": form})
        return Path(answer["path"])

    async def cancel(self, client: Client, tab: str, *, close: bool) -> None:
        """Stop the query of a tab, and end its session if the tab is closed."""
        session = self._sessions.get((client, tab))
        if session is not None:
            await session.cancel()
        if close and session is not None:
            del self._sessions[client, tab]
            await session.close()

    async def close_idle(self) -> None:
        """Close the sessions that no browser has used for long."""
        limit = monotonic() - SQL_SESSION_IDLE_S
        for key in [key for key, one in self._sessions.items() if not one.busy and one.used_at < limit]:
            await self._sessions.pop(key).close()

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()

    async def _session(self, client: Client, tab: str) -> _Session:
        if not 1 <= len(tab) <= _TAB_CHARS_MAX:
            raise InvalidArgumentError("The argument 'tab' is a short text.")
        while (found := self._sessions.get((client, tab))) is None:  # another request may open it while one is closed
            own = [key for key in self._sessions if key[0] is client]
            if len(own) >= SQL_SESSIONS_OF_USER_MAX:
                await self._close_oldest(own)
            elif len(self._sessions) >= SQL_SESSIONS_MAX:
                await self._close_oldest(list(self._sessions))
            else:
                self._sessions[client, tab] = _Session(client)
        if found.busy:
            raise InvalidArgumentError("A query of this tab is running. Wait for it, or cancel it.")
        return found

    async def _close_oldest(self, keys: list[tuple[Client, str]]) -> None:
        """Close the session that was not used for longest."""
        idle = [key for key in keys if not self._sessions[key].busy]
        if not idle:
            raise InvalidArgumentError(f"{len(keys)} queries are running. Try again when one of them is done.")
        await self._sessions.pop(min(idle, key=lambda key: self._sessions[key].used_at)).close()
