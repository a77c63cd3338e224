# SPDX-License-Identifier: Apache-2.0
"""Puts the figures into the documents: `python -m benchmarks.documents` redraws tables and charts from the JSON.

A page says where a table goes: all between `<!-- figures: NAME -->` and `<!-- end figures -->` is replaced.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import charts, report
from benchmarks.harness import REPOSITORY, Result
from benchmarks.scale import report as scale_report
from benchmarks.titles import TITLES

RESULTS = Path(__file__).resolve().parent / "results"
CHARTS = REPOSITORY / "docs" / "charts"
PAGES = tuple(
    REPOSITORY / name
    for name in (
        "README.md",
        "docs/performance.md",
        "docs/comparisons.md",
        "docs/scaling.md",
        "docs/performance-targets.md",
    )
)

PRELIMINARY = (
    "**Preliminary**: from short or partial runs on a busy machine, not the full measurement described above. "
)

UNMEASURED = "Not measured yet.\n"
"""What stands in a section until there are figures for it."""

_SECTION = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- end figures -->)", re.DOTALL)


def keep(suite: str, content: dict[str, Any], *, part: bool = False, folder: Path = RESULTS) -> None:
    """Keeps the results of a run, those of a part beside what is there, and redraws the documents."""
    path = folder / f"{suite}.json"
    key = "name" if suite != "scale" else "axis"
    if part and path.exists():
        new = {one[key]: one for one in content["results"]}
        before = json.loads(path.read_text())
        merged = [new.pop(one[key], one) for one in before["results"]] + list(new.values())
        # What was put together from several runs is only as good as the worst of them.
        preliminary = content.get("preliminary", False) or before.get("preliminary", False)
        content = {**content, "results": merged, "preliminary": preliminary}
    report.write_json(content, path)
    redraw()


def kept(suite: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What was kept of a suite; nothing if it never ran."""
    path = folder / f"{suite}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"machine": {}, "results": []}
    return found


def results(suite: str) -> list[Result]:
    return [Result.from_json(one) for one in kept(suite)["results"]]


def sections() -> dict[str, str]:
    """The text of every section that has figures."""
    found = {
        suite: _picture(suite, TITLES[suite]) + report.to_markdown(results(suite)) + _machine(suite)
        for suite in TITLES
        if results(suite)
    }
    everything = [result for suite in TITLES for result in results(suite)]
    warning = f"{PRELIMINARY}\n\n" if any(kept(suite).get("preliminary") for suite in TITLES) else ""
    if everything:
        found["targets"] = warning + report.targets(everything)
        found["headline"] = warning + report.headline(everything)
    for axis in kept("scale")["results"]:
        name = f"scale-{axis['axis']}"
        found[name] = _picture(name, f"Cost by {axis['title']}") + scale_report.markdown_of(axis)
    if kept("scale")["results"]:
        found["scale"] = scale_report.summary(kept("scale")["results"]) + _machine("scale")
    return found


def _picture(name: str, title: str) -> str:
    return f"![{title}](charts/{name}.svg)\n\n"


def _machine(suite: str) -> str:
    facts = kept(suite)["machine"]
    words = [f"{facts.get('cpu', 'unknown processor')}, {facts.get('cores')} cores"]
    if "memory_gb" in facts:
        words.append(f"{facts['memory_gb']} GB of memory")
    words += [f"Python {facts.get('python')}", f"load {facts.get('load', 0):.1f} at the start", str(facts.get("time"))]
    return f"\n{PRELIMINARY if kept(suite).get('preliminary') else ''}Measured on {'; '.join(words)}.\n"


def fill(text: str, found: dict[str, str]) -> str:
    """A page with its figures made anew; a section without figures stays as it is."""
    return _SECTION.sub(lambda part: f"{part[1]}{found[part[2]]}{part[3]}" if part[2] in found else part[0], text)


def marks(text: str) -> dict[str, str]:
    """The sections that a page asks for, and what stands in them."""
    return {part[2]: part[0].removeprefix(part[1]).removesuffix(part[3]) for part in _SECTION.finditer(text)}


def charts_of(text: str) -> list[str]:
    """Charts that a page shows."""
    return re.findall(r"\((charts/[a-z-]+\.svg)\)", text)


def redraw() -> None:
    found = sections()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if fill(text, found) != text:
            page.write_text(fill(text, found), encoding="utf-8")
    CHARTS.mkdir(parents=True, exist_ok=True)
    for suite, title in TITLES.items():
        if results(suite):
            (CHARTS / f"{suite}.svg").write_text(charts.bars(title, report.ratios(results(suite))))
    for axis in kept("scale")["results"]:
        (CHARTS / f"scale-{axis['axis']}.svg").write_text(scale_report.chart_of(axis))


if __name__ == "__main__":
    redraw()
