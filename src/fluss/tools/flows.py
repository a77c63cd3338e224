# SPDX-License-Identifier: Apache-2.0
"""Flows of Spark: which table is filled from what, how fast, and how far behind.

Spark's listener `fluss.spark.FlowListener` reports them. They are kept in a table of each database, for the tables
there that Spark fills, and the console draws them as a graph.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from fluss.client.blocking_client import BlockingClient
from fluss.client.connection import FlussTable
from fluss.errors import TableNotExistError
from fluss.metadata import Column, DataTypes, Schema, TableDescriptor, TablePath

FLOWS_TABLE = "spark_flows"
_SCHEMA = Schema.of(
    [
        Column("flow", DataTypes.string()),
        Column("source", DataTypes.string()),
        Column("target", DataTypes.string()),
        Column("rows_per_second", DataTypes.double()),
        Column("lag_rows", DataTypes.bigint()),
        Column("lag_ms", DataTypes.bigint()),
        Column("updated", DataTypes.timestamp_ltz(6)),
    ],
    ["flow", "source"],
)


@dataclass(frozen=True)
class Flow:
    """One edge of the graph, as of the last micro-batch or batch write."""

    flow: str
    """The name of the query."""
    source: str
    """What it reads: a table of Fluss as `database.table`, or Spark's description of another source."""
    target: str
    """The table that it fills, as `database.table`."""
    rows_per_second: float
    lag_rows: int | None
    """Rows of the source that are not read yet; None for batch writes and sources other than Fluss."""
    lag_ms: int | None
    """The age of the oldest of them."""
    updated: dt.datetime


FLOW_COLUMNS = [field.name for field in fields(Flow)]


def note_flows(client: BlockingClient, flows: Sequence[Flow]) -> None:
    """Keep the newest state of flows that fill one table, in the database of that table."""
    path = TablePath(flows[0].target.partition(".")[0], FLOWS_TABLE)
    table = _opened(client, path)
    writer = client.call(lambda: table.new_upsert().create_writer())
    for flow in flows:
        writer.upsert(asdict(flow))
    client.run(writer.flush())


def _opened(client: BlockingClient, path: TablePath) -> FlussTable:
    try:
        return client.table(path)
    except TableNotExistError:
        descriptor = TableDescriptor(_SCHEMA, bucket_count=1, comment="What Spark fills tables from, kept by Spark")
        client.run(client.admin.create_table(path, descriptor, True))
        return client.table(path)
