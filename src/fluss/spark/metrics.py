# SPDX-License-Identifier: Apache-2.0
"""The lag of streams for Prometheus: a listener of Spark that keeps gauges up to date."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from fluss.errors import MissingDependencyError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_LABELS = ("query", "source", "bucket")


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Exports the progress of queries that read Fluss tables as Prometheus gauges.

    `fluss_spark_lag_rows` and `fluss_spark_lag_seconds` have the labels query, source (its number in the query) and
    bucket; `fluss_spark_input_rows_per_second` and `fluss_spark_batch_seconds` have the label query. A query is called
    by its name, or by its id. Needs `prometheus-client`.

    Example:
        prometheus_client.start_http_server(9464, addr="127.0.0.1")
        spark.streams.addListener(fluss.spark.LagListener())
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            import prometheus_client as p
        except ImportError:
            raise MissingDependencyError(
                "LagListener needs prometheus-client; run: pip install prometheus-client"
            ) from None
        to = p.REGISTRY if registry is None else registry
        self._rows = p.Gauge("fluss_spark_lag_rows", "Rows of a bucket not planned yet", _LABELS, registry=to)
        self._seconds = p.Gauge("fluss_spark_lag_seconds", "Age of the first such row", _LABELS, registry=to)
        self._rate = p.Gauge("fluss_spark_input_rows_per_second", "Rows read per second", ["query"], registry=to)
        self._batch = p.Gauge("fluss_spark_batch_seconds", "Duration of the last micro-batch", ["query"], registry=to)
        self._names: dict[str, str] = {}
        self._known: dict[str, set[tuple[str, str]]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        name = progress.name or str(progress.id)
        lags = {
            (str(number), bucket): one
            for number, source in enumerate(progress.sources)
            for bucket, one in lag_in(source.latestOffset).items()
        }
        if not lags:
            return
        self._names[str(progress.id)] = name
        self._rate.labels(name).set(progress.processedRowsPerSecond)
        self._batch.labels(name).set(progress.batchDuration / 1000)
        for (source, bucket), one in lags.items():
            self._rows.labels(name, source, bucket).set(one["rows"])
            if "ms" in one:
                self._seconds.labels(name, source, bucket).set(one["ms"] / 1000)
        self._remove_gauges(name, self._known.get(name, set()) - set(lags))
        self._known[name] = set(lags)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing new came: the gauges stay as they are."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        name = self._names.pop(str(event.id), None)
        known = self._known.pop(name, None) if name is not None else None
        if name is None or known is None:
            return
        self._remove_gauges(name, known)
        for gauge in (self._rate, self._batch):
            gauge.remove(name)

    def _remove_gauges(self, name: str, gone: set[tuple[str, str]]) -> None:
        for source, bucket in gone:
            self._rows.remove(name, source, bucket)
            if (name, source, bucket) in self._seconds._metrics:
                self._seconds.remove(name, source, bucket)


def lag_in(latest_offset: str | None) -> dict[str, dict[str, int]]:
    """The lag by bucket in the progress of a source; empty for sources other than Fluss."""
    try:
        document = json.loads(latest_offset or "null")
    except ValueError:
        return {}
    found = document.get("lag") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}
