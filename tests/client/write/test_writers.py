# SPDX-License-Identifier: Apache-2.0
"""Writers at work: batching, lingering, memory, order, buckets, partitions, closing."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
import time
from unittest import mock

import pyarrow as pa
import pytest
from tests.client.support import open_table, read_all, records_from
from tests.shared import raising
from tests.threads import in_threads
from tests.waiting import at_most, wait_until

import fluss
import fluss.aio
from fluss.client.runner import CLOSE_TIMEOUT_S
from fluss.client.write import Sender
from fluss.client.write import append as append_module
from fluss.client.write import writer as writer_module
from fluss.client.write.batch import WriteBatch
from fluss.client.write.conversion import ChunkConverter
from fluss.records import KV_RECORDS_MAX

FIELDS = [("id", pa.int64()), ("name", pa.string())]
Reordered = collections.namedtuple("Reordered", "b a id")


def batches_of(writer):
    """The sizes of the batches that a writer seals, as they are sealed."""
    sizes = []
    sealed = writer._sizer.sealed
    writer._sizer.sealed = lambda size: (sizes.append(size), sealed(size))[1]
    return sizes


@contextlib.contextmanager
def answers_held(writer):
    """Hold back what servers answer to writes until the block is left; gives what they answered."""
    sender, answers = writer._sender, []
    answer = sender.on_response
    sender.on_response = lambda *args: answers.append(args)
    try:
        yield answers
    finally:
        sender.on_response = answer
        for args in answers:
            answer(*args)


async def test_handles_and_flush(table, writer):
    handle = writer.append((1, "a"))
    assert not handle.done()
    assert "pending" in repr(handle)
    await handle
    assert handle.done()
    assert "done" in repr(handle)
    await handle.wait()
    await writer.flush()
    async with table.new_append().create_writer() as other:
        other.append((2, "b"))
    await writer.close()
    assert sorted((await read_all(table)).column("id").to_pylist()) == [1, 2]
    assert "AppendWriter" in repr(writer)


async def test_a_block_that_fails_does_not_wait_for_its_rows(table):

    class Stop(Exception):
        pass

    async def stop():
        async with table.new_append().create_writer() as writer:
            writer.append((1, "a"))
            raise Stop

    with pytest.raises(Stop):
        await stop()


@pytest.mark.client(writer_batch_timeout_ms=300)
async def test_rows_leave_after_the_linger_time(writer):
    await writer.append((0, "warm")).wait()
    handles = [writer.append((i, "x")) for i in range(1, 5)]
    await asyncio.sleep(0.1)
    assert not handles[-1].done(), "without a waiter, rows linger for more of them"
    await asyncio.sleep(0.6)
    assert handles[-1].done()
    waits = []
    for _ in range(3):  # a busy disk may hold one of them up
        started = time.monotonic()
        await writer.append((9, "x")).wait()
        waits.append(time.monotonic() - started)
    assert min(waits) < 0.2, "there is a waiter, so rows do not linger"


@pytest.mark.client(writer_batch_timeout_ms=10)
async def test_rows_join_while_the_server_is_busy(conn, table, writer):
    """A slow server gets few large batches: rows whose time is over wait for those in flight, and arrive in order."""
    await writer.append((0, "warm")).wait()
    handles = []
    with answers_held(writer) as answers:
        for i in range(1, 41):
            handles.append(writer.append((i, "x")))
            await asyncio.sleep(0.02)
        assert len(answers) <= 2
    before = conn.metrics()["requests_total"]
    await asyncio.wait_for(asyncio.gather(*(handle.wait() for handle in handles)), 10)
    assert conn.metrics()["requests_total"] - before <= 3
    assert (await read_all(table)).column("id").to_pylist() == list(range(41))


@pytest.mark.client(writer_batch_timeout_ms=10)
async def test_many_buckets_share_what_is_in_flight(config, database, monkeypatch):
    """A server that works on one batch of each bucket need not have a second one of each waiting."""
    monkeypatch.setattr(writer_module, "_LINGER_BATCHES_TOTAL", 8)
    async with open_table(config, database, FIELDS, keys=["id"], bucket_count=16) as (_, table):
        writer = table.new_upsert().create_writer()
        await writer.upsert((0, "warm")).wait()
        sizes = batches_of(writer)
        with answers_held(writer):
            for i in range(20):
                for key in range(100):
                    writer.upsert((key, f"round {i}"))
                await asyncio.sleep(0.02)
            assert 8 <= len(sizes) < 16 + 8
        # Without a flush: rows that waited long enough leave when the server has time for them.
        await wait_until(lambda: not writer._builders and not writer._in_flight)
        lookuper = table.new_lookup().create_lookuper()
        assert (await lookuper.lookup({"id": 99}))["name"] == "round 19"


@pytest.mark.client(writer_batch_timeout_ms=20)
async def test_two_writers_do_not_wait_for_each_other(table):
    """Batches of another writer keep a bucket busy, and their end is reported to that writer only."""
    first, second = (table.new_append().create_writer() for _ in range(2))
    await first.append((0, "warm")).wait()
    with answers_held(first):
        for i in (1, 2):
            first.append((i, "first"))
            first._push()
            await asyncio.sleep(0.05)
        handle = second.append((3, "second"))
        await asyncio.sleep(0.2)
    await wait_until(handle.done)


@pytest.mark.client(writer_batch_size=10_000, writer_dynamic_batch_size_enabled=False)
async def test_batches_are_cut_at_their_size(table, writer):
    sizes = batches_of(writer)
    for i in range(2000):
        writer.append((i, "x" * 100))
    await writer.flush()
    assert len(sizes) > 15
    assert max(sizes) < 20_000
    assert (await read_all(table)).column("id").to_pylist() == list(range(2000))


@pytest.mark.client(writer_batch_size=16_000_000)
@pytest.mark.parametrize("pieces", [1, 4])
async def test_no_batch_has_more_rows_than_a_server_takes(config, database, pieces):
    rows = (KV_RECORDS_MAX + 1) // min(pieces, 2)
    async with open_table(config, database, [("id", pa.int32())], keys=["id"]) as (_, table):
        writer = table.new_upsert().create_writer()
        for piece in range(pieces):
            writer.write_arrow(pa.table({"id": range(piece * rows, (piece + 1) * rows)}))
        await writer.flush()


@pytest.mark.client(writer_batch_size=64_000, writer_dynamic_batch_size_min=16_000)
async def test_the_batch_size_follows_the_load(writer):
    assert writer._sizer.target == 64_000
    for i in range(60):
        await writer.append((i, "x")).wait()
    assert writer._sizer.target == 16_000, "many sparse batches"
    for i in range(5000):
        writer.append((i, "x" * 100))
    await writer.flush()
    assert writer._sizer.target > 32_000, "many full ones"


@pytest.mark.client(writer_buffer_memory_size=200_000, writer_batch_size=20_000)
async def test_memory_is_bounded_and_threads_wait(config, plain):
    """A thread that is faster than the server is held back, and its rows all arrive."""
    conn, table = plain
    writer = table.new_append().create_writer()
    memory = Sender.of(conn._background.cluster).memory
    peak = 0

    def write():
        nonlocal peak
        for i in range(20_000):
            writer.append((i, "x" * 100))
            peak = max(peak, memory.used_bytes)

    await asyncio.to_thread(write)
    await writer.flush()
    assert 5 * config.writer_buffer_memory_size < 20_000 * 100
    assert peak < config.writer_buffer_memory_size + 100_000
    assert memory.used_bytes == 0
    assert conn.metrics()["writer_buffer_bytes"] == 0
    assert conn.metrics()["writer_rows_total"] == 20_000
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 0)
    assert scanner.to_arrow().column("id").to_pylist() == list(range(20_000))


@pytest.mark.client(writer_buffer_memory_size=100_000, writer_batch_size=20_000)
async def test_a_full_buffer_refuses_the_loop(table, writer):
    taken = 0

    def fill():
        nonlocal taken
        while taken < 10_000:
            writer.append((taken, "x" * 100))
            taken += 1

    with pytest.raises(fluss.DeadlineExceededError, match=r"write buffer is full.*this row was not taken.*flush"):
        fill()
    with pytest.raises(fluss.DeadlineExceededError, match="write buffer is full"):
        writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": [1]}))
    await writer.flush()
    writer.append((taken, "again"))
    await writer.flush()
    assert (await read_all(table)).column("id").to_pylist() == list(range(taken + 1))


@pytest.mark.client(writer_buffer_memory_size=50_000, writer_buffer_wait_timeout_ms=200)
async def test_a_thread_waits_for_room_no_longer_than_asked(cluster):
    memory = Sender.of(cluster).memory
    memory.reserve(60_000)
    started = time.monotonic()
    with pytest.raises(fluss.DeadlineExceededError, match="stayed full for 200 ms"):
        await asyncio.to_thread(memory.wait_for_room, may_block=True)
    assert 0.15 < time.monotonic() - started < 20
    memory.release(60_000)


@pytest.mark.client(writer_buffer_memory_size=50_000)
async def test_closing_wakes_a_thread_that_waits_for_room(cluster):
    memory = Sender.of(cluster).memory
    memory.reserve(60_000)
    waiting = asyncio.ensure_future(asyncio.to_thread(memory.wait_for_room, may_block=True))
    await asyncio.sleep(0.1)
    await cluster.close()
    with pytest.raises(fluss.ConnectionClosedError):
        await asyncio.wait_for(waiting, 5)


@pytest.mark.client(writer_batch_size=5_000)
async def test_threads_keep_their_own_order(plain):
    """Rows of one thread are converted by another at times; they must not overtake each other."""
    _, table = plain
    writer = table.new_append().create_writer()

    def write(number):
        for i in range(3000):
            writer.append((number * 10_000 + i, "x" * (i % 50)))
            if i % 500 == 499:
                asyncio.run(writer.flush())

    in_threads(write, range(4))
    await writer.flush()
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 0)
    ids = scanner.to_arrow().column("id").to_pylist()
    for number in range(4):
        mine = [i for i in ids if i // 10_000 == number]
        assert mine == list(range(number * 10_000, number * 10_000 + 3000))


@pytest.mark.client(writer_batch_timeout_ms=60_000)  # or the loop converts the first row, and waits itself
async def test_flush_waits_for_rows_that_another_thread_has_in_hand(table, monkeypatch):
    """The chunk with this row is being converted elsewhere when flush is called."""
    begun, go_on = threading.Event(), threading.Event()
    convert = ChunkConverter.convert

    def slowly(self, chunk):
        begun.set()
        assert go_on.wait(10)
        return convert(self, chunk)

    writer = table.new_append().create_writer()
    writer._accumulator.limit(2)
    writer.append((1, "first"))
    monkeypatch.setattr(ChunkConverter, "convert", slowly)
    thread = threading.Thread(target=writer.append, args=((2, "completes the chunk"),))
    thread.start()
    await asyncio.to_thread(begun.wait)
    monkeypatch.setattr(ChunkConverter, "convert", convert)
    writer.append((3, "later"))
    flushing = asyncio.ensure_future(writer.flush())
    await asyncio.sleep(0.2)
    assert not flushing.done()
    go_on.set()
    await flushing
    thread.join()
    assert (await read_all(table)).column("id").to_pylist() == [1, 2, 3]


async def test_a_conversion_that_breaks_does_not_leave_anyone_waiting(conn, writer, monkeypatch):
    broken = raising(ZeroDivisionError, "broken")
    with mock.patch.object(ChunkConverter, "convert", broken):
        handle = writer.append((1, "a"))
        with pytest.raises(fluss.InvalidRowError, match=r"1 rows could not be converted: ZeroDivisionError"):
            await handle.wait()
    await writer.flush()
    monkeypatch.setattr(append_module.ArrowEncoder, "__call__", broken)
    handle = writer.append((2, "b"))
    with pytest.raises(fluss.InvalidRowError, match="could not be encoded"):
        await handle.wait()
    columns = [pa.array(range(50_000), pa.int64()), pa.array(["x"] * 50_000)]
    large = pa.RecordBatch.from_arrays(columns, ["id", "name"])
    handle = writer.write_arrow_batch(large)  # in a thread
    with pytest.raises(fluss.InvalidRowError, match=r"50000 rows for .* could not be encoded"):
        await handle.wait()
    writer.write_arrow_batch(large)
    with pytest.raises(fluss.InvalidRowError, match="50000 rows were not written"):
        await writer.flush()
    monkeypatch.undo()
    await writer.write_arrow_batch(large).wait()  # the lane goes on
    await writer.flush()
    assert conn.metrics()["writer_buffer_bytes"] == 0


# -- acks, targets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("idempotent", [True, False])
async def test_acks(config, database, acks, idempotent):
    config.writer_acks = acks
    config.writer_enable_idempotence = idempotent
    if idempotent and acks != "all":
        with pytest.raises(fluss.ConfigError):
            config.validate()
        return
    async with open_table(config, database, FIELDS) as (_, table):
        writer = table.new_append().create_writer()
        await asyncio.gather(*(writer.append((i, "x")).wait() for i in range(20)))
        async with records_from(0, table.new_scan()) as scanner:
            seen = []
            while len(seen) < 20:
                seen += [record.row["id"] for record in await scanner.poll(5000)]
        assert seen == list(range(20)), "acknowledged, and readable soon after"


async def test_partial_updates_and_deletes(config, database):
    fields = [("id", pa.int64()), ("a", pa.string()), ("b", pa.string())]
    async with open_table(config, database, fields, keys=["id"]) as (_, table):
        whole = table.new_upsert().create_writer()
        by_name = table.new_upsert().partial_update_by_name(["id", "a"]).create_writer()
        by_index = table.new_upsert().partial_update_by_index([0, 2]).create_writer()
        lookuper = table.new_lookup().create_lookuper()
        await whole.upsert((1, "a0", "b0")).wait()
        await by_name.upsert({"id": 1, "a": "a1"}).wait()
        await by_index.upsert([1, "b1"]).wait()
        assert await lookuper.lookup([1]) == {"id": 1, "a": "a1", "b": "b1"}
        await by_name.upsert({"id": 2, "a": "new"}).wait()
        assert await lookuper.lookup([2]) == {"id": 2, "a": "new", "b": None}
        with pytest.raises(fluss.InvalidRowError, match="unknown column 'b'"):
            by_name.upsert({"id": 1, "b": "x"})
        with pytest.raises(fluss.InvalidArgumentError, match="primary key"):
            table.new_upsert().partial_update_by_name(["a"]).create_writer()
        for pk in ({"id": 1}, {"id": 2, "a": "other columns are ignored"}):
            await whole.delete(pk).wait()
        await whole.upsert((3, "x", "y")).wait()
        await whole.delete((3, "x", "y")).wait()
        await whole.upsert((4, "x", "y")).wait()
        await whole.delete(Reordered("x", "y", 4)).wait()
        assert (await lookuper.lookup_many([[1], [2], [3], [4]])).num_rows == 0
        with pytest.raises(fluss.InvalidRowError, match="unknown column 'typo'"):
            whole.delete({"id": 1, "typo": 2})


async def test_the_right_writer_for_the_table(config, database):
    async with open_table(config, database, FIELDS) as (_, table):
        with pytest.raises(fluss.FlussError, match="primary key"):
            table.new_upsert()
    async with open_table(config, database + "_k", FIELDS, keys=["id"]) as (_, table):
        with pytest.raises(fluss.FlussError, match="new_upsert"):
            table.new_append()


async def test_a_table_that_is_gone(conn, table):
    admin, path = conn.get_admin(), table.get_table_path()
    writer = table.new_append().create_writer()
    await writer.append((1, "a")).wait()
    descriptor = (await admin.get_table_info(path)).descriptor
    await admin.drop_table(path)
    with at_most(5):
        with pytest.raises(fluss.TableNotExistError):
            await writer.append((2, "b")).wait()
        await admin.create_table(path, descriptor)
        with pytest.raises(fluss.TableNotExistError, match="created again"):
            await writer.append((3, "c")).wait()
    await writer.flush()


@pytest.mark.client(writer_batch_size=200_000)
async def test_two_batches_are_compressed_at_a_time(table, monkeypatch):
    """The next batch is begun before the first is done: they wait for each other here, in vain if not."""
    meeting, begun = threading.Barrier(2, timeout=10), []
    encode = WriteBatch.encode

    def together(self):
        begun.append(1)
        if len(begun) <= 2:
            meeting.wait()
        encode(self)

    monkeypatch.setattr(WriteBatch, "encode", together)
    writer = table.new_append().create_writer()
    rows = pa.RecordBatch.from_pydict({"id": range(10_000), "name": ["x" * 10] * 10_000})
    for _ in range(4):
        writer.write_arrow_batch(rows)
    await writer.flush()
    assert len(begun) == 4
    assert (await read_all(table)).num_rows == 40_000


@pytest.mark.parametrize(("keyed", "busy"), [(False, 1), (True, 2)])
async def test_servers_are_kept_busy(config, database, monkeypatch, keyed, busy):
    """Batches leave before they are full while the server has too little to do: one at a time, or two of keys."""
    monkeypatch.setattr(writer_module, "_EARLY_BYTES", 1)
    async with open_table(config, database, FIELDS, keys=["id"] if keyed else None) as (_, table):
        writer = table.new_upsert().create_writer() if keyed else table.new_append().create_writer()
        found = []
        monkeypatch.setattr(writer._sender, "queued_batches", lambda *key: found.pop(0))
        sealed = []
        seal = writer._seal
        monkeypatch.setattr(writer, "_seal", lambda key, early=False: (sealed.append(early), seal(key, early))[1])
        for queued_batches in (busy, busy - 1):
            found.append(queued_batches)
            writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": [queued_batches], "name": ["a"]}))
            await asyncio.sleep(0)
        assert (sealed, found) == ([True], [])
        monkeypatch.undo()
        await writer.flush()


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.client(writer_batch_timeout_ms=10_000)
async def test_closing_fails_what_is_pending_once_and_clearly(conn, writer):
    waited = asyncio.ensure_future(writer.append((0, "x")).wait())
    await waited
    handles = [writer.append((i, "x")) for i in range(1, 50)]
    batch = writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": [100]}))
    handles += [writer.append((i, "x")) for i in range(200, 205)]
    completed = []
    ticket = handles[0].ticket
    complete = type(ticket).complete

    def counted(self, rows, positions=None, error=None):
        completed.append(rows)
        complete(self, rows, positions, error)

    type(ticket).complete = counted
    try:
        await conn.close()
    finally:
        type(ticket).complete = complete
    assert sum(completed) == 49 + 1 + 5, "every row once"
    for handle in [*handles[1:], batch]:
        with pytest.raises(fluss.ConnectionClosedError, match="closed"):
            await asyncio.wait_for(handle.wait(), 1)
    with pytest.raises(fluss.ConnectionClosedError, match="1 row was not written"):
        await writer.flush()
    with pytest.raises(fluss.ConnectionClosedError, match="is closed"):
        writer.append((1, "x"))
    with pytest.raises(fluss.ConnectionClosedError, match="is closed"):
        writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": [100]}))
    await conn.close()
    assert conn.metrics()["writer_buffer_bytes"] == 0


@pytest.mark.client(writer_batch_size=2000)
async def test_closing_while_threads_write(plain):
    """Every handle that was given out gets an answer, and every thread comes back."""
    conn, table = plain
    writer = table.new_append().create_writer()
    handles, errors = [], []

    def write():
        try:
            while True:
                handles.append(writer.append((len(handles), "x" * 50)))
        except fluss.FlussError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.sleep(0.3)
    with at_most(CLOSE_TIMEOUT_S):  # it was not closed but abandoned
        await asyncio.to_thread(conn.close)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert [type(error) for error in errors] == [fluss.ConnectionClosedError] * 3
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(handle.wait() for handle in handles), return_exceptions=True), 30
    )
    assert {type(outcome) for outcome in outcomes} <= {type(None), fluss.ConnectionClosedError}


async def test_leaving_a_connection_flushes(config, database):
    async with open_table(config, database, FIELDS) as (_, table):
        table.new_append().create_writer().append((1, "a"))

    async def check():
        async with await fluss.aio.FlussConnection.create(config) as conn:
            return await read_all(await conn.get_table(fluss.TablePath(database, "t")))

    assert (await check()).num_rows == 1


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.client(writer_bucket_no_key_assigner="round_robin")
@pytest.mark.table(bucket_count=2)
async def test_writer_ids_are_told_before_they_are_used(conn, table, plain):
    reported = []

    async def report(writer_id):
        await asyncio.sleep(0.05)
        reported.append(writer_id)

    conn.on_writer_id((lambda writer_id: reported.append(writer_id) or True) if plain else report)
    writer = table.new_append().create_writer()
    await asyncio.gather(*(writer.append((i, "x")).wait() for i in range(20)))
    async with await table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_buckets({0: 0, 1: 0})
        ids = {found.writer_id for found in await scanner.poll_record_batch(5000)}
    assert ids == set(reported)
    assert len(reported) == 1


@pytest.mark.parametrize("mode", ["overwrite", fluss.MergeMode.OVERWRITE])
async def test_merge_mode_overwrite_goes_past_the_merge_engine(config, database, mode):
    schema = (
        fluss.Schema.builder()
        .column("id", fluss.DataTypes.int())
        .column("total", fluss.DataTypes.bigint(), agg_function=fluss.AggFunction("sum"))
        .column("most", fluss.DataTypes.int(), agg_function=fluss.AggFunction("max"))
        .primary_key(["id"])
        .build()
    )
    async with open_table(config, database, schema, properties={"table.merge-engine": "aggregation"}) as (_, table):
        summing = table.new_upsert().create_writer()
        for _ in range(3):
            await summing.upsert((1, 10, 7)).wait()
        lookuper = table.new_lookup().create_lookuper()
        assert await lookuper.lookup([1]) == {"id": 1, "total": 30, "most": 7}
        builder = table.new_upsert().merge_mode(mode)
        assert "OVERWRITE" in repr(builder)
        await builder.create_writer().upsert((1, 5, 2)).wait()
        assert await lookuper.lookup([1]) == {"id": 1, "total": 5, "most": 2}
        partial = builder.partial_update_by_name(["id", "total"]).create_writer()
        await partial.upsert((1, 6)).wait()
        assert await lookuper.lookup([1]) == {"id": 1, "total": 6, "most": 2}
        await table.new_upsert().merge_mode("default").create_writer().upsert((1, 10, 7)).wait()
        assert await lookuper.lookup([1]) == {"id": 1, "total": 16, "most": 7}
        with pytest.raises(fluss.InvalidArgumentError, match="'default' or 'overwrite', not 'undo'"):
            table.new_upsert().merge_mode("undo")


async def test_rows_that_are_refused_once_their_partition_is_known_fail_their_handle(config, database):
    """On the event loop a batch waits for new partitions, and its call has returned when its rows are routed."""
    options = {"partition_keys": ["name"], "bucket_keys": ["id"], "bucket_count": 3}
    async with open_table(config, database, FIELDS, **options) as (_, table):
        writer = table.new_append().create_writer()
        handle = writer.write_arrow(pa.table({"id": pa.array([None, 1], pa.int64()), "name": ["x", "x"]}))
        with pytest.raises(fluss.InvalidRowError):
            await handle.wait(timeout=5)
        await writer.append((1, "x")).wait(timeout=5)
        await writer.flush()
