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
                with pytest.raises(fluss.InvalidArgumentError, match="Expected a TablePath"):
                    await connection.get_table(wrong)
                with pytest.raises(fluss.InvalidArgumentError, match="Expected a TablePath"):
                    await admin.table_exists(wrong)

    run(main())
