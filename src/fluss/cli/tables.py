# SPDX-License-Identifier: Apache-2.0
"""Tables and databases come and go: ``fluss create``, ``fluss drop``, ``fluss db``."""

from __future__ import annotations

import click

from fluss.cli.common import (
    CliTarget,
    check_database,
    check_table,
    confirm,
    connected,
    count_text,
    names_of,
    note,
    pairs_of,
    print_json,
    say,
    table_argument,
)


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
    with link.database() as db:
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
    names = [check_table(table) for table in tables]
    with link.database() as db:
        if not if_exists:
            for name in names:
                db.table(name)  # nothing is dropped if one of them is misspelt
        confirm(f"Drop {', '.join(names)} with all rows?", yes=yes)
        dropped = []
        for name in names:
            if not if_exists or name in db:
                db.drop_table(name, missing_ok=if_exists)
                dropped.append(name)
    if link.as_json:
        print_json({"dropped": dropped})
    else:
        note(f"dropped {', '.join(dropped) or 'nothing'}")


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
    if link.as_json:
        print_json(names)
    else:
        for name in names:
            say(name)


@db.command(name="create")
@click.argument("name")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the database exists.")
@connected
def db_create(link: CliTarget, name: str, if_not_exists: bool) -> None:
    """Create the database NAME.

    Example: fluss db create shop
    """
    with link.database() as database:
        database.create_database(name, exist_ok=if_not_exists)
    if link.as_json:
        print_json({"database": name})
    else:
        note(f"created database {name}")


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
        lost = f" with {count_text(len(tables), 'table')}" if tables and cascade else ""
        confirm(f"Drop the database {name}{lost}?", yes=yes)
        database.drop_database(name, missing_ok=if_exists, cascade=cascade)
    if link.as_json:
        print_json({"database": name, "tables": tables if cascade else []})
    else:
        note(f"dropped database {name}{lost}")
