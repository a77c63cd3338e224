# SPDX-License-Identifier: Apache-2.0
"""Tables and databases: ``fluss create``, ``alter``, ``drop``, ``partitions``, ``db``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fluss.cli.common import (
    CliTarget,
    Failure,
    check_database,
    check_table,
    confirm,
    connected,
    count_text,
    names_of,
    note,
    pairs_of,
    print_json,
    print_names,
    print_result,
    print_rows,
    table_argument,
)

if TYPE_CHECKING:
    from fluss import Table


@click.command()
@click.argument("table")
@click.argument("columns", required=False)
@click.option("--key", metavar="COLUMNS", help="Primary key, comma separated. Without it, rows are appended to a log.")
@click.option("--partition-by", metavar="COLUMNS", help="Columns that partition the table, comma separated.")
@click.option("--buckets", type=click.IntRange(1), help="Parts that are stored and read in parallel.")
@click.option("--bucket-key", metavar="COLUMNS", help="Columns that decide the bucket.  [default: the primary key]")
@click.option("-p", "--property", "properties", multiple=True, metavar="KEY=VALUE", help="A table property.")
@click.option("--comment", help="What the table is for.")
@click.option("--like", metavar="FILE|TABLE", help="Take the columns of a file, or everything of another table.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the table exists.")
@click.option("--show-code", is_flag=True, help="Print the Python code that does the same, and create nothing.")
@connected
def create(
    link: CliTarget,
    table: str,
    columns: str | None,
    key: str | None,
    partition_by: str | None,
    buckets: int | None,
    bucket_key: str | None,
    properties: tuple[str, ...],
    comment: str | None,
    like: str | None,
    if_not_exists: bool,
    show_code: bool,
) -> None:
    """Create TABLE with COLUMNS such as 'id bigint not null, item string'.

    Example: fluss create orders 'id bigint, item string, price decimal(10,2)' --key id --buckets 4
    """
    from fluss.tools.drafts import TableDraft, draft_like, draft_of
    from fluss.tools.files import is_file_name

    check_table(table)
    if (columns is None) == (like is None):
        raise click.UsageError("give the columns, such as 'id bigint, item string', or --like FILE or TABLE")
    primary_key = names_of(key)
    more = pairs_of("-p", properties)

    def complete(draft: TableDraft) -> TableDraft:
        return draft.changed(
            partition_by=names_of(partition_by),
            buckets=buckets,
            bucket_key=names_of(bucket_key),
            properties=more,
            comment=comment,
        )

    draft = None
    if columns is not None:
        draft = complete(draft_of(table, columns, primary_key))
    elif like is not None and is_file_name(like):
        draft = complete(draft_like(None, table, like, primary_key))
    if draft is not None and show_code:
        click.echo(draft.code)
        return
    with link.database(create=True) as db:
        if draft is None:
            assert like is not None
            draft = complete(draft_like(db, table, like, primary_key))
            if show_code:
                click.echo(draft.code)
                return
        existed = if_not_exists and table in db
        made = draft.create(db, exist_ok=if_not_exists)
    if link.as_json:
        print_json({"table": made.name, "created": not existed, "columns": draft.text})
    elif existed:
        note(f"table {made.name} exists already")
    else:
        note(f"created {made.name} ({draft.text})" if like is not None else f"created {made.name}")


@click.command()
@table_argument("tables", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="Do not complain about tables that do not exist.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def drop(link: CliTarget, tables: tuple[str, ...], if_exists: bool, yes: bool) -> None:
    """Drop TABLES with all their rows.

    Example: fluss drop orders --yes
    """
    with link.database() as db:
        if not if_exists:
            for name in tables:
                db.table(name)  # nothing is dropped if one of them is misspelt
        confirm(f"Drop {', '.join(tables)} with all rows?", yes=yes)
        dropped = []
        for name in tables:
            if not if_exists or name in db:
                db.drop_table(name, missing_ok=if_exists)
                dropped.append(name)
    print_result(link.as_json, {"dropped": dropped}, f"dropped {', '.join(dropped) or 'nothing'}")


@click.group()
def db() -> None:
    """Create, drop and list databases."""


@db.command(name="ls")
@connected
def db_ls(link: CliTarget) -> None:
    """List databases.

    Example: fluss db ls
    """
    with link.database() as database:
        names = sorted(database.databases())
    print_names(link.as_json, names)


@db.command(name="create")
@click.argument("name")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the database exists.")
@connected
def db_create(link: CliTarget, name: str, if_not_exists: bool) -> None:
    """Create the database NAME.

    Example: fluss db create shop
    """
    with link.database(create=True) as database:
        database.create_database(name, exist_ok=if_not_exists)
    print_result(link.as_json, {"database": name}, f"created database {name}")


@db.command(name="drop")
@click.argument("name")
@click.option("--cascade", is_flag=True, help="Drop its tables too.")
@click.option("--if-exists", is_flag=True, help="Do not complain if it does not exist.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def db_drop(link: CliTarget, name: str, cascade: bool, if_exists: bool, yes: bool) -> None:
    """Drop the database NAME; its tables only with --cascade.

    Example: fluss db drop shop --cascade --yes
    """
    with link.database() as database:
        known = database.databases()
        if not if_exists:
            check_database(database, name)
        tables = database.tables(name) if name in known else []
        if tables and not cascade:
            raise Failure(f"database {name} has {count_text(len(tables), 'table')}; add --cascade to drop them too")
        lost = f" with {count_text(len(tables), 'table')}" if tables else ""
        confirm(f"Drop the database {name}{lost}?", yes=yes)
        database.drop_database(name, missing_ok=if_exists, cascade=cascade)
    print_result(
        link.as_json, {"database": name, "tables": tables if cascade else []}, f"dropped database {name}{lost}"
    )


_ACTIONS = ("add", "set", "reset")
_NOUNS = ("column", "property", "properties")


@click.command()
@table_argument()
@click.argument("action", metavar="ACTION")
@click.argument("what", nargs=-1, required=True)
@click.option("--comment", help="The comment of a new column.")
@connected
def alter(link: CliTarget, table: str, action: str, what: tuple[str, ...], comment: str | None) -> None:
    """Change TABLE: add column NAME TYPE, set KEY=VALUE…, reset KEY….

    Example: fluss alter orders add column note string
    """
    if action in ("drop", "rename"):
        raise click.UsageError(
            f"no Fluss server can {action} columns: create a table with the columns that you want, and copy the rows "
            'with fluss sql "insert into NEW select … from OLD"'
        )
    if action not in _ACTIONS:
        raise click.UsageError(f"{action!r} is not one of {', '.join(_ACTIONS)}")
    words = list(what[1:] if what[0] in _NOUNS else what)
    if not words:
        raise click.UsageError(f"{action} what? See fluss alter --help.")
    with link.database() as db:
        done = _alter(db.table(table), action, words, comment)
    print_result(link.as_json, {"table": table, "action": action, "what": words}, f"{table}: {done}")


def _alter(table: Table[Any], action: str, words: list[str], comment: str | None) -> str:
    if action == "add":
        column, _, data_type = " ".join(words).partition(" ")
        if not data_type:
            raise click.UsageError(f"add column needs a name and a type, for instance: {column} string")
        table.add_column(column, data_type, comment=comment)
        return f"added column {column} {data_type}"
    changes: dict[str, Any] = dict.fromkeys(words) if action == "reset" else dict(pairs_of("set", tuple(words)))
    table.set_properties(changes)
    return f"{action} {', '.join(changes)}"


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
    with link.database() as db:
        opened = db.table(table)
        keys = list(opened.info.partition_keys)
        if not keys:
            raise click.ClickException(
                f"table {table} is not partitioned; create it with --partition-by to have partitions"
            )
        if action is None:
            found = sorted((one.partition_name, one.partition_id) for one in opened.partitions())
            rows = [{"name": name, "id": number} for name, number in found]
            print_rows(link.as_json, rows, ["name", "id"], {"name": "partition"})
            return
        if not values:
            raise click.UsageError(f"{action} which partition? Give {' '.join(f'{key}=VALUE' for key in keys)}")
        if len(values) > len(keys):
            raise click.UsageError(f"{action} takes one partition: {' '.join(f'{key}=VALUE' for key in keys)}")
        spec: dict[str, str] | str = pairs_of(action, values) if any("=" in one for one in values) else values[0]
        shown = ", ".join(values)
        if action == "add":
            opened.add_partition(spec, exist_ok=if_not_exists)
        else:
            confirm(f"Drop partition {shown} of {table} with its rows?", yes=yes)
            opened.drop_partition(spec, missing_ok=if_exists)
    print_result(
        link.as_json,
        {"table": table, "action": action, "partition": list(values)},
        f"{table}: {'added' if action == 'add' else 'dropped'} partition {shown}",
    )
