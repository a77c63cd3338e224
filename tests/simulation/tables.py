# SPDX-License-Identifier: Apache-2.0
"""The tables of simulations, and what writes do to the rows of each."""

from __future__ import annotations

import pyarrow as pa
from tests.simulation.linearizability import Apply, State

import fluss.aio as fluss
from fluss.metadata import AggFunction, Column, DataTypes, Schema, TableDescriptor

EVENTS = fluss.TablePath("fluss", "events")
DAYS = fluss.TablePath("fluss", "days")
"""A log with partitions, which are created while rows are written."""
FLEETING = fluss.TablePath("fluss", "fleeting")
"""A log whose rows expire after `FLEETING_S`."""
NUMBERED = fluss.TablePath("fluss", "numbered")
"""Rows that the server numbers, a few numbers at a time for each bucket. Every key is written once."""
BUCKETS = 2
FLEETING_S = 20.0

KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "expiring": {"table.log.ttl": "1 s"},
    "first row": {"table.merge-engine": "first_row"},
    "versioned": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "a"},
    "sum": {"table.merge-engine": "aggregation"},
}
"""Primary-key tables by what writes do to their rows, with their options. The changelog of one expires at once: only
snapshots, and what they do not have yet, lead to its rows."""


class LostOrDoubledError(AssertionError):
    """What is read is not what was acknowledged."""


def text(number: int) -> str:
    """A text of its own for each number, of different lengths."""
    return f"{number}:" + chr(97 + number % 26) * (number * 7 % 90)


class Register:
    """What writes do to a row (a, b) of one kind of table."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.path = fluss.TablePath("fluss", kind.replace(" ", "_"))
        self.deletes = kind in ("plain", "expiring")
        self.updates_columns = kind in ("plain", "expiring", "sum")

    def descriptor(self, bucket_count: int = 1) -> TableDescriptor:
        columns = [
            Column("k", DataTypes.int().with_nullable(False)),
            Column("a", DataTypes.bigint(), agg_function=AggFunction("sum") if self.kind == "sum" else None),
            Column("b", DataTypes.string()),
        ]
        return TableDescriptor(
            Schema.of(columns, primary_key=("k",)), bucket_count=bucket_count, properties=KINDS[self.kind]
        )

    def put(self, a: int, b: str) -> Apply:
        def apply(state: State) -> State:
            if state is not None and self.kind == "first row":
                return state
            if state is not None and self.kind == "sum":
                return (state[0] or 0) + a, b
            if state is not None and self.kind == "versioned" and state[0] is not None and a < state[0]:
                return state
            return a, b

        return apply

    @staticmethod
    def put_b(b: str) -> Apply:
        return lambda state: (None if state is None else state[0], b)

    @staticmethod
    def delete(_: State) -> State:
        return None


async def create_tables(connection: fluss.FlussConnection) -> None:
    admin = connection.get_admin()
    columns = [("id", pa.int64()), ("writer", pa.int32()), ("text", pa.string())]
    rows, dated = Schema(pa.schema(columns)), Schema(pa.schema([*columns, ("day", pa.string())]))
    key, number = Column("k", DataTypes.int().with_nullable(False)), Column("number", DataTypes.bigint())
    numbered = Schema.of([key, number], primary_key=("k",), auto_increment_columns=("number",))
    week = {"table.log.ttl": "7 d", "table.log.tiered.local-segments": "1"}
    seconds = {**week, "table.log.ttl": f"{FLEETING_S:.0f} s"}
    await admin.create_table(EVENTS, TableDescriptor(rows, bucket_count=BUCKETS, properties=week))
    await admin.create_table(DAYS, TableDescriptor(dated, bucket_count=1, partition_keys=["day"], properties=week))
    await admin.create_table(FLEETING, TableDescriptor(rows, bucket_count=1, properties=seconds))
    few = {"table.auto-increment.cache-size": "3"}
    await admin.create_table(NUMBERED, TableDescriptor(numbered, bucket_count=BUCKETS, properties=few))
    for register in map(Register, KINDS):
        await admin.create_table(register.path, register.descriptor(BUCKETS if register.kind == "plain" else 1))
