# SPDX-License-Identifier: Apache-2.0
"""The largest requests of every API, made from the descriptors of the messages: a new API cannot be left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

import fluss.aio as fluss
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import APIS, Api
from fluss.records import KV_RECORDS_MAX, encode_arrow_body, encode_kv_body, seal_kv_batch, seal_log_batch
from fluss.rows import encode_rows, kv_key_encoder
from fluss.server.catalog.tables import COLUMNS_MAX
from fluss.server.handlers.log import BATCHES_MAX
from fluss.server.handlers.request import MESSAGE_BYTES_MAX, items_max

DATABASE = "largest"
MANY_COLUMNS = 40_000
MANY_BATCHES = 400_000
FIELDS_MAX = 390_000
FRAME_BYTES_MAX = 95_000_000
LOG_BUCKETS = 24
KV_BUCKETS = 4_096
FULL_BUCKETS = range(KV_BUCKETS - 3, KV_BUCKETS)


@dataclass(frozen=True)
class Tables:
    """What the requests name."""

    log_id: int
    keyed: fluss.TableInfo


@dataclass(frozen=True)
class LargeRequest:
    api: Api[Any, Any]
    what: str
    body: bytes
    is_valid: bool = False
    """Whether all of it is executed for a client that may do it, and no part of the answer is an error."""


def largest_requests(tables: Tables) -> Iterator[LargeRequest]:
    """Several requests per API: as many items as one may have, as many as fit, and the longest text.

    Writes come first, because others read their rows, and what drops tables comes last.
    """
    order = {apis.PUT_KV.key: -2, apis.PRODUCE_LOG.key: -1, apis.DROP_TABLE.key: 1, apis.DROP_DATABASE.key: 2}
    for api in sorted(APIS.values(), key=lambda api: order.get(api.key, 0)):
        for what, make in _BY_HAND.get(api.key, {}).items():
            yield LargeRequest(api, what, make(tables), what not in _REFUSED)
        yield LargeRequest(api, "one of each", _plausible(api, tables).SerializePartialToString())
        for path in _repeated_fields(api.request.DESCRIPTOR):
            name = ".".join(path)
            body, is_valid = _repeated(api, tables, path, items_max(api)), name in _VALID.get(api.name, "").split()
            yield LargeRequest(api, f"allowed number of {name}", body, is_valid)
            yield LargeRequest(api, f"4 MB of {name}", _repeated(api, tables, path, None))
        for field in api.request.DESCRIPTOR.fields:
            if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES) and not _is_repeated(field):
                message = _plausible(api, tables)
                filler: Any = "x" if field.type == FieldDescriptor.TYPE_STRING else b"x"
                setattr(message, field.name, filler * (MESSAGE_BYTES_MAX - 1_000))
                yield LargeRequest(api, f"4 MB in {field.name}", message.SerializePartialToString())


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _repeated_fields(descriptor: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in descriptor.fields:
        here = (*path, field.name)
        if _is_repeated(field):
            yield here
        if field.message_type is not None and field.message_type is not descriptor and len(here) < 4:
            yield from _repeated_fields(field.message_type, here)


def _plausible(api: Api[Any, Any], tables: Tables) -> Message:
    message: Message = api.request()
    _fill(message, tables, 0, 0)
    return message


def _repeated(api: Api[Any, Any], tables: Tables, path: tuple[str, ...], items_max: int | None) -> bytes:
    """A plausible request in which one field occurs as often as the limit of items, or else of bytes, allows."""
    message = _plausible(api, tables)
    owner: Any = message
    for name in path[:-1]:
        inner = getattr(owner, name)
        owner = inner[0] if hasattr(inner, "__getitem__") else inner
    field = owner.DESCRIPTOR.fields_by_name[path[-1]]
    items = getattr(owner, path[-1])
    if field.message_type is not None and not items:
        _fill(items.add(), tables, 0, len(path))
    elif not items:
        items.append(_value(field, tables, 0))
    single: Any = type(owner)()
    getattr(single, field.name).append(items[0])
    encoded = single.SerializePartialToString()
    room = (MESSAGE_BYTES_MAX - _size_bytes(message) - 1_000) // (len(encoded) + 3)
    if items_max is None:
        owner.MergeFromString(encoded * room)  # much quicker than `extend`
    else:
        per_item = 1 + (_count_items(items[0]) if field.message_type is not None else 0)
        left = items_max - _count_items(message) - len(message.ListFields())
        for number in range(1, min(room, left // per_item, FIELDS_MAX // _count_fields(single))):
            if field.message_type is not None:
                _fill(items.add(), tables, number, len(path))
            else:
                items.append(_value(field, tables, number))
    return message.SerializePartialToString()


def _size_bytes(message: Message) -> int:
    return len(message.SerializePartialToString())


def _count_items(message: Message) -> int:
    count = 0
    for field, value in message.ListFields():
        count += len(value) if _is_repeated(field) else field.message_type is not None
        if field.message_type is not None:
            count += sum(map(_count_items, value)) if _is_repeated(field) else _count_items(value)
    return count


def _count_fields(message: Message) -> int:
    """The fields of a message, and those of the messages in it."""
    count = 0
    for field, value in message.ListFields():
        for item in value if _is_repeated(field) else (value,):
            count += 1 + (_count_fields(item) if field.message_type is not None else 0)
    return count


def _fill(message: Message, tables: Tables, number: int, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if depth < 4 and field.name not in _LEFT_OUT:
                target = getattr(message, field.name)
                _fill(target.add() if _is_repeated(field) else target, tables, number, depth + 1)
        elif field.name not in _LEFT_OUT:
            value = _value(field, tables, number)
            if _is_repeated(field):
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


_LEFT_OUT = frozenset({
    "partition_id", "compound", "drop_columns", "rename_columns", "modify_columns", "original_partition_name",
    "partitions_id", "partitions_path",
})  # fmt: skip
_INTEGERS: dict[str, Callable[[Tables, int], int]] = {
    "table_id": lambda tables, _: tables.keyed.table_id,
    "bucket_id": lambda _, number: number,
    "acks": lambda _, __: -1,
    "timeout_ms": lambda _, __: 1_000,
    "max_wait_ms": lambda _, __: 0,
    "limit": lambda _, __: 2**31 - 1,
    "batch_size_bytes": lambda _, __: 2**31 - 1,
    "max_bytes": lambda _, __: 2**31 - 1,
    "max_fetch_bytes": lambda _, __: 1,
    "lease_duration_ms": lambda _, __: 60_000,
    "resource_type": lambda _, __: 3,
    "operation_type": lambda _, __: 2,
    "permission_type": lambda _, __: 2,
}


def _value(field: FieldDescriptor, tables: Tables, number: int) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        if "database" in field.name:
            return DATABASE if "Path" in field.containing_type.name else "victims"
        return "victim" if "table" in field.name else f"n{number}"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b'{"type":"INTEGER"}' if "json" in field.name else b""
    if field.type == FieldDescriptor.TYPE_BOOL:
        return field.name not in ("projection_pushdown_enabled", "insert_if_not_exists")
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return 0.5
    if field.name == "table_id" and field.containing_type.name == "PbTableOffsets":
        return tables.log_id  # the server writes a file for each of its buckets, which are few
    make = _INTEGERS.get(field.name)
    return make(tables, number) if make is not None else 0


# Requests whose size lies in texts and records ------------------------------------------------------------------------


def create_table(name: str, column_count: int) -> bytes:
    request = pb.CreateTableRequest(ignore_if_exists=True)
    request.table_path.database_name, request.table_path.table_name = DATABASE, name
    columns = [{"name": f"c{number}", "data_type": {"type": "INTEGER"}} for number in range(column_count)]
    document = {"version": 1, "schema": {"version": 1, "columns": columns}, "bucket_count": 1, "partition_key": []}
    request.table_json = json.dumps({**document, "properties": {}, "custom_properties": {}}).encode()
    return request.SerializeToString()


def _log_batch() -> bytes:
    rows = pa.record_batch({"k": pa.array([1], pa.int32()), "v": pa.array([1], pa.int64())})
    parts = seal_log_batch(encode_arrow_body(rows, compression="NONE"), schema_id=1)
    return b"".join(bytes(part) for part in parts)


def _many_log_batches(tables: Tables) -> bytes:
    batch = _log_batch()
    request = pb.ProduceLogRequest(acks=-1, table_id=tables.log_id, timeout_ms=30_000)
    request.buckets_req.add(bucket_id=0, records=batch * min(MANY_BATCHES, FRAME_BYTES_MAX // len(batch)))
    return request.SerializeToString()


def _allowed_log_batches(tables: Tables) -> bytes:
    records = _log_batch() * BATCHES_MAX
    request = pb.ProduceLogRequest(acks=-1, table_id=tables.log_id, timeout_ms=30_000)
    for bucket in range(LOG_BUCKETS):
        request.buckets_req.add(bucket_id=bucket, records=records)
    return request.SerializeToString()


def _kv_batch(info: fluss.TableInfo, rows: int) -> bytes:
    columns = [pa.array(np.arange(rows, dtype=np.int32)), pa.array(np.ones(rows, np.int64))]
    keys = kv_key_encoder(info).encode_columns(columns[:1])
    body = encode_kv_body(keys, encode_rows(info.kv_format, info.schema.data_types, columns))
    return b"".join(bytes(part) for part in seal_kv_batch(body, 1))


def _put_kv(tables: Tables, buckets: Sequence[int], records: bytes) -> bytes:
    request = pb.PutKvRequest(acks=-1, table_id=tables.keyed.table_id, timeout_ms=30_000)
    for bucket in buckets:
        request.buckets_req.add(bucket_id=bucket, records=records)
    return request.SerializeToString()


def _many_kv_batches(tables: Tables) -> bytes:
    batch = _kv_batch(tables.keyed, 1)
    return _put_kv(tables, [0], batch * min(MANY_BATCHES, FRAME_BYTES_MAX // len(batch)))


def _largest_kv_batches(tables: Tables) -> bytes:
    return _put_kv(tables, FULL_BUCKETS, _kv_batch(tables.keyed, KV_RECORDS_MAX))


def _look_up_many(tables: Tables) -> bytes:
    request = pb.LookupRequest(table_id=tables.keyed.table_id)
    keys = kv_key_encoder(tables.keyed).encode_columns([pa.array(np.arange(99_000, dtype=np.int32))])
    request.buckets_req.add(bucket_id=FULL_BUCKETS[0], keys=keys.to_list())
    return request.SerializeToString()


def _look_up_all(tables: Tables) -> bytes:
    request = pb.PrefixLookupRequest(table_id=tables.keyed.table_id)
    request.buckets_req.add(bucket_id=FULL_BUCKETS[0], keys=[b""])
    return request.SerializeToString()


def _limit_scan(tables: Tables) -> bytes:
    request = pb.LimitScanRequest(table_id=tables.keyed.table_id, bucket_id=FULL_BUCKETS[0], limit=2**31 - 1)
    return request.SerializeToString()


def _scan(tables: Tables) -> bytes:
    request = pb.ScanKvRequest(call_seq_id=0, batch_size_bytes=2**31 - 1)
    request.bucket_scan_req.table_id, request.bucket_scan_req.bucket_id = tables.keyed.table_id, FULL_BUCKETS[0]
    return request.SerializeToString()


def _fetch(table_id: int, buckets: Sequence[int]) -> bytes:
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=2**31 - 1, max_wait_ms=0)
    table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
    for bucket in buckets:
        table.buckets_req.add(bucket_id=bucket, fetch_offset=0, max_fetch_bytes=2**31 - 1)
    return request.SerializeToString()


_BY_HAND: dict[int, dict[str, Callable[[Tables], bytes]]] = {
    apis.CREATE_TABLE.key: {
        f"{MANY_COLUMNS} columns": lambda _: create_table("many", MANY_COLUMNS),
        f"{COLUMNS_MAX} columns": lambda _: create_table("columns", COLUMNS_MAX),
    },
    apis.PRODUCE_LOG.key: {"one-row batches": _many_log_batches, "allowed batches": _allowed_log_batches},
    apis.PUT_KV.key: {
        "a row per bucket": lambda tables: _put_kv(tables, range(KV_BUCKETS), _kv_batch(tables.keyed, 1)),
        "one-row batches": _many_kv_batches,
        "too many rows": lambda tables: _put_kv(tables, [0], _kv_batch(tables.keyed, 1_000_000)),
        "the largest batch": lambda tables: _put_kv(tables, FULL_BUCKETS[:1], _kv_batch(tables.keyed, KV_RECORDS_MAX)),
        "the largest batches": _largest_kv_batches,
    },
    apis.LOOKUP.key: {"99,000 keys": _look_up_many},
    apis.PREFIX_LOOKUP.key: {"all keys": _look_up_all},
    apis.LIMIT_SCAN.key: {"all rows": _limit_scan},
    apis.SCAN_KV.key: {"all rows": _scan},
    apis.FETCH_LOG.key: {
        "a whole log": lambda tables: _fetch(tables.log_id, range(LOG_BUCKETS)),
        "a whole changelog": lambda tables: _fetch(tables.keyed.table_id, FULL_BUCKETS),
    },
}
_REFUSED = {f"{MANY_COLUMNS} columns", "one-row batches", "too many rows"}
"""Of those made by hand. The others are executed, and so are these:"""
_VALID = {
    "INIT_WRITER": "table_path",
    "GET_METADATA": "table_path",
    "CREATE_ACLS": "acl",
    "DROP_ACLS": "acl_filter",
    "REGISTER_PRODUCER_OFFSETS": "table_offsets table_offsets.bucket_offsets",
    "ACQUIRE_KV_SNAPSHOT_LEASE": "snapshots_to_lease snapshots_to_lease.bucket_snapshots",
    "RELEASE_KV_SNAPSHOT_LEASE": "buckets_to_release",
    "ALTER_DATABASE": "config_changes",
    "REBALANCE": "goals",
}
"""API to the fields that occur as often as is allowed."""


def add_column(table: str, name: str, data_type: object) -> bytes:
    request = pb.AlterTableRequest(ignore_if_not_exists=False)
    request.table_path.database_name, request.table_path.table_name = DATABASE, table
    document = json.dumps(data_type).encode()
    request.add_columns.add(column_name=name, data_type_json=document, column_position_type=0)
    return request.SerializeToString()


def row_type(field_count: int) -> object:
    return {"type": "ROW", "fields": [{"name": f"f{n}", "field_type": {"type": "INTEGER"}} for n in range(field_count)]}


def create_database(property_count: int) -> bytes:
    document = {"version": 1, "custom_properties": {f"k{number}": "v" for number in range(property_count)}}
    return pb.CreateDatabaseRequest(
        database_name="properties", database_json=json.dumps(document).encode(), ignore_if_exists=True
    ).SerializeToString()


def fetch_partitions(table_id: int, partitions: int) -> bytes:
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1_000, max_wait_ms=0)
    table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
    for number in range(1, partitions + 1):
        table.buckets_req.add(partition_id=number, bucket_id=0, fetch_offset=0, max_fetch_bytes=10)
    return request.SerializeToString()


def drop_table(name: str) -> bytes:
    request = pb.DropTableRequest(ignore_if_not_exists=False)
    request.table_path.database_name, request.table_path.table_name = DATABASE, name
    return request.SerializeToString()


async def make_partitioned_table(config: fluss.Config) -> int:
    async with await fluss.FlussConnection.create(config) as connection:
        admin = connection.get_admin()
        await admin.create_database(DATABASE)
        path = fluss.TablePath(DATABASE, "partitioned")
        schema = fluss.Schema(pa.schema([("k", pa.int32()), ("p", pa.string())]))
        await admin.create_table(path, fluss.TableDescriptor(schema, partition_keys=["p"], bucket_count=1))
        table = await connection.get_table(path)
    return table.get_table_info().table_id


async def make_tables(config: fluss.Config) -> Tables:
    """A log table and a primary-key table, which the first requests fill, and one for those that change or drop it."""
    async with await fluss.FlussConnection.create(config) as connection:
        admin = connection.get_admin()
        await admin.create_database(DATABASE, ignore_if_exists=True)
        columns = pa.schema([("k", pa.int32()), ("v", pa.int64())])
        log, keyed, victim = (fluss.TablePath(DATABASE, name) for name in ("log", "keyed", "victim"))
        await admin.create_table(log, fluss.TableDescriptor(fluss.Schema(columns), bucket_count=LOG_BUCKETS))
        await admin.create_table(victim, fluss.TableDescriptor(fluss.Schema(columns), bucket_count=1))
        schema = fluss.Schema(columns, primary_keys=["k"])
        await admin.create_table(keyed, fluss.TableDescriptor(schema, bucket_count=KV_BUCKETS))
        log_table, keyed_table = await connection.get_table(log), await connection.get_table(keyed)
    return Tables(log_table.get_table_info().table_id, keyed_table.get_table_info())
