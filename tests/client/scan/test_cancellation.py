# SPDX-License-Identifier: Apache-2.0
"""Polls that are cancelled and loops that are left early: no record is lost, none comes twice."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.client.support import LOG_FIELDS, fill_log, poll_all, with_table

import fluss
import fluss.aio

ALL = list(range(100))


def offsets_of(records):
    return [record.offset for record in records]


def test_a_cancelled_poll_keeps_what_it_took(run, config, database):
    async def use(conn, table):
        await fill_log(table)
        async with await table.new_scan().create_log_scanner() as scanner:
            scanner.subscribe(0, 0)
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
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert scanner.get_subscribed_buckets()[0][1] == 0
            assert offsets_of(await poll_all(scanner, 100)) == ALL

    run(with_table(config, database, use, LOG_FIELDS))


def test_a_cancelled_poll_gives_nothing_of_a_bucket_that_was_subscribed_anew(run, config, database):
    async def use(conn, table):
        await fill_log(table)
        async with await table.new_scan().create_log_scanner() as scanner:
            scanner.subscribe(0, 0)
            taken = await scanner._collect(5000)
            scanner.subscribe(0, 90)
            scanner._put_back(taken)
            assert offsets_of(await poll_all(scanner, 10)) == ALL[90:]

    run(with_table(config, database, use, LOG_FIELDS))


@pytest.mark.parametrize("face", [fluss, fluss.aio], ids=["fluss", "aio"])
def test_a_loop_that_is_left_early_leaves_the_rest(run, config, database, face):
    async def use(conn, table):
        await fill_log(table)
        config.scanner_log_max_poll_records = 20
        connection = await face.FlussConnection.create(config)
        table = await connection.get_table(f"{database}.t")
        scanner = await table.new_scan().create_log_scanner()
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
        await scanner.close()
        await connection.close()

    run(with_table(config, database, use, LOG_FIELDS))


def test_a_loop_stops_giving_a_bucket_that_is_unsubscribed(run, config, database):
    async def use(conn, table):
        await fill_log(table)
        async with await table.new_scan().create_log_scanner() as scanner:
            scanner.subscribe(0, 0)
            seen = []
            async for record in scanner:
                seen.append(record.offset)
                if record.offset == 5:
                    scanner.subscribe(0, 98)
                if record.offset == 99:
                    break
            assert seen == [0, 1, 2, 3, 4, 5, 98, 99]

    run(with_table(config, database, use, LOG_FIELDS))


@pytest.mark.parametrize("face", [fluss, fluss.aio], ids=["fluss", "aio"])
def test_loops_that_are_cancelled_at_any_moment(run, config, database, face):
    """Before Python 3.12 `asyncio.wait_for` swallowed some of these cancellations, and the task went on for ever."""

    async def use(conn, table):
        connection = await face.FlussConnection.create(config)
        table = await connection.get_table(f"{database}.t")
        writer = table.new_append().create_writer()

        async def produce():
            for number in range(1000):
                writer.append((number, "n", 0.5))
                if number % 10 == 9:
                    await writer.flush()

        async def consume():
            async for record in scanner:
                seen.append(record.row["id"])  # noqa: PERF401 - what came before the cancellation counts

        scanner = await table.new_scan().create_log_scanner()
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
        await scanner.close()
        await connection.close()

    run(with_table(config, database, use, LOG_FIELDS))


def test_two_loops_share_the_records(run, config, database):
    async def use(conn, table):
        await fill_log(table)
        async with await table.new_scan().create_log_scanner() as scanner:
            scanner.subscribe(0, 0)
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

    run(with_table(config, database, use, LOG_FIELDS))


def test_a_poll_of_many_tables_that_fails_or_is_cancelled_keeps_the_records(run, config, database):
    async def use(conn, table):
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

    run(with_table(config, database, use, LOG_FIELDS))
