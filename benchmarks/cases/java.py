# SPDX-License-Identifier: Apache-2.0
"""The embedded server against Apache Fluss itself (Java), driven by the same client.

Both keep their defaults. Ours syncs to the disk before it acknowledges; the Java one leaves that to the system.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop import environment
from tests.interop.cluster import Process, RealCluster

from benchmarks.cases.pair import NO_COMPRESSION, Pair, fill, read
from benchmarks.harness import Bar, Result

LOOKUP, LOOKUP_MANY = "lookup against Java, one after another, p50", "lookup against Java, 1,000 keys in one call"
UPSERT_LARGE, READ_LARGE = "upsert against Java, of 5 M keys", "full read against Java, of 5 M keys"
BAR = Bar(1.0, 2.0)
BAR_OF_READS = Bar(0.5, 1.0)
"""Of a server without SCAN_KV the client reads snapshot and changelog, in columns. Where every row was written once, as
here, that is less work than a read of the rows by key; where rows were updated often, it is more."""
APPENDS_AS_OFTEN = 3
"""As other cases. The client's share of an append is large; the speed of a machine changes by a tenth from one second
to the next. It takes many appends to see the servers behind that."""


class JavaServer(RealCluster):
    """One tablet server, as the release starts it: no options of the JVM but the one its own script adds."""

    def __init__(self) -> None:
        super().__init__(tablets=1, options={"authorizer.enabled": "false"})

    def _jvm(self, name: str, path: str, heap_mb: int, main: str, *arguments: str) -> Process:
        command = [
            environment.java(), *environment.JAVA_OPENS,
            f"-Dlog4j.configurationFile={self.home / 'log4j2.properties'}", "-cp", path, main, *arguments,
        ]  # fmt: skip
        process = Process(name, command, self.home / f"{name}.log")
        self.processes.append(process)
        return process


def logs(pair: Pair) -> Iterator[Result]:
    """Appends of Arrow batches of 64 k rows, and scans of them."""
    count = pair.settings.rows(5_000_000)
    for label, properties in (("zstd", None), ("none", NO_COMPRESSION)):
        if pair.settings.wanted(name := f"append against Java, {label}"):
            work = fill("write_batches", properties=properties, rows=count)
            yield pair.rates(name, count, work, BAR, often=APPENDS_AS_OFTEN)
        if pair.settings.wanted(name := f"scan against Java, {label}"):
            for worker in (pair.ours, pair.peer):
                worker.call("create", table="read", properties=properties)
                worker.call("write_batches", table="read", rows=count)
            yield pair.rates(name, count, read("to_arrow", table="read"), BAR)


def unsynced(pair: Pair) -> Iterator[Result]:
    """Appends with what the Java server promises by default: an acknowledged row may still be in memory only."""
    count = pair.settings.rows(5_000_000)
    if pair.settings.wanted(name := "append against Java, none, both unsynced"):
        work = fill("write_batches", properties=NO_COMPRESSION, rows=count)
        yield pair.rates(name, count, work, BAR, often=APPENDS_AS_OFTEN)


def keyed(pair: Pair) -> Iterator[Result]:
    """Upserts of rows, and lookups among them."""
    keys = pair.settings.rows(200_000)
    if pair.settings.wanted(name := "upsert against Java"):
        yield pair.rates(name, keys, fill("upsert_rows", primary_key=True, rows=keys), BAR)
    if not pair.settings.wanted(LOOKUP, LOOKUP_MANY):
        return
    for worker in (pair.ours, pair.peer):
        worker.call("create", table="keyed", primary_key=True)
        worker.call("upsert_rows", table="keyed", rows=keys)
    yield pair.times(
        LOOKUP,
        200,
        read("lookups", table="keyed", count=200, keys=keys),
        BAR,
        turns=10,
    )
    count = 40_000
    # Not 64 users, who keep one Python client so busy that it makes no difference who answers.
    work = read("lookups_at_once", table="keyed", count=count, keys=keys, size=1_000)
    yield pair.rates(LOOKUP_MANY, count, work, BAR, scale=1e3, unit="k/s")


def scale(pair: Pair) -> Iterator[Result]:
    """The same where it is hardest: among five million keys, and in 256 buckets."""
    keys, changed = pair.settings.rows(5_000_000), pair.settings.rows(100_000)
    if pair.settings.wanted(UPSERT_LARGE, READ_LARGE):
        for worker in (pair.ours, pair.peer):
            worker.call("create", table="many", primary_key=True)
            worker.call("upsert_range", table="many", start=0, stop=keys)
    if pair.settings.wanted(UPSERT_LARGE):
        work = read("upsert_range", table="many", start=0, stop=changed)
        yield pair.rates(UPSERT_LARGE, changed, work, BAR)
    if pair.settings.wanted(READ_LARGE):
        yield pair.rates(READ_LARGE, keys, read("read_stored", table="many"), BAR_OF_READS)
    if pair.settings.wanted(name := "upsert against Java, 256 buckets"):
        rows = pair.settings.rows(200_000)
        for worker in (pair.ours, pair.peer):
            worker.call("create", table="spread", primary_key=True, buckets=256)
            worker.call("upsert_rows", table="spread", rows=rows)
        work = read("upsert_rows", table="spread", rows=rows)
        yield pair.rates(name, rows, work, BAR)
