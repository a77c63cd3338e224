# SPDX-License-Identifier: Apache-2.0
"""The lake: ``fluss lake`` shows what is there, ``fluss tier`` moves tables to it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.common import (
    CliTarget,
    connected,
    handled_signals,
    pairs_of,
    parse_path,
    print_json,
    report,
    table_argument,
)

if TYPE_CHECKING:
    from fluss.lake.service import TieringService
    from fluss.lake.status import TableLakeStatus


@click.group()
def lake() -> None:
    """Tables in the lake."""


@lake.command()
@connected
@table_argument("tables", nargs=-1)
@click.option("--buckets", is_flag=True, help="Show every bucket.")
def status(link: CliTarget, tables: tuple[str, ...], buckets: bool) -> None:
    """Per table: what is tiered up to which offset, how far the lake is behind, files and sizes.

    Example: fluss lake status fluss.events
    """
    from fluss.lake.status import lake_status, lake_tables
    from fluss.lake.tasks import LakeSession

    with LakeSession(link.config().to_dict()) as session:
        paths = [parse_path(name) for name in tables] or lake_tables(session)
        found = [lake_status(session, path) for path in paths]
    if link.as_json:
        print_json([one.to_json() for one in found])
        return
    if not found:
        click.echo(err=True, message="no table has its lake on (table.datalake.enabled)")
    for one in found:
        _show(one, buckets)


def _show(one: TableLakeStatus, buckets: bool) -> None:
    where = f"snapshot {one.snapshot_id}" if one.snapshot_id is not None else "nothing tiered yet"
    behind = "up to date"
    if one.rows_behind:
        behind = f"{one.rows_behind:,} rows and {one.seconds_behind:,.0f} s behind"
    report(f"{one.table_path} ({one.lake_format}): {where}, {behind}")
    if one.stats is not None:
        size = one.stats
        report(
            f"  {size.rows:,} rows in {size.files:,} files, {size.size_bytes / 1e6:,.1f} MB, {size.snapshots} snapshots"
        )
    if one.problem is not None:
        report(f"  the lake cannot be read: {one.problem}")
    for bucket in one.buckets if buckets else ():
        name = f"{bucket.partition}/" if bucket.partition is not None else ""
        tiered = "-" if bucket.tiered is None else f"{bucket.tiered:,}"
        report(f"  bucket {name}{bucket.bucket.bucket_id}: {tiered} of {bucket.latest:,}")


_MASTER = re.compile(r"local(\[(\*|\d+)(\s*,\s*\d+)?\])?|local-cluster\[[\d\s,]+\]|yarn|(spark|k8s|sc)://\S+")


@click.command()
@connected
@click.option("--once", is_flag=True, help="Bring every table up to its log as it is now, then end.")
@click.option("--tables", help="Only these tables: database.table, comma separated.")
@click.option("--master", help="Run the tasks on Spark, for instance local[4] or spark://host:7077.")
@click.option("--threads", type=click.IntRange(1, 256), help="Threads for the tasks when not on Spark.")
@click.option(
    "--lake", "lake", multiple=True, metavar="KEY=VALUE", help="Option of the lake catalog, e.g. a credential."
)
@click.option("--compact/--no-compact", default=None, help="Merge small files; default: what each table says.")
@click.option("--expire/--no-expire", default=None, help="Expire old snapshots; default: what each table says.")
@click.option(
    "--sweep-after-hours",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    help="Remove files that no snapshot uses after this time.",
)
def tier(
    link: CliTarget,
    once: bool,
    tables: str | None,
    master: str | None,
    threads: int | None,
    lake: tuple[str, ...],
    compact: bool | None,
    expire: bool | None,
    sweep_after_hours: float,
) -> None:
    """Move what is new in lake-enabled tables to the lake, for ever or once.

    May be stopped or killed at any moment: a restart goes on where lake and server agree.

    Example: fluss tier --once --tables fluss.events
    """
    from fluss.lake.rounds import RoundSettings
    from fluss.lake.service import ServiceSettings, TieringService
    from fluss.lake.tasks import LocalRunner

    client = link.config().to_dict()
    chosen = [parse_path(name.strip()) for name in tables.split(",")] if tables else None
    options = pairs_of("--lake", lake)
    settings = ServiceSettings(
        round=RoundSettings(compact=compact, expire=expire, sweep_after_s=sweep_after_hours * 3600)
    )
    show = _show_json if link.as_json else Lines()
    spark = None
    try:
        if master is not None:
            spark = _spark(master)
            from fluss.spark.tiering import SparkRunner

            runner: Any = SparkRunner(spark)
        else:
            runner = LocalRunner(threads)
        service = TieringService(
            client, tables=chosen, runner=runner, lake_options=options, settings=settings, progress=show
        )
        with handled_signals(_Stop(service)):
            if once:
                service.run_once()
            else:
                service.run_forever()
    finally:
        if spark is not None:
            spark.stop()
        from fluss.client.blocking_client import close_shared_clients

        close_shared_clients()


def _spark(master: str) -> Any:
    """Start a Spark session; a master that Spark does not understand is the user's mistake, not a traceback."""
    if not _MASTER.fullmatch(master):
        raise click.UsageError(f"--master: {master!r} is not a Spark master; write local[4], spark://HOST:7077 or yarn")
    from fluss.spark import session

    return session("fluss-tiering", master=master)


class _Stop:
    """The first signal ends the service after the round that runs; a second one ends the process at once."""

    def __init__(self, service: TieringService) -> None:
        self._service = service
        self._asked = False

    def __call__(self) -> None:
        if self._asked:
            os._exit(130)  # as safe as any other crash
        self._asked = True
        self._service.stop()


def _show_json(name: str, figures: Mapping[str, Any]) -> None:
    click.echo(json.dumps({"event": name, "time_ms": int(time.time() * 1000), **figures}, default=str))


class Lines:
    """One line for what happens, with rates; silence while nothing does."""

    def __init__(self) -> None:
        self._idle = False

    def __call__(self, name: str, figures: Mapping[str, Any]) -> None:
        text = self._text(name, figures)
        quiet = name in ("idle", "assigned", "planned") or (name == "finished" and figures["snapshot"] is None)
        if quiet and self._idle and not figures.get("tasks"):
            return  # looking around without finding anything is not news
        self._idle = name == "idle"
        if text is not None:
            report(f"{time.strftime('%H:%M:%S')} {text}")

    def _text(self, name: str, figures: Mapping[str, Any]) -> str | None:
        table = figures.get("table")
        if name == "planned":
            return f"{table}: {figures['rows']:,} rows in {figures['tasks']} tasks" if figures["tasks"] else None
        if name == "bucket":
            where = f"{figures['partition']}/" if figures["partition"] else ""
            return (
                f"{table}: bucket {where}{figures['bucket']} up to offset {figures['end']:,} ({figures['rows']:,} rows)"
            )
        if name == "finished":
            return self._finished(figures)
        if name == "recovered":
            return f"{table}: snapshot {figures['snapshot']} of an interrupted round is now known to the server"
        if name == "failed":
            wait_s = figures.get("retry_in_s")
            return f"{table}: FAILED, {figures['reason']}" + (f" (retry in {wait_s:.0f} s)" if wait_s else "")
        if name == "maintenance failed":
            return f"{table}: maintenance failed, {figures['reason']}"
        if name == "disconnected":
            return f"server lost: {figures['reason']}; trying again in {figures['retry_s']:.0f} s"
        if name == "idle":
            return "up to date" + (
                f", {figures['backing_off']} tables backing off" if figures.get("backing_off") else ""
            )
        return None

    @staticmethod
    def _finished(figures: Mapping[str, Any]) -> str:
        table = figures["table"]
        if figures["snapshot"] is None:
            return f"{table}: nothing new"
        seconds = max(figures["seconds"], 0.001)
        parts = [
            f"{figures['rows']:,} rows",
            f"{figures['files']} files",
            f"{figures['bytes'] / 1e6:,.1f} MB",
            f"{seconds:.1f} s ({figures['rows'] / seconds:,.0f} rows/s)",
            f"snapshot {figures['snapshot']}",
        ]
        parts += [f"{figures[what]} {what}" for what in ("compacted", "expired", "swept") if figures[what]]
        parts += ["cut by the time limit, goes on"] if figures["cut"] else []
        return f"{table}: {', '.join(parts)}"
