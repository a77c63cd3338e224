# SPDX-License-Identifier: Apache-2.0
"""Access: users, access rules and what follows from them, and the log of the server."""

from __future__ import annotations

from typing import Any

from fluss.console.state import Call
from fluss.errors import AuthorizationError, FlussError, InvalidArgumentError, SecurityDisabledError
from fluss.metadata import TablePath, table_path_of
from fluss.metadata.acl import WILDCARD, AclBinding, AclFilter, OperationType, Resource, ResourceType
from fluss.tools.access import OPERATIONS, grant_right

_ACLS_MAX = 2_000
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_OPERATIONS = tuple(one for one in OperationType if one not in (OperationType.ANY, OperationType.ALL))


async def access(call: Call) -> Any:
    """Users and access rules."""
    answer: dict[str, Any] = {
        "listeners": {},
        "acls": [],
        "problem": None,
        "users_problem": None,
        "operations": OPERATIONS,
    }
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
    """What a user may do with a table, and why."""
    path = table_path_of(call.text("table"))
    user = call.text("principal").strip().removeprefix("User:")
    acls = await (await call.client.admin()).list_acls()
    if call.state.inspection.embedded:
        reasons = (await call.state.inspection.ask("rights", user=user, table=str(path)))["reasons"]
    else:
        reasons = {one.name: _rule_for(user, one, path, acls) for one in _OPERATIONS}
    found = [
        {"operation": one.name, "allowed": reasons[one.name] is not None, "because": reasons[one.name]}
        for one in _OPERATIONS
    ]
    return {"operations": found, "by_rules_only": not call.state.inspection.embedded}


def _rule_for(user: str, operation: OperationType, path: TablePath, acls: list[AclBinding]) -> str | None:
    """The rule that allows something. Super users of another server are not known."""
    covering = set(Resource.table(path).covering())
    for rule in acls:
        named = (rule.principal_type, rule.principal_name) in (("User", user), (WILDCARD, WILDCARD))
        # Every right on a resource includes DESCRIBE.
        grants = rule.operation in (operation, OperationType.ALL) or operation is OperationType.DESCRIBE
        if named and grants and rule.host == WILDCARD and rule.resource in covering:
            return f"{rule.operation.name} on {rule.resource} for {rule.principal_name}"
    return None


async def grant(call: Call) -> Any:
    """Allow a user something; the server decides who may do that."""
    call.require_writable()
    user = call.text("principal").strip().removeprefix("User:")
    if not user:
        raise InvalidArgumentError("Enter a user.")
    given = user, call.text("operation"), call.text("resource").strip()
    return {"right": await call.client.in_thread(lambda db: grant_right(db, *given))}


async def revoke(call: Call) -> Any:
    """Drop a rule, which is given as `access` lists it."""
    call.require_writable()
    kind, _, name = call.text("principal").partition(":")
    try:
        resource, operation = ResourceType[call.text("resource")], OperationType[call.text("operation")]
    except KeyError as error:
        raise InvalidArgumentError(f"There is no operation or resource {error}.") from None
    rule = AclFilter(resource, call.text("name"), name, operation, kind, call.text("host"))
    if not await (await call.client.admin()).drop_acls([rule]):
        raise InvalidArgumentError("There is no such rule any more. Load the page again.")
    return {}


async def log(call: Call) -> Any:
    """The newest lines of the server's log."""
    await call.client.require_operator()
    level = call.text("level", "INFO").upper()
    if level not in _LEVELS:
        raise InvalidArgumentError(f"A level is one of {', '.join(_LEVELS)}, not {level!r:.40}.")
    return await call.state.inspection.ask("log", level=level, count=call.number("count", 200, 1, 2_000))


ROUTES = (
    ("access", access, False),
    ("access/effective", effective, False),
    ("access/grant", grant, True),
    ("access/revoke", revoke, True),
    ("log", log, False),
)
