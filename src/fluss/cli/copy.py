# SPDX-License-Identifier: Apache-2.0
"""Whole tables: ``fluss copy`` from server to server, ``fluss backup`` and ``fluss restore``."""

from __future__ import annotations

import contextlib
import os
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.common import (
    CliTarget,
    Failure,
    at_option,
    check_database,
    check_table,
    complete_tables,
    connected,
    count_text,
    note,
    pairs_of,
    print_json,
    print_result,
)
from fluss.cli.load import progress_bar
from fluss.cli.show import size_text

if TYPE_CHECKING:
    from fluss import Database
    from fluss.tools.backups import BackedUp


@click.command()
@click.argument("source")
@click.argument("target")
@click.option("--follow", is_flag=True, help="Keep the copy in sync until Ctrl-C (one table).")
@click.option("--renumber", is_flag=True, help="Allow new numbers in an auto-increment column.")
@click.option("--verify", is_flag=True, help="Compare counts and checksums afterwards.")
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Note there how far it came: the same command goes on where it was stopped.",
)
@connected
def copy(
    link: CliTarget, source: str, target: str, follow: bool, verify: bool, renumber: bool, checkpoint: str | None
) -> None:
    """Copy SOURCE to TARGET: a table, or DATABASE.* for all tables of a database.

    Either may begin with a server: HOST:PORT/TABLE or @PROFILE/TABLE; without one, it is the server of -b.

    Example: fluss copy orders @staging/orders --verify
    """
    from_link, from_name = _place(link, source)
    to_link, to_name = _place(link, target)
    if from_name.endswith(".*") != to_name.endswith(".*"):
        raise click.UsageError("copy a table to a table, or DATABASE.* to DATABASE.*")
    if checkpoint is not None:
        os.makedirs(checkpoint, exist_ok=True)
    with from_link.database() as here, to_link.database(create=True) as there:
        if here.address == there.address and from_name == to_name:
            raise click.UsageError("source and target are the same")
        pairs = _pairs(here, from_name, to_name)
        if follow and len(pairs) > 1:
            raise click.UsageError("--follow keeps one table in sync: name it")
        done = [_copy(here, there, pair, link, follow, verify, renumber, checkpoint) for pair in pairs]
    if link.as_json:
        print_json(done)
    if any(one["equal"] is False for one in done):
        wrong = ", ".join(one["target"] for one in done if one["equal"] is False)
        raise Failure(
            f"not equal to the source: {wrong}; was something else written to it, or to the source meanwhile?"
        )


def _place(link: CliTarget, text: str) -> tuple[CliTarget, str]:
    server, slash, name = text.rpartition("/")
    if not slash and re.fullmatch(r"@\S+|\S+:\d+", text):
        raise click.UsageError(f"'{text}' is a server: name the table on it too, such as {text}/orders")
    is_database = name.endswith(".*") and len(name) > 2
    return link.other(server) if slash else link, name if is_database else check_table(name)


def _pairs(here: Database, from_name: str, to_name: str) -> list[tuple[str, str]]:
    if not from_name.endswith(".*"):
        return [(from_name, to_name)]
    database, other = check_database(here, from_name[:-2]), to_name[:-2]
    return [(f"{database}.{name}", f"{other}.{name}") for name in sorted(here.tables(database))]


def _copy(
    here: Database,
    there: Database,
    pair: tuple[str, str],
    link: CliTarget,
    follow: bool,
    verify: bool,
    renumber: bool,
    folder: str | None,
) -> dict[str, Any]:
    from fluss.tools.copying import TableCopy, fingerprint

    name, other = pair
    file = None if folder is None else os.path.join(folder, f"{name}-{other}.json")
    with progress_bar(name, None, show=not link.as_json) as advance:
        work = TableCopy(here, name, there, other, checkpoint=file, renumber=renumber, progress=advance)
        report = work.report
        try:
            work.run(follow=follow)
        except KeyboardInterrupt:
            if not follow:  # which has no other end
                done = f"{count_text(report.rows, 'row')} and {count_text(report.changes, 'change')} copied"
                raise Failure(f"interrupted; {name}: {done}") from None
    equal = None
    if verify:
        equal = fingerprint(work.source) == fingerprint(work.target)
    if not link.as_json:
        checked = "" if equal is None else ", equal" if equal else ", NOT equal"
        changes = f" and {count_text(report.changes, 'change')}" if report.changes else ""
        note(f"{name} -> {other}: {count_text(report.rows, 'row')}{changes} copied{checked}")
    with contextlib.suppress(OSError):
        if file is not None and equal is not False and not follow:
            os.unlink(file)
    return {"source": name, "target": other, **vars(report), "equal": equal}


def _say(link: CliTarget, done: list[BackedUp], folder: str, word: str) -> None:
    rows, size = sum(one.rows for one in done), sum(one.size_bytes for one in done)
    tables = [{"table": one.table, "rows": one.rows, "bytes": one.size_bytes} for one in done]
    print_result(
        link.as_json,
        {"folder": folder, "rows": rows, "bytes": size, "tables": tables},
        f"{count_text(len(done), 'table')} with {count_text(rows, 'row')} ({size_text(size)}) {word} '{folder}'",
    )


_store_option = click.option(
    "-D", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the object store, such as s3.endpoint."
)


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("tables", nargs=-1, shell_complete=complete_tables)
@_store_option
@connected
def backup(link: CliTarget, folder: str, tables: tuple[str, ...], settings: tuple[str, ...]) -> None:
    """Write TABLES (all without them) to FOLDER while the server runs: each at one point in time, with checksums.

    With 'verify URL', read back everything in the backup that 'fluss server --replicate URL' keeps.

    Example: fluss backup backup-2026-07-01
    """
    from fluss.tools.backups import write_backup

    if folder == "verify" and len(tables) == 1:
        _from_store(link, tables[0], None, None, settings)
        return
    with link.database() as db, progress_bar("backup", None, show=not link.as_json) as advance:
        try:
            done = write_backup(db, folder, [check_table(one) for one in tables] or None, lambda _, rows: advance(rows))
        except KeyboardInterrupt:
            raise Failure(f"interrupted; '{folder}' is not a complete backup: remove it") from None
        except OSError as error:  # such as a full disk
            place = error.filename or folder
            raise Failure(f"'{place}': {error.strerror}; '{folder}' is not a complete backup: remove it") from None
    _say(link, done, folder, "written to")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.argument("tables", nargs=-1)
@click.option("--renumber", is_flag=True, help="Allow new numbers in auto-increment columns.")
@at_option("Of a URL: the state at this time")
@_store_option
@connected
def restore(
    link: CliTarget,
    folder: str,
    tables: tuple[str, ...],
    renumber: bool,
    at: datetime | None,
    settings: tuple[str, ...],
) -> None:
    """Create TABLES (all without them) as they are in the backup FOLDER. None of them may exist.

    With a URL and a new folder, make a data folder of the backup that 'fluss server --replicate URL' keeps.

    Example: fluss restore s3://bucket/shop ./data2 --at 10m
    """
    from fluss.server.replication.layout import is_backup
    from fluss.tools.backups import restore_backup

    if is_backup(folder):
        if len(tables) != 1:
            raise click.UsageError("restore a URL into a folder: fluss restore URL DIR")
        _from_store(link, folder, tables[0], at, settings)
        return
    if at is not None:
        raise click.UsageError("--at needs the URL of a backup that 'fluss server --replicate' keeps")
    with link.database(create=True) as db, progress_bar("restore", None, show=not link.as_json) as advance:
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


def _from_store(link: CliTarget, url: str, folder: str | None, at: datetime | None, settings: tuple[str, ...]) -> None:
    """Restore a continuous backup into a data folder; verify it without one."""
    from fluss.metadata import epoch_millis
    from fluss.server.config import ServerConfig
    from fluss.server.replication.layout import time_text
    from fluss.server.replication.restoring import restore as restore_from
    from fluss.server.replication.restoring import verify

    options = ServerConfig(pairs_of("-D", settings)).store_options
    at_ms = None if at is None else epoch_millis(at)
    with progress_bar("restore" if folder else "verify", None, show=not link.as_json) as advance:
        if folder is None:
            found = verify(url, at_ms=at_ms, store_options=options, progress=advance)
        else:
            found = restore_from(url, folder, at_ms=at_ms, store_options=options, progress=advance)
    done = f"restored into '{folder}'" if folder else "verified"
    print_result(
        link.as_json,
        {"url": url, "folder": folder, "time": time_text(found.time_ms), **vars(found)},
        f"{count_text(found.files, 'file')} ({size_text(found.size_bytes)}) {done}: everything that was acknowledged "
        f"before {time_text(found.time_ms)}. What came in the {found.seconds_since:.0f} s since then, if anything, is "
        "not in it.",
    )
    if found.damages:
        shown = "\n".join(found.damages[:20])
        raise Failure(f"the backup '{url}' is damaged in {count_text(len(found.damages), 'place')}:\n{shown}")
