# SPDX-License-Identifier: Apache-2.0
"""The commands about groups of followers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.conftest import Call, Ok, Refused, Rows

import fluss
from fluss.tools import groups


@pytest.fixture
def orders(db: fluss.Database) -> Iterator[fluss.Table[Any]]:
    """A table of which the group billing handled 3 of 10 rows."""
    table = db.create_table("orders", {"id": "int"}, buckets=1)
    table.append([{"id": number} for number in range(10)])
    with table.follow(group="billing", timeout=5) as changes:
        for _ in range(3):
            next(changes)
        changes.commit()
    yield table
    db.drop_table("orders")


def rest(table: fluss.Table[Any]) -> list[int]:
    with table.follow(group="billing", timeout=1.5) as changes:
        return [change.row["id"] for change in changes]


def test_lists_groups_with_their_lag(ok: Ok, orders: fluss.Table[Any]) -> None:
    assert "billing" in ok("groups")
    (found,) = (one for one in json.loads(ok("groups", "--json")) if one["table"] == "fluss.orders")
    assert (found["group"], found["lag"], found["members"]) == ("billing", 7, [])


def test_shows_members_and_buckets(ok: Ok, orders: fluss.Table[Any]) -> None:
    with orders.follow(group="billing", timeout=20) as changes:
        next(changes)
        while not (found := json.loads(ok("group", "show", "billing", "--json"))[0])["members"][0]["buckets"]:
            pass  # it writes what it owns right after it got it
        shown = ok("group", "show", "billing")
    (member,) = found["members"]
    assert member["buckets"] == 1
    assert member["seen_s"] < 3
    (bucket,) = found["buckets"]
    assert (bucket["position"], bucket["end"], bucket["lag"], bucket["member"]) == (3, 10, 7, member["member"])
    assert 0 <= bucket["lag_s"] < 60
    assert "7 changes behind" in shown


def test_a_member_that_died_is_not_live(ok: Ok, orders: fluss.Table[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with orders.follow(group="slow", session_timeout=60, timeout=20) as changes:
        next(changes)
        monkeypatch.setattr(groups, "_last_seen", lambda *_: {})  # as after a minute without a sign of life
        (found,) = json.loads(ok("group", "show", "slow", "--json"))
    assert found["members"] == []


@pytest.mark.parametrize(
    ("to", "expected"),
    [("earliest", list(range(10))), ("latest", []), ("5", [5, 6, 7, 8, 9]), (" POSITION", [8, 9])],
)
def test_reset_moves_a_group(ok: Ok, orders: fluss.Table[Any], to: str, expected: list[int]) -> None:
    with orders.follow(stop_at_end=True) as changes:
        position = [str(change.position) for change in changes][7]
    ok("group", "reset", "billing", "--to", to.replace("POSITION", position), "--yes")
    assert rest(orders) == expected


def test_a_group_with_live_members_is_not_moved(refused: Refused, orders: fluss.Table[Any]) -> None:
    with orders.follow(group="billing", session_timeout=8, timeout=60) as changes:
        next(changes)
        for command in (["reset", "billing", "--to", "latest"], ["delete", "billing"]):
            assert "1 live members" in refused("group", *command, "--yes")
        assert next(changes).row == {"id": 4}


def test_a_deleted_group_begins_anew(ok: Ok, orders: fluss.Table[Any]) -> None:
    ok("group", "delete", "billing", "--yes")
    assert rest(orders) == list(range(10))


def test_tail_goes_on_where_the_group_was(rows: Rows, orders: fluss.Table[Any]) -> None:
    found = rows("tail", "orders", "--group", "billing", "--timeout", "1.5")
    assert [one["row"]["id"] for one in found] == list(range(3, 10))
    assert rest(orders) == []


def test_mistakes_say_what_to_do(call: Call, refused: Refused, orders: fluss.Table[Any]) -> None:
    reason = refused("group", "show", "biling", code=3)
    refused("group", "delete", "biling", "--yes", code=3)
    refused("group", "reset", "biling", "--to", "latest", "--yes", code=3)
    assert "there is no group 'biling'; did you mean 'billing'?" in reason.replace(" (", "; ")
    assert "does not follow" in call("group", "show", "billing", "--table", "other").output
    assert call("group", "reset", "billing", "--to", "soon", "--yes").exit_code != 0
