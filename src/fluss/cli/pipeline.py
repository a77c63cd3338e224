# SPDX-License-Identifier: Apache-2.0
"""Declarative pipelines of Spark: ``fluss pipeline``."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path

import click

from fluss.cli.common import CliTarget, Failure, connected, handled_signals, json_option, note, print_json, report


@click.group()
def pipeline() -> None:
    """Declarative pipelines of Spark."""


@pipeline.command()
@click.argument("name")
@json_option
def init(name: str, as_json: bool) -> None:
    """Write a pipeline that can be run into a new folder.

    Example: fluss pipeline init shop
    """
    from fluss.spark.pipelines import write_project

    written = [str(path) for path in write_project(Path(name))]
    if as_json:
        print_json({"files": written})
        return
    for path in written:
        report(path)
    note(f"run it: fluss pipeline run {name}")


@pipeline.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--watch", is_flag=True, help="Run again and again until Ctrl-C.")
@click.option("--every", type=click.FloatRange(0), default=5.0, show_default=True, help="Pause with --watch, seconds.")
@click.option(
    "--master", default="local[*]", show_default=True, help="Where a Spark is started, e.g. spark://HOST:7077."
)
@click.option("--remote", help="Use a Spark that runs: sc://HOST:15002. It needs the catalog fluss.")
@connected
def run(link: CliTarget, folder: Path, watch: bool, every: float, master: str, remote: str | None) -> None:
    """Bring all tables of the pipeline in FOLDER up to date.

    Without --bootstrap the tables are on an embedded server, whose data is in FOLDER/.fluss.

    Example: fluss pipeline run shop --watch
    """
    import fluss
    from fluss.spark.pipelines import SPEC, check_installed, connect_server, database_of, run_pipeline

    check_installed()
    spec = folder / SPEC
    if not spec.is_file():
        raise Failure(f"'{spec}' does not exist; \"fluss pipeline init NAME\" writes a pipeline")
    stop = threading.Event()
    embedded = link.servers is None and link.profile is None
    if embedded and remote is not None:
        raise Failure("the tables are on the server that the catalog of --remote names; give its address with -b")
    with contextlib.ExitStack() as stack:
        if embedded:
            server = stack.enter_context(fluss.LocalServer(folder / ".fluss"))
            link = replace(link, servers=server.bootstrap_servers)
            note(f"server at {server.bootstrap_servers}, data in '{server.data_dir}'")
        database = database_of(spec)
        if database is not None:
            with link.database() as db:
                db.create_database(database, exist_ok=True)
        if remote is None:
            servers, login = link.resolve()
            remote = stack.enter_context(connect_server(master, servers, login))
        stack.enter_context(handled_signals(stop.set))  # after the start of Spark, which handles Ctrl-C otherwise
        while True:
            succeeded = run_pipeline(spec, remote)
            if not watch or stop.wait(every):
                break
    if not succeeded and not watch:
        raise Failure("the pipeline failed; the reason is above")
