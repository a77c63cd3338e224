# SPDX-License-Identifier: Apache-2.0
"""Polls that are cancelled and loops that are left early: no record is lost, none comes twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS, batches_from, closed, fill_log, open_table, poll_all, records_from
from tests.waiting import cancel_and_wait

import fluss
import fluss.aio

ALL = list(range(100))
LOG_FIELDS_KEYED = [pa.field("id", pa.int64(), nullable=False), *LOG_FIELDS[1:]]


def offsets_of(records):
    return [record.offset for record in records]


async def test_a_cancelled_poll_keeps_what_it_took(table):
    await fill_log(table)
    async with records_from(0, table.new_scan()) as scanner:
        fetch, calls, waits = scanner._fetcher.next, [], asyncio.Event()

        async def slow(*arguments, **options):
            calls.append(arguments)
            if len(calls) == 2:
                waits.set()
                await asyncio.sleep(60)
            return await fetch(*arguments, **options)

        scanner._fetcher.next = slow
        polling = asyncio.ensure_future(scanner.poll(5000))
        await waits.wait()
        assert scanner.get_subscribed_buckets()[0][1] == 0
        await cancel_and_wait(polling)
        assert scanner.get_subscribed_buckets()[0][1] == 0
        assert offsets_of(await poll_all(scanner, 100)) == ALL


async def test_a_cancelled_poll_gives_nothing_of_a_bucket_that_was_subscribed_anew(table):
    await fill_log(table)
    async with records_from(0, table.new_scan()) as scanner:
        assert await scanner._fill(5)
        scanner.subscribe(0, 90)
        assert scanner.get_subscribed_buckets()[0][1] == 90
        assert offsets_of(await poll_all(scanner, 10)) == ALL[90:]


@pytest.mark.client(scanner_log_max_poll_records=20)
async def test_a_loop_that_is_left_early_leaves_the_rest(table, face, faced):
    await fill_log(table)
    scanner = await faced.new_scan().create_log_scanner()
    scanner.subscribe(0, 0)
    seen = []
    async for record in scanner:
        seen.append(record.offset)
        assert scanner.get_subscribed_buckets()[0][1] == record.offset + 1
        if record.offset == 10:
            break
    records = scanner.poll(1000)
    seen += offsets_of(records if face is fluss else await records)
    async for record in scanner:
        seen.append(record.offset)
        if record.offset == 60:
            break
    if face is fluss:
        for record in scanner:
            seen.append(record.offset)
            if record.offset == 70:
                break
    async for record in scanner:
        seen.append(record.offset)
        if len(seen) == 100:
            break
    assert seen == ALL
    await closed(scanner)


async def test_a_loop_stops_giving_a_bucket_that_is_unsubscribed(table):
    await fill_log(table)
    async with records_from(0, table.new_scan()) as scanner:
        seen = []
        async for record in scanner:
            seen.append(record.offset)
            if record.offset == 5:
                scanner.subscribe(0, 98)
            if record.offset == 99:
                break
        assert seen == [0, 1, 2, 3, 4, 5, 98, 99]


async def test_loops_that_are_cancelled_at_any_moment(faced):
    """Before Python 3.12 `asyncio.wait_for` swallowed some of these cancellations, and the task went on for ever."""
    writer = faced.new_append().create_writer()

    async def produce():
        for number in range(1000):
            writer.append((number, "n", 0.5))
            if number % 10 == 9:
                await writer.flush()

    async def consume():
        async for record in scanner:
            seen.append(record.row["id"])  # noqa: PERF401 - what came before the cancellation counts

    scanner = await faced.new_scan().create_log_scanner()
    scanner.subscribe(0, 0)
    seen: list[int] = []
    producing = asyncio.ensure_future(produce())
    chance = random.Random(7)
    while len(seen) < 1000:
        consuming = asyncio.ensure_future(consume())
        await asyncio.sleep(chance.choice([0, 0.0002, 0.0005, 0.001, 0.003]))
        consuming.cancel()
        await asyncio.wait((consuming,), timeout=5)
        assert consuming.cancelled()
    assert seen == list(range(1000))
    await producing
    await closed(scanner)


async def test_two_loops_share_the_records(table):
    await fill_log(table)
    async with records_from(0, table.new_scan()) as scanner:
        seen, all_seen = [], asyncio.Event()

        async def consume():
            async for record in scanner:
                seen.append(record.offset)
                if len(seen) == len(ALL):
                    all_seen.set()
                await asyncio.sleep(0)

        loops = [asyncio.ensure_future(consume()) for _ in range(3)]
        await all_seen.wait()
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)
        assert sorted(seen) == ALL


async def test_a_poll_that_has_records_does_not_wait_for_another_one(table):
    async with records_from(0, table.new_scan()) as scanner:
        polls = [asyncio.ensure_future(scanner.poll(5000)) for _ in range(2)]
        await asyncio.sleep(0.1)
        await fill_log(table, batches=1)
        done, waiting = await asyncio.wait(polls, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        assert [len(poll.result()) for poll in done] == [25]
        scanner.wakeup()
        await asyncio.wait(waiting, timeout=2)
        assert [len(poll.result()) for poll in waiting] == [0]


async def test_polls_by_turns_keep_their_own_timeouts(table):
    async with records_from(0, table.new_scan()) as scanner:

        async def poll_again_and_again():
            for _ in range(5):
                await scanner.poll(20)

        short, long = asyncio.ensure_future(poll_again_and_again()), asyncio.ensure_future(scanner.poll(5000))
        await asyncio.wait((short,), timeout=2)
        assert short.done()
        long.cancel()


async def test_good_batches_before_an_unexpected_failure_are_kept(table):
    await fill_log(table)
    async with await table.new_scan().create_log_scanner() as scanner:
        decode = scanner._fetcher.decoder.decode

        def fail_once(batch, *arguments, **options):
            if batch.header.base_offset == 25:
                scanner._fetcher.decoder.decode = decode
                raise ValueError("out of luck")
            return decode(batch, *arguments, **options)

        scanner._fetcher.decoder.decode = fail_once
        scanner.subscribe(0, 0)
        with pytest.raises(ValueError, match="out of luck"):
            await poll_all(scanner, 100)
        assert scanner.get_subscribed_buckets()[0][1] == 0
        assert offsets_of(await poll_all(scanner, 100)) == ALL


@pytest.mark.client(scanner_log_max_poll_records=20)
async def test_a_subscription_that_fails_is_reported_after_the_records_that_are_there(config, database):
    async with open_table(config, database, LOG_FIELDS, bucket_count=2) as (_, table):
        await fill_log(table)
        async with records_from(0, table.new_scan()) as scanner:
            assert len(await scanner.poll(5000)) == 20

            async def fail(*_):
                raise fluss.errors.NetworkError("no such luck")

            object.__setattr__(scanner._plan, "offsets", fail)
            scanner.subscribe(1, fluss.LATEST_OFFSET)
            await asyncio.sleep(0.01)
            with pytest.raises(fluss.errors.NetworkError):
                await poll_all(scanner, 100)


async def test_a_loop_that_the_garbage_collector_ends_leaves_the_rest(table):
    """It may do so in any allocation, also while the scanner holds its lock."""
    await fill_log(table)
    async with records_from(0, table.new_scan()) as scanner:
        cycle = [aiter(scanner)]
        cycle.append(cycle)
        assert (await anext(cycle[0])).offset == 0
        with scanner._fetched._lock:
            del cycle
            gc.collect()
        assert offsets_of(await poll_all(scanner, 99)) == ALL[1:]


@pytest.mark.parametrize("calls", ["loops", "polls"])
@pytest.mark.parametrize("subscribed", [True, False], ids=["a bucket", "none"])
async def test_closing_ends_all_that_wait(table, calls, subscribed):
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, 0)
    if not subscribed:
        scanner.unsubscribe(0)

    async def consume():
        return [record async for record in scanner]

    async def poll():
        return list(await scanner.poll(60_000))

    waiting = [asyncio.ensure_future(consume() if calls == "loops" else poll()) for _ in range(3)]
    await asyncio.sleep(0.05)
    await closed(scanner)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [[], [], []]
    assert [record async for record in scanner] == []
    with pytest.raises(fluss.FlussError, match="closed"):
        await scanner.poll(0)


@pytest.mark.parametrize("view", ["$changelog", "$binlog"])
@pytest.mark.parametrize("batches", [False, True], ids=["records", "batches"])
async def test_loops_over_a_virtual_table_that_are_left_early(config, database, view, batches):
    async with open_table(config, database, LOG_FIELDS_KEYED, keys=["id"]) as (conn, table):
        config.scanner_log_max_poll_records = 7
        writer = table.new_upsert().create_writer()
        for step in range(3):
            for key in range(10):
                writer.upsert({"id": key, "name": f"n{step}", "score": 0.5})
            await writer.flush()
        scan = (await conn.get_table(f"{database}.t{view}")).new_scan()

        async def read(leave):
            made = scan.create_record_batch_log_scanner() if batches else scan.create_log_scanner()
            rows = []
            async with await made as scanner:
                scanner.subscribe(0, 0)
                while len(rows) < (50 if view == "$changelog" else 30):
                    async for item in scanner:
                        rows += item.batch.to_pylist() if batches else [item.row]
                        if leave or len(rows) == (50 if view == "$changelog" else 30):
                            break
            return rows

        whole = await read(leave=False)
        assert await read(leave=True) == whole


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout and TaskGroup are new in Python 3.11")
@pytest.mark.parametrize("batches", [False, True], ids=["records", "batches"])
async def test_loops_within_timeouts_and_task_groups(table, faced, batches):
    of_311: Any = asyncio
    await fill_log(table)
    scan = faced.new_scan()
    scanner = await (scan.create_record_batch_log_scanner() if batches else scan.create_log_scanner())
    scanner.subscribe(0, 0)
    seen = []

    async def consume():
        async for item in scanner:
            seen.extend(range(item.base_offset, item.last_offset + 1) if batches else [item.offset])
            if len(seen) in (25, 50):
                raise LookupError

    async def fail_in_a_group():
        async with of_311.TaskGroup() as group:
            group.create_task(consume())
            group.create_task(asyncio.sleep(60))

    async def run_out_of_time():
        async with of_311.timeout(0.3):
            await consume()

    with pytest.raises(LookupError):
        await run_out_of_time()
    with pytest.raises(Exception, match="TaskGroup") as caught:
        await fail_in_a_group()
    group: Any = caught.value
    assert [type(error) for error in group.exceptions] == [LookupError]
    with pytest.raises(TimeoutError):
        await run_out_of_time()
    assert seen == ALL
    assert scanner.get_subscribed_buckets()[0][1] == 100
    await closed(scanner)


async def test_loops_within_cancel_scopes_of_anyio(table, faced):
    scanner = await faced.new_scan().create_log_scanner()
    scanner.subscribe(0, 0)
    seen = []

    async def consume():
        while len(seen) < 100:
            with anyio.move_on_after(0.002):
                async for record in scanner:
                    seen.append(record.offset)
                    await anyio.lowlevel.checkpoint()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await fill_log(table)
    assert seen == ALL
    await closed(scanner)


@pytest.mark.parametrize("leave", ["break", "aclose", "error", "cancel"])
async def test_reads_up_to_now_that_are_left_end_their_fetches(table, no_complaints, leave):
    """`read_batches` is an asynchronous generator: what it started ends with it, and the position stays."""
    await fill_log(table)
    async with batches_from(0, table.new_scan()) as scanner:
        batches = scanner.read_batches()
        begun = asyncio.Event()

        async def read():
            async for _ in batches:
                begun.set()
                if leave == "break":
                    break
                if leave == "error":
                    raise LookupError
                await asyncio.sleep(0 if leave == "aclose" else 60)

        if leave == "aclose":
            await anext(batches)
        else:
            reading = asyncio.ensure_future(read())
            await begun.wait()
            if leave == "cancel":
                reading.cancel()
            await asyncio.wait((reading,))
            assert leave != "error" or isinstance(reading.exception(), LookupError)
        await batches.aclose()
        assert scanner.get_subscribed_buckets()[0][1] == 0
        assert (await scanner.to_arrow()).column("id").to_pylist() == ALL
    others = [task for task in asyncio.all_tasks() if "_fetch" in repr(task.get_coro())]
    assert others == []


@pytest.mark.client(scanner_log_max_poll_records=7)
async def test_a_blocking_loop_and_polls_of_other_threads_share_the_records(table, plain):
    await fill_log(table, batches=20, rows=50)
    scanner = await plain[1].new_scan().create_log_scanner()
    scanner.subscribe(0, 0)
    seen: list[list[int]] = [[], [], []]

    def loop(mine):
        with contextlib.suppress(fluss.FlussError):  # it is closed
            while True:
                for record in scanner:
                    mine.append(record.offset)
                    if record.offset % 13 == 0:
                        break

    def poll(mine):
        while sum(map(len, seen)) < 1000:
            mine.extend(record.offset for record in scanner.poll(50))

    threads = [threading.Thread(target=target, args=(mine,)) for target, mine in zip((loop, poll, poll), seen)]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join(20)
    scanner.close()
    threads[0].join(20)
    assert sorted(seen[0] + seen[1] + seen[2]) == list(range(1000))


async def test_a_poll_of_many_tables_that_fails_or_is_cancelled_keeps_the_records(conn, table, database):
    await fill_log(table)
    admin = conn.get_admin()
    other = fluss.TablePath(database, "other")
    await admin.create_table(other, fluss.TableDescriptor(table.get_table_info().get_schema(), bucket_count=1))
    async with conn.get_multi_table().new_multi_table_scan().create_log_scanner() as scanner:
        await scanner.subscribe(f"{database}.t", 0, 0)
        await scanner.subscribe(other, 0, 5000)  # beyond the end: an error
        offsets = []

        async def poll():
            offsets.extend([record.offset for _, record in await scanner.poll(1000)])

        async def poll_to_the_error():
            while True:
                await poll()

        with pytest.raises(fluss.FlussError):
            await poll_to_the_error()
        await scanner.subscribe(other, 0, 0)
        for _ in range(2):
            polling = asyncio.ensure_future(scanner.poll(1000))
            await asyncio.sleep(0)
            polling.cancel()
            await asyncio.wait((polling,))
        while len(offsets) < 100:
            await poll()
        assert offsets == ALL
