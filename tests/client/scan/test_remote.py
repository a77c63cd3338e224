# SPDX-License-Identifier: Apache-2.0
"""Tiered log segments, read from where a server put them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pyarrow as pa
import pytest
from tests.client.support import batches_from, open_table, poll_all, records_from
from tests.faults.proxy import Answer, FaultProxy, ProxiedServer

import fluss
from fluss.client.cluster import Cluster
from fluss.client.scan import remote
from fluss.client.scan.remote import RemoteReader
from fluss.client.scan.subscription import FetchOptions, Subscription
from fluss.errors import FormatError, StorageError
from fluss.protocol import apis, messages
from fluss.protocol.record_messages import FetchedBucket, FetchedTable, encode_fetch_log_response
from fluss.records import encode_arrow_body, iter_log_batches, patch_batch, seal_log_batch

FIELDS = [("id", pa.int64()), ("name", pa.string())]


def log_batch(start, rows, width=10):
    ids = list(range(start, start + rows))
    batch = pa.RecordBatch.from_pydict({"id": ids, "name": [f"{i:0{width}d}" for i in ids]}, schema=pa.schema(FIELDS))
    parts = seal_log_batch(encode_arrow_body(batch, compression="NONE"), schema_id=1)
    data = bytearray(b"".join(bytes(part) for part in parts))
    patch_batch(data, 0, start, 1_700_000_000_000)
    return bytes(data)


def write_segments(folder, segments, rows=10, width=10):
    """Files as servers lay them out: `{segment id}/{start offset}.log`; gives what a fetch says about them."""
    info = messages.PbRemoteLogFetchInfo(remote_log_tablet_dir=str(folder))
    offset = 0
    for batches in segments:
        segment_id = str(uuid.uuid4())
        data = b"".join(log_batch(offset + i * rows, rows, width) for i in range(batches))
        (folder / segment_id).mkdir(parents=True)
        (folder / segment_id / f"{offset:020d}.log").write_bytes(data)
        info.remote_log_segments.add(
            remote_log_segment_id=segment_id,
            remote_log_start_offset=offset,
            remote_log_end_offset=offset + batches * rows,
            segment_size_in_bytes=len(data),
        )
        offset += batches * rows
    return info


async def no_wait():
    return


def remote_reader(threads=2, segments=2, reads=3):
    config = fluss.Config(
        {
            "remote-file.download-thread-num": threads,
            "scanner.remote-log.prefetch-num": segments,
            "scanner.remote-log.read-concurrency": reads,
        }
    )
    return RemoteReader(Cluster(config))


def offsets_of(info, room=no_wait, **options):
    async def read():
        reader = remote_reader(**options)
        try:
            found = []
            async for view in reader.blocks(info, room):
                found += [batch.header.base_offset for batch in iter_log_batches(view, verify=True)]
            return found
        finally:
            reader.close()

    return asyncio.run(asyncio.wait_for(read(), 20))


@pytest.mark.parametrize("block", [64, 300, 1000, 8 * 1024 * 1024])
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_segments_in_order_whatever_the_block_size(tmp_path, monkeypatch, block, prefix):
    monkeypatch.setattr(remote, "_BLOCK_BYTES", block)
    info = write_segments(tmp_path, [3, 1, 4, 2])
    info.remote_log_tablet_dir = prefix + info.remote_log_tablet_dir
    assert offsets_of(info) == list(range(0, 100, 10))
    assert offsets_of(info, threads=1, segments=1, reads=1) == list(range(0, 100, 10))


def test_the_first_segment_from_its_start_position(tmp_path):
    info = write_segments(tmp_path, [3, 2])
    info.first_start_pos = len(log_batch(0, 10)) * 2
    assert offsets_of(info) == [20, 30, 40]


def test_reading_ahead_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 500)
    info = write_segments(tmp_path, [10] * 6)
    reads = []
    read = remote._Segment.read

    def counted(self, position):
        reads.append(position)
        return read(self, position)

    monkeypatch.setattr(remote._Segment, "read", counted)

    async def run():
        reader = remote_reader()
        blocks = reader.blocks(info, no_wait)
        await anext(blocks)
        await asyncio.sleep(0.2)
        ahead = len(reads)
        await blocks.aclose()
        reader.close()
        return ahead

    assert 1 <= asyncio.run(run()) <= 5


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "start"])
def test_damaged_segments_are_errors(tmp_path, damage):
    info = write_segments(tmp_path, [3])
    [path] = tmp_path.glob("*/*.log")
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-5])
    elif damage == "garbage":
        path.write_bytes(data[: len(data) // 3] + b"\xff" * 100)
    else:
        info.first_start_pos = len(data) + 1
    with pytest.raises(StorageError if damage == "missing" else FormatError, match="remote log segment"):
        offsets_of(info)


# -- a whole scan -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxy():
    with FaultProxy() as proxy, ProxiedServer(proxy):
        yield proxy


@pytest.fixture
def tiered(proxy, tmp_path, database):
    """Open a table of 100 rows whose first 60 the "server" gives as remote segments; gives it with what it says."""

    @contextlib.asynccontextmanager
    async def opened(**options):
        info = write_segments(tmp_path, [2, 3, 1])
        config = fluss.Config({"bootstrap.servers": proxy.address, **options})
        async with open_table(config, database, FIELDS) as (conn, table):
            writer = table.new_append().create_writer()
            for start in range(0, 100, 10):
                ids = list(range(start, start + 10))
                batch = pa.RecordBatch.from_pydict({"id": ids, "name": [f"{i:010d}" for i in ids]})
                await writer.write_arrow_batch(batch).wait()
            table_id = table.get_table_info().table_id

            def judge(api_key, body):
                if api_key != apis.FETCH_LOG.key:
                    return None
                request = messages.FetchLogRequest.FromString(bytes(body))
                [asked] = request.tables_req[0].buckets_req
                if asked.fetch_offset >= 60:
                    return None
                bucket = FetchedBucket(
                    partition_id=None, bucket_id=0, high_watermark=100, log_start_offset=0, remote_log_fetch_info=info
                )
                parts = encode_fetch_log_response([FetchedTable(table_id, [bucket])])
                return Answer(b"".join(bytes(part) for part in parts))

            proxy.on_request = judge
            try:
                yield conn, table, info
            finally:
                proxy.calm()

    return opened


@pytest.mark.parametrize("preference", ["local-first", "remote-first"])
async def test_servers_are_told_where_rows_are_wanted_from(proxy, database, preference):
    asked = []

    def judge(api_key, body):
        if api_key == apis.FETCH_LOG.key:
            asked.append(messages.FetchLogRequest.FromString(bytes(body)).read_preference)

    config = fluss.Config({"bootstrap.servers": proxy.address, "client.scanner.log.read-preference": preference})
    async with open_table(config, database, FIELDS) as (_, table):
        await table.new_append().create_writer().append((1, "a")).wait()
        proxy.on_request = judge
        try:
            scanner = await table.new_scan().create_record_batch_log_scanner()
            scanner.subscribe_from_beginning(0)
            assert (await scanner.to_arrow()).num_rows == 1
            await scanner.close()
        finally:
            proxy.calm()
        assert set(asked) == {0 if preference == "local-first" else 1}


async def test_a_scan_goes_from_remote_to_local(tiered):
    async with tiered() as (_, table, _):
        async with batches_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
            assert (await scanner.to_arrow()).column("id").to_pylist() == list(range(100))
            scanner.subscribe(0, 33)
            assert (await scanner.to_arrow()).column("id").to_pylist() == list(range(33, 100))
        async with records_from(5, table.new_scan().project([1])) as scanner:
            records = await poll_all(scanner, 95)
            assert [record.offset for record in records] == list(range(5, 100))
            assert records[0].row == {"name": "0000000005"}
        filtered = table.new_scan().filter(fluss.col("id").is_in([1, 59, 60, 99]))
        async with batches_from(0, filtered) as scanner:
            assert (await scanner.to_arrow()).column("id").to_pylist() == [1, 59, 60, 99]


async def test_a_segment_that_ends_too_early_is_noticed(tiered, tmp_path):
    async with tiered() as (_, table, info):
        path = tmp_path / info.remote_log_segments[2].remote_log_segment_id / f"{50:020d}.log"
        path.write_bytes(b"")
        async with batches_from(0, table.new_scan()) as scanner:
            with pytest.raises(FormatError, match="ends at offset 50, but its last segment should reach 60"):
                await scanner.to_arrow()


async def test_a_segment_that_is_not_there_yet_is_tried_again(tiered, tmp_path):
    async with tiered() as (_, table, info):
        path = tmp_path / info.remote_log_segments[1].remote_log_segment_id / f"{20:020d}.log"
        hidden = path.with_suffix(".hidden")
        path.rename(hidden)
        async with batches_from(0, table.new_scan()) as scanner:
            reading = asyncio.ensure_future(scanner.to_arrow())
            await asyncio.sleep(0.2)
            hidden.rename(path)
            assert (await reading).column("id").to_pylist() == list(range(100))


async def test_unsubscribing_ends_a_remote_read(tiered, monkeypatch):
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 200)
    options = {"scanner.log.max-poll-records": 5, "scanner.log.fetch.max-bytes-for-bucket": 300}
    async with tiered(**options) as (_, table, _), records_from(0, table.new_scan()) as scanner:
        await scanner.poll(5000)
        scanner.unsubscribe(0)
        scanner.subscribe(0, 58)
        assert [record.offset for record in await poll_all(scanner, 42)] == list(range(58, 100))


async def test_earliest_is_where_the_remote_log_begins(tiered):
    async with tiered() as (_, table, info):
        del info.remote_log_segments[0]
        async with records_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
            offsets = [record.offset for record in await poll_all(scanner, 80)]
            assert offsets == list(range(20, 100)), "what was before it is gone"


async def test_batches_out_of_place_are_noticed(tiered, tmp_path):
    async with tiered() as (_, table, info):
        path = tmp_path / info.remote_log_segments[1].remote_log_segment_id / f"{20:020d}.log"
        path.write_bytes(log_batch(20, 10) + log_batch(40, 10) + log_batch(30, 10))
        async with batches_from(0, table.new_scan()) as scanner:
            with pytest.raises(FormatError, match="where offset 30 is due"):
                await scanner.to_arrow()


async def test_a_remote_read_goes_on_when_other_buckets_make_room(config, database, tmp_path, monkeypatch):
    """What all buckets hold is bounded together: a read that waits for room has nothing itself that could be taken."""
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 500)
    info = write_segments(tmp_path, [4])
    async with open_table(config, database, FIELDS, bucket_count=2) as (_, table):
        table_id = table.get_table_info().table_id
        fetcher = table.new_scan()._plan.fetcher(FetchOptions(10_000, 20_000), eager=False)
        tiered, other = (Subscription(fluss.TableBucket(table_id, number), 0) for number in (0, 1))
        fetcher.subscriptions = {one.bucket: one for one in (tiered, other)}
        try:
            await fetcher._enqueue(other, memoryview(log_batch(0, 10)), projected=False)
            fetcher._buffered_bytes_max = fetcher.buffered_bytes()
            tiered.remote = asyncio.ensure_future(fetcher._read_remote(tiered, info))
            await asyncio.sleep(0.05)
            assert not tiered.queue, "there is no room"
            fetcher._asked = True
            rows = 0
            while rows < 50:
                found = await fetcher.next(5)
                assert found is not None, "the remote read waits for ever"
                rows += found[1].num_records
        finally:
            await fetcher.close()
