# SPDX-License-Identifier: Apache-2.0
"""Reading, with our client and with the official one, from the same embedded server."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.pair import NO_COMPRESSION, Pair, read
from benchmarks.harness import Bar, Result


def scans(pair: Pair) -> Iterator[Result]:
    """A whole table as one Arrow table."""
    count = pair.settings.rows(5_000_000)
    for label, properties in (("zstd", None), ("none", NO_COMPRESSION)):
        if pair.settings.wanted(name := f"to_arrow, {label}"):
            pair.ours.call("create", table="read", properties=properties)
            pair.ours.call("write_batches", table="read", rows=count)
            yield pair.rates(name, count, read("to_arrow", table="read"), Bar(1.0, 2.0))


def projection(pair: Pair) -> Iterator[Result]:
    # Of 200 columns a batch holds 1,300 rows: a reader of Arrow for each, 11 of 50 microseconds, is what we lose by.
    for columns, rows, minimum in ((10, 1_000_000, 1.0), (200, 500_000, 0.65)):
        if not pair.settings.wanted(name := f"to_arrow, 1 of {columns} columns"):
            continue
        count = pair.settings.rows(rows)
        pair.ours.call("create", table="wide", columns=columns)
        pair.ours.call("write_wide", table="wide", rows=count, columns=columns)
        work = read("to_arrow", table="wide", columns=["c4"])
        yield pair.rates(name, count, work, Bar(minimum, 2.0), turns=5)  # they are short
        pair.ours.call("drop", table="wide")


def polls(pair: Pair) -> Iterator[Result]:
    """Record by record."""
    if not pair.settings.wanted(name := "poll, reading .row of each"):
        return
    count = pair.settings.rows(500_000)
    pair.ours.call("create", table="polled")
    pair.ours.call("write_batches", table="polled", rows=count)
    work = read("poll_rows", table="polled", rows=count)
    yield pair.rates(name, count, work, Bar(1.0, 2.0))
