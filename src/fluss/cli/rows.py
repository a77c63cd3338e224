# SPDX-License-Identifier: Apache-2.0
"""Rows: ``fluss put``, ``get``, ``cat``, ``head``, ``count`` and ``tail``."""

from __future__ import annotations

import contextlib
import heapq
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import click

from fluss.cli.common import (
    CliTarget,
    Failure,
    NotFound,
    at_option,
    connected,
    count_text,
    missing_option,
    names_of,
    note,
    print_json,
    print_result,
    table_argument,
)
from fluss.cli.show import Grid, facts

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss import Database, Table
    from fluss.db.blocking import Follow
    from fluss.db.changes import ChangePair
    from fluss.tools.loading import LoadReport
    from fluss.tools.tailing import Tail


@contextlib.contextmanager
def rows_accounted(report: LoadReport, word: str = "written", then: str = "") -> Iterator[None]:
    """Add to an error that ends a load how many rows were written before it."""
    from fluss.db.write_results import with_rows_written
    from fluss.errors import FlussError
    from fluss.tools.loading import RejectedRowError

    try:
        yield
    except RejectedRowError as error:
        raise error.replace(hint=f"{count_text(report.written, 'row')} {word} before it") from None
    except FlussError as error:
        raise with_rows_written(error, report.written) from None
    except KeyboardInterrupt:
        raise Failure(f"interrupted; {count_text(report.written, 'row')} {word}{then}") from None


@click.command()
@table_argument()
@click.argument("rows", nargs=-1)
@click.option("-f", "--file", type=click.Path(dir_okay=False), help="Read rows from a file, one JSON object a line.")
@click.option("--delete", is_flag=True, help="Delete the rows with these primary keys.")
@click.option("--atomic", is_flag=True, help="Check all rows before the first is sent.")
@missing_option
@connected
def put(
    link: CliTarget,
    table: str,
    rows: tuple[str, ...],
    file: str | None,
    delete: bool,
    atomic: bool,
    missing: Literal["null", "keep"] | None,
) -> None:
    """Write ROWS, each a JSON object, into TABLE: appended, or upserted where there is a primary key.

    Without ROWS and --file they are read from standard input, one a line. The first row that does not fit ends it:
    those before it are written, unless --atomic is given.

    Example: fluss put orders '{"id": 1, "item": "tea"}'
    """
    from fluss.tools.loading import Load

    if rows and file is not None:
        raise click.UsageError("give rows or --file, not both")
    with link.database() as db:
        load = Load(
            db,
            db.table(table),
            [file or ("rows given" if rows else "-")],
            kind="jsonl",
            atomic=atomic,
            delete=delete,
            lines=list(rows) or None,
            missing=missing,
        )
        word = "deleted" if delete else "written"
        with rows_accounted(load.report, word):
            report = load.run()
    print_result(link.as_json, {"written": report.written}, f"{count_text(report.written, 'row')} {word}")


@click.command()
@table_argument()
@click.argument("key")
@connected
def get(link: CliTarget, table: str, key: str) -> None:
    """Look up the row of TABLE with the primary key KEY: a JSON object, or the value itself for a single column.

    Exit code 3 when there is no such row.

    Example: fluss get orders 7
    """
    from fluss.tools.written_values import key_from_text

    with link.database() as db:
        opened = db.table(table)
        if not opened.primary_key:
            raise Failure(f"table {table} has no primary key to look up; filter it with fluss cat {table} -w CONDITION")
        row = opened.get(key_from_text(key, opened.info))
    if row is None:
        raise NotFound(f"no row with key {key} in {table}")
    if link.as_json:
        print_json(row)
    else:
        facts(row.items())


_FIRST_ROWS = 200

where_option = click.option("-w", "--where", metavar="CONDITION", help='Only rows that match, such as "price > 10".')
columns_option = click.option("-c", "--columns", metavar="NAMES", help="Only these columns, comma separated.")
past_option = at_option("The table as it was at a time")


def _opened(db: Database, table: str, at: datetime | None) -> Table[dict[str, Any]]:
    opened = db.table(table)
    return opened if at is None else opened.as_of(at)


@click.command()
@table_argument()
@where_option
@columns_option
@click.option("-n", "--limit", type=click.IntRange(0), help="At most this many rows.")
@past_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--parquet", metavar="FILE", type=click.Path(dir_okay=False), help="Write a Parquet file instead.")
@connected
def cat(
    link: CliTarget,
    table: str,
    where: str | None,
    columns: str | None,
    limit: int | None,
    at: datetime | None,
    as_csv: bool,
    parquet: str | None,
) -> None:
    """Print the current rows of TABLE: aligned, as CSV, as JSON lines (--json), or into a Parquet file.

    Example: fluss cat orders -w "price > 10" -c id,price -n 20
    """
    if sum((as_csv, link.as_json, parquet is not None)) > 1:
        raise click.UsageError("choose one of --csv, --json and --parquet")
    with link.database() as db:
        reader = _opened(db, table, at).to_reader(names_of(columns), where, limit)
        if parquet is not None:
            rows = _write(parquet, "parquet", reader.schema, reader)
            note(f"{count_text(rows, 'row')} written to {parquet}")
        else:
            print_batches("csv" if as_csv else "jsonl" if link.as_json else None, reader.schema, reader)


def _write(target: Any, kind: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write batches to a file or stream; returns the number of rows."""
    from fluss.db.file_writers import open_writer

    rows = 0
    with open_writer(target, kind, schema) as write:
        for batch in batches:
            write(batch)
            rows += batch.num_rows
    return rows


def print_batches(kind: str | None, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Print batches in a format, or as an aligned table if that is None."""
    from fluss.db.file_writers import python_dicts

    if kind is not None:
        _write(sys.stdout.buffer, kind, schema, batches)
        sys.stdout.flush()
        return
    shown = Grid(schema.names)
    for batch in batches:
        for start in range(0, batch.num_rows, _FIRST_ROWS):
            shown.add([list(row.values()) for row in python_dicts(batch.slice(start, _FIRST_ROWS))])
    shown.end()


@click.command()
@table_argument()
@click.option("-n", "--limit", type=click.IntRange(1), default=10, show_default=True, help="How many rows.")
@columns_option
@past_option
@connected
def head(link: CliTarget, table: str, limit: int, columns: str | None, at: datetime | None) -> None:
    """Print some rows of TABLE, to see what they look like.

    Example: fluss head orders -n 3
    """
    with link.database() as db:
        reader = _opened(db, table, at).to_reader(names_of(columns), None, limit)
        print_batches("jsonl" if link.as_json else None, reader.schema, reader)


@click.command()
@table_argument()
@where_option
@past_option
@connected
def count(link: CliTarget, table: str, where: str | None, at: datetime | None) -> None:
    """Count the rows of TABLE, all of them or those that match.

    Example: fluss count orders -w "item = 'tea'"
    """
    with link.database() as db:
        rows = _opened(db, table, at).count(where)
    if link.as_json:
        print_json({"table": table, "rows": rows})
    else:
        click.echo(rows)


_SHORT = {"append": "+A", "insert": "+I", "update_before": "-U", "update_after": "+U", "update": "+U", "delete": "-D"}
_STYLES: dict[str, dict[str, Any] | None] = {
    "+A": None,
    "+I": {"fg": "green"},
    "-U": {"fg": "yellow", "dim": True},
    "+U": {"fg": "yellow"},
    "-D": {"fg": "red"},
}


@click.command()
@table_argument()
@click.option(
    "--from",
    "start",
    metavar="START",
    help="full (all rows first), earliest, latest, an offset, 10m (minutes ago), or a time such as 2026-01-01T00:00.  "
    "[default: earliest]",
)
@where_option
@columns_option
@click.option("--changes", is_flag=True, help="One line per change, with the row before and after an update.")
@click.option("-n", "--limit", type=click.IntRange(1), help="The last so many records; with --from, the first.")
@click.option("--no-follow", is_flag=True, help="Stop at the end of the log instead of waiting for more.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Stop after this many seconds.")
@click.option("--group", metavar="NAME", help="Share the changes with all who tail with this name; go on where it was.")
@connected
def tail(
    link: CliTarget,
    table: str,
    start: str | None,
    where: str | None,
    columns: str | None,
    changes: bool,
    limit: int | None,
    no_follow: bool,
    timeout: float | None,
    group: str | None,
) -> None:
    """Print the log of TABLE as it grows; for a primary-key table, its changes. Ctrl-C ends it.

    With -n alone, the newest records of the log are printed, and that is all.

    Example: fluss tail orders --from 10m -w "price > 10"
    """
    from fluss.tools.tailing import Tail, before_end, start_of

    if changes and (where is not None or columns is not None):
        raise click.UsageError("--changes shows whole rows: it cannot be combined with -w and -c")
    grid: Grid | None = None

    def show(names: list[str], records: list[dict[str, Any]]) -> None:
        nonlocal grid
        if link.as_json:
            for record in records:
                print_json(record)
        elif records:
            grid = grid or Grid(["bucket", "offset", "change", *names])
            grid.add([_cells(record) for record in records], [_STYLES[record["change"]] for record in records])

    with link.database() as db, contextlib.suppress(KeyboardInterrupt):
        opened = db.table(table)

        def read(start: str, *, to_end: bool, timeout: float | None = None) -> Iterator[_Records]:
            if not changes:
                chosen = names_of(columns)
                options: dict[str, Any] = {"stop_at_end": to_end, "timeout": timeout, "group": group}
                return _records(Tail(db, opened, start, columns=chosen, where=where, **options))
            until = None if to_end else timeout
            return _pairs(opened.changes(start_of(db, opened, start), live=not to_end, timeout=until, group=group))

        if limit is not None and start is None and group is None:
            # An update has two records. Which records match is known only when all were read.
            start = "earliest" if where is not None else str(before_end(db, opened, 2 * limit))
            newest: deque[dict[str, Any]] = deque(maxlen=limit)
            header: list[str] = []
            for header, records in read(start, to_end=True):  # noqa: B007
                newest = deque(heapq.merge(newest, records, key=itemgetter("timestamp")), limit)
            show(header, list(newest))
            return
        shown = 0
        # From here: on a slow machine it takes seconds to connect.
        deadline = None if timeout is None else time.monotonic() + timeout
        for names, records in read(start or "earliest", to_end=no_follow, timeout=timeout):
            some = records[: None if limit is None else limit - shown]
            shown += len(some)
            show(names, some)
            if limit is not None and shown >= limit:
                return
            if deadline is not None and time.monotonic() >= deadline:
                return


def _cells(record: dict[str, Any]) -> list[Any]:
    values = record["row"].values() if "row" in record else (record["old"], record["new"])
    return [record["bucket"], record["offset"], record["change"], *values]


def _place(change: Any, timestamp_ms: int) -> dict[str, Any]:
    """What is printed of a record beside its rows."""
    return {
        "bucket": change.bucket.bucket_id,
        "partition": change.bucket.partition_id,
        "offset": change.offset,
        "timestamp": timestamp_ms,
        "change": _SHORT[change.kind],
    }


_Records = tuple[list[str], list[dict[str, Any]]]
"""The columns of records, and some records."""


def _records(tail: Tail) -> Iterator[_Records]:
    with tail:
        for records in tail:
            yield tail.columns, [{**_place(one, one.timestamp_ms), "row": one.row} for one in records]


def _pairs(changes: Follow[ChangePair[dict[str, Any]]]) -> Iterator[_Records]:
    from fluss.metadata import epoch_millis

    with changes:
        for change in changes:
            place = _place(change, epoch_millis(change.timestamp))
            yield ["old", "new"], [{**place, "old": change.old, "new": change.new}]
