# SPDX-License-Identifier: Apache-2.0
"""One tablet server of the real cluster dies while our client writes and reads; replication factor 2.

Nothing that was acknowledged may be lost or doubled, and the client must find its way by itself.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.interop import peers
from tests.interop.cluster import RealCluster
from tests.interop.context import Mismatch, same
from tests.interop.peers import Peer, PeerError
from tests.interop.tables import BIGINT, INT, STRING, column, required, table

_BUCKETS = 4
_ROWS_PER_ROUND = 200
_ROUNDS = 24
_KILL_AT_ROUND = 8


def _ready(client: Peer, one: dict[str, Any]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            client.call("list_offsets", table=one, buckets=list(range(_BUCKETS)), spec="latest")
            return
        except PeerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def run(face: str, logs: Path) -> dict[str, float]:
    """Returns the longest pauses seen; raises when a row is lost, doubled or wrong."""
    # Two replicas, and a write counts when one of them is left: that is what lets the survivor go on alone.
    options = {"default.replication.factor": "2", "log.replica.min-in-sync-replicas-number": "1"}
    with RealCluster(options=options, keep_logs_in=logs) as cluster, peers.start(face, logs) as writer:
        assert isinstance(cluster, RealCluster)
        with peers.start(face, logs) as reader:
            writer.connect(cluster.plain)
            reader.connect(cluster.plain)
            return _run(cluster, writer, reader)


def _run(cluster: RealCluster, writer: Peer, reader: Peer) -> dict[str, float]:
    writer.call("create_database", db="failover")
    log = table("failover", "log", [column("id", INT), column("text", STRING)], buckets=_BUCKETS, bucket_keys=["id"])
    keyed = table("failover", "keyed", [column("id", required(INT)), column("n", BIGINT)], primary_key=["id"],
                  buckets=_BUCKETS)  # fmt: skip
    for one in (log, keyed):
        writer.call("create_table", table=one)
        _ready(writer, one)
    total = _ROUNDS * _ROWS_PER_ROUND
    # The reader follows the log from the start, all through the crash.
    reader.send("scan", table=log, buckets=list(range(_BUCKETS)), want=total, idle_ms=60_000)
    written: list[list[Any]] = []
    pause_s = 0.0
    for number in range(_ROUNDS):
        rows = [[number * _ROWS_PER_ROUND + k, f"row {number}-{k}"] for k in range(_ROWS_PER_ROUND)]
        started = time.monotonic()
        writer.send("append", table=log, rows=rows)
        if number == _KILL_AT_ROUND:
            # Some of these rows are in flight now, some are replicated, some are acknowledged.
            time.sleep(0.01)
            cluster.tablets[0].kill()
        writer.receive("append")
        writer.call("upsert", table=keyed, rows=[[k, number] for k in range(_ROWS_PER_ROUND)])
        pause_s = max(pause_s, time.monotonic() - started)
        written += rows
    followed = [record[4] for record in reader.receive("scan")]
    _all_once("rows followed through the crash", followed, written)
    again = writer.call("scan", table=log, buckets=list(range(_BUCKETS)), want=total)
    _all_once("rows in the log afterwards", [record[4] for record in again], written)
    found = writer.call("lookup", table=keyed, keys=[[k] for k in range(_ROWS_PER_ROUND)])
    same(found, [[k, _ROUNDS - 1] for k in range(_ROWS_PER_ROUND)], "rows by key afterwards")
    changes = writer.call("scan", table=keyed, buckets=list(range(_BUCKETS)), want=_ROWS_PER_ROUND * (2 * _ROUNDS - 1))
    kinds = Counter(record[3] for record in changes)
    wanted = {"+I": _ROWS_PER_ROUND, "-U": _ROWS_PER_ROUND * (_ROUNDS - 1), "+U": _ROWS_PER_ROUND * (_ROUNDS - 1)}
    same(dict(kinds), wanted, "kinds of changes")
    return {"longest pause of the writer, s": round(pause_s, 1)}


def _all_once(what: str, found: list[list[Any]], expected: list[list[Any]]) -> None:
    counts = Counter(row[0] for row in found)
    lost = [row[0] for row in expected if not counts[row[0]]]
    doubled = [key for key, count in counts.items() if count > 1]
    if lost or doubled:
        raise Mismatch(f"{what}: {len(lost)} lost {lost[:5]}, {len(doubled)} doubled {doubled[:5]}")
    same(sorted(found), sorted(expected), what)
