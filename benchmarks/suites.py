# SPDX-License-Identifier: Apache-2.0
"""Which cases make up a suite, and the servers and clients they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.interop.environment import wheel_python

from benchmarks.cases import client_cold, client_lookup, client_process, client_read, client_write, java
from benchmarks.cases.encrypted import encrypted_cases
from benchmarks.cases.groups import group_cases
from benchmarks.cases.pair import Pair
from benchmarks.cases.replicated import replicated_cases
from benchmarks.cases.server import growth_cases, life_cases, raw_cases
from benchmarks.cases.start import start_cases
from benchmarks.harness import Result, Seat, Settings, Worker, free_python
from fluss.server.local import LocalServer

PEER_VERSION = "1.0.0"


@contextmanager
def worker(name: str, python: str, servers: str, ops: str = "client_ops") -> Iterator[Worker]:
    found = Worker(name, python, servers, ops)
    try:
        yield found
    finally:
        found.close()


def bench(settings: Settings) -> Iterator[Result]:
    """The client against the official one, the server against the limits of the machine, and tiering."""
    peer_python = str(wheel_python(PEER_VERSION))
    with (
        LocalServer() as server,
        worker("ours", free_python(), server.bootstrap_servers) as ours,
        worker(f"pyfluss {PEER_VERSION}", peer_python, server.bootstrap_servers) as peer,
    ):
        pair = Pair(settings, ours, peer)
        yield from client_write.rows(pair)
        yield from client_write.batches(pair)
        yield from client_read.scans(pair)
        yield from client_read.projection(pair)
        yield from client_read.polls(pair)
        yield from client_write.upserts(pair)
        yield from client_lookup.lookups(pair)
        yield from client_cold.cold(pair, free_python(), peer_python)
        yield from client_process.imports(pair, peer_python)
        yield from client_process.memory(pair, peer_python)
        # Processes with a past have memory in pieces, and pay for it: the limit is measured in new ones as well.
        with LocalServer() as new, worker("ours", free_python(), new.bootstrap_servers) as fresh:
            yield from raw_cases(settings, fresh)
        yield from growth_cases(settings, ours)
    yield from encrypted_cases(settings)
    yield from replicated_cases(settings)
    yield from group_cases(settings)
    yield from life_cases(settings)
    yield from start_cases(settings)
    if not settings.quick:
        from benchmarks.cases.spark_tiering import tiering

        yield from tiering(settings)


def server(settings: Settings) -> Iterator[Result]:
    """The embedded server against the Java one, driven by the same client."""
    cluster = java.JavaServer()
    with (
        LocalServer() as embedded,
        LocalServer(options={"log.commit.sync": "none"}) as loose,
        cluster,
        worker("client", free_python(), embedded.bootstrap_servers, "scale_ops") as client,
    ):
        ours, peer = Seat(client, "embedded", embedded.bootstrap_servers), Seat(client, "Java", cluster.plain)
        pair = Pair(settings, ours, peer, settings.warm_up_s, embedded.pid or 0, cluster.tablets[0].pid or 0)
        yield from java.logs(pair)
        unsynced = Seat(client, "embedded", loose.bootstrap_servers)
        yield from java.unsynced(replace(pair, ours=unsynced, our_server_pid=loose.pid or 0))
        yield from java.keyed(pair)
        yield from java.scale(pair)


def spark(settings: Settings) -> Iterator[Result]:
    """The Spark data source against Parquet and against Spark's own source."""
    from benchmarks.cases.spark_batch import batch
    from benchmarks.cases.spark_growth import growth
    from benchmarks.cases.spark_shapes import shapes
    from benchmarks.cases.spark_stream import micro_batch
    from benchmarks.cases.spark_tiering import tiering
    from benchmarks.cases.spark_wide import wide

    yield from batch(settings)
    yield from shapes(settings)
    yield from wide(settings)
    yield from micro_batch(settings)
    yield from tiering(settings)
    yield from growth(settings)


def front(settings: Settings) -> Iterator[Result]:
    """The high-level API and the command line against the full client, and SQL against DuckDB on Parquet."""
    from benchmarks.cases.command_line import command_line_cases
    from benchmarks.cases.front_door import front_cases
    from benchmarks.cases.front_sql import sql_cases

    yield from front_cases(settings)
    yield from sql_cases(settings)
    yield from command_line_cases(settings)


SUITES: dict[str, Callable[[Settings], Iterator[Result]]] = {
    "bench": bench,
    "server": server,
    "spark": spark,
    "front": front,
}
