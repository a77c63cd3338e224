# SPDX-License-Identifier: Apache-2.0
"""Counters and gauges, under the names an Apache Fluss server reports, as Prometheus text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import lru_cache
from time import monotonic
from typing import Any

from fluss.errors import ErrorCode
from fluss.protocol.apis import FETCH_LOG, GET_METADATA, api_name
from fluss.server.distribution import Distribution
from fluss.server.metric_names import METRICS, full_name

_EXPECTED_CODES = frozenset(
    {
        0,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION,
    }
)

_SLICE_SECONDS_MAX = 0.005

Labels = tuple[tuple[str, str], ...]
Gauge = Callable[[], float]


_REQUEST_NAMES = {FETCH_LOG.key: "fetchLogClient", GET_METADATA.key: "metadata"}
"""Requests whose name in Apache Fluss's metrics is not the one of the protocol."""


def _request_name(api_key: int) -> str:
    head, *tail = api_name(api_key).lower().split("_")
    return _REQUEST_NAMES.get(api_key) or head + "".join(part.capitalize() for part in tail)


class _Requests:
    """Figures of the requests of one API."""

    __slots__ = ("labels", "latencies", "sizes")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.latencies = Distribution.of_latencies()
        self.sizes = Distribution.of_sizes()


class ServerMetrics:
    """All figures of one server. Counters only grow; rates are left to the system that scrapes them."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = {}
        self._gauges: dict[str, Gauge] = {}
        self._series: dict[str, Callable[[], Iterable[tuple[Labels, float]]]] = {}
        self._requests: dict[int, _Requests] = {}
        self._histograms: dict[str, Distribution] = {}
        self.before_page: list[Callable[[], Awaitable[None]]] = []
        """Called before the page is put together: figures that must be waited for are read here."""

    def add(self, name: str, amount: float = 1, labels: Labels = ()) -> None:
        try:
            self._counters[name][labels] += amount
        except KeyError:  # the first amount under this name and these labels
            self._counters.setdefault(name, {})[labels] = amount

    def gauge(self, name: str, read: Gauge) -> None:
        """A figure that is read when it is asked for."""
        self._gauges[name] = read

    def series(self, name: str, read: Callable[[], Iterable[tuple[Labels, float]]]) -> None:
        """Figures with labels that are read when they are asked for."""
        self._series[name] = read

    def histogram(self, name: str, values: Distribution) -> None:
        """Figures that their owner distributes."""
        self._histograms[name] = values

    def request(self, api_key: int, *, seconds: float, size_bytes: int, error_code: int) -> None:
        requests = self._requests.get(api_key)
        if requests is None:
            if len(self._requests) >= 256:  # keys come from the network: do not let them grow the table
                api_key = -1
            requests = self._requests.setdefault(api_key, _Requests((("request", _request_name(api_key)),)))
        requests.latencies.add_seconds(seconds)
        requests.sizes.add_bytes(size_bytes)
        if error_code not in _EXPECTED_CODES:
            self.add("tabletserver_request_errors_total", 1, requests.labels)

    def latencies(self) -> dict[str, dict[str, Any]]:
        """Per request: how many there were since the start, and how many in each slot of time; see `percentile_ms`."""
        return {
            labels[0][1]: {"count": requests.latencies.count, "slots": list(requests.latencies.slots)}
            for requests in self._requests.values()
            for labels in [requests.labels]
        }

    def remove_table(self, database: str, table: str) -> None:
        """Drop the series of a table that is gone."""
        gone = {("database", database), ("table", table)}
        for series in self._counters.values():
            for labels in [labels for labels in series if gone <= set(labels)]:
                del series[labels]

    def parts(self) -> Iterator[str]:
        """The figures in Prometheus' text form, one metric after the other. Counts may change between two of them."""
        for name, read in sorted(self._gauges.items()):
            yield _series(name, "gauge", [((), read())])
        for name, read_all in sorted(self._series.items()):
            yield _series(name, "gauge", read_all())
        for name in sorted(self._counters):
            yield _series(name, "counter", sorted(self._counters[name].items()))
        for name, values in sorted(self._histograms.items()):
            yield _histogram(name, [((), values)])
        requests = list(self._requests.values())
        latencies = [(one.labels, one.latencies) for one in requests]
        sizes = [(one.labels, one.sizes) for one in requests]
        for name, figures in (
            ("tabletserver_request_requests_total", [(labels, times.count) for labels, times in latencies]),
            ("tabletserver_request_totalTimeMs_total", [(labels, times.total) for labels, times in latencies]),
            ("tabletserver_request_requestBytes_total", [(labels, values.total) for labels, values in sizes]),
        ):
            yield _series(name, "counter", figures)
        yield _histogram("tabletserver_request_totalTimeMs", latencies)
        yield _histogram("tabletserver_request_requestBytes", sizes)

    def text(self) -> str:
        return "".join(self.parts())

    async def text_in_slices(self) -> str:
        """The same, while others are served: the figures of 300 tables take 30 ms."""
        parts: list[str] = []
        begun = monotonic()
        for part in self.parts():
            parts.append(part)
            if monotonic() - begun > _SLICE_SECONDS_MAX:
                await asyncio.sleep(0)
                begun = monotonic()
        return "".join(parts)


def _series(name: str, kind: str, figures: Iterable[tuple[Labels, float]]) -> str:
    full = full_name(name)
    return _head(name, kind) + "".join([f"{full}{_shown(labels)} {amount:.15g}\n" for labels, amount in figures])


def _histogram(name: str, distributions: list[tuple[Labels, Distribution]]) -> str:
    """A histogram whose bounds double."""
    full = full_name(name)
    lines = [_head(name, "histogram")]
    for labels, values in distributions:
        for bound, below in values.cumulative():
            lines.append(f"{full}_bucket{_shown((*labels, ('le', f'{bound:g}')))} {below}\n")
        lines.append(f"{full}_bucket{_shown((*labels, ('le', '+Inf')))} {values.count}\n")
        lines.append(f"{full}_sum{_shown(labels)} {values.total:.15g}\n")
        lines.append(f"{full}_count{_shown(labels)} {values.count}\n")
    return "".join(lines)


def _head(name: str, kind: str) -> str:
    """What comes before the series of a metric: its meaning and its kind."""
    full, known = full_name(name), METRICS.get(name)
    if known is None:
        return f"# TYPE {full} {kind}\n"
    return f"# HELP {full} {known.help}\n# TYPE {full} {known.kind}\n"


@lru_cache(maxsize=4096)  # many series of a table or a bucket have the same ones
def _shown(labels: Labels) -> str:
    text = ",".join(f'{key}="{_escape(value)}"' for key, value in labels)
    return f"{{{text}}}" if text else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
