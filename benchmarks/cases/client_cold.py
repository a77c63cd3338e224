# SPDX-License-Identifier: Apache-2.0
"""The first operation of a process, with our client and with the official one: a fresh process for each figure.

Most scripts, jobs and Spark tasks do one thing and end; what a warm process reaches says nothing about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.cases.pair import NO_COMPRESSION, Equal, Pair
from benchmarks.harness import Bar, Result, Worker, alternate, ratio_of

CONNECT_S_MAX = 0.1


def cold(pair: Pair, own_python: str, peer_python: str) -> Iterator[Result]:
    """Append, upsert, scan, poll, connect and concurrent lookups of processes that have done nothing before."""
    found = _Cold(pair, own_python, peer_python)
    yield from found.writes()
    yield from found.reads()
    yield from found.lookups()
    yield from found.connects()


class _Cold:
    def __init__(self, pair: Pair, own_python: str, peer_python: str) -> None:
        self._settings = pair.settings
        self._helper = pair.ours
        self._pythons = {"ours": own_python, "peer": peer_python}

    def _first(self, side: str, op: str, **args: Any) -> dict[str, Any]:
        """Run one operation in a process of its own."""
        worker = Worker(f"cold {side}", self._pythons[side], self._helper.servers, "cold_ops")
        try:
            return worker.call(op, **args) if op != "connect" else worker.connected
        finally:
            worker.close()

    def _rates(
        self, name: str, count: int, target: float, op: str, create: dict[str, Any] | None = None, **args: Any
    ) -> Result:
        equal = Equal()

        def rate(side: str) -> float:
            if create is not None:
                self._helper.call("create", **create)
            answer = self._first(side, op, **args)
            equal.check(self._helper, answer["result"])
            return count / float(answer["seconds"]) / 1e6

        figures = alternate(lambda: rate("ours"), lambda: rate("peer"), self._settings.repeats)
        return Result(name, *figures, "M rows/s", ratio_of(*figures), Bar(1.0, target))

    def writes(self) -> Iterator[Result]:
        if self._settings.wanted(name := "cold append"):
            rows = self._settings.rows(500_000)
            yield self._rates(name, rows, 1.3, "cold_append", {"table": "cold"}, table="cold", rows=rows)
        if self._settings.wanted("cold upsert"):
            rows = self._settings.rows(200_000)
            create = {"table": "cold", "primary_key": True}
            yield self._rates("cold upsert", rows, 1.2, "cold_upsert", create, table="cold", rows=rows)

    def reads(self) -> Iterator[Result]:
        rows = self._settings.rows(5_000_000)
        for label, properties in (("zstd", None), ("none", NO_COMPRESSION)):
            if self._settings.wanted(f"cold to_arrow, {label}"):
                self._helper.call("create", table="cold", properties=properties)
                self._helper.call("write_batches", table="cold", rows=rows)
                yield self._rates(f"cold to_arrow, {label}", rows, 1.5, "cold_to_arrow", table="cold")
        rows = self._settings.rows(500_000)
        if self._settings.wanted("cold poll"):
            self._helper.call("create", table="cold")
            self._helper.call("append_rows", table="cold", rows=rows)
            yield self._rates("cold poll", rows, 1.3, "cold_poll", table="cold", rows=rows)

    def lookups(self) -> Iterator[Result]:
        """A lookuper for each of 64 tasks, against one for all of them: both sides are ours."""
        if not self._settings.wanted(name := "cold lookups, a lookuper for each task"):
            return
        keys, count = self._settings.rows(200_000), 19_200
        self._helper.call("create", table="cold", primary_key=True)
        self._helper.call("upsert_rows", table="cold", rows=keys)

        def thousands(lookupers: int) -> float:
            asked = {"table": "cold", "count": count, "keys": keys, "lookupers": lookupers}
            return count / float(self._first("ours", "cold_lookups", **asked)["seconds"]) / 1e3

        figures = alternate(lambda: thousands(64), lambda: thousands(1), self._settings.repeats)
        yield Result(name, *figures, "k/s", ratio_of(*figures), Bar(0.9, 1.0))

    def connects(self) -> Iterator[Result]:
        """What a connection takes after `import fluss`, in seconds of the processor: the rest is waiting."""
        if self._settings.wanted("cold connect"):
            figures = alternate(
                lambda: self._connect_s("ours"), lambda: self._connect_s("peer"), self._settings.repeats
            )
            yield Result("cold connect", *figures, "s", None, Bar(CONNECT_S_MAX, 0.05, "s", higher=False))

    def _connect_s(self, side: str) -> float:
        return float(self._first(side, "connect")["cpu"])
