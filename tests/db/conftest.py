# SPDX-License-Identifier: Apache-2.0
"""A server for all tests of the high-level API, and a database of it for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fluss


def columns(table: fluss.Table) -> str:
    """The columns with their types, as in a statement that creates the table."""
    return ", ".join(f"{name} {kind}" for name, kind in table.schema.get_columns())


@pytest.fixture(scope="session")
def db_server() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared(db_server: fluss.LocalServer) -> Iterator[fluss.Database]:
    with fluss.connect(db_server.bootstrap_servers, timeout=30) as db:
        yield db


@pytest.fixture
def db(shared: fluss.Database) -> Iterator[fluss.Database]:
    """A database without tables; others that a test creates are dropped with it."""
    before = set(shared.databases())
    yield shared
    for name in shared.tables():
        shared.drop_table(name)
    for name in set(shared.databases()) - before:
        shared.drop_database(name, cascade=True)


@pytest.fixture(scope="module")
def lake_db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fluss.Database]:
    pytest.importorskip("pypaimon")
    folder = tmp_path_factory.mktemp("lake")
    options = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(folder / "warehouse")}
    with fluss.connect(folder / "data", server=options) as db:
        yield db
