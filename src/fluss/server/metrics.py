# SPDX-License-Identifier: Apache-2.0
"""Counters and gauges, under the names an Apache Fluss server reports, as Prometheus text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fluss.errors import ErrorCode
from fluss.protocol.apis import api_name

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


def _camel(api: str) -> str:
    head, *tail = api.lower().split("_")
    return head + "".join(part.capitalize() for part in tail)


class Metrics:
    """All figures of one server. Counters only grow; rates are left to whoever scrapes them."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = {}
        self._gauges: dict[str, Gauge] = {}
        self._request_labels: dict[int, Labels] = {}

    def add(self, name: str, amount: float = 1, labels: Labels = ()) -> None:
        series = self._counters.setdefault(name, {})
        series[labels] = series.get(labels, 0) + amount

    def gauge(self, name: str, read: Gauge) -> None:
        """A figure that is read when it is asked for."""
        self._gauges[name] = read

    def value(self, name: str, labels: Labels = ()) -> float:
        if name in self._gauges:
            return self._gauges[name]()
        return self._counters.get(name, {}).get(labels, 0)

    def request(self, api_key: int, *, seconds: float, size_bytes: int, error_code: int) -> None:
        labels = self._request_labels.get(api_key)
        if labels is None:
            if len(self._request_labels) >= 256:  # keys come from the network: do not let them grow the table
                api_key = -1
            labels = (("request", _camel(api_name(api_key))),)
            self._request_labels[api_key] = labels
        self.add("tabletserver_request_requests_total", 1, labels)
        self.add("tabletserver_request_totalTimeMs_total", seconds * 1000, labels)
        self.add("tabletserver_request_requestBytes_total", size_bytes, labels)
        if error_code not in _EXPECTED_CODES:
            self.add("tabletserver_request_errors_total", 1, labels)

    def forget_table(self, database: str, table: str) -> None:
        """Drop the series of a table that is gone."""
        gone = {("database", database), ("table", table)}
        for series in self._counters.values():
            for labels in [labels for labels in series if gone <= set(labels)]:
                del series[labels]

    def lines(self) -> Iterator[str]:
        """The figures in Prometheus' text form."""
        for name, read in sorted(self._gauges.items()):
            full = _metric_name(name)
            yield f"# TYPE {full} gauge\n{full} {read():.15g}\n"
        for name, series in sorted(self._counters.items()):
            full = _metric_name(name)
            yield f"# TYPE {full} counter\n"
            for labels, amount in sorted(series.items()):
                shown = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
                yield f"{full}{{{shown}}} {amount:.15g}\n" if shown else f"{full} {amount:.15g}\n"

    def text(self) -> str:
        return "".join(self.lines())


def _metric_name(name: str) -> str:
    return "fluss_" + re.sub(r"[^A-Za-z0-9_]", "_", name)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
