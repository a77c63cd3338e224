# SPDX-License-Identifier: Apache-2.0
"""`fluss`: awaited from any loop, plain calls in any place, ends cleanly everywhere."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from tests.threads import in_threads

import fluss
import fluss.aio

SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])


@pytest.fixture
def conn(config):
    connection = asyncio.run(fluss.FlussConnection.create(config))
    yield connection
    connection.close()


@pytest.fixture
def path(conn, database):
    async def make():
        admin = await conn.get_admin()
        await admin.create_database(database)
        table_path = fluss.TablePath(database, "t")
        await admin.create_table(table_path, fluss.TableDescriptor(fluss.Schema(SCHEMA)))
        return table_path

    return asyncio.run(make())


def rows_of(conn, path):
    async def read():
        scanner = await (await conn.get_table(path)).new_scan().create_record_batch_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        with scanner:
            return scanner.to_arrow().column("id").to_pylist()

    return asyncio.run(read())


def test_threads_that_poll_one_scanner_share_its_records(conn, path):
    rows, polled = 40_000, 500

    async def make():
        table = await conn.get_table(path)
        with table.new_append().create_writer() as writer:
            for start in range(0, rows, 8_100):
                ids = range(start, min(start + 8_100, rows))
                writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": ids, "name": map(str, ids)}, schema=SCHEMA))
        return await table.new_scan().create_log_scanner()

    scanner = asyncio.run(make())
    scanner.subscribe(0, 0)
    seen: list[int] = []

    def work():
        while len(seen) < rows:
            found = [record.offset for record in scanner.poll(100)]
            assert found == sorted(found)
            assert len(found) <= polled
            seen.extend(found)

    with ThreadPoolExecutor(3) as pool:
        works = [pool.submit(work) for _ in range(3)]
        while not all(one.done() for one in works):
            ((_, position),) = scanner.get_subscribed_buckets()
            assert position <= len(seen) + 3 * polled, "never ahead of what was handed out"
            time.sleep(0.005)
        for one in works:
            one.result()
    assert sorted(seen) == list(range(rows)), "each record once"
    scanner.subscribe(0, 10)
    assert scanner.poll(5000)[0].offset == 10
    assert next(iter(scanner)).offset == 510, "iteration goes on behind the poll"
    scanner.subscribe(0, 20)
    assert next(iter(scanner)).offset == 20, "nothing is left over from before"
    scanner.poll(5000)
    scanner.close()
    with pytest.raises(fluss.FlussError, match="closed"):
        scanner.poll(10)


def test_one_connection_serves_many_loops_and_threads(conn, path):
    async def write(number):
        table = await conn.get_table(path)
        async with table.new_append().create_writer() as writer:
            for i in range(50):
                writer.append({"id": number * 100 + i, "name": "x"})
        assert await conn.get_admin().table_exists(path)

    in_threads(lambda number: asyncio.run(write(number)), range(6))
    assert sorted(rows_of(conn, path)) == [n * 100 + i for n in range(6) for i in range(50)]


async def test_plain_calls_work_inside_a_running_loop(conn, path):
    table = await conn.get_table(path)
    writer = table.new_append().create_writer()
    writer.append({"id": 1, "name": "a"})
    await writer.flush()
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    records = scanner.poll(timeout_ms=5000)
    assert [record.row for record in records] == [{"id": 1, "name": "a"}]
    scanner.unsubscribe(0)
    scanner.close()
    batches = await table.new_scan().create_batch_scanner()
    batches.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
    assert batches.to_pandas()["name"].tolist() == ["a"]
    assert batches.poll_arrow(5000).num_rows == 1
    batches.close()


def test_plain_calls_work_without_any_loop(conn, path):
    table = asyncio.run(conn.get_table(path))
    writer = table.new_append().create_writer()
    writer.append([1, "a"])
    with writer:
        writer.append((2, "b"))
    scanner = asyncio.run(table.new_scan().create_record_batch_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    assert scanner.to_arrow().num_rows == 2
    assert scanner.get_subscribed_buckets()[0][0].bucket_id == 0
    assert not scanner.is_partitioned()


async def test_latest_means_latest_at_the_time_of_the_call(conn, path):
    table = await conn.get_table(path)
    writer = table.new_append().create_writer()
    await writer.append([1, "old"]).wait()
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.LATEST_OFFSET)
    await writer.append([2, "new"]).wait()
    assert [record.row["id"] for record in scanner.poll(5000)] == [2]


async def test_reader_of_batches(conn, path):
    table = await conn.get_table(path)
    async with table.new_append().create_writer() as writer:
        writer.write_arrow(pa.table({"id": pa.array(range(100), pa.int32()), "name": ["x"] * 100}))
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    reader = scanner.to_arrow_batch_reader()
    assert reader.schema.names == ["id", "name"]
    assert reader.read_all().num_rows == 100


async def test_close_may_be_called_again(config):
    conn = await fluss.FlussConnection.connect(config)
    assert not conn.closed
    conn.close()
    conn.close()
    assert conn.closed
    for use in (conn.get_admin().list_databases(), conn.get_table(fluss.TablePath("a", "b"))):
        with pytest.raises(fluss.ConnectionClosedError):
            await use
    assert "closed" in repr(conn)


async def append_one(conn, path):
    (await conn.get_table(path)).new_append().create_writer().append({"id": 7, "name": "drained"})


async def test_leaving_a_block_flushes(config, conn, path):
    with await fluss.FlussConnection.create(config) as other:
        await append_one(other, path)
    assert other.closed
    async with await fluss.FlussConnection.create(config) as other:
        await append_one(other, path)
    assert other.closed
    assert await asyncio.to_thread(rows_of, conn, path) == [7, 7]


@pytest.mark.client(writer_batch_timeout_ms=60000)
async def test_close_fails_pending_writes(config, conn, path):
    other = await fluss.FlussConnection.create(config)
    writer = (await other.get_table(path)).new_append().create_writer()
    handle = writer.append({"id": 1, "name": "lost"})
    other.close()
    with pytest.raises(fluss.ConnectionClosedError):
        await handle.wait()
    with pytest.raises(fluss.FlussError):
        await writer.append({"id": 2, "name": "later"}).wait()
    assert await asyncio.to_thread(rows_of, conn, path) == []


@pytest.mark.client(writer_batch_timeout_ms=60000)
async def test_an_error_in_the_block_flushes_nothing(config, conn, path):
    other = await fluss.FlussConnection.create(config)
    await append_one(other, path)
    other.__exit__(RuntimeError, RuntimeError("stop"), None)
    assert await asyncio.to_thread(rows_of, conn, path) == []


async def test_older_names(conn, path):
    admin = await conn.get_admin()
    table = await conn.get_table(path)
    writer = await table.new_append_writer()
    writer.append({"id": 1, "name": "a"})
    await writer.flush()
    assert (await admin.get_table(path)).num_buckets == 1
    scanner = await table.new_scan().create_batch_scanner()
    scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
    assert [batch.batch.num_rows for batch in scanner.poll_batches(timeout_ms=5000)] == [1]


def test_wrong_kind_of_table(conn, path):
    table = asyncio.run(conn.get_table(path))
    for use in (table.new_upsert, table.new_lookup):
        with pytest.raises(fluss.NonPrimaryKeyTableError, match="has no primary key"):
            use()
    assert table.get_table_path() == path
    assert table.arrow_schema.names == ["id", "name"]
    assert not table.has_primary_key()
    assert "FlussTable" in repr(table)


def test_a_dropped_connection_ends_its_thread(config):
    before = {thread.ident for thread in threading.enumerate()}
    conn = asyncio.run(fluss.FlussConnection.create(config))
    [started] = [t for t in threading.enumerate() if t.ident not in before and t.name.startswith("fluss-io")]
    del conn
    gc.collect()
    started.join(10)
    assert not started.is_alive()


async def test_a_connection_that_its_own_thread_drops_is_closed(config):
    """The garbage collector runs in any thread, also in the one that would have to wait for itself."""
    kept = [await fluss.FlussConnection.create(config)]
    await (await kept[0].get_admin()).list_databases()
    background = kept[0]._background
    thread, cluster = background.thread, background.cluster
    loop = thread.loop
    assert cluster._pool.open_count() == 1
    del background
    loop.call_soon_threadsafe(lambda: (kept.clear(), gc.collect()))
    thread._thread.join(10)
    assert loop.is_closed()
    assert cluster.closed
    assert cluster._pool.open_count() == 0


def test_a_failed_connect_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(fluss.NetworkError):
        asyncio.run(fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": "127.0.0.1:1"})))
    assert threading.active_count() == before
    with pytest.raises(fluss.InvalidArgumentError, match="config must be a Config, got dict"):
        asyncio.run(fluss.FlussConnection.create({"bootstrap.servers": "x:1"}))


async def test_cancelling_an_awaited_call_hangs_nothing(conn, path):
    admin = conn.get_admin()
    for delay in (0, 0.0002, 0.001):
        call = asyncio.ensure_future(admin.list_databases())
        await asyncio.sleep(delay)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert await admin.table_exists(path)


SCRIPT = """
    import asyncio, os, sys
    import fluss

    async def main():
        conn = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": sys.argv[1]}))
        assert "fluss" in await conn.get_admin().list_databases()
        return conn

    conn = asyncio.run(main())
"""


def run_script(config, body):
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, config.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_interpreter_exit_with_an_open_connection(config):
    assert run_script(config, "print('end')") == "end\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("face", ["fluss", "fluss.aio"])
def test_a_forked_child_does_not_wait_for_writes_and_lookups_of_its_parent(config, database, face):
    body = f"""
        import pyarrow as pa
        import {face} as face

        async def begin():
            conn = await face.FlussConnection.create(fluss.Config({{"bootstrap.servers": sys.argv[1]}}))
            await conn.get_admin().create_database({database!r})
            schema = fluss.Schema(pa.schema([("id", pa.int32())]), primary_keys=["id"])
            await conn.get_admin().create_table("{database}.t", fluss.TableDescriptor(schema))
            table = await conn.get_table("{database}.t")
            return conn, table.new_upsert().create_writer(), table.new_lookup().create_lookuper()

        async def refused(wait):
            try:
                await asyncio.wait_for(wait(), 10)
            except fluss.ConnectionClosedError as error:
                return "fork" in str(error)
            return False

        async def check(conn, writer, lookuper):
            writer.upsert((2,))  # joins rows of the parent
            handle = writer.upsert((3,))
            return [await refused(wait) for wait in (handle.wait, lambda: lookuper.lookup((1,)))] + [conn.closed]

        loop = asyncio.new_event_loop()
        conn, writer, lookuper = loop.run_until_complete(begin())
        first = writer.upsert((1,))
        pid = os.fork()
        if pid == 0:
            results = asyncio.new_event_loop().run_until_complete(asyncio.wait_for(check(conn, writer, lookuper), 30))
            print(results, flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        loop.run_until_complete(first.wait())
        assert loop.run_until_complete(lookuper.lookup((1,))) == {{"id": 1}}
        closing = conn.close()
        if closing is not None:
            loop.run_until_complete(closing)
        loop.close()
        print("parent")
    """
    assert run_script(config, body) == "[True, True, True]\nparent\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_to_connect_again(config):
    body = """
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(conn.get_admin().list_databases())
            except fluss.ConnectionClosedError as error:
                assert "fork" in str(error)
                conn.close()
                other = asyncio.run(main())
                other.close()
                print("child", flush=True)
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert "fluss" in asyncio.run(conn.get_admin().list_databases())
        conn.close()
        print("parent")
    """
    assert run_script(config, body) == "child\nparent\n"


async def test_aio_runs_on_the_callers_loop(config, database):
    def io_threads():
        return {thread for thread in threading.enumerate() if thread.name.startswith("fluss-io")}

    before = io_threads()  # of tests that ran before
    async with await fluss.aio.FlussConnection.create(config) as conn:
        admin = conn.get_admin()
        assert await admin is admin
        await admin.create_database(database)
        path = fluss.TablePath(database, "t")
        await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA)))
        table = await conn.get_table(path)
        async with table.new_append().create_writer() as writer:
            writer.append({"id": 1, "name": "a"})
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        async with scanner:
            assert (await scanner.poll(5000))[0].row == {"id": 1, "name": "a"}
        assert io_threads() <= before
    assert conn.closed


async def test_aio_plain_with(config):
    with await fluss.aio.FlussConnection.create(config) as conn:
        assert "fluss" in await conn.get_admin().list_databases()
    await conn._closing
    assert conn.closed


@pytest.mark.parametrize("face", [fluss, fluss.aio])
def test_a_connection_that_is_not_created_says_how(config, face):
    with pytest.raises(fluss.InvalidArgumentError, match=r"await FlussConnection\.create\(config\).*fluss\.connect"):
        face.FlussConnection(config)


async def test_names_as_text(config, database):
    async with await fluss.aio.FlussConnection.create(config) as connection:
        admin = connection.get_admin()
        await admin.create_database(database)
        descriptor = fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int64())])))
        await admin.create_table(f"{database}.t", descriptor)
        assert await admin.table_exists(f"{database}.t")
        assert not await admin.table_exists(table_path="t")
        assert (await admin.get_table_info(f"{database}.t")).table_path == fluss.TablePath(database, "t")
        assert (await connection.get_table(f"{database}.t")).table_path == fluss.TablePath(database, "t")
        assert await admin.list_offsets(f"{database}.t", [0], fluss.OffsetSpec.latest()) == {0: 0}
        await admin.drop_table(f"{database}.t")
        for wrong in (7, "", ".", None):
            with pytest.raises(fluss.InvalidArgumentError, match="a TablePath"):
                await connection.get_table(wrong)
            with pytest.raises(fluss.InvalidArgumentError, match="a TablePath"):
                await admin.table_exists(wrong)


async def test_a_block_may_end_after_its_connection(config, database):
    async with await fluss.FlussConnection.create(config) as conn:
        admin = conn.get_admin()
        await admin.create_database(database)
        await admin.create_table(f"{database}.t", fluss.TableDescriptor(fluss.Schema(SCHEMA)))
        table = await conn.get_table(f"{database}.t")
        async with await table.new_scan().create_log_scanner(), table.new_scan().create_table_batch_scanner():
            conn.close()


def test_an_interrupt_while_closing_ends_the_thread_too(conn, monkeypatch):
    thread = conn._background.thread

    def interrupted(coro, timeout=None):
        coro.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        conn.close()
    assert thread.closed
