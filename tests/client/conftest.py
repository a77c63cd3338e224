# SPDX-License-Identifier: Apache-2.0
"""One embedded server for all client tests; every test has a database of its own."""

from __future__ import annotations

import gc
import inspect
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.client.support import LOG_FIELDS, closed, open_table

import fluss
import fluss.aio
from fluss.client.cluster import Cluster
from fluss.config import Config
from fluss.server.local import LocalServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "client: options of the client, as attributes of its `config`")
    config.addinivalue_line("markers", "table: what `table` is created with, beside its columns")


def _marked(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    mark = request.node.get_closest_marker(name)
    return dict(mark.kwargs) if mark else {}


@pytest.fixture
def config(request: pytest.FixtureRequest, embedded_server: LocalServer) -> Config:
    made = Config({"bootstrap.servers": embedded_server.bootstrap_servers, "connect-timeout": 5000})
    for name, value in _marked(request, "client").items():
        setattr(made, name, value)
    return made


@pytest.fixture
def database() -> str:
    """A database name that no other test uses."""
    return f"client_db_{next(_numbers)}"


@pytest.fixture
async def _opened(request: pytest.FixtureRequest, config: Config, database: str) -> AsyncIterator[tuple[Any, Any]]:
    fields = getattr(request.module, "FIELDS", LOG_FIELDS)
    async with open_table(config, database, fields, **_marked(request, "table")) as opened:
        yield opened


@pytest.fixture
def table(_opened: tuple[Any, Any]) -> Any:
    """A new table `t` with the FIELDS of the module or else LOG_FIELDS, one bucket and no key, or as it is marked."""
    return _opened[1]


@pytest.fixture
async def writer(table: Any) -> Any:
    """A writer of `table`, of upserts if it has a primary key."""
    return (table.new_upsert() if table.has_primary_key() else table.new_append()).create_writer()


@pytest.fixture
def conn(_opened: tuple[Any, Any]) -> Any:
    """The connection of `table`."""
    return _opened[0]


@pytest.fixture
async def cluster(config: Config) -> AsyncIterator[Cluster]:
    found = await Cluster.connect(config)
    yield found
    await found.close()


@pytest.fixture(params=[fluss, fluss.aio], ids=["fluss", "aio"])
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def faced(config: Config, table: Any, face: Any) -> AsyncIterator[Any]:
    """The table `table`, opened by a connection of one of the faces."""
    connection = await face.FlussConnection.create(config)
    yield await connection.get_table(table.get_table_path())
    await closed(connection)


@pytest.fixture
async def plain(config: Config, table: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A connection of the blocking face, and the table `table` opened by it."""
    connection = await fluss.FlussConnection.create(config)
    yield connection, await connection.get_table(table.get_table_path())
    connection.close()


@pytest.fixture(autouse=True)
def _complaints_fail(no_complaints: None) -> None:
    """Fail every test here that leaves an error of a task or future unretrieved."""


@pytest.fixture
def collected(no_complaints: None) -> Iterator[None]:
    """Collect garbage after the test: what was left behind shows then."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _tasks_end(request: pytest.FixtureRequest, no_complaints: None) -> None:
    """Fail every async test here that leaves tasks behind."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_tasks_left")
