# SPDX-License-Identifier: Apache-2.0
"""The notes of exactly-once writers."""

from __future__ import annotations

import json

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.metadata import TablePath
from fluss.spark.ledger import Attempt, Delivery, Ledger, create_ledger


def test_notes_of_an_older_version_count_as_those_of_an_earlier_run(server: fluss.LocalServer) -> None:
    """They have the ends of the log alone; a stream that was upgraded half-way through a batch finds them."""
    path = TablePath("fluss", "old_ledger")
    with BlockingClient({"bootstrap.servers": server.bootstrap_servers}) as client:
        create_ledger(client, path)
        ledger = Ledger(client, path)
        client.run(ledger.begin(Delivery("q", 3, 0), 7, "run", {"0": 5}))
        with fluss.connect(server.bootstrap_servers) as db:
            old = {"query": "q", "batch": 3, "task": 1, "writer": 8, "state": json.dumps({"0": 4, "1": 9})}
            db.table("old_ledger").upsert([old])
        found = sorted(ledger.attempts("q", 3), key=lambda attempt: attempt.task)
        assert found == [Attempt(0, 7, "run", {"0": 5}), Attempt(1, 8, "", {"0": 4, "1": 9})]
        ledger.commit("q", 3)
        assert (ledger.committed("q"), ledger.attempts("q", 3)) == (3, [])
