# SPDX-License-Identifier: Apache-2.0
"""Tables: what one costs when there are few or many."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.scale.study import Point, Study, client, memory_mb, seconds


def measure(study: Study) -> Iterator[Point]:
    there = 0
    with study.server() as server:
        empty_mb = memory_mb(server)
        for tables in study.points(1, 10, 100, 1_000):
            with client(server) as worker:
                worker.call("create", table="warm")
                worker.call("append_flush", table="warm", rows=1, flushes=1)
                costs = {
                    "create, ms a table": seconds(worker, "create_many", start=there, stop=tables) / (tables - there)
                }
                costs["first row of each, ms a table"] = seconds(worker, "write_each", count=tables) / tables
                costs["another row of each, ms a table"] = seconds(worker, "write_each", count=tables) / tables
                costs["list of tables, ms a table"] = seconds(worker, "list_tables", times=5) / tables
            costs = {name: value * 1e3 for name, value in costs.items()}
            there = tables
            costs["memory of the server, MB a table"] = max(0.001, memory_mb(server) - empty_mb) / tables
            costs["start of the server, ms"] = study.restart_ms(server)
            yield Point(tables, costs)
