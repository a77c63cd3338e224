# SPDX-License-Identifier: Apache-2.0
"""The SQL page: its editor, queries in tabs, and what can be done with a result."""

from __future__ import annotations

from typing import Any

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import fluss

from .conftest import CHOOSE, Page


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


def test_completion_quotes_names_that_need_it(page: Page, db: fluss.Database) -> None:
    db.create_table("quoted", {"two words": "int"}, replace=True)
    page.open("sql")
    page.until(lambda: "quoted" in page.script("return fetch('/api/sql/words').then(one => one.text())"))
    page.open("sql")
    write_sql(page, "select quoted.")
    editor(page, ".cm-content")[0].send_keys("tw")
    page.until(lambda: editor(page, ".cm-completionLabel"))
    editor(page, ".cm-content")[0].send_keys("\t")
    page.until(lambda: editor(page, ".cm-content")[0].text == 'select quoted."two words"')
    db.drop_table("quoted")


def test_queries_have_names(page: Page) -> None:
    page.open("sql")
    page.element("[aria-label='New query']").click()
    write_sql(page, "select 1 as one")
    page.element(".tab.chosen button").click()
    prompt = page.driver.switch_to.alert
    prompt.send_keys("daily")
    prompt.accept()
    page.until(lambda: page.element(".tab.chosen").text.startswith("daily"))
    page.open("sql")
    assert page.element(".tab.chosen").text.startswith("daily")
    assert editor(page, ".cm-content")[0].text == "select 1 as one"
    page.element("[aria-label='Close daily']").click()
    page.until(lambda: "daily" not in page.element(".tabs").text)


def test_a_query_runs_again_when_a_table_changes(page: Page, db: fluss.Database) -> None:
    table = db.create_table("counted", "n int", replace=True)
    page.sql("select count(*) as n from counted")
    page.until(lambda: [one.text for one in page.elements("tbody td")] == ["0"])
    page.field("run again").click()
    page.wait_for("watching")
    table.append([(n,) for n in range(3)])
    page.until(lambda: [one.text for one in page.elements("tbody td")] == ["3"])
    db.drop_table("counted")


def test_a_query_that_writes_runs_once(page: Page, db: fluss.Database) -> None:
    table = db.create_table("copied", "n int", replace=True)
    table.append((1,))
    page.sql("select count(*) as n from copied")
    page.until(lambda: [one.text for one in page.elements("tbody td")] == ["1"])
    page.field("run again").click()
    page.wait_for("watching")
    write_sql(page, "-- nightly\ninsert into copied select n + 1 from copied")
    page.button("Run").click()
    page.wait_for("Count")
    page.until(lambda: "watching" not in page.text)
    assert table.count() == 2
    db.drop_table("copied")


def test_columns_can_be_resized_and_axes_chosen(page: Page) -> None:
    page.sql("select range as a, 10 - range as b, range * 2 as c from range(3)")
    page.until(lambda: len(page.elements("tbody tr")) == 3)
    head = page.element("th")
    before = head.size
    corner = (before["width"] // 2 - 3, before["height"] // 2 - 3)
    drag = ActionChains(page.driver).move_to_element_with_offset(head, *corner).click_and_hold()
    drag.move_by_offset(-60, 0).release().perform()
    assert head.size["width"] < before["width"] - 40
    page.script(CHOOSE, page.field("Chart"), "line")
    page.script(CHOOSE, page.field("Across"), "1")
    page.script(CHOOSE, page.field("Up"), "2")
    titles = page.script("return [...document.querySelectorAll('svg.chart title')].map(one => one.textContent)")
    assert titles == ["10: 0", "9: 2", "8: 4"]
    assert page.elements("svg.chart path.line")
