# SPDX-License-Identifier: Apache-2.0
"""Writing, with our client and with the official one, on the same embedded server."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.pair import NO_COMPRESSION, Pair, fill
from benchmarks.harness import Bar, Result


def rows(pair: Pair) -> Iterator[Result]:
    """Rows one by one, then a flush."""
    count = pair.settings.rows(500_000)
    for kind in ("dict", "tuple"):
        if pair.settings.wanted(name := f"append {kind} rows"):
            work = fill("append_rows", rows=count, kind=kind, checker=pair.ours)
            yield pair.rates(name, count, work, Bar(1.5, 2.5))


def batches(pair: Pair) -> Iterator[Result]:
    """Arrow batches of 64 k rows, then a flush."""
    count = pair.settings.rows(5_000_000)
    for label, properties, target in (("zstd", None, 1.5), ("none", NO_COMPRESSION, 2.0)):
        if pair.settings.wanted(name := f"write arrow batches, {label}"):
            work = fill("write_batches", properties=properties, rows=count, checker=pair.ours)
            yield pair.rates(name, count, work, Bar(1.0, target))


def upserts(pair: Pair) -> Iterator[Result]:
    count = pair.settings.rows(200_000)
    if pair.settings.wanted(name := "upsert dict rows"):
        work = fill("upsert_rows", primary_key=True, rows=count, checker=pair.ours)
        yield pair.rates(name, count, work, Bar(1.0, 2.0))
