# SPDX-License-Identifier: Apache-2.0
"""What a continuous backup costs: the same writes to a server that copies them to a folder every second, and to one
that does not."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.harness import Bar, Result, Seat, Settings, Worker, alternate, free_python, ratio_of
from fluss import LocalServer

_BAR = Bar(0.9, 0.95)


def replicated_cases(settings: Settings) -> Iterator[Result]:
    """Appends of Arrow batches, and upserts of rows."""
    if not settings.wanted("append with a backup against none", "upsert with a backup against none"):
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        options = {"replication.url": folder, "replication.interval": "1 s", "replication.retention": "10 s"}
        copied = stack.enter_context(LocalServer(options=options))
        plain = stack.enter_context(LocalServer())
        client = Worker("client", free_python(), plain.bootstrap_servers)
        stack.callback(client.close)
        ours, peer = Seat(client, "backup", copied.bootstrap_servers), Seat(client, "plain", plain.bootstrap_servers)
        for name, op, rows, key in (
            ("append", "write_batches", settings.rows(10_000_000), False),
            ("upsert", "upsert_rows", settings.rows(500_000), True),
        ):

            def rate(side: Seat, op: str = op, rows: int = rows, key: bool = key) -> Callable[[], float]:
                def run() -> float:
                    side.call("create", table="t", primary_key=key)
                    return rows / float(side.call(op, table="t", rows=rows)["seconds"]) / 1e6

                return run

            pair = alternate(rate(ours), rate(peer), settings.repeats, rounds=settings.rounds)
            yield Result(f"{name} with a backup against none", *pair, "M rows/s", ratio_of(*pair), _BAR)
