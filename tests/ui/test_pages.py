# SPDX-License-Identifier: Apache-2.0
"""All pages of the console in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium.webdriver.common.keys import Keys
from tests.console.conftest import Running

import fluss

from .conftest import MARKUP, Page, changes

PAGES = ("overview", "sql", "create", "upload", "consumers", "clients", "access")
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
    assert "green" in page.text
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
    page.script("arguments[0].value = 'records'; arguments[0].dispatchEvent(new Event('change'))", page.field("Show"))
    page.wait_for("offsets 0 to 100")
    page.field("Offset").send_keys("-5\n")
    page.until(lambda: len(page.elements("tbody tr")) == 5)
    assert page.problems() == []


def test_an_empty_bucket_leads_to_one_with_records(page: Page, console: Running) -> None:
    with fluss.connect(console.server) as db:
        db.create_table("sparse", "n bigint", buckets=4, bucket_key="n").append([{"n": 42}])  # in bucket 1
        page.open("data", "fluss.sparse")
        show = page.field("Show")
        page.script("arguments[0].value = 'records'; arguments[0].dispatchEvent(new Event('change'))", show)
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


def test_many_tabs(page: Page, console: Running) -> None:
    """A browser has six connections to one address: tabs in the background leave them to the one that is seen."""
    first = page.driver.current_window_handle
    tabs = []
    try:
        for _ in range(8):
            page.driver.switch_to.new_window("tab")
            tabs.append(page.driver.current_window_handle)
            page.open("live", "fluss.orders").wait_for("live")
        with changes(console.server):
            page.until(lambda: page.elements("tbody tr"))
            # One that was hidden goes on from where it was: it has them all.
            page.driver.switch_to.window(tabs[0])
            page.until(lambda: page.elements("tbody tr"))
    finally:
        for tab in tabs:
            page.driver.switch_to.window(tab)
            page.driver.close()
        page.driver.switch_to.window(first)


def test_a_refused_stream_says_why(page: Page) -> None:
    page.open("live", "fluss.orders").wait_for("live")
    begin = page.field("Begin at")
    page.script("arguments[0].value = 'position'; arguments[0].dispatchEvent(new Event('change'))", begin)
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


def editor(page: Page, css: str) -> list[Any]:
    """What is in the editor."""
    return list(page.element(".editor").shadow_root.find_elements("css selector", css))


def write_sql(page: Page, text: str) -> None:
    """Type into the editor, in the place of what is there."""
    (area,) = editor(page, ".cm-content")
    # In one call, which holds the selection: a call begins at the end of the text.
    area.send_keys(Keys.CONTROL, "a", Keys.NULL, text, Keys.ESCAPE)


def test_sql(page: Page) -> None:
    page.open("sql")
    write_sql(page, "select item, count(*) as n from ord")
    editor(page, ".cm-content")[0].send_keys("e")
    page.until(lambda: [one.text for one in editor(page, ".cm-completionLabel")][:1] == ["orders"])
    editor(page, ".cm-content")[0].send_keys("\t")
    page.until(lambda: editor(page, ".cm-content")[0].text.endswith("from orders"))
    editor(page, ".cm-content")[0].send_keys(" group by all order by n desc, item", Keys.ESCAPE)
    page.button("Run").click()
    page.wait_for("6 rows in")
    assert page.elements("svg.chart rect")
    assert editor(page, ".cm-line span")  # keywords are coloured
    page.picture("console-sql")
    page.element("th button.sort").click()
    page.until(lambda: page.element("tbody td").text == "bagel")
    page.element("th button.sort").click()
    page.until(lambda: page.element("tbody td").text == "oat milk")
    page.script("document.querySelector('main details').open = true")
    page.until(lambda: len(page.elements("[aria-label='Figures of the columns'] tbody tr")) == 2)
    write_sql(page, "select nothing from orders")
    editor(page, ".cm-content")[0].send_keys(Keys.CONTROL, Keys.ENTER)
    page.until(lambda: page.elements(".problem"))
    page.until(lambda: [one.text for one in editor(page, ".cm-wrong")] == ["nothing"])
    # Chromium gives text that replaces other text the style of that as an attribute, which the policy blocks.
    expected = ("400 (Bad Request)", "style attributes")
    assert [one for one in page.problems() if not any(text in one for text in expected)] == []


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
    chosen = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', {bubbles: true}))"
    page.script(chosen, page.script("return arguments[0].parentElement", snapshot), snapshot.get_attribute("value"))
    page.wait_for("rows 1 to 30, the last")
    assert "new" not in {one.text for one in page.elements("tbody td")}
    assert page.problems() == []


def test_clients_access_and_log(page: Page) -> None:
    page.open("clients").wait_for("127.0.0.1:")
    page.open("access").wait_for("Access rules are off")
    page.wait_for("everyone")
    assert page.problems() == []


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
    page.script("return new Promise(done => setTimeout(done, 400))")
    page.script(axe_source())
    for theme, width in (("light", 1280), ("dark", 1280), ("light", 420)):
        page.driver.set_window_size(width, 940)
        page.script("document.documentElement.dataset.theme = arguments[0]", theme)
        found = page.script("return axe.run(document, {resultTypes: ['violations']})")
        violations = [
            (one["id"], one["help"], [node["html"][:120] for node in one["nodes"]]) for one in found["violations"]
        ]
        assert violations == [], (theme, width)
        assert found["testEngine"]["name"] == "axe-core"


def test_the_checker_finds_what_is_wrong(page: Page) -> None:
    page.open("overview")
    page.script(axe_source())
    page.script("document.getElementById('main').append(document.createElement('button'))")
    found = page.script("return axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [(one["id"], one["impact"]) for one in found] == [("button-name", "critical")]


def axe_source() -> str:
    axe = pytest.importorskip("axe_core_python", reason="pip install axe-core-python")
    return (Path(axe.__path__[0]) / "axe.min.js").read_text(encoding="utf-8")
