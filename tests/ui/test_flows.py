# SPDX-License-Identifier: Apache-2.0
"""What users do with the console beyond single pages: links, histories, servers that restart, rights that end."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path

from tests.console.conftest import Running, running_console, server_with_console
from tests.ports import free_port
from tests.waiting import at_most

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.console.settings import Settings
from fluss.tools.flows import Flow, note_flows

from .conftest import CHOOSE, Page, other, violations, windows


def connection(page: Page) -> str:
    return str(page.script("return document.getElementById('connection').textContent"))


def test_a_server_that_restarts(page: Page, tmp_path: Path) -> None:
    """Pages show that the server is gone, queries fail at once, and all goes on when it is back."""
    port = free_port()
    with running_console(Settings(f"127.0.0.1:{port}", port=0)) as console:
        there = Page(page.driver, f"http://127.0.0.1:{console.port}")
        with fluss.LocalServer(tmp_path, port=port) as server, fluss.connect(server.bootstrap_servers) as db:
            db.create_table("kept", "id bigint not null, n int", primary_key="id").upsert([(1, 1)])
            there.open("overview").wait_for("fluss.kept")
            there.until(lambda: "green" in there.text)
            there.open("live", "fluss.kept").wait_for("live")
        there.wait_for("disconnected")
        assert connection(there) == "disconnected"
        there.open("overview")
        there.until(lambda: "disconnected" in there.element(".tiles").text)
        assert "green" not in there.text
        with at_most(15):  # not after all retries of a query, which take a minute
            there.sql("select 1")
            there.until(lambda: there.elements(".problem"))
        there.driver.get("about:blank")
        there.driver.get(f"{there.url}/#/live/fluss.kept")
        with fluss.LocalServer(tmp_path, port=port) as server, fluss.connect(server.bootstrap_servers) as db:
            there.until(lambda: connection(there) == "connected")
            there.wait_for("live")
            db.table("kept").update(1, n=2)
            there.until(lambda: there.elements("tbody ins"))
            assert "User" not in there.text  # no login form
        there.driver.get("about:blank")


def test_a_console_that_restarts_lets_its_pages_in_again(page: Page, console: Running) -> None:
    settings = Settings(console.server, port=free_port())
    with other(page, f"http://127.0.0.1:{settings.port}") as there:
        with running_console(settings):
            there.open("overview").wait_for("fluss.orders")
        there.until(lambda: connection(there) == "disconnected")
        with running_console(replace(settings)):
            there.until(lambda: connection(there) == "connected")
            assert there.elements("input[type=password]") == []


def test_a_query_is_cancelled(page: Page) -> None:
    """With the button, and by leaving the page; meanwhile other tabs have theirs answered."""
    endless = "select sum(a.range + b.range) from range(10_000_000) a, range(10_000_000) b"

    def answered() -> None:
        page.sql("select 40 + 2 as n")
        page.until(lambda: [one.text for one in page.elements("tbody td")] == ["42"])

    page.sql(endless)
    with windows(page, 1, "tab"):
        answered()
    page.button("Cancel").click()
    page.wait_for("The query was cancelled.")
    answered()
    page.sql(endless)
    page.script("location.hash = '#/overview'")
    page.wait_for("fluss.orders")
    answered()


def test_the_menu_shows_all_tables_and_keeps_its_place(page: Page, db: fluss.Database) -> None:
    page.open("overview")
    page.until(lambda: page.elements("nav details a"))
    names = [f"many_{n:03}" for n in range(40)]
    for name in names:
        db.create_table(f"lots.{name}", "n int", exist_ok=True)

    def shown() -> set[str]:
        return set(page.script("return [...document.querySelectorAll('nav details .name')].map(one => one.innerText)"))

    page.until(lambda: set(names) <= shown())
    page.script("document.getElementById('nav').scrollTop = 300")
    page.element("nav details a[href='#/data/lots.many_039']").send_keys("")
    page.script("arguments[0].focus({preventScroll: true})", page.element("a[href='#/data/lots.many_012']"))
    before = page.script("return document.getElementById('nav').scrollTop")
    db.create_table("lots.zzz", "n int", exist_ok=True)
    page.until(lambda: "zzz" in shown())
    assert page.script("return document.getElementById('nav').scrollTop") == before
    assert page.script("return document.activeElement.getAttribute('href')") == "#/data/lots.many_012"
    page.sql("show tables from lots")
    page.wait_for("41 rows in")
    db.drop_database("lots", cascade=True)


def test_databases_of_the_menu_can_be_closed(page: Page, db: fluss.Database) -> None:
    """They stay closed while the list is renewed; each table has the icon of its kind and its number of rows."""
    db.create_table("closing.lines", "n int").append([(n,) for n in range(12_345)])
    db.create_table("closing.keyed", "n int", primary_key="n")
    page.open("overview")
    page.until(lambda: page.elements("a[href='#/data/closing.lines'] .rows"))
    page.until(lambda: page.element("a[href='#/data/closing.lines'] .rows").text == "12k")
    icons = [page.element(f"a[href='#/data/closing.{name}'] .kind path") for name in ("lines", "keyed")]
    assert len({one.get_attribute("d") for one in icons}) == 2
    group = "[...document.querySelectorAll('nav details')].find(one => one.innerText.startsWith('closing'))"
    page.script(f"{group}.querySelector('summary').click()")
    page.until(lambda: not page.element("a[href='#/data/closing.lines']").is_displayed())
    db.create_table("fluss.renewed", "n int")
    page.until(lambda: page.elements("a[href='#/data/fluss.renewed']"))
    assert not page.script(f"return {group}.open")
    db.drop_table("fluss.renewed")
    db.drop_database("closing", cascade=True)


def test_a_query_that_needs_too_much_memory_ends_alone(page: Page) -> None:
    page.sql("select repeat('x', 50000000) from range(60)")
    page.until(lambda: [one for one in page.elements(".problem") if "memory" in one.text.lower()])
    page.sql("select 40 + 2 as n")
    page.until(lambda: [one.text for one in page.elements("tbody td")] == ["42"])


def test_jump_with_the_keyboard(page: Page) -> None:
    page.open("overview").wait_for("fluss.orders")
    page.script("window.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, cancelable: true}))")
    page.element("#jump input").send_keys("orders\n")
    page.until(lambda: "#/data/fluss.orders" in page.driver.current_url)


def test_refreshing_keeps_scroll_position_focus_and_selection(page: Page, db: fluss.Database) -> None:
    page.open("overview").wait_for("putKv")
    row = page.element("#main .grid a[href='#/data/fluss.orders']")
    page.script("arguments[0].focus(); getSelection().selectAllChildren(arguments[0])", row)
    tick = "return document.querySelector('svg.chart').innerHTML"
    for _ in range(2):
        before = page.script(tick)
        page.until(lambda before=before: page.script(tick) != before)
    assert page.script("return document.activeElement.textContent") == "fluss.orders"
    assert page.script("return String(getSelection())") == "fluss.orders"


def test_links_lead_to_what_was_shown(page: Page) -> None:
    page.open("data", "fluss.orders")
    page.field("Filter").send_keys("id < 3\n")
    page.wait_for("rows 1 to 3, the last")
    address = page.driver.current_url
    assert "where=id" in address
    page.field("Filter").send_keys(" and id > 0\n")
    page.wait_for("rows 1 to 2, the last")
    page.driver.back()
    page.wait_for("rows 1 to 3, the last")
    page.driver.forward()
    page.wait_for("rows 1 to 2, the last")
    page.driver.get("about:blank")
    page.driver.get(address)
    page.wait_for("rows 1 to 3, the last")
    page.open("live", "fluss.orders?where=id+%3D+5&start=earliest")
    page.until(lambda: page.elements("tbody tr"))
    assert page.field("Filter").get_attribute("value") == "id = 5"
    page.open("data", "%")
    page.until(lambda: page.elements(".problem"))
    page.driver.get("about:blank")
    page.driver.get(f"{page.url}/#/data/%")
    page.until(lambda: page.elements(".problem"))


def test_the_history_of_a_key(page: Page, db: fluss.Database) -> None:
    columns = "id bigint not null, item string, tags map<string, bigint>, data bytes"
    table = db.create_table("lived", columns, primary_key="id", replace=True)
    table.upsert({"id": 1, "item": "tea", "tags": {"a": 2**60}, "data": b"\x00Az"})
    table.update(1, item="coffee")
    page.open("data", "fluss.lived")
    page.element("tbody tr").click()
    page.until(lambda: len(page.elements(".history li")) == 2)
    assert [one.text for one in page.elements(".history li:first-child del, .history li:first-child ins")] == [
        "tea",
        "coffee",
    ]
    drawer = page.element(".drawer").text
    assert str(2**60) in drawer
    assert "00 41 7a" in drawer
    forms = (
        "const {asCode} = await import('/static/drawer.js');"
        "return ['JSON', 'Python', 'SQL'].map(form => asCode('fluss.t', ['id', 'item', 'at'], ['9007199254740993', "
        "\"it's\", null], ['BIGINT', 'STRING', 'TIMESTAMP(3)'], form))"
    )
    assert page.script(f"return (async () => {{ {forms} }})()") == [
        '{"id": 9007199254740993, "item": "it\'s", "at": null}',
        '{"id": 9007199254740993, "item": "it\'s", "at": None}',
        'INSERT INTO "fluss"."t" ("id", "item", "at") VALUES (9007199254740993, \'it\'\'s\', NULL);',
    ]
    page.element(".drawer a.button").click()
    page.wait_for("Row id = 1")
    assert page.problems() == []
    db.drop_table("lived")


def test_live_changes_are_filtered_and_counted(page: Page, db: fluss.Database) -> None:
    table = db.create_table("watched", "id bigint not null, n int", primary_key="id", replace=True)
    page.open("live", "fluss.watched?where=n+%3E+10").wait_for("live")
    table.upsert([(1, 5), (2, 20), (3, 30)])
    page.wait_for("2 changes")
    table.update(2, n=1)  # one change, which matched before
    page.wait_for("3 changes")
    (row,) = [one for one in page.elements("tbody tr") if "update" in one.text]
    assert [one.text for one in row.find_elements("css selector", "del, ins")] == ["20", "1"]
    page.open("live", "fluss.watched?start=1").wait_for("3 changes")
    page.open("live", "fluss.watched?start=2020-01-01T00:00:00Z").wait_for("4 changes")
    table.upsert([(n, n) for n in range(5_000)])
    page.until(lambda: re.search(r"the newest of each moment are shown, [\d,]+ are not", page.text))
    assert page.problems() == []
    db.drop_table("watched")


def test_column_names_with_a_line_break(page: Page, db: fluss.Database) -> None:
    db.create_table("odd", {"a\nb": "int", "c": "int"}, replace=True).append([(1, 2)])
    page.open("data", "fluss.odd").wait_for("rows 1 to 1")
    page.script("document.querySelector('main details').open = true")
    page.elements("main details input")[1].click()
    page.button("Load").click()
    page.until(lambda: [one.text for one in page.elements("tbody td")] == ["1"])
    db.drop_table("odd")


def test_an_error_replaces_the_rows(page: Page) -> None:
    page.open("data", "fluss.orders").wait_for("rows 1 to 100")
    page.field("Filter").send_keys("nothing = 1\n")
    page.until(lambda: page.elements(".problem"))
    assert page.elements("tbody tr") == []


def test_many_open_lists(page: Page) -> None:
    """More than eight tabs page through a table at a time."""
    with windows(page, 10, "tab") as tabs:
        for tab in reversed(tabs):
            page.driver.switch_to.window(tab)
            page.open("data", "fluss.orders").wait_for("rows 1 to 100")
        page.driver.switch_to.window(tabs[-1])
        page.button("Next ›").click()
        page.wait_for("rows 101 to 200")


def test_types_of_an_upload_can_be_changed(page: Page, db: fluss.Database, tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    path.write_text("code,n\n00123,1\n", encoding="utf-8")
    page.open("upload")
    page.element("input[type=file]").send_keys(str(path))
    page.wait_for("1 rows, 2 columns")
    page.script("document.querySelector('form details').open = true")
    assert page.field("Type of code").get_attribute("value") == "string"  # zeros lead: it is no number
    page.script(CHOOSE, page.field("Type of n"), "decimal(10, 2)")
    page.button("Create table and load").click()
    page.until(lambda: "#/data/fluss.codes" in page.driver.current_url)
    page.wait_for("1.00")
    assert str(db.table("codes").to_arrow().to_pylist()) == "[{'code': '00123', 'n': Decimal('1.00')}]"
    db.drop_table("codes")


def test_consumers(page: Page, db: fluss.Database) -> None:
    table = db.create_table("billed", "n int", replace=True)
    table.append([(n,) for n in range(5)])
    with table.follow("earliest", group="billing", timeout=10) as changes:
        next(changes)
        page.open("consumers").wait_for("billing")
        page.wait_for("1 members")
    db.drop_table("billed")
    assert page.problems() == []


def test_pipelines(page: Page, console: Running, db: fluss.Database) -> None:
    page.open("pipelines").wait_for("fluss pipeline run FOLDER --watch")
    now = dt.datetime.now(dt.timezone.utc)
    with BlockingClient({"bootstrap.servers": console.server}) as client:
        note_flows(client, [Flow("orders", "FileStreamSource[data]", "fluss.bought", 1200.0, None, None, now)])
        note_flows(client, [Flow("sales", "fluss.bought", "fluss.sales", 70.0, 42, 1500, now)])
    page.wait_for("1.5 s")
    page.picture("console-pipelines")
    drawn = [one.text for one in page.elements("svg.flows text")]
    names = ["FileStreamSource[data]", "fluss.bought", "fluss.sales"]
    assert sorted(drawn) == ["1,200 rows/s", "70 rows/s, 42 behind", *names]
    lefts = {one.text: one.location["x"] for one in page.elements("svg.flows .name")}
    assert sorted(lefts, key=lefts.__getitem__) == names
    assert violations(page) == []
    db.drop_table("spark_flows")
    assert page.problems() == []


def test_sample_data_on_the_first_run(page: Page, tmp_path: Path) -> None:
    options = ("--replicate", str(tmp_path / "backup"))
    with server_with_console(tmp_path / "data", *options) as running, other(page, running.url) as there:
        there.open("overview").wait_for("There are no tables yet")
        there.until(lambda: re.search(r"Backup behind\n[\d.]+ m?s, \d", there.text))
        assert running.server in there.text  # the code beside it has the address
        there.button("Load sample data").click()
        there.wait_for("Stop the writer")
        there.open("live", "fluss.orders")
        there.until(lambda: there.elements("tbody tr"))
        there.open("overview")
        there.button("Stop the writer").click()
        there.until(lambda: "The writer was stopped." in there.element("#toasts").text)
