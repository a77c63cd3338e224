# SPDX-License-Identifier: Apache-2.0
"""Exactly-once appends to log tables: a ledger of which attempt wrote which rows.

A log cannot take rows back, so a batch that runs again must not append what an earlier attempt appended. Every attempt
of a task notes, before its first row leaves, the id of the writer that will send it and the ends of the log at that
time. An attempt that finds such notes reads the log from there, picks out the rows that carry the ids of the earlier
attempts, and leaves just these out (`written_rows`). That a batch is complete is noted by the driver, so that one that
runs again although it was complete is skipped. A task cannot note that it is done: when Spark breaks it off, its input
looks as if it had ended.

The ledger is a primary-key table beside the table that is written. Keys: (query, batch, task, writer); batch
`COMMITTED` holds the last batch that is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluss import aio
from fluss.client.blocking_client import BlockingClient
from fluss.errors import ConfigError
from fluss.metadata import (
    BigIntType,
    Column,
    IntType,
    Schema,
    StringType,
    TableDescriptor,
    TablePath,
)

TABLE = "spark_write_ledger"
COMMITTED = -1
DRIVER = -2
"""The number that stands for the driver where tasks have theirs."""
_SCHEMA = Schema.of(
    [
        Column("query", StringType(nullable=False)),
        Column("batch", BigIntType(nullable=False)),
        Column("task", IntType(nullable=False)),
        Column("writer", BigIntType(nullable=False)),
        Column("state", StringType()),
    ],
    ("query", "batch", "task", "writer"),
)


@dataclass(frozen=True)
class Delivery:
    """What makes one write of one task unique: which query, which of its batches, which task of that batch."""

    query: str
    batch: int
    task: int


@dataclass(frozen=True)
class Attempt:
    """One writer of a batch: of which task in which run, and the ends of the log before it began."""

    task: int
    writer: int
    run: str
    """A run divides a batch into tasks once; another run of the same batch may divide it differently."""
    ends: Mapping[str, int]


def create_ledger(client: BlockingClient, path: TablePath) -> None:
    """Make sure the ledger is there. Called on the driver, once per query."""
    descriptor = TableDescriptor(
        schema=_SCHEMA,
        bucket_count=1,
        # One column: a server whose lake is Iceberg has no keys of several for its buckets.
        bucket_keys=["query"],
        comment="Who wrote what: exactly-once deliveries of Spark",
    )
    client.run(client.admin.create_table(path, descriptor, True))


class Ledger:
    """The notes of one table's writers."""

    def __init__(self, client: BlockingClient, path: TablePath) -> None:
        self._client = client
        self._path = path
        table = client.table(path)
        info = table.get_table_info()
        if info.schema.column_names != _SCHEMA.column_names or list(info.bucket_keys) != ["query"]:
            raise ConfigError(f"write.ledger: {path} is not a ledger of Spark writes; name another table")
        self._lookuper = client.call(lambda: table.new_lookup().create_lookuper())
        self._prefix = client.call(lambda: table.new_lookup().lookup_by(["query"]).create_lookuper())
        self._writer = client.call(lambda: table.new_upsert().create_writer())

    def committed(self, query: str) -> int | None:
        """The last batch of a query that is complete."""
        key = {"query": query, "batch": COMMITTED, "task": COMMITTED, "writer": COMMITTED}
        row = self._client.run(self._lookuper.lookup(key))
        return None if row is None else int(row["state"])

    def attempts(self, query: str, batch: int) -> list[Attempt]:
        """All writers of the earlier attempts of a batch."""
        found = []
        for row in self._notes(query):
            if row["batch"] == batch:
                state = json.loads(row["state"])
                if "ends" not in state:  # noted by an older version: the ends alone, of an earlier run
                    state = {"run": "", "ends": state}
                found.append(Attempt(row["task"], row["writer"], state["run"], state["ends"]))
        return found

    def _notes(self, query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._client.run(self._prefix.lookup({"query": query}))
        return rows

    async def begin(self, delivery: Delivery, writer_id: int, run: str, ends: Mapping[str, int]) -> None:
        """Note a writer before it sends its first row. May be awaited on any loop."""
        await self._note(delivery, writer_id, json.dumps({"run": run, "ends": ends})).wait()

    def commit(self, query: str, batch: int) -> None:
        """Note that a batch is complete; what was noted about its tasks is needed no more."""
        self._client.run(self._note(Delivery(query, COMMITTED, COMMITTED), COMMITTED, str(batch)).wait())
        self.discard(query, batch)

    def discard(self, query: str, batch: int) -> None:
        """Remove what was noted about the tasks of a batch."""
        for row in self._notes(query):
            if row["batch"] == batch:
                self._writer.delete({name: row[name] for name in _SCHEMA.primary_key})
        self._client.run(self._writer.flush())

    def _note(self, delivery: Delivery, writer_id: int, state: str) -> aio.WriteResultHandle:
        key = {"query": delivery.query, "batch": delivery.batch, "task": delivery.task, "writer": writer_id}
        return self._writer.upsert({**key, "state": state})
