# SPDX-License-Identifier: Apache-2.0
"""Access rules: what they are about, what they permit, and which of them a filter selects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from fluss.metadata.checks import check_optional_string, check_string, member_of
from fluss.metadata.path import TablePath

WILDCARD = "*"
CLUSTER_RESOURCE_NAME = "fluss-cluster"


class ResourceType(IntEnum):
    """What an ACL is about."""

    ANY = 1
    CLUSTER = 2
    DATABASE = 3
    TABLE = 4


class OperationType(IntEnum):
    """What an ACL permits."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DROP = 6
    ALTER = 7
    DESCRIBE = 8


class PermissionType(IntEnum):
    """Whether an ACL allows; there are no denying ACLs."""

    ANY = 1
    ALLOW = 2


@dataclass(frozen=True)
class Resource:
    """Something that access rules protect: the cluster, a database or a table."""

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

    def covering(self) -> Iterator[Resource]:
        """Yield the resources whose rules decide about this one: itself, all of its type, and its containers."""
        yield self
        yield Resource(self.type, WILDCARD)
        if self.type is ResourceType.TABLE:
            yield Resource.database(self.name.partition(".")[0])
            yield Resource(ResourceType.DATABASE, WILDCARD)
        if self.type is not ResourceType.CLUSTER:
            yield _CLUSTER
            yield Resource(ResourceType.CLUSTER, WILDCARD)


_CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)


@dataclass(frozen=True)
class AclBinding:
    """Who may do what with which resource.

    `resource_name` is `fluss-cluster`, a database name or `database.table`; `*` means all of that type. A rule for
    everyone has `*` as `principal_name` and as `principal_type`.
    """

    resource_type: ResourceType
    resource_name: str
    principal_name: str
    operation: OperationType
    principal_type: str = "User"
    host: str = WILDCARD
    permission: PermissionType = PermissionType.ALLOW

    def __post_init__(self) -> None:
        _check_rule(self)
        for name in ("resource_name", "principal_name", "principal_type", "host"):
            check_string(f"{name} of an AclBinding", getattr(self, name))

    @property
    def resource(self) -> Resource:
        return Resource(self.resource_type, self.resource_name)


@dataclass(frozen=True)
class AclFilter:
    """Which ACLs are meant; what is left out matches anything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    principal_name: str | None = None
    operation: OperationType = OperationType.ANY
    principal_type: str | None = None
    host: str | None = None
    permission: PermissionType = PermissionType.ANY

    def __post_init__(self) -> None:
        _check_rule(self)
        for name in ("resource_name", "principal_name", "principal_type", "host"):
            check_optional_string(f"{name} of an AclFilter", getattr(self, name))

    def matches(self, acl: AclBinding) -> bool:
        """Return whether the filter selects this binding."""
        # With any type, Apache Fluss does not look at the name, and its procedures for Flink send "any". A name that
        # says more is respected here: a filter that drops rules must not be taken for a wider one.
        name = None if self.resource_type is ResourceType.ANY and self.resource_name == "any" else self.resource_name
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and name in (None, acl.resource_name)
            and self.principal_type in (None, acl.principal_type)
            and self.principal_name in (None, acl.principal_name)
            and self.host in (None, acl.host)
            and self.operation in (OperationType.ANY, acl.operation)
            and self.permission in (PermissionType.ANY, acl.permission)
        )


def _check_rule(rule: AclBinding | AclFilter) -> None:
    kind = type(rule).__name__
    for name, members in (
        ("resource_type", ResourceType),
        ("operation", OperationType),
        ("permission", PermissionType),
    ):
        # True would pass for 1, which means any: a filter that drops rules would drop all of them.
        object.__setattr__(rule, name, member_of(members, f"{name} of an {kind}", getattr(rule, name)))
