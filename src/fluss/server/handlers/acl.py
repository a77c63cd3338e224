# SPDX-License-Identifier: Apache-2.0
"""CREATE_ACLS, LIST_ACLS, DROP_ACLS."""

from __future__ import annotations

from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata.acl import (
    CLUSTER_RESOURCE_NAME,
    AclBinding,
    AclFilter,
    OperationType,
    PermissionType,
    ResourceType,
)
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.server.handlers import rights
from fluss.server.handlers.answers import set_error
from fluss.server.handlers.request import Handler, RequestContext, proto_handler


def _binding(acl: pb.PbAclInfo) -> AclBinding:
    """A rule to store; the ANY values are for filters only."""
    try:
        resource_type = ResourceType(acl.resource_type)
        operation = OperationType(acl.operation_type)
        permission = PermissionType(acl.permission_type)
    except ValueError as error:
        raise InvalidArgumentError(f"the ACL cannot be created: {error}") from None
    if resource_type is ResourceType.ANY or operation is OperationType.ANY or permission is PermissionType.ANY:
        raise InvalidArgumentError(
            "the ACL cannot be created: ANY is for filters; name a resource type, an operation and a permission"
        )
    for field in ("resource_name", "principal_name", "principal_type", "host"):
        if not getattr(acl, field):
            raise InvalidArgumentError(f"the ACL cannot be created: its {field} is empty")
    name = acl.resource_name
    if resource_type is ResourceType.CLUSTER and name not in (CLUSTER_RESOURCE_NAME, "*"):
        raise InvalidArgumentError(
            f"the ACL cannot be created: the cluster is named '{CLUSTER_RESOURCE_NAME}', not '{name}'"
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
    wanted: list[AclBinding | FlussError] = []
    for acl in request.acl:
        try:
            wanted.append(_binding(acl))
        except FlussError as error:
            wanted.append(error)
    valid = [acl for acl in wanted if isinstance(acl, AclBinding)]
    authorizer.require_rule_change(ctx.session, rights.operation_of(ctx), dict.fromkeys(acl.resource for acl in valid))

    async def work() -> None:
        store = authorizer.store
        before = store.all()
        after = list(dict.fromkeys([*before, *valid]))
        if after != before:
            await catalog.in_storage_thread(lambda: store.write(after))
            store.apply(after)

    if valid:
        await catalog.change(work)
    response = pb.CreateAclsResponse()
    for acl, result in zip(request.acl, wanted):
        info = response.aclRes.add()
        info.acl.CopyFrom(acl)
        if isinstance(result, FlussError):
            set_error(info, result)
    return response


async def list_acls(ctx: RequestContext, request: pb.ListAclsRequest) -> pb.ListAclsResponse:
    authorizer = ctx.server.authorizer
    authorizer.require_enabled()
    wanted = _filter(request.acl_filter)
    return pb.ListAclsResponse(
        acl=[_info(acl) for acl in authorizer.store.all() if wanted.matches(acl) and rights.permits(ctx, acl.resource)]
    )


async def drop_acls(ctx: RequestContext, request: pb.DropAclsRequest) -> pb.DropAclsResponse:
    authorizer, catalog = ctx.server.authorizer, ctx.server.catalog
    authorizer.require_enabled()
    filters: list[AclFilter | FlussError] = []
    for item in request.acl_filter:
        try:
            filters.append(_filter(item))
        except FlussError as error:
            filters.append(error)
    response = pb.DropAclsResponse()

    async def work() -> None:
        store = authorizer.store
        remaining = store.all()
        dropped: list[list[AclBinding]] = []
        for wanted in filters:
            # A rule that several filters select is reported by the first. Rules about what the caller may not see are
            # left alone without a word: a refusal would tell that they exist.
            matching = [
                acl
                for acl in remaining
                if isinstance(wanted, AclFilter)
                and wanted.matches(acl)
                and authorizer.allows(ctx.session, OperationType.DESCRIBE, acl.resource)
            ]
            remaining = [acl for acl in remaining if acl not in matching]
            dropped.append(matching)
        authorizer.require_rule_change(
            ctx.session, rights.operation_of(ctx), dict.fromkeys(acl.resource for group in dropped for acl in group)
        )
        if any(dropped):
            await catalog.in_storage_thread(lambda: store.write(remaining))
            store.apply(remaining)
        for wanted, group in zip(filters, dropped):
            result = response.filter_results.add()
            if isinstance(wanted, FlussError):
                set_error(result, wanted)
            for acl in group:
                result.matching_acls.add().acl.CopyFrom(_info(acl))

    await catalog.change(work)
    return response


def register(registry: dict[int, Handler]) -> None:
    registry[apis.CREATE_ACLS.key] = proto_handler(apis.CREATE_ACLS, create_acls)
    registry[apis.LIST_ACLS.key] = proto_handler(apis.LIST_ACLS, list_acls)
    registry[apis.DROP_ACLS.key] = proto_handler(apis.DROP_ACLS, drop_acls)
