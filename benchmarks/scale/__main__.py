# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.scale`: how costs grow, one axis after the other; about a quarter of an hour."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markdown import Markdown

from benchmarks import documents, report
from benchmarks.harness import REPOSITORY, as_users_have_it, end_tidily, machine_facts
from benchmarks.scale import (
    buckets,
    clients,
    columns,
    data_size,
    handles,
    keys,
    row_size,
    rows_per_batch,
    stored_rows,
    tables,
)
from benchmarks.scale.report import chart_of, markdown_of, summary
from benchmarks.scale.study import Point, Study

AXES: dict[str, tuple[str, Callable[[Study], Iterator[Point]]]] = {
    "rows-per-batch": ("rows per batch", rows_per_batch.measure),
    "columns": ("columns", columns.measure),
    "row-size": ("bytes per row", row_size.measure),
    "buckets": ("buckets", buckets.measure),
    "handles": ("buckets in use", handles.measure),
    "tables": ("tables", tables.measure),
    "clients": ("clients", clients.measure),
    "keys": ("keys", keys.measure),
    "stored-rows": ("rows of a primary-key table", stored_rows.measure),
    "data-size": ("bytes of log", data_size.measure),
}


@click.command()
@click.option(
    "-k", "--axis", "wanted", multiple=True, type=click.Choice(list(AXES)), help="Only this; may be repeated."
)
@click.option("--max", "x_max", type=float, default=float("inf"), help="Stop an axis at this much of it.")
@click.option("--repeats", type=int, default=3, help="How often a point is measured; the middle counts.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where data goes while it runs.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Where the results go, as JSON.")
@click.option("--docs", is_flag=True, help="Keep the results in the repository and redraw tables and charts from them.")
def main(
    wanted: tuple[str, ...], x_max: float, repeats: int, folder: Path | None, json_path: Path | None, docs: bool
) -> None:
    """Measure how the cost of a unit of work changes as one thing grows and all else stays."""
    study = Study(x_max, repeats, folder or Path(REPOSITORY / ".cache"))
    study.folder.mkdir(exist_ok=True)
    end_tidily()
    as_users_have_it()
    console = Console()
    console.width = max(console.width, 150)
    facts = machine_facts()
    results: list[dict[str, Any]] = []
    began = time.monotonic()
    for name in wanted or AXES:
        title, measure = AXES[name]
        axis: dict[str, Any] = {"axis": name, "title": title, "points": []}
        for point in measure(study):
            figures = ", ".join(f"{cost}: {value:.4g}" for cost, value in point.costs.items())
            console.print(f"{time.monotonic() - began:5.0f} s  {point.x:,g} {title}: {figures}", soft_wrap=True)
            axis["points"].append({"x": point.x, "costs": {cost: round(v, 4) for cost, v in point.costs.items()}})
        results.append(axis)
    for axis in results:
        console.print(Markdown(markdown_of(axis)))
    console.print(Markdown(summary(results)))
    content = {"machine": facts, "results": results}
    out = json_path or REPOSITORY / ".cache" / "bench" / "scale.json"
    report.write_json(content, out)
    for axis in results:
        (out.parent / f"scale-{axis['axis']}.svg").write_text(chart_of(axis))
    if docs:
        documents.keep("scale", content, part=bool(wanted))


if __name__ == "__main__":
    main()
