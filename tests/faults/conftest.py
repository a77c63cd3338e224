# SPDX-License-Identifier: Apache-2.0
"""A server behind a proxy that misbehaves, and connections through it."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from tests.faults.proxy import FaultProxy, ProxiedServer

import fluss
import fluss.aio

_numbers = itertools.count(1)

FIELDS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="session")
def proxied() -> Iterator[tuple[FaultProxy, ProxiedServer]]:
    with FaultProxy() as proxy, ProxiedServer(proxy) as server:
        yield proxy, server


@pytest.fixture
def proxy(proxied: tuple[FaultProxy, ProxiedServer]) -> Iterator[FaultProxy]:
    yield proxied[0]
    proxied[0].calm()


@pytest.fixture(autouse=True)
def _complaints_fail(no_complaints: None) -> None:
    """Fail every test here that leaves an error of a task or future unretrieved."""


@pytest.fixture(autouse=True)
def _tasks_end(request: pytest.FixtureRequest, no_complaints: None) -> None:
    """Fail every async test here that leaves tasks behind."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_tasks_left")


@pytest.fixture
def through(proxy: FaultProxy) -> Callable[..., AbstractAsyncContextManager[tuple[Any, fluss.TablePath]]]:
    """Open a connection through the proxy; gives it and the path of a fresh table."""

    @asynccontextmanager
    async def open_connection(
        *, keys: list[str] | None = None, buckets: int = 1, **options: Any
    ) -> AsyncIterator[tuple[Any, fluss.TablePath]]:
        settings = {"bootstrap.servers": proxy.address, "connect-timeout": 3000, "request-timeout": 3000}
        conn = await fluss.aio.FlussConnection.create(fluss.Config({**settings, **options}))
        try:
            admin = conn.get_admin()
            database = f"faults_{next(_numbers)}"
            await admin.create_database(database)
            path = fluss.TablePath(database, "t")
            schema = fluss.Schema(FIELDS, primary_keys=keys)
            await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=buckets))
            yield conn, path
        finally:
            await conn.close()

    return open_connection


@pytest.fixture
def log_of() -> Callable[..., Awaitable[pa.Table]]:
    """Reads everything in the log of a table."""

    async def read(conn: Any, path: fluss.TablePath, buckets: int = 1) -> pa.Table:
        scanner = await (await conn.get_table(path)).new_scan().create_record_batch_log_scanner()
        async with scanner:
            scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
            return await scanner.to_arrow()

    return read
