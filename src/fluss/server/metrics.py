# SPDX-License-Identifier: Apache-2.0
"""Counters and gauges, under the names an Apache Fluss server reports, as Prometheus text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fluss.errors import ErrorCode
from fluss.protocol.apis import api_name
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

Labels = tuple[tuple[str, str], ...]
Gauge = Callable[[], float]


_LATENCY_SLOTS = 64
"""One slot for each power of two of microseconds: counting a request costs 0.1 µs, an exact histogram several times
that."""
_BOUND_FIRST = 6
"""The first bound of the histogram is 64 µs: no request is answered much quicker."""


def percentile_ms(slots: Sequence[int], part: float) -> float | None:
    """The time within which a part of the requests was answered, at most twice too much; None without requests."""
    wanted = sum(slots) * part
    below = 0
    for slot, count in enumerate(slots):
        if count and below + count >= wanted:
            floor_us, width_us = (2.0 ** (slot - 1), 2.0 ** (slot - 1)) if slot else (0.0, 1.0)
            return (floor_us + width_us * (wanted - below) / count) / 1000
        below += count
    return None


def _camel(api: str) -> str:
    head, *tail = api.lower().split("_")
    return head + "".join(part.capitalize() for part in tail)


class _Requests:
    """Figures of the requests of one API."""

    __slots__ = ("count", "labels", "latencies", "milliseconds", "size_bytes")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.count = 0
        self.milliseconds = 0.0
        self.size_bytes = 0
        self.latencies = [0] * _LATENCY_SLOTS


class ServerMetrics:
    """All figures of one server. Counters only grow; rates are left to the system that scrapes them."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = {}
        self._gauges: dict[str, Gauge] = {}
        self._series: dict[str, Callable[[], Iterable[tuple[Labels, float]]]] = {}
        self._requests: dict[int, _Requests] = {}

    def add(self, name: str, amount: float = 1, labels: Labels = ()) -> None:
        series = self._counters.setdefault(name, {})
        series[labels] = series.get(labels, 0) + amount

    def gauge(self, name: str, read: Gauge) -> None:
        """A figure that is read when it is asked for."""
        self._gauges[name] = read

    def series(self, name: str, read: Callable[[], Iterable[tuple[Labels, float]]]) -> None:
        """Figures with labels that are read when they are asked for."""
        self._series[name] = read

    def value(self, name: str, labels: Labels = ()) -> float:
        if name in self._gauges:
            return self._gauges[name]()
        self._settle()
        return self._counters.get(name, {}).get(labels, 0)

    def request(self, api_key: int, *, seconds: float, size_bytes: int, error_code: int) -> None:
        requests = self._requests.get(api_key)
        if requests is None:
            if len(self._requests) >= 256:  # keys come from the network: do not let them grow the table
                api_key = -1
            requests = self._requests.setdefault(api_key, _Requests((("request", _camel(api_name(api_key))),)))
        requests.count += 1
        requests.milliseconds += seconds * 1000
        requests.size_bytes += size_bytes
        requests.latencies[int(seconds * 1e6).bit_length()] += 1
        if error_code not in _EXPECTED_CODES:
            self.add("tabletserver_request_errors_total", 1, requests.labels)

    def _settle(self) -> None:
        """Bring what is counted in the quick way to where it is read."""
        for requests in self._requests.values():
            for name, amount in (
                ("tabletserver_request_requests_total", requests.count),
                ("tabletserver_request_totalTimeMs_total", requests.milliseconds),
                ("tabletserver_request_requestBytes_total", requests.size_bytes),
            ):
                self._counters.setdefault(name, {})[requests.labels] = amount

    def latencies(self) -> dict[str, dict[str, Any]]:
        """Per request: how many there were since the start, and how many in each slot of time; see `percentile_ms`."""
        return {
            labels[0][1]: {"count": requests.count, "slots": list(requests.latencies)}
            for requests in self._requests.values()
            for labels in [requests.labels]
        }

    def forget_table(self, database: str, table: str) -> None:
        """Drop the series of a table that is gone."""
        gone = {("database", database), ("table", table)}
        for series in self._counters.values():
            for labels in [labels for labels in series if gone <= set(labels)]:
                del series[labels]

    def lines(self) -> Iterator[str]:
        """The figures in Prometheus' text form."""
        self._settle()
        for name, read in sorted(self._gauges.items()):
            yield f"{_head(name, 'gauge')}{full_name(name)} {read():.15g}\n"
        for name, read_all in sorted(self._series.items()):
            yield _head(name, "gauge")
            for labels, amount in read_all():
                yield f"{full_name(name)}{_shown(labels)} {amount:.15g}\n"
        for name, series in sorted(self._counters.items()):
            yield _head(name, "counter")
            for labels, amount in sorted(series.items()):
                yield f"{full_name(name)}{_shown(labels)} {amount:.15g}\n"
        yield from self._latency_lines()

    def _latency_lines(self) -> Iterator[str]:
        """The times of requests as a histogram whose bounds double."""
        name = "tabletserver_request_totalTimeMs"
        full = full_name(name)
        yield _head(name, "histogram")
        for requests in self._requests.values():
            below = 0
            last = max((slot for slot, count in enumerate(requests.latencies) if count), default=0)
            for slot in range(min(_BOUND_FIRST, last), last + 1):
                below = sum(requests.latencies[: slot + 1])
                bound = (("le", f"{2.0**slot / 1000:g}"),)
                yield f"{full}_bucket{_shown(requests.labels + bound)} {below}\n"
            yield f"{full}_bucket{_shown((*requests.labels, ('le', '+Inf')))} {requests.count}\n"
            yield f"{full}_sum{_shown(requests.labels)} {requests.milliseconds:.15g}\n"
            yield f"{full}_count{_shown(requests.labels)} {requests.count}\n"

    def text(self) -> str:
        return "".join(self.lines())


def _head(name: str, kind: str) -> str:
    """What comes before the series of a metric: its meaning and its kind."""
    full, known = full_name(name), METRICS.get(name)
    if known is None:
        return f"# TYPE {full} {kind}\n"
    return f"# HELP {full} {known.help}\n# TYPE {full} {known.kind}\n"


def _shown(labels: Labels) -> str:
    text = ",".join(f'{key}="{_escape(value)}"' for key, value in labels)
    return f"{{{text}}}" if text else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
