# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.threads import in_thread

from fluss.client.metrics import NAMES, Metrics, PrometheusCollector
from fluss.errors import MissingDependencyError


class Part:
    def __init__(self, value):
        self.value = value

    def read(self):
        return self.value


class Source:
    def __init__(self):
        self.numbers = Metrics()

    def metrics(self):
        return self.numbers.snapshot()


def test_threads_count_together():
    metrics = Metrics()
    metrics.add("requests_total", 2)
    metrics.highest("request_time_ms_max", 5)

    def count():
        metrics.add("requests_total", 3)
        metrics.highest("request_time_ms_max", 4)

    with in_thread(count):
        pass
    snapshot = metrics.snapshot()
    assert snapshot["requests_total"] == 5
    assert snapshot["request_time_ms_max"] == 5, "the longest of all, not their sum"


def test_snapshot_has_every_name_and_sums_gauges():
    metrics = Metrics()
    metrics.add("requests_total")
    metrics.add("requests_total", 2)
    metrics.highest("request_time_ms_max", 5)
    metrics.highest("request_time_ms_max", 3)
    parts = [Part(1), Part(10)]
    for part in parts:
        metrics.gauge("lookups_pending", part.read)
    snapshot = metrics.snapshot()
    assert set(snapshot) == set(NAMES)
    assert snapshot["requests_total"] == 3
    assert snapshot["request_time_ms_max"] == 5
    assert snapshot["lookups_pending"] == 11
    del parts[0], part
    gc.collect()
    assert metrics.snapshot()["lookups_pending"] == 10


def test_what_is_gone_is_forgotten_without_a_snapshot():
    metrics, kept = Metrics(), [Part(1), Part(2)]
    for part in kept:
        metrics.gauge("lookups_pending", part.read)
    for _ in range(1_000):
        metrics.gauge("lookups_pending", Part(1).read)
    assert len(metrics._gauges["lookups_pending"]) < 10
    assert metrics.snapshot()["lookups_pending"] == 3


def test_unknown_names_are_refused():
    with pytest.raises(KeyError):
        Metrics().add("no_such_metric")
    with pytest.raises(KeyError):
        Metrics().gauge("no_such_metric", Part(1).read)


def test_prometheus_collector():
    source, registry = Source(), CollectorRegistry()
    source.numbers.add("lookups_total", 4)
    PrometheusCollector(source, registry=registry, labels={"app": "x"})
    text = generate_latest(registry).decode()
    assert 'fluss_client_lookups_total{app="x"} 4.0' in text
    assert "# TYPE fluss_client_connections_open gauge" in text
    assert "# TYPE fluss_client_lookups_total counter" in text


def test_missing_prometheus_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(MissingDependencyError, match=r"fluss-python\[metrics\]"):
        PrometheusCollector(Source())
