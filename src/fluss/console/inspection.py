# SPDX-License-Identifier: Apache-2.0
"""What the console learns about the server beyond its protocol, and its figures of the last minutes.

The source is the embedded server, or the Prometheus page of another one. Samples are taken once for all browsers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections import deque
from time import monotonic, time
from typing import Any

from fluss.errors import FlussError, InvalidArgumentError, NetworkError
from fluss.net.deadline import wait_for
from fluss.net.eager import cancel
from fluss.server.distribution import percentile_ms
from fluss.tools.status import parse_metrics

_ANSWER_BYTES_MAX = 32 * 1024 * 1024
_ANSWER_S_MAX = 10.0


class Inspection:
    """Asks the embedded server over the socket it gave to the console, or reads the Prometheus page of another one."""

    def __init__(self, sock: socket.socket | None = None, metrics_url: str | None = None) -> None:
        self._sock = sock
        self._url = metrics_url
        self._lock = asyncio.Lock()
        self._asked = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def embedded(self) -> bool:
        """Whether the server was started together with the console."""
        return self._sock is not None

    @property
    def has_figures(self) -> bool:
        """Whether there is a way to learn the figures of the server."""
        return self._sock is not None or self._url is not None

    async def ask(self, question: str, **more: Any) -> dict[str, Any]:
        """Ask the embedded server."""
        if self._sock is None:
            raise InvalidArgumentError(
                "Only a server that was started with 'fluss server --ui' reports its clients, users and log to the "
                "console. Other servers have no API for it."
            )
        async with self._lock:  # one question at a time: answers come in order
            if self._streams is None:
                self._streams = await asyncio.open_connection(sock=self._sock, limit=_ANSWER_BYTES_MAX)
            reader, writer = self._streams
            self._asked += 1
            writer.write(json.dumps({"ask": question, "id": self._asked, **more}).encode() + b"\n")
            try:
                return await wait_for(self._answer(reader, self._asked), _ANSWER_S_MAX)
            except asyncio.TimeoutError:
                raise NetworkError(f"The embedded server does not answer within {_ANSWER_S_MAX:.0f} s.") from None

    async def _answer(self, reader: asyncio.StreamReader, question_id: int) -> dict[str, Any]:
        """The answer to a question. Those to earlier ones come first if the console did not wait for them."""
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                answer: dict[str, Any] = json.loads(line)
                if answer.pop("id") == question_id:
                    return answer
        raise NetworkError("The embedded server has stopped. Start it again with 'fluss server --ui'.")

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


SAMPLE_S = 1.0
SAMPLES_MAX = 300
_TABLES_MAX = 50
_UNWATCHED_S = 30.0
"""Sampling ends when no browser has looked for so long."""

_RATES = {
    "bytes_in": "fluss_tabletserver_bytesIn_total",
    "bytes_out": "fluss_tabletserver_bytesOut_total",
    "requests": "fluss_tabletserver_request_requests_total",
    "errors": "fluss_tabletserver_request_errors_total",
    "flushes": "fluss_tabletserver_logFlush_total",
}
_GAUGES = {
    "connections": "fluss_tabletserver_openConnections",
    "tables": "fluss_coordinator_tableCount",
    "partitions": "fluss_coordinator_partitionCount",
    "buckets": "fluss_tabletserver_leaderCount",
    "offline_buckets": "fluss_coordinator_offlineBucketCount",
    "log_bytes": "fluss_tabletserver_logicalStorage_logSize",
    "kv_rows": "fluss_tabletserver_kvRowCount",
    "kv_bytes": "fluss_tabletserver_kvMemorySize",
    "loop_delay_ms": "fluss_tabletserver_eventLoop_longestDelayMs",
}

_BACKUP_GAUGES = {
    "backup_behind_s": "fluss_replication_behindSeconds",
    "backup_behind_bytes": "fluss_replication_behindBytes",
}
"""Of a server with a continuous backup."""


class Sampler:
    """Takes a sample each second while browsers look, and keeps those of the last minutes."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self._samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES_MAX)
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._watched_at = 0.0
        self._taken = asyncio.Condition()
        self._before: tuple[float, dict[str, float]] | None = None
        self._requests: dict[str, tuple[float, float]] = {}
        self._slots: dict[str, list[int]] = {}
        self._written: dict[str, float] = {}
        self.problem: str | None = None

    def watch(self) -> None:
        """Note that a browser looks: sampling goes on for a while."""
        self._watched_at = monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        await cancel(self._task)

    async def after(self, number: int) -> list[dict[str, Any]]:
        """The samples after one, or those there are at the start (0); waits for at most two seconds."""
        self.watch()
        if number >= self._number:
            with contextlib.suppress(asyncio.TimeoutError):
                async with self._taken:
                    await wait_for(self._taken.wait(), 2 * SAMPLE_S)
        return [sample for sample in self._samples if sample["number"] > number]

    async def _run(self) -> None:
        while monotonic() - self._watched_at < _UNWATCHED_S:
            try:
                figures = await self._inspection.figures()
                self.problem = None
            except FlussError as error:
                self.problem = error.message
                figures = None
            if figures is not None:
                self._take(figures)
            async with self._taken:
                self._taken.notify_all()
            await asyncio.sleep(SAMPLE_S)
        self._before = None

    def _take(self, figures: dict[str, Any]) -> None:
        now = monotonic()
        series = parse_metrics(figures.pop("metrics"))
        totals = {name: sum(series.get(key, {}).values()) for name, key in _RATES.items()}
        sample: dict[str, Any] = {name: sum(series.get(key, {}).values()) for name, key in _GAUGES.items()}
        latencies = figures.pop("latencies", {})
        sample |= {name: sum(series[key].values()) for name, key in _BACKUP_GAUGES.items() if key in series}
        sample |= {"time_ms": int(time() * 1000)} | figures
        written = {
            f"{names['database']}.{names['table']}": count
            for labels, count in series.get("fluss_tabletserver_table_messagesIn_total", {}).items()
            if {"database", "table"} <= (names := dict(labels)).keys()  # other servers may label it otherwise
        }
        if self._before is not None:
            seconds = max(now - self._before[0], 0.001)
            sample |= {f"{name}_per_s": (totals[name] - self._before[1][name]) / seconds for name in totals}
            sample["apis"] = self._by_request(series, latencies, seconds)
            rates = {name: (count - self._written.get(name, 0.0)) / seconds for name, count in written.items()}
            sample["rows_per_s"] = sum(rates.values())
            busiest = sorted((name for name in rates if rates[name] > 0), key=lambda name: -rates[name])
            sample["tables_per_s"] = {name: rates[name] for name in busiest[:_TABLES_MAX]}
        else:
            self._by_request(series, latencies, 1.0)
        self._before, self._written = (now, totals), written
        self._number += 1
        sample["number"] = self._number
        self._samples.append(sample)

    def _by_request(self, series: Any, latencies: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
        """Per request: rate, mean and percentiles since the last sample, or since the start where there were none."""
        counts = series.get("fluss_tabletserver_request_requests_total", {})
        times = series.get("fluss_tabletserver_request_totalTimeMs_total", {})
        found = []
        for labels, count in counts.items():
            name = dict(labels).get("request", "?")
            spent = times.get(labels, 0.0)
            count_before, spent_before = self._requests.get(name, (0.0, 0.0))
            self._requests[name] = (count, spent)
            slots = latencies.get(name, {}).get("slots", [])
            recent = [now - before for now, before in zip(slots, self._slots.get(name, [0] * len(slots)))]
            self._slots[name] = slots
            shown = recent if sum(recent) else slots
            new = count - count_before
            mean = (spent - spent_before) / new if new else (spent / count if count else 0.0)
            found.append(
                {
                    "request": name,
                    "total": count,
                    "per_s": new / seconds,
                    "mean_ms": mean,
                    "p50_ms": percentile_ms(shown, 0.5),
                    "p99_ms": percentile_ms(shown, 0.99),
                }
            )
        return sorted(found, key=lambda one: -float(one["total"]))
