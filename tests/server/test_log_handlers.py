# SPDX-License-Identifier: Apache-2.0
"""The log over the wire: produce, fetch, offsets, limit scan, statistics, retention."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.server.catalog.support import drop_table
from tests.server.log_support import (
    ARROW_SCHEMA,
    SCHEMA,
    Client,
    FakeClock,
    connected,
    fetch_request,
    flip,
    ids_of,
    make_batch,
    running_server,
)
from tests.waiting import at_most

from fluss.errors import ErrorCode, InvalidRequiredAcksError
from fluss.metadata import TableBucket, col
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.predicates import encode_predicate
from fluss.protocol.record_messages import encode_produce_log


async def test_produce_and_fetch(client: Client, table: int) -> None:
    assert (await client.produce(table, make_batch(0))).base_offset == 0
    answer = await client.produce(table, make_batch(3), make_batch(6))
    assert answer.base_offset == 3
    assert not answer.HasField("error_code")
    fetched = await client.fetch(table, -2)
    assert ids_of(fetched.records) == list(range(9))
    assert fetched.high_watermark == 9
    assert not fetched.HasField("error_code")
    end = await client.fetch(table, 9)
    assert (end.records, end.high_watermark, end.HasField("records")) == (b"", 9, True)


@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_every_acks_setting_is_answered(client: Client, table: int, acks: int) -> None:
    assert (await client.produce(table, make_batch(0), acks=acks)).base_offset == 0
    fetched = await client.fetch(table, 0, min_bytes=1, max_wait_ms=5000)
    assert ids_of(fetched.records) == [0, 1, 2]


async def test_errors_of_a_bucket_are_answered_with_it(client: Client) -> None:
    table = await client.create_table(buckets=2)
    bad = make_batch(0)
    bad[-1] ^= 1
    body = encode_produce_log(-1, table, 1000, [(None, 0, [bad]), (None, 1, [make_batch(0)]), (None, 2, [bad])])
    answer = pb.ProduceLogResponse.FromString(bytes(await client.connection.call_parts(apis.PRODUCE_LOG, body)))
    codes = {part.bucket_id: part.error_code for part in answer.buckets_resp}
    assert codes == {0: ErrorCode.CORRUPT_RECORD_EXCEPTION, 1: 0, 2: ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION}
    stale = await client.produce(table + 1000, make_batch(0))
    assert stale.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    gap = await client.produce(table, make_batch(0, writer_id=5, sequence=3))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
    assert "writer 5" in gap.error_message
    assert (await client.fetch(table, 7)).error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    assert (await client.fetch(table + 1, 0)).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    with pytest.raises(InvalidRequiredAcksError):
        await client.produce(table, make_batch(0), acks=2)


async def test_pipelined_requests_keep_their_order(client: Client) -> None:
    """Five requests at a time over two buckets, large and small ones mixed."""
    table = await client.create_table(buckets=2)
    calls = []
    first = [0, 0]
    for sequence in range(40):
        parts = []
        for bucket in (0, 1):
            count = 6000 if (sequence + bucket) % 4 == 0 else 2
            batch = make_batch(first[bucket], count, writer_id=9, sequence=sequence)
            parts.append((None, bucket, [batch]))
            first[bucket] += count
        calls.append(client.connection.call_parts(apis.PRODUCE_LOG, encode_produce_log(-1, table, 9000, parts)))
    for raw in await asyncio.gather(*calls):
        for part in pb.ProduceLogResponse.FromString(bytes(raw)).buckets_resp:
            assert not part.HasField("error_code"), part
    for bucket in (0, 1):
        seen: list[int] = []
        while len(seen) < first[bucket]:
            seen += ids_of((await client.fetch(table, len(seen), bucket=bucket)).records)
        assert seen == list(range(first[bucket]))


async def test_duplicates_over_a_restart(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, connected(server) as client:
        table = await client.create_table()
        for sequence in range(3):
            await client.produce(table, make_batch(sequence * 3, writer_id=4, sequence=sequence))
    async with running_server(tmp_path) as server, connected(server) as client:
        again = await client.produce(table, make_batch(3, writer_id=4, sequence=1))
        assert again.base_offset == 3
        assert not again.HasField("error_code")
        assert (await client.produce(table, make_batch(9, writer_id=4, sequence=3))).base_offset == 9
        assert ids_of((await client.fetch(table, 0)).records) == list(range(12))


class TestWaiting:
    async def test_without_min_bytes_the_answer_comes_at_once(self, client: Client, table: int) -> None:
        with at_most(20):
            assert (await client.fetch(table, 0, max_wait_ms=25_000)).records == b""

    async def test_an_append_wakes_the_waiter(self, client: Client) -> None:
        table = await client.create_table(buckets=2)
        fetch = asyncio.ensure_future(client.fetch(table, 0, bucket=1, min_bytes=1, max_wait_ms=20_000))
        await asyncio.sleep(0.1)
        assert not fetch.done()
        # The waiting fetch does not hold up other requests of the connection.
        await client.produce(table, make_batch(0), bucket=0)
        assert not fetch.done()
        with at_most(5):
            await client.produce(table, make_batch(0), bucket=1)
            assert ids_of((await fetch).records) == [0, 1, 2]

    async def test_min_bytes_are_waited_for(self, client: Client, table: int) -> None:
        size = len(make_batch(0))
        fetch = asyncio.ensure_future(client.fetch(table, 0, min_bytes=size * 2, max_wait_ms=20_000))
        await client.produce(table, make_batch(0))
        await asyncio.sleep(0.05)
        assert not fetch.done()
        await client.produce(table, make_batch(3))
        assert ids_of((await fetch).records) == list(range(6))

    async def test_time_over_answers_with_what_there_is(self, client: Client, table: int) -> None:
        await client.produce(table, make_batch(0))
        started = time.monotonic()
        fetched = await client.fetch(table, 0, min_bytes=1 << 20, max_wait_ms=150)
        assert 0.1 < time.monotonic() - started < 5
        assert ids_of(fetched.records) == [0, 1, 2]

    async def test_drop_wakes_the_waiter(self, client: Client, table: int) -> None:
        await client.produce(table, make_batch(0))
        fetch = asyncio.ensure_future(client.fetch(table, 3, min_bytes=1, max_wait_ms=20_000))
        await asyncio.sleep(0.05)
        await client.send(drop_table())
        await asyncio.wait_for(fetch, 5)
        late = await client.fetch(table, 0)
        assert late.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        new = await client.create_table()
        assert new != table
        assert (await client.produce(new, make_batch(0))).base_offset == 0


async def test_limits_hold_over_buckets(client: Client) -> None:
    """The first bucket with data gets a batch whatever its size; the others obey the limit of the request."""
    table = await client.create_table(buckets=3)
    for bucket in (1, 2):
        await client.produce(table, make_batch(0), bucket=bucket)
    request = fetch_request(table, 0, buckets=range(3))
    request.max_bytes = 10
    sizes = [len(part.records) for part in (await client.send(request)).tables_resp[0].buckets_resp]
    assert sizes == [0, len(make_batch(0)), 0]


class TestProjection:
    async def test_only_the_wanted_columns_come(self, client: Client, table: int) -> None:
        await client.produce(table, make_batch(0, 100))
        fetched = await client.fetch(table, 0, columns=[0])
        assert ids_of(fetched.records, pa.schema([ARROW_SCHEMA.field(0)])) == list(range(100))
        assert len(fetched.records) < len(make_batch(0, 100)) / 2

    @pytest.mark.parametrize("columns", [[], [1, 0], [1, 1], [3], [-1]])
    async def test_invalid_columns_are_refused(self, client: Client, table: int, columns: list[int]) -> None:
        await client.produce(table, make_batch(0))
        answer = await client.fetch(table, 0, columns=columns)
        assert answer.error_code == ErrorCode.INVALID_COLUMN_PROJECTION

    async def test_row_formats_cannot_be_projected(self, client: Client) -> None:
        table = await client.create_table(table_log_format="INDEXED")
        assert (await client.fetch(table, 0, columns=[0])).error_code == ErrorCode.INVALID_COLUMN_PROJECTION


async def test_filter_leaves_out_batches_that_cannot_match(client: Client) -> None:
    table = await client.create_table(table_statistics_columns="*")
    for first in (0, 10, 20):
        await client.produce(table, make_batch(first, 10, statistics=True))
    request = fetch_request(table, 0)
    [asked] = request.tables_req
    asked.filter_schema_id = 1
    asked.filter_predicate.CopyFrom(encode_predicate((col("id") == 15).resolve(SCHEMA), SCHEMA))
    [part] = (await client.send(request)).tables_resp[0].buckets_resp
    assert ids_of(part.records) == list(range(10, 20))
    assert part.filtered_end_offset == 30
    # A schema that the server does not know: the filter is ignored.
    asked.filter_schema_id = 99
    [part] = (await client.send(request)).tables_resp[0].buckets_resp
    assert ids_of(part.records) == list(range(30))
    assert not part.HasField("filtered_end_offset")


async def test_list_offsets(tmp_path: Path, clock: FakeClock) -> None:
    async with running_server(tmp_path, clock) as server, connected(server) as client:
        table = await client.create_table()
        assert (await client.offsets(table, 0)).offset == 0
        assert (await client.offsets(table, 1)).offset == 0
        assert (await client.offsets(table, 2, clock.time_ms)).offset == 0
        times = []
        for number in range(3):
            clock.time_ms += 100
            times.append(clock.time_ms)
            await client.produce(table, make_batch(number * 3))
        clock.time_ms += 100
        assert [(await client.offsets(table, kind)).offset for kind in (0, 1, 3)] == [0, 9, 9]
        assert [(await client.offsets(table, 2, at)).offset for at in times] == [0, 3, 6]
        assert (await client.offsets(table, 2, times[2] + 1)).offset == 9
        future = await client.offsets(table, 2, clock.time_ms + 1)
        assert future.error_code == ErrorCode.INVALID_TIMESTAMP_EXCEPTION
        assert (await client.offsets(table, 9)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await client.offsets(table + 5, 0)).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


async def test_limit_scan_returns_the_last_rows(tmp_path: Path) -> None:
    async with running_server(tmp_path, log_segment_file__size="1kb") as server, connected(server) as client:
        table = await client.create_table()
        for number in range(6):
            await client.produce(table, make_batch(number * 3))
        assert len(server.tablets.tablet(TableBucket(table, 0)).segments) > 1
        for limit, first in ((1, 15), (3, 15), (4, 12), (7, 9), (100, 0)):
            answer = await client.send(pb.LimitScanRequest(table_id=table, bucket_id=0, limit=limit))
            assert ids_of(answer.records) == list(range(first, 18))
            assert answer.is_log_table
        refused = await client.call(apis.LIMIT_SCAN, pb.LimitScanRequest(table_id=table, bucket_id=0, limit=0))
        assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_writer_ids_and_statistics(tmp_path: Path) -> None:
    ids: list[int] = []
    for _ in range(2):
        async with running_server(tmp_path) as server, connected(server) as client:
            answers = [await client.call(apis.INIT_WRITER, pb.InitWriterRequest()) for _ in range(3)]
            ids += [answer.writer_id for answer in answers]
    assert ids == sorted(set(ids))
    async with running_server(tmp_path) as server, connected(server) as client:
        table = await client.create_table()
        await client.produce(table, make_batch(0, 7))
        request = pb.GetTableStatsRequest(table_id=table)
        request.buckets_req.add(bucket_id=0)
        [part] = (await client.call(apis.GET_TABLE_STATS, request)).buckets_resp
        assert part.row_count == 7


async def test_expired_segments_go_and_new_ones_stay(tmp_path: Path, clock: FakeClock) -> None:
    async with running_server(tmp_path, clock, log_segment_file__size="1b") as server, connected(server) as client:
        table = await client.create_table(table_log_ttl="1 h")
        kept = await client.create_table("kept", table_log_ttl="0 s")
        for name in (table, kept):
            await client.produce(name, make_batch(0))
            await client.produce(name, make_batch(3))
        clock.time_ms += 30 * 60_000
        await client.produce(table, make_batch(6))
        clock.time_ms += 31 * 60_000
        await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == 6
        assert (await client.fetch(table, 3)).error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
        assert ids_of((await client.fetch(table, -2)).records) == [6, 7, 8]
        assert (await client.offsets(kept, 0)).offset == 0
    async with running_server(tmp_path, clock) as server, connected(server) as client:
        assert (await client.offsets(table, 0)).offset == 6


async def test_damage_stays_in_its_bucket(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, connected(server) as client:
        table = await client.create_table(buckets=2)
        for bucket in (0, 1):
            await client.produce(table, make_batch(0), bucket=bucket)
        folder = server.tablets.tablet(TableBucket(table, 0)).folder
    path = folder / f"{0:020d}.log"
    flip(path, 100, 4)
    async with running_server(tmp_path) as server, connected(server) as client:
        broken = await client.fetch(table, 0, bucket=0)
        assert broken.error_code == ErrorCode.CORRUPT_MESSAGE
        assert str(path) in broken.error_message
        assert not broken.records
        assert ids_of((await client.fetch(table, 0, bucket=1)).records) == [0, 1, 2]
        assert (await client.produce(table, make_batch(3), bucket=1)).base_offset == 3


async def test_leftovers_of_a_drop_are_removed_at_start(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, connected(server) as client:
        table = await client.create_table()
        await client.produce(table, make_batch(0))
        kept = server.tablets.tablet(TableBucket(table, 0)).folder
    orphan = kept.parent.parent / f"t-{table + 7}" / "log-0"
    orphan.mkdir(parents=True)
    (orphan / f"{0:020d}.log").write_bytes(b"x" * 100)
    async with running_server(tmp_path):
        assert not orphan.parent.exists()
        assert kept.exists()


@pytest.mark.parametrize("name", ["t-{id}.bak", "t-old-{id}", "../zz-copies/t-{id}"])
async def test_copies_of_an_operator_are_left_alone_at_start(tmp_path: Path, name: str) -> None:
    """They are neither deleted nor served in place of the table."""
    async with running_server(tmp_path) as server, connected(server) as client:
        table = await client.create_table()
        await client.produce(table, make_batch(0))
        folder = server.tablets.tablet(TableBucket(table, 0)).folder.parent
    copy = folder.parent / name.format(id=table)
    shutil.copytree(folder, copy)
    async with running_server(tmp_path) as server, connected(server) as client:
        await client.produce(table, make_batch(3))
        assert server.tablets.tablet(TableBucket(table, 0)).folder.parent == folder
        assert copy.exists()
