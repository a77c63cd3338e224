# SPDX-License-Identifier: Apache-2.0
"""A forgotten `await` is named, and names of tables may be texts."""

from __future__ import annotations

import asyncio
import warnings

import pyarrow as pa
import pytest

import fluss
import fluss.aio


@pytest.mark.parametrize("face", [fluss, fluss.aio])
def test_a_forgotten_await_is_named(config, run, face):
    async def main():
        connection = await face.FlussConnection.create(config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # Python's own: the coroutine was never awaited
            with pytest.raises(AttributeError, match=r"write await FlussConnection\.get_table\(…\)"):
                connection.get_table("fluss.t").new_append()  # type: ignore[attr-defined]
            with (
                pytest.raises(TypeError, match=r"write with await FlussConnection\.create\(…\)"),
                face.FlussConnection.create(config),
            ):
                pass
            with pytest.raises(TypeError, match=r"write await FlussConnection\.get_table\(…\)"):
                list(connection.get_table("fluss.t"))
            assert "not awaited" in repr(connection.get_table("fluss.t"))
        closing = connection.close()
        if closing is not None:
            await closing

    run(main())


@pytest.mark.parametrize("face", [fluss, fluss.aio])
def test_a_connection_that_is_not_created_says_how(config, face):
    with pytest.raises(fluss.InvalidArgumentError, match=r"await FlussConnection\.create\(config\).*fluss\.connect"):
        face.FlussConnection(config)


def test_such_a_coroutine_is_one_in_every_other_way(config):
    connection = asyncio.run(fluss.FlussConnection.create(config))  # wants a coroutine and nothing else
    connection.close()

    async def main():
        async with await asyncio.wait_for(fluss.aio.FlussConnection.create(config), 30) as own:
            tasks = [asyncio.create_task(own.get_table("fluss.no_such_table")) for _ in range(2)]
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, fluss.TableNotExistError)
            waiting = asyncio.create_task(own.get_table("fluss.no_such_table"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())


def test_names_as_text(config, database, run):
    async def main():
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

    run(main())


def test_plain_results_may_be_awaited(config, database, run):
    """Code of release 1.0, where these are coroutines, with `import fluss` instead of `import fluss.aio as fluss`."""

    async def use():
        with await fluss.FlussConnection.create(config) as conn:
            admin = conn.get_admin()
            await admin.create_database(database)
            path = fluss.TablePath(database, "t")
            schema = fluss.Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
            await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
            table = await conn.get_table(path)
            writer = table.new_append().create_writer()
            writer.append((1, "a"))
            await writer.flush()
            with await table.new_scan().create_log_scanner() as scanner:
                scanner.subscribe(0, fluss.EARLIEST_OFFSET)
                assert [record.row for record in await scanner.poll(5000)] == [{"id": 1, "name": "a"}]
                assert len(scanner.poll(10)) == 0
            with await table.new_scan().create_record_batch_log_scanner() as scanner:
                scanner.subscribe(0, fluss.EARLIEST_OFFSET)
                assert (await scanner.to_arrow()).num_rows == scanner.to_arrow().num_rows == 1
                assert len(await scanner.to_pandas()) == len(scanner.to_pandas()) == 1
                assert (await scanner.to_polars()).height == scanner.to_polars().height == 1
                [found] = await scanner.poll_record_batch(5000)
                assert found.batch.num_rows == 1
                assert (await scanner.poll_arrow(10)).num_rows == scanner.poll_arrow(10).num_rows == 0
                assert await scanner.poll_batches(10) == scanner.poll_batches(10) == []
                kept = scanner.poll_arrow(10)
                with pytest.raises(TypeError, match="await"):
                    await kept
            bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
            few = table.new_scan().limit(5)
            assert (await few.create_bucket_batch_scanner(bucket).to_arrow()).num_rows == 1
            assert len(await few.create_bucket_batch_scanner(bucket).collect_all_batches()) == 1
            once = few.create_bucket_batch_scanner(bucket)
            assert (await once.next_batch()).num_records == 1
            assert await once.next_batch() is None

    run(use())
