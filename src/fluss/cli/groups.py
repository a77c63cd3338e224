# SPDX-License-Identifier: Apache-2.0
"""Groups of followers: ``fluss groups``, ``fluss group show``, ``reset``, ``delete``, ``allow``."""

from __future__ import annotations

from typing import Any

import click

from fluss.cli.common import CliTarget, confirm, connected, note, parse_path, print_json, print_result
from fluss.cli.show import echo, grid

_table_option = click.option("--table", metavar="TABLE", help="Only what the group knows of this table.")


@click.command()
@connected
def groups(link: CliTarget) -> None:
    """List the groups that follow tables, with their members and how far behind they are.

    Example: fluss groups
    """
    from fluss.tools.groups import describe_groups

    with link.database() as db:
        found = describe_groups(db)
    if link.as_json:
        print_json([one.to_json() for one in found])
    elif not found:
        note('no groups; a group begins with table.follow(group="NAME"), or "fluss tail TABLE --group NAME"')
    else:
        names = ["group", "table", "members", "buckets", "lag"]
        grid(names, [[one.group, one.table, len(one.members), len(one.buckets), one.lag] for one in found])


@click.group()
def group() -> None:
    """Look at a group of followers, move it, or delete it."""


@group.command(name="show")
@click.argument("name")
@_table_option
@connected
def group_show(link: CliTarget, name: str, table: str | None) -> None:
    """Show the members of the group NAME, and how far it is with each bucket.

    Example: fluss group show billing
    """
    from fluss.tools.groups import describe_groups

    with link.database() as db:
        found = describe_groups(db, name, None if table is None else parse_path(table), ages=True)
    if link.as_json:
        print_json([one.to_json() for one in found])
        return
    for one in found:
        echo(f"{one.group} follows {one.table}: {len(one.members)} members, {one.lag} changes behind")
        if one.members:
            columns = ["member", "host", "buckets", "seen"]
            grid(columns, [[m.member, m.host, m.buckets, f"{m.seen_s:.1f} s ago"] for m in one.members])
        cells: list[list[Any]] = []
        for bucket in one.buckets:
            position = "rows" if bucket.position is None else bucket.position
            age = "" if bucket.lag_s is None else f"{bucket.lag_s:.1f} s"
            owner = bucket.member or ""
            cells.append([bucket.partition or "", bucket.bucket, owner, position, bucket.end, bucket.lag, age])
        if cells:
            grid(["partition", "bucket", "member", "position", "end", "lag", "age"], cells)


@group.command(name="reset")
@click.argument("name")
@click.option(
    "--to",
    required=True,
    metavar="START",
    help="full (all rows first), earliest, latest, an offset, 10m (minutes ago), a time, or the text of a position.",
)
@_table_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connected
def group_reset(link: CliTarget, name: str, to: str, table: str | None, yes: bool) -> None:
    """Let the group NAME go on elsewhere. Stop its members first.

    Example: fluss group reset billing --to 10m
    """
    from fluss.tools.groups import reset_group

    confirm(f"Let group {name} go on at {to}, and give up where it is?", yes=yes)
    with link.database() as db:
        found = reset_group(db, name, to, None if table is None else parse_path(table))
    text = f"group {name} goes on at {to}, {found[0].lag} changes behind the end of {found[0].table}"
    print_result(link.as_json, [one.to_json() for one in found], text)


@group.command(name="delete")
@click.argument("name")
@_table_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connected
def group_delete(link: CliTarget, name: str, table: str | None, yes: bool) -> None:
    """Delete the group NAME: who follows with it again begins anew. Stop its members first.

    Example: fluss group delete billing --yes
    """
    from fluss.tools.groups import delete_group

    confirm(f"Delete group {name} and how far it is?", yes=yes)
    with link.database() as db:
        tables = delete_group(db, name, None if table is None else parse_path(table))
    print_result(link.as_json, {"group": name, "deleted": True, "tables": tables}, f"group {name} deleted")


@group.command(name="allow")
@click.argument("principal")
@connected
def group_allow(link: CliTarget, principal: str) -> None:
    """Let PRINCIPAL be a member of groups, on a server with access rights. Creates the table that groups are kept in.

    Example: fluss group allow alice
    """
    from fluss.tools.groups import allow_groups

    with link.database() as db:
        rights = allow_groups(db, principal)
    print_result(
        link.as_json, rights, f"{principal} may now be a member of groups; give it READ on the tables to follow"
    )
