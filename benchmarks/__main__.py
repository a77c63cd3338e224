# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks`: prints the whole table, ours beside the peer's or the limit's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from tests.interop.environment import wheel_python

from benchmarks import report
from benchmarks.cases.client import client_cases
from benchmarks.cases.server import growth_cases, life_cases, raw_cases
from benchmarks.harness import Result, Settings, Worker, free_python, machine_facts
from fluss.server.local import LocalServer

PEER_VERSION = "1.0.0"


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of the rows and three repeats: about a minute.")
@click.option("--repeats", type=int, help="How often each side is measured.")
@click.option("-k", "--case", "cases", multiple=True, help="Only cases whose name contains this; may be repeated.")
@click.option("--json", "json_path", type=click.Path(), help="Write the results as JSON.")
@click.option("--chart", "chart_path", type=click.Path(), help="Write the ratios as an SVG chart.")
@click.option("--record", is_flag=True, help="Remember the ratios; later runs say which one fell.")
def main(
    quick: bool,
    repeats: int | None,
    cases: tuple[str, ...],
    json_path: str | None,
    chart_path: str | None,
    record: bool,
) -> None:
    """Measure the client against the official one, and the server against the limits of the machine."""
    settings = Settings(quick, repeats or (3 if quick else 5), 0.1 if quick else 1.0, list(cases))
    console = Console()
    peer_python = str(wheel_python(PEER_VERSION))
    facts = machine_facts()
    console.print(facts)
    results: list[Result] = []
    with LocalServer() as server:
        ours = Worker("ours", free_python(), server.bootstrap_servers)
        peer = Worker(f"pyfluss {PEER_VERSION}", peer_python, server.bootstrap_servers)
        try:
            for found in (
                client_cases(settings, ours, peer, peer_python),
                raw_cases(settings, ours),
                growth_cases(settings, ours),
                life_cases(settings),
            ):
                for result in found:
                    console.print(f"{result.name}: {result.value:.3g} ({result.verdict})")
                    results.append(result)
        finally:
            ours.close()
            peer.close()
    report.show(results, console)
    for line in report.fallen(results):
        console.print(f"[red]fell[/] {line}")
    if record:
        report.record(results)
    if json_path:
        Path(json_path).write_text(json.dumps(report.to_json(results, facts), indent=2) + "\n")
    if chart_path:
        Path(chart_path).write_text(
            report.chart(results, f"fluss-python against pyfluss {PEER_VERSION} and raw limits")
        )
    missed = [result.name for result in results if result.verdict == "MISSED"]
    if missed:
        console.print(f"missed: {', '.join(missed)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
