# SPDX-License-Identifier: Apache-2.0
"""Buckets of more bytes than an Arrow batch, a message to the JVM or a worker can hold."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.spark.test_planner import PROC, children

from fluss.aio import RecordBatch
from fluss.errors import FlussError
from fluss.metadata import TableBucket, TablePath
from fluss.spark.layout import Bucket
from fluss.spark.reader import without_gaps
from fluss.spark.splits import Split

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
ROWS, TEXT_BYTES = 60_000, 40_000
WORKER_BYTES_MAX = 1_000_000_000


def batch(first: int, rows: int) -> RecordBatch:
    ids = pa.record_batch({"id": pa.array(range(first, first + rows), pa.int64())})
    return RecordBatch(ids, TableBucket(1, 0), first, first + rows - 1)


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        ([batch(5, 5)], None),
        ([batch(5, 2), batch(7, 3)], None),
        ([], 5),
        ([batch(6, 4)], 5),
        ([batch(5, 2), batch(8, 2)], 7),
        ([batch(5, 4)], 9),
        ([batch(5, 2), RecordBatch(batch(7, 2).batch, TableBucket(1, 0), 7, 9)], 7),
    ],
    ids=["one", "two", "none", "start", "middle", "end", "inside"],
)
def test_a_read_that_skips_an_offset_fails(
    harness: SparkHarness, found: list[RecordBatch], missing: int | None
) -> None:
    info = harness.client.info(TablePath(*harness.create(SCHEMA, buckets=1).split(".")))
    split = Split(info.table_id, Bucket(-1, 0), 5, 10)
    read = without_gaps(iter(found), 5, split, info)
    if missing is None:
        assert list(read) == found
    else:
        with pytest.raises(FlussError, match=f"no row for offset {missing};"):
            list(read)


def peak_bytes_of_workers(harness: SparkHarness) -> int:
    """The most memory that a Python worker of this Spark has used so far."""
    daemons = children(harness.spark._jvm.java.lang.ProcessHandle.current().pid())
    peaks = []
    for process in [PROC / str(worker) for daemon in daemons for worker in children(daemon)]:
        with contextlib.suppress(OSError):
            if b"fluss.spark.daemon" in (process / "cmdline").read_bytes():
                status = (process / "status").read_text()
                peaks += [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")]
    return max(peaks)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of processes from /proc")
def test_workers_hold_batches_of_long_rows_not_those_of_many(harness: SparkHarness, tmp_path: Path) -> None:
    """Streams and writes with a ledger, whose batches Spark bounds itself: 20,000 rows could be one of 800 MB."""
    text = f"repeat('x', {TEXT_BYTES}) as text"
    once, streamed, source = (harness.create(SCHEMA, buckets=1) for _ in range(3))
    harness.write(harness.spark.range(0, 20_000, 1, 1).selectExpr("id", text), once, txnAppId="long", txnVersion=1)
    harness.write(harness.spark.range(20_000).selectExpr("id"), source)
    frame = harness.stream(source).selectExpr("id", text)
    assert harness.start(frame, streamed, tmp_path).awaitTermination(300)
    assert [harness.read(path).count() for path in (once, streamed)] == [20_000, 20_000]
    assert peak_bytes_of_workers(harness) < WORKER_BYTES_MAX // 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of processes from /proc")
def test_a_bucket_of_more_than_two_gigabytes_is_written_and_read_whole(harness: SparkHarness) -> None:
    path = harness.create(SCHEMA, buckets=1)
    harness.write(harness.spark.range(ROWS).selectExpr("id", f"repeat('x', {TEXT_BYTES}) as text"), path)
    [found] = harness.read(path).selectExpr("count(*)", "sum(id)", "sum(length(text))").collect()
    assert tuple(found) == (ROWS, ROWS * (ROWS - 1) // 2, ROWS * TEXT_BYTES)
    assert peak_bytes_of_workers(harness) < WORKER_BYTES_MAX
