# SPDX-License-Identifier: Apache-2.0
"""``fluss migrate``: move tables to another server or cluster while they are written to."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from fluss.cli.common import (
    CliTarget,
    Failure,
    connected,
    count_text,
    note,
    print_json,
    table_argument,
)
from fluss.cli.load import progress_bar

if TYPE_CHECKING:
    from fluss.tools.migrating import Migration

_PAUSE_S = 0.2
"""Between two rounds while there is nothing to wait for but the writers."""


@click.command()
@table_argument("tables", nargs=-1)
@click.option("--to", required=True, metavar="SERVER", help="HOST:PORT or @PROFILE of the target.")
@click.option(
    "--state",
    metavar="FOLDER",
    default="migration",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Where its progress is kept: the same command goes on after a kill. The positions are written there.",
)
@click.option("--stop-writers", metavar="COMMAND", help="Run this when the target is in sync, instead of asking.")
@click.option("--start-writers", metavar="COMMAND", help="Run this when the target has everything.")
@click.option("--yes", is_flag=True, help="The writers are stopped already: do not ask.")
@click.option("--renumber", is_flag=True, help="Allow new numbers in auto-increment columns.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved, and what cannot be.")
@connected
def migrate(
    link: CliTarget,
    tables: tuple[str, ...],
    to: str,
    state: str,
    stop_writers: str | None,
    start_writers: str | None,
    yes: bool,
    renumber: bool,
    dry_run: bool,
) -> None:
    """Move TABLES (all without them) to another server while they are written to, with the positions of groups.

    Copies what there is, follows until the target is less than a second behind, waits until you stopped the writers,
    copies the rest, and verifies counts and checksums.

    Example: fluss migrate --to cluster:9123 --stop-writers "systemctl stop shop" --start-writers ./start-on-cluster
    """
    from fluss.tools.migrating import LAG_S_MAX, POSITIONS_FILE, Migration

    if not (dry_run or yes or stop_writers or sys.stdin.isatty()):
        raise click.UsageError("without a terminal to ask at, give --stop-writers, or --yes once they are stopped")
    with link.database() as here, link.other(to).database(create=True) as there:
        if here.address == there.address:
            raise click.UsageError("source and target are the same server")
        work = Migration(here, there, state, tables or None, renumber=renumber)
        totals = _check_plan(link, work, dry_run)
        if dry_run:
            return
        try:
            _copy(link, work, totals)
            while (behind_s := work.catch_up()) > LAG_S_MAX:
                note(f"{behind_s:.1f} s behind")
            note(f"{count_text(len(work.copies), 'table')} in sync, less than {LAG_S_MAX:.0f} s behind")
            stopped_at = _follow_until(work, stop_writers, yes)
            groups = work.finish()
            if start_writers is not None:
                _run(start_writers)
        except KeyboardInterrupt:
            raise Failure(f"interrupted; the same command goes on with what is in '{state}'") from None
        pause_s = time.monotonic() - stopped_at
        note(f"writers can go on with the target, {pause_s:.1f} s after they were stopped; verifying")
        done = [
            {"table": name, "copied": copy.report.rows + copy.report.changes, "equal": work.verify(name)}
            for name, copy in work.copies.items()
        ]
        written = work.written()
    positions = os.path.join(state, POSITIONS_FILE)
    if link.as_json:
        print_json({"tables": done, "groups": groups, "pause_s": round(pause_s, 2), "positions": positions})
    wrong = [str(one["table"]) for one in done if not one["equal"]]
    if wrong:
        raise Failure(f"not equal to the source: {', '.join(wrong)}; drop them on the target, and migrate them again")
    if written:
        raise Failure(f"still written to on the source: {', '.join(written)}; stop the writers, and run this again")
    note(f"{count_text(len(done), 'table')} moved and equal, {count_text(groups, 'group')}; positions in '{positions}'")


def _check_plan(link: CliTarget, work: Migration, dry_run: bool) -> dict[str, int]:
    """Show the plan, and fail if a table cannot be moved; returns the number of changes of each."""
    plans = work.plan()
    if dry_run and link.as_json:
        print_json([vars(plan) for plan in plans])
    elif dry_run:
        for plan in plans:
            how = "with its history" if plan.history else "current rows, and changes from now on"
            found = f"{count_text(plan.changes, 'change')} in its log, {how}"
            click.echo(f"{plan.table}: {plan.problem or found}")
    problems = [plan.problem for plan in plans if plan.problem is not None]
    if problems:
        raise Failure(f"{count_text(len(problems), 'table')} cannot be moved:\n" + "\n".join(problems))
    return {plan.table: plan.changes for plan in plans}


def _copy(link: CliTarget, work: Migration, totals: dict[str, int]) -> None:
    """Copy all tables for the first time, one bar for each."""
    with contextlib.ExitStack() as bars:

        def progress(name: str) -> Callable[[int], None]:
            bars.close()
            return bars.enter_context(progress_bar(name, totals.get(name), show=not link.as_json))

        work.copy(progress)


def _follow_until(work: Migration, stop_writers: str | None, yes: bool) -> float:
    """Keep the target in sync until the writers are stopped; returns when they were."""
    failed: list[Failure] = []
    stopped_at = time.monotonic()

    def stop() -> None:
        nonlocal stopped_at
        try:
            if stop_writers is not None:
                _run(stop_writers)
            else:
                _ask()
        except Failure as error:
            failed.append(error)
        stopped_at = time.monotonic()  # the round that runs now is part of the pause

    waiting = threading.Thread(target=stop, daemon=True)
    if not yes:
        waiting.start()
    while waiting.is_alive():
        work.catch_up()
        waiting.join(_PAUSE_S)
    if failed:
        raise failed[0]
    return stopped_at


def _ask() -> None:
    """Wait for Enter. Not `click.pause`: it goes on after Ctrl-C, and does not wait if standard output is a file."""
    note("Stop the writers, then press Enter ...")
    if not os.read(sys.stdin.fileno(), 1024):  # unbuffered: a buffer that this thread holds would block the exit
        raise Failure("the input ended before Enter was pressed; the same command goes on")


def _run(command: str) -> None:
    code = subprocess.run(command, shell=True, check=False, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
    if code:
        raise Failure(f"'{command}' failed with exit code {code}; nothing is lost: run the same command again")
