# SPDX-License-Identifier: Apache-2.0
"""Scans of the synchronous client are Arrow streams: libraries that take Arrow data take them as they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

import fluss
from fluss.errors import FlussError

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "name": [f"row {number}" for number in range(100)]})


async def test_scans_are_arrow_streams() -> None:
    polars = pytest.importorskip("polars")
    with fluss.LocalServer() as server, fluss.connect(server.bootstrap_servers, timeout=30) as db:
        db.create_table("log", ROWS, buckets=2)
        keyed = db.create_table("keyed", ROWS, primary_key="id")
        connection = db.connection

        async def open_scanner(batches: bool) -> fluss.LogScanner:  # type: ignore[type-arg]
            scan = (await connection.get_table(fluss.TablePath("fluss", "log"))).new_scan().project_by_name(["id"])
            made = scan.create_record_batch_log_scanner if batches else scan.create_log_scanner
            scanner = await made()
            scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
            return scanner

        with await open_scanner(True) as scanner:
            assert pa.schema(scanner).names == ["id"]
            assert sorted(pa.table(scanner)["id"].to_pylist()) == list(range(100))
        with await open_scanner(True) as scanner:
            assert polars.DataFrame(scanner).height == 100
        with await open_scanner(False) as scanner, pytest.raises(FlussError, match="batch"):
            pa.table(scanner)

        table = await connection.get_table(keyed.path)
        rows = table.new_scan().create_bucket_batch_scanner(fluss.TableBucket(keyed.info.table_id, 0))
        assert pa.schema(rows).names == ["id", "name"]
        assert pa.table(rows).num_rows == 100
