# SPDX-License-Identifier: Apache-2.0
"""Changing tables: ``fluss alter``, ``fluss partitions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fluss.cli.common import CliTarget, check_table, confirm, connected, note, pairs_of, print_json, table_argument
from fluss.cli.show import grid

if TYPE_CHECKING:
    from fluss import Database, Table

_ACTIONS = ("add", "drop", "rename", "set", "reset")
_NOUNS = ("column", "property", "properties")


@click.command()
@table_argument()
@click.argument("action", type=click.Choice(_ACTIONS), metavar="ACTION")
@click.argument("what", nargs=-1, required=True)
@click.option("--comment", help="The comment of a new column.")
@click.option("--yes", is_flag=True, help="Do not ask before a column is dropped.")
@connected
def alter(link: CliTarget, table: str, action: str, what: tuple[str, ...], comment: str | None, yes: bool) -> None:
    """Change TABLE: add column NAME TYPE, drop column NAME, rename column OLD NEW, set KEY=VALUE…, reset KEY….

    Example: fluss alter orders add column note string
    """
    name = check_table(table)
    words = list(what[1:] if what[0] in _NOUNS else what)
    if not words:
        raise click.UsageError(f"{action} what? See fluss alter --help.")
    with link.database() as db:
        done = _alter(db, name, action, words, comment, yes)
    if link.as_json:
        print_json({"table": name, "action": action, "what": words})
    else:
        note(f"{name}: {done}")


def _alter(db: Database, name: str, action: str, words: list[str], comment: str | None, yes: bool) -> str:
    table = db.table(name)
    if action == "add":
        column, _, data_type = " ".join(words).partition(" ")
        if not data_type:
            raise click.UsageError(f"add column needs a name and a type, for instance: {column} string")
        table.add_column(column, data_type, comment=comment)
        return f"added column {column} {data_type}"
    if action == "drop":
        if len(words) != 1:
            raise click.UsageError("drop column takes one name")
        confirm(f"Drop column {words[0]} of {name} with its values?", yes=yes)
        _alter_columns(db, table, words[0], drop_columns=words)
        return f"dropped column {words[0]}"
    if action == "rename":
        words = [word for word in words if word != "to"]
        if len(words) != 2:
            raise click.UsageError("rename column takes the old and the new name")
        _alter_columns(db, table, words[0], rename_columns={words[0]: words[1]})
        return f"renamed column {words[0]} to {words[1]}"
    changes: dict[str, Any] = dict.fromkeys(words) if action == "reset" else dict(pairs_of("set", tuple(words)))
    table.set_properties(changes)
    return f"{action} {', '.join(changes)}"


def _alter_columns(db: Database, table: Table[Any], column: str, **changes: Any) -> None:
    from fluss.db.internals import admin_call
    from fluss.db.suggest import check_columns

    check_columns([column], table.info)
    admin_call(db, lambda admin: admin.alter_table(table.path, **changes))


@click.command()
@table_argument()
@click.argument("action", type=click.Choice(["add", "drop"]), metavar="ACTION", required=False)
@click.argument("values", nargs=-1)
@click.option("--if-exists", is_flag=True, help="drop: do not complain if the partition does not exist.")
@click.option("--if-not-exists", is_flag=True, help="add: do nothing if the partition exists.")
@click.option("--yes", is_flag=True, help="Do not ask before a partition is dropped.")
@connected
def partitions(
    link: CliTarget,
    table: str,
    action: str | None,
    values: tuple[str, ...],
    if_exists: bool,
    if_not_exists: bool,
    yes: bool,
) -> None:
    """List the partitions of TABLE, or add or drop one: VALUES are KEY=VALUE, or the value if there is one key.

    Example: fluss partitions clicks add day=2026-07-01
    """
    name = check_table(table)
    with link.database() as db:
        opened = db.table(name)
        keys = list(opened.info.partition_keys)
        if not keys:
            raise click.ClickException(
                f"table {name} is not partitioned; create it with --partition-by to have partitions"
            )
        if action is None:
            _list(link, [(one.partition_name, one.partition_id) for one in opened.partitions()])
            return
        if not values:
            raise click.UsageError(f"{action} which partition? Give {' '.join(f'{key}=VALUE' for key in keys)}")
        spec: dict[str, str] | str = pairs_of(action, values) if any("=" in one for one in values) else values[0]
        shown = ", ".join(values)
        if action == "add":
            opened.add_partition(spec, exist_ok=if_not_exists)
        else:
            confirm(f"Drop partition {shown} of {name} with its rows?", yes=yes)
            opened.drop_partition(spec, missing_ok=if_exists)
    if link.as_json:
        print_json({"table": name, "action": action, "partition": list(values)})
    else:
        note(f"{name}: {'added' if action == 'add' else 'dropped'} partition {shown}")


def _list(link: CliTarget, found: list[tuple[str, int]]) -> None:
    rows = sorted(found)
    if link.as_json:
        print_json([{"name": name, "id": number} for name, number in rows])
    else:
        grid(["partition", "id"], rows)
