# SPDX-License-Identifier: Apache-2.0
"""Clients, users, access rules and the log of the server."""

from __future__ import annotations

from typing import Any

from fluss.console.state import Call
from fluss.errors import AuthorizationError, FlussError, InvalidArgumentError, SecurityDisabledError
from fluss.metadata import TablePath
from fluss.metadata.acl import OperationType, PermissionType, Resource

_ACLS_MAX = 2_000
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_OPERATIONS = tuple(one for one in OperationType if one not in (OperationType.ANY, OperationType.ALL))


async def clients(call: Call) -> Any:
    """The connections of the server."""
    await call.client.require_operator()
    return await call.state.inspection.ask("clients")


async def access(call: Call) -> Any:
    """Users and access rules."""
    answer: dict[str, Any] = {"listeners": {}, "acls": [], "problem": None, "users_problem": None}
    try:
        await call.client.require_operator()
        answer |= await call.state.inspection.ask("users")
    except (AuthorizationError, InvalidArgumentError) as error:
        answer["users_problem"] = error.message
    try:
        answer["acls"] = [
            {
                "principal": f"{one.principal_type}:{one.principal_name}",
                "host": one.host,
                "operation": one.operation.name,
                "resource": one.resource_type.name,
                "name": one.resource_name,
            }
            for one in (await (await call.client.admin()).list_acls())[:_ACLS_MAX]
        ]
    except SecurityDisabledError:
        answer["problem"] = "Access rules are off: every client may do everything (server option 'authorizer.enabled')."
    except FlussError as error:
        answer["problem"] = error.message
    return answer


async def effective(call: Call) -> Any:
    """What a user may do with a table, and which rule says so."""
    path = _path(call.text("table"))
    principal = call.text("principal").strip().removeprefix("User:")
    acls = await (await call.client.admin()).list_acls()
    covering = set(Resource.table(path).covering())
    found = []
    for operation in _OPERATIONS:
        rule = next(
            (
                one
                for one in acls
                if one.permission is PermissionType.ALLOW
                and one.resource in covering
                and one.operation in (operation, OperationType.ALL)
                and one.principal_name in (principal, "*")
            ),
            None,
        )
        because = f"{rule.operation.name} on {rule.resource} for {rule.principal_name}" if rule else None
        found.append({"operation": operation.name, "allowed": rule is not None, "because": because})
    return {"operations": found}


def _path(text: str) -> TablePath:
    database, dot, table = text.rpartition(".")
    return TablePath(database if dot else "fluss", table)


async def log(call: Call) -> Any:
    """The newest lines of the server's log."""
    await call.client.require_operator()
    level = call.text("level", "INFO").upper()
    if level not in _LEVELS:
        raise InvalidArgumentError(f"A level is one of {', '.join(_LEVELS)}, not {level!r:.40}.")
    return await call.state.inspection.ask("log", level=level, count=call.number("count", 200, 1, 2_000))


ROUTES = (
    ("clients", clients, False),
    ("access", access, False),
    ("access/effective", effective, False),
    ("log", log, False),
)
