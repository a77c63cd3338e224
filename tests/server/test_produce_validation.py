# SPDX-License-Identifier: Apache-2.0
"""Batches with a valid checksum and invalid content are refused on arrival, and nothing of them is written."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from tests.records.forge import Parts, resealed
from tests.server.log_support import ARROW_SCHEMA, SCHEMA, Client, ids_of, make_batch, rows

from fluss.errors import ErrorCode
from fluss.metadata import Column, IntType, Schema, StringType, TableDescriptor
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.record_messages import encode_put_kv
from fluss.records import encode_kv_body, encode_row_body, seal_kv_batch, seal_log_batch
from fluss.rows import Slices, compacted

OFFSETS = 3
"""The offsets of the names."""


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def forged(codec: str = "NONE", *, buffers: dict[int, bytes] | None = None, **sealing: Any) -> bytearray:
    parts = Parts.of(rows(0, 3))
    for index, content in (buffers or {}).items():
        parts.buffers[index] = content
    return bytearray(parts.batch(codec, **sealing))


def wrong_schema() -> bytearray:
    other = pa.RecordBatch.from_pydict({"id": [1, 2, 3]}, schema=pa.schema([("id", pa.int64())]))
    return bytearray(Parts.of(other).batch())


INVALID = {
    "offsets": (lambda: forged(buffers={OFFSETS: ints(0, 2**30, 3, 18)}), "offset 2 is 3 after 1073741824"),
    "short column": (lambda: forged(buffers={1: bytes(8)}), "too few for 3 values of 64 bits"),
    "short column, compressed": (lambda: forged("ZSTD", buffers={1: bytes(8)}), "too few for 3 values of 64 bits"),
    "bomb": (lambda: forged("ZSTD", declared={1: 2**40}), "decompresses to more than 536870912"),
    "record count": (lambda: forged(record_count=2), "do not have the 2 rows"),
    "columns": (wrong_schema, "1 field nodes and 2 buffers, but schema 1 has 3 and 7"),
    "change types": (lambda: forged(change_types=b"\1\7\1"), "7 is not a change type"),
}


@pytest.mark.parametrize("case", INVALID)
async def test_invalid_batches_are_refused(client: Client, case: str) -> None:
    make, problem = INVALID[case]
    table = await client.create_table()
    for records in ([make()], [make_batch(0), make()]):
        refused = await client.produce(table, *records)
        assert refused.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
        assert problem in refused.error_message
        assert "'fluss.t'" in refused.error_message
        assert "nothing of it was written" in refused.error_message
        assert not refused.HasField("base_offset")
    assert (await client.fetch(table, 0)).high_watermark == 0
    assert (await client.produce(table, make_batch(0))).base_offset == 0
    assert ids_of((await client.fetch(table, 0)).records) == [0, 1, 2]


async def test_a_damaged_batch_is_called_damaged(client: Client, table: int) -> None:
    bad = make_batch(0)
    bad[80] ^= 0xFF
    refused = await client.produce(table, bad)
    assert refused.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert "checksum does not fit" in refused.error_message


async def test_unknown_schemas(client: Client, table: int) -> None:
    refused = await client.produce(table, forged(schema_id=7))
    assert refused.error_code == ErrorCode.SCHEMA_NOT_EXIST
    assert "schema 7, which the table does not have; its latest is 1" in refused.error_message
    negative = bytearray(make_batch(0))
    negative[25:27] = b"\xff\xff"
    assert (await client.produce(table, bytearray(resealed(negative)))).error_code == ErrorCode.SCHEMA_NOT_EXIST


@pytest.mark.parametrize("fmt", ["INDEXED", "COMPACTED"])
async def test_row_formats(client: Client, fmt: str) -> None:
    table = await client.create_table(table_log_format=fmt)
    body = encode_row_body(fmt, SCHEMA.data_types, rows(0, 3))
    good = bytearray(b"".join(seal_log_batch(body, schema_id=1)))
    assert (await client.produce(table, good)).base_offset == 0
    many = bytearray(b"".join(seal_log_batch(body._replace(record_count=500), schema_id=1)))
    refused = await client.produce(table, many)
    assert refused.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert "500 records do not fit" in refused.error_message


async def test_content_that_was_valid_stays_valid(client: Client) -> None:
    """The vectors of every shape: nulls, empty strings, text of all alphabets, compressed and plain."""
    names = ["", None, "héllo", "漢字", "plain", None, "🙂"]
    batch = pa.RecordBatch.from_pydict(
        {"id": [None, *range(1, 7)], "name": names, "score": [None] * 7}, schema=ARROW_SCHEMA
    )
    table = await client.create_table()
    for number, codec in enumerate(("NONE", "LZ4_FRAME", "ZSTD")):
        answer = await client.produce(table, bytearray(Parts.of(batch).batch(codec)))
        assert answer.base_offset == 7 * number, answer.error_message


KV_SCHEMA = Schema.of([Column("id", IntType(nullable=False)), Column("name", StringType())], primary_key=["id"])


def kv_batch(*rows: bytes) -> bytes:
    keys = Slices.from_list([compacted.encode_key([IntType(nullable=False)], (i,)) for i in range(len(rows))])
    return b"".join(seal_kv_batch(encode_kv_body(keys, Slices.from_list(list(rows))), schema_id=1))


GOOD_ROW = compacted.encode_row(KV_SCHEMA.data_types, (7, "seven"))
INVALID_ROWS = {
    "a string beyond its row": b"\x00\x07\x50seven",
    "bytes left over": GOOD_ROW + b"more",
    "no end": b"\x00\xff\xff\xff\xff\xff\xff\xff",
    "not UTF-8": b"\x00\x07\x02\xff\xfe",
    "only null bits": b"\x00",
}


@pytest.mark.parametrize("image", ["FULL", "WAL"])
@pytest.mark.parametrize("case", INVALID_ROWS)
async def test_rows_with_impossible_lengths(client: Client, case: str, image: str) -> None:
    properties = {"table.changelog.image": image}
    table = await client.create(TableDescriptor(KV_SCHEMA, bucket_count=1, properties=properties), "kv")

    async def put(data: bytes, targets: list[int]) -> pb.PbPutKvRespForBucket:
        body = encode_put_kv(-1, table, 5000, [(None, 0, [data])], target_columns=targets)
        answer = pb.PutKvResponse.FromString(bytes(await client.connection.call_parts(apis.PUT_KV, body)))
        return answer.buckets_resp[0]

    for targets in ([], [0, 1]):
        refused = await put(kv_batch(GOOD_ROW, INVALID_ROWS[case]), targets)
        assert refused.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
        assert "'fluss.kv' is not valid, nothing of it was written" in refused.error_message
    assert (await put(kv_batch(GOOD_ROW), [])).log_end_offset == 1, "what was refused left no trace"
