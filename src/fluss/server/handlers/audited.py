# SPDX-License-Identifier: Apache-2.0
"""Which APIs change something that an operator wants to read about, and how the audit log names it.

Names only: values of properties and options may be secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from fluss.metadata.acl import OperationType, ResourceType
from fluss.metadata.info import AlterConfigOp
from fluss.protocol import apis

Describe = Callable[[Any, Any], str]
"""Takes request and response; an empty text means that nothing was changed."""


def _table(request: Any, _: Any = None) -> str:
    return f"{request.table_path.database_name}.{request.table_path.table_name}"


def _partition(request: Any, _: Any) -> str:
    values = ",".join(f"{pair.key}={pair.value}" for pair in request.partition_spec.partition_key_values)
    return f"{_table(request)} ({values})"


def _enum_name(kind: type[AlterConfigOp | OperationType | ResourceType], value: int) -> str:
    return kind(value).name if value in kind._value2member_map_ else str(value)


def _keys(changes: Iterable[Any]) -> str:
    return ", ".join(f"{_enum_name(AlterConfigOp, item.op_type)} {item.config_key}" for item in changes)


def _altered_table(request: Any, _: Any) -> str:
    parts = [_keys(request.config_changes)] if request.config_changes else []
    parts += [f"ADD COLUMN {item.column_name}" for item in request.add_columns]
    return f"{_table(request)}: {', '.join(parts)}"


def _rule(acl: Any) -> str:
    resource = f"{_enum_name(ResourceType, acl.resource_type)} {acl.resource_name}"
    who = f"{acl.principal_type}:{acl.principal_name} from {acl.host}"
    return f"{_enum_name(OperationType, acl.operation_type)} on {resource} for {who}"


def _created_rules(_: Any, response: Any) -> str:
    return "; ".join(_rule(item.acl) for item in response.aclRes if not item.HasField("error_code"))


def _dropped_rules(_: Any, response: Any) -> str:
    return "; ".join(_rule(match.acl) for result in response.filter_results for match in result.matching_acls)


def _tag(request: Any, _: Any) -> str:
    return f"tag {request.server_tag} of servers {list(request.server_ids)}"


AUDITED: Final[Mapping[int, Describe]] = MappingProxyType(
    {
        apis.CREATE_DATABASE.key: lambda request, _: str(request.database_name),
        apis.DROP_DATABASE.key: lambda request, _: f"{request.database_name}{' CASCADE' if request.cascade else ''}",
        apis.ALTER_DATABASE.key: lambda request, _: f"{request.database_name}: {_keys(request.config_changes)}",
        apis.CREATE_TABLE.key: _table,
        apis.DROP_TABLE.key: _table,
        apis.ALTER_TABLE.key: _altered_table,
        apis.CREATE_PARTITION.key: _partition,
        apis.DROP_PARTITION.key: _partition,
        apis.CREATE_ACLS.key: _created_rules,
        apis.DROP_ACLS.key: _dropped_rules,
        apis.ALTER_CLUSTER_CONFIGS.key: lambda request, _: _keys(request.alter_configs),
        apis.ADD_SERVER_TAG.key: _tag,
        apis.REMOVE_SERVER_TAG.key: _tag,
        apis.REBALANCE.key: lambda request, _: f"goals {list(request.goals)}",
    }
)
