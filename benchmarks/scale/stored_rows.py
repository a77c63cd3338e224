# SPDX-License-Identifier: Apache-2.0
"""Rows of a primary-key table: what a full read and a count of them cost, and for how long they hold up the server."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Worker
from benchmarks.scale.study import Point, Study, client, figure, free_port, memory_mb, seconds

BUCKETS = 4


def measure(study: Study) -> Iterator[Point]:
    there = 0
    port = free_port()
    with study.server({"metrics.prometheus.port": port}) as server:
        with client(server) as worker:
            worker.call("create", table="stored", primary_key=True, buckets=BUCKETS)
        for rows in study.points(10_000, 100_000, 1_000_000, 5_000_000):
            with client(server) as worker:
                worker.call("upsert_range", table="stored", start=there, stop=rows)
                there = rows
                costs = {
                    "full read after writing, ns a row": _read(study, worker, rows),
                    "count of all rows, ms": _count(study, worker, rows) * 1e3,
                    "memory of the server, MB": memory_mb(server),
                }
            server.stop()
            server.start()
            with client(server) as worker:
                costs["full read after a start, ns a row"] = _read(study, worker, rows)
                # Since the start, so that of these reads alone.
                costs["longest iteration of the event loop, ms"] = figure(port, "tabletserver_eventLoop_longestBusyMs")
            yield Point(rows, costs)


def _read(study: Study, worker: Worker, rows: int) -> float:
    def read() -> float:
        answer = worker.call("read_stored", table="stored")
        assert answer["result"] == rows, f"{answer['result']} rows were read, {rows} are there"
        return float(answer["seconds"])

    return study.middle(read) / rows * 1e9


def _count(study: Study, worker: Worker, rows: int) -> float:
    assert worker.call("count", table="stored")["result"] == rows
    return study.middle(lambda: seconds(worker, "count", table="stored"))
