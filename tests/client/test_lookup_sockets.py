# SPDX-License-Identifier: Apache-2.0
"""Lookups of threads that wait: the same answers, whatever happens to their connections."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings

import pyarrow as pa
import pytest
from tests.client.support import write
from tests.shared import raising
from tests.threads import in_threads

import fluss
from fluss.client.lookup_sockets import CONNECTIONS_MAX, LOOKUPS_BEFORE, BlockingConnections

pytestmark = pytest.mark.usefixtures("collected")

SCHEMA = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_keys=["id"])


class Lookups:
    """A table of 100 rows, and what looks them up."""

    def __init__(self, config, database):
        self.conn = asyncio.run(fluss.FlussConnection.create(config))
        self.path = fluss.TablePath(database, "t")
        self.lookuper = asyncio.run(self._filled()).new_lookup().create_lookuper()
        self.blocking = BlockingConnections(self.conn._background)

    async def _filled(self):
        admin = self.conn.get_admin()
        await admin.create_database(self.path.database_name)
        await admin.create_table(self.path, fluss.TableDescriptor(SCHEMA, bucket_count=2))
        table = await self.conn.get_table(self.path)
        await write(table, [(number, f"n{number}") for number in range(100)])
        return table

    def get(self, number):
        return self.lookuper.lookup_blocking([number], self.blocking)

    def warm(self):
        """Look up until there is a connection."""
        for number in range(2 * LOOKUPS_BEFORE):
            assert self.get(number % 100) == {"id": number % 100, "name": f"n{number % 100}"}
        [connection] = self.blocking._connections
        return connection

    def metric(self, name):
        return self.conn.metrics()[name]

    def close(self):
        self.blocking.close()
        self.conn.close()


@pytest.fixture
def lookups(config, database):
    made = Lookups(config, database)
    yield made
    made.close()


def test_a_few_lookups_open_no_connection(lookups):
    opened = lookups.metric("connections_opened_total")
    for number in range(LOOKUPS_BEFORE - 1):
        assert lookups.get(number)["id"] == number
    assert lookups.metric("connections_opened_total") == opened


def test_many_lookups_go_over_one_connection(lookups):
    opened, count = lookups.metric("connections_opened_total"), lookups.metric("connections_open")
    for number in range(200):
        row = lookups.get(number)
        assert (row and row["id"]) == (number if number < 100 else None)
    assert lookups.metric("connections_opened_total") == opened + 1
    assert lookups.metric("connections_open") == count + 1
    assert lookups.metric("lookups_total") == 200
    assert lookups.metric("lookups_pending") == 0


def test_a_lost_connection_is_replaced_and_loses_no_lookup(lookups):
    for _ in range(3):
        lookups.warm().interrupt()
        for number in range(100):
            assert lookups.get(number)["id"] == number


def test_errors_are_handled_by_the_queue(lookups):
    """A dropped table: the lookup fails as it does on the queue."""
    connection = lookups.warm()
    asyncio.run(lookups.conn.get_admin().drop_table(lookups.path))
    with pytest.raises(fluss.FlussError, match=r"not exist|dropped"):
        lookups.get(1)
    assert not connection.closed


def test_a_server_that_does_not_answer(lookups, monkeypatch):
    connection = lookups.warm()
    late = raising(fluss.DeadlineExceededError, "Server did not answer LOOKUP within 10 ms")
    monkeypatch.setattr(type(connection), "_receive", late)
    assert lookups.get(5)["id"] == 5
    assert connection.closed


def test_threads_have_connections_of_their_own_up_to_a_limit(lookups):
    def work(_):
        for number in range(300):
            assert lookups.get(number % 100)["id"] == number % 100

    in_threads(work, range(CONNECTIONS_MAX + 4))
    assert lookups.metric("lookups_total") == 300 * (CONNECTIONS_MAX + 4)
    assert 1 <= lookups.blocking.open_count() <= CONNECTIONS_MAX


def test_closing_ends_lookups_that_wait(config, database):
    lookups = Lookups(config, database)
    connection = lookups.warm()
    found = []

    def work():
        try:
            while True:
                lookups.get(1)
        except fluss.FlussError as error:
            found.append(type(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    lookups.close()
    for thread in threads:
        thread.join(10)
    assert found == [fluss.ConnectionClosedError] * 3
    assert connection.closed
    with pytest.raises(fluss.ConnectionClosedError):
        lookups.get(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_leaves_the_connections_of_its_parent_alone(lookups):
    connection = lookups.warm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # to fork beside a thread: that is the point
        child = os.fork()
    if not child:
        try:
            lookups.get(1)
        except fluss.ConnectionClosedError:
            lookups.blocking.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lookups.get(5)["id"] == 5
    assert not connection.closed
