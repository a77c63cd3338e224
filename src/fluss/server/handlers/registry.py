# SPDX-License-Identifier: Apache-2.0
"""Which handler answers which API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from fluss.errors import AuthorizationError
from fluss.protocol import apis
from fluss.protocol.apis import Api, api_name
from fluss.server.handlers import acl, admin, cluster, fetch, kv, lake, log, session, snapshots
from fluss.server.handlers.request import Buffer, DirectHandler, Handler, RequestContext, proto_handler
from fluss.server.handlers.rights import RIGHTS

_ON_MESSAGES: dict[Api[Any, Any], Callable[[RequestContext, Any], Awaitable[Any]]] = {
    apis.AUTHENTICATE: session.authenticate,
    apis.CREATE_DATABASE: admin.create_database,
    apis.DROP_DATABASE: admin.drop_database,
    apis.ALTER_DATABASE: admin.alter_database,
    apis.LIST_DATABASES: admin.list_databases,
    apis.DATABASE_EXISTS: admin.database_exists,
    apis.GET_DATABASE_INFO: admin.get_database_info,
    apis.CREATE_TABLE: admin.create_table,
    apis.DROP_TABLE: admin.drop_table,
    apis.ALTER_TABLE: admin.alter_table,
    apis.LIST_TABLES: admin.list_tables,
    apis.TABLE_EXISTS: admin.table_exists,
    apis.GET_TABLE_INFO: admin.get_table_info,
    apis.GET_TABLE_SCHEMA: admin.get_table_schema,
    apis.LIST_PARTITION_INFOS: admin.list_partition_infos,
    apis.CREATE_PARTITION: admin.create_partition,
    apis.DROP_PARTITION: admin.drop_partition,
    apis.GET_METADATA: admin.get_metadata,
    apis.LIST_OFFSETS: log.list_offsets,
    apis.INIT_WRITER: log.init_writer,
    apis.GET_TABLE_STATS: log.get_table_stats,
    apis.GET_LATEST_KV_SNAPSHOTS: snapshots.get_latest_kv_snapshots,
    apis.GET_KV_SNAPSHOT_METADATA: snapshots.get_kv_snapshot_metadata,
    apis.LIST_KV_SNAPSHOTS: snapshots.list_kv_snapshots,
    apis.ACQUIRE_KV_SNAPSHOT_LEASE: snapshots.acquire_kv_snapshot_lease,
    apis.RELEASE_KV_SNAPSHOT_LEASE: snapshots.release_kv_snapshot_lease,
    apis.DROP_KV_SNAPSHOT_LEASE: snapshots.drop_kv_snapshot_lease,
    apis.LAKE_TIERING_HEARTBEAT: lake.lake_tiering_heartbeat,
    apis.PREPARE_LAKE_TABLE_SNAPSHOT: lake.prepare_lake_table_snapshot,
    apis.COMMIT_LAKE_TABLE_SNAPSHOT: lake.commit_lake_table_snapshot,
    apis.GET_LAKE_SNAPSHOT: lake.get_lake_snapshot,
    apis.CREATE_ACLS: acl.create_acls,
    apis.LIST_ACLS: acl.list_acls,
    apis.DROP_ACLS: acl.drop_acls,
    apis.DESCRIBE_CLUSTER_CONFIGS: cluster.describe_cluster_configs,
    apis.ALTER_CLUSTER_CONFIGS: cluster.alter_cluster_configs,
    apis.ADD_SERVER_TAG: cluster.add_server_tag,
    apis.REMOVE_SERVER_TAG: cluster.remove_server_tag,
    apis.ADD_SERVER_TAG_BY_RACK: cluster.add_server_tag_by_rack,
    apis.REMOVE_SERVER_TAG_BY_RACK: cluster.remove_server_tag_by_rack,
    apis.REBALANCE: cluster.rebalance,
    apis.LIST_REBALANCE_PROGRESS: cluster.list_rebalance_progress,
    apis.CANCEL_REBALANCE: cluster.cancel_rebalance,
    apis.GET_CLUSTER_HEALTH: cluster.get_cluster_health,
    apis.REGISTER_PRODUCER_OFFSETS: cluster.register_producer_offsets,
    apis.GET_PRODUCER_OFFSETS: cluster.get_producer_offsets,
    apis.DELETE_PRODUCER_OFFSETS: cluster.delete_producer_offsets,
    apis.GET_FILESYSTEM_SECURITY_TOKEN: cluster.get_filesystem_security_token,
    apis.LIST_REMOTE_LOG_MANIFESTS: cluster.list_remote_log_manifests,
}
_ON_BYTES: dict[Api[Any, Any], Handler] = {
    apis.PRODUCE_LOG: DirectHandler(log.produce_log),
    apis.FETCH_LOG: fetch.fetch_log,
    apis.LIMIT_SCAN: log.limit_scan,
    apis.PUT_KV: kv.put_kv,
    apis.LOOKUP: DirectHandler(kv.lookup),
    apis.PREFIX_LOOKUP: kv.prefix_lookup,
    apis.SCAN_KV: kv.scan_kv,
}
"""Requests with records, keys or rows, which are not parsed into protobuf objects."""


async def _refuse(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    raise AuthorizationError(f"{api_name(context.api_key)} is refused: no access rule is defined for it.")


def register_all(registry: dict[int, Handler]) -> None:
    """Fill the registry. An API without a right is refused."""
    registry.update({api.key: proto_handler(api, answer) for api, answer in _ON_MESSAGES.items()})
    registry.update({api.key: handler for api, handler in _ON_BYTES.items()})
    registry[apis.API_VERSIONS.key] = proto_handler(apis.API_VERSIONS, partial(session.api_versions, registry))
    for key in registry.keys() - RIGHTS.keys():
        registry[key] = _refuse
