# SPDX-License-Identifier: Apache-2.0
"""Primary-key tables whose changelog no longer reaches back: snapshots keep the rows, and readers find them.

The readers are called as Spark calls them, without one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import wait_for

import fluss
from fluss.errors import LogOffsetOutOfRangeError
from fluss.lake.union import union_read
from fluss.metadata import OffsetSpec
from fluss.net.connection import Connection
from fluss.protocol import apis
from fluss.server.local import LocalServer
from fluss.spark.batches import source_schema
from fluss.spark.options import read_options
from fluss.spark.reader import FlussReader
from fluss.spark.stream_reader import FlussStreamReader
from fluss.spark.versions import ReadAllAvailable
from fluss.tools.status import bucket_offsets

COLUMNS = "id bigint, day string, v bigint"
TTL = {"table.log.ttl": "1ms"}
OPTIONS = {
    "kv.snapshot.interval": "100ms",
    "log.retention.check-interval": "100ms",
    "log.retention.roll-active-segment.enabled": "true",
    "log.segment.file-size": "1kb",
}

Row = dict[str, Any]


@pytest.fixture(scope="module")
def db() -> Iterator[fluss.Database]:
    with LocalServer(options=OPTIONS) as server, fluss.connect(server.bootstrap_servers, timeout=30) as database:
        yield database


@pytest.fixture(autouse=True)
def _as_in_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "1")  # set by the reader in its own process otherwise


def expire(db: fluss.Database, table: fluss.Table) -> None:
    """Wait until the changes so far are gone."""
    wait_for(lambda: min(bucket_offsets(db, table, OffsetSpec.earliest()).values()) > 0)


def fill(db: fluss.Database, name: str, **options: Any) -> tuple[fluss.Table, list[Row]]:
    table = db.create_table(name, COLUMNS, primary_key="id", buckets=2, properties=TTL, replace=True, **options)
    for turn in range(5):
        table.upsert([{"id": i, "day": "a", "v": turn} for i in range(50)])
    table.delete([3])
    expire(db, table)
    return table, [{"id": i, "day": "a", "v": 4} for i in range(50) if i != 3]


def reader_of(kind: Any, db: fluss.Database, table: fluss.Table, **options: str) -> Any:
    schema = source_schema(table.info, None, metadata=False, changelog=False)
    given = {"bootstrap.servers": db.connection.config.bootstrap_servers, "table": str(table.path), **options}
    return kind(read_options(given) if kind is FlussReader else given, schema)


def by_id(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> list[Row]:
    found = [{name: row[name] for name in ("id", "day", "v")} for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: int(row["id"]))


@pytest.mark.parametrize("cursors", [True, False], ids=["listed by the server", "from the snapshot"])
def test_every_reader_finds_all_rows(db: fluss.Database, monkeypatch: pytest.MonkeyPatch, cursors: bool) -> None:
    if not cursors:
        supports = Connection.supports
        monkeypatch.setattr(Connection, "supports", lambda self, api: api is not apis.SCAN_KV and supports(self, api))
    table, expected = fill(db, "t")
    assert by_id(table.to_arrow().to_batches()) == expected
    batch = reader_of(FlussReader, db, table)
    assert by_id([found for part in batch.partitions() for found in batch.read(part)]) == expected
    stream = reader_of(FlussStreamReader, db, table)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert by_id([found for part in stream.partitions(start, end) for found in stream.read(part)]) == expected
    client = {"bootstrap.servers": db.connection.config.bootstrap_servers}
    assert by_id(union_read(client, table.path).to_batches()) == expected


@pytest.mark.parametrize("key", ["id", None], ids=["primary key", "log"])
def test_a_time_before_the_log_is_refused(db: fluss.Database, key: str | None) -> None:
    """The changes that came after it cannot be taken back any more."""
    table = db.create_table("past", COLUMNS, primary_key=key, buckets=1, properties=TTL, replace=True)
    write = table.upsert if key else table.append
    write([{"id": 1, "day": "a", "v": 1}])
    written_ms = time.time_ns() // 1_000_000
    for turn in range(5):
        write([{"id": i, "day": "a", "v": turn} for i in range(50)])
    expire(db, table)
    reader = reader_of(FlussReader, db, table, **{"scan.as-of.timestamp": str(written_ms)})
    with pytest.raises(LogOffsetOutOfRangeError, match="older changes have expired"):
        reader.partitions()


@pytest.mark.parametrize("key", [["id", "day"], None])
def test_a_new_partition_whose_first_rows_are_gone_is_loss(db: fluss.Database, key: list[str] | None) -> None:
    table = db.create_table(
        "parts", COLUMNS, primary_key=key, partition_by=["day"], buckets=1, properties=TTL, replace=True
    )
    write = table.upsert if key else table.append
    write([{"id": 1, "day": "a", "v": 1}])
    strict = reader_of(FlussStreamReader, db, table)
    lenient = reader_of(FlussStreamReader, db, table, failOnDataLoss="false")
    start = strict.initialOffset()
    first = strict.latestOffset(start, ReadAllAvailable())
    write([{"id": 2, "day": "b", "v": 1}])
    expire(db, table)
    write([{"id": 3, "day": "b", "v": 1}])
    end = strict.latestOffset(first, ReadAllAvailable())
    with pytest.raises(LogOffsetOutOfRangeError, match="rows from 0 on are gone"):
        strict.partitions(first, end)
    end = lenient.latestOffset(first, ReadAllAvailable())
    assert all(part.bucket.partition_name == "b" for part in lenient.partitions(first, end))
