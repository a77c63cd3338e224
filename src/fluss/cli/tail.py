# SPDX-License-Identifier: Apache-2.0
"""Changes in the terminal: ``fluss tail``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.common import CliTarget, check_table, connected, names_of, print_json, table_argument
from fluss.cli.read import columns_option, where_option
from fluss.cli.show import Grid

if TYPE_CHECKING:
    from fluss import Database

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
    default="earliest",
    show_default=True,
    help="earliest, latest, an offset, 10m (ten minutes ago), or a time such as 2026-01-01T00:00.",
)
@where_option
@columns_option
@click.option("--changes", is_flag=True, help="One line per change, with the row before and after an update.")
@click.option("-n", "--limit", type=click.IntRange(1), help="Stop after this many records.")
@click.option("--no-follow", is_flag=True, help="Stop at the end of the log instead of waiting for more.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Stop after this many seconds.")
@connected
def tail(
    link: CliTarget,
    table: str,
    start: str,
    where: str | None,
    columns: str | None,
    changes: bool,
    limit: int | None,
    no_follow: bool,
    timeout: float | None,
) -> None:
    """Print the log of TABLE as it grows; for a primary-key table, its changes. Ctrl-C ends it.

    Example: fluss tail orders --from 10m -w "price > 10"
    """
    if changes and (where is not None or columns is not None):
        raise click.UsageError("--changes shows whole rows: it cannot be combined with -w and -c")
    name = check_table(table)
    deadline = None if timeout is None else time.monotonic() + timeout
    with link.database() as db, contextlib.suppress(KeyboardInterrupt):
        source = _pairs if changes else _records
        shown = 0
        grid: Grid | None = None
        for names, records in source(db, name, start, names_of(columns), where, no_follow, timeout):
            some = records[: None if limit is None else limit - shown]
            shown += len(some)
            if link.as_json:
                for record in some:
                    print_json(record)
            elif some:
                grid = grid or Grid(["bucket", "offset", "change", *names])
                grid.add([_cells(record) for record in some], [_STYLES[record["change"]] for record in some])
            if limit is not None and shown >= limit:
                return
            if deadline is not None and time.monotonic() >= deadline:
                return


def _cells(record: dict[str, Any]) -> list[Any]:
    values = record["row"].values() if "row" in record else (record["old"], record["new"])
    return [record["bucket"], record["offset"], record["change"], *values]


def _records(
    db: Database,
    name: str,
    start: str,
    columns: list[str] | None,
    where: str | None,
    no_follow: bool,
    timeout: float | None,
) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    from fluss.tools.tailing import Tail

    table = db.table(name)
    with Tail(db, table, start, columns=columns, where=where, stop_at_end=no_follow, timeout=timeout) as found:
        for records in found:
            yield (
                found.columns,
                [
                    {
                        "bucket": record.bucket.bucket_id,
                        "partition": record.bucket.partition_id,
                        "offset": record.offset,
                        "timestamp": record.timestamp_ms,
                        "change": _SHORT[record.kind],
                        "row": record.row,
                    }
                    for record in records
                ],
            )


def _pairs(
    db: Database,
    name: str,
    start: str,
    columns: list[str] | None,
    where: str | None,
    no_follow: bool,
    timeout: float | None,
) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    from fluss.tools.tailing import start_of

    table = db.table(name)
    with table.changes(start_of(db, table, start), stop_at_end=no_follow, timeout=timeout) as found:
        for change in found:
            record = {
                "bucket": change.bucket.bucket_id,
                "partition": change.bucket.partition_id,
                "offset": change.offset,
                "timestamp": int(change.timestamp.timestamp() * 1000),
                "change": _SHORT[change.kind],
                "old": change.old,
                "new": change.new,
            }
            yield ["old", "new"], [record]
