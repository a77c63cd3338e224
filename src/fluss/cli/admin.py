# SPDX-License-Identifier: Apache-2.0
"""Operating a server: ``fluss status``, ``doctor``, ``offsets``, ``snapshots``, ``acl``, ``config``."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from fluss._text import escaped
from fluss.cli.common import (
    CliTarget,
    NotFound,
    at_option,
    connected,
    pairs_of,
    print_json,
    print_result,
    print_rows,
    table_argument,
)
from fluss.cli.show import echo, facts, size_text

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("error", "red")}


@click.command()
@click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option("--every", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two looks.")
@connected
def status(link: CliTarget, watch: bool, every: float) -> None:
    """Show the state of the server: version, address, security, tables, rows, disk, memory, lag of the lake, warnings.

    Example: fluss status --watch
    """
    from fluss.tools.status import server_status

    with link.database() as db:
        while True:
            found = server_status(db)
            if link.as_json:
                print_json(asdict(found))
            else:
                if watch and sys.stdout.isatty():
                    click.clear()
                _show_status(asdict(found))
            if not watch:
                return
            sys.stdout.flush()
            try:
                time.sleep(every)
            except KeyboardInterrupt:
                return


def _show_status(found: dict[str, Any]) -> None:
    def known(value: Any) -> str:
        return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    facts(
        [
            ("address", found["address"]),
            ("version", found["version"] or "unknown"),
            ("health", found["health"]),
            ("security", found["security"]),
            ("databases", found["databases"]),
            ("tables", found["tables"]),
            ("rows", known(found["rows"])),
            ("disk", size_text(found["disk_bytes"])),
            ("disk free", size_text(found["disk_free_bytes"])),
            ("memory", size_text(found["memory_bytes"])),
            ("connections", known(found["connections"])),
            ("backup", _backup_text(found)),
            ("lake lag", known(found["lake_lag_rows"]) if found["lake_tables"] else "no table has a lake"),
        ]
    )
    for warning in found["warnings"]:
        echo(click.style("warning", fg="yellow") + f"  {escaped(warning)}")


def _backup_text(found: dict[str, Any]) -> str:
    if found["backup_behind_seconds"] is None:
        return "not continuous"
    return f"{found['backup_behind_seconds']:.0f} s and {size_text(found['backup_behind_bytes'])} behind"


@click.command()
@table_argument()
@at_option("Offsets at a time")
@connected
def offsets(link: CliTarget, table: str, at: datetime | None) -> None:
    """Show the first and the next offset of every bucket of TABLE, or the offsets at a time.

    Example: fluss offsets orders --at 10m
    """
    from fluss.metadata import OffsetSpec
    from fluss.tools.status import bucket_offsets, offsets_at

    with link.database() as db:
        opened = db.table(table)
        first = bucket_offsets(db, opened, OffsetSpec.earliest())
        last = bucket_offsets(db, opened, OffsetSpec.latest())
        then = {} if at is None else offsets_at(db, opened, at)
    rows = [
        {"partition": key[0], "bucket": key[1].bucket_id, "earliest": first.get(key), "latest": end}
        | ({} if at is None else {"at": then.get(key)})
        for key, end in last.items()
    ]
    print_rows(link.as_json, rows, ["partition", "bucket", "earliest", "latest", *([] if at is None else ["at"])])


@click.command()
@table_argument()
@connected
def snapshots(link: CliTarget, table: str) -> None:
    """Show the snapshots of TABLE: of its buckets, if it has a primary key, and the newest one in the lake.

    Example: fluss snapshots orders
    """
    from fluss.tools.status import table_snapshots

    with link.database() as db:
        found = table_snapshots(db, db.table(table))
    print_rows(link.as_json, found, ["kind", "partition", "bucket", "id", "offset"], {"id": "snapshot"})


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="fluss-data",
    show_default=True,
    help="Folder of a server here.",
)
@connected
def doctor(link: CliTarget, data_dir: str) -> None:
    """Check this machine and the server, and say how to fix what is wrong. Exit code 1 if something is.

    Example: fluss doctor
    """
    from fluss.tools.doctor import examine

    found = examine(*link.resolve(), data_dir)
    if link.as_json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            text, colour = _MARKS[one.state]
            fix = f"; {one.fix}" if one.fix else ""
            echo(f"{click.style(text.ljust(7), fg=colour)}  {escaped(f'{one.name}: {one.finding}{fix}')}")
    if any(one.state == "error" for one in found):
        raise click.exceptions.Exit(1)


@click.group()
def acl() -> None:
    """List, grant and revoke access rights."""


_OPERATIONS = click.Choice(["all", "read", "write", "create", "drop", "alter", "describe"])


@acl.command(name="ls")
@click.option("--on", metavar="RESOURCE", help="Only of this one: cluster, db:NAME or a table.")
@connected
def acl_ls(link: CliTarget, on: str | None) -> None:
    """List the access rights.

    Example: fluss acl ls --on orders
    """
    from fluss.tools.access import list_rights

    with link.database() as db:
        found = list_rights(db, on)
    print_rows(link.as_json, found, ["principal", "operation", "resource", "host"])


def _change(link: CliTarget, grant: bool, user: str, operation: str, resource: str, host: str) -> None:
    from fluss.tools.access import grant_right, revoke_rights

    with link.database() as db:
        if grant:
            done = [grant_right(db, user, operation, resource, host)]
        else:
            done = revoke_rights(db, user, operation, resource, host)
    if not done:
        raise NotFound(f"{user} has no such right on {resource}; see fluss acl ls")
    print_result(link.as_json, done, f"{user} {'may now' if grant else 'may no longer'} {operation} {resource}")


@acl.command(name="grant")
@click.argument("principal")
@click.argument("operation", type=_OPERATIONS, metavar="OPERATION")
@click.argument("resource")
@click.option("--host", default="*", show_default=True, help="Only from this address.")
@connected
def acl_grant(link: CliTarget, principal: str, operation: str, resource: str, host: str) -> None:
    """Allow the user PRINCIPAL to do OPERATION with RESOURCE: a table, db:NAME or cluster.

    Example: fluss acl grant alice read orders
    """
    _change(link, True, principal, operation, resource, host)


@acl.command(name="revoke")
@click.argument("principal")
@click.argument("operation", type=_OPERATIONS, metavar="OPERATION")
@click.argument("resource")
@click.option("--host", default="*", show_default=True, help="Only from this address.")
@connected
def acl_revoke(link: CliTarget, principal: str, operation: str, resource: str, host: str) -> None:
    """Take back what `fluss acl grant` allowed.

    Example: fluss acl revoke alice read orders
    """
    _change(link, False, principal, operation, resource, host)


@click.group()
def config() -> None:
    """List, set and reset options of the running server."""


@config.command(name="ls")
@connected
def config_ls(link: CliTarget) -> None:
    """List the options that are set, and where each comes from.

    Example: fluss config ls
    """
    from fluss.tools.status import server_options

    with link.database() as db:
        found = [{"key": one.key, "value": one.value, "source": one.source} for one in server_options(db)]
    print_rows(link.as_json, found, ["key", "value", "source"], {"key": "option"})


@config.command(name="set")
@click.argument("settings", nargs=-1, required=True)
@connected
def config_set(link: CliTarget, settings: tuple[str, ...]) -> None:
    """Set options while the server runs: SETTINGS are KEY=VALUE.

    Example: fluss config set kv.snapshot.interval=5min
    """
    _configure(link, dict(pairs_of("set", settings)))


@config.command(name="reset")
@click.argument("keys", nargs=-1, required=True)
@connected
def config_reset(link: CliTarget, keys: tuple[str, ...]) -> None:
    """Set options back to what the server was started with.

    Example: fluss config reset kv.snapshot.interval
    """
    _configure(link, dict.fromkeys(keys))


def _configure(link: CliTarget, changes: dict[str, str | None]) -> None:
    from fluss.db.internals import admin_call

    with link.database() as db:
        admin_call(db, lambda admin: admin.alter_cluster_configs(changes))
    print_result(
        link.as_json,
        changes,
        ", ".join(f"{key} reset" if value is None else f"{key} = {value}" for key, value in changes.items()),
    )
