# SPDX-License-Identifier: Apache-2.0
"""The command line against a real embedded server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import fluss
from fluss.cli import main


@pytest.fixture(scope="module")
def server() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as server:
        asyncio.run(_create(server))
        yield server


async def _create(server: fluss.LocalServer) -> None:
    with await fluss.FlussConnection.create(server.config()) as connection:
        admin = await connection.get_admin()
        columns = pa.schema(
            [
                ("id", pa.int64()),
                ("name", pa.string()),
                ("price", pa.decimal128(10, 2)),
                ("day", pa.date32()),
                ("raw", pa.binary()),
                ("tags", pa.list_(pa.string())),
            ]
        )
        await admin.create_table(
            fluss.TablePath("fluss", "events"),
            fluss.TableDescriptor(fluss.Schema(columns), bucket_count=2, comment="e"),
        )
        await admin.create_table(
            fluss.TablePath("fluss", "users"), fluss.TableDescriptor(fluss.Schema(columns, primary_keys=["id"]))
        )
        await admin.create_table(
            fluss.TablePath("fluss", "parts"), fluss.TableDescriptor(fluss.Schema(columns), partition_keys=["name"])
        )


def call(server: fluss.LocalServer, *args: str, input: str | None = None) -> Result:
    command, *rest = args
    return CliRunner().invoke(main, [command, "-b", server.bootstrap_servers, *rest], input=input)


def ok(server: fluss.LocalServer, *args: str, input: str | None = None) -> str:
    result = call(server, *args, input=input)
    assert result.exit_code == 0, result.output
    return result.output


ROW = {"id": 1, "name": "Anna", "price": "9.50", "day": "2024-01-15", "raw": "AQI=", "tags": ["a", "b"]}


def test_ls_lists_databases_and_tables(server: fluss.LocalServer) -> None:
    assert ok(server, "ls").split() == ["fluss"]
    assert json.loads(ok(server, "ls", "fluss", "--json")) == ["events", "parts", "users"]


def test_tables_and_describe(server: fluss.LocalServer) -> None:
    facts = {fact["table"]: fact for fact in json.loads(ok(server, "tables", "--json"))}
    assert facts["fluss.users"]["kind"] == "primary key"
    assert facts["fluss.events"]["buckets"] == 2
    assert isinstance(facts["fluss.events"]["bytes"], int)
    shown = ok(server, "tables", "fluss")
    assert "fluss.events" in shown
    assert "size" in shown.splitlines()[0].split()
    described = json.loads(ok(server, "describe", "users", "--json"))
    assert described["primary_key"] == ["id"]
    assert [column["name"] for column in described["columns"]] == ["id", "name", "price", "day", "raw", "tags"]
    assert "price" in ok(server, "describe", "fluss.users")
    assert json.loads(ok(server, "describe", "parts", "--json"))["partitions"] == []


def test_put_get_and_delete(server: fluss.LocalServer) -> None:
    assert ok(server, "put", "users", json.dumps(ROW)).strip() == "1 row written"
    assert json.loads(ok(server, "get", "users", "1", "--json")) == ROW
    assert "Anna" in ok(server, "get", "users", '{"id": 1}')
    assert json.loads(ok(server, "put", "users", "--delete", "--json", '{"id": 1}')) == {"written": 1}
    gone = call(server, "get", "users", "1")
    assert gone.exit_code == 3
    assert "no row with key 1" in gone.output


def test_put_from_input_and_tail(server: fluss.LocalServer) -> None:
    lines = "\n".join(json.dumps({**ROW, "id": i}) for i in range(5))
    assert ok(server, "put", "events", input=lines).strip() == "5 rows written"
    shown = [json.loads(line) for line in ok(server, "tail", "events", "--no-follow", "--json").splitlines()]
    assert sorted(record["row"]["id"] for record in shown) == list(range(5))
    assert {record["change"] for record in shown} == {"+A"}
    assert len(ok(server, "tail", "events", "-n", "2").splitlines()) == 3  # with the header
    assert ok(server, "tail", "events", "--from", "latest", "--timeout", "0.1") == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("get", "events", "1"), "no primary key"),
        (("put", "events", "--delete", '{"id": 1}'), "no primary key"),
        (("put", "events", "{"), "not JSON"),
        (("put", "events", "[1]"), "not a JSON object"),
        (("put", "events", '{"id": 1, "day": "soon"}'), "column 'day'"),
        (("put", "events", '{"id": "x"}'), "column 'id'"),
        (("put", "events", '{"other": 1}'), "has no such column"),
    ],
)
def test_mistakes_get_one_clear_line(server: fluss.LocalServer, args: tuple[str, ...], words: str) -> None:
    result = call(server, *args)
    assert result.exit_code == 1
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_server_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(main, ["ls", "-b", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert 'nothing listens at 127.0.0.1:1; run "fluss server --port 1"' in result.output


def test_a_bad_table_name_is_a_usage_error(server: fluss.LocalServer) -> None:
    assert call(server, "describe", "a.").exit_code == 2


def test_help_names_every_command() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    for command in ("server", "ls", "tables", "describe", "tail", "put", "get"):
        assert command in output
