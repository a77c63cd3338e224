# SPDX-License-Identifier: Apache-2.0
"""Clients: what a row costs when one or many processes want the server at once. The work is shared among them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import Worker
from benchmarks.scale.study import Point, Study, client, memory_mb

BATCH_ROWS = 8_192
BATCHES = 1_024
LOOKUPS = 6_400
KEYS = 50_000


def measure(study: Study) -> Iterator[Point]:
    with study.server() as server, ExitStack() as stack:
        workers: list[Worker] = []
        for clients in study.points(1, 2, 4, 8, 16, 32, 64):
            workers += [stack.enter_context(client(server)) for _ in range(clients - len(workers))]
            if clients == 1:
                workers[0].call("create", table="keyed", primary_key=True, buckets=4)
                workers[0].call("upsert_rows", table="keyed", rows=KEYS)
            rows = BATCH_ROWS * BATCHES

            def write(workers: list[Worker] = workers) -> float:
                workers[0].call("create", table="scale", buckets=4)
                each = BATCHES // len(workers)
                return together(workers, "write_same", table="scale", batch_rows=BATCH_ROWS, batches=each)[0]

            def look(workers: list[Worker] = workers) -> tuple[float, float]:
                count = LOOKUPS // len(workers)
                whole, own = together(workers, "lookups", table="keyed", count=count, keys=KEYS)
                return whole, own

            write()  # a new client wakes up first
            looks = [look() for _ in range(study.repeats)]
            yield Point(
                clients,
                {
                    "append, ns a row": study.middle(write) / rows * 1e9,
                    "lookup, µs of the machine": statistics.median(whole for whole, _ in looks) / LOOKUPS * 1e6,
                    "lookup, µs a client waits (p50)": statistics.median(own for _, own in looks) * 1e6,
                    "memory of the server, MB": memory_mb(server),
                },
            )


def together(workers: list[Worker], op: str, **args: Any) -> tuple[float, float]:
    """Seconds until the last one is done, and the middle of what each measured itself."""
    began = time.perf_counter()
    for worker in workers:
        worker.send(op, **args)
    own = [worker.receive()["seconds"] for worker in workers]
    return time.perf_counter() - began, statistics.median(own)
