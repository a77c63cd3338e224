# SPDX-License-Identifier: Apache-2.0
"""Lookups on a loop that has connections of its own: the same answers, whatever happens to the connections."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import warnings
import weakref

import pyarrow as pa
import pytest

import fluss
from fluss.client.loop_connections import ASKED_BEFORE

pytestmark = pytest.mark.usefixtures("collected")

SCHEMA = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_keys=["id"])


async def filled(conn, database):
    path = fluss.TablePath(database, "t")
    admin = conn.get_admin()
    await admin.create_database(database, ignore_if_exists=True)
    await admin.create_table(path, fluss.TableDescriptor(SCHEMA, bucket_count=2), ignore_if_exists=True)
    table = await conn.get_table(path)
    async with table.new_upsert().create_writer() as writer:
        for number in range(100):
            writer.upsert((number, f"n{number}"))
    return table


def connection_of(conn):
    """The connection that the running loop has, or None."""
    connections = conn._background.cluster.loop_connections.of(asyncio.get_running_loop())
    return next(iter(connections._by_node.values()), None)


async def warm(conn, lookuper):
    """Ask until the loop has a connection of its own."""
    for number in range(10_000):
        assert (await lookuper.lookup([number % 100]))["name"] == f"n{number % 100}"
        connection = connection_of(conn)
        if connection is not None and not connection.closed:
            return connection
        if number > ASKED_BEFORE:
            await asyncio.sleep(0.01)
    raise AssertionError("no connection came")


@pytest.fixture
def use(config, database):
    def start(scenario):
        async def main():
            with await fluss.FlussConnection.create(config) as conn:
                table = await filled(conn, database)
                await asyncio.wait_for(scenario(conn, table.new_lookup().create_lookuper()), 60)

        asyncio.run(main())

    return start


def test_a_few_lookups_open_no_connection(use):
    async def scenario(conn, lookuper):
        opened = conn.metrics()["connections_opened_total"]
        for number in range(ASKED_BEFORE - 1):
            assert (await lookuper.lookup([number]))["id"] == number
        await asyncio.sleep(0.2)
        assert conn.metrics()["connections_opened_total"] == opened
        assert connection_of(conn) is None

    use(scenario)


def test_lookupers_share_their_requests(use, config, database):
    """Also those of tables that were asked for anew."""

    async def scenario(conn, lookuper):
        await warm(conn, lookuper)
        path = lookuper._state.table_path
        lookupers = [(await conn.get_table(path)).new_lookup().create_lookuper() for _ in range(50)]
        before = conn.metrics()
        rows = await asyncio.gather(*(lookupers[number % 50].lookup([number]) for number in range(200)))
        assert [row and row["id"] for row in rows] == [*range(100), *[None] * 100]
        after = conn.metrics()
        assert after["lookups_total"] - before["lookups_total"] == 200
        assert after["lookup_batches_total"] - before["lookup_batches_total"] < 30, "keys travel together"

    use(scenario)


def test_many_lookups_go_over_a_connection_of_the_loop(use):
    async def scenario(conn, lookuper):
        before = conn.metrics()
        await warm(conn, lookuper)
        opened = conn.metrics()
        assert opened["connections_opened_total"] == before["connections_opened_total"] + 1
        assert opened["connections_open"] == before["connections_open"] + 1
        rows = await asyncio.gather(*(lookuper.lookup([number]) for number in range(200)))
        assert [row and row["id"] for row in rows] == [*range(100), *[None] * 100]
        after = conn.metrics()
        assert after["lookups_total"] - opened["lookups_total"] == 200
        assert after["lookup_batches_total"] - opened["lookup_batches_total"] < 30, "keys travel together"
        assert after["connections_opened_total"] == opened["connections_opened_total"]
        assert after["lookups_pending"] == 0

    use(scenario)


def test_all_lookupers_of_a_loop_share_its_connection(use, database):
    async def scenario(conn, lookuper):
        connection = await warm(conn, lookuper)
        opened = conn.metrics()["connections_opened_total"]
        other = (await conn.get_table(fluss.TablePath(database, "t"))).new_lookup().create_lookuper()
        for number in range(50):
            assert (await other.lookup([number]))["id"] == number
        assert connection_of(conn) is connection
        assert conn.metrics()["connections_opened_total"] == opened

    use(scenario)


def test_prefixes_go_the_same_way(config, database):
    async def main():
        with await fluss.FlussConnection.create(config) as conn:
            path = fluss.TablePath(database, "p")
            schema = fluss.Schema(
                pa.schema([("a", pa.int32()), ("b", pa.int32()), ("v", pa.string())]), primary_keys=["a", "b"]
            )
            await conn.get_admin().create_database(database)
            await conn.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_keys=["a"], bucket_count=2))
            table = await conn.get_table(path)
            async with table.new_upsert().create_writer() as writer:
                for a in range(10):
                    for b in range(3):
                        writer.upsert((a, b, f"{a}-{b}"))
            lookuper = table.new_lookup().lookup_by(["a"]).create_lookuper()
            for turn in range(60):
                found = await lookuper.lookup([turn % 12])
                assert sorted(row["b"] for row in found) == ([0, 1, 2] if turn % 12 < 10 else [])
                if turn > ASKED_BEFORE:
                    await asyncio.sleep(0.005)
            assert connection_of(conn) is not None

    asyncio.run(main())


def test_a_lost_connection_is_no_lost_lookup(use):
    async def scenario(conn, lookuper):
        for _ in range(3):
            connection = await warm(conn, lookuper)
            lookups = [asyncio.ensure_future(lookuper.lookup([number])) for number in range(100)]
            await asyncio.sleep(0)
            connection._lose(None)
            assert [row["id"] for row in await asyncio.gather(*lookups)] == list(range(100))
            assert conn.metrics()["lookups_pending"] == 0

    use(scenario)


@pytest.mark.parametrize("deadline_ms", [60_000, 50])
def test_a_server_that_keeps_silent_on_the_line(use, monkeypatch, deadline_ms):
    """The long way answers, unless the time for a lookup is over by then."""

    async def scenario(conn, lookuper):
        connection = await warm(conn, lookuper)
        asyncio.get_running_loop().remove_reader(connection._sock.fileno())  # no answer will be seen
        connection._timeout_s, connection._timed = 0.2, False
        monkeypatch.setattr(conn._background.cluster, "call_timeout_ms", deadline_ms)
        began = time.monotonic()
        if deadline_ms > 200:
            assert (await lookuper.lookup([5]))["id"] == 5
        else:
            with pytest.raises(fluss.DeadlineExceededError, match="within 200 ms"):
                await lookuper.lookup([5])
        assert 0.15 < time.monotonic() - began < 10
        assert connection.closed
        assert conn.metrics()["lookups_pending"] == 0

    use(scenario)


def test_errors_are_left_to_the_long_way(use, database):
    """A table that was dropped: the lookup says so, as it does without a connection of the loop."""

    async def scenario(conn, lookuper):
        connection = await warm(conn, lookuper)
        await conn.get_admin().drop_table(fluss.TablePath(database, "t"))
        with pytest.raises(fluss.FlussError, match=r"not exist|dropped"):
            await asyncio.wait_for(lookuper.lookup([1]), 40)
        assert not connection.closed

    use(scenario)


def test_close_fails_what_is_under_way(config, database):
    async def main():
        conn = await fluss.FlussConnection.create(config)
        lookuper = (await filled(conn, database)).new_lookup().create_lookuper()
        connection = await warm(conn, lookuper)
        asyncio.get_running_loop().remove_reader(connection._sock.fileno())  # no answer will be seen
        lookups = [asyncio.ensure_future(lookuper.lookup([number])) for number in range(100)]
        await asyncio.sleep(0.05)
        assert conn.metrics()["lookups_pending"] == 100
        conn.close()
        found = await asyncio.wait_for(asyncio.gather(*lookups, return_exceptions=True), 10)
        assert {type(error) for error in found} == {fluss.ConnectionClosedError}
        assert connection.closed
        with pytest.raises(fluss.ConnectionClosedError):
            await lookuper.lookup([1])

    asyncio.run(main())


def test_close_on_another_thread(config, database):
    async def main():
        conn = await fluss.FlussConnection.create(config)
        lookuper = (await filled(conn, database)).new_lookup().create_lookuper()
        connection = await warm(conn, lookuper)

        async def ask():
            while True:
                await asyncio.gather(*(lookuper.lookup([number]) for number in range(20)))

        asking = [asyncio.ensure_future(ask()) for _ in range(3)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(conn.close)
        found = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 10)
        assert {type(error) for error in found} == {fluss.ConnectionClosedError}
        assert connection.closed

    asyncio.run(main())


def test_loops_that_end_before_the_connection(config, database):
    conn = asyncio.run(fluss.FlussConnection.create(config))
    lookuper = asyncio.run(filled(conn, database)).new_lookup().create_lookuper()
    connections, sockets = [], []

    async def one_loop():
        connection = await warm(conn, lookuper)
        connections.append(weakref.ref(connection))
        sockets.append(connection._sock)

    for _ in range(3):
        asyncio.run(one_loop())
    gc.collect()
    assert [connection() for connection in connections] == [None] * 3
    assert [sock.fileno() for sock in sockets] == [-1] * 3
    kept = asyncio.new_event_loop()
    kept.run_until_complete(one_loop())
    kept.close()
    assert connections[3]() is not None
    conn.close()
    assert sockets[3].fileno() == -1, "the loop is closed, so closing the connection closes its socket"


def test_loops_in_threads(config, database):
    conn = asyncio.run(fluss.FlussConnection.create(config))
    lookuper = asyncio.run(filled(conn, database)).new_lookup().create_lookuper()
    before = conn.metrics()["lookups_total"]
    errors = []
    asked = [0] * 4

    async def one_loop(thread):
        for number in range(300):
            rows = await asyncio.gather(*(lookuper.lookup([(number + i) % 100]) for i in range(5)))
            assert [row["id"] for row in rows] == [(number + i) % 100 for i in range(5)]
            asked[thread] += 5

    def work(thread):
        try:
            asyncio.run(asyncio.wait_for(one_loop(thread), 60))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert errors == []
    assert conn.metrics()["lookups_total"] - before == sum(asked) == 6000
    conn.close()


def test_a_loop_that_cannot_watch_sockets_goes_the_long_way(config, database):
    class Plain(asyncio.SelectorEventLoop):
        def add_reader(self, *args):
            raise NotImplementedError

    async def main():
        with await fluss.FlussConnection.create(config) as conn:
            lookuper = (await filled(conn, database)).new_lookup().create_lookuper()
            for number in range(100):
                assert (await lookuper.lookup([number]))["id"] == number
                await asyncio.sleep(0.001)
            assert connection_of(conn) is None
            assert conn.metrics()["connections_opened_total"] <= 4, "it is not tried again and again"

    loop = Plain()
    try:
        loop.run_until_complete(asyncio.wait_for(main(), 60))
    finally:
        loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_does_not_speak_on_the_connections_of_its_parent(use):
    async def scenario(conn, lookuper):
        connection = await warm(conn, lookuper)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # to fork beside a thread: that is the point
            child = os.fork()
        if not child:
            os._exit(0 if connection.closed and connection._sock.fileno() == -1 else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not connection.closed
        assert (await lookuper.lookup([5]))["id"] == 5

    use(scenario)
