# SPDX-License-Identifier: Apache-2.0
"""Which API needs which right on what: one row per API, and the checks that handlers make with it.

The rows are those of the Java server, except where `Need.stricter` says why they are not. An API without a row is
refused, whatever its handler would do. What a caller may not see is answered like what does not exist: by name with
AUTHORIZATION_EXCEPTION in both cases, by id with UNKNOWN_TABLE_OR_BUCKET_EXCEPTION in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from fluss.errors import AuthorizationError, UnknownTableOrBucketError
from fluss.metadata import TablePath
from fluss.metadata.acl import OperationType, Resource
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import Api
from fluss.server.catalog import TableEntry
from fluss.server.catalog.acl import ResourceLike
from fluss.server.handlers.answers import table_path
from fluss.server.handlers.request import RequestContext


class Scope(Enum):
    """What the right must be held on."""

    NONE = "nothing"
    CLUSTER = "the cluster"
    DATABASE = "the database"
    TABLE = "the table, named by its path"
    TABLE_ID = "the table, named by its id"
    ANY_TABLE = "at least one of the tables named"
    RULE = "the resource of the ACL"
    RULE_CONTAINER = "the resource of the ACL; for a table its database"


class Effect(Enum):
    """What happens without the right."""

    REFUSE = "the request is refused"
    PART = "that part of the request is refused"
    OMIT = "it is left out of the answer"


@dataclass(frozen=True)
class Need:
    """One row: the right that an API needs."""

    scope: Scope
    operation: OperationType | None = None
    effect: Effect = Effect.REFUSE
    writing: OperationType | None = None
    """Needed instead when the request also writes (LOOKUP that inserts missing keys)."""
    stricter: str | None = None
    """Why this is more than the Java server asks for."""


_READ, _WRITE, _CREATE, _DROP, _ALTER, _DESCRIBE, _ALL = (
    OperationType.READ,
    OperationType.WRITE,
    OperationType.CREATE,
    OperationType.DROP,
    OperationType.ALTER,
    OperationType.DESCRIBE,
    OperationType.ALL,
)
_NOTHING = Need(Scope.NONE)
_TABLES_NAMED_MAX = 100
_LAKE = "a forged lake offset hides rows from union reads and lets their log expire"

_ROWS: tuple[tuple[Api[Any, Any], Need], ...] = (
    # The connection itself.
    (apis.API_VERSIONS, _NOTHING),
    (apis.AUTHENTICATE, _NOTHING),
    # Every client that can connect gets the token, as in Apache Fluss, and asks for it before it names a table.
    (apis.GET_FILESYSTEM_SECURITY_TOKEN, _NOTHING),
    # Databases.
    (apis.CREATE_DATABASE, Need(Scope.CLUSTER, _CREATE)),
    (apis.DROP_DATABASE, Need(Scope.DATABASE, _DROP)),
    (apis.ALTER_DATABASE, Need(Scope.DATABASE, _ALTER)),
    (apis.GET_DATABASE_INFO, Need(Scope.DATABASE, _DESCRIBE)),
    (apis.LIST_DATABASES, Need(Scope.DATABASE, _DESCRIBE, Effect.OMIT)),
    (apis.DATABASE_EXISTS, Need(Scope.DATABASE, _DESCRIBE, Effect.OMIT)),
    # Tables and partitions.
    (apis.CREATE_TABLE, Need(Scope.DATABASE, _CREATE)),
    (apis.DROP_TABLE, Need(Scope.TABLE, _DROP)),
    (apis.ALTER_TABLE, Need(Scope.TABLE, _ALTER)),
    (apis.LIST_TABLES, Need(Scope.TABLE, _DESCRIBE, Effect.OMIT)),
    (apis.TABLE_EXISTS, Need(Scope.TABLE, _DESCRIBE, Effect.OMIT)),
    (apis.GET_TABLE_INFO, Need(Scope.TABLE, _DESCRIBE)),
    (apis.GET_TABLE_SCHEMA, Need(Scope.TABLE, _DESCRIBE)),
    (apis.GET_METADATA, Need(Scope.TABLE, _DESCRIBE, Effect.OMIT)),
    (apis.LIST_PARTITION_INFOS, Need(Scope.TABLE, _DESCRIBE)),
    (apis.CREATE_PARTITION, Need(Scope.TABLE, _WRITE)),
    (apis.DROP_PARTITION, Need(Scope.TABLE, _WRITE)),
    # Rows. Refused per bucket: some clients repeat a write that fails as a whole without end.
    (apis.INIT_WRITER, Need(Scope.ANY_TABLE, _WRITE)),
    (apis.PRODUCE_LOG, Need(Scope.TABLE_ID, _WRITE, Effect.PART)),
    (apis.PUT_KV, Need(Scope.TABLE_ID, _WRITE, Effect.PART)),
    (apis.FETCH_LOG, Need(Scope.TABLE_ID, _READ, Effect.PART)),
    (apis.LOOKUP, Need(Scope.TABLE_ID, _READ, Effect.PART, writing=_WRITE)),
    (apis.PREFIX_LOOKUP, Need(Scope.TABLE_ID, _READ, Effect.PART)),
    (apis.SCAN_KV, Need(Scope.TABLE_ID, _READ, Effect.PART)),
    (apis.LIMIT_SCAN, Need(Scope.TABLE_ID, _READ)),
    (apis.GET_TABLE_STATS, Need(Scope.TABLE_ID, _READ)),
    (apis.LIST_OFFSETS, Need(Scope.TABLE_ID, _DESCRIBE)),
    # Snapshots, remote log.
    (apis.GET_LATEST_KV_SNAPSHOTS, Need(Scope.TABLE, _DESCRIBE)),
    (apis.GET_KV_SNAPSHOT_METADATA, Need(Scope.TABLE_ID, _DESCRIBE)),
    (apis.LIST_KV_SNAPSHOTS, Need(Scope.TABLE_ID, _DESCRIBE)),
    (apis.LIST_REMOTE_LOG_MANIFESTS, Need(Scope.TABLE_ID, _DESCRIBE)),
    (apis.ACQUIRE_KV_SNAPSHOT_LEASE, Need(Scope.TABLE_ID, _READ)),
    (apis.RELEASE_KV_SNAPSHOT_LEASE, Need(Scope.TABLE_ID, _READ)),
    # READ on the tables of the lease; the key of a lease has its owner, so nothing but one's own can be dropped.
    (apis.DROP_KV_SNAPSHOT_LEASE, _NOTHING),
    # The lake.
    (apis.GET_LAKE_SNAPSHOT, Need(Scope.TABLE, _DESCRIBE)),
    (apis.LAKE_TIERING_HEARTBEAT, Need(Scope.TABLE_ID, _WRITE, Effect.PART, stricter=_LAKE)),
    (apis.PREPARE_LAKE_TABLE_SNAPSHOT, Need(Scope.TABLE_ID, _WRITE, Effect.PART, stricter=_LAKE)),
    (apis.COMMIT_LAKE_TABLE_SNAPSHOT, Need(Scope.TABLE_ID, _WRITE, Effect.PART, stricter=_LAKE)),
    # Offsets of producers. Each principal sees its own registrations only.
    (apis.REGISTER_PRODUCER_OFFSETS, Need(Scope.TABLE_ID, _WRITE)),
    (apis.GET_PRODUCER_OFFSETS, Need(Scope.TABLE_ID, _READ, Effect.OMIT)),
    (apis.DELETE_PRODUCER_OFFSETS, Need(Scope.TABLE_ID, _WRITE)),
    # Access rules.
    (apis.CREATE_ACLS, Need(Scope.RULE_CONTAINER, _ALL)),
    (apis.DROP_ACLS, Need(Scope.RULE_CONTAINER, _ALL)),
    (apis.LIST_ACLS, Need(Scope.RULE, _DESCRIBE, Effect.OMIT)),
    # The cluster.
    (apis.DESCRIBE_CLUSTER_CONFIGS, Need(Scope.CLUSTER, _DESCRIBE)),
    (apis.ALTER_CLUSTER_CONFIGS, Need(Scope.CLUSTER, _ALTER)),
    (apis.ADD_SERVER_TAG, Need(Scope.CLUSTER, _ALTER)),
    (apis.REMOVE_SERVER_TAG, Need(Scope.CLUSTER, _ALTER)),
    (apis.ADD_SERVER_TAG_BY_RACK, Need(Scope.CLUSTER, _ALTER)),
    (apis.REMOVE_SERVER_TAG_BY_RACK, Need(Scope.CLUSTER, _ALTER)),
    (apis.REBALANCE, Need(Scope.CLUSTER, _WRITE)),
    (apis.LIST_REBALANCE_PROGRESS, Need(Scope.CLUSTER, _DESCRIBE)),
    (apis.CANCEL_REBALANCE, Need(Scope.CLUSTER, _WRITE)),
    (apis.GET_CLUSTER_HEALTH, Need(Scope.CLUSTER, _DESCRIBE)),
)

RIGHTS: Final[Mapping[int, Need]] = MappingProxyType({api.key: need for api, need in _ROWS})
"""The right each API needs, by API key."""


def operation_of(ctx: RequestContext, *, writing: bool = False) -> OperationType:
    """Return the operation that the API of this request needs."""
    need = RIGHTS[ctx.api_key]
    operation = need.writing if writing else need.operation
    if operation is None:
        raise LookupError(f"the access row of {apis.api_name(ctx.api_key)} names no operation")
    return operation


def permits(ctx: RequestContext, resource: ResourceLike) -> bool:
    """Return whether the caller has the right of this API on a resource."""
    authorizer = ctx.server.authorizer
    return not authorizer.enabled or authorizer.allows(ctx.session, operation_of(ctx), resource)


def require(ctx: RequestContext, resource: ResourceLike) -> None:
    """Raise AuthorizationError unless the caller has the right of this API on a resource named by the caller."""
    authorizer = ctx.server.authorizer
    if authorizer.enabled:
        authorizer.require(ctx.session, operation_of(ctx), resource)


def permitted_path(ctx: RequestContext, named: pb.PbTablePath) -> TablePath:
    """Return the path of a table that a request names; raise AuthorizationError without the right of this API on it."""
    path = table_path(named)
    require(ctx, path)
    return path


def require_cluster(ctx: RequestContext) -> None:
    """Raise AuthorizationError unless the caller has the right of this API on the cluster."""
    require(ctx, Resource.cluster())


async def require_any_table(ctx: RequestContext, paths: Sequence[pb.PbTablePath]) -> None:
    """Raise AuthorizationError unless the caller has the right of this API on one of the tables it names."""
    authorizer = ctx.server.authorizer
    if not authorizer.enabled or authorizer.trusts(ctx.session):
        return
    if not paths:
        raise AuthorizationError(
            "The request of InitWriter requires non empty table paths for authorization. Name the tables to write to."
        )
    operation = operation_of(ctx)
    async for path in ctx.each(paths):
        if authorizer.allows(ctx.session, operation, TablePath(path.database_name, path.table_name)):
            return
    authorizer.refusal(ctx.session, operation, TablePath(paths[0].database_name, paths[0].table_name))
    named = ", ".join(f"{path.database_name}.{path.table_name}" for path in paths[:_TABLES_NAMED_MAX])
    more = f" and {len(paths) - _TABLES_NAMED_MAX} more" if len(paths) > _TABLES_NAMED_MAX else ""
    raise AuthorizationError(f"No {operation.name} permission among all the tables: [{named}{more}]")


def unknown_table(table_id: int) -> UnknownTableOrBucketError:
    """Make the answer for a table id that does not exist, or that the caller may not know of.

    The code makes the client refresh its metadata: an unknown id is usually stale.
    """
    return UnknownTableOrBucketError(f"The table with id {table_id} is not known to this server.")


def permitted_table(ctx: RequestContext, table_id: int, *, writing: bool = False) -> TableEntry:
    """Return a table named by id if the caller has the right of this API on it.

    Raises:
        UnknownTableOrBucketError: There is no such table, or the caller may not see it: the name stays unknown.
        AuthorizationError: The caller may see the table and lacks the right.
    """
    entry = ctx.server.catalog.table_by_id(table_id)
    if entry is None:
        raise unknown_table(table_id)
    authorizer = ctx.server.authorizer
    if authorizer.enabled:
        operation = operation_of(ctx, writing=writing)
        if not authorizer.allows(ctx.session, operation, entry.table_path):
            refusal = authorizer.refusal(ctx.session, operation, entry.table_path)
            if authorizer.allows(ctx.session, OperationType.DESCRIBE, entry.table_path):
                raise refusal
            raise unknown_table(table_id)
    return entry
