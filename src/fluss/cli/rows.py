# SPDX-License-Identifier: Apache-2.0
"""Single rows: ``fluss put``, ``fluss get``."""

from __future__ import annotations

import click

from fluss.cli.common import (
    CliTarget,
    Failure,
    NotFound,
    check_table,
    connected,
    count_text,
    note,
    print_json,
    table_argument,
)
from fluss.cli.show import facts


@click.command()
@table_argument()
@click.argument("rows", nargs=-1)
@click.option("-f", "--file", type=click.Path(dir_okay=False), help="Read rows from a file, one JSON object a line.")
@click.option("--delete", is_flag=True, help="Delete the rows with these primary keys.")
@click.option("--atomic", is_flag=True, help="Check all rows before the first is sent.")
@connected
def put(link: CliTarget, table: str, rows: tuple[str, ...], file: str | None, delete: bool, atomic: bool) -> None:
    """Write ROWS, each a JSON object, into TABLE: appended, or upserted where there is a primary key.

    Without ROWS and --file they are read from standard input, one a line. The first row that does not fit ends it:
    those before it are written, unless --atomic is given.

    Example: fluss put orders '{"id": 1, "item": "tea"}'
    """
    from fluss.tools.loading import Load, RejectedRowError

    if rows and file is not None:
        raise click.UsageError("give rows or --file, not both")
    name = check_table(table)
    with link.database() as db:
        load = Load(
            db,
            db.table(name),
            [file or ("rows given" if rows else "-")],
            kind="jsonl",
            atomic=atomic,
            delete=delete,
            lines=list(rows) or None,
        )
        word = "deleted" if delete else "written"
        try:
            report = load.run()
        except RejectedRowError as error:
            done = load.report.written
            raise error.replace(hint=f"{count_text(done, 'row')} {word} before it") from None
        except KeyboardInterrupt:
            raise Failure(f"interrupted; {count_text(load.report.written, 'row')} {word}") from None
    if link.as_json:
        print_json({"written": report.written})
    else:
        note(f"{count_text(report.written, 'row')} {word}")


@click.command()
@table_argument()
@click.argument("key")
@connected
def get(link: CliTarget, table: str, key: str) -> None:
    """Look up the row of TABLE with the primary key KEY: a JSON object, or the value itself for a single column.

    Exit code 3 when there is no such row.

    Example: fluss get orders 7
    """
    from fluss.tools.json_rows import key_from_text

    name = check_table(table)
    with link.database() as db:
        opened = db.table(name)
        if not opened.primary_key:
            raise Failure(f"table {name} has no primary key to look up; filter it with fluss cat {table} -w CONDITION")
        row = opened.get(key_from_text(key, opened.info))
    if row is None:
        raise NotFound(f"no row with key {key} in {name}")
    if link.as_json:
        print_json(row)
    else:
        facts(row.items())
