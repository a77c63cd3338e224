# SPDX-License-Identifier: Apache-2.0
"""Charts are well-formed SVG that shows what it was given; pages are filled between their marks."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.scale import report
from benchmarks.scale.study import Study

from benchmarks import charts, documents

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_bars_show_names_values_and_who_missed() -> None:
    svg = charts.bars("Ratios <&>", [("quick & good", 3.0, 1.0), ("slow", 0.3, 0.4)])
    assert {"Ratios <&>", "quick & good", "3.00 x", "slow", "0.30 x"} <= set(texts(svg))
    bars = [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.get("height") == "18"]
    assert [bar.get("fill") for bar in bars] == [charts.GOOD, charts.POOR]
    (good, poor), width = [float(bar.get("x") or 0) for bar in bars], float(bars[1].get("width") or 0)
    assert poor + width == pytest.approx(good, abs=0.2), "one begins where the other ends: at 1"


def test_lines_lie_inside_the_chart_and_are_flat_when_the_cost_is() -> None:
    svg = charts.lines("Growth", "rows", "ns", {"flat": [(1, 50), (1000, 50)], "steep": [(1, 1), (1000, 5000)]})
    root = ElementTree.fromstring(svg)
    flat, steep = [
        [tuple(map(float, place.split(","))) for place in (line.get("points") or "").split()]
        for line in root.iter(f"{SVG}polyline")
    ]
    assert flat[0][1] == flat[1][1]
    assert steep[0][1] > steep[1][1]
    for x, y in flat + steep:
        assert 0 <= x <= float(root.get("width") or 0)
        assert 0 <= y <= float(root.get("height") or 0)
    assert {"1", "1 k", "flat", "steep"} <= set(texts(svg))


@pytest.mark.parametrize("points", [[(1.0, 5.0)], [(1.0, 0.0), (2.0, 3.0)]])
def test_a_single_point_or_a_zero_does_no_harm(points: list[tuple[float, float]]) -> None:
    assert "few" in texts(charts.lines("Growth", "rows", "ns", {"few": points}))


AXIS = {
    "axis": "columns",
    "title": "columns",
    "points": [
        {"x": 1, "costs": {"scan": 10.0, "append": 8.0}},
        {"x": 10, "costs": {"scan": 5.0, "append": 8.0}},
        {"x": 100, "costs": {"scan": 50.0, "append": 9.0}},
    ],
}


def test_the_growth_of_a_cost_counts_from_its_least_value() -> None:
    times, power = report.growth([(1, 10.0), (10, 5.0), (100, 50.0)])
    assert times == pytest.approx(10.0)
    assert power == pytest.approx(1.0)
    assert report.growth([(1, 10.0), (10, 5.0)]) == (1.0, 0.0)


def test_the_summary_names_what_grows_and_what_does_not() -> None:
    text = report.summary([AXIS])
    slower = {**AXIS, "points": [{"x": 1, "costs": {"scan": 1.0}}, {"x": 100, "costs": {"scan": 10.0}}]}
    assert "| columns | 1 … 100 | scan | 10.0 | 50.0 | 10.00 | grows steeply: x^1.00 |" in text
    assert "| columns | 1 … 100 | append | 8.00 | 9.00 | 1.12 | flat or falling |" in text
    assert "grows: x^0.50 |" in report.summary([slower])
    assert "| 10 | 5.00 | 8.00 |" in report.markdown_of(AXIS)
    assert "scan" in texts(report.chart_of(AXIS))


def test_a_page_is_filled_between_its_marks_and_nowhere_else() -> None:
    page = "a\n<!-- figures: one -->\nold\n<!-- end figures -->\nb\n<!-- figures: two -->\nkept\n<!-- end figures -->\n"
    assert documents.fill(page, {"one": "new\n"}) == page.replace("old", "new")


def test_the_documents_show_the_figures_that_are_kept() -> None:
    found = documents.sections()
    for page in documents.PAGES:
        text = page.read_text(encoding="utf-8")
        assert documents.fill(text, found) == text, f"run `python -m benchmarks.documents`: {page.name} is out of date"


def test_every_section_has_figures_or_says_that_it_has_none_and_every_chart_is_there() -> None:
    for page in documents.PAGES:
        text = page.read_text(encoding="utf-8")
        for name, shown in documents.marks(text).items():
            assert name in documents.sections() or shown == documents.UNMEASURED, f"no figures for {name}"
        for chart in documents.charts_of(text):
            assert (page.parent / chart).exists(), f"{chart} was not drawn"


def test_only_parts_of_a_preliminary_result_stay_preliminary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "redraw", lambda: None)
    one, two = {"name": "one", "value": 1}, {"name": "two", "value": 2}
    documents.keep("bench", {"results": [one], "preliminary": True}, folder=tmp_path)
    documents.keep("bench", {"results": [two, {"name": "one", "value": 3}]}, part=True, folder=tmp_path)
    found = documents.kept("bench", tmp_path)
    assert found["results"] == [{"name": "one", "value": 3}, two]
    assert found["preliminary"] is True
    documents.keep("bench", {"results": [two]}, folder=tmp_path)
    assert documents.kept("bench", tmp_path) == {"results": [two]}


def test_an_axis_can_be_cut_short_but_never_to_nothing() -> None:
    assert Study(x_max=10).points(1, 10, 100) == [1, 10]
    assert list(Study(x_max=0).points(1, 10, 100)) == [1]
