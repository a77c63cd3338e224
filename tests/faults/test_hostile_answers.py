# SPDX-License-Identifier: Apache-2.0
"""Answers that no sound server gives: each call ends with an error of our own tree, and nothing wrong is returned."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.client.support import write
from tests.faults.conftest import FIELDS
from tests.faults.proxy import Answer

import fluss
from fluss.errors import StorageError
from fluss.metadata import OffsetSpec
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.record_messages import FetchedTable, decode_fetch_log_response, encode_fetch_log_response
from fluss.records import encode_arrow_body, seal_log_batch


def changed(api, change):
    """A judge that changes the server's answers to an API."""

    def answer(body):
        message = api.response.FromString(bytes(body))
        change(message)
        return message

    return replaced(api, answer)


def replaced(api, answer):
    """A judge that gives other answers than the server does to an API."""
    return lambda api_key, body: Answer(answer(body)) if api_key == api.key else None


def of_bucket(body, **fields):
    """The answer of a fetch from one bucket, with other fields."""
    [table] = decode_fetch_log_response(body)
    part = replace(table.buckets[0], **fields)
    return b"".join(map(bytes, encode_fetch_log_response([FetchedTable(table.table_id, [part])])))


async def rows_of(conn, path, buckets=2):
    scanner = await (await conn.get_table(path)).new_scan().create_record_batch_log_scanner()
    async with scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
        return (await scanner.to_arrow()).num_rows


async def fill(conn, path):
    await write(await conn.get_table(path), [(i, f"n{i}") for i in range(100)])


def leave_one_out(answer):
    del answer.buckets_resp[-1]


def leave_offsets_out(answer):
    for part in answer.buckets_resp:
        part.ClearField("offset")


def negative_offsets(answer):
    for part in answer.buckets_resp:
        part.offset = -7


@pytest.mark.parametrize("change", [leave_one_out, leave_offsets_out, negative_offsets], ids=lambda one: one.__name__)
async def test_offsets_that_are_missing_or_impossible(proxy, through, change):
    async with through(buckets=2) as (conn, path):
        await fill(conn, path)
        proxy.on_response = changed(apis.LIST_OFFSETS, change)
        with pytest.raises(fluss.FormatError, match="LIST_OFFSETS"):
            await conn.get_admin().list_offsets(path, [0, 1], OffsetSpec.latest())
        with pytest.raises(fluss.FormatError, match="LIST_OFFSETS"):
            await rows_of(conn, path)


@pytest.mark.parametrize("count", [-2, 0, 2_000_000_000])
async def test_a_table_with_an_impossible_number_of_buckets(proxy, through, count):
    def change(answer):
        for table in answer.table_metadata:
            table.table_json = table.table_json.replace(b'"bucket_count":2', b'"bucket_count":%d' % count)

    async with through(buckets=2) as (conn, path):
        proxy.on_response = changed(apis.GET_METADATA, change)
        with pytest.raises(fluss.FormatError, match=f"bucket_count {count}"):
            await conn.get_table(path)


@pytest.mark.parametrize(
    ("host", "port"),
    [("127.0.0.1", 99_999_999), ("127.0.0.1", -1), ("a\0b", 1), ("x" * 100_000, 1)],
    ids=["large port", "negative port", "NUL", "long name"],
)
async def test_servers_at_impossible_addresses(proxy, through, host, port):
    def change(answer):
        for node in answer.tablet_servers:
            node.host, node.port = host, port

    async with through() as (conn, path):
        proxy.on_response = changed(apis.GET_METADATA, change)
        await conn.get_admin().get_server_nodes()
        with pytest.raises(fluss.NetworkError, match=r"(?i)no address") as caught:  # the last attempt may lack time
            await conn.get_admin().list_offsets(path, [0], OffsetSpec.latest(), timeout=3)
        assert len(str(caught.value)) < 2_000


@pytest.mark.timeout(20)
async def test_a_read_up_to_an_offset_that_never_comes(proxy, through):
    """Without a bound on the whole read: it may take as long as it makes progress."""

    def far(answer):
        for part in answer.buckets_resp:
            part.offset = part.offset and 2**62

    async with through(**{"request-timeout": 1000, "scanner.log.fetch.wait-max-time-ms": 100}) as (conn, path):
        await fill(conn, path)
        proxy.on_response = changed(apis.LIST_OFFSETS, far)
        with pytest.raises(fluss.DeadlineExceededError, match=r"and no further within 2000 ms.*ends at 100\."):
            await rows_of(conn, path, buckets=1)


@pytest.mark.timeout(20)
async def test_a_server_that_gives_the_same_rows_again_and_again(proxy, through):
    """A read that has an end makes no progress by rows it has already."""
    first = []

    def repeat(body):
        first.append(bytes(body))
        return first[0]

    async with through(**{"request-timeout": 1000}) as (conn, path):
        await fill(conn, path)
        table = await conn.get_table(path)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        proxy.on_response = replaced(apis.FETCH_LOG, repeat)
        with pytest.raises(fluss.DeadlineExceededError, match=r"came to offset 100 and no further within 2000 ms"):
            async for _ in table.new_scan().read_batches({bucket: 0}, {bucket: 101}):
                pass
        assert len(first) < 200  # and it is not asked without a pause


@pytest.mark.timeout(20)
async def test_a_server_that_points_to_remote_files_without_new_rows(proxy, through):
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir="/nowhere", first_start_pos=0)

    def point(body):
        return of_bucket(body, records=None, remote_log_fetch_info=info)

    async with through(**{"request-timeout": 1000}) as (conn, path):
        await fill(conn, path)
        proxy.on_response = replaced(apis.FETCH_LOG, point)
        with pytest.raises(fluss.DeadlineExceededError, match=r"came to offset 0 and no further within 2000 ms"):
            await rows_of(conn, path, buckets=1)


async def test_batches_that_grow_without_bound_are_not_all_decoded_ahead(proxy, through):
    """16 MB each, of 100 kB: those that wait take 256 MiB at most, not 384 MB."""
    count, rows = 24, 12_000
    noise = np.random.default_rng(1)

    def batch(number):
        columns = {"id": noise.integers(0, 2**62, rows), "name": [None] * (rows - 1) + ["a" * 16_000_000]}
        body = encode_arrow_body(pa.record_batch(columns, schema=FIELDS))
        parts = b"".join(map(bytes, seal_log_batch(body, schema_id=1)))
        return struct.pack("<q", number * rows) + parts[8:]

    records = b"".join(batch(number) for number in range(count))

    def answer(api_key, body):
        if api_key == apis.LIST_OFFSETS.key:
            message = apis.LIST_OFFSETS.response.FromString(bytes(body))
            for part in message.buckets_resp:
                part.offset = part.offset and count * rows
            return Answer(message)
        if api_key != apis.FETCH_LOG.key:
            return None
        return Answer(of_bucket(body, records=[records], high_watermark=count * rows))

    async with through() as (conn, path):
        await fill(conn, path)
        proxy.on_response = answer
        bucket = fluss.TableBucket((await conn.get_table(path)).get_table_info().table_id, 0)
        before = pa.system_memory_pool().bytes_allocated()
        found = (await conn.get_table(path)).new_scan().read_batches({bucket: 0})
        first = await anext(found)
        await asyncio.sleep(1)
        assert first.batch.num_rows == rows
        assert pa.system_memory_pool().bytes_allocated() - before < 310_000_000
        await found.aclose()


@pytest.mark.parametrize(
    ("remote", "local", "error"),
    [
        ("/tmp/file", "a\0b", fluss.FormatError),
        ("/tmp/file", "../b", fluss.FormatError),
        ("/tmp/a\0b", "CURRENT", StorageError),
        ("s3://x/a\0b", "CURRENT", StorageError),
    ],
    ids=["NUL in a name", "name that leads out", "NUL in a path", "NUL in a store"],
)
async def test_snapshots_whose_files_have_impossible_names(proxy, through, remote, local, error):
    response = pb.GetKvSnapshotMetadataResponse(log_offset=0)
    response.snapshot_files.add(remote_path=remote, local_file_name=local)
    async with through(keys=["id"], **{"fs.s3.endpoint": "http://127.0.0.1:1"}) as (conn, path):
        table = await conn.get_table(path)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        proxy.on_response = replaced(apis.GET_KV_SNAPSHOT_METADATA, lambda body: response)
        with pytest.raises(error, match="snapshot 7"):
            await table.new_scan().create_bucket_batch_scanner(bucket, snapshot_id=7).to_arrow()
