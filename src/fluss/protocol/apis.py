# SPDX-License-Identifier: Apache-2.0
"""The table of APIs: key, name, versions, who serves it, and the two messages.

`APIS` holds every API whose messages a client or our server can speak. Pure server-to-server APIs of a real cluster are
only named (`SERVER_TO_SERVER_API_NAMES`), so that logs and errors can say what a peer asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from fluss.protocol import fluss_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class ServerType(IntEnum):
    """Role of a server; the values are those of `ApiVersionsResponse.server_type`."""

    COORDINATOR = 1
    TABLET = 2


COORDINATOR_ONLY: Final = frozenset({ServerType.COORDINATOR})
TABLET_ONLY: Final = frozenset({ServerType.TABLET})
BOTH: Final = frozenset({ServerType.COORDINATOR, ServerType.TABLET})


@dataclass(frozen=True, slots=True)
class Api(Generic[RequestT, ResponseT]):
    """One remote procedure: what it is called, which versions exist, who serves it and what travels."""

    key: int
    name: str
    min_version: int
    max_version: int
    roles: frozenset[ServerType]
    public: bool
    request: type[RequestT]
    response: type[ResponseT]

    def __str__(self) -> str:
        return f"{self.name} ({self.key})"


_table: dict[int, Api[Any, Any]] = {}


def _api(
    key: int,
    name: str,
    roles: frozenset[ServerType],
    request: type[RequestT],
    response: type[ResponseT],
    *,
    max_version: int = 0,
    public: bool = True,
) -> Api[RequestT, ResponseT]:
    api = Api(key, name, 0, max_version, roles, public, request, response)
    _table[key] = api
    return api


API_VERSIONS = _api(1000, "API_VERSIONS", BOTH, pb.ApiVersionsRequest, pb.ApiVersionsResponse)
CREATE_DATABASE = _api(1001, "CREATE_DATABASE", COORDINATOR_ONLY, pb.CreateDatabaseRequest, pb.CreateDatabaseResponse)
DROP_DATABASE = _api(1002, "DROP_DATABASE", COORDINATOR_ONLY, pb.DropDatabaseRequest, pb.DropDatabaseResponse)
LIST_DATABASES = _api(1003, "LIST_DATABASES", BOTH, pb.ListDatabasesRequest, pb.ListDatabasesResponse)
DATABASE_EXISTS = _api(1004, "DATABASE_EXISTS", BOTH, pb.DatabaseExistsRequest, pb.DatabaseExistsResponse)
CREATE_TABLE = _api(1005, "CREATE_TABLE", COORDINATOR_ONLY, pb.CreateTableRequest, pb.CreateTableResponse)
DROP_TABLE = _api(1006, "DROP_TABLE", COORDINATOR_ONLY, pb.DropTableRequest, pb.DropTableResponse)
GET_TABLE_INFO = _api(1007, "GET_TABLE_INFO", BOTH, pb.GetTableInfoRequest, pb.GetTableInfoResponse)
LIST_TABLES = _api(1008, "LIST_TABLES", BOTH, pb.ListTablesRequest, pb.ListTablesResponse)
LIST_PARTITION_INFOS = _api(
    1009, "LIST_PARTITION_INFOS", BOTH, pb.ListPartitionInfosRequest, pb.ListPartitionInfosResponse
)
TABLE_EXISTS = _api(1010, "TABLE_EXISTS", BOTH, pb.TableExistsRequest, pb.TableExistsResponse)
GET_TABLE_SCHEMA = _api(1011, "GET_TABLE_SCHEMA", BOTH, pb.GetTableSchemaRequest, pb.GetTableSchemaResponse)
GET_METADATA = _api(1012, "GET_METADATA", BOTH, pb.MetadataRequest, pb.MetadataResponse)
PRODUCE_LOG = _api(1014, "PRODUCE_LOG", TABLET_ONLY, pb.ProduceLogRequest, pb.ProduceLogResponse, max_version=1)
FETCH_LOG = _api(1015, "FETCH_LOG", TABLET_ONLY, pb.FetchLogRequest, pb.FetchLogResponse)
PUT_KV = _api(1016, "PUT_KV", TABLET_ONLY, pb.PutKvRequest, pb.PutKvResponse, max_version=3)
LOOKUP = _api(1017, "LOOKUP", TABLET_ONLY, pb.LookupRequest, pb.LookupResponse, max_version=1)
LIST_OFFSETS = _api(1021, "LIST_OFFSETS", TABLET_ONLY, pb.ListOffsetsRequest, pb.ListOffsetsResponse)
GET_LATEST_KV_SNAPSHOTS = _api(
    1023, "GET_LATEST_KV_SNAPSHOTS", BOTH, pb.GetLatestKvSnapshotsRequest, pb.GetLatestKvSnapshotsResponse
)
GET_KV_SNAPSHOT_METADATA = _api(
    1024, "GET_KV_SNAPSHOT_METADATA", BOTH, pb.GetKvSnapshotMetadataRequest, pb.GetKvSnapshotMetadataResponse
)
GET_FILESYSTEM_SECURITY_TOKEN = _api(
    1025,
    "GET_FILESYSTEM_SECURITY_TOKEN",
    BOTH,
    pb.GetFileSystemSecurityTokenRequest,
    pb.GetFileSystemSecurityTokenResponse,
)
INIT_WRITER = _api(1026, "INIT_WRITER", TABLET_ONLY, pb.InitWriterRequest, pb.InitWriterResponse)
COMMIT_LAKE_TABLE_SNAPSHOT = _api(
    1030,
    "COMMIT_LAKE_TABLE_SNAPSHOT",
    COORDINATOR_ONLY,
    pb.CommitLakeTableSnapshotRequest,
    pb.CommitLakeTableSnapshotResponse,
    public=False,
)
GET_LAKE_SNAPSHOT = _api(1032, "GET_LAKE_SNAPSHOT", BOTH, pb.GetLakeSnapshotRequest, pb.GetLakeSnapshotResponse)
LIMIT_SCAN = _api(1033, "LIMIT_SCAN", TABLET_ONLY, pb.LimitScanRequest, pb.LimitScanResponse)
PREFIX_LOOKUP = _api(1034, "PREFIX_LOOKUP", TABLET_ONLY, pb.PrefixLookupRequest, pb.PrefixLookupResponse, max_version=1)
GET_DATABASE_INFO = _api(1035, "GET_DATABASE_INFO", BOTH, pb.GetDatabaseInfoRequest, pb.GetDatabaseInfoResponse)
CREATE_PARTITION = _api(
    1036, "CREATE_PARTITION", COORDINATOR_ONLY, pb.CreatePartitionRequest, pb.CreatePartitionResponse
)
DROP_PARTITION = _api(1037, "DROP_PARTITION", COORDINATOR_ONLY, pb.DropPartitionRequest, pb.DropPartitionResponse)
AUTHENTICATE = _api(1038, "AUTHENTICATE", BOTH, pb.AuthenticateRequest, pb.AuthenticateResponse)
CREATE_ACLS = _api(1039, "CREATE_ACLS", COORDINATOR_ONLY, pb.CreateAclsRequest, pb.CreateAclsResponse)
LIST_ACLS = _api(1040, "LIST_ACLS", BOTH, pb.ListAclsRequest, pb.ListAclsResponse)
DROP_ACLS = _api(1041, "DROP_ACLS", COORDINATOR_ONLY, pb.DropAclsRequest, pb.DropAclsResponse)
LAKE_TIERING_HEARTBEAT = _api(
    1042,
    "LAKE_TIERING_HEARTBEAT",
    COORDINATOR_ONLY,
    pb.LakeTieringHeartbeatRequest,
    pb.LakeTieringHeartbeatResponse,
    public=False,
)
ALTER_TABLE = _api(1044, "ALTER_TABLE", COORDINATOR_ONLY, pb.AlterTableRequest, pb.AlterTableResponse)
DESCRIBE_CLUSTER_CONFIGS = _api(
    1045, "DESCRIBE_CLUSTER_CONFIGS", BOTH, pb.DescribeClusterConfigsRequest, pb.DescribeClusterConfigsResponse
)
ALTER_CLUSTER_CONFIGS = _api(
    1046, "ALTER_CLUSTER_CONFIGS", COORDINATOR_ONLY, pb.AlterClusterConfigsRequest, pb.AlterClusterConfigsResponse
)
ADD_SERVER_TAG = _api(1047, "ADD_SERVER_TAG", COORDINATOR_ONLY, pb.AddServerTagRequest, pb.AddServerTagResponse)
REMOVE_SERVER_TAG = _api(
    1048, "REMOVE_SERVER_TAG", COORDINATOR_ONLY, pb.RemoveServerTagRequest, pb.RemoveServerTagResponse
)
REBALANCE = _api(1049, "REBALANCE", COORDINATOR_ONLY, pb.RebalanceRequest, pb.RebalanceResponse)
LIST_REBALANCE_PROGRESS = _api(
    1050, "LIST_REBALANCE_PROGRESS", COORDINATOR_ONLY, pb.ListRebalanceProgressRequest, pb.ListRebalanceProgressResponse
)
CANCEL_REBALANCE = _api(
    1051, "CANCEL_REBALANCE", COORDINATOR_ONLY, pb.CancelRebalanceRequest, pb.CancelRebalanceResponse
)
PREPARE_LAKE_TABLE_SNAPSHOT = _api(
    1052,
    "PREPARE_LAKE_TABLE_SNAPSHOT",
    COORDINATOR_ONLY,
    pb.PrepareLakeTableSnapshotRequest,
    pb.PrepareLakeTableSnapshotResponse,
    public=False,
)
REGISTER_PRODUCER_OFFSETS = _api(
    1053,
    "REGISTER_PRODUCER_OFFSETS",
    COORDINATOR_ONLY,
    pb.RegisterProducerOffsetsRequest,
    pb.RegisterProducerOffsetsResponse,
)
GET_PRODUCER_OFFSETS = _api(
    1054, "GET_PRODUCER_OFFSETS", COORDINATOR_ONLY, pb.GetProducerOffsetsRequest, pb.GetProducerOffsetsResponse
)
DELETE_PRODUCER_OFFSETS = _api(
    1055, "DELETE_PRODUCER_OFFSETS", COORDINATOR_ONLY, pb.DeleteProducerOffsetsRequest, pb.DeleteProducerOffsetsResponse
)
ACQUIRE_KV_SNAPSHOT_LEASE = _api(
    1056,
    "ACQUIRE_KV_SNAPSHOT_LEASE",
    COORDINATOR_ONLY,
    pb.AcquireKvSnapshotLeaseRequest,
    pb.AcquireKvSnapshotLeaseResponse,
)
RELEASE_KV_SNAPSHOT_LEASE = _api(
    1057,
    "RELEASE_KV_SNAPSHOT_LEASE",
    COORDINATOR_ONLY,
    pb.ReleaseKvSnapshotLeaseRequest,
    pb.ReleaseKvSnapshotLeaseResponse,
)
DROP_KV_SNAPSHOT_LEASE = _api(
    1058, "DROP_KV_SNAPSHOT_LEASE", COORDINATOR_ONLY, pb.DropKvSnapshotLeaseRequest, pb.DropKvSnapshotLeaseResponse
)
GET_TABLE_STATS = _api(1059, "GET_TABLE_STATS", TABLET_ONLY, pb.GetTableStatsRequest, pb.GetTableStatsResponse)
ALTER_DATABASE = _api(1060, "ALTER_DATABASE", COORDINATOR_ONLY, pb.AlterDatabaseRequest, pb.AlterDatabaseResponse)
SCAN_KV = _api(1061, "SCAN_KV", TABLET_ONLY, pb.ScanKvRequest, pb.ScanKvResponse)
GET_CLUSTER_HEALTH = _api(1062, "GET_CLUSTER_HEALTH", BOTH, pb.GetClusterHealthRequest, pb.GetClusterHealthResponse)
LIST_REMOTE_LOG_MANIFESTS = _api(
    1063,
    "LIST_REMOTE_LOG_MANIFESTS",
    COORDINATOR_ONLY,
    pb.ListRemoteLogManifestsRequest,
    pb.ListRemoteLogManifestsResponse,
)
LIST_KV_SNAPSHOTS = _api(
    1064, "LIST_KV_SNAPSHOTS", COORDINATOR_ONLY, pb.ListKvSnapshotsRequest, pb.ListKvSnapshotsResponse
)
ADD_SERVER_TAG_BY_RACK = _api(
    1065, "ADD_SERVER_TAG_BY_RACK", COORDINATOR_ONLY, pb.AddServerTagByRackRequest, pb.AddServerTagByRackResponse
)
REMOVE_SERVER_TAG_BY_RACK = _api(
    1066,
    "REMOVE_SERVER_TAG_BY_RACK",
    COORDINATOR_ONLY,
    pb.RemoveServerTagByRackRequest,
    pb.RemoveServerTagByRackResponse,
)

SERVER_TO_SERVER_API_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1013: "UPDATE_METADATA",
        1018: "NOTIFY_LEADER_AND_ISR",
        1019: "STOP_REPLICA",
        1020: "ADJUST_ISR",
        1022: "COMMIT_KV_SNAPSHOT",
        1027: "COMMIT_REMOTE_LOG_MANIFEST",
        1028: "NOTIFY_REMOTE_LOG_OFFSETS",
        1029: "NOTIFY_KV_SNAPSHOT_OFFSET",
        1031: "NOTIFY_LAKE_TABLE_OFFSET",
        1043: "CONTROLLED_SHUTDOWN",
    }
)

APIS: Final[Mapping[int, Api[Any, Any]]] = MappingProxyType(_table)

CHANGING_APIS: Final = frozenset(
    {
        *(CREATE_DATABASE.key, ALTER_DATABASE.key, DROP_DATABASE.key),
        *(CREATE_TABLE.key, ALTER_TABLE.key, DROP_TABLE.key, CREATE_PARTITION.key, DROP_PARTITION.key),
        *(INIT_WRITER.key, PRODUCE_LOG.key, PUT_KV.key),
        *(CREATE_ACLS.key, DROP_ACLS.key, ALTER_CLUSTER_CONFIGS.key),
        *(ADD_SERVER_TAG_BY_RACK.key, REMOVE_SERVER_TAG_BY_RACK.key),
        *(ADD_SERVER_TAG.key, REMOVE_SERVER_TAG.key, REBALANCE.key, CANCEL_REBALANCE.key),
        *(COMMIT_LAKE_TABLE_SNAPSHOT.key, PREPARE_LAKE_TABLE_SNAPSHOT.key, LAKE_TIERING_HEARTBEAT.key),
        *(REGISTER_PRODUCER_OFFSETS.key, DELETE_PRODUCER_OFFSETS.key),
    }
)
"""The APIs that change tables or the cluster. A lookup may too, if it inserts what is missing."""


def api_name(key: int) -> str:
    """A name for any key, also one we have never heard of; for logs and errors."""
    api = APIS.get(key)
    if api is not None:
        return api.name
    return SERVER_TO_SERVER_API_NAMES.get(key, f"UNKNOWN_API_{key}")
