# SPDX-License-Identifier: Apache-2.0
"""Scans of a log that holds an invalid batch: a clear error, and a way past it.

The batch has a valid checksum. Servers cannot look into compressed buffers, and other servers look at nothing, so the
client meets such batches whatever our server refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS, batches_from, open_table, records_from
from tests.records.forge import Parts
from tests.server.log_support import connected, make_batch, running_server

import fluss
from fluss.client.scan import fetcher
from fluss.protocol.record_messages import decode_fetch_log_response
from fluss.records import encode_value_batch
from fluss.server.handlers import log as log_handlers

ROWS = pa.RecordBatch.from_pydict(
    {"id": [3, 4, 5], "name": ["three", "four", "five"], "score": [0.0, 0.0, 0.0]}, schema=pa.schema(LOG_FIELDS)
)
BAD_OFFSETS = struct.pack("<4i", 0, 2**30, 9, 13)


def invalid_batch(codec: str) -> bytearray:
    parts = Parts.of(ROWS)
    parts.buffers[3] = BAD_OFFSETS
    return bytearray(parts.batch(codec))


@pytest.fixture(params=["NONE", "LZ4_FRAME", "ZSTD"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(log_handlers, "check_records", lambda *_: 0)  # a server that does not look
    return str(request.param)


@contextlib.asynccontextmanager
async def invalid_batch_in_log(folder: Path, codec: str, batches: Sequence[bytearray] = ()) -> AsyncIterator[Any]:
    """Open a table with nine rows in the log, of which those in the middle are unreadable (or other batches)."""
    async with running_server(folder) as server, connected(server) as client:
        bound = server.listeners["FLUSS"]
        config = fluss.Config({"bootstrap.servers": f"{bound.host}:{bound.port}"})
        async with open_table(config, "db", LOG_FIELDS) as (_, table):
            table_id = table.get_table_info().table_id
            for batch in batches or (make_batch(0), invalid_batch(codec), make_batch(6)):
                assert not (await client.produce(table_id, batch)).HasField("error_code")
            yield table


def check(error: fluss.FlussError) -> None:
    assert isinstance(error, fluss.errors.CorruptRecordError)
    assert "offsets 3 to 5" in error.message
    assert "'db.t'" in error.message
    assert "offset 2 is 9 after 1073741824" in error.message
    assert "subscribe(bucket_id=0, start_offset=6)" in error.message


async def test_polls_name_the_batch_and_go_on_behind_it(tmp_path, codec):
    async with (
        invalid_batch_in_log(tmp_path, codec) as table,
        records_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner,
    ):
        assert [record.row["id"] for record in await scanner.poll(5000)] == [0, 1, 2]
        for _ in range(2):  # asking again changes nothing, and passes over nothing
            with pytest.raises(fluss.errors.CorruptRecordError) as caught:
                await scanner.poll(5000)
            check(caught.value)
        scanner.subscribe(bucket_id=0, start_offset=6)
        assert [record.row["id"] for record in await scanner.poll(5000)] == [6, 7, 8]


@pytest.mark.parametrize("columns", [None, ["name"], ["name", "id"]])
async def test_arrow_scans(tmp_path, codec, columns):
    async with invalid_batch_in_log(tmp_path, codec) as table:
        scan = table.new_scan() if columns is None else table.new_scan().project_by_name(columns)
        async with batches_from(fluss.EARLIEST_OFFSET, scan) as scanner:
            with pytest.raises(fluss.errors.CorruptRecordError) as caught:
                await scanner.to_arrow()
            check(caught.value)
            scanner.subscribe(0, 6)
            assert (await scanner.to_arrow()).column("name").to_pylist() == ["user-6", "user-7", "user-8"]


async def test_batch_readers_give_the_rows_before_the_error(tmp_path, codec):
    """Also those that were taken out together with it."""
    before: list[int] = []
    batches = [*(make_batch(first) for first in range(0, 15, 3)), invalid_batch(codec), make_batch(18)]
    async with (
        invalid_batch_in_log(tmp_path, codec, batches) as table,
        batches_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner,
    ):

        def read():
            for batch in scanner.to_arrow_batch_reader():
                before.extend(batch.column("id").to_pylist())

        with pytest.raises(fluss.errors.CorruptRecordError, match="offsets 15 to 17"):
            await asyncio.to_thread(read)
    assert before == list(range(15))


async def test_limit_scans_and_filters(tmp_path, codec):
    async with invalid_batch_in_log(tmp_path, codec) as table:
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        with pytest.raises(fluss.errors.CorruptRecordError) as caught:
            await table.new_scan().limit(5).create_bucket_batch_scanner(bucket).to_arrow()
        check(caught.value)
        last = await table.new_scan().limit(3).create_bucket_batch_scanner(bucket).to_arrow()
        assert last.column("id").to_pylist() == [6, 7, 8]
        async with records_from(3, table.new_scan().filter(fluss.col("id") > 4)) as scanner:
            with pytest.raises(fluss.errors.CorruptRecordError) as caught:
                await scanner.poll(5000)
        check(caught.value)


async def test_a_header_that_cannot_be_read_names_table_bucket_and_offset(tmp_path, monkeypatch):
    def cut_short(body: Any) -> Any:
        tables = decode_fetch_log_response(body)
        for part in (bucket for table in tables for bucket in table.buckets if bucket.records):
            part.records = memoryview(bytes(part.records[:8]) + struct.pack("<i", 5) + bytes(part.records[12:]))
        return tables

    monkeypatch.setattr(log_handlers, "check_records", lambda *_: 0)
    async with invalid_batch_in_log(tmp_path, "NONE") as table:
        monkeypatch.setattr(fetcher, "decode_fetch_log_response", cut_short)
        async with records_from(3, table.new_scan()) as scanner:
            with pytest.raises(
                fluss.errors.CorruptRecordError, match=r"from offset 3 on .* bucket=0.* of table 'db\.t'"
            ):
                await scanner.poll(5000)
            monkeypatch.undo()
            scanner.subscribe(0, 6)
            assert [record.row["id"] for record in await scanner.poll(5000)] == [6, 7, 8]


async def test_what_is_wrong_with_one_bucket_is_its_own(tmp_path, monkeypatch):
    """Its error is raised once, and the buckets behind it in the answer of the server are read."""

    def cut_short(body: Any) -> Any:
        tables = decode_fetch_log_response(body)
        for part in (bucket for table in tables for bucket in table.buckets if bucket.records):
            if part.bucket_id == 0:
                part.records = memoryview(bytes(part.records[:8]) + struct.pack("<i", 5) + bytes(part.records[12:]))
        return tables

    async with running_server(tmp_path) as server, connected(server) as client:
        bound = server.listeners["FLUSS"]
        config = fluss.Config({"bootstrap.servers": f"{bound.host}:{bound.port}"})
        async with open_table(config, "db", LOG_FIELDS, bucket_count=3) as (_, table):
            for bucket in range(3):
                await client.produce(table.get_table_info().table_id, make_batch(0), bucket=bucket)
            monkeypatch.setattr(fetcher, "decode_fetch_log_response", cut_short)
            async with await table.new_scan().create_log_scanner() as scanner:
                scanner.subscribe_buckets(dict.fromkeys(range(3), 0))
                found: list[int] = []
                errors = 0
                for _ in range(4):
                    try:
                        polled = await scanner.poll(1000)
                        found += [bucket.bucket_id for bucket in polled.buckets()]
                    except fluss.errors.CorruptRecordError:
                        errors += 1
                assert (sorted(found), errors) == ([1, 2], 3)


async def test_rows_of_a_primary_key_table(tmp_path, monkeypatch):
    """A server that hands out a row whose string is longer than the row."""
    async with running_server(tmp_path) as server:
        bound = server.listeners["FLUSS"]
        config = fluss.Config({"bootstrap.servers": f"{bound.host}:{bound.port}"})

        async def bad_rows(*_: Any) -> list[bytes]:
            return [encode_value_batch([b"\x01\x00\x00\x07\x50seven"])]

        monkeypatch.setattr(server.kv, "limit_scan", bad_rows)

        async with open_table(config, "db", [("id", pa.int32()), ("name", pa.string())], keys=["id"]) as (_, table):
            bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
            with pytest.raises(fluss.errors.CorruptRecordError, match=r"'db\.t' are not valid: row 0: .*string"):
                await table.new_scan().limit(5).create_bucket_batch_scanner(bucket).to_arrow()
