# SPDX-License-Identifier: Apache-2.0
"""The fixtures that other projects get by installing the package."""

from __future__ import annotations

import pytest

import fluss


async def test_the_connection_reaches_the_server(fluss_connection: fluss.FlussConnection) -> None:
    assert (await (await fluss_connection.get_admin()).list_databases()) == ["fluss"]


def test_the_server_is_shared(fluss_server: fluss.LocalServer, request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue("fluss_server") is fluss_server
    assert fluss_server.bootstrap_servers.startswith("127.0.0.1:")


@pytest.mark.parametrize("time", [1, 2])
def test_each_test_has_a_database_of_its_own(fluss_db: fluss.Database, time: int) -> None:
    assert fluss_db.tables() == []
    table = fluss_db.create_table("orders", [{"id": time}], primary_key="id")
    assert fluss_db.table("orders").to_pylist() == table.to_pylist() == [{"id": time}]
