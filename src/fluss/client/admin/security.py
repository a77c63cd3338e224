# SPDX-License-Identifier: Apache-2.0
"""Admin calls about access, cluster options, server tags, rebalancing and health."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from fluss.client.admin.base import AdminBase
from fluss.client.admin.types import ClusterHealth, HealthStatus
from fluss.client.requests import raise_for_code
from fluss.metadata.acl import AclBinding, AclFilter, OperationType, PermissionType, ResourceType
from fluss.metadata.info import AlterConfig, AlterConfigOp, ConfigEntry
from fluss.protocol import apis
from fluss.protocol import messages as pb

MessageT = TypeVar("MessageT", bound=Message)


class SecurityAdmin(AdminBase):
    """ACLs, cluster options, health."""

    async def create_acls(self, bindings: Iterable[AclBinding], *, timeout: float | None = None) -> None:
        """Allow what the bindings say. Needs an authorizer on the server."""
        request = pb.CreateAclsRequest(acl=[_message(pb.PbAclInfo, binding) for binding in bindings])
        response = await self._change(apis.CREATE_ACLS, request, idempotent=True, timeout=timeout)
        for result in response.aclRes:
            raise_for_code(result, f"ACL {_acl(result.acl)}")

    async def list_acls(self, acl_filter: AclFilter | None = None, *, timeout: float | None = None) -> list[AclBinding]:
        """The ACLs that match; all of them without a filter."""
        request = pb.ListAclsRequest(acl_filter=_message(pb.PbAclFilter, acl_filter or AclFilter()))
        return [_acl(acl) for acl in (await self._ask(apis.LIST_ACLS, request, timeout=timeout)).acl]

    async def drop_acls(self, filters: Iterable[AclFilter], *, timeout: float | None = None) -> list[AclBinding]:
        """Drop the ACLs that match any of the filters; gives those that were dropped."""
        request = pb.DropAclsRequest(acl_filter=[_message(pb.PbAclFilter, one) for one in filters])
        response = await self._change(apis.DROP_ACLS, request, idempotent=True, timeout=timeout)
        dropped = []
        for result in response.filter_results:
            raise_for_code(result)
            for match in result.matching_acls:
                raise_for_code(match, f"ACL {_acl(match.acl)}")
                dropped.append(_acl(match.acl))
        return dropped

    async def describe_cluster_configs(self, *, timeout: float | None = None) -> list[ConfigEntry]:
        """The options of the cluster in force, and where each comes from."""
        response = await self._ask(apis.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest(), timeout=timeout)
        return [
            ConfigEntry(c.config_key, c.config_value if c.HasField("config_value") else None, c.config_source)
            for c in response.configs
        ]

    async def alter_cluster_configs(
        self, changes: Iterable[AlterConfig] | Mapping[str, str | None], *, timeout: float | None = None
    ) -> None:
        """Change options of the running cluster: `AlterConfig` objects, or a dict (value None: back to the default)."""
        if isinstance(changes, Mapping):
            changes = [
                AlterConfig(key, value, AlterConfigOp.DELETE if value is None else AlterConfigOp.SET)
                for key, value in changes.items()
            ]
        request = pb.AlterClusterConfigsRequest()
        repeatable = True
        for change in changes:
            request.alter_configs.add(config_key=change.key, config_value=change.value, op_type=int(change.op))
            repeatable = repeatable and change.op in (AlterConfigOp.SET, AlterConfigOp.DELETE)
        await self._change(apis.ALTER_CLUSTER_CONFIGS, request, idempotent=repeatable, timeout=timeout)

    async def get_cluster_health(self, *, timeout: float | None = None) -> ClusterHealth:
        """Replicas and leaders, wanted and present. Needs a server that has this call."""
        r = await self._ask(apis.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest(), timeout=timeout)
        status = next((known for known in HealthStatus if known == r.status), HealthStatus.UNKNOWN)
        return ClusterHealth(
            r.num_replicas, r.in_sync_replicas, r.num_leader_replicas, r.active_leader_replicas, status
        )


def _message(kind: type[MessageT], acl: AclBinding | AclFilter) -> MessageT:
    return kind(
        resource_name=acl.resource_name,
        resource_type=int(acl.resource_type),
        principal_name=acl.principal_name,
        principal_type=acl.principal_type,
        host=acl.host,
        operation_type=int(acl.operation),
        permission_type=int(acl.permission),
    )


def _acl(acl: Any) -> AclBinding:
    return AclBinding(
        ResourceType(acl.resource_type),
        acl.resource_name,
        acl.principal_name,
        OperationType(acl.operation_type),
        acl.principal_type,
        acl.host,
        PermissionType(acl.permission_type),
    )
