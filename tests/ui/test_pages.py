# SPDX-License-Identifier: Apache-2.0
"""All pages of the console in a real browser."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from tests.console.conftest import Running

import fluss

from .conftest import CHOOSE, MARKUP, Page, changes, violations, windows

PAGES = ("overview", "sql", "create", "upload", "consumers", "pipelines", "clients", "access")
TABLE_PAGES = ("data", "live", "edit", "schema", "storage", "lake")
SNAPSHOTS = (
    "return [...document.querySelectorAll('select option')].filter(one => one.innerText.startsWith('snapshot '))"
)

# Changes, and not rows of the table: while many changes come, the table keeps the newest rows only.
DRAWN = "return Number(document.querySelector('[data-drawn]').dataset.drawn)"


def test_overview(page: Page, console: Running) -> None:
    with changes(console.server):
        page.open("overview")
        page.wait_for("fluss.orders")
        page.until(lambda: len(page.elements("svg.chart path.line")) >= 4)
        page.wait_for("putKv")
        page.until(lambda: page.script("return document.querySelector('path.line').getAttribute('d').length") > 150)
        page.picture("console-overview")
        page.until(lambda: page.elements("svg.spark path.line"))
    assert "green" in page.text
    headings = page.script("return [...document.querySelectorAll('#main .name, #main h2')].map(one => one.innerText)")
    assert headings[:2] == ["Health", "Rows written"]
    assert headings[-1] == "Requests"
    assert page.problems() == []


def test_data(page: Page) -> None:
    page.open("data", "fluss.orders").wait_for("rows 1 to 100")
    page.button("Next ›").click()
    page.wait_for("rows 101 to 200")
    page.button("‹ Previous").click()
    page.wait_for("rows 1 to 100")
    where = page.field("Filter")
    where.send_keys("id >= 100 and id < 103\n")
    page.wait_for("rows 1 to 3, the last")
    where.clear()
    where.send_keys("prize = 1\n")
    page.wait_for("prize")
    assert page.elements(".problem")


def test_records_by_offset(page: Page) -> None:
    page.open("data", "fluss.events")
    page.script(CHOOSE, page.field("Show"), "records")
    page.wait_for("offsets 0 to 100")
    page.field("Offset").send_keys("-5\n")
    page.until(lambda: len(page.elements("tbody tr")) == 5)
    assert page.problems() == []


def test_an_empty_bucket_leads_to_one_with_records(page: Page, console: Running) -> None:
    with fluss.connect(console.server) as db:
        db.create_table("sparse", "n bigint", buckets=4, bucket_key="n").append([{"n": 42}])  # in bucket 1
        page.open("data", "fluss.sparse")
        page.script(CHOOSE, page.field("Show"), "records")
        page.wait_for("Bucket 0 has no records")
        page.button("bucket 1").click()
        page.until(lambda: [cell.text for cell in page.elements("tbody td:last-child")] == ["42"])
        assert page.problems() == []
        db.drop_table("sparse")


def test_live(page: Page, console: Running) -> None:
    page.open("live", "fluss.orders").wait_for("live")
    with changes(console.server):
        page.until(lambda: len(page.elements("tbody tr")) > 15)
        page.until(lambda: page.elements("td del + ins"))
        page.picture("console-live")
        page.button("Pause").click()
        page.wait_for("paused")
        before = page.script(DRAWN)
        page.script("return new Promise(done => setTimeout(done, 600))")
        assert page.script(DRAWN) == before
        page.button("Resume").click()
        page.until(lambda: page.script(DRAWN) > before)
    assert page.problems() == []


@pytest.mark.parametrize(("kind", "count"), [("tab", 3), ("window", 7)])
def test_many_live_pages(page: Page, console: Running, kind: str, count: int) -> None:
    """A browser has six connections to one address: all of its pages share one stream; those not seen follow nothing.

    One that was hidden goes on from where it was: it has all changes.
    """
    with windows(page, count, kind) as handles:
        for number, window in enumerate(handles):
            page.driver.switch_to.window(window)
            page.open("live", f"fluss.orders?where=id+%3E+{number}").wait_for("live")
        with changes(console.server):
            for window in handles:
                page.driver.switch_to.window(window)
                assert not page.script("return document.hidden")
                page.until(lambda: page.elements("tbody tr"))


def test_a_refused_stream_says_why(page: Page) -> None:
    page.open("live", "fluss.orders").wait_for("live")
    page.script(CHOOSE, page.field("Begin at"), "position")
    page.field("Position").send_keys("yesterday\n")
    page.wait_for("stopped")
    assert "not 'yesterday'" in page.element(".problem").text


def test_lookup_and_edit(page: Page, console: Running) -> None:
    page.open("edit", "fluss.orders")
    page.field("id").send_keys("15000\n")
    page.wait_for("Save changes")
    price = page.field("price")
    price.clear()
    price.send_keys("77.5")
    page.button("Save changes").click()
    page.button("Change").click()
    page.until(lambda: "was changed" in page.element("#toasts").text)
    page.button("Delete row").click()
    page.button("Delete").click()
    page.wait_for("Deleted.")
    with fluss.connect(console.server, timeout=20) as db:
        assert db.table("orders").get(15_000) is None
    page.button("New row").click()
    page.wait_for("New row")
    assert page.problems() == []


def test_schema_and_its_code(page: Page) -> None:
    page.open("schema", "fluss.orders").wait_for("What customers ordered.")
    assert "table.log.ttl" in page.script("return document.getElementById('main').textContent")
    page.field("New column").send_keys("note")
    page.field("Type").send_keys("string")
    page.button("Show code").click()
    page.wait_for("add_column('note', 'string')")
    assert page.problems() == []


def test_create_a_table(page: Page) -> None:
    page.open("create")
    page.field("Name").send_keys("by_form")
    page.field("Columns").send_keys("id bigint not null, item string")
    page.field("Primary key").send_keys("id")
    page.button("Show code").click()
    page.wait_for("db.create_table(")
    page.button("Create table").click()
    page.until(lambda: "#/schema/fluss.by_form" in page.driver.current_url)
    page.wait_for("History of the schema")
    assert "Apply" not in page.element("section.dangerous").text
    page.button("Drop table").click()
    page.field("Enter fluss.by_form to confirm").send_keys("fluss.by_form\n")
    page.until(lambda: "#/overview" in page.driver.current_url)
    assert page.problems() == []


def test_upload(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "My sales.csv"
    path.write_text("id,item\n1,tea\n2,<b>coffee</b>\n", encoding="utf-8")
    page.open("upload")
    page.element("input[type=file]").send_keys(str(path))
    page.wait_for("2 rows, 2 columns")
    page.button("Create table and load").click()
    page.until(lambda: "#/data/fluss.my_sales" in page.driver.current_url)
    page.wait_for("<b>coffee</b>")
    assert page.problems() == []


def test_a_file_dropped_on_any_page(page: Page) -> None:
    page.open("overview")
    page.script(
        "const moved = new DataTransfer(); moved.items.add(new File(['a,b\\n1,2\\n'], 'dropped.csv'));"
        "document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: moved, bubbles: true, cancelable: true}))"
    )
    page.wait_for("dropped.csv: 1 rows, 2 columns")
    assert page.problems() == []


def test_storage(page: Page) -> None:
    page.open("storage", "fluss.orders").wait_for("Skew")
    assert len(page.elements("tbody tr")) == 4
    assert page.problems() == []


def test_lake(page: Page) -> None:
    page.open("lake", "fluss.orders").wait_for("The lake is off")
    page.open("lake", "fluss.tiered").wait_for("100 rows")
    page.button("Tier now").click()
    page.wait_for("up to date")
    page.open("data", "fluss.tiered")
    page.until(lambda: len(page.elements("select option")) >= 3)
    assert page.problems() == []


def test_rows_of_a_lake_snapshot(page: Page, console: Running) -> None:
    """Time travel: the rows that were there when the snapshot was taken, and all rows without one."""
    with fluss.connect(console.server, timeout=20) as db:
        table = db.create_table("travel", "id bigint, item string", properties={"table.datalake.enabled": "true"})
        table.append([(n, "old") for n in range(30)])
        page.open("lake", "fluss.travel").wait_for("30 rows")
        page.button("Tier now").click()
        page.wait_for("up to date")
        table.append([(n, "new") for n in range(30, 45)])
    page.open("data", "fluss.travel").wait_for("rows 1 to 45, the last")
    page.until(lambda: len(page.script(SNAPSHOTS)) == 1)
    snapshot = page.script(SNAPSHOTS)[0]
    page.script(CHOOSE, page.script("return arguments[0].parentElement", snapshot), snapshot.get_attribute("value"))
    page.wait_for("rows 1 to 30, the last")
    assert "new" not in {one.text for one in page.elements("tbody td")}
    assert page.problems() == []


def test_clients_access_and_log(page: Page) -> None:
    page.open("clients").wait_for("127.0.0.1:")
    page.open("access").wait_for("Access rules are off")
    page.wait_for("everyone")
    assert page.problems() == []


def test_a_page_that_loads_says_so(page: Page) -> None:
    page.open("overview")
    # The frame draws a page when its address changes, before this listener is called.
    look = "window.addEventListener('hashchange', () => done(document.querySelector('#main [aria-busy]').innerText))"
    assert page.script(f"return new Promise(done => {{ {look}; location.hash = '#/clients' }})") == "Loading…"


def test_charts_have_a_time_axis_and_gaps(page: Page) -> None:
    page.open("overview")
    found = page.script(
        "return (async () => {"
        "const {LineChart} = await import('/static/chart.js');"
        "const chart = new LineChart('n', [{name: 'n', value: (one) => one.n}], String);"
        "document.getElementById('main').append(chart.element);"
        "const at = Date.UTC(2026, 6, 1) + new Date().getTimezoneOffset() * 60000;"
        "chart.show([0, 1, 2, 18, 19, 20].map((s) => ({time_ms: at + s * 1000, n: s})), 20000);"
        "const points = (line) => line.getAttribute('d').match(/[ML]/g).length;"
        "return [[...chart.plot.querySelectorAll('path.line')].map(points),"
        "[...chart.plot.querySelectorAll('text')].map((one) => one.textContent).slice(-3)];"
        "})()"
    )
    assert found == [[3, 3], ["00:00:00", "00:00:10", "00:00:20"]]


@pytest.mark.parametrize("name", TABLE_PAGES)
def test_markup_is_shown_as_text(page: Page, name: str) -> None:
    page.open(name, "fluss.nasty")
    page.wait_for("fluss.nasty")
    page.script("return new Promise(done => setTimeout(done, 300))")
    assert "pwned" not in page.driver.title
    assert page.elements("main img, main script") == []
    if name in ("data", "schema"):
        page.wait_for(MARKUP)
    assert page.problems() == []


def test_markup_in_names_and_errors(page: Page) -> None:
    page.driver.get("about:blank")
    page.driver.get(f"{page.url}/#/data/{quote(MARKUP, safe='')}")
    page.until(lambda: page.elements(".problem"))
    assert MARKUP in page.text
    page.sql(f'select * from "{MARKUP}"')
    page.until(lambda: page.elements(".problem"))
    assert "pwned" not in page.driver.title
    assert page.elements("main img") == []


def test_themes_narrow_windows_and_keyboard(page: Page) -> None:
    page.open("overview")
    theme = page.script("return document.documentElement.dataset.theme")
    page.element("#theme").click()
    assert page.script("return document.documentElement.dataset.theme") != theme
    page.element("#theme").click()
    page.driver.set_window_size(420, 800)
    for name in PAGES:
        page.open(name)
        wide = page.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 1, name
    page.open("live", "fluss.orders")  # on a phone the data comes first
    assert page.element("#main .grid").location["y"] < page.element("#main form").location["y"]
    assert not page.element("nav").is_displayed()
    page.element("#menu").click()
    assert page.element("nav").is_displayed()
    page.driver.set_window_size(1280, 940)
    page.open("overview")
    page.script("document.activeElement.blur(); document.querySelector('.skip').focus()")
    page.driver.switch_to.active_element.send_keys("\n")
    assert page.script("return document.activeElement.id") == "main"


@pytest.mark.parametrize("name", [*PAGES, *TABLE_PAGES])
def test_pages_are_accessible(page: Page, name: str) -> None:
    """axe finds nothing: names of controls, headings, roles, contrast, in both themes and on a phone."""
    page.open(name, "fluss.orders" if name in TABLE_PAGES else "")
    page.until(lambda: not page.elements("#main [aria-busy]"))
    assert violations(page) == []


def test_the_checker_finds_what_is_wrong(page: Page) -> None:
    page.open("overview")
    page.script("document.getElementById('main').append(document.createElement('button'))")
    assert {found[1] for found in violations(page)} == {"button-name"}
