# SPDX-License-Identifier: Apache-2.0
"""How keys gather and travel, without the server's part: a wire that answers from a dict."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from tests.threads import in_threads

from fluss import errors
from fluss.client.admin import FlussAdmin
from fluss.client.convert import LookupKey
from fluss.client.lookup_queue import LookupQueue
from fluss.client.runner import Direct
from fluss.metadata import Schema, TableDescriptor, TablePath


class DictWire:
    """Answers key b"7" with b"v7"; can be made to fail first."""

    def __init__(self):
        self.requests = []
        self.failures = []
        self.bucket_failures = []
        self.cut = False
        self.gate = None
        self.tasks = []

    def ask(self, connection, table_id, keys, routing_counts, on_answer):
        assert not connection.closed
        self.requests.append([key for wanted in keys.values() for key in wanted])
        self.tasks.append(asyncio.ensure_future(self._answer(keys, on_answer)))

    async def _answer(self, keys, on_answer):
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            on_answer(self.failures.pop(0))
            return
        answer = []
        for bucket, wanted in keys.items():
            error = self.bucket_failures.pop(0) if self.bucket_failures else None
            values = [None if key == b"none" else b"v" + key for key in wanted]
            answer.append((bucket, error, values[:-1] if self.cut else values))
        on_answer(answer)


@pytest.fixture
def wire():
    return DictWire()


@pytest.fixture
async def queue(cluster, wire, database):
    """The queue of a table with one partition."""
    admin = FlussAdmin(Direct(cluster))
    await admin.create_database(database)
    path = TablePath(database, "t")
    schema = Schema(pa.schema([("id", pa.int32()), ("p", pa.string())]))
    await admin.create_table(path, TableDescriptor(schema, bucket_count=2, partition_keys=["p"]))
    await admin.create_partition(path, {"p": "eu"})
    queue = LookupQueue(cluster, await cluster.table(path), wire, None)
    cluster.attach(queue)
    return queue


def key(number, bucket=0, partition="eu"):
    return LookupKey(partition, bucket, str(number).encode())


async def test_a_lone_key_leaves_at_once(queue, wire):
    assert await queue.get(key(1)) == b"v1"
    assert await queue.get(LookupKey("eu", 0, b"none")) is None
    assert wire.requests == [[b"1"], [b"none"]]


async def test_keys_gather_while_requests_are_under_way(queue, wire):
    await queue.get(key(0))
    wire.gate = asyncio.Event()
    first = []
    for number in (1, 2):
        first.append(asyncio.ensure_future(queue.get(key(number))))
        await asyncio.sleep(0.01)
    rest = [asyncio.ensure_future(queue.get(key(number, number % 2))) for number in range(3, 100)]
    await asyncio.sleep(0.01)
    assert wire.requests == [[b"0"], [b"1"], [b"2"]]
    assert queue.pending() == 99
    wire.gate.set()
    assert await asyncio.gather(*first) == [b"v1", b"v2"]
    assert await asyncio.gather(*rest) == [b"v%d" % n for n in range(3, 100)]
    assert len(wire.requests) == 4
    assert queue.pending() == 0


@pytest.mark.parametrize(("count", "sizes"), [(15, [15]), (20, [16, 4]), (64, [32, 32]), (65, [33, 32])])
async def test_many_keys_at_once_travel_in_two_requests(queue, wire, count, sizes):
    """The server works on the second while the answer to the first is taken in."""
    await queue.get(key(0))
    promises = [asyncio.ensure_future(queue.get(key(number))) for number in range(count)]
    assert await asyncio.gather(*promises) == [b"v%d" % n for n in range(count)]
    assert [len(keys) for keys in wire.requests] == [1, *sizes]


async def test_unknown_partitions_have_no_rows_and_cost_no_lookup(queue, wire):
    assert await queue.get(key(1, partition="nowhere")) is None
    assert wire.requests == []


@pytest.mark.parametrize(
    "error",
    [errors.NotLeaderOrFollowerError("moved"), errors.KvStorageError("busy"), errors.NetworkError("cut")],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("level", ["request", "bucket"])
async def test_errors_that_pass_are_tried_again(cluster, queue, wire, error, level):
    (wire.failures if level == "request" else wire.bucket_failures).append(error)
    assert await queue.get(key(1)) == b"v1"
    assert len(wire.requests) == 2
    assert cluster.metrics.snapshot()["retries_total"] >= 1


@pytest.mark.client(lookup_max_retries=2)
async def test_errors_that_pass_are_tried_again_so_often(queue, wire):
    wire.failures += 2 * [errors.KvStorageError("busy")]
    assert await queue.get(key(1)) == b"v1"
    wire.failures += 3 * [errors.KvStorageError("busy")]
    with pytest.raises(errors.KvStorageError, match="busy"):
        await queue.get(key(2))
    assert len(wire.requests) == 6


@pytest.mark.client(lookup_batch_timeout_ms=200, lookup_max_batch_size=4)
async def test_keys_wait_for_others_when_told_to(queue, wire):
    loop = asyncio.get_running_loop()
    await queue.get(key(0))
    wire.requests.clear()
    started = loop.time()
    first = asyncio.ensure_future(queue.get(key(1)))
    await asyncio.sleep(0.02)
    second = asyncio.ensure_future(queue.get(key(2)))
    assert [await first, await second] == [b"v1", b"v2"]
    assert loop.time() - started > 0.15
    assert wire.requests == [[b"1", b"2"]]


@pytest.mark.client(lookup_batch_timeout_ms=3_600_000, lookup_max_batch_size=4)
async def test_a_full_request_does_not_wait(queue, wire):
    await asyncio.wait_for(asyncio.gather(*(queue.get(key(number)) for number in range(4))), 30)
    assert len(wire.requests) == 1


async def test_final_errors_are_raised(queue, wire):
    await queue.get(key(0))
    wire.failures.append(errors.NonPrimaryKeyTableError("no"))
    promises = [asyncio.ensure_future(queue.get(key(number))) for number in range(3)]
    for promise in promises:
        with pytest.raises(errors.NonPrimaryKeyTableError):
            await promise
    assert await queue.get(key(1)) == b"v1"


async def test_a_wrong_number_of_results_is_refused(queue, wire):
    wire.cut = True
    with pytest.raises(errors.FormatError, match="0 results for 1 keys"):
        await queue.get(key(1))


async def test_a_cancelled_lookup_hurts_no_other(queue, wire):
    wire.gate = asyncio.Event()
    cancelled = asyncio.ensure_future(queue.get(key(1)))
    kept = asyncio.ensure_future(queue.get(key(2)))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    wire.gate.set()
    assert await kept == b"v2"
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_closing_fails_what_waits(cluster, queue, wire):
    wire.gate = asyncio.Event()
    promise = asyncio.ensure_future(queue.get(key(1)))
    await asyncio.sleep(0.01)
    await cluster.close()
    wire.gate.set()
    await asyncio.gather(*wire.tasks)  # an answer that comes too late changes nothing
    with pytest.raises(errors.ConnectionClosedError):
        await promise
    with pytest.raises(errors.ConnectionClosedError):
        await queue.get(key(2))


async def test_keys_from_other_threads(queue):
    results = await asyncio.to_thread(in_threads, lambda number: asyncio.run(queue.get(key(number))), range(8))
    assert results == [b"v%d" % number for number in range(8)]
