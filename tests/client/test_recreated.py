# SPDX-License-Identifier: Apache-2.0
"""Writers and lookupers of a partition or a partitioned table that was dropped and created again."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.support import open_table
from tests.waiting import at_most

import fluss.aio as fluss
from fluss.errors import TableNotExistError
from fluss.metadata import Column, IntType, Schema, StringType, TableDescriptor, TablePath

COLUMNS = [Column("k", IntType()), Column("v", StringType()), Column("p", StringType())]
KEYED = Schema.of(COLUMNS, primary_key=["k", "p"])
LOG = Schema.of(COLUMNS)


async def test_keys_of_a_partition_that_came_again_are_found_without_retries(config, database):
    async with open_table(config, database, KEYED, partition_keys=["p"]) as (conn, table):
        writer = table.new_upsert().create_writer()
        lookuper = table.new_lookup().create_lookuper()
        await writer.upsert((1, "a", "eu")).wait()
        assert (await lookuper.lookup((1, "eu")))["v"] == "a"
        admin = conn.get_admin()
        await admin.drop_partition(table.table_path, {"p": "eu"})
        assert await lookuper.lookup((1, "eu")) is None
        await admin.create_partition(table.table_path, {"p": "eu"})
        await writer.upsert((1, "b", "eu")).wait()
        assert (await lookuper.lookup((1, "eu")))["v"] == "b"
        before = conn.metrics()
        for _ in range(5):
            assert (await lookuper.lookup((1, "eu")))["v"] == "b"
        after = conn.metrics()
        assert after["retries_total"] == before["retries_total"]
        assert after["metadata_refreshes_total"] == before["metadata_refreshes_total"]


@pytest.mark.parametrize("partition_keys", [["p"], ["p", "v"], []])
@pytest.mark.parametrize("schema", [KEYED, LOG], ids=["keyed", "log"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_a_partitioned_table_that_came_again_is_an_error_at_once(config, database, schema, partition_keys, known):
    async with (
        open_table(config, database, schema, partition_keys=["p"]) as (conn, table),
        await fluss.FlussConnection.create(config) as other,
    ):
        old = await other.get_table(TablePath(database, "t"))
        admin = conn.get_admin()
        await admin.drop_table(table.table_path)
        again = schema if schema is LOG else Schema.of(COLUMNS, primary_key=["k", *partition_keys])
        await admin.create_table(table.table_path, TableDescriptor(again, partition_keys=partition_keys))
        if known:
            await other.get_table(table.table_path)
        with at_most(8):
            builder = old.new_append() if schema is LOG else old.new_upsert()
            writer = builder.create_writer()
            write = writer.append if schema is LOG else writer.upsert
            with pytest.raises(TableNotExistError, match="dropped and created again"):
                await asyncio.wait_for(write((1, "a", "us")).wait(), 8)
            if schema is KEYED:  # the writer found out
                with pytest.raises(TableNotExistError, match="dropped and created again"):
                    await asyncio.wait_for(old.new_lookup().create_lookuper().lookup((1, "us")), 8)
        if partition_keys:
            assert await admin.list_partition_infos(table.table_path) == []
