# SPDX-License-Identifier: Apache-2.0
"""Lookups of expired partitions: how many there may be at the same time, and what becomes of a lake that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.server.log_support import Client

from fluss import _plugins
from fluss.errors import ErrorCode, FlussError, HistoricalPartitionThrottledError, KvStorageError, UnknownServerError
from fluss.metadata import Column, DataTypes, Schema, TableDescriptor, TableInfo, TablePath
from fluss.net.deadline import Deadline
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.rows import kv_key_encoder
from fluss.server.catalog import TableEntry
from fluss.server.historical import HistoricalLookups
from fluss.server.server import Server

SCHEMA = Schema.of(
    [Column("id", DataTypes.bigint()), Column("dt", DataTypes.string()), Column("v", DataTypes.string())], ["id", "dt"]
)
DESCRIPTOR = TableDescriptor(
    SCHEMA, partition_keys=["dt"], bucket_count=1, properties={"table.datalake.format": "paimon"}
)
ENTRY = TableEntry(TableInfo(TablePath("d", "t"), 1, 1, DESCRIPTOR, 0, 0, None, 0), {1: SCHEMA})
KEYS = [kv_key_encoder(ENTRY.table_info).encode([i]) for i in range(3)]

LookUp = Callable[..., Coroutine[Any, Any, list[bytes | None]]]


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LookUp]]:
    """Make lookups that a function of the test answers in place of a lake."""
    with ThreadPoolExecutor(2) as pool:

        def make(read: Callable[[], Any], in_flight_max: int = 2, **options: str) -> LookUp:
            lake = SimpleNamespace(look_up=lambda *_: read())
            monkeypatch.setattr(_plugins, "implementation", {"server.lake": lake}.__getitem__)
            given = {f"datalake.paimon.{name}": value for name, value in options.items()}
            configs: Any = SimpleNamespace(
                lake_format="paimon", current=SimpleNamespace(with_prefix=lambda prefix: given)
            )
            one = HistoricalLookups(configs, pool, in_flight_max)
            return lambda seconds=30.0: one.look_up(ENTRY, ("20240101",), 0, KEYS, Deadline(seconds * 1000))

        yield make


def rows(*ids: int, text: str = "x") -> list[pa.RecordBatch]:
    arrays = [pa.array(ids, pa.int64()), pa.array(["20240101"] * len(ids)), pa.array([text] * len(ids))]
    return [pa.RecordBatch.from_arrays(arrays, names=["id", "dt", "v"])]


def test_values_come_in_the_order_of_their_keys(lookups: Callable[..., LookUp]) -> None:
    """A lake may return rows of other keys: they are left out."""
    values = asyncio.run(lookups(lambda: rows(2, 7, 0), warehouse="w")())
    assert [value is not None for value in values] == [True, False, True]


def test_lookups_beyond_the_limit_are_refused(lookups: Callable[..., LookUp]) -> None:
    """A lookup whose client has given up counts until its thread is free."""
    gate = threading.Event()

    def read() -> list[pa.RecordBatch]:
        gate.wait(30)
        return rows(0)

    look_up = lookups(read, in_flight_max=2, warehouse="w")

    async def scenario() -> None:
        waiting, abandoned = asyncio.ensure_future(look_up()), asyncio.ensure_future(look_up())
        await asyncio.sleep(0)
        abandoned.cancel()
        with pytest.raises(HistoricalPartitionThrottledError, match="max-queued-historical-requests"):
            await look_up()
        gate.set()
        assert (await waiting)[0] is not None
        while True:
            try:
                await look_up()
                break
            except HistoricalPartitionThrottledError:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_lookups_end_with_the_time_of_their_request(lookups: Callable[..., LookUp]) -> None:
    gate = threading.Event()
    look_up = lookups(lambda: [gate.wait(30)][:0], warehouse="w")
    for seconds, reason in ((1.0, "no answer within"), (0.0, "took too long")):
        with pytest.raises(KvStorageError, match=rf"'20240101' of table 'd\.t' in the lake: .*{reason}"):
            asyncio.run(look_up(seconds))
    gate.set()


async def test_a_request_about_many_buckets_is_worked_through_in_slices(server: Server, client: Client) -> None:
    """A task for each bucket at once would keep the event loop busy, here for buckets that are refused anyway."""
    request = pb.LookupRequest(table_id=await client.create_table())
    for number in range(3_000):
        request.buckets_req.add(bucket_id=number, keys=[b"k"], original_partition_name="20240101")
    counts: list[int] = []

    async def count_tasks() -> None:
        while True:
            counts.append(len(asyncio.all_tasks()))
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_tasks())
    answer = await client.call(apis.LOOKUP, request)
    counting.cancel()
    assert {part.error_code for part in answer.buckets_resp} == {ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION}
    assert [part.bucket_id for part in answer.buckets_resp] == list(range(3_000))
    assert max(counts) < server.historical.per_request_max + 50


@pytest.mark.parametrize(
    ("failure", "error"),
    [(OSError("no file w/secret"), KvStorageError), (FlussError("no table"), UnknownServerError)],
)
def test_lake_errors_are_reported(lookups: Callable[..., LookUp], failure: Exception, error: type[FlussError]) -> None:
    """What may pass, such as a file that was replaced, is repeated by clients; credentials are left out."""

    def read() -> list[pa.RecordBatch]:
        raise failure

    with pytest.raises(error, match=r"Cannot look up partition '20240101' of table 'd\.t' in the lake: ") as caught:
        asyncio.run(lookups(read, warehouse="w", **{"s3.secret-key": "secret"})())
    assert "secret" not in caught.value.message


def test_rows_that_are_too_large_and_lakes_that_are_not_there(lookups: Callable[..., LookUp]) -> None:
    with pytest.raises(UnknownServerError, match="Ask for fewer keys"):
        asyncio.run(lookups(lambda: rows(0, text="x" * 20_000_000), warehouse="w")())
    with pytest.raises(UnknownServerError, match=r"datalake\.format"):
        asyncio.run(lookups(lambda: rows(0))())
