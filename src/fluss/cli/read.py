# SPDX-License-Identifier: Apache-2.0
"""Reading tables: ``fluss cat``, ``fluss head``, ``fluss count``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.common import CliTarget, check_table, connected, count_text, names_of, note, print_json, table_argument
from fluss.cli.show import Grid

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_ROWS = 200

where_option = click.option("-w", "--where", metavar="CONDITION", help='Only rows that match, such as "price > 10".')
columns_option = click.option("-c", "--columns", metavar="NAMES", help="Only these columns, comma separated.")


@click.command()
@table_argument()
@where_option
@columns_option
@click.option("-n", "--limit", type=click.IntRange(0), help="At most this many rows.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--parquet", metavar="FILE", type=click.Path(dir_okay=False), help="Write a Parquet file instead.")
@connected
def cat(
    link: CliTarget,
    table: str,
    where: str | None,
    columns: str | None,
    limit: int | None,
    as_csv: bool,
    parquet: str | None,
) -> None:
    """Print the current rows of TABLE: aligned, as CSV, as JSON lines (--json), or into a Parquet file.

    Example: fluss cat orders -w "price > 10" -c id,price -n 20
    """
    if sum((as_csv, link.as_json, parquet is not None)) > 1:
        raise click.UsageError("choose one of --csv, --json and --parquet")
    with link.database() as db:
        reader = db.table(check_table(table)).to_reader(names_of(columns), where, limit)
        if parquet is not None:
            note(f"{count_text(_write(reader, parquet, 'parquet'), 'row')} written to {parquet}")
        elif as_csv or link.as_json:
            _write(reader, sys.stdout.buffer, "csv" if as_csv else "jsonl")
            sys.stdout.flush()
        else:
            show_batches(reader.schema.names, reader)


def _write(reader: pa.RecordBatchReader, target: Any, kind: str) -> int:
    from fluss.tools.files import open_writer

    rows = 0
    with open_writer(target, kind, reader.schema) as write:
        for batch in reader:
            write(batch)
            rows += batch.num_rows
    return rows


def show_batches(names: list[str], batches: Iterable[pa.RecordBatch]) -> int:
    """Print batches as an aligned table; gives how many rows there were."""
    from fluss.tools.files import python_dicts

    shown = Grid(names)
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _FIRST_ROWS):
            some = python_dicts(batch.slice(start, _FIRST_ROWS))
            shown.add([list(row.values()) for row in some])
            rows += len(some)
    shown.end()
    return rows


@click.command()
@table_argument()
@click.option("-n", "--limit", type=click.IntRange(1), default=10, show_default=True, help="How many rows.")
@columns_option
@connected
def head(link: CliTarget, table: str, limit: int, columns: str | None) -> None:
    """Print some rows of TABLE, to see what they look like.

    Example: fluss head orders -n 3
    """
    with link.database() as db:
        reader = db.table(check_table(table)).to_reader(names_of(columns), None, limit)
        if link.as_json:
            _write(reader, sys.stdout.buffer, "jsonl")
            sys.stdout.flush()
        else:
            show_batches(reader.schema.names, reader)


@click.command()
@table_argument()
@where_option
@connected
def count(link: CliTarget, table: str, where: str | None) -> None:
    """Count the rows of TABLE, all of them or those that match.

    Example: fluss count orders -w "item = 'tea'"
    """
    with link.database() as db:
        rows = db.table(check_table(table)).count(where)
    if link.as_json:
        print_json({"table": check_table(table), "rows": rows})
    else:
        click.echo(rows)
