# SPDX-License-Identifier: Apache-2.0
"""Backups: ``fluss backup``, ``fluss restore``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fluss.cli.common import CliTarget, Failure, check_table, connected, count_text, note, print_json, table_argument
from fluss.cli.load import progress_bar
from fluss.cli.show import size_text

if TYPE_CHECKING:
    from fluss.tools.backups import BackedUp


def _say(link: CliTarget, done: list[BackedUp], folder: str, word: str) -> None:
    rows, size = sum(one.rows for one in done), sum(one.size_bytes for one in done)
    if link.as_json:
        print_json(
            {
                "folder": folder,
                "rows": rows,
                "bytes": size,
                "tables": [{"table": one.table, "rows": one.rows, "bytes": one.size_bytes} for one in done],
            }
        )
    else:
        note(f"{count_text(len(done), 'table')} with {count_text(rows, 'row')} ({size_text(size)}) {word} '{folder}'")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@table_argument("tables", nargs=-1)
@connected
def backup(link: CliTarget, folder: str, tables: tuple[str, ...]) -> None:
    """Write TABLES (all without them) to FOLDER while the server runs: each at one point in time, with checksums.

    Example: fluss backup backup-2026-07-01
    """
    from fluss.tools.backups import write_backup

    with link.database() as db, progress_bar("backup", None, show=not link.as_json) as advance:
        try:
            done = write_backup(db, folder, [check_table(one) for one in tables] or None, lambda _, rows: advance(rows))
        except KeyboardInterrupt:
            raise Failure(f"interrupted; '{folder}' is not a complete backup: remove it") from None
    _say(link, done, folder, "written to")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("tables", nargs=-1)
@click.option("--renumber", is_flag=True, help="Allow new numbers in auto-increment columns.")
@connected
def restore(link: CliTarget, folder: str, tables: tuple[str, ...], renumber: bool) -> None:
    """Create TABLES (all without them) as they are in the backup FOLDER. None of them may exist.

    Example: fluss restore backup-2026-07-01
    """
    from fluss.tools.backups import restore_backup

    with link.database() as db, progress_bar("restore", None, show=not link.as_json) as advance:
        count = 0

        def progress(_: str, rows: int) -> None:
            nonlocal count
            count += rows
            advance(rows)

        try:
            names = [check_table(one) for one in tables] or None
            done = restore_backup(db, folder, names, progress, renumber=renumber)
        except KeyboardInterrupt:
            raise Failure(
                f"interrupted; {count_text(count, 'row')} restored: drop the tables before the next try"
            ) from None
    _say(link, done, folder, "restored from")
