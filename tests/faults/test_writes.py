# SPDX-License-Identifier: Apache-2.0
"""Writes writing a bad network: no row lost, none doubled, the order kept, every wait ended by its deadline."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from itertools import pairwise

import pyarrow as pa
import pytest
from tests.faults.proxy import Answer, Chaos, Fault, Refusal, times
from tests.waiting import at_most

import fluss
from fluss.protocol import apis, messages

PRODUCE, PUT, INIT = apis.PRODUCE_LOG.key, apis.PUT_KV.key, apis.INIT_WRITER.key

SMALL_BATCHES = {"writer.batch-size": 2000, "writer.batch-timeout-ms": 5, "writer.dynamic-batch-size.enabled": False}

CHAOS = {
    Fault.CUT: 0.02,
    Fault.RESET: 0.02,
    Fault.CUT_AFTER: 0.04,
    Fault.TRUNCATE: 0.02,
    Fault.REPEAT: 0.1,
    Fault.DELAY: 0.1,
}
VERSIONS = 8
ANSWER_CHAOS = {Fault.CUT: 0.02, Fault.RESET: 0.02, Fault.TRUNCATE: 0.02, Fault.REPEAT: 0.1, Fault.DELAY: 0.1}


@pytest.fixture
def writing(through):
    """Like `through`, with a writer of the table as third."""

    @asynccontextmanager
    async def opened(**options):
        async with through(**options) as (conn, path):
            table = await conn.get_table(path)
            yield conn, path, (table.new_upsert() if options.get("keys") else table.new_append()).create_writer()

    return opened


def only(chaos, *api_keys):
    """Chaos for some APIs; everything else passes."""
    return lambda api_key, body: chaos(api_key, body) if api_key in api_keys else None


async def append_all(writer, rows, *, pause_every=40):
    handles = []
    for i, row in enumerate(rows):
        handles.append(writer.append(row))
        if i % pause_every == pause_every - 1:
            await asyncio.sleep(0.004)
    return handles


async def test_a_writer_that_waits_for_the_server_does_not_spin(writing, proxy):
    """Also one whose batches wait for no further rows."""
    async with writing(**{"writer.batch-timeout-ms": 0}) as (_, _, writer):
        await writer.append((0, "")).wait()
        proxy.stall()
        began = time.thread_time()
        for number in range(1, 20):
            writer.append((number, ""))
            await asyncio.sleep(0.02)
        spent_s = time.thread_time() - began
        proxy.resume()
        await writer.flush()
    assert spent_s < 0.1


def check_order(table):
    """Rows of one writer were written in the order they were given, bucket by bucket."""
    ids = table.column("id").to_pylist()
    assert all(a < b for a, b in pairwise(ids)), "rows changed places"


EITHER_WAY = (Fault.CUT, Fault.RESET, Fault.TRUNCATE, Fault.REPEAT, Fault.DELAY)
FAULTS = [
    ("on_request", Fault.CUT_AFTER),
    *((way, fault) for fault in EITHER_WAY for way in ("on_request", "on_response")),
]


@pytest.mark.parametrize(("way", "fault"), FAULTS, ids=lambda one: getattr(one, "value", one))
async def test_a_fault_loses_and_doubles_nothing(proxy, writing, log_of, way, fault):
    async with writing(**SMALL_BATCHES) as (conn, path, writer):
        setattr(proxy, way, times(3, fault, PRODUCE))
        handles = await append_all(writer, [(i, f"n{i}") for i in range(1000)])
        await writer.flush()
        await asyncio.gather(*(handle.wait() for handle in handles))
        assert (await log_of(conn, path)).column("id").to_pylist() == list(range(1000))


async def test_a_lost_answer_is_asked_for_again_after_the_request_timeout(proxy, writing, log_of):
    async with writing(**{"request-timeout": 1000, "writer.delivery-timeout-ms": 20000}) as (conn, path, writer):
        proxy.on_response = times(1, Fault.DROP, PRODUCE)
        writer.append((1, "a"))
        await writer.flush()
        assert (await log_of(conn, path)).column("id").to_pylist() == [1]


async def test_a_lost_answer_holds_back_what_would_lie_too_far_ahead(proxy, writing, log_of):
    """The server remembers the last five numbers of a writer: a sixth must not be used while the first is unknown."""
    async with writing(**{**SMALL_BATCHES, "request-timeout": 1000, "writer.delivery-timeout-ms": 20000}) as (
        conn,
        path,
        writer,
    ):
        writer.append((0, "first"))
        await writer.flush()
        proxy.on_response = times(1, Fault.DROP, PRODUCE)
        await append_all(writer, [(i, "x" * 100) for i in range(1, 2000)])
        await writer.flush()
        assert (await log_of(conn, path)).column("id").to_pylist() == list(range(2000))


@asynccontextmanager
async def partition_made_again(conn, path, address):
    """A partitioned table and a writer that has written to a partition, which was then dropped and created again."""
    admin = conn.get_admin()
    parts = fluss.TablePath(path.database_name, "parts")
    schema = fluss.Schema(pa.schema([("id", pa.int64()), ("part", pa.string())]))
    await admin.create_table(parts, fluss.TableDescriptor(schema, bucket_count=1, partition_keys=["part"]))
    table = await conn.get_table(parts)
    writer = table.new_append().create_writer()
    await writer.append((-1, "p")).wait()
    async with await fluss.aio.FlussConnection.create(fluss.Config({"bootstrap.servers": address})) as other:
        await other.get_admin().drop_partition(parts, {"part": "p"})
        await other.get_admin().create_partition(parts, {"part": "p"})
    yield table, writer


async def rows_of_partition(conn, table):
    [info] = await conn.get_admin().list_partition_infos(table.get_table_path())
    async with await table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_partition(info.partition_id, 0, fluss.EARLIEST_OFFSET)
        return (await scanner.to_arrow()).column("id").to_pylist()


async def test_many_batches_on_their_way_to_a_partition_that_was_made_again(proxy, writing):
    async with (
        writing(**SMALL_BATCHES) as (conn, path, _),
        partition_made_again(conn, path, proxy.address) as (table, writer),
    ):
        proxy.stall()
        await append_all(writer, [(i, "p") for i in range(1000)])
        proxy.resume()
        await asyncio.wait_for(writer.flush(), 20)
        assert await rows_of_partition(conn, table) == list(range(1000))


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CUT_AFTER], ids=lambda fault: fault.value)
async def test_a_lost_request_to_a_partition_that_was_made_again(proxy, writing, fault):
    """What may have been written to the old partition went with it: the new one gets the rows, from number 0 on."""
    async with writing() as (conn, path, _), partition_made_again(conn, path, proxy.address) as (table, writer):
        proxy.on_request = times(1, fault, PRODUCE)
        writer.append((1, "p"))
        await asyncio.wait_for(writer.flush(), 20)
        assert await rows_of_partition(conn, table) == [1]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_concurrent_appends_survive_chaos(proxy, writing, log_of, seed):
    async with writing(buckets=2, **SMALL_BATCHES) as (conn, path, _):
        table = await conn.get_table(path)
        writers = [table.new_append().create_writer() for _ in range(3)]
        chaos = Chaos(seed, CHAOS), Chaos(seed + 1000, ANSWER_CHAOS)
        proxy.on_request, proxy.on_response = only(chaos[0], PRODUCE), only(chaos[1], PRODUCE)
        rows = [[(n * 10_000 + i, f"n{i}") for i in range(400)] for n in range(3)]
        await asyncio.gather(*(append_all(writer, part) for writer, part in zip(writers, rows)))
        await asyncio.gather(*(writer.flush() for writer in writers))
        proxy.calm()
        assert chaos[0].count + chaos[1].count > 1
        written = (await log_of(conn, path, 2)).column("id").to_pylist()
        assert sorted(written) == [row[0] for part in rows for row in part]


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
async def test_concurrent_upserts_survive_chaos(proxy, writing, log_of, seed):
    """Every change is in the changelog once and in its order: +I, then pairs of -U and +U that continue each other."""
    async with writing(keys=["id"], buckets=2, **SMALL_BATCHES) as (conn, path, _):
        table = await conn.get_table(path)
        writers = [table.new_upsert().create_writer() for _ in range(2)]
        chaos = Chaos(seed, CHAOS), Chaos(seed + 1000, ANSWER_CHAOS)
        proxy.on_request, proxy.on_response = only(chaos[0], PUT), only(chaos[1], PUT)

        async def work(number, writer):
            for version in range(VERSIONS):
                for key in range(15):
                    writer.upsert((number * 100 + key, f"v{version}"))
                await asyncio.sleep(0.004)
            await writer.flush()

        await asyncio.gather(*(work(number, writer) for number, writer in enumerate(writers)))
        proxy.calm()
        changes = {}
        scanner = await table.new_scan().create_log_scanner()
        async with scanner:
            scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
            count = 0
            while count < 2 * 15 * (2 * VERSIONS - 1):
                for record in await scanner.poll(5000):
                    count += 1
                    kinds = changes.setdefault(record.row["id"], [])
                    kinds.append((record.change_type.short_string(), record.row["name"]))
        expected = [("+I", "v0")]
        for version in range(1, VERSIONS):
            expected += [("-U", f"v{version - 1}"), ("+U", f"v{version}")]
        assert set(changes) == {n * 100 + key for n in range(2) for key in range(15)}
        for key, kinds in changes.items():
            assert kinds == expected, key


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 125))
@pytest.mark.timeout(200)
async def test_appends_survive_a_lot_of_chaos(proxy, writing, log_of, seed):
    async with writing(**SMALL_BATCHES, **{"writer.delivery-timeout-ms": 200_000}) as (conn, path, writer):
        rates = {fault: rate * 2 for fault, rate in CHAOS.items()}
        proxy.on_request = only(Chaos(seed, rates), PRODUCE, INIT, apis.GET_METADATA.key)
        proxy.on_response = only(Chaos(-seed, ANSWER_CHAOS), PRODUCE, INIT, apis.GET_METADATA.key)
        await append_all(writer, [(i, f"n{i}") for i in range(4000)])
        await writer.flush()
        proxy.calm()
        table = await log_of(conn, path)
        assert table.num_rows == 4000
        check_order(table)


def put_answer(code, message="no"):
    answer = messages.ProduceLogResponse()
    answer.buckets_resp.add(bucket_id=0, error_code=code, error_message=message)
    return Answer(answer)


async def test_after_a_refused_batch_the_others_arrive_once_and_in_order(proxy, writing, log_of):
    """The refused batch leaves a gap in the sequence numbers; those already in flight come back out of order."""
    async with writing(**{"writer.batch-timeout-ms": 1000}) as (conn, path, writer):
        seen = 0

        def judge(api_key, body):
            nonlocal seen
            seen += api_key == PRODUCE
            return put_answer(57, "this one not") if api_key == PRODUCE and seen == 4 else None

        proxy.on_request = judge
        handles = []
        for start in range(0, 300, 10):
            handles += [writer.append((i, "x" * 180)) for i in range(start, start + 10)]
            writer._push()
        with pytest.raises(fluss.DeletionDisabledError, match=r"10 rows were not written to .*this one not"):
            await writer.flush()
        await writer.flush()
        outcomes = await asyncio.gather(*(handle.wait() for handle in handles), return_exceptions=True)
        failed = [i for i, outcome in enumerate(outcomes) if outcome is not None]
        assert len(failed) == 10
        assert failed == list(range(failed[0], failed[0] + 10))
        ids = (await log_of(conn, path)).column("id").to_pylist()
        assert ids == [i for i in range(300) if i not in failed]


async def test_a_forgotten_writer_gets_a_new_id(proxy, writing, log_of):
    proxy.requests.clear()
    async with writing() as (conn, path, writer):
        await writer.append((1, "a")).wait()
        proxy.on_request = times(1, put_answer(33), PRODUCE)
        await writer.append((2, "b")).wait()
        await writer.append((3, "c")).wait()
        assert (await log_of(conn, path)).column("id").to_pylist() == [1, 2, 3]
        assert proxy.requests.count(INIT) >= 2


async def test_duplicates_count_as_written(proxy, writing, log_of):
    async with writing() as (conn, path, writer):
        proxy.on_response = times(1, put_answer(32), PRODUCE)
        await writer.append((1, "a")).wait()
        assert (await log_of(conn, path)).num_rows == 1


@pytest.mark.parametrize("code", [3, 10, 25, 28, 29, 12, 21, 44])
async def test_errors_that_pass_are_tried_again(proxy, writing, log_of, code):
    async with writing() as (conn, path, writer):
        proxy.on_request = times(2, put_answer(code), PRODUCE)
        await writer.append((1, "a")).wait()
        assert (await log_of(conn, path)).column("id").to_pylist() == [1]


async def test_an_error_of_the_whole_request_is_tried_again_with_pauses(proxy, writing, log_of):
    async with writing() as (_conn, _path, writer):
        proxy.requests.clear()
        proxy.on_request = times(3, Refusal(10), PRODUCE)
        started = time.monotonic()
        await writer.append((1, "a")).wait()
        assert time.monotonic() - started > 0.2, "three tries without a pause"
        assert proxy.requests.count(PRODUCE) == 4


async def test_retries_are_counted(proxy, writing):
    async with writing(**{"writer.retries": 2}) as (_conn, _path, writer):
        proxy.requests.clear()
        proxy.on_request = times(100, put_answer(10, "disk trouble"), PRODUCE)
        with pytest.raises(fluss.LogStorageError, match=r"gave up after 3 attempts to write 1 rows .*disk trouble"):
            await writer.append((1, "a")).wait()
        assert proxy.requests.count(PRODUCE) == 3


@pytest.mark.parametrize("fault", ["stall", "refuse", "drop"])
async def test_every_wait_ends_by_the_delivery_deadline(proxy, writing, fault):
    async with writing(**{"writer.delivery-timeout-ms": 1500, "request-timeout": 700, "connect-timeout": 700}) as (
        _conn,
        _path,
        writer,
    ):
        await writer.append((0, "warm")).wait()
        if fault == "stall":
            proxy.stall()
        elif fault == "refuse":
            proxy.refuse = True
            proxy.cut()
        else:
            proxy.on_request = lambda api_key, body: Fault.DROP
        handles = [writer.append((i, "x")) for i in range(10)]
        with at_most(4):
            with pytest.raises(fluss.FlussError, match=r"gave up after|was not reached"):
                await writer.flush()
            for handle in handles:
                with pytest.raises(fluss.FlussError):
                    await handle.wait()


async def test_without_idempotence_nothing_is_lost(proxy, writing, log_of):
    async with writing(**SMALL_BATCHES, **{"writer.enable-idempotence": False}) as (conn, path, writer):
        proxy.requests.clear()
        proxy.on_request = times(3, Fault.CUT_AFTER, PRODUCE)
        await append_all(writer, [(i, "x") for i in range(300)])
        await writer.flush()
        ids = (await log_of(conn, path)).column("id").to_pylist()
        assert set(ids) == set(range(300))
        assert len(ids) >= 300, "at least once"
        assert INIT not in proxy.requests


async def test_many_buckets_share_a_request(proxy, writing, log_of):
    async with writing(buckets=16, **{"writer.bucket.no-key-assigner": "round_robin"}) as (conn, path, writer):
        proxy.requests.clear()
        for i in range(160):
            writer.append((i, "x"))
        await writer.flush()
        assert proxy.requests.count(PRODUCE) <= 4, "16 buckets, one server, one flush"
        assert proxy.requests.count(INIT) == 1, "lanes share their writer id"
        assert (await log_of(conn, path, 16)).num_rows == 160


async def test_pressure_slows_a_writer_down(proxy, writing):
    async with writing(keys=["id"], **{"writer.kv-backpressure.max-throttle-ms": 2_000}) as (conn, path, writer):
        await writer.upsert((1, "a")).wait()
        answer = messages.PutKvResponse()
        answer.buckets_resp.add(bucket_id=0, log_end_offset=5, pressure=0.3)
        proxy.on_response = times(1, Answer(answer), PUT)
        await writer.upsert((2, "b")).wait()
        started = time.monotonic()
        await writer.upsert((3, "c")).wait()
        assert 0.15 < time.monotonic() - started < 1.9, "0.3 squared, of 2 s"
        answer = messages.PutKvResponse()
        answer.buckets_resp.add(bucket_id=0, error_code=72)
        proxy.on_request = times(1, Answer(answer), PUT)
        started = time.monotonic()
        await writer.upsert((4, "d")).wait()
        assert time.monotonic() - started > 1.9, "all of 2 s"
        assert await (await conn.get_table(path)).new_lookup().create_lookuper().lookup([4]) is not None


async def test_an_answer_without_the_bucket_is_not_taken_for_success(proxy, writing, log_of):
    async with writing() as (conn, path, writer):
        proxy.on_response = times(1, Answer(messages.ProduceLogResponse()), PRODUCE)
        with pytest.raises(fluss.UnknownServerError, match="does not mention"):
            await writer.append((1, "a")).wait()
        await writer.append((2, "b")).wait()
        assert (await log_of(conn, path)).column("id").to_pylist() == [1, 2]


async def test_nonsense_in_an_answer_is_not_taken_for_success(proxy, writing, log_of):
    async with writing() as (conn, path, writer):
        proxy.on_response = times(2, Answer(b"\xff\xff\xff"), PRODUCE)
        await writer.append((1, "a")).wait()
        assert (await log_of(conn, path)).column("id").to_pylist() == [1], "the server knew the second for the first"


async def test_a_trickle_of_rows_is_bounded_too(proxy, writing, log_of):
    """Rows that leave one by one after their linger time must not pile up behind a server that does not answer."""
    async with writing(**{"writer.buffer.memory-size": 20_000, "writer.batch-timeout-ms": 1}) as (conn, path, writer):
        await writer.append((-1, "warm")).wait()
        proxy.stall()
        taken = 0

        async def trickle():
            nonlocal taken
            for i in range(2000):
                writer.append((i, "x" * 1000))
                taken += 1
                await asyncio.sleep(0.003)

        with pytest.raises(fluss.DeadlineExceededError, match="write buffer is full"):
            await trickle()
        assert taken * 1000 < 40_000
        proxy.resume()
        await writer.flush()
        writer.append((taken, "again"))
        await writer.flush()
        assert (await log_of(conn, path)).column("id").to_pylist() == list(range(-1, taken + 1))
