# SPDX-License-Identifier: Apache-2.0
"""The table of APIs: key, name, versions and the two messages.

`APIS` holds every API whose messages a client or our server can speak. Pure server-to-server APIs of a real cluster are
only named (`SERVER_TO_SERVER_API_NAMES`), so that logs and errors can say what a peer asked for.
"""

from __future__ import annotations

import re
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


@dataclass(frozen=True, slots=True)
class Api(Generic[RequestT, ResponseT]):
    """One remote procedure: what it is called, which versions exist and what travels."""

    key: int
    name: str
    min_version: int
    max_version: int
    request: type[RequestT]
    response: type[ResponseT]

    def __str__(self) -> str:
        return f"{self.name} ({self.key})"


_table: dict[int, Api[Any, Any]] = {}


def _api(
    key: int, request: type[RequestT], response: type[ResponseT], *, name: str = "", max_version: int = 0
) -> Api[RequestT, ResponseT]:
    """Enter an API; without a name it has that of its messages."""
    words = request.__name__.removesuffix("Request")
    api = Api(key, name or re.sub("(?<=[a-z])(?=[A-Z])", "_", words).upper(), 0, max_version, request, response)
    _table[key] = api
    return api


API_VERSIONS = _api(1000, pb.ApiVersionsRequest, pb.ApiVersionsResponse)
CREATE_DATABASE = _api(1001, pb.CreateDatabaseRequest, pb.CreateDatabaseResponse)
DROP_DATABASE = _api(1002, pb.DropDatabaseRequest, pb.DropDatabaseResponse)
LIST_DATABASES = _api(1003, pb.ListDatabasesRequest, pb.ListDatabasesResponse)
DATABASE_EXISTS = _api(1004, pb.DatabaseExistsRequest, pb.DatabaseExistsResponse)
CREATE_TABLE = _api(1005, pb.CreateTableRequest, pb.CreateTableResponse)
DROP_TABLE = _api(1006, pb.DropTableRequest, pb.DropTableResponse)
GET_TABLE_INFO = _api(1007, pb.GetTableInfoRequest, pb.GetTableInfoResponse)
LIST_TABLES = _api(1008, pb.ListTablesRequest, pb.ListTablesResponse)
LIST_PARTITION_INFOS = _api(1009, pb.ListPartitionInfosRequest, pb.ListPartitionInfosResponse)
TABLE_EXISTS = _api(1010, pb.TableExistsRequest, pb.TableExistsResponse)
GET_TABLE_SCHEMA = _api(1011, pb.GetTableSchemaRequest, pb.GetTableSchemaResponse)
GET_METADATA = _api(1012, pb.MetadataRequest, pb.MetadataResponse, name="GET_METADATA")
PRODUCE_LOG = _api(1014, pb.ProduceLogRequest, pb.ProduceLogResponse, max_version=1)
FETCH_LOG = _api(1015, pb.FetchLogRequest, pb.FetchLogResponse)
PUT_KV = _api(1016, pb.PutKvRequest, pb.PutKvResponse, max_version=3)
LOOKUP = _api(1017, pb.LookupRequest, pb.LookupResponse, max_version=1)
LIST_OFFSETS = _api(1021, pb.ListOffsetsRequest, pb.ListOffsetsResponse)
GET_LATEST_KV_SNAPSHOTS = _api(1023, pb.GetLatestKvSnapshotsRequest, pb.GetLatestKvSnapshotsResponse)
GET_KV_SNAPSHOT_METADATA = _api(1024, pb.GetKvSnapshotMetadataRequest, pb.GetKvSnapshotMetadataResponse)
GET_FILESYSTEM_SECURITY_TOKEN = _api(
    1025,
    pb.GetFileSystemSecurityTokenRequest,
    pb.GetFileSystemSecurityTokenResponse,
    name="GET_FILESYSTEM_SECURITY_TOKEN",
)
INIT_WRITER = _api(1026, pb.InitWriterRequest, pb.InitWriterResponse)
COMMIT_LAKE_TABLE_SNAPSHOT = _api(1030, pb.CommitLakeTableSnapshotRequest, pb.CommitLakeTableSnapshotResponse)
GET_LAKE_SNAPSHOT = _api(1032, pb.GetLakeSnapshotRequest, pb.GetLakeSnapshotResponse)
LIMIT_SCAN = _api(1033, pb.LimitScanRequest, pb.LimitScanResponse)
PREFIX_LOOKUP = _api(1034, pb.PrefixLookupRequest, pb.PrefixLookupResponse, max_version=1)
GET_DATABASE_INFO = _api(1035, pb.GetDatabaseInfoRequest, pb.GetDatabaseInfoResponse)
CREATE_PARTITION = _api(1036, pb.CreatePartitionRequest, pb.CreatePartitionResponse)
DROP_PARTITION = _api(1037, pb.DropPartitionRequest, pb.DropPartitionResponse)
AUTHENTICATE = _api(1038, pb.AuthenticateRequest, pb.AuthenticateResponse)
CREATE_ACLS = _api(1039, pb.CreateAclsRequest, pb.CreateAclsResponse)
LIST_ACLS = _api(1040, pb.ListAclsRequest, pb.ListAclsResponse)
DROP_ACLS = _api(1041, pb.DropAclsRequest, pb.DropAclsResponse)
LAKE_TIERING_HEARTBEAT = _api(1042, pb.LakeTieringHeartbeatRequest, pb.LakeTieringHeartbeatResponse)
ALTER_TABLE = _api(1044, pb.AlterTableRequest, pb.AlterTableResponse)
DESCRIBE_CLUSTER_CONFIGS = _api(1045, pb.DescribeClusterConfigsRequest, pb.DescribeClusterConfigsResponse)
ALTER_CLUSTER_CONFIGS = _api(1046, pb.AlterClusterConfigsRequest, pb.AlterClusterConfigsResponse)
ADD_SERVER_TAG = _api(1047, pb.AddServerTagRequest, pb.AddServerTagResponse)
REMOVE_SERVER_TAG = _api(1048, pb.RemoveServerTagRequest, pb.RemoveServerTagResponse)
REBALANCE = _api(1049, pb.RebalanceRequest, pb.RebalanceResponse)
LIST_REBALANCE_PROGRESS = _api(1050, pb.ListRebalanceProgressRequest, pb.ListRebalanceProgressResponse)
CANCEL_REBALANCE = _api(1051, pb.CancelRebalanceRequest, pb.CancelRebalanceResponse)
PREPARE_LAKE_TABLE_SNAPSHOT = _api(1052, pb.PrepareLakeTableSnapshotRequest, pb.PrepareLakeTableSnapshotResponse)
REGISTER_PRODUCER_OFFSETS = _api(1053, pb.RegisterProducerOffsetsRequest, pb.RegisterProducerOffsetsResponse)
GET_PRODUCER_OFFSETS = _api(1054, pb.GetProducerOffsetsRequest, pb.GetProducerOffsetsResponse)
DELETE_PRODUCER_OFFSETS = _api(1055, pb.DeleteProducerOffsetsRequest, pb.DeleteProducerOffsetsResponse)
ACQUIRE_KV_SNAPSHOT_LEASE = _api(1056, pb.AcquireKvSnapshotLeaseRequest, pb.AcquireKvSnapshotLeaseResponse)
RELEASE_KV_SNAPSHOT_LEASE = _api(1057, pb.ReleaseKvSnapshotLeaseRequest, pb.ReleaseKvSnapshotLeaseResponse)
DROP_KV_SNAPSHOT_LEASE = _api(1058, pb.DropKvSnapshotLeaseRequest, pb.DropKvSnapshotLeaseResponse)
GET_TABLE_STATS = _api(1059, pb.GetTableStatsRequest, pb.GetTableStatsResponse)
ALTER_DATABASE = _api(1060, pb.AlterDatabaseRequest, pb.AlterDatabaseResponse)
SCAN_KV = _api(1061, pb.ScanKvRequest, pb.ScanKvResponse)
GET_CLUSTER_HEALTH = _api(1062, pb.GetClusterHealthRequest, pb.GetClusterHealthResponse)
LIST_REMOTE_LOG_MANIFESTS = _api(1063, pb.ListRemoteLogManifestsRequest, pb.ListRemoteLogManifestsResponse)
LIST_KV_SNAPSHOTS = _api(1064, pb.ListKvSnapshotsRequest, pb.ListKvSnapshotsResponse)
ADD_SERVER_TAG_BY_RACK = _api(1065, pb.AddServerTagByRackRequest, pb.AddServerTagByRackResponse)
REMOVE_SERVER_TAG_BY_RACK = _api(1066, pb.RemoveServerTagByRackRequest, pb.RemoveServerTagByRackResponse)

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
