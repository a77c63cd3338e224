# SPDX-License-Identifier: Apache-2.0
"""The server: health, figures of the last minutes, tables, and who reads and writes them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncGenerator
from typing import Any

from fluss.console.clients import Client
from fluss.console.inspection import Sampler
from fluss.console.settings import TABLES_MAX
from fluss.console.state import Call
from fluss.console.table_stats import visible_tables
from fluss.errors import AuthorizationError, FlussError, InvalidArgumentError, NetworkError
from fluss.metadata import TablePath
from fluss.net.deadline import wait_for
from fluss.tools.bench import SAMPLE_TABLE
from fluss.tools.flows import FLOW_COLUMNS, FLOWS_TABLE
from fluss.tools.groups import describe_groups

_GROUPS_MAX = 500
_FLOWS_MAX = 200
_CHECK_S = 2.0
"""How long is waited for whether the user may still see the figures, for each sample."""


async def tables(call: Call) -> Any:
    """All databases with their tables, by name; kind and number of rows as far as they are counted."""
    await call.client.require_connected()
    admin = await call.client.admin()
    names = await _names(call)
    figures = call.client.table_stats.known(admin, _paths(names))
    databases = []
    for database, found in names.items():
        known = {name: figures.get(TablePath(database, name), {}) for name in found}
        shown = [{"name": name, "kind": one.get("kind"), "rows": one.get("rows")} for name, one in known.items()]
        databases.append({"name": database, "tables": shown})
    return {"databases": databases}


async def _names(call: Call) -> dict[str, list[str]]:
    known = (await call.state.inspection.ask("databases"))["names"] if call.state.inspection.embedded else ()
    return await visible_tables(await call.client.admin(), known)


def _paths(names: dict[str, list[str]]) -> list[TablePath]:
    return [TablePath(database, name) for database, found in names.items() for name in found][:TABLES_MAX]


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
    answer["samples"] = call.state.samples.running
    answer["servers"] = [str(node) for node in await admin.get_server_nodes()][:100]
    paths = _paths(await _names(call))
    figures = await call.client.table_stats.counted(admin, paths)
    answer["tables"] = [{"name": str(path), **figures[path]} for path in paths if path in figures]
    return answer


async def figures(call: Call) -> AsyncGenerator[dict[str, Any], None]:
    """Follow the figures of the server: samples of the last minutes, then each new one."""
    try:
        await call.client.require_operator()
    except AuthorizationError:
        raise AuthorizationError("Figures of the server need the right to describe the cluster.") from None
    if not call.state.inspection.has_figures:
        raise InvalidArgumentError(
            "This server was not started together with the console. Start 'fluss ui' with "
            "--metrics-url http://host:9249/metrics to see its figures."
        )
    return _samples(call.client, call.state.sampler)


async def _samples(client: Client, sampler: Sampler) -> AsyncGenerator[dict[str, Any], None]:
    number = 0
    while True:
        samples = await sampler.after(number)
        with contextlib.suppress(asyncio.TimeoutError, NetworkError):  # the server may be back soon
            await wait_for(client.require_operator(), _CHECK_S)
        if samples:
            number = samples[-1]["number"]
        yield {"samples": samples, "problem": sampler.problem}


async def clients(call: Call) -> Any:
    """The connections of the server."""
    await call.client.require_operator()
    return await call.state.inspection.ask("clients")


async def consumers(call: Call) -> Any:
    """What reads which table and how far it is: groups of followers, and clients of the embedded server."""
    answer: dict[str, Any] = {"groups": [], "readers": [], "problem": None}
    found = await call.client.in_thread(describe_groups)
    answer["groups"] = [one.to_json() for one in found[:_GROUPS_MAX]]
    try:
        await call.client.require_operator()
        clients = (await call.state.inspection.ask("clients"))["clients"]
        about = ("peer", "software", "user", "idle_s")
        answer["readers"] = [
            {**{name: one[name] for name in about}, **read} for one in clients for read in one["reads"]
        ]
    except (AuthorizationError, InvalidArgumentError) as error:
        answer["problem"] = error.message
    return answer


async def flows(call: Call) -> Any:
    """What Spark fills tables from, as of the last micro-batches."""
    found: list[dict[str, Any]] = []
    for database, names in (await _names(call)).items():
        if FLOWS_TABLE in names:
            with contextlib.suppress(FlussError):  # hidden from this user, or another table of that name
                table = await call.client.table(f"{database}.{FLOWS_TABLE}")
                found += (await table.to_arrow(FLOW_COLUMNS, limit=_FLOWS_MAX)).to_pylist()
    now = dt.datetime.now(dt.timezone.utc)
    flows = [{"age_s": (now - one.pop("updated")).total_seconds(), **one} for one in found[:_FLOWS_MAX]]
    return {"flows": sorted(flows, key=lambda one: (one["target"], one["source"]))}


async def samples(call: Call) -> Any:
    """Start or stop a writer that fills a sample table."""
    call.require_writable()
    if call.body.get("run"):
        await call.state.samples.start(call.client)
    else:
        await call.state.samples.stop()
    return {"running": call.state.samples.running, "table": SAMPLE_TABLE}


ROUTES = (
    ("tables", tables, False),
    ("health", health, False),
    ("clients", clients, False),
    ("consumers", consumers, False),
    ("flows", flows, False),
    ("samples", samples, True),
)
