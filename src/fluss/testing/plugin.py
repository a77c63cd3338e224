# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin. Nothing heavy is imported before a fixture is used."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import fluss


@pytest.fixture(scope="session")
def fluss_server() -> Iterator[fluss.LocalServer]:
    """An embedded server with temporary data, shared by the tests of a session."""
    import fluss

    with fluss.LocalServer() as server:
        yield server


@pytest.fixture
def fluss_db(fluss_server: fluss.LocalServer) -> Iterator[fluss.Database]:
    """A database of its own on `fluss_server`, dropped after the test with its tables."""
    import fluss

    with fluss.connect(fluss_server.bootstrap_servers) as maker:
        name = f"test_{uuid.uuid4().hex}"
        maker.create_database(name)
        try:
            with fluss.connect(fluss_server.bootstrap_servers, database=name) as db:
                yield db
        finally:
            maker.drop_database(name, cascade=True)


@pytest.fixture
def fluss_connection(fluss_server: fluss.LocalServer) -> Iterator[fluss.FlussConnection]:
    """A connection to `fluss_server`, closed after the test. Works in plain and in async tests."""
    import fluss

    connection = asyncio.run(fluss.FlussConnection.create(fluss_server.config()))
    try:
        yield connection
    finally:
        connection.close()
