# SPDX-License-Identifier: Apache-2.0
"""Files in and out: ``fluss load``, ``fluss export``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import click

from fluss.cli.common import (
    CliTarget,
    Failure,
    connected,
    count_text,
    missing_option,
    names_of,
    note,
    print_json,
    table_argument,
)
from fluss.cli.rows import columns_option, rows_accounted, where_option

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Table

_FORMATS = click.Choice(["csv", "jsonl", "parquet", "arrow"])


@contextlib.contextmanager
def progress_bar(label: str, total: int | None, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Rows and rows per second on standard error, if that is a terminal."""
    if not show or not sys.stderr.isatty():
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    rate = TextColumn("{task.completed:,.0f} rows  {task.fields[rate]:,.0f} rows/s")
    columns = (TextColumn("{task.description}"), BarColumn(), rate, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total, rate=0.0)

        def advance(rows: int) -> None:
            progress.update(task, advance=rows, rate=progress.tasks[0].speed or 0.0)

        yield advance


@click.command()
@table_argument()
@click.argument("files", nargs=-1)
@click.option(
    "--format", "kind", type=_FORMATS, help="Format of the files.  [default: by their names; jsonl for stdin]"
)
@click.option(
    "--create", is_flag=True, help="Create the table if it does not exist, with the columns of the first file."
)
@click.option("--key", metavar="COLUMNS", help="With --create: the primary key.")
@click.option("--buckets", type=click.IntRange(1), help="With --create: how many buckets.")
@click.option(
    "--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True, help="Rows that do not fit."
)
@click.option("--rejects", metavar="FILE", type=click.Path(dir_okay=False), help="Write rows that do not fit there.")
@click.option("--atomic", is_flag=True, help="Check all rows before the first is sent.")
@missing_option
@click.option("--encoding", metavar="NAME", help="Encoding of CSV and JSON files, such as latin1.  [default: UTF-8]")
@click.option("--null", metavar="TEXT", help="Text that means null in CSV files, beside an empty field.")
@click.option(
    "--checkpoint",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Note there what is written: the same command goes on where it was stopped.",
)
@connected
def load(
    link: CliTarget,
    table: str,
    files: tuple[str, ...],
    kind: str | None,
    create: bool,
    key: str | None,
    buckets: int | None,
    on_error: Literal["stop", "skip"],
    rejects: str | None,
    atomic: bool,
    missing: Literal["null", "keep"] | None,
    encoding: str | None,
    null: str | None,
    checkpoint: str | None,
) -> None:
    """Load FILES (CSV, JSON, Parquet, Arrow; "-" or none: standard input) into TABLE.

    Example: fluss load orders orders.csv --create --key id
    """
    from fluss.tools.drafts import draft_like
    from fluss.tools.files import TextStyle, check_file, format_of
    from fluss.tools.loading import Load

    if rejects is not None and on_error != "skip":
        raise click.UsageError("--rejects needs --on-error skip")
    if atomic and on_error == "skip":
        raise click.UsageError("--atomic and --on-error skip contradict each other: choose one")
    if (key is not None or buckets is not None) and not create:
        raise click.UsageError("--key and --buckets are for new tables: add --create")
    style = TextStyle(encoding, null)
    paths = list(files) or ["-"]
    for path in paths:
        check_file(path)
    with link.database(create=create) as db, contextlib.ExitStack() as undo:
        if create and table not in db:
            draft = draft_like(None, table, paths[0], names_of(key), format_of(paths[0], kind), style)
            undo.callback(_drop_if_empty, db, draft.changed(buckets=buckets).create(db))
            note(f"created {table} ({draft.text})")
        opened = db.table(table)
        if key is not None and opened.primary_key != names_of(key):
            has = f"the primary key {','.join(opened.primary_key)}" if opened.primary_key else "no primary key"
            raise Failure(f"table {table} exists and has {has}, not {key}: leave out --key, or drop the table first")
        work = Load(
            db,
            opened,
            paths,
            kind=kind,
            on_error=on_error,
            rejects=rejects,
            atomic=atomic,
            missing=missing,
            style=style,
            checkpoint=checkpoint,
        )
        again = "; run the same command again to go on" if checkpoint is not None else ""
        bar = progress_bar(table, work.total(), show=not link.as_json)
        with rows_accounted(work.report, then=again), bar as advance:
            report = work.run(advance)
        undo.pop_all()
    if link.as_json:
        print_json(
            {
                "table": table,
                "written": report.written,
                "rejected": report.rejected,
                "skipped": report.skipped,
                "seconds": round(report.seconds, 3),
                "first_rejected": None if report.first_bad is None else str(report.first_bad),
            }
        )
        return
    parts = [f"{count_text(report.written, 'row')} written in {report.seconds:.1f} s"]
    parts += [f"{report.rows_per_second:,.0f} rows/s"] if report.seconds > 1 else []
    parts += [f"{count_text(report.skipped, 'row')} written before"] if report.skipped else []
    parts += (
        [f"{count_text(report.rejected, 'row')} rejected, the first: {report.first_bad}"] if report.rejected else []
    )
    note("; ".join(parts))


def _drop_if_empty(db: Database, table: Table[Any]) -> None:
    """Take back the table of a load that failed with its first row: its columns may be those of a wrong file."""
    from fluss.errors import FlussError

    with contextlib.suppress(FlussError):
        if not table.count():
            db.drop_table(table.name)
            note(f"dropped {table.name} again, nothing was written")


@click.command()
@table_argument()
@click.argument("file")
@click.option("--format", "kind", type=_FORMATS, help="Format of the file.  [default: by its name]")
@where_option
@columns_option
@click.option("--partitioned", is_flag=True, help="FILE is a folder: a folder for each partition inside it.")
@connected
def export(
    link: CliTarget,
    table: str,
    file: str,
    kind: str | None,
    where: str | None,
    columns: str | None,
    partitioned: bool,
) -> None:
    """Write the current rows of TABLE, at one point in time, to FILE (CSV, JSON lines, Parquet, Arrow; "-": output).

    Example: fluss export orders orders.parquet
    """
    from fluss.tools.files import export_table

    with link.database() as db:
        done = 0

        def count(rows: int) -> None:
            nonlocal done
            done += rows
            advance(rows)

        try:
            with progress_bar(table, None, show=not link.as_json and file != "-") as advance:
                target: Any = sys.stdout.buffer if file == "-" else file
                rows = export_table(
                    db.table(table),
                    target,
                    kind=kind or ("jsonl" if file == "-" else None),
                    where=where,
                    columns=names_of(columns),
                    partitioned=partitioned,
                    progress=count,
                )
        except KeyboardInterrupt:
            raise Failure(f"interrupted after {count_text(done, 'row')}; '{file}' was not written") from None
    if file == "-":
        sys.stdout.flush()
    elif link.as_json:
        print_json({"table": table, "rows": rows, "file": file})
    else:
        note(f"{count_text(rows, 'row')} written to {file}")
