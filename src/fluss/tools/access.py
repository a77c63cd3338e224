# SPDX-License-Identifier: Apache-2.0
"""Access rights as users write them: who may do what with a table, ``db:NAME`` or ``cluster``.

``*`` is every user, or all tables; ``db:*`` all databases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss._text import did_you_mean
from fluss.db.internals import admin_call, table_path
from fluss.errors import InvalidArgumentError
from fluss.metadata.acl import WILDCARD, AclBinding, AclFilter, OperationType, Resource, ResourceType

if TYPE_CHECKING:
    from fluss.db.blocking import Database

OPERATIONS = ("all", "read", "write", "create", "drop", "alter", "describe")

Right = dict[str, str]
"""One access right: its principal, operation, resource and host."""


def list_rights(db: Database, resource: str | None = None) -> list[Right]:
    """The rights on a resource, or all."""
    wanted = AclFilter()
    if resource is not None:
        found = _resource(db, resource)
        wanted = AclFilter(resource_type=found.type, resource_name=found.name)
    bindings = admin_call(db, lambda admin: admin.list_acls(wanted))
    return sorted(map(_right, bindings), key=lambda one: (one["resource"], one["principal"], one["operation"]))


def grant_right(db: Database, principal: str, operation: str, resource: str, host: str = "*") -> Right:
    """Allow a user something, or everyone with ``*``."""
    found = _resource(db, resource)
    kind = WILDCARD if principal == WILDCARD else "User"
    binding = AclBinding(found.type, found.name, principal, _operation(operation), kind, host)
    admin_call(db, lambda admin: admin.create_acls([binding]))
    return _right(binding)


def revoke_rights(db: Database, principal: str, operation: str, resource: str, host: str = "*") -> list[Right]:
    """Take back what was allowed; gives what was there."""
    found = _resource(db, resource)
    wanted = AclFilter(found.type, found.name, principal, _operation(operation), host=host)
    return [_right(one) for one in admin_call(db, lambda admin: admin.drop_acls([wanted]))]


def _operation(text: str) -> OperationType:
    if text.lower() not in OPERATIONS:
        raise InvalidArgumentError(f"there is no operation {text!r}{did_you_mean(text, OPERATIONS)}")
    return OperationType[text.upper()]


def _resource(db: Database, text: str) -> Resource:
    if text == WILDCARD:
        return Resource(ResourceType.TABLE, WILDCARD)
    if text == "cluster":
        return Resource.cluster()
    if text.startswith("db:"):
        return Resource.database(text[3:])
    return Resource.table(table_path(db, text))


def _right(binding: AclBinding) -> Right:
    resource = binding.resource_name
    if binding.resource_type is ResourceType.CLUSTER:
        resource = "cluster"
    elif binding.resource_type is ResourceType.DATABASE:
        resource = f"db:{resource}"
    operation = binding.operation.name.lower()
    return {"principal": binding.principal_name, "operation": operation, "resource": resource, "host": binding.host}
