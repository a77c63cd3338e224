# SPDX-License-Identifier: Apache-2.0
"""Log scanners against the embedded server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time

import polars as pl
import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS as FIELDS
from tests.client.support import batches_from, open_table, poll_all, records_from
from tests.client.support import fill_log as fill
from tests.threads import in_background
from tests.waiting import at_most, wait_until

import fluss
import fluss.aio
from fluss.client.scan import decode as decoding
from fluss.client.scan import fetcher
from fluss.client.scan.decode import BatchDecoder


async def test_records(table):
    before = int(time.time() * 1000) - 5000
    await fill(table)
    async with records_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
        records = await poll_all(scanner, 100)
        assert [record.offset for record in records] == list(range(100))
        assert records[7].row == {"id": 7, "name": "n7", "score": 3.5}
        assert records[7].change_type is fluss.ChangeType.AppendOnly
        assert before < records[7].timestamp < before + 60_000
        assert len(await scanner.poll(20)) == 0
        assert "row={'id': 7" in repr(records[7])


@pytest.mark.client(scanner_log_max_poll_records=30)
async def test_a_poll_gives_no_more_than_asked_and_keeps_the_rest(table):
    await fill(table)
    async with records_from(0, table.new_scan()) as scanner:
        sizes, ids = [], []
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        while len(ids) < 100:
            records = await scanner.poll(5000)
            sizes.append(len(records))
            ids += [record.row["id"] for record in records]
            assert scanner.get_subscribed_buckets() == [(bucket, len(ids))], "the position is what was handed out"
        assert ids == list(range(100))
        assert max(sizes) <= 30
        scanner.subscribe(0, 60)
        assert (await scanner.poll(5000))[0].offset == 60, "what was left over went with the subscription"


async def test_starts_in_the_middle_of_a_batch(table):
    await fill(table, batches=3, rows=20)
    async with batches_from(33, table.new_scan()) as scanner:
        [first, *_] = await scanner.poll_record_batch(5000)
        assert (first.base_offset, first.last_offset) == (33, 39)
        assert first.batch.column("id").to_pylist() == list(range(33, 40))
        scanner.subscribe(0, 33)
        assert (await scanner.to_arrow()).column("id").to_pylist() == list(range(33, 60))


async def test_latest_means_from_now_on(table):
    writer = await fill(table)
    async with records_from(fluss.LATEST_OFFSET, table.new_scan()) as scanner:
        await scanner.resolved()
        await fill(table, batches=1, rows=5, writer=writer)
        records = await poll_all(scanner, 5)
        assert [record.offset for record in records] == list(range(100, 105))
        scanner.subscribe(0, fluss.LATEST_OFFSET)
        scanner.subscribe(0, 3)
        assert (await scanner.poll(5000))[0].offset == 3, "the later subscription counts"
        scanner.subscribe(0, fluss.LATEST_OFFSET)
        scanner.unsubscribe(0)
        assert scanner.get_subscribed_buckets() == []
        assert len(await scanner.poll(10)) == 0


@pytest.mark.parametrize("offset", [101, 10**12])
async def test_offsets_out_of_range_are_an_error(table, offset):
    await fill(table)
    async with records_from(offset, table.new_scan()) as scanner:
        for _ in range(2):
            with pytest.raises(fluss.LogOffsetOutOfRangeError):
                await scanner.poll(5000)
        scanner.subscribe(0, 99)
        assert len(await scanner.poll(5000)) == 1
        scanner.subscribe(0, 100)
        assert len(await scanner.poll(50)) == 0, "the end itself is fine"


async def test_calls_that_make_no_sense(table):
    records = await table.new_scan().create_log_scanner()
    batches = await table.new_scan().create_record_batch_log_scanner()
    for call, problem in (
        (lambda: records.poll(10), "No buckets subscribed"),
        (lambda: batches.to_arrow(), "No buckets subscribed"),
        (lambda: records.poll_arrow(10), "create_record_batch_log_scanner"),
        (lambda: records.poll_record_batch(10), "create_record_batch_log_scanner"),
        (lambda: records.poll_batches(10), "create_record_batch_log_scanner"),
        (lambda: records.to_arrow(), "create_record_batch_log_scanner"),
        (lambda: batches.poll(10), "create_log_scanner"),
        (lambda: table.new_scan().limit(3).create_log_scanner(), "limit"),
    ):
        with pytest.raises(fluss.InvalidArgumentError, match=problem):
            await call()
    for call, problem in (
        (lambda: records.subscribe(1, 0), "bucket 1 does not exist"),
        (lambda: records.subscribe(0, -5), "-5"),
        (lambda: records.subscribe_buckets({}), "no buckets were given"),
        (lambda: records.subscribe_partition(1, 0, 0), "not partitioned"),
        (lambda: table.new_scan().project_by_name(["x"]), "Unknown column name 'x'"),
        (lambda: table.new_scan().filter("id > 3"), r"such as fluss\.col"),
    ):
        with pytest.raises(fluss.InvalidArgumentError, match=problem):
            call()
    for bad in ([7], [], [0, 0], ["id"]):
        with pytest.raises(fluss.InvalidArgumentError):
            table.new_scan().project(bad)
    with pytest.raises(fluss.FlussError, match="x"):
        table.new_scan().filter(fluss.col("x") > 3)
    await records.close()
    await records.close()
    with pytest.raises(fluss.ConnectionClosedError):
        await records.poll(10)
    with pytest.raises(fluss.ConnectionClosedError):
        records.subscribe(0, 0)
    await batches.close()


@pytest.mark.parametrize("log_format", ["ARROW", "INDEXED", "COMPACTED"])
@pytest.mark.parametrize("columns", [[0], [2], [2, 0], [1, 2, 0]])
async def test_projection_keeps_the_order_asked_for(config, database, log_format, columns):
    names = [FIELDS[i][0] for i in columns]
    async with open_table(config, database, FIELDS, log_format=log_format) as (_, table):
        await fill(table, batches=2, rows=10)
        for scan in (table.new_scan().project(columns), table.new_scan().project_by_name(names)):
            async with await scan.create_record_batch_log_scanner() as scanner:
                assert scanner.arrow_schema.names == names
                scanner.subscribe(0, 5)
                whole = await scanner.to_arrow()
                assert whole.column_names == names
                assert whole.column(names.index("id")).to_pylist() == list(range(5, 20)) if "id" in names else True
                polled = await scanner.poll_arrow(5000)
                assert polled.column_names == names
            async with records_from(0, scan) as scanner:
                [record, *_] = await scanner.poll(5000)
                assert list(record.row) == names


async def test_to_arrow_leaves_the_position_alone(table):
    writer = await fill(table, batches=2, rows=10)
    async with batches_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
        assert (await scanner.to_arrow()).num_rows == 20
        assert (await scanner.to_arrow()).num_rows == 20
        polled = 0
        while polled < 20:
            polled += (await scanner.poll_arrow(5000)).num_rows
        assert (await scanner.to_arrow()).num_rows == 0, "from where the poll stands"
        await fill(table, batches=1, rows=7, writer=writer)
        assert (await scanner.to_arrow()).num_rows == 7
        assert len(await scanner.to_pandas()) == 7
        assert (await scanner.to_polars()).height == 7


async def test_an_empty_table(table):
    async with batches_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
        found = await scanner.to_arrow()
        assert found.num_rows == 0
        assert found.schema.names == ["id", "name", "score"]
        assert (await scanner.poll_arrow(20)).schema == found.schema
        assert list(scanner.to_arrow_batch_reader()) == []


@pytest.mark.client(scanner_log_max_poll_records=40)
async def test_lag(table):
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    await fill(table)
    async with records_from(0, table.new_scan()) as scanner:
        assert scanner.lag() == {bucket: None}
        await scanner.poll(5000)
        left = 100 - scanner.get_subscribed_buckets()[0][1]
        assert 60 <= left < 100
        assert scanner.lag() == {bucket: left}
        await poll_all(scanner, left)
        assert scanner.lag() == {bucket: 0}


@pytest.mark.client(writer_bucket_no_key_assigner="round_robin", scanner_log_max_poll_records=10)
@pytest.mark.table(bucket_count=4)
async def test_buckets_take_turns(table, writer):
    for _ in range(10):
        for i in range(40):
            writer.append((i, "x", 0.0))
        await writer.flush()
    async with await table.new_scan().create_log_scanner() as scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(4), fluss.EARLIEST_OFFSET))
        seen, count = [], 0
        while count < 400:
            records = await scanner.poll(5000)
            if not count:
                await asyncio.sleep(0.3)  # the answers for all buckets are here when the next ones are taken
            count += len(records)
            seen += [bucket.bucket_id for bucket in records.buckets()]
        assert len(set(seen[:8])) >= 3, "no bucket starves the others"
        assert sorted(b.bucket_id for b, _ in scanner.get_subscribed_buckets()) == [0, 1, 2, 3]


async def test_subscriptions_change_while_a_poll_waits(table):
    writer = await fill(table, batches=1, rows=10)
    async with records_from(10, table.new_scan()) as scanner:
        waiting = asyncio.ensure_future(scanner.poll(10_000))
        await asyncio.sleep(0.1)
        scanner.subscribe(0, 4)
        assert [record.offset for record in await waiting] == list(range(4, 10))
        waiting = asyncio.ensure_future(scanner.poll(3_600_000))
        await asyncio.sleep(0.1)
        scanner.unsubscribe(0)
        assert len(await asyncio.wait_for(waiting, 30)) == 0, "nothing is subscribed any more"
        scanner.subscribe(0, 10)
        await fill(table, batches=1, rows=3, writer=writer)
        assert len(await poll_all(scanner, 3)) == 3
        waiting = asyncio.ensure_future(scanner.poll(10_000))
        await asyncio.sleep(0.05)
        await scanner.close()
        assert len(await waiting) == 0


async def test_unsubscribing_from_another_thread_does_not_cancel_a_poll(table, plain):
    await fill(table, batches=20, rows=50)
    scanner = await plain[1].new_scan().create_log_scanner()
    offsets = []

    def change(_):
        scanner.subscribe(0, 500)
        scanner.unsubscribe(0)
        scanner.subscribe(0, 0)
        time.sleep(0.01)

    scanner.subscribe(0, 0)
    with in_background(change):
        for _ in range(100):
            with contextlib.suppress(fluss.InvalidArgumentError):  # just then nothing was subscribed
                offsets += [record.offset for record in scanner.poll(20)]
    assert offsets


# -- bounded memory ---------------------------------------------------------------------------------------------------


async def test_nothing_is_fetched_twice_for_a_bounded_read(conn, table):
    await fill(table)
    async with batches_from(0, table.new_scan()) as scanner:
        await asyncio.sleep(0.1)
        assert conn.metrics()["scanner_fetches_total"] == 0, "no batch was requested yet"
        assert (await scanner.to_arrow()).num_rows == 100
        assert conn.metrics()["scanner_rows_total"] == 100
        assert (await scanner.poll_arrow(5000)).num_rows == 100
    async with await table.new_scan().create_log_scanner() as scanner:
        fetched = conn.metrics()["scanner_fetches_total"]
        scanner.subscribe(0, 0)
        await asyncio.sleep(0.1)
        assert conn.metrics()["scanner_fetches_total"] > fetched, "records can only be polled: that may begin"


@pytest.mark.client(
    scanner_log_fetch_max_bytes_for_bucket=20_000, scanner_log_fetch_max_bytes=50_000, writer_batch_size=60_000
)
@pytest.mark.table(properties={"table.log.arrow.compression.type": "NONE"})
async def test_a_slow_consumer_does_not_buffer_the_table(conn, table, writer):
    for start in range(0, 20_000, 500):
        ids = list(range(start, start + 500))
        names = [f"{i:020d}" * 5 for i in ids]
        writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": ids, "name": names}))
    await writer.flush()
    async with batches_from(0, table.new_scan()) as scanner:
        first = await scanner.poll_arrow(1000)
        assert first.nbytes < 500_000, "one poll does not give the whole table either"
        await asyncio.sleep(0.5)
        held = scanner._fetcher.buffered_bytes()
        assert 0 < held < 40_000 + 100_000, "two fetches' worth, and whole batches"
        assert conn.metrics()["scanner_buffer_bytes"] == held
        rows = first.num_rows
        while rows < 20_000:
            rows += (await scanner.poll_arrow(5000)).num_rows
        assert rows == 20_000
    read = 0
    reader = table.new_scan().read_batches({fluss.TableBucket(table.get_table_info().table_id, 0): 0})
    async for found in reader:
        read += found.num_records
        await asyncio.sleep(0.001)
    assert read == 20_000


@pytest.mark.client(scanner_log_fetch_wait_max_time_ms=20)
async def test_a_scanner_that_is_dropped_stops_fetching(conn, table):
    await fill(table)
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    await poll_all(scanner, 100)
    del scanner
    gc.collect()
    await asyncio.sleep(0.1)
    fetches = conn.metrics()["scanner_fetches_total"]
    await asyncio.sleep(0.2)
    assert conn.metrics()["scanner_fetches_total"] == fetches


@pytest.mark.client(scanner_log_fetch_min_bytes=0)
async def test_a_server_that_does_not_wait_is_not_asked_all_the_time(conn, table):
    async with records_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
        await scanner.poll(500)
        assert conn.metrics()["scanner_fetches_total"] < 60


# -- readers and iteration --------------------------------------------------------------------------------------------


async def test_batch_reader_on_the_loop_itself(config, database):
    await asyncio.to_thread(int)  # starts the thread of the loop itself
    before = threading.active_count()
    async with open_table(config, database, FIELDS) as (_, table):
        await fill(table)
        async with batches_from(10, table.new_scan().project([1])) as scanner:
            reader = scanner.to_arrow_batch_reader()
            assert reader.schema.names == ["name"]
            for call in (
                lambda: scanner.subscribe(0, 0),
                lambda: scanner.unsubscribe(0),
                scanner.to_arrow_batch_reader,
            ):
                with pytest.raises(fluss.InvalidArgumentError, match="Reader is active"):
                    call()
            assert reader.read_all().column(0).to_pylist() == [f"n{i}" for i in range(10, 100)]
            scanner.subscribe(0, 95)
            dropped = scanner.to_arrow_batch_reader()
            dropped.read_next_batch()
            del dropped
            gc.collect()
            scanner.subscribe(0, 96)
            # In a thread, while the loop goes on.
            reader = scanner.to_arrow_batch_reader()
            assert (await asyncio.to_thread(reader.read_all)).num_rows == 4
    await wait_until(lambda: threading.active_count() <= before)


async def test_batch_reader_of_the_plain_face(table, plain):
    await fill(table)
    conn, table = plain
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 0)
    opened = conn.metrics()["connections_opened_total"]
    reader = scanner.to_arrow_batch_reader()
    with pytest.raises(fluss.InvalidArgumentError, match="Reader is active"):
        scanner.subscribe(0, 0)
    rows = sum(batch.num_rows for batch in reader)
    assert rows == 100
    assert conn.metrics()["connections_opened_total"] == opened, "it reads through the connection it has"
    scanner.subscribe(0, 0)
    conn.close()
    with pytest.raises(fluss.FlussError):
        scanner.to_arrow()


async def test_iteration_and_break(table):
    await fill(table)
    async with records_from(90, table.new_scan()) as scanner:
        offsets = []
        async for record in scanner:
            offsets.append(record.offset)
            if record.offset == 95:
                break
        assert offsets == list(range(90, 96))
    async with batches_from(30, table.new_scan()) as scanner:
        async for batch in scanner:
            assert isinstance(batch, fluss.RecordBatch)
            assert (batch.base_offset, batch.last_offset) == (30, 49)
            break
    reader = table.new_scan().read_batches({fluss.TableBucket(table.get_table_info().table_id, 0): 0})
    assert (await anext(reader)).num_records
    await reader.aclose()


async def test_reading_between_offsets(table):
    await fill(table)
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    found = [b async for b in table.new_scan().read_batches({bucket: 10}, {bucket: 61})]
    assert [i for b in found for i in b.batch.column("id").to_pylist()] == list(range(10, 61))
    assert found[-1].last_offset == 60
    assert [b async for b in table.new_scan().read_batches({bucket: 5}, {bucket: 5})] == []


# -- changelogs -------------------------------------------------------------------------------------------------------


@pytest.mark.table(keys=["id"])
async def test_the_changelog_of_a_primary_key_table(table, writer):
    for row in [(1, "a", 0.0), (1, "b", 0.0), (2, "c", 0.0)]:
        await writer.upsert(row).wait()
    await writer.delete((2,)).wait()
    async with records_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
        records = await poll_all(scanner, 5)
    changes = [(record.change_type.short_string(), record.row["id"], record.row["name"]) for record in records]
    assert changes == [("+I", 1, "a"), ("-U", 1, "a"), ("+U", 1, "b"), ("+I", 2, "c"), ("-D", 2, "c")]
    async with batches_from(2, table.new_scan().project([1])) as scanner:
        [found, *_] = await scanner.poll_record_batch(5000)
        assert found.change_types[0] == fluss.ChangeType.UpdateAfter
        assert found.batch.column("name")[0].as_py() == "b"


@pytest.mark.table(keys=["id"])
async def test_changes_that_change_nothing_move_the_position(conn, table, writer):
    """Deleting what is not there leaves an empty batch in the log: it must neither stop a scan nor be handed out."""
    for i in range(5):
        await writer.delete((i,)).wait()
    await writer.upsert((1, "a", 0.0)).wait()
    for i in range(5, 9):
        await writer.delete((i,)).wait()
    async with batches_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
        assert (await asyncio.wait_for(scanner.to_arrow(), 10)).num_rows == 1
        polled = await scanner.poll_record_batch(5000)
        assert [found.batch.num_rows for found in polled] == [1]
        await scanner.poll_record_batch(50)
        [(_, position)] = scanner.get_subscribed_buckets()
        admin = conn.get_admin()
        ends = await admin.list_offsets(table.get_table_path(), [0], fluss.OffsetSpec.latest())
        assert position == ends[0]


@pytest.mark.parametrize(("compression", "ahead"), [("NONE", True), ("ZSTD", True), ("ZSTD", False)])
async def test_an_unknown_error_while_decoding_is_raised(config, database, monkeypatch, compression, ahead):
    monkeypatch.setattr(decoding, "_ahead", ahead)

    properties = {"table.log.arrow.compression.type": compression}
    async with open_table(config, database, FIELDS, properties=properties) as (_, table):
        # One batch that is not small: decoded when it is taken without compression, in a thread with it.
        await fill(table, batches=1, rows=20_000)
        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, 0)
        decode = BatchDecoder.decode
        monkeypatch.setattr(BatchDecoder, "decode", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(scanner.poll_arrow(5000), 4)
        monkeypatch.setattr(BatchDecoder, "decode", decode)
        assert (await scanner.poll_arrow(5000)).num_rows == 20_000, "and nothing is passed over"


@pytest.mark.parametrize("ahead", [True, False])
async def test_a_process_that_decodes_what_is_taken_uses_no_thread_for_it(table, monkeypatch, ahead):
    """Where another process keeps every core busy, as among the workers of Spark."""
    monkeypatch.setattr(decoding, "_ahead", True)
    if not ahead:
        decoding.decode_when_taken()
    decode = BatchDecoder.decode
    threads: list[threading.Thread] = []

    def noted(*arguments, **options):
        threads.append(threading.current_thread())
        return decode(*arguments, **options)

    monkeypatch.setattr(BatchDecoder, "decode", noted)
    await fill(table, batches=3, rows=20_000)
    async with batches_from(0, table.new_scan()) as scanner:
        found = await scanner.to_arrow()
    assert found.column("id").to_pylist() == list(range(60_000))
    assert len(threads) == 3
    assert all((thread is threading.current_thread()) is not ahead for thread in threads)


CHANGES = ["insert", "insert", "update_before", "update_after", "delete"]


async def make_changes(table):
    """A changelog of five rows that leaves the row 1."""
    writer = table.new_upsert().create_writer()
    for change in (
        writer.upsert((1, "a", 0.5)),
        writer.upsert((2, "b", 1.5)),
        writer.upsert((1, "c", 0.5)),
        writer.delete((2,)),
    ):
        await change.wait()


@pytest.mark.table(keys=["id"])
async def test_changelog_batches_say_what_their_rows_did(table):
    await make_changes(table)
    async with batches_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
        assert scanner.arrow_schema.names == ["id", "name", "score", "_change_type"]
        whole = await scanner.to_arrow()
        assert whole.schema == scanner.arrow_schema
        assert whole.column("_change_type").to_pylist() == CHANGES
        assert whole.column("name").to_pylist() == ["a", "b", "a", "c", "b"]
        assert list((await scanner.to_pandas())["_change_type"]) == CHANGES
        assert (await scanner.to_polars())["_change_type"].to_list() == CHANGES
        streamed = [found async for found in scanner.read_batches()]
        assert [name for one in streamed for name in one.batch.column("_change_type").to_pylist()] == CHANGES
        batches = await asyncio.to_thread(lambda: list(scanner.to_arrow_batch_reader()))
        assert [name for one in batches for name in one.column("_change_type").to_pylist()] == CHANGES
        polled = []
        while len(polled) < 5:
            polled += (await scanner.poll_arrow(5000)).column("_change_type").to_pylist()
        assert polled == CHANGES
        assert (await scanner.poll_arrow(10)).schema == scanner.arrow_schema
    narrow = table.new_scan().project_by_name(["name"]).filter(fluss.col("id") == 2)
    async with batches_from(fluss.EARLIEST_OFFSET, narrow) as scanner:
        assert (await scanner.to_arrow()).to_pydict() == {"name": ["b", "b"], "_change_type": ["insert", "delete"]}


async def test_changelog_batches_of_the_plain_face(config, database):
    async def scanner_of(conn, path):
        return await (await conn.get_table(path)).new_scan().create_record_batch_log_scanner()

    def read(path):
        with (
            fluss.connect(config.bootstrap_servers, database=database) as db,
            asyncio.run(scanner_of(db.connection, path)) as scanner,
        ):
            scanner.subscribe_from_beginning(0)
            shown = scanner.to_arrow(), scanner.to_pandas(), scanner.to_polars(), pl.DataFrame(scanner)
            names = [list(frame["_change_type"]) for frame in shown[1:]]
            return [shown[0].column("_change_type").to_pylist(), *names], db.table("t").to_arrow().to_pylist()

    async with open_table(config, database, FIELDS, keys=["id"]) as (_, table):
        await make_changes(table)
        changes, rows = await asyncio.to_thread(read, table.get_table_path())
        assert changes == 4 * [CHANGES]
        assert rows == [{"id": 1, "name": "c", "score": 0.5}], "the front door gives current rows, without the column"


async def test_a_log_table_has_no_change_types(table):
    await fill(table)
    async with await table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_from_beginning(0)
        assert (await scanner.to_arrow()).column_names == ["id", "name", "score"]


@pytest.mark.table(partition_keys=["name"])
async def test_from_the_beginning_of_a_partition(conn, table):
    await conn.get_admin().create_partition(table.get_table_path(), {"name": "EU"})
    [partition] = await conn.get_admin().list_partition_infos(table.get_table_path())
    await table.new_append().create_writer().append((1, "EU", 0.5)).wait()
    async with await table.new_scan().create_log_scanner() as scanner:
        with pytest.raises(fluss.InvalidArgumentError, match="is partitioned"):
            scanner.subscribe_from_beginning(0)
        scanner.subscribe_from_beginning(0, partition.partition_id)
        assert [record.row["id"] for record in await scanner.poll(5000)] == [1]


async def test_a_reader_that_is_dropped_half_read_releases_its_buckets(table):
    def drop(scanner):
        reader = scanner.to_arrow_batch_reader()
        with pytest.raises(fluss.InvalidArgumentError, match="RecordBatchLogReader is active"):
            scanner.unsubscribe(0)
        assert next(reader).num_rows
        del reader
        with pytest.raises(fluss.InvalidArgumentError, match="No buckets subscribed"):
            scanner.to_arrow_batch_reader()
        assert scanner.get_subscribed_buckets() == []
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        assert sum(batch.num_rows for batch in scanner.to_arrow_batch_reader()) == 100
        # One that was read to its end leaves the position alone, as `to_arrow` does.
        assert sum(batch.num_rows for batch in scanner.to_arrow_batch_reader()) == 100

    await fill(table)
    async with batches_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
        await asyncio.to_thread(drop, scanner)


async def test_wakeup_ends_the_wait_of_a_poll(table):
    async with await table.new_scan().create_log_scanner() as scanner:
        scanner.subscribe_from_beginning(0)
        with at_most(20):
            polling = asyncio.ensure_future(scanner.poll(30_000))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(scanner.wakeup)
            assert len(await polling) == 0
            scanner.wakeup()
            assert len(await scanner.poll(30_000)) == 0, "the next poll, where none waited"
        await table.new_append().create_writer().append((1, "a", 0.5)).wait()
        assert len(await scanner.poll(30_000)) == 1, "and only that one"


async def test_a_partition_that_is_dropped_while_it_is_read(config, database, monkeypatch, caplog):
    monkeypatch.setattr(fetcher, "_GONE_PATIENCE_MS", 300.0)

    async with open_table(config, database, FIELDS, partition_keys=["name"]) as (conn, table):
        admin, path = conn.get_admin(), table.get_table_path()
        await admin.create_partition(path, {"name": "EU"})
        await admin.create_partition(path, {"name": "US"})
        eu, us = sorted(await admin.list_partition_infos(path), key=lambda found: found.partition_name)
        async with await table.new_scan().create_log_scanner() as scanner:
            for found in (eu, us):
                scanner.subscribe_partition(found.partition_id, 0, fluss.EARLIEST_OFFSET)
            assert len(await scanner.poll(50)) == 0
            await admin.drop_partition(path, {"name": "EU"})
            with pytest.raises(fluss.PartitionNotExistsError, match=f"Partition {eu.partition_id} of table .* was dro"):
                await asyncio.wait_for(scanner.poll(10_000), 20)
            scanner.unsubscribe_partition(eu.partition_id, 0)
            writer = table.new_append().create_writer()
            await writer.append((1, "US", 0.5)).wait()
            assert [record.row["id"] for record in await poll_all(scanner, 1)] == [1]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.table(partition_keys=["name"])
async def test_a_subscription_to_the_end_that_fails_takes_no_later_one_with_it(conn, table, writer):
    for name in ("gone", "left"):
        await writer.append((0, name, 0.0)).wait()
    admin = conn.get_admin()
    ids = {i.partition_name: i.partition_id for i in await admin.list_partition_infos(table.table_path)}
    await admin.drop_partition(table.table_path, {"name": "gone"})
    async with await table.new_scan().create_log_scanner() as scanner:
        scanner.subscribe_partition(ids["gone"], 0, fluss.LATEST_OFFSET)
        scanner.subscribe_partition(ids["left"], 0, fluss.LATEST_OFFSET)
        with pytest.raises(fluss.PartitionNotExistsError):
            await scanner.resolved()
        await writer.append((1, "left", 0.0)).wait()
        assert [record.row["id"] for record in await poll_all(scanner, 1)] == [1]
