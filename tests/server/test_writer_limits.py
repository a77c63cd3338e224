# SPDX-License-Identifier: Apache-2.0
"""A bucket remembers the writers that wrote last; one that it has forgotten goes on, and no row is lost or doubled."""

from __future__ import annotations

import pyarrow as pa
import pytest

import fluss.aio as fluss
from fluss.server.log import writers
from fluss.server.server import Server


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["log", "primary-key"])
async def test_an_evicted_writer_goes_on(server: Server, monkeypatch: pytest.MonkeyPatch, keys: list[str]) -> None:
    monkeypatch.setattr(writers, "WRITERS_MAX", 3)
    path = fluss.TablePath("fluss", "t")
    descriptor = fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int64())]), primary_keys=keys), bucket_count=1)
    config = fluss.Config({"bootstrap.servers": server.listeners["FLUSS"].address})

    async def write(connection: fluss.FlussConnection, ids: range) -> None:
        table = await connection.get_table(path)
        for number in ids:
            if keys:
                async with table.new_upsert().create_writer() as upserts:
                    upserts.upsert((number,))
            else:
                async with table.new_append().create_writer() as appends:
                    appends.append((number,))

    async with await fluss.FlussConnection.create(config) as first:
        await first.get_admin().create_table(path, descriptor)
        await write(first, range(3))
        for number in range(6):
            async with await fluss.FlussConnection.create(config) as other:
                await write(other, range(10 + number, 11 + number))
        await write(first, range(3, 6))
        [log] = server.tablets
        assert len(log.writers) == 3
        table = await first.get_table(path)
        async with await table.new_scan().create_record_batch_log_scanner() as scanner:
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            found = (await scanner.to_arrow())["id"].to_pylist()
        assert found == [0, 1, 2, *range(10, 16), 3, 4, 5]
