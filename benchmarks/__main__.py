# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks [bench | server | spark]`: prints the whole table, ours beside the peer's or the limit's."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
from rich.console import Console

from benchmarks import documents, record, report
from benchmarks.harness import REPOSITORY, Result, Settings, as_users_have_it, end_tidily, machine_facts
from benchmarks.suites import SUITES


@click.command()
@click.argument("suite", type=click.Choice(list(SUITES)), default="bench")
@click.option("--quick", is_flag=True, help="A tenth of the rows and three repeats: about a minute.")
@click.option("--repeats", type=int, help="How often each side is measured.")
@click.option("-k", "--case", "cases", multiple=True, help="Only cases whose name contains this; may be repeated.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Where the results go, as JSON.")
@click.option("--record", "remember", is_flag=True, help="Remember the ratios; later runs say which one fell.")
@click.option("--docs", is_flag=True, help="Keep the results in the repository and redraw tables and charts from them.")
def main(
    suite: str,
    quick: bool,
    repeats: int | None,
    cases: tuple[str, ...],
    json_path: Path | None,
    remember: bool,
    docs: bool,
) -> None:
    """Measure, both sides in turn; ends with status 1 when a bar is missed or a ratio fell since it was recorded."""
    if quick and (remember or docs):
        raise click.UsageError("a quick run is no record: its tables are too small")
    settings = Settings(quick, repeats or (3 if quick else 5), 0.1 if quick else 1.0, list(cases))
    end_tidily()
    as_users_have_it()
    console = Console()
    console.width = max(console.width, 130)  # the table is of no use when its cells are broken
    facts = machine_facts()
    console.print(facts)
    results: list[Result] = []
    began = time.monotonic()
    for result in SUITES[suite](settings):
        console.print(f"{time.monotonic() - began:5.0f} s  {result.name}: {result.value:.3g} ({result.verdict})")
        results.append(result)
    if not results:
        raise click.UsageError(f"no case of {suite!r} has a name with {' or '.join(map(repr, cases))} in it")
    report.show(results, console)
    fallen = [] if quick else record.fallen(results, record.recorded())
    for line in fallen:
        console.print(f"[red]fell[/] {line}")
    missed = [result.name for result in results if result.verdict == "MISSED"]
    if missed:
        console.print(f"[red]missed[/] {', '.join(missed)}")
    report.write_json(report.to_json(results, facts), json_path or REPOSITORY / ".cache" / "bench" / f"{suite}.json")
    if remember:
        record.remember(results)
    if docs:
        documents.keep(suite, report.to_json(results, facts), part=bool(cases))
    sys.exit(1 if missed or (fallen and not remember) else 0)


if __name__ == "__main__":
    main()
