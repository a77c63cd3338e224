# SPDX-License-Identifier: Apache-2.0
"""One embedded server for all client tests; every test has a database of its own."""

from __future__ import annotations

import gc
import inspect
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.client.support import LOG_FIELDS, open_table

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
    """A new log table `t` with the FIELDS of the test's module, or else LOG_FIELDS, and one bucket."""
    return _opened[1]


@pytest.fixture
def conn(_opened: tuple[Any, Any]) -> Any:
    """The connection of `table`."""
    return _opened[0]


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
