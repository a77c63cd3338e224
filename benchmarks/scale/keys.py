# SPDX-License-Identifier: Apache-2.0
"""Keys: what an upsert, a lookup and a start cost when a primary-key table has few or many."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Worker
from benchmarks.scale.study import Point, Study, client, memory_mb, seconds

CHANGED = 100_000


def measure(study: Study) -> Iterator[Point]:
    there = 0
    with study.server() as server:
        with client(server) as worker:
            worker.call("create", table="keyed", primary_key=True)
        for keys in study.points(1_000, 10_000, 100_000, 1_000_000, 5_000_000):
            with client(server) as worker:
                worker.call("upsert_range", table="keyed", start=0, stop=1)  # what is new has to wake up first
                fresh = seconds(worker, "upsert_range", table="keyed", start=there, stop=keys) / (keys - there)
                again = min(keys, CHANGED)
                # Others each time where there are others: what was changed last is in memory.
                starts = iter([number * again % keys for number in range(study.repeats)])

                def change(worker: Worker = worker, starts: Iterator[int] = starts, again: int = again) -> float:
                    start = next(starts)
                    return seconds(worker, "upsert_range", table="keyed", start=start, stop=start + again)

                changed = study.middle(change) / again
                single = seconds(worker, "lookups", table="keyed", count=1_000, keys=keys)
                many = seconds(worker, "lookups_together", table="keyed", count=6_400, keys=keys) / 6_400
            there = keys
            costs = {
                "upsert of new keys, ns a row": fresh * 1e9,
                "upsert of old keys, ns a row": changed * 1e9,
                "lookup, ns (p50)": single * 1e9,
                "lookup, 64 at a time, ns a row": many * 1e9,
                "memory of the server, MB": memory_mb(server),
            }
            costs["start, ms"] = study.restart_ms(server)
            yield Point(keys, costs)
