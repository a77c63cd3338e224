# SPDX-License-Identifier: Apache-2.0
"""Primary-key tables over the wire: writes, lookups, scans, and the codes of what is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.server.catalog.support import create_partition, drop_partition, drop_table, path
from tests.server.kv.support import NUMBERED, SCHEMA, Delete, Row, keyed_schema, kv_batch, with_columns
from tests.server.log_support import Client, connected, failing, path_of, running_server
from tests.shared import raising
from tests.waiting import wait_until

from fluss.errors import ErrorCode, FlussError, InvalidRequiredAcksError
from fluss.metadata import BigIntType, Column, IntType, Schema, StringType, TableBucket, TableDescriptor, TableInfo
from fluss.metadata.acl import AclBinding, OperationType, ResourceType
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.lookup_messages import encode_lookup
from fluss.protocol.record_messages import encode_put_kv
from fluss.records import decode_value_batch
from fluss.rows import Slices, kv_key_encoder, prefix_key_encoder
from fluss.server.catalog.acl import by_resource
from fluss.server.handlers import kv as handlers
from fluss.server.handlers.request import RequestContext
from fluss.server.kv.ordered import DamagedStoreError
from fluss.server.kv.tablet import KvTablet
from fluss.server.kv.values import ValueCodec
from fluss.server.server import Server

A, B = (1, "a", 1.0), (2, "b", None)


class Table:
    """A table over a connection."""

    def __init__(self, client: Client, info: TableInfo) -> None:
        self.client, self.info = client, info
        self.codec = ValueCodec(info.kv_format, {info.schema_id: info.schema}, info.schema_id)

    @classmethod
    async def create(
        cls,
        client: Client,
        server: Server,
        schema: Schema = SCHEMA,
        *,
        buckets: int = 1,
        bucket_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        properties: dict[str, str] | None = None,
        name: str = "t",
    ) -> Table:
        descriptor = TableDescriptor(
            schema,
            bucket_count=buckets,
            bucket_keys=list(bucket_keys) or None,
            partition_keys=list(partition_keys),
            properties=properties or {},
        )
        entry = server.catalog.table_by_id(await client.create(descriptor, name))
        return cls(client, entry.table_info)

    def key(self, *values: Any) -> bytes:
        return kv_key_encoder(self.info).encode(values)

    def decode(self, values: Sequence[bytes]) -> list[Row]:
        return self.codec.to_rows(self.codec.decode_values(Slices.from_list(values)))

    async def put_raw(
        self,
        buckets: list[tuple[int | None, int, Any]],
        targets: Sequence[int] = (),
        *,
        acks: int = -1,
        agg_mode: int | None = None,
        table_id: int | None = None,
    ) -> list[pb.PbPutKvRespForBucket]:
        body = encode_put_kv(
            acks,
            self.info.table_id if table_id is None else table_id,
            10_000,
            [(partition, bucket, [records]) for partition, bucket, records in buckets],
            target_columns=list(targets),
            agg_mode=agg_mode,
        )
        data = await self.client.connection.call_parts(apis.PUT_KV, body)
        return list(pb.PutKvResponse.FromString(bytes(data)).buckets_resp)

    async def put(self, writes: Sequence[Row | Delete], targets: Sequence[int] = (), **options: Any) -> Any:
        bucket = options.pop("bucket", 0)
        partition = options.pop("partition", None)
        batch_options = {name: options.pop(name) for name in ("writer_id", "sequence") if name in options}
        data = kv_batch(self.info, self.info.schema, self.info.schema_id, writes, **batch_options)
        (answer,) = await self.put_raw([(partition, bucket, data)], targets, **options)
        return answer

    async def lookup_raw(self, keys: Sequence[bytes], bucket: int = 0, **options: Any) -> Any:
        request = pb.LookupRequest(table_id=self.info.table_id, **options)
        request.buckets_req.add(bucket_id=bucket, keys=list(keys))
        return (await self.client.call(apis.LOOKUP, request)).buckets_resp[0]

    async def lookup(self, *keys: Any, **options: Any) -> list[Row | None]:
        encoded = [self.key(*(key if isinstance(key, tuple) else (key,))) for key in keys]
        answer = await self.lookup_raw(encoded, **options)
        assert not answer.HasField("error_code"), answer.error_message
        rows = iter(self.decode([v.values for v in answer.values if v.HasField("values")]))
        return [next(rows) if v.HasField("values") else None for v in answer.values]

    async def statistics(self) -> Any:
        request = pb.GetTableStatsRequest(table_id=self.info.table_id)
        request.buckets_req.add(bucket_id=0)
        return (await self.client.send(request)).buckets_resp[0]

    async def scan(self, **fields: Any) -> pb.ScanKvResponse:
        request = pb.ScanKvRequest(**fields).SerializeToString()
        return pb.ScanKvResponse.FromString(bytes(await self.client.connection.call_parts(apis.SCAN_KV, [request])))

    def open_scan(self, bucket: int = 0, limit: int | None = None) -> pb.PbScanReqForBucket:
        return pb.PbScanReqForBucket(table_id=self.info.table_id, bucket_id=bucket, limit=limit)

    async def begin_scan(self, size_bytes: int, bucket: int = 0, limit: int | None = None) -> pb.ScanKvResponse:
        opening = self.open_scan(bucket, limit)
        return await self.scan(bucket_scan_req=opening, call_seq_id=0, batch_size_bytes=size_bytes)

    async def go_on(self, scan: pb.ScanKvResponse, call: int, size_bytes: int) -> pb.ScanKvResponse:
        return await self.scan(scanner_id=scan.scanner_id, call_seq_id=call, batch_size_bytes=size_bytes)

    def scanned(self, answer: pb.ScanKvResponse) -> list[Row]:
        return self.decode(decode_value_batch(answer.records).to_list()) if answer.records else []


@contextlib.asynccontextmanager
async def a_table(tmp_path: Path, schema: Schema = SCHEMA, **options: Any) -> Any:
    names = {"buckets", "bucket_keys", "partition_keys", "properties"} & options.keys()
    table_options = {name: options.pop(name) for name in names}
    async with running_server(tmp_path, **options) as server, connected(server) as client:
        yield server, await Table.create(client, server, schema, **table_options)


async def test_put_and_lookup(tmp_path: Path) -> None:
    async with a_table(tmp_path, buckets=2) as (server, table):
        answer = await table.put([A, B, A])
        assert (answer.log_end_offset, answer.HasField("error_code")) == (4, False)
        assert await table.lookup(2, 7, 1) == [B, None, A]
        assert await table.lookup() == []
        assert await table.lookup(1, bucket=1) == [None]
        many = [(i, "x", None) for i in range(500)]
        await table.put(many, bucket=1)
        assert await table.lookup(*range(500), bucket=1) == many
        for acks in (0, 1):
            assert (await table.put([B], acks=acks)).log_end_offset
        assert server.kv.budget.memory_bytes > 0
        assert server.kv.budget.row_count == 502


async def test_a_write_that_a_repair_cut_is_not_acknowledged_while_another_bucket_is_slow(tmp_path: Path) -> None:
    async with a_table(tmp_path, buckets=2) as (server, table), connected(server) as other_client:
        other = Table(other_client, table.info)
        for bucket in (0, 1):
            await other.put([B], bucket=bucket)
        slow, lost = sorted(server.kv.open_tablets, key=lambda one: one.log.bucket.bucket_id)
        batch = kv_batch(table.info, SCHEMA, table.info.schema_id, [A])
        async with slow._writes:
            with failing("sync_data", lambda fd: path_of(fd).startswith(str(lost.log.folder))) as count:
                answers = asyncio.ensure_future(table.put_raw([(None, 0, batch), (None, 1, batch)]))
                await wait_until(lambda: count[0])
            await wait_until(lambda: lost.log.failure is None)
            await other.put([(3, "c", None)], bucket=1)
        assert [answer.error_code for answer in await answers] == [0, ErrorCode.LOG_STORAGE_EXCEPTION]
        assert await other.lookup(1, 3, bucket=1) == [None, (3, "c", None)]


async def test_large_lookups_are_charged_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of some bytes may have an answer of many megabytes: there are no more of these than fit in memory."""
    present = peak = 0
    inner = KvTablet.lookup

    async def counted(self: KvTablet, keys: Sequence[bytes]) -> list[bytes | None]:
        nonlocal present, peak
        present += 1
        peak = max(present, peak)
        try:
            return await inner(self, keys)
        finally:
            present -= 1

    async with (
        a_table(tmp_path, server_buffer_memory__size="2mb") as (server, table),
        connected(server) as other_client,
    ):
        await table.put([A])
        monkeypatch.setattr(KvTablet, "lookup", counted)
        other = Table(other_client, table.info)
        answers = await asyncio.gather(*(one.lookup(*[1] * 1_100) for one in (table, other) * 10))
        assert answers == [[A] * 1_100] * 20
        assert peak == 1


async def test_keys_of_many_buckets_are_looked_up_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_table(tmp_path, buckets=8) as (_, table):
        answers: list[Any] = []
        inner = handlers._look_up_at_once
        monkeypatch.setattr(handlers, "_look_up_at_once", lambda *given: _noted(answers, inner(*given)))
        for keys in (8, 60):
            request = pb.LookupRequest(table_id=table.info.table_id)
            for bucket in range(8):
                await table.lookup(1, bucket=bucket)  # so that each state is ready
                request.buckets_req.add(bucket_id=bucket, keys=[table.key(number) for number in range(keys)])
            found = (await table.client.call(apis.LOOKUP, request)).buckets_resp
            assert [len(one.values) for one in found] == [keys] * 8
            assert (answers[-1] is None) == (keys == 60)


async def test_one_key_is_answered_as_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lone key has a way of its own; the answers are those of the long way, and the rare cases take that."""
    async with a_table(tmp_path, buckets=2) as (_, table):
        rows = [A, (3, "x" * 60, 1.0), (4, "y" * 500, None)]
        await table.put(rows)
        short_ways: list[bytes | None] = []
        inner = handlers._look_up_lone_key
        monkeypatch.setattr(handlers, "_look_up_lone_key", lambda *given: _noted(short_ways, inner(*given)))
        for number, short in ((1, True), (3, True), (9, True), (4, False)):
            alone = await table.lookup_raw([table.key(number)])
            among = await table.lookup_raw([table.key(number), table.key(1)])
            assert alone.values[0] == among.values[0]
            assert [way is not None for way in short_ways[-2:]] == [short, False]
        unknown = await table.lookup_raw([table.key(1)], bucket=7)
        assert unknown.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        # A bucket that was not used since the start has no state in memory yet.
        assert await table.lookup(1, bucket=1) == [None]
        assert short_ways[-1] is None
        assert await table.lookup(1, bucket=1) == [None]
        assert short_ways[-1] is not None
        await table.client.send(drop_table())
        gone = await table.lookup_raw([table.key(1)])
        assert gone.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def _noted(notes: list[Any], found: Any) -> Any:
    notes.append(found)
    return found


async def test_state_survives_a_restart(tmp_path: Path) -> None:
    async with a_table(tmp_path) as (_, table):
        await table.put([A, B], writer_id=5, sequence=0)
        await table.put([Delete(2)], writer_id=5, sequence=1)
    async with running_server(tmp_path) as server, connected(server) as table.client:
        assert await table.lookup(1, 2) == [A, None]
        again = await table.put([Delete(2)], writer_id=5, sequence=1)
        assert (again.log_end_offset, again.HasField("error_code")) == (3, False)
        assert (await table.put([A], writer_id=5, sequence=4)).error_code == 31


async def test_codes(tmp_path: Path) -> None:
    async with a_table(tmp_path, buckets=2, properties={"table.delete.behavior": "disable"}) as (server, table):
        good = kv_batch(table.info, SCHEMA, 1, [A])
        flipped = bytearray(good)
        flipped[-1] ^= 1
        newer = kv_batch(table.info, SCHEMA, 9, [A])
        answers = await table.put_raw([(None, 0, flipped), (None, 1, good), (None, 2, good), (7, 0, good)])
        assert [a.error_code for a in answers] == [ErrorCode.CORRUPT_MESSAGE, 0, 21, 21]
        assert answers[3].partition_id == 7

        async def code(records: Any, targets: Sequence[int] = (), **options: Any) -> int:
            (answer,) = await table.put_raw([(None, 0, records)], targets, **options)
            return answer.error_code

        assert await code(newer) == ErrorCode.SCHEMA_NOT_EXIST
        assert await code(good[:-3]) == ErrorCode.CORRUPT_RECORD_EXCEPTION
        assert await code(good, [1, 2]) == ErrorCode.INVALID_TARGET_COLUMN
        assert (await table.put([Delete(1)])).error_code == ErrorCode.DELETION_DISABLED_EXCEPTION
        other_id = table.info.table_id + 99
        assert await code(good, table_id=other_id) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert (await table.lookup_raw([b"x"], bucket=2)).error_code == 21
        with pytest.raises(InvalidRequiredAcksError):
            await table.put_raw([(None, 0, good)], acks=2)
        server.disk_full = True
        assert await code(good) == ErrorCode.DISK_WRITE_LOCKED
        server.disk_full = False
        assert await code(good) == 0

        log_table = await Table.create(table.client, server, Schema.of([Column("id", BigIntType())]), name="log")
        table_id = log_table.info.table_id
        assert await code(good, table_id=table_id) == ErrorCode.UNKNOWN_SERVER_ERROR
        for lookup in (pb.LookupRequest(table_id=table_id), pb.PrefixLookupRequest(table_id=table_id)):
            lookup.buckets_req.add(bucket_id=0, keys=[b"x"])
            assert (await table.client.send(lookup)).buckets_resp[0].error_code == 20
        bucket = pb.PbScanReqForBucket(table_id=table_id, bucket_id=0)
        scan = await table.scan(bucket_scan_req=bucket, call_seq_id=0, batch_size_bytes=10)
        assert scan.error_code == 20


async def test_failures_of_the_server_stay_with_their_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_table(tmp_path, buckets=2) as (server, table):
        tablet = server.kv.tablet(server.catalog.table_by_id(table.info.table_id), _bucket(table, 0))

        with mock.patch.object(tablet, "_read_old", raising(ZeroDivisionError, "oops")):
            batch = kv_batch(table.info, SCHEMA, 1, [A])
            answers = await table.put_raw([(None, 0, batch), (None, 1, batch)])
            assert [a.error_code for a in answers] == [-1, 0]
            assert "oops" in answers[0].error_message
        assert (await table.put([A])).error_code == 0
        # Memory is used up and the disk does not take more.
        server.kv.budget.limit_bytes = 1
        monkeypatch.setattr("fluss.server.kv.budget._WAIT_SECONDS_MAX", 0.1)
        monkeypatch.setattr(server.kv.budget, "check", lambda: None)
        assert (await table.put([A])).error_code == 72


def _bucket(table: Table, number: int) -> TableBucket:
    return TableBucket(table.info.table_id, number)


async def test_a_client_that_leaves_does_not_part_log_and_state(tmp_path: Path) -> None:
    """The connection goes away in the middle of a write; what the log has, lookups have too."""
    async with a_table(tmp_path) as (server, table):
        rows = [(i, f"user-{i}", i / 2) for i in range(20_000)]
        data = kv_batch(table.info, SCHEMA, 1, rows)
        body = encode_put_kv(1, table.info.table_id, 1000, [(None, 0, [data])], target_columns=[])
        for _ in range(8):
            async with connected(server) as other:
                call = asyncio.ensure_future(other.connection.call_parts(apis.PUT_KV, body))
                await asyncio.sleep(0.004)
            with contextlib.suppress(FlussError):
                await call
        await table.put([(-1, "last", None)])
        tablet = server.kv.tablet(server.catalog.table_by_id(table.info.table_id), _bucket(table, 0))
        assert tablet.log.high_watermark % 40_000 in (1, 20_001)
        written = tablet.log.high_watermark > 1
        assert (await table.lookup(5, 19_999)) == ([rows[5], rows[19_999]] if written else [None, None])
        assert tablet.store.row_count == (20_001 if written else 1)


async def test_prefix_lookup(tmp_path: Path) -> None:
    schema = keyed_schema("a", "b", a=BigIntType(), b=StringType(), v=IntType())
    async with a_table(tmp_path, schema, bucket_keys=["a"]) as (_, table):
        await table.put([(1, "x", 1), (2, "y", 2), (1, "a", 3)])
        encoder = prefix_key_encoder(table.info)
        request = pb.PrefixLookupRequest(table_id=table.info.table_id)
        request.buckets_req.add(bucket_id=0, keys=[encoder.encode([a]) for a in (1, 9, 2)])
        request.buckets_req.add(bucket_id=5, keys=[b"x"])
        request.buckets_req.add(bucket_id=0, partition_id=3, keys=[b"x"])
        found = (await table.client.call(apis.PREFIX_LOOKUP, request)).buckets_resp
        rows = [table.decode(list(values.values)) for values in found[0].value_lists]
        assert rows == [[(1, "a", 3), (1, "x", 1)], [], [(2, "y", 2)]]
        assert [part.error_code for part in found[1:]] == [21, 21]


async def test_limit_scan_and_statistics(tmp_path: Path) -> None:
    async with a_table(tmp_path, buckets=2) as (_, table):
        rows = [(i, None, None) for i in range(100)]
        await table.put(rows)
        request = pb.LimitScanRequest(table_id=table.info.table_id, bucket_id=0, limit=7)
        answer = await table.client.send(request)
        assert (answer.is_log_table, answer.HasField("error_code")) == (False, False)
        assert table.decode(decode_value_batch(answer.records).to_list()) == rows[:7]
        request.bucket_id = 1
        assert len(decode_value_batch((await table.client.send(request)).records)) == 0
        assert (await table.statistics()).row_count == 100
    async with a_table(tmp_path / "w", properties={"table.changelog.image": "WAL"}) as (_, table):
        assert (await table.statistics()).error_code == ErrorCode.INVALID_TABLE_EXCEPTION


async def test_scan(tmp_path: Path) -> None:
    async with a_table(tmp_path, buckets=2) as (server, table):
        rows = [(i, "x" * 20, None) for i in range(100)]
        await table.put(rows)
        first = await table.begin_scan(300)
        assert (first.has_more_results, first.log_offset, len(first.scanner_id)) == (True, 100, 16)
        await table.put([Delete(i) for i in range(50, 100)])
        found = table.scanned(first)
        call = 1
        answer = first
        while answer.has_more_results:
            answer = await table.go_on(first, call, 500)
            assert not answer.HasField("error_code"), answer.error_message
            assert not answer.HasField("log_offset")
            found += table.scanned(answer)
            call += 1
        assert found == rows
        assert call > 5
        assert (await table.go_on(first, call, 500)).error_code == ErrorCode.UNKNOWN_SCANNER_ID

        tiny = await table.begin_scan(1, limit=2)
        assert table.scanned(tiny) == rows[:1]
        assert (await table.go_on(tiny, 7, 1)).error_code == ErrorCode.INVALID_SCAN_REQUEST
        rest = await table.go_on(tiny, 1, 1000)
        assert (table.scanned(rest), rest.has_more_results) == (rows[1:2], False)

        empty = await table.begin_scan(1, 1)
        assert (empty.has_more_results, empty.log_offset) == (False, 0)
        assert not empty.HasField("scanner_id")
        assert not empty.HasField("records")

        for bad in (
            {"call_seq_id": 0, "batch_size_bytes": 1},
            {"bucket_scan_req": table.open_scan(), "scanner_id": b"x", "call_seq_id": 0, "batch_size_bytes": 1},
            {"bucket_scan_req": table.open_scan(), "call_seq_id": 1, "batch_size_bytes": 1},
            {"bucket_scan_req": table.open_scan(), "batch_size_bytes": 1},
            {"bucket_scan_req": table.open_scan(), "call_seq_id": 0, "batch_size_bytes": 0},
            {"bucket_scan_req": table.open_scan(), "close_scanner": True},
        ):
            assert (await table.scan(**bad)).error_code == ErrorCode.INVALID_SCAN_REQUEST
        assert (await table.begin_scan(1, 9)).error_code

        open_ = [await table.begin_scan(1) for _ in range(9)]
        assert [a.error_code for a in open_] == [0] * 8 + [ErrorCode.TOO_MANY_SCANNERS]
        for answer in [*open_[:8], open_[0]]:
            closed = await table.scan(scanner_id=answer.scanner_id, close_scanner=True)
            assert not closed.HasField("error_code")
        assert len(server.kv.cursors) == 0


async def test_a_scan_that_its_client_gave_up_ends_without_another_one(tmp_path: Path) -> None:
    """It keeps the rows of its moment, in memory and on disk: nothing may have to be asked for to let them go."""
    async with a_table(tmp_path, kv_scanner_ttl="50 ms") as (server, table):
        await table.put([(i, "x", None) for i in range(100)])
        await table.begin_scan(1)
        assert len(server.kv.cursors) == 1
        assert 'fluss_tabletserver_user_cursors{user="anonymous@127.0.0.1"} 1' in server.metrics.text()
        await wait_until(lambda: len(server.kv.cursors) == 0)


async def test_a_scan_of_a_damaged_store_is_to_be_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_table(tmp_path) as (server, table):
        await table.put([A, B])
        first = await table.begin_scan(1)
        (cursor,) = server.kv.cursors._cursors.values()
        monkeypatch.setattr(cursor, "read", raising(DamagedStoreError, "bad block"))
        assert (await table.go_on(first, 1, 1)).error_code == ErrorCode.KV_STORAGE_EXCEPTION
        assert await table.lookup(1, 2) == [A, B]
        assert table.scanned(await table.begin_scan(1000)) == [A, B]


@pytest.mark.parametrize("lake", [None, "paimon", "iceberg", "lance"])
async def test_insert_if_not_exists(tmp_path: Path, lake: str | None) -> None:
    options: dict[str, Any] = {"datalake_format": lake} if lake else {}
    properties = {"table.merge-engine": "aggregation"} if lake == "paimon" else {}
    async with a_table(tmp_path, properties=properties, **options) as (_, table):
        await table.put([A])
        found = await table.lookup(1, 7, 8, 7, insert_if_not_exists=True)
        assert found == [A, (7, None, None), (8, None, None), (7, None, None)]
        assert await table.lookup(7) == [(7, None, None)]
        assert await table.lookup(1, 9, insert_if_not_exists=True, acks=1, timeout_ms=5000)
        bad = await table.lookup_raw([b"\xff" * 30], insert_if_not_exists=True)
        assert bad.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert len(bad.values) == 0


async def test_insert_with_generated_numbers(tmp_path: Path) -> None:
    async with a_table(tmp_path, NUMBERED, buckets=2) as (_, table):
        assert await table.lookup("a", "b", insert_if_not_exists=True) == [("a", 1, None), ("b", 2, None)]
        assert await table.lookup("c", bucket=1, insert_if_not_exists=True) == [("c", 100_001, None)]
        assert await table.lookup("b", "d", insert_if_not_exists=True) == [("b", 2, None), ("d", 3, None)]
        assert (await table.put([("e", None, "x")])).error_code == ErrorCode.INVALID_TARGET_COLUMN
    async with running_server(tmp_path) as server, connected(server) as table.client:
        await table.put([("e", None, "x")], [0, 2])
        assert await table.lookup("e", "a") == [("e", 4, "x"), ("a", 1, None)]


async def test_inserts_by_lookup_need_nullable_columns(tmp_path: Path) -> None:
    schema = with_columns(SCHEMA, Column("n", IntType(nullable=False)))
    async with a_table(tmp_path, schema) as (_, table):
        answer = await table.lookup_raw([table.key(1)], insert_if_not_exists=True)
        assert answer.error_code == ErrorCode.INVALID_TARGET_COLUMN
        assert await table.lookup(1) == [None]


async def test_partitions(tmp_path: Path) -> None:
    schema = keyed_schema("id", "day", id=BigIntType(), day=StringType(), v=IntType())
    async with a_table(tmp_path, schema, partition_keys=["day"]) as (server, table):
        for day in ("a", "b"):
            await table.client.send(create_partition(day=day))
        listed = await table.client.send(pb.ListPartitionInfosRequest(table_path=path()))
        ids = [part.partition_id for part in listed.partitions_info]
        for number, partition in enumerate(ids):
            answer = await table.put([(1, "ab"[number], number)], partition=partition)
            assert answer.partition_id == partition
            assert answer.log_end_offset == 1
        lookup = pb.LookupRequest(table_id=table.info.table_id)
        for partition in ids:
            lookup.buckets_req.add(bucket_id=0, partition_id=partition, keys=[table.key(1)])
        answers = (await table.client.call(apis.LOOKUP, lookup)).buckets_resp
        assert [table.decode([a.values[0].values])[0][2] for a in answers] == [0, 1]
        insert = pb.LookupRequest(table_id=table.info.table_id, insert_if_not_exists=True)
        insert.buckets_req.add(bucket_id=0, partition_id=ids[0], keys=[table.key(5)])
        answer = (await table.client.call(apis.LOOKUP, insert)).buckets_resp[0]
        assert table.decode([answer.values[0].values]) == [(5, "a", None)]
        await table.client.send(drop_partition(day="a"))
        answers = (await table.client.send(lookup)).buckets_resp
        assert [a.error_code for a in answers] == [21, 0]
        await table.client.send(drop_table())
        answers = (await table.client.call(apis.LOOKUP, lookup)).buckets_resp
        assert [a.error_code for a in answers] == [21, 21]
        assert server.kv.budget.memory_bytes == 0


async def test_old_clients_and_their_keys(tmp_path: Path) -> None:
    """Version 0 encodes keys for the lake; a table that does not is closed to it."""
    schema = keyed_schema("a", "b", a=BigIntType(), b=BigIntType(), v=IntType())
    async with a_table(tmp_path, schema, bucket_keys=["a"], datalake_format="paimon") as (server, table):
        assert (await table.put([(1, 2, 3)])).error_code == 0
        session = next(iter(server.sessions))
        context = RequestContext(server, session, apis.PUT_KV.key, 0, 1)
        buckets = [(None, 0, [kv_batch(table.info, schema, 1, [(1, 2, 3)])])]
        body = b"".join(map(bytes, encode_put_kv(-1, table.info.table_id, 1000, buckets, target_columns=[])))
        answer = pb.PutKvResponse.FromString(bytes((await handlers.put_kv(context, memoryview(body)))[0]))
        assert answer.buckets_resp[0].error_code == ErrorCode.UNSUPPORTED_VERSION
        lone = memoryview(encode_lookup(table.info.table_id, [(None, 0, [table.key(1, 2)])]))
        assert handlers._look_up_lone_key(context, lone) is None
        newer = RequestContext(server, session, apis.LOOKUP.key, 1, 1)
        assert handlers._look_up_lone_key(newer, lone) is not None


async def test_only_the_permitted(tmp_path: Path) -> None:
    options = {
        "bind_listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
        "internal_listener_name": "FLUSS",
        "authorizer_enabled": "true",
        "super_users": "User:root",
    }
    async with running_server(tmp_path, **options) as server, connected(server) as client:
        table = await Table.create(client, server)
        await table.put([A])
        async with connected(server, "CLIENT") as stranger:
            table.client = stranger
            # Told per bucket: some clients repeat a request that fails as a whole for ever. A table that may not be
            # seen is unknown; one that may be seen is refused.
            describe = AclBinding(ResourceType.TABLE, "fluss.t", "ANONYMOUS", OperationType.DESCRIBE)
            for rules, code in (
                ([], ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION),
                ([describe], ErrorCode.AUTHORIZATION_EXCEPTION),
            ):
                server.authorizer.store.apply(by_resource(rules))
                assert (await table.put([B])).error_code == code
                assert (await table.lookup_raw([table.key(1)])).error_code == code
                assert (await table.lookup_raw([table.key(1), table.key(2)])).error_code == code
                assert (await table.lookup_raw([table.key(1)], insert_if_not_exists=True)).error_code == code
                assert (await table.begin_scan(1)).error_code == code
