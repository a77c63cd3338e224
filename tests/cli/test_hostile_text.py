# SPDX-License-Identifier: Apache-2.0
"""Texts of data and of servers in a terminal: no control character and no mark of direction arrives there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.cli.conftest import Call, Ok
from tests.faults.proxy import FaultProxy, ProxiedServer, Refusal

import fluss
from fluss.cli.common import confirm
from fluss.errors import ErrorCode
from fluss.protocol import apis

HOSTILE = "a\x1b]0;title\x07\x1b[2J\rb\x00c\x9b31md\u202ee\u2066f\x7f"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u05e9\u05dc\u05d5\u05dd"
"""Joined emoji, and letters that are written from right to left by themselves."""

NAME = HOSTILE.replace("\0", "")
"""A column. DuckDB ends names at a NUL."""


@pytest.fixture(scope="module")
def hostile(server: fluss.LocalServer) -> Iterator[None]:
    with fluss.connect(server.bootstrap_servers, timeout=20) as db:
        table = db.create_table(
            "hostile",
            pa.schema([("id", pa.int64()), (NAME, pa.string()), ("many", pa.list_(pa.string()))]),
            comment=HOSTILE,
            properties={f"mine{HOSTILE}": HOSTILE},
        )
        table.append({"id": 1, NAME: HOSTILE, "many": [HOSTILE, FAMILY]})
        table.append({"id": 2, NAME: FAMILY, "many": None})
        yield


@pytest.mark.parametrize(
    "command",
    [
        ("cat", "hostile"),
        ("head", "hostile"),
        ("tail", "hostile", "--no-follow"),
        ("tables",),
        ("describe", "hostile"),
        ("sql", "select * from hostile"),
        ("cat", "hostile", "--json"),
        ("tail", "hostile", "--no-follow", "--json"),
        ("sql", "select * from hostile", "--json"),
        ("describe", "hostile", "--json"),
        ("cat", "hostile", "-w", f"nothing = '{HOSTILE}'".replace("\0", "")),
    ],
    ids=lambda command: " ".join(command[:1] + command[2:]).encode("ascii", "ignore").decode()[:30],
)
def test_no_control_character_arrives(call: Call, hostile: None, command: tuple[str, ...]) -> None:
    result = call(*command)
    assert UNSAFE.findall(result.output) == []


def test_rows_stay_exact(ok: Ok, hostile: None) -> None:
    for command in (("cat", "hostile", "--json"), ("sql", "select * from hostile order by id", "--json")):
        rows = [json.loads(line) for line in ok(*command).splitlines()]
        assert [row[NAME] for row in rows] == [HOSTILE, FAMILY]
        assert rows[0]["many"] == [HOSTILE, FAMILY]
    shown = ok("cat", "hostile")
    assert r"a\x1b]0;title\x07\x1b[2J\rb\x00c\x9b31md\u202ee\u2066f\x7f" in shown
    assert FAMILY in shown


def test_errors_of_a_server(call: Call) -> None:
    with FaultProxy() as proxy, ProxiedServer(proxy):
        proxy.on_request = lambda key, body: (
            Refusal(ErrorCode.INVALID_TABLE_EXCEPTION, HOSTILE) if key == apis.LIST_DATABASES.key else None
        )
        result = call("ls", "-b", proxy.address)
    assert result.exit_code == 1
    assert UNSAFE.findall(result.output) == []
    assert r"\x1b]0;title" in result.output


def test_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text) or True)
    confirm(f"Drop {HOSTILE}?", yes=False)
    assert UNSAFE.findall(asked[0]) == []
