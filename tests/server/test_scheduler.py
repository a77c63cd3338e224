# SPDX-License-Identifier: Apache-2.0
"""Long work in slices: what is answered is the same, in the same order, as of one moment."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.server.kv.support import SCHEMA, kv_batch
from tests.server.log_support import Client, make_batch
from tests.server.test_handlers_kv import a_table
from tests.shared import raising
from tests.waiting import cancel_and_wait, wait_until

from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.lookup_messages import LookedUpBucket, encode_lookup_response, encode_lookup_response_parts
from fluss.protocol.record_messages import TooManyBucketsError, decode_produce_log, encode_produce_log
from fluss.records import decode_value_batch
from fluss.server.loop_watch import LoopErrors, LoopWatch
from fluss.server.scheduler import Scheduler, Share
from fluss.server.server import Server


async def take_slices(scheduler: Scheduler, owner: object, number: int, done: list[int], count: int = 3) -> None:
    time_slice = scheduler.begin(scheduler.share(owner))
    for _ in range(count):
        await time_slice.next()
        done.append(number)


async def test_one_slice_per_iteration_in_rotation() -> None:
    scheduler = Scheduler()
    done: list[int] = []
    tasks = [asyncio.ensure_future(take_slices(scheduler, number, number, done)) for number in range(3)]
    gone = asyncio.ensure_future(take_slices(scheduler, 9, 9, done))
    await asyncio.sleep(0)
    gone.cancel()
    seen = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        assert len(done) <= seen + 1
        seen = len(done)
    assert done == [0, 1, 2] * 3
    await asyncio.wait_for(scheduler.begin().next(), 1)  # it begins again when it had nothing to do


async def test_work_that_fails_does_not_stop_the_queues() -> None:
    scheduler = Scheduler()
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    share = scheduler.share("mallory")
    share.enqueue(lambda: {}["missing"])
    await asyncio.wait_for(asyncio.gather(scheduler.begin(share).next(), scheduler.begin().next()), 1)
    assert [type(error) for error in errors] == [KeyError]


async def test_a_user_with_many_requests_gets_as_much_as_one_with_few() -> None:
    scheduler = Scheduler()
    done: list[int] = []
    flood = [asyncio.ensure_future(take_slices(scheduler, "mallory", 1, done)) for _ in range(40)]
    await take_slices(scheduler, "alice", 2, done, 10)
    assert 8 <= done.count(1) <= 12
    await asyncio.gather(*flood)


async def test_work_of_a_flooding_user_is_queued_and_that_of_others_is_not() -> None:
    scheduler = Scheduler()
    mallory, alice = scheduler.share("mallory"), scheduler.share("alice")
    assert mallory.may_run
    mallory.charge(0.1)
    assert not mallory.may_run
    assert alice.may_run
    done: list[str] = []

    def work(share: Share, name: str) -> None:
        done.append(name)
        share.charge(0.003)

    for _ in range(20):
        mallory.enqueue(partial(work, mallory, "mallory"))
    for _ in range(4):
        alice.enqueue(partial(work, alice, "alice"))
    await wait_until(lambda: not mallory.queue and not alice.queue)
    assert done.index("alice") < 3
    assert "alice" not in done[12:]
    await asyncio.sleep(0.01)
    assert mallory.may_run


def busy(seconds: float) -> None:
    """Take processor time, however busy the machine is."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_steps_of_a_task_and_work_in_threads_are_charged_and_waits_are_not() -> None:
    share = Scheduler().share("mallory")

    async def work() -> str:
        busy(0.02)
        await asyncio.sleep(0.3)
        busy(0.02)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(fails(), 5)
        return "done"

    async def fails() -> None:
        raise ZeroDivisionError

    assert await share.run(work()) == "done"
    both = -share.deficit
    assert 0.04 <= both < 0.3
    assert await share.run(work(), from_start=False) == "done"
    assert 0.02 <= -share.deficit - both < 0.3
    before = share.deficit
    with ThreadPoolExecutor(1) as threads:
        await share.in_thread(threads, busy, 0.02)
        with pytest.raises(ZeroDivisionError):
            await share.in_thread(threads, lambda: busy(0.02) or 1 // 0)  # type: ignore[func-returns-value]
    assert share.deficit <= before - 0.04


async def test_a_user_has_few_of_the_threads() -> None:
    scheduler = Scheduler()
    mallory, alice = scheduler.share("mallory"), scheduler.share("alice")
    release = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        flood = [asyncio.ensure_future(mallory.in_thread(threads, release.wait, 60)) for _ in range(20)]
        try:
            await asyncio.sleep(0.05)
            assert await asyncio.wait_for(alice.in_thread(threads, lambda: "served"), 10) == "served"
        finally:
            release.set()
        assert await asyncio.gather(*flood) == [True] * 20


async def test_threads_of_cancelled_work_count_until_they_end() -> None:
    """Otherwise a user who closes connections has as many threads as there are, and pays for none."""
    mallory = Scheduler().share("mallory")
    release = threading.Event()

    def work() -> None:
        release.wait(60)
        busy(0.01)

    with ThreadPoolExecutor(4) as threads:
        try:
            cancelled = [asyncio.ensure_future(mallory.in_thread(threads, work)) for _ in range(2)]
            await asyncio.sleep(0.05)
            for task in cancelled:
                task.cancel()
            await asyncio.wait(cancelled)
            waiting = asyncio.ensure_future(mallory.in_thread(threads, lambda: "served"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert mallory.charged_seconds < 0.01
        finally:
            release.set()
        assert await asyncio.wait_for(waiting, 10) == "served"
    await wait_until(lambda: mallory.charged_seconds >= 0.02)


async def test_a_cancelled_task_is_cancelled_inside() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.ensure_future(Scheduler().share("mallory").run(work()))
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    assert seen == ["cancelled"]


@pytest.mark.parametrize("count", [1, 2_000])
async def test_writes_are_charged_to_their_user(tmp_path: Path, count: int) -> None:
    """Few rows are prepared on the event loop, many in a thread."""
    async with a_table(tmp_path) as (server, table):
        share = next(iter(server.sessions)).share
        await table.put([(1, "x", None)])
        charged: list[str] = []
        original = Share.charge

        def charge(self: Share, seconds: float) -> None:
            assert self is share
            caller = sys._getframe(1).f_code.co_name
            charged.append(caller)
            original(self, seconds)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Share, "charge", charge)
            await table.put([(number, "y", None) for number in range(count)])
        assert {"_do", "_run_steps", "_charged"} <= set(charged)


async def test_the_watch_notices_what_keeps_the_loop_busy() -> None:
    watch = LoopWatch()
    watch.start()
    await asyncio.sleep(0.1)
    assert watch.stall_count == 0
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    await asyncio.sleep(0.05)
    assert watch.stall_count == 1
    assert watch.busy_seconds > 0.1
    assert watch.delay_seconds > 0.1
    time.sleep(0.1)  # noqa: ASYNC251 - waiting delays the loop as well, but is not this process' work
    await asyncio.sleep(0.05)
    assert watch.stall_count == 1
    watch.stop()


async def test_errors_that_escape_are_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[int] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors(count=lambda: counted.append(1)))
    for _ in range(5):
        loop.call_soon(raising(ZeroDivisionError, "a defect"))
    await asyncio.sleep(0.01)
    assert len(counted) == 5
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a defect"]


async def test_ordered_reads_in_slices_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes go on between the slices; the answer is that of the moment at which it began."""
    monkeypatch.setattr("fluss.server.scheduler._SLICE_SECONDS", 0.0)
    async with a_table(tmp_path) as (server, table):
        rows = [(number, "x", None) for number in range(5_000)]
        await table.put(rows)
        limit = pb.LimitScanRequest(table_id=table.info.table_id, bucket_id=0, limit=4_000)
        prefix = pb.PrefixLookupRequest(table_id=table.info.table_id)
        prefix.buckets_req.add(bucket_id=0, keys=[b"", table.key(7), b"nothing"])
        calls = (table.client.send(limit), table.client.send(prefix), table.begin_scan(1 << 30))
        reads = [asyncio.ensure_future(call) for call in calls]
        await wait_until(lambda: bool(server.scheduler._active))
        await table.put([(number, "y", None) for number in range(5_000)])
        limited, found, scanned = await asyncio.gather(*reads)
        lists = found.buckets_resp[0].value_lists
        seen = [
            table.decode(decode_value_batch(limited.records).to_list()),
            table.decode(list(lists[0].values)),
            table.scanned(scanned),
        ]
        assert [len(each) for each in seen] == [4_000, 5_000, 5_000]
        for each in seen:
            assert len({row[1] for row in each}) == 1
            assert len({row[0] for row in each}) == len(each)
        assert [table.decode(list(each.values)) != [] for each in lists[1:]] == [True, False]


async def test_an_answer_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows would look like all there are."""
    monkeypatch.setattr("fluss.server.handlers.kv.ANSWER_BYTES_MAX", 1_000)
    monkeypatch.setattr("fluss.server.kv.tablet.KvTablet.first.__defaults__", (None, 1_000))
    monkeypatch.setattr("fluss.server.handlers.fetch.RESPONSE_BYTES_MAX", 10_000)
    async with a_table(tmp_path) as (_, table):
        for count in (300, 5_000):
            await table.put([(number, "x", None) for number in range(count)])
            prefix = pb.PrefixLookupRequest(table_id=table.info.table_id)
            prefix.buckets_req.add(bucket_id=0, keys=[b""])
            answer = (await table.client.send(prefix)).buckets_resp[0]
            assert "more than 1000 bytes" in answer.error_message
            assert not answer.value_lists
            limit = pb.LimitScanRequest(table_id=table.info.table_id, bucket_id=0, limit=count)
            assert "more than 1000 bytes" in (await table.client.call(apis.LIMIT_SCAN, limit)).error_message
        log = await table.client.create_table("log")
        for first in range(0, 180, 3):
            await table.client.produce(log, make_batch(first))
        limit = pb.LimitScanRequest(table_id=log, bucket_id=0, limit=180)
        assert "more than 10000 bytes" in (await table.client.call(apis.LIMIT_SCAN, limit)).error_message
        limit.limit = 3
        assert (await table.client.call(apis.LIMIT_SCAN, limit)).records


async def test_many_keys_are_answered_as_few_are(tmp_path: Path) -> None:
    async with a_table(tmp_path) as (_, table):
        rows = [(number, "x" * (number % 200), None) for number in range(3_000)]
        await table.put(rows)
        keys = [table.key(number) for number in (*range(3_000), 77_777)]
        few = (await table.lookup_raw(keys)).values
        many = (await table.lookup_raw(keys * 9)).values  # more than fit into a small message
        assert len(many) == 9 * 3_001
        assert list(many) == list(few) * 9
        assert [value.HasField("values") for value in few] == [True] * 3_000 + [False]


def test_a_response_in_pieces_is_that_in_one() -> None:
    values: list[bytes | None] = [None if number % 3 else b"x" * (number % 300) for number in range(25_000)]
    buckets = [
        LookedUpBucket(3, None, values),
        LookedUpBucket(4, 7, values[:100]),
        LookedUpBucket(5, error_code=12, error_message="no"),
    ]
    whole = pb.LookupResponse.FromString(encode_lookup_response(buckets))
    parts = encode_lookup_response_parts(buckets)
    assert pb.LookupResponse.FromString(b"".join(parts)) == whole
    assert len(parts) < 10


async def test_writes_of_buckets_keep_order(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is started in slices holds the ones behind it: writers number their batches."""
    monkeypatch.setattr("fluss.server.scheduler._SLICE_SECONDS", 0.0)
    monkeypatch.setattr("fluss.server.handlers.log.INLINE_BUCKETS_MAX", 40)
    table = await client.create_table(buckets=60)
    requests = []
    for sequence in range(3):
        for buckets in (range(60),) if sequence == 0 else (range(30, 60), range(30)):
            batch = make_batch(0, writer_id=5, sequence=sequence)
            body = encode_produce_log(-1, table, 10_000, [(None, bucket, [batch]) for bucket in buckets])
            requests.append(client.connection.call_parts(apis.PRODUCE_LOG, body))
    answers = [pb.ProduceLogResponse.FromString(bytes(data)) for data in await asyncio.gather(*requests)]
    assert [len(answer.buckets_resp) for answer in answers] == [60, 30, 30, 30, 30]
    for answer in answers:
        assert [bucket.error_message for bucket in answer.buckets_resp] == [""] * len(answer.buckets_resp)
    ends = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=table, bucket_id=list(range(60)))
    found = await client.call(apis.LIST_OFFSETS, ends)
    assert [bucket.offset for bucket in found.buckets_resp] == [9] * 60
    assert not server._spawned


async def test_puts_to_many_buckets_hold_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.server.scheduler._SLICE_SECONDS", 0.0)
    monkeypatch.setattr("fluss.server.handlers.kv.INLINE_BUCKETS_MAX", 30)
    async with a_table(tmp_path, buckets=40) as (server, table):
        for first in (0, 20):
            batches = [kv_batch(table.info, SCHEMA, 1, [(1, f"{n}", None)]) for n in range(3)]
            puts = [table.put_raw([(None, bucket, batch) for bucket in range(first, 40)]) for batch in batches]
            for answers in await asyncio.gather(*puts):
                assert all(not answer.HasField("error_code") for answer in answers)
            for bucket in (first, 39):
                assert await table.lookup(1, bucket=bucket) == [(1, "2", None)]
        assert all(session.channel.reading for session in server.sessions)


def test_more_buckets_than_wanted_now_are_told_from_bad_bytes() -> None:
    body = b"".join(bytes(p) for p in encode_produce_log(-1, 1, 10, [(None, n, [b"abc"]) for n in range(10)]))
    with pytest.raises(TooManyBucketsError):
        decode_produce_log(body, 5)
    assert len(decode_produce_log(body, 13).buckets) == 10
