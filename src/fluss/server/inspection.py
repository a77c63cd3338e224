# SPDX-License-Identifier: Apache-2.0
"""What the web console asks the server about itself: figures, connections, users and the log.

The console is a child process that holds the other end of a socket pair. No port is opened, so nothing of this can be
reached over a network, and the server works only when it is asked: one JSON line per question, one per answer with the
id of its question.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import sys
from collections import deque
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from fluss._version import VERSION
from fluss.metadata import TablePath
from fluss.metadata.acl import OperationType, Resource
from fluss.server import disk
from fluss.server.auth import Principal

if TYPE_CHECKING:
    from fluss.server.server import Server
    from fluss.server.session import ServerSession

LOG_LINES_MAX = 2_000
CLIENTS_MAX = 1_000
BUCKETS_MAX = 10_000
DATABASES_MAX = 1_000
_LINE_CHARS_MAX = 2_000
_QUESTION_BYTES_MAX = 4_096


class RecentLog(logging.Handler):
    """The newest log records, in memory."""

    def __init__(self, lines_max: int = LOG_LINES_MAX) -> None:
        super().__init__()
        self._lines: deque[dict[str, Any]] = deque(maxlen=lines_max)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._count += 1
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" [{type(record.exc_info[1]).__name__}: {record.exc_info[1]}]"
        self._lines.append(
            {
                "number": self._count,
                "time_ms": int(record.created * 1000),
                "level": record.levelname,
                "severity": record.levelno,
                "logger": record.name,
                "message": text[:_LINE_CHARS_MAX],
            }
        )

    def lines(self, severity_min: int, count_max: int) -> list[dict[str, Any]]:
        """The newest records of at least a level, oldest first."""
        found = [line for line in tuple(self._lines) if line["severity"] >= severity_min]
        return found[-count_max:] if count_max > 0 else []


@dataclass
class _Asked:
    """A user that is asked about, as if connected from an address that no rule names."""

    principal: Principal
    host: str
    listener: str


class Inspector:
    """Answers the questions that come over one socket, until it is closed."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        self._log = RecentLog()
        self._started = time()
        self._task: asyncio.Task[None] | None = None
        self._questions = {
            "figures": self._figures,
            "clients": self._clients,
            "users": self._users,
            "log": self._log_lines,
            "storage": self._storage,
            "rights": self._rights,
            "databases": self._databases,
        }

    def start(self) -> None:
        """Collect the log, and answer from now on."""
        logging.getLogger("fluss").addHandler(self._log)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def stop(self) -> None:
        """Close the socket; the console ends then."""
        logging.getLogger("fluss").removeHandler(self._log)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._sock.close()

    async def _serve(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._sock, limit=_QUESTION_BYTES_MAX)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self.answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            return  # the console is gone, or sent what it never sends
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def answer(self, line: bytes) -> dict[str, Any]:
        """Answer one question."""
        question = json.loads(line)
        asked = self._questions.get(str(question.get("ask")))
        if asked is None:
            return {"error": f"unknown question {question.get('ask')!r:.80}", "id": question.get("id")}
        return {**await asked(question), "id": question.get("id")}

    async def _figures(self, _: dict[str, Any]) -> dict[str, Any]:
        server = self._server
        used_bytes, free_bytes = disk.space(str(server.config.get("data.dir")))
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "time_ms": int(time() * 1000),
            "started_ms": int(self._started * 1000),
            "memory_bytes": _resident_bytes(),
            "disk_used_bytes": used_bytes,
            "disk_free_bytes": free_bytes,
            "data_dir": str(server.config.get("data.dir")),
            "metrics": await server.metrics.text_in_slices(),
            "latencies": server.metrics.latencies(),
        }

    async def _clients(self, _: dict[str, Any]) -> dict[str, Any]:
        now = monotonic()
        sessions = tuple(self._server.sessions)
        found = [
            {
                "peer": session.peer,
                "listener": session.listener,
                "user": session.principal.name,
                "established": session.is_established,
                "idle_s": round(now - session.channel.last_activity, 3),
                "bytes_in": session.channel.bytes_in,
                "bytes_out": session.channel.bytes_out,
                "unsent_bytes": session.channel.held_bytes,
                "requests": session.requests_in_work,
                "software": session.software,
                "reads": self._reads(session),
            }
            for session in sessions[:CLIENTS_MAX]
        ]
        return {"clients": found, "total": len(sessions)}

    def _reads(self, session: ServerSession) -> list[dict[str, Any]]:
        """The tables that a client fetched last, and how many records it has not read of their buckets."""
        found: dict[int, dict[str, Any]] = {}
        for bucket, offset in session.last_fetch:
            entry, log = self._server.catalog.table_by_id(bucket.table_id), self._server.tablets.find(bucket)
            if entry is not None and log is not None:
                read = found.setdefault(entry.table_id, {"table": str(entry.table_path), "buckets": 0, "lag": 0})
                read["buckets"] += 1
                read["lag"] += max(0, log.high_watermark - max(offset, log.earliest_offset))
        return list(found.values())

    async def _users(self, _: dict[str, Any]) -> dict[str, Any]:
        config = self._server.config
        listeners = {
            name: {"protocol": config.protocol_of(name), "users": self._server.accounts.names(name)}
            for name in self._server.listeners
        }
        return {"listeners": listeners}

    async def _databases(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"names": sorted(self._server.catalog.databases)[:DATABASES_MAX]}

    async def _rights(self, question: dict[str, Any]) -> dict[str, Any]:
        """What a user may do with a table, by the checks that requests go through."""
        config = self._server.config
        names = [endpoint.listener for endpoint in config.bind_endpoints]
        listener = next((name for name in names if name != config.internal_listener), config.internal_listener)
        caller = _Asked(Principal(str(question["user"])), "", listener)
        database, _, table = str(question["table"]).rpartition(".")
        resource = Resource.table(TablePath(database, table))
        return {"reasons": {one.name: self._server.authorizer.reason(caller, one, resource) for one in OperationType}}

    async def _storage(self, question: dict[str, Any]) -> dict[str, Any]:
        """Bytes and segments of the local log, per partition id and bucket."""
        table_id = question.get("table")
        found = [
            (log.bucket.partition_id, log.bucket.bucket_id, log.size_bytes, len(log.segments))
            for log in self._server.tablets
            if log.bucket.table_id == table_id
        ]
        return {"buckets": found[:BUCKETS_MAX]}

    async def _log_lines(self, question: dict[str, Any]) -> dict[str, Any]:
        level = logging.getLevelName(str(question.get("level", "INFO")).upper())
        count = min(int(question.get("count", 200)), LOG_LINES_MAX)
        return {"lines": self._log.lines(level if isinstance(level, int) else logging.INFO, count)}


def _resident_bytes() -> int:
    """The memory of this process: now where the system says it, else the most it ever had."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
