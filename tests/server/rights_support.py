# SPDX-License-Identifier: Apache-2.0
"""One request per API about a given table, and how its answer is read: permitted, refused, or hidden."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message
from tests.server.catalog.support import spec

from fluss.errors import ErrorCode, FlussError
from fluss.metadata import DataTypes, Schema, TableDescriptor, TablePath
from fluss.metadata.acl import AclBinding, OperationType, Resource, ResourceType
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.server.handlers.rights import Effect, Need, Scope

PERMITTED, REFUSED, HIDDEN = "permitted", "refused", "hidden"
UNKNOWN_CODES = frozenset(
    {ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, ErrorCode.TABLE_NOT_EXIST, ErrorCode.DATABASE_NOT_EXIST}
)
KEY = {"keys": [b"\x01"]}
OBSERVER = "carol"
"""A user with a rule on the table, so that there is a rule to list and to drop."""


@dataclass(frozen=True)
class Target:
    """The object that a request is about."""

    database: str
    table: str
    table_id: int
    partition_id: int | None = None
    bucket: int = 0
    coordinator_epoch: int = 0

    @property
    def path(self) -> pb.PbTablePath:
        return pb.PbTablePath(database_name=self.database, table_name=self.table)

    @property
    def resources(self) -> dict[str, Resource]:
        """Everything whose rules may decide about the table, and a sibling whose rules may not."""
        return {
            "cluster": Resource.cluster(),
            "database": Resource.database(self.database),
            "table": Resource.table(TablePath(self.database, self.table)),
            "other table": Resource.table(TablePath(self.database, "other")),
            "other database": Resource.database("elsewhere"),
        }


@dataclass(frozen=True)
class Sample:
    """A request of one API. `seen` tells for answers that leave things out whether the object is in them."""

    api: apis.Api[Any, Any]
    fields: Callable[[Target], dict[str, Any] | Message]
    seen: Callable[[Target, Any], bool] | None = None
    writing: bool = False
    label: str = ""

    def request(self, target: Target) -> Message:
        fields = self.fields(target)
        message: Message = fields if isinstance(fields, Message) else self.api.request(**fields)
        return message

    def __str__(self) -> str:
        return f"{self.api.name}{' ' + self.label if self.label else ''}"


def descriptor(*, lake: bool = False) -> TableDescriptor:
    schema = Schema.builder().column("id", DataTypes.int()).column("v", DataTypes.string()).primary_key(["id"]).build()
    return TableDescriptor(schema, bucket_count=1, properties={"table.datalake.enabled": "true"} if lake else {})


def _part(target: Target) -> dict[str, Any]:
    return {"bucket_id": target.bucket, "partition_id": target.partition_id}


def _heartbeat(target: Target) -> Message:
    request = pb.LakeTieringHeartbeatRequest()
    request.tiering_tables.add(
        table_id=target.table_id, coordinator_epoch=target.coordinator_epoch, tiering_epoch=1_000_000
    )
    return request


def _offsets(target: Target, kind: type[Message]) -> Any:
    return kind(table_id=target.table_id, bucket_offsets=[pb.PbBucketOffset(**_part(target), log_end_offset=0)])


def _commit_inline(target: Target) -> Message:
    request = pb.CommitLakeTableSnapshotRequest()
    table = request.tables_req.add(table_id=target.table_id, snapshot_id=1)
    table.buckets_req.add(**_part(target), log_end_offset=0)
    return request


def _observer(target: Target) -> dict[str, Any]:
    """What the rule of the observer and a filter for it have in common."""
    name, kind = f"{target.database}.{target.table}", ResourceType.TABLE
    return {"resource_name": name, "resource_type": kind, "principal_name": OBSERVER, "principal_type": "User"}


def _rule(target: Target) -> pb.PbAclInfo:
    return pb.PbAclInfo(**_observer(target), host="*", operation_type=OperationType.READ, permission_type=2)


def _rule_filter(target: Target) -> pb.PbAclFilter:
    return pb.PbAclFilter(**_observer(target), operation_type=1, permission_type=1)


def _metadata(target: Target) -> Message:
    return pb.MetadataRequest(table_path=[target.path])


def _by_path(api: apis.Api[Any, Any], seen: Callable[[Target, Any], bool] | None = None, **fields: Any) -> Sample:
    """A request that names the table by its path."""
    return Sample(api, lambda t: {"table_path": t.path, **fields}, seen)


def _by_bucket(api: apis.Api[Any, Any], kind: type[Message], part: dict[str, Any], **fields: Any) -> Sample:
    """A request about one bucket, of which `part` says more."""
    return Sample(api, lambda t: {"table_id": t.table_id, "buckets_req": [kind(**_part(t), **part)], **fields})


SAMPLES: tuple[Sample, ...] = (
    Sample(apis.API_VERSIONS, lambda t: {"client_software_name": "a", "client_software_version": "1"}),
    Sample(apis.AUTHENTICATE, lambda t: {"protocol": "PLAIN", "token": b""}),
    Sample(apis.GET_FILESYSTEM_SECURITY_TOKEN, lambda t: {}),
    Sample(apis.CREATE_DATABASE, lambda t: {"database_name": t.database, "ignore_if_exists": True}),
    # Never dropped: it has a table, and this does not cascade.
    Sample(
        apis.DROP_DATABASE, lambda t: {"database_name": t.database, "ignore_if_not_exists": False, "cascade": False}
    ),
    Sample(apis.ALTER_DATABASE, lambda t: {"database_name": t.database, "ignore_if_not_exists": False, "comment": "c"}),
    Sample(apis.GET_DATABASE_INFO, lambda t: {"database_name": t.database}),
    Sample(apis.LIST_DATABASES, lambda t: {}, lambda t, answer: t.database in answer.database_name),
    Sample(apis.DATABASE_EXISTS, lambda t: {"database_name": t.database}, lambda t, answer: bool(answer.exists)),
    _by_path(apis.CREATE_TABLE, table_json=descriptor().to_json_bytes(), ignore_if_exists=True),
    # A table that does not exist: the right is needed all the same.
    replace(_by_path(apis.DROP_TABLE, ignore_if_not_exists=True), label="by name"),
    _by_path(
        apis.ALTER_TABLE,
        ignore_if_not_exists=False,
        config_changes=[pb.PbAlterConfig(config_key="note", config_value="x", op_type=0)],
    ),
    Sample(apis.LIST_TABLES, lambda t: {"database_name": t.database}, lambda t, answer: t.table in answer.table_name),
    _by_path(apis.TABLE_EXISTS, lambda t, answer: bool(answer.exists)),
    _by_path(apis.GET_TABLE_INFO),
    _by_path(apis.GET_TABLE_SCHEMA),
    Sample(apis.GET_METADATA, _metadata, lambda t, answer: len(answer.table_metadata) == 1),
    _by_path(apis.LIST_PARTITION_INFOS),
    _by_path(apis.CREATE_PARTITION, partition_spec=spec(dt="x"), ignore_if_not_exists=True),
    _by_path(apis.DROP_PARTITION, partition_spec=spec(dt="x"), ignore_if_not_exists=True),
    Sample(apis.INIT_WRITER, lambda t: {"table_path": [t.path]}),
    _by_bucket(apis.PRODUCE_LOG, pb.PbProduceLogReqForBucket, {"records": b""}, acks=-1, timeout_ms=1000),
    _by_bucket(apis.PUT_KV, pb.PbPutKvReqForBucket, {"records": b""}, acks=-1, timeout_ms=1000),
    Sample(
        apis.FETCH_LOG,
        lambda t: {
            "follower_server_id": -1,
            "max_bytes": 1000,
            "tables_req": [
                pb.PbFetchLogReqForTable(
                    table_id=t.table_id,
                    projection_pushdown_enabled=False,
                    buckets_req=[pb.PbFetchLogReqForBucket(**_part(t), fetch_offset=0, max_fetch_bytes=1000)],
                )
            ],
        },
    ),
    _by_bucket(apis.LOOKUP, pb.PbLookupReqForBucket, KEY),
    _by_bucket(apis.LOOKUP, pb.PbLookupReqForBucket, {**KEY, "original_partition_name": "2024"}),
    replace(
        _by_bucket(apis.LOOKUP, pb.PbLookupReqForBucket, KEY, insert_if_not_exists=True, acks=-1, timeout_ms=1000),
        writing=True,
        label="that inserts",
    ),
    _by_bucket(apis.PREFIX_LOOKUP, pb.PbPrefixLookupReqForBucket, KEY),
    Sample(
        apis.SCAN_KV,
        lambda t: {
            "bucket_scan_req": pb.PbScanReqForBucket(table_id=t.table_id, **_part(t)),
            "call_seq_id": 0,
            "batch_size_bytes": 1000,
        },
    ),
    Sample(apis.LIMIT_SCAN, lambda t: {"table_id": t.table_id, **_part(t), "limit": 1}),
    _by_bucket(apis.GET_TABLE_STATS, pb.PbTableStatsReqForBucket, {}),
    Sample(
        apis.LIST_OFFSETS,
        lambda t: {
            "follower_server_id": -1,
            "offset_type": 0,
            "table_id": t.table_id,
            "bucket_id": [t.bucket],
            "partition_id": t.partition_id,
        },
    ),
    _by_path(apis.GET_LATEST_KV_SNAPSHOTS),
    Sample(apis.GET_KV_SNAPSHOT_METADATA, lambda t: {"table_id": t.table_id, **_part(t), "snapshot_id": 1}),
    Sample(apis.LIST_KV_SNAPSHOTS, lambda t: {"table_id": t.table_id, "partition_id": t.partition_id}),
    Sample(apis.LIST_REMOTE_LOG_MANIFESTS, lambda t: {"table_id": t.table_id, "partition_id": t.partition_id}),
    Sample(
        apis.ACQUIRE_KV_SNAPSHOT_LEASE,
        lambda t: {
            "lease_id": "lease",
            "lease_duration_ms": 1000,
            "snapshots_to_lease": [
                pb.PbKvSnapshotLeaseForTable(
                    table_id=t.table_id, bucket_snapshots=[pb.PbKvSnapshotLeaseForBucket(**_part(t), snapshot_id=1)]
                )
            ],
        },
    ),
    Sample(
        apis.RELEASE_KV_SNAPSHOT_LEASE,
        lambda t: {"lease_id": "lease", "buckets_to_release": [pb.PbTableBucket(table_id=t.table_id, **_part(t))]},
    ),
    Sample(apis.DROP_KV_SNAPSHOT_LEASE, lambda t: {"lease_id": "no such lease"}),
    _by_path(apis.GET_LAKE_SNAPSHOT),
    Sample(apis.LAKE_TIERING_HEARTBEAT, _heartbeat),
    Sample(
        apis.PREPARE_LAKE_TABLE_SNAPSHOT,
        lambda t: {
            "bucket_offsets": [
                pb.PbTableOffsets(
                    table_id=t.table_id,
                    table_path=t.path,
                    bucket_offsets=[pb.PbBucketOffset(**_part(t), log_end_offset=0)],
                )
            ]
        },
    ),
    Sample(
        apis.COMMIT_LAKE_TABLE_SNAPSHOT,
        lambda t: {
            "lake_table_snapshot_metadata": [
                pb.PbLakeTableSnapshotMetadata(
                    table_id=t.table_id, snapshot_id=1, tiered_bucket_offsets_file_path="/nowhere/offsets"
                )
            ]
        },
    ),
    Sample(apis.COMMIT_LAKE_TABLE_SNAPSHOT, _commit_inline, label="in the old form"),
    Sample(
        apis.REGISTER_PRODUCER_OFFSETS,
        lambda t: {"producer_id": "registered", "table_offsets": [_offsets(t, pb.PbProducerTableOffsets)]},
    ),
    Sample(
        apis.GET_PRODUCER_OFFSETS, lambda t: {"producer_id": "known"}, lambda t, answer: len(answer.table_offsets) == 1
    ),
    Sample(apis.DELETE_PRODUCER_OFFSETS, lambda t: {"producer_id": "known"}),
    Sample(apis.CREATE_ACLS, lambda t: {"acl": [_rule(t)]}),
    Sample(apis.DROP_ACLS, lambda t: {"acl_filter": [_rule_filter(t)]}),
    Sample(apis.LIST_ACLS, lambda t: {"acl_filter": _rule_filter(t)}, lambda t, answer: len(answer.acl) == 1),
    Sample(apis.DESCRIBE_CLUSTER_CONFIGS, lambda t: {}),
    # Not an option, so nothing is changed. An empty list is answered by the Java server before it checks.
    Sample(
        apis.ALTER_CLUSTER_CONFIGS,
        lambda t: {"alter_configs": [pb.PbAlterConfig(config_key="no.such.option", config_value="x", op_type=0)]},
    ),
    Sample(apis.ADD_SERVER_TAG, lambda t: {"server_ids": [99], "server_tag": 1}),
    Sample(apis.REMOVE_SERVER_TAG, lambda t: {"server_ids": [99], "server_tag": 1}),
    Sample(apis.ADD_SERVER_TAG_BY_RACK, lambda t: {"racks": ["r"], "server_tag": 1}),
    Sample(apis.REMOVE_SERVER_TAG_BY_RACK, lambda t: {"racks": ["r"], "server_tag": 1}),
    Sample(apis.REBALANCE, lambda t: {"goals": [99]}),
    Sample(apis.LIST_REBALANCE_PROGRESS, lambda t: {}),
    Sample(apis.CANCEL_REBALANCE, lambda t: {}),
    Sample(apis.GET_CLUSTER_HEALTH, lambda t: {}),
)


def _follower_fetch(target: Target) -> Message:
    request: Any = next(sample for sample in SAMPLES if sample.api is apis.FETCH_LOG).request(target)
    request.follower_server_id = 1
    return request  # type: ignore[no-any-return]


def _commit_by_path(target: Target) -> Message:
    request: Any = _commit_inline(target)
    request.tables_req[0].ClearField("table_id")
    request.tables_req[0].table_path.CopyFrom(target.path)
    return request  # type: ignore[no-any-return]


def _heartbeat_about(target: Target, field: str) -> Message:
    request: Any = _heartbeat(target)
    getattr(request, field).add().CopyFrom(request.tiering_tables[0])
    request.ClearField("tiering_tables")
    return request  # type: ignore[no-any-return]


PROBES: tuple[Sample, ...] = (
    Sample(apis.FETCH_LOG, _follower_fetch, label="as a follower"),
    Sample(
        apis.GET_METADATA,
        lambda t: {
            "partitions_path": [
                pb.PbPhysicalTablePath(database_name=t.database, table_name=t.table, partition_name="x")
            ]
        },
        label="of a partition by name",
    ),
    Sample(
        apis.GET_METADATA,
        lambda t: {"table_path": [t.path], "partitions_id": [t.partition_id or 0]},
        label="of a partition by id",
    ),
    replace(_by_path(apis.GET_LATEST_KV_SNAPSHOTS, partition_name="x"), label="of a partition"),
    Sample(apis.COMMIT_LAKE_TABLE_SNAPSHOT, _commit_by_path, label="by path"),
    Sample(apis.LAKE_TIERING_HEARTBEAT, lambda t: _heartbeat_about(t, "failed_tables"), label="that failed"),
    Sample(apis.LAKE_TIERING_HEARTBEAT, lambda t: _heartbeat_about(t, "finished_tables"), label="that finished"),
    Sample(apis.LAKE_TIERING_HEARTBEAT, lambda t: {"request_table": True}, label="for work"),
)
"""More ways to ask about a table: none of them may tell that a hidden one exists."""


def covers(granted: OperationType, on: Resource, needed: OperationType, target: Resource) -> bool:
    """The rule of the access rules, told again: one right on one resource, and what it includes."""
    contains = (
        on == target
        or on.type is ResourceType.CLUSTER
        or (
            on.type is ResourceType.DATABASE
            and target.type is ResourceType.TABLE
            and target.name.startswith(f"{on.name}.")
        )
    )
    return contains and (granted in (OperationType.ALL, needed) or needed is OperationType.DESCRIBE)


def expected(need: Need, sample: Sample, target: Target, granted: OperationType | None, on: Resource | None) -> str:
    """What the row of the API says about a caller with this one right."""
    if need.scope is Scope.NONE:
        return PERMITTED
    operation = need.writing if sample.writing else need.operation
    assert operation is not None
    resources = target.resources
    wanted = {
        Scope.CLUSTER: resources["cluster"],
        Scope.DATABASE: resources["database"],
        Scope.RULE_CONTAINER: resources["database"],
    }.get(need.scope, resources["table"])

    def may(op: OperationType, what: Resource) -> bool:
        return granted is not None and on is not None and covers(granted, on, op, what)

    if may(operation, wanted):
        return PERMITTED
    if need.effect is Effect.OMIT:
        return HIDDEN
    if need.scope is Scope.TABLE_ID:
        return REFUSED if may(OperationType.DESCRIBE, wanted) else HIDDEN
    if sample.api is apis.DROP_ACLS and not may(OperationType.DESCRIBE, resources["table"]):
        return PERMITTED  # of nothing: a rule that is not seen is not there
    return REFUSED


def binding(operation: OperationType, resource: Resource, user: str) -> AclBinding:
    return AclBinding(resource.type, resource.name, user, operation)


def errors(message: Message) -> Iterator[tuple[int, str]]:
    """Every error in an answer, whatever part of it has one."""
    for field, value in message.ListFields():
        if field.name == "error_code":
            yield int(value), str(getattr(message, "error_message", ""))
        elif field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                yield from errors(part)


def outcome(sample: Sample, target: Target, answer: Message | FlussError) -> str:
    """Read an answer."""
    if isinstance(answer, FlussError):
        codes = {answer.error_code}
    else:
        codes = {code for code, _ in errors(answer)}
        if sample.seen is not None:
            return PERMITTED if sample.seen(target, answer) else HIDDEN
    if ErrorCode.AUTHORIZATION_EXCEPTION in codes:
        return REFUSED
    return HIDDEN if codes & UNKNOWN_CODES else PERMITTED


def elsewhere(target: Target) -> Target:
    """The same question about a table that does not exist."""
    return replace(target, database="nodata", table="none", table_id=target.table_id + 987_654)


def without_names(text: str, target: Target) -> str:
    """A text with what the caller itself named taken out."""
    for name, mark in (
        (re.escape(f"{target.database}.{target.table}"), "TABLE"),
        (rf"(?<=table with id ){target.table_id}", "ID"),
        (rf"(?<=table_id: ){target.table_id}", "ID"),
        (target.database, "DATABASE"),
        (target.table, "TABLE"),
    ):
        text = re.sub(rf"\b{name}\b" if name[0] != "(" else rf"{name}\b", mark, text)
    return text
