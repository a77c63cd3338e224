# SPDX-License-Identifier: Apache-2.0
"""Who may do what: access rules, their store, and the check every handler makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from fluss.errors import AuthorizationError, ConfigError, SecurityDisabledError
from fluss.metadata import TablePath
from fluss.server import disk
from fluss.server.auth import Principal
from fluss.server.catalog.documents import Damage, DamagedDocumentError
from fluss.server.catalog.storage import CatalogStorage
from fluss.server.config import ServerConfig

WILDCARD = "*"
CLUSTER_NAME = "fluss-cluster"
USER = "User"


class ResourceType(IntEnum):
    ANY = 1
    CLUSTER = 2
    DATABASE = 3
    TABLE = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DROP = 6
    ALTER = 7
    DESCRIBE = 8


class Permission(IntEnum):
    ANY = 1
    ALLOW = 2


@dataclass(frozen=True)
class Resource:
    type: ResourceType
    name: str

    @classmethod
    def cluster(cls) -> Resource:
        return _CLUSTER

    @classmethod
    def database(cls, name: str) -> Resource:
        return cls(ResourceType.DATABASE, name)

    @classmethod
    def table(cls, path: TablePath) -> Resource:
        return cls(ResourceType.TABLE, f"{path.database_name}.{path.table_name}")

    def __str__(self) -> str:
        return f"{self.type.name} {self.name}"

    def covering(self) -> Iterable[Resource]:
        """The resources whose rules decide about this one: itself, all of its kind, and what contains it."""
        yield self
        yield Resource(self.type, WILDCARD)
        if self.type is ResourceType.TABLE:
            yield Resource.database(self.name.partition(".")[0])
            yield Resource(ResourceType.DATABASE, WILDCARD)
        if self.type is not ResourceType.CLUSTER:
            yield _CLUSTER
            yield Resource(ResourceType.CLUSTER, WILDCARD)


_CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)

ResourceLike = Resource | TablePath | str
"""A resource, a table path, or the name of a database."""


def as_resource(resource: ResourceLike) -> Resource:
    if isinstance(resource, Resource):
        return resource
    return Resource.database(resource) if isinstance(resource, str) else Resource.table(resource)


@dataclass(frozen=True)
class AclBinding:
    resource: Resource
    principal_type: str
    principal_name: str
    host: str
    operation: Operation
    permission: Permission = Permission.ALLOW

    def to_json(self) -> dict[str, Any]:
        return {
            "resource_type": int(self.resource.type),
            "resource_name": self.resource.name,
            "principal_type": self.principal_type,
            "principal_name": self.principal_name,
            "host": self.host,
            "operation": int(self.operation),
            "permission": int(self.permission),
        }

    @classmethod
    def from_json(cls, doc: Mapping[str, Any]) -> AclBinding:
        return cls(
            Resource(ResourceType(doc["resource_type"]), str(doc["resource_name"])),
            str(doc["principal_type"]),
            str(doc["principal_name"]),
            str(doc["host"]),
            Operation(doc["operation"]),
            Permission(doc["permission"]),
        )


@dataclass(frozen=True)
class AclFilter:
    """Selects rules; None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    principal_type: str | None = None
    principal_name: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource.type)
            and self.resource_name in (None, acl.resource.name)
            and self.principal_type in (None, acl.principal_type)
            and self.principal_name in (None, acl.principal_name)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )


class AclStore:
    """All rules, by the resource they are about."""

    def __init__(self, storage: CatalogStorage) -> None:
        self._storage = storage
        self.damage: Damage | None = None
        self._by_resource: dict[Resource, tuple[AclBinding, ...]] = {}
        path = storage.root / "acls.doc"
        if disk.exists(path):
            try:
                self.apply(AclBinding.from_json(doc) for doc in storage.store.read(path)[1]["acls"])
            except DamagedDocumentError as error:
                # No rule is trusted then, so only super users get in: closed is the safe side.
                self.damage = error.damage
            except (KeyError, TypeError, ValueError) as error:
                self.damage = Damage(path, f"cannot be understood: {error}")

    def all(self) -> list[AclBinding]:
        return [acl for acls in self._by_resource.values() for acl in acls]

    def of(self, resource: Resource) -> tuple[AclBinding, ...]:
        return self._by_resource.get(resource, ())

    def write(self, acls: Iterable[AclBinding]) -> None:
        self._storage.write("acls", {"acls": [acl.to_json() for acl in acls]})

    def apply(self, acls: Iterable[AclBinding]) -> None:
        grouped: dict[Resource, list[AclBinding]] = {}
        for acl in acls:
            grouped.setdefault(acl.resource, []).append(acl)
        self._by_resource = {resource: tuple(group) for resource, group in grouped.items()}


class Caller(Protocol):
    """What a check needs to know about a connection."""

    principal: Principal
    host: str
    listener: str


def parse_super_users(text: str | None) -> frozenset[tuple[str, str]]:
    users: set[tuple[str, str]] = set()
    for part in (text or "").split(";"):
        if not part.strip():
            continue
        kind, colon, name = part.strip().partition(":")
        if not colon or not kind.strip() or not name.strip():
            raise ConfigError(f"server option 'super.users' has the entry {part.strip()!r}, expected Type:name.")
        users.add((kind.strip(), name.strip()))
    return frozenset(users)


class Authorizer:
    """Decides about every request; everything is allowed unless ``authorizer.enabled`` is true."""

    def __init__(self, store: AclStore, config: ServerConfig) -> None:
        self.store = store
        self.enabled = bool(config.boolean("authorizer.enabled"))
        self._internal_listener = config.internal_listener
        self._ignore_case = bool(config.boolean("security.acl.principal.ignore-case"))
        self._super_users = frozenset(self._fold(*user) for user in parse_super_users(config.text("super.users")))

    def _fold(self, kind: str, name: str) -> tuple[str, str]:
        return (kind.lower(), name.lower()) if self._ignore_case else (kind, name)

    def require_enabled(self) -> None:
        if not self.enabled:
            raise SecurityDisabledError("No authorizer is configured on this server (option 'authorizer.enabled').")

    def allows(self, caller: Caller, operation: Operation, resource: ResourceLike) -> bool:
        if not self.enabled or caller.listener == self._internal_listener:
            return True
        principal = self._fold(caller.principal.type, caller.principal.name)
        if principal in self._super_users:
            return True
        return any(
            self._grants(acl, principal, caller.host, operation)
            for covering in as_resource(resource).covering()
            for acl in self.store.of(covering)
        )

    def _grants(self, acl: AclBinding, principal: tuple[str, str], host: str, operation: Operation) -> bool:
        if acl.permission is not Permission.ALLOW or acl.host not in (WILDCARD, host):
            return False
        anybody = acl.principal_type == WILDCARD and acl.principal_name == WILDCARD
        if not anybody and self._fold(acl.principal_type, acl.principal_name) != principal:
            return False
        # Whoever may do anything at all with a resource may also look at it.
        return acl.operation in (Operation.ALL, operation) or operation is Operation.DESCRIBE

    def require(self, caller: Caller, operation: Operation, resource: ResourceLike) -> None:
        if not self.allows(caller, operation, resource):
            raise AuthorizationError(
                f"Principal {caller.principal} has no authorization to operate {operation.name} on resource "
                f"{as_resource(resource)}."
            )

    check = require

    def require_acl_change(self, caller: Caller, resources: Iterable[Resource]) -> None:
        """Rules are changed by those who may do everything with the resource; for a table its database decides."""
        for resource in resources:
            if resource.type is ResourceType.TABLE:
                resource = Resource.database(resource.name.partition(".")[0])
            self.require(caller, Operation.ALL, resource)
