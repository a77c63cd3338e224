# SPDX-License-Identifier: Apache-2.0
"""Buckets in use: how many files a server has open for them, and what they take of its memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.scale.study import Point, Study, client, memory_mb

ROWS_PER_BUCKET = 20
"""Enough for every bucket to get some."""


def measure(study: Study) -> Iterator[Point]:
    for buckets in study.points(16, 256, 1_024, 4_096):
        with study.server() as server, client(server) as worker:
            worker.call("create", table="log", buckets=buckets)
            worker.call("create", table="keyed", buckets=buckets, primary_key=True)
            empty_mb = memory_mb(server)
            rows = buckets * ROWS_PER_BUCKET
            worker.call("append_flush", table="log", rows=rows, flushes=1)
            worker.call("upsert_range", table="keyed", start=0, stop=rows)
            costs = {
                "open files of the server": float(len(os.listdir(f"/proc/{server.pid}/fd"))),
                "memory of the server, kB a bucket": max(0.0, memory_mb(server) - empty_mb) * 1024 / (2 * buckets),
            }
        yield Point(2 * buckets, costs)
