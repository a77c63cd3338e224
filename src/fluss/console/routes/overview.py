# SPDX-License-Identifier: Apache-2.0
"""The server: health, figures of the last minutes, tables, clients, users, access rules and log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fluss.console.figures import visible_tables
from fluss.console.settings import TABLES_MAX
from fluss.console.state import Call, event_stream
from fluss.errors import AuthorizationError, FlussError, InvalidArgumentError, SecurityDisabledError
from fluss.metadata import TablePath
from fluss.metadata.acl import OperationType, PermissionType, Resource


async def tables(call: Call) -> Any:
    """All databases with their tables, by name; kind and number of rows as far as they are counted."""
    await call.client.require_connected()
    admin = await call.client.admin()
    names = await visible_tables(admin)
    figures = call.client.figures.known(admin, _paths(names))
    return {
        "databases": [
            {"name": database, "tables": [{"name": name, **_known(figures, database, name)} for name in found]}
            for database, found in names.items()
        ]
    }


def _paths(names: dict[str, list[str]]) -> list[TablePath]:
    return [TablePath(database, name) for database, found in names.items() for name in found][:TABLES_MAX]


def _known(figures: dict[TablePath, dict[str, Any]], database: str, name: str) -> dict[str, Any]:
    found = figures.get(TablePath(database, name), {})
    return {"kind": found.get("kind"), "rows": found.get("rows")}


async def health(call: Call) -> Any:
    """The cluster in one word, its servers, and the tables with their rows."""
    await call.client.require_connected()
    admin = await call.client.admin()
    answer: dict[str, Any] = {"problem": None, "status": "UNKNOWN", "servers": [], "replicas": None}
    try:
        state = await admin.get_cluster_health()
        answer["status"] = state.status.name
        answer["replicas"] = [state.in_sync_replicas, state.num_replicas]
    except FlussError as error:
        answer["problem"] = error.message
    answer["servers"] = [str(node) for node in await admin.get_server_nodes()][:100]
    paths = _paths(await visible_tables(admin))
    figures = await call.client.figures.counted(admin, paths)
    answer["tables"] = [{"name": str(path), **figures[path]} for path in paths if path in figures]
    return answer


async def stream(call: Call) -> Any:
    """The samples of the last minutes, then each new one."""
    state = call.state
    try:
        await call.client.require_operator()
        allowed = True
    except AuthorizationError:
        allowed = False

    async def events() -> AsyncIterator[dict[str, Any]]:
        if not allowed:
            yield {"samples": [], "problem": "Figures of the server need the right to describe the cluster."}
            return
        number = 0
        while True:
            samples = await state.sampler.after(number)
            if samples:
                number = samples[-1]["number"]
            problem = state.sampler.problem
            if not samples and problem is None and await state.inspection.figures() is None:
                yield {
                    "samples": [],
                    "problem": "This server was not started together with the console. Start 'fluss ui' with "
                    "--metrics-url http://host:9249/metrics to see its figures.",
                }
                return
            yield {"samples": samples, "problem": problem}

    return event_stream(state, events())


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
    ("tables", tables, False),
    ("health", health, False),
    ("overview/stream", stream, False),
    ("clients", clients, False),
    ("access", access, False),
    ("access/effective", effective, False),
    ("log", log, False),
)
