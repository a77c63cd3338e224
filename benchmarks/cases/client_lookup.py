# SPDX-License-Identifier: Apache-2.0
"""Lookups, with our client and with the official one. The bars are absolute: the official client waits on purpose."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.pair import Pair
from benchmarks.harness import Bar, Client, Result, alternate

ONE, MANY = "lookup, one after another, p50", "lookup, 64 at a time"


def lookups(pair: Pair) -> Iterator[Result]:
    if not pair.settings.wanted(ONE, MANY):
        return
    keys = pair.settings.rows(200_000)
    pair.ours.call("create", table="keyed", primary_key=True)
    pair.ours.call("upsert_rows", table="keyed", rows=keys)

    def one_ms(worker: Client, count: int) -> float:
        return float(worker.call("lookups", table="keyed", count=count, keys=keys)["seconds"]) * 1e3

    # The official client takes a tenth of a second for each, so it is asked less often.
    found = alternate(lambda: one_ms(pair.ours, 500), lambda: one_ms(pair.peer, 5), pair.settings.repeats)
    yield Result(ONE, *found, "ms", None, Bar(1.0, 0.3, "ms", higher=False))

    def thousands(worker: Client, count: int, lookupers: int = 1) -> float:
        answer = worker.call("lookups_together", table="keyed", count=count, keys=keys, lookupers=lookupers)
        return count / float(answer["seconds"]) / 1e3

    found = alternate(lambda: thousands(pair.ours, 6_400), lambda: thousands(pair.peer, 640, 64), pair.settings.repeats)
    yield Result(MANY, *found, "k/s", None, Bar(10.0, 40.0, "k/s"))
