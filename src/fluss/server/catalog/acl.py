# SPDX-License-Identifier: Apache-2.0
"""Who may do what: access rules, their store, and the check every handler makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fluss.errors import AuthorizationError, ConfigError, SecurityDisabledError
from fluss.metadata import TablePath
from fluss.metadata.acl import WILDCARD, AclBinding, OperationType, PermissionType, Resource, ResourceType
from fluss.server.auth import Principal
from fluss.server.catalog.storage import CatalogStorage
from fluss.server.config import ServerConfig

ACLS_MAX = 10_000
"""All of them are checked when one is dropped, and written with every change."""

ResourceLike = Resource | TablePath | str
"""A resource, a table path, or the name of a database."""


def as_resource(resource: ResourceLike) -> Resource:
    if isinstance(resource, Resource):
        return resource
    return Resource.database(resource) if isinstance(resource, str) else Resource.table(resource)


def binding_from_json(doc: Mapping[str, Any]) -> AclBinding:
    """Decode a rule, which is stored as its fields; raises KeyError, TypeError or ValueError for anything else."""
    return AclBinding(
        ResourceType(doc["resource_type"]),
        str(doc["resource_name"]),
        str(doc["principal_name"]),
        OperationType(doc["operation"]),
        str(doc["principal_type"]),
        str(doc["host"]),
        PermissionType(doc["permission"]),
    )


Rules = Mapping[Resource, Sequence[AclBinding]]
"""Access rules by the resource they are about."""


def by_resource(acls: Iterable[AclBinding]) -> Rules:
    """Group rules as `AclStore.apply` takes them."""
    grouped: dict[Resource, list[AclBinding]] = {}
    for acl in acls:
        grouped.setdefault(acl.resource, []).append(acl)
    return grouped


class AclStore:
    """All rules, by the resource they are about."""

    def __init__(self, storage: CatalogStorage) -> None:
        self._storage = storage
        found, self.damage = storage.read(
            "acls", lambda content: by_resource(binding_from_json(acl) for acl in content["acls"])
        )
        # If they are damaged no rule is trusted, so only super users get in: closed is the safe side.
        self._by_resource: Rules = found or {}

    def all(self) -> list[AclBinding]:
        return [acl for acls in self._by_resource.values() for acl in acls]

    def __len__(self) -> int:
        return sum(map(len, self._by_resource.values()))

    def of(self, resource: Resource) -> Sequence[AclBinding]:
        return self._by_resource.get(resource, ())

    def write(self, acls: Iterable[AclBinding]) -> Rules:
        """Store rules, and return them as `apply` takes them. Runs in a thread: there may be many."""
        self._storage.write("acls", {"acls": [vars(acl) for acl in acls]})
        return by_resource(acls)

    def apply(self, rules: Rules) -> None:
        self._by_resource = rules


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
        self.on_denied: Callable[[Caller, OperationType, Resource], None] | None = None
        """Called with every refusal, for the audit log."""
        self.enabled = bool(config.boolean("authorizer.enabled"))
        self._internal_listener = config.internal_listener
        self._ignore_case = bool(config.boolean("security.acl.principal.ignore-case"))
        self._super_users = frozenset(self._fold(*user) for user in parse_super_users(config.text("super.users")))

    def _fold(self, kind: str, name: str) -> tuple[str, str]:
        return (kind.lower(), name.lower()) if self._ignore_case else (kind, name)

    def require_enabled(self) -> None:
        if not self.enabled:
            raise SecurityDisabledError("No Authorizer is configured. Set 'authorizer.enabled' to true in the server.")

    def trusts(self, caller: Caller) -> bool:
        """Return whether a connection came through the internal listener, which is not checked."""
        return caller.listener == self._internal_listener

    def allows(self, caller: Caller, operation: OperationType, resource: ResourceLike) -> bool:
        if not self.enabled or self.trusts(caller):
            return True
        principal = self._fold(caller.principal.type, caller.principal.name)
        return principal in self._super_users or self._rule(principal, caller.host, operation, resource) is not None

    def reason(self, caller: Caller, operation: OperationType, resource: ResourceLike) -> str | None:
        """Return why a caller may do something, in words; None if it may not."""
        if not self.enabled:
            return "access rules are off"
        if self.trusts(caller):
            return "the internal listener is not checked"
        principal = self._fold(caller.principal.type, caller.principal.name)
        if principal in self._super_users:
            return "super user"
        rule = self._rule(principal, caller.host, operation, resource)
        return None if rule is None else f"{rule.operation.name} on {rule.resource} for {rule.principal_name}"

    def _rule(
        self, principal: tuple[str, str], host: str, operation: OperationType, resource: ResourceLike
    ) -> AclBinding | None:
        return next(
            (
                acl
                for covering in as_resource(resource).covering()
                for acl in self.store.of(covering)
                if self._grants(acl, principal, host, operation)
            ),
            None,
        )

    def _grants(self, acl: AclBinding, principal: tuple[str, str], host: str, operation: OperationType) -> bool:
        if acl.permission is not PermissionType.ALLOW or acl.host not in (WILDCARD, host):
            return False
        matches_all = acl.principal_type == WILDCARD and acl.principal_name == WILDCARD
        if not matches_all and self._fold(acl.principal_type, acl.principal_name) != principal:
            return False
        # Every right on a resource includes DESCRIBE.
        return acl.operation in (OperationType.ALL, operation) or operation is OperationType.DESCRIBE

    def refusal(self, caller: Caller, operation: OperationType, resource: ResourceLike) -> AuthorizationError:
        """Report that a right is missing, and make the error that says so."""
        wanted = as_resource(resource)
        if self.on_denied is not None:
            self.on_denied(caller, operation, wanted)
        # The words of Apache Fluss: programs look for them.
        principal = f"FlussPrincipal{{name='{caller.principal.name}', type='{caller.principal.type}'}}"
        return AuthorizationError(
            f"Principal {principal} have no authorization to operate {operation.name} on resource "
            f"Resource{{type={wanted.type.name}, name='{wanted.name}'}} : no access rule allows it."
        )

    def require(self, caller: Caller, operation: OperationType, resource: ResourceLike) -> None:
        """Raise AuthorizationError without the right. The error names the resource: only for one the caller named."""
        if not self.allows(caller, operation, resource):
            raise self.refusal(caller, operation, resource)

    def require_rule_change(self, caller: Caller, operation: OperationType, resource: Resource) -> None:
        """Raise AuthorizationError without the right on a resource, or on the database of a table."""
        if resource.type is ResourceType.TABLE:
            resource = Resource.database(resource.name.partition(".")[0])
        self.require(caller, operation, resource)
