# SPDX-License-Identifier: Apache-2.0
"""Client metrics: a plain dict of numbers, and the same numbers as a prometheus collector."""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fluss._lazy import import_extra

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

NAMES: dict[str, str] = {
    "connections_opened_total": "Connections opened to servers",
    "connections_failed_total": "Connections that could not be opened",
    "connections_open": "Connections open now",
    "metadata_refreshes_total": "Metadata requests sent",
    "requests_total": "Requests sent by admin calls, lookups, writers and scanners",
    "request_errors_total": "Requests that failed",
    "request_time_ms_sum": "Time spent waiting for responses, in milliseconds",
    "request_time_ms_max": "Longest wait for one response, in milliseconds",
    "retries_total": "Requests tried again after an error",
    "lookups_total": "Keys looked up",
    "lookup_batches_total": "Lookup requests sent (keys travel together)",
    "lookups_pending": "Keys waiting for their answer now",
    "writer_rows_total": "Rows handed to writers",
    "writer_batches_total": "Batches acknowledged by servers",
    "writer_bytes_total": "Bytes of batches acknowledged by servers",
    "writer_errors_total": "Batches that failed for good",
    "writer_buffer_bytes": "Bytes buffered by writers now",
    "scanner_rows_total": "Rows handed out by scanners",
    "scanner_bytes_total": "Bytes fetched by scanners",
    "scanner_fetches_total": "Fetch requests sent by scanners",
    "scanner_buffer_bytes": "Bytes prefetched by scanners now",
}
"""Every metric with its meaning. `*_total` and `*_sum` only grow; the others are values of this moment."""


class Metrics:
    """Numbers of one connection. Counters may be written by any thread; gauges are read when asked for."""

    def __init__(self) -> None:
        # Each thread counts for itself: to add to a number is to read it and to write it, and between the two another
        # thread may run.
        self._by_thread: dict[int, dict[str, float]] = {}
        self._gauges: dict[str, list[weakref.WeakMethod[Callable[[], float]]]] = {}

    def _values(self) -> dict[str, float]:
        thread = get_ident()
        values = self._by_thread.get(thread)
        if values is None:
            values = self._by_thread[thread] = dict.fromkeys(NAMES, 0)
        return values

    def add(self, name: str, amount: float = 1) -> None:
        self._values()[name] += amount

    def highest(self, name: str, value: float) -> None:
        values = self._values()
        if value > values[name]:
            values[name] = value

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Add the number that the bound method `read` gives to `name` whenever a snapshot is taken.

        The method is held weakly: a writer or scanner that is gone no longer counts.
        """
        if name not in NAMES:
            raise KeyError(name)
        reads = self._gauges.setdefault(name, [])
        reads.append(weakref.WeakMethod(read))
        if len(reads) & (len(reads) - 1) == 0:  # now and then, for those who never take a snapshot
            self._alive(reads)

    @staticmethod
    def _alive(reads: list[weakref.WeakMethod[Callable[[], float]]]) -> list[Callable[[], float]]:
        """Drop the methods of what is gone, and return the others."""
        alive = [(reference, read) for reference in reads if (read := reference()) is not None]
        reads[:] = [reference for reference, _ in alive]
        return [read for _, read in alive]

    def snapshot(self) -> dict[str, float]:
        result: dict[str, float] = dict.fromkeys(NAMES, 0)
        for values in list(self._by_thread.values()):
            for name, value in values.items():
                result[name] = max(result[name], value) if name.endswith("_max") else result[name] + value
        for name, reads in list(self._gauges.items()):
            for read in self._alive(reads):
                result[name] += read()
        return result


class NoMetrics(Metrics):
    """Count nothing, for clients with `metrics.enabled` false: a snapshot has zeros."""

    def add(self, name: str, amount: float = 1) -> None:
        pass

    def highest(self, name: str, value: float) -> None:
        pass

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        pass


class HasMetrics(Protocol):
    """Anything that gives a snapshot: a connection of `fluss` or of `fluss.aio`."""

    def metrics(self) -> Mapping[str, float]: ...


class PrometheusCollector:
    """Gives a connection's metrics to prometheus: `PrometheusCollector(conn, registry=…)`.

    Needs the package `prometheus-client`. Labels, if given, are put on every sample, and so is the option `client.id`.
    """

    def __init__(
        self,
        connection: HasMetrics,
        *,
        registry: CollectorRegistry | None = None,
        prefix: str = "fluss_client_",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        core = import_extra("prometheus_client.core", "PrometheusCollector needs prometheus-client", "metrics")
        self._core = core
        self._connection = connection
        self._prefix = prefix
        client_id = getattr(connection, "client_id", "")
        self._labels = {**({"client_id": client_id} if client_id else {}), **(labels or {})}
        (registry if registry is not None else core.REGISTRY).register(self)

    def collect(self) -> Iterable[Any]:
        names, values = list(self._labels), list(self._labels.values())
        for name, value in self._connection.metrics().items():
            is_counter = name.endswith(("_total", "_sum"))
            make = self._core.CounterMetricFamily if is_counter else self._core.GaugeMetricFamily
            family: Any = make(self._prefix + name, NAMES[name], labels=names)
            family.add_metric(values, value)
            yield family
