# SPDX-License-Identifier: Apache-2.0
"""Editing changes what the user changed and nothing else, and every value is shown and exported as it is."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss

from .conftest import CHOOSE, Page, windows

CHANGE_FIELD = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"


@pytest.fixture
def notes(db: fluss.Database) -> Iterator[Any]:
    columns = "id bigint not null, note string, done boolean, tags map<string, int not null>, at timestamp(9)"
    table = db.create_table("notes", columns, primary_key="id", replace=True)
    table.upsert([{"id": n, "note": f"note {n}", "done": True, "tags": None, "at": None} for n in range(5)])
    yield table
    db.drop_table("notes")


def look_up(page: Page, key: int) -> None:
    page.open("edit", "fluss.notes")
    page.field("id").send_keys(f"{key}\n")
    page.wait_for(f"Row id = {key}")


def save(page: Page) -> None:
    page.button("Save changes").click()
    page.button("Change").click()
    page.until(lambda: "was changed" in page.element("#toasts").text)


def test_an_edit_writes_to_the_row_it_was_opened_for(page: Page, notes: Any) -> None:
    look_up(page, 2)
    field = page.field("id")
    field.clear()
    field.send_keys("3")
    page.script(CHANGE_FIELD, page.field("note"), "changed")
    save(page)
    assert [notes.get(n)["note"] for n in (2, 3)] == ["changed", "note 3"]


@pytest.mark.parametrize("text", ["line one\nline two", "one\r\ntwo\r\n"])
def test_a_field_that_was_not_touched_is_not_written(page: Page, notes: Any, text: str) -> None:
    notes.update(2, note=text)
    look_up(page, 2)
    page.script(CHOOSE, page.field("done"), "false")
    save(page)
    assert notes.get(2) == {"id": 2, "note": text, "done": False, "tags": None, "at": None}


def test_lines_of_a_text_that_is_changed_keep_their_ends(page: Page, notes: Any) -> None:
    notes.update(2, note="one\r\ntwo")
    look_up(page, 2)
    page.field("note").send_keys("!")
    save(page)
    assert notes.get(2)["note"] == "one\r\ntwo!"


def test_a_row_that_changed_meanwhile_is_refused_with_both_versions(page: Page, notes: Any) -> None:
    look_up(page, 2)
    notes.update(2, note="of another client")
    page.script(CHANGE_FIELD, page.field("note"), "mine")
    page.button("Save changes").click()
    page.button("Change").click()
    page.wait_for("The row was changed since it was shown. Nothing was written.")
    versions = [cell.text for cell in page.elements(".problem ~ .grid tbody td")]
    assert versions == ["note 2", "of another client", "mine"]
    assert notes.get(2)["note"] == "of another client"
    page.button("Show the row as it is now").click()
    page.until(lambda: page.field("note").get_attribute("value") == "of another client")


def test_of_two_windows_that_change_a_row_the_second_is_refused(page: Page, notes: Any) -> None:
    look_up(page, 2)
    page.script(CHANGE_FIELD, page.field("note"), "mine")
    with windows(page, 1):
        look_up(page, 2)
        page.script(CHANGE_FIELD, page.field("note"), "of the other window")
        save(page)
    page.button("Save changes").click()
    page.button("Change").click()
    page.wait_for("The row was changed since it was shown. Nothing was written.")
    assert notes.get(2)["note"] == "of the other window"


def test_a_value_that_is_cut_cannot_be_edited(page: Page, notes: Any) -> None:
    notes.update(2, note="x" * 1_200_000)
    look_up(page, 2)
    assert not page.field("note").is_enabled()
    page.script(CHOOSE, page.field("done"), "false")
    save(page)
    row = notes.get(2)
    assert (len(row["note"]), row["done"]) == (1_200_000, False)
    page.open("data", f"{notes.name}?where=id%20%3D%202")
    page.element("tbody tr.opens").click()
    page.button("JSON").click()
    page.until(lambda: "too long to be copied" in page.script("return document.body.innerText"))


def test_the_difference_is_shown_before_it_is_written(page: Page, notes: Any) -> None:
    look_up(page, 2)
    page.script(CHANGE_FIELD, page.field("note"), "changed")
    page.button("Save changes").click()
    page.until(lambda: page.elements("dialog"))
    assert [one.text for one in page.elements("dialog del, dialog ins")] == ["note 2", "changed"]
    page.button("Cancel").click()
    assert notes.get(2)["note"] == "note 2"


def test_a_new_row_has_null_where_nothing_was_entered(page: Page, notes: Any) -> None:
    page.open("edit", "fluss.notes")
    page.button("New row").click()
    page.wait_for("New row")
    states = page.script("return [...arguments[0].options].map(one => one.value)", page.field("done"))
    assert states == ["null", "true", "false"]
    page.script(CHANGE_FIELD, page.elements("main form.card textarea")[0], "77")
    page.button("Write").click()
    page.script("[...document.querySelectorAll('dialog button')].at(-1).click()")
    page.wait_for("Row id = 77")
    assert notes.get(77) == {"id": 77, "note": None, "done": None, "tags": None, "at": None}


def test_a_new_row_replaces_none(page: Page, notes: Any) -> None:
    page.open("edit", "fluss.notes")
    page.field("id").send_keys("2")
    page.button("New row").click()
    page.button("Write").click()
    page.script("[...document.querySelectorAll('dialog button')].at(-1).click()")
    page.wait_for("There is a row with this key already")
    assert notes.get(2)["note"] == "note 2"


def exported(page: Page) -> str:
    """What *Save CSV* writes."""
    page.script(
        "window.saved = null; const make = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return make(blob); };"
    )
    page.button("Save CSV").click()
    return str(page.until(lambda: page.script("return window.saved")))


def test_an_export_does_not_run_the_statement_again(page: Page, notes: Any) -> None:
    page.sql("insert into notes (id) values (100)")
    page.wait_for("1 rows in")
    assert "Save CSV" not in page.text  # what writes has nothing to export
    page.sql("select count(*) as n from notes")
    page.wait_for("1 rows in")
    notes.delete(100)
    assert exported(page) == "n\n6\n"


def test_an_export_is_complete_and_exact(page: Page, db: fluss.Database) -> None:
    long = bytes(range(256)) * 20
    columns = "id bigint not null, data bytes, items array<int>, tags map<string, decimal(38, 18)>"
    table = db.create_table("wide", columns, primary_key="id", replace=True)
    table.upsert({"id": 1, "data": long, "items": list(range(1_500)), "tags": {"a": 0}})
    page.sql("select data, items, tags from wide")
    page.wait_for("1 rows in")
    assert page.elements("td.cut")
    csv.field_size_limit(1_000_000)
    ((data, items, tags),) = list(csv.reader(io.StringIO(exported(page))))[1:]
    import base64
    import json

    assert base64.b64decode(data) == long
    assert json.loads(items) == list(range(1_500))
    assert json.loads(tags) == {"a": "0.000000000000000000"}
    db.drop_table("wide")


def test_what_a_tab_defines_is_its_own(page: Page, notes: Any) -> None:
    page.sql("create macro sum(x) as 42")
    page.wait_for("rows in")
    page.sql("select sum(id) as s from notes")
    page.until(lambda: [one.text for one in page.elements("tbody td")][:1] == ["42"])
    page.driver.switch_to.new_window("tab")
    try:
        page.sql("select sum(id) as s from notes")
        page.until(lambda: [one.text for one in page.elements("tbody td")] == ["10"])
    finally:
        page.driver.close()
        page.driver.switch_to.window(page.driver.window_handles[0])


def test_values_are_shown_exactly_in_their_natural_form(page: Page, db: fluss.Database) -> None:
    columns = "id bigint not null, at timestamp(9), f float, d decimal(38, 18), tags map<int, string>"
    table = db.create_table("exact", columns, primary_key="id", replace=True)
    moment = pa.array([1_751_373_000_123_456_789], pa.timestamp("ns"))
    tags = pa.array([[(7, "x")]], pa.map_(pa.int32(), pa.string()))
    row = {"id": [1], "at": moment, "f": pa.array([0.1], pa.float32()), "d": pa.array([0], pa.decimal128(38, 18))}
    table.upsert(pa.table({**row, "tags": tags}))
    expected = ["1", "2025-07-01 12:30:00.123456789", "0.1", "0.000000000000000000", '{"7": "x"}']

    def shown(skip: int = 0) -> list[str]:
        return [one.text for one in page.elements("tbody td")][skip : skip + 5]

    page.open("data", "fluss.exact")
    page.until(lambda: shown() == expected)
    page.open("data", "fluss.exact?show=records")
    page.until(lambda: shown(3) == expected)
    page.open("edit", "fluss.exact")
    page.field("id").send_keys("1\n")
    page.until(lambda: page.field("at").get_attribute("value") == expected[1])
    assert [page.field(name).get_attribute("value") for name in ("f", "d", "tags")] == expected[2:]
    page.script(CHANGE_FIELD, page.field("at"), "2025-07-01 12:30:00.123456788")
    save(page)
    assert table.to_arrow()["at"].cast(pa.int64()).to_pylist() == [1_751_373_000_123_456_788]
    page.sql("select f, d, tags, interval '1 month 2 days 3 hours' as i from exact")
    page.until(lambda: shown()[:4] == [*expected[2:], "1 month 2 days 03:00:00"])
    db.drop_table("exact")
