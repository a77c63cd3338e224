# SPDX-License-Identifier: Apache-2.0
"""CREATE_ACLS, LIST_ACLS, DROP_ACLS."""

from __future__ import annotations

from collections.abc import Collection

from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata.acl import (
    CLUSTER_RESOURCE_NAME,
    AclBinding,
    AclFilter,
    OperationType,
    PermissionType,
    ResourceType,
)
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog.acl import ACLS_MAX
from fluss.server.handlers import rights
from fluss.server.handlers.answers import set_error
from fluss.server.handlers.request import RequestContext


def _binding(acl: pb.PbAclInfo) -> AclBinding:
    """A rule to store; a resource type or an operation ANY is for filters only. A permission ANY grants nothing."""
    try:
        resource_type = ResourceType(acl.resource_type)
        operation = OperationType(acl.operation_type)
        permission = PermissionType(acl.permission_type)
    except ValueError as error:
        raise InvalidArgumentError(f"the ACL cannot be created: {error}") from None
    if resource_type is ResourceType.ANY or operation is OperationType.ANY:
        raise InvalidArgumentError(
            "the ACL cannot be created: ANY is for filters; name a resource type and an operation"
        )
    for field in ("resource_name", "principal_name", "principal_type", "host"):
        if not getattr(acl, field):
            raise InvalidArgumentError(f"the ACL cannot be created: its {field} is empty")
    name = acl.resource_name
    if resource_type is ResourceType.CLUSTER and name not in (CLUSTER_RESOURCE_NAME, "*"):
        raise InvalidArgumentError(
            f"the ACL cannot be created: the cluster is named '{CLUSTER_RESOURCE_NAME}', not '{name}'"
        )
    if "*" in name and name != "*":
        raise InvalidArgumentError(
            f"the ACL cannot be created: '{name}' fits nothing; name one resource, '*', or the database of tables"
        )
    if resource_type is ResourceType.TABLE and name != "*" and name.count(".") != 1:
        raise InvalidArgumentError(f"the ACL cannot be created: a table is named 'database.table', not '{name}'")
    return AclBinding(resource_type, name, acl.principal_name, operation, acl.principal_type, acl.host, permission)


def _filter(acl: pb.PbAclFilter) -> AclFilter:
    def text(field: str) -> str | None:
        return str(getattr(acl, field)) if acl.HasField(field) else None

    try:
        return AclFilter(
            ResourceType(acl.resource_type),
            text("resource_name"),
            text("principal_name"),
            OperationType(acl.operation_type),
            text("principal_type"),
            text("host"),
            PermissionType(acl.permission_type),
        )
    except ValueError as error:
        raise InvalidArgumentError(f"the ACL filter is not valid: {error}") from None


def _info(acl: AclBinding) -> pb.PbAclInfo:
    return pb.PbAclInfo(
        resource_name=acl.resource_name,
        resource_type=int(acl.resource_type),
        principal_name=acl.principal_name,
        principal_type=acl.principal_type,
        host=acl.host,
        operation_type=int(acl.operation),
        permission_type=int(acl.permission),
    )


async def create_acls(ctx: RequestContext, request: pb.CreateAclsRequest) -> pb.CreateAclsResponse:
    authorizer, catalog = ctx.server.authorizer, ctx.server.catalog
    authorizer.require_enabled()
    valid: list[AclBinding] = []
    response = pb.CreateAclsResponse()
    async for acl in ctx.each(request.acl):
        info = response.aclRes.add()
        info.acl.CopyFrom(acl)
        try:
            binding = _binding(acl)
        except FlussError as error:
            set_error(info, error)
        else:
            authorizer.require_rule_change(ctx.session, rights.operation_of(ctx), binding.resource)
            valid.append(binding)

    async def work() -> None:
        before = authorizer.store.all()
        await _store(ctx, await catalog.in_storage_thread(lambda: dict.fromkeys((*before, *valid))))

    if valid:
        await catalog.change(work)
    return response


async def list_acls(ctx: RequestContext, request: pb.ListAclsRequest) -> pb.ListAclsResponse:
    authorizer = ctx.server.authorizer
    authorizer.require_enabled()
    wanted = _filter(request.acl_filter)
    response = pb.ListAclsResponse()
    async for acl in ctx.each(authorizer.store.all()):
        if wanted.matches(acl) and rights.permits(ctx, acl.resource):
            response.acl.append(_info(acl))
    return response


async def drop_acls(ctx: RequestContext, request: pb.DropAclsRequest) -> pb.DropAclsResponse:
    authorizer = ctx.server.authorizer
    authorizer.require_enabled()
    response = pb.DropAclsResponse()
    filters: list[tuple[AclFilter, pb.PbDropAclsFilterResult]] = []
    for item in request.acl_filter:
        result = response.filter_results.add()
        try:
            filters.append((_filter(item), result))
        except FlussError as error:
            set_error(result, error)

    async def work() -> None:
        remaining: list[AclBinding] = []
        async for acl in ctx.each(authorizer.store.all()):
            # A rule that several filters select is reported by the first. Rules about what the caller may not see are
            # left alone without a word: a refusal would reveal that they exist.
            visible = authorizer.allows(ctx.session, OperationType.DESCRIBE, acl.resource)
            result = next((result for wanted, result in filters if wanted.matches(acl)), None) if visible else None
            if result is None:
                remaining.append(acl)
            else:
                authorizer.require_rule_change(ctx.session, rights.operation_of(ctx), acl.resource)
                result.matching_acls.add().acl.CopyFrom(_info(acl))
        await _store(ctx, remaining)

    await ctx.server.catalog.change(work)
    return response


async def _store(ctx: RequestContext, acls: Collection[AclBinding]) -> None:
    """Make these the rules of the server. Called within a change of the catalog."""
    store = ctx.server.authorizer.store
    if len(acls) > ACLS_MAX:
        raise InvalidArgumentError(f"the server keeps at most {ACLS_MAX} ACLs, not {len(acls)}. Drop some first.")
    if len(acls) != len(store):
        store.apply(await ctx.server.catalog.in_storage_thread(lambda: store.write(acls)))
