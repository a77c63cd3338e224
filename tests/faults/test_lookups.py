# SPDX-License-Identifier: Apache-2.0
"""Lookups through a bad network: the row comes all the same, or an error within its time."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.support import write
from tests.faults.proxy import Fault, times

from fluss.metadata import ServerNode
from fluss.protocol import apis

LOOKUP = apis.LOOKUP.key


async def filled(conn, path, rows=100):
    table = await conn.get_table(path)
    await write(table, [(i, f"n{i}") for i in range(rows)])
    return table.new_lookup().create_lookuper()


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET, Fault.TRUNCATE, Fault.DELAY], ids=lambda fault: fault.value)
async def test_a_fault_of_answers_costs_no_row(proxy, through, fault):
    async with through(keys=["id"]) as (conn, path):
        lookuper = await filled(conn, path)
        proxy.on_response = times(2, fault, LOOKUP)
        rows = await asyncio.gather(*(lookuper.lookup({"id": i}) for i in range(100)))
        assert [row["name"] for row in rows] == [f"n{i}" for i in range(100)]


@pytest.mark.parametrize("reset", [False, True])
async def test_calls_outlive_cuts(proxy, through, reset):
    async with through(keys=["id"]) as (conn, path):
        lookuper, admin = await filled(conn, path), conn.get_admin()
        for round_number in range(3):
            lookups = [asyncio.ensure_future(lookuper.lookup([number])) for number in range(100)]
            await asyncio.sleep(0.001 * round_number)
            await asyncio.to_thread(proxy.cut, reset=reset)
            assert [row["id"] for row in await asyncio.gather(*lookups)] == list(range(100))
            proxy.cut(reset=reset)
            assert "fluss" in await admin.list_databases()
        proxy.cut(reset=reset)
        assert (await lookuper.lookup_many([[5], [6]])).num_rows == 2


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_a_lookup_under_way_to_a_server_that_moves(proxy, through, many):
    """The connection is closed because the server has another address now, not because the user closed it."""
    async with through(keys=["id"]) as (conn, path):
        lookuper = await filled(conn, path)
        await lookuper.lookup({"id": 0})
        proxy.stall()
        question = lookuper.lookup_many([{"id": 7}]) if many else lookuper.lookup({"id": 7})
        answer = asyncio.ensure_future(question)
        await asyncio.sleep(0.05)
        cluster = lookuper._runner.cluster
        cluster._pool.update(
            ServerNode(node.id, "127.0.0.1", 1, node.server_type) for node in cluster.metadata.server_nodes()
        )
        proxy.resume()
        found = await answer
        assert (found.to_pylist() if many else [found]) == [{"id": 7, "name": "n7"}]
