# SPDX-License-Identifier: Apache-2.0
"""Where the console learns about the server beyond its protocol: the embedded server, or a Prometheus page."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import urllib.error
import urllib.request
from typing import Any

from fluss.errors import InvalidArgumentError, NetworkError
from fluss.net.deadline import wait_for

_ANSWER_BYTES_MAX = 32 * 1024 * 1024
_ANSWER_S_MAX = 10.0
_SERIES = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Inspection:
    """Asks the embedded server over the socket it gave to the console, or reads the Prometheus page of another one."""

    def __init__(self, sock: socket.socket | None = None, metrics_url: str | None = None) -> None:
        self._sock = sock
        self._url = metrics_url
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def embedded(self) -> bool:
        """Whether the server was started together with the console."""
        return self._sock is not None

    async def ask(self, question: str, **more: Any) -> dict[str, Any]:
        """Ask the embedded server."""
        if self._sock is None:
            raise InvalidArgumentError(
                "Only a server that was started with 'fluss server --ui' tells the console about its clients, users "
                "and log. Other servers have no API for it."
            )
        async with self._lock:  # one question at a time: answers come in order
            if self._streams is None:
                self._streams = await asyncio.open_connection(sock=self._sock, limit=_ANSWER_BYTES_MAX)
            reader, writer = self._streams
            writer.write(json.dumps({"ask": question, **more}).encode() + b"\n")
            line = await wait_for(reader.readline(), _ANSWER_S_MAX)
        if not line:
            raise NetworkError("The embedded server has stopped. Start it again with 'fluss server --ui'.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def figures(self) -> dict[str, Any] | None:
        """The figures of the server now; None if there is no way to learn them."""
        if self._sock is not None:
            return await self.ask("figures")
        if self._url is None:
            return None
        return {"metrics": await asyncio.to_thread(_fetch, self._url)}


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S_MAX) as answer:
            text: bytes = answer.read(_ANSWER_BYTES_MAX)
            return text.decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise NetworkError(f"Cannot read the metrics page {url}: {error}. Check --metrics-url.") from None


def parse_metrics(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The series of a Prometheus page, by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in text.splitlines():
        match = _SERIES.match(line) if line and line[0] != "#" else None
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = tuple((name, _unescape(label)) for name, label in _LABEL.findall(match["labels"] or ""))
        found.setdefault(match["name"], {})[labels] = value
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)
