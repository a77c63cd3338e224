# SPDX-License-Identifier: Apache-2.0
"""Creating, changing and dropping tables and databases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.cli.conftest import Call, Ok, Refused


def test_create_with_everything(ok: Ok) -> None:
    ok(
        "create", "orders", "id bigint, item string, day string", "--key", "id,day", "--partition-by", "day",
        "--buckets", "3", "-p", "table.log.ttl=3d", "-p", "owner=anna", "--comment", "all orders",
    )  # fmt: skip
    found = json.loads(ok("describe", "orders", "--json"))
    assert found["primary_key"] == ["id", "day"]
    assert found["partitioned_by"] == ["day"]
    assert found["buckets"] == 3
    assert found["comment"] == "all orders"
    assert found["properties"]["table.log.ttl"] == "3d"
    assert found["custom_properties"] == {"owner": "anna"}
    assert [column["type"] for column in found["columns"]] == ["bigint NOT NULL", "string", "string NOT NULL"]
    ok("create", "orders_2", "--like", "orders")
    like = json.loads(ok("describe", "orders_2", "--json"))
    for name in ("primary_key", "partitioned_by", "buckets", "comment", "properties", "custom_properties", "columns"):
        assert like[name] == found[name], name


def test_create_like_a_file_shows_the_columns(ok: Ok, call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1], "price": [1.5]}), file)
    result = call("create", "like_file", "--like", str(file), "--key", "id")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "id bigint not null, price double" in result.stderr
    csv = tmp_path / "rows.csv"
    csv.write_text("id,at\n1,2026-01-01T00:00:00\n")
    made = json.loads(ok("create", "like_csv", "--like", str(csv), "--json"))
    assert made == {"table": "fluss.like_csv", "created": True, "columns": "id bigint, at timestamp(3)"}


def test_show_code_creates_the_same_table(ok: Ok, environment: dict[str, str]) -> None:
    code = ok(
        "create", "coded", "id bigint, item string", "--key", "id", "--buckets", "2", "-p", "table.log.ttl=1d",
        "--show-code",
    )  # fmt: skip
    assert "coded" not in json.loads(ok("ls", "fluss", "--json"))
    exec(code, names := {})  # type: ignore[var-annotated]
    names["db"].close()
    found = json.loads(ok("describe", "coded", "--json"))
    assert (found["buckets"], found["primary_key"], found["properties"]["table.log.ttl"]) == (2, ["id"], "1d")


def test_rows_and_lists_of_tables(ok: Ok, call: Call) -> None:
    ok("create", "users", "id bigint, price decimal(10,2), day date, raw bytes, tags array<string>", "--key", "id")
    row = {"id": 1, "price": "9.50", "day": "2024-01-15", "raw": "AQI=", "tags": ["a", "b"]}
    assert call("put", "users", json.dumps(row)).stderr.strip() == "1 row written"
    assert json.loads(ok("get", "users", "1", "--json")) == row
    assert "2024-01-15" in ok("get", "users", '{"id": 1}')
    assert json.loads(ok("put", "users", "--delete", "--json", '{"id": 1}')) == {"written": 1}
    assert call("get", "users", "1").exit_code == 3
    assert "users" in json.loads(ok("ls", "fluss", "--json"))
    facts = {fact["table"]: fact for fact in json.loads(ok("tables", "--json"))}["fluss.users"]
    assert (facts["kind"], facts["buckets"], type(facts["bytes"])) == ("primary key", 1, int)
    assert "size" in ok("tables", "fluss").splitlines()[0].split()


def test_create_twice(ok: Ok, refused: Refused) -> None:
    ok("create", "twice", "id int")
    assert "--if-not-exists" in refused("create", "twice", "id int")
    assert json.loads(ok("create", "twice", "id int", "--if-not-exists", "--json"))["created"] is False


def test_drop_asks(ok: Ok, refused: Refused) -> None:
    ok("create", "gone", "id int")
    assert "--yes" in refused("drop", "gone", code=2)
    assert json.loads(ok("drop", "gone", "--yes", "--json")) == {"dropped": ["fluss.gone"]}
    refused("drop", "gone", "--yes", code=3)
    assert json.loads(ok("drop", "gone", "--yes", "--if-exists", "--json")) == {"dropped": []}


def test_nothing_is_dropped_if_one_name_is_wrong(ok: Ok, refused: Refused) -> None:
    ok("create", "stays", "id int")
    assert "did you mean 'stays'" in refused("drop", "stays", "stay", "--yes", code=3)
    assert "stays" in ok("ls", "fluss")


def test_alter(ok: Ok) -> None:
    ok("create", "altered", "id int")
    ok("alter", "altered", "add", "column", "note", "string", "--comment", "a remark")
    ok("alter", "altered", "add", "size decimal(10,2)")
    ok("alter", "altered", "set", "table.log.ttl=2d", "owner=eve")
    found = json.loads(ok("describe", "altered", "--json"))
    assert found["columns"][1] == {"name": "note", "type": "string", "aggregation": None, "comment": "a remark"}
    assert found["columns"][2]["type"] == "decimal(10,2)"
    assert found["properties"]["table.log.ttl"] == "2d"
    assert found["custom_properties"] == {"owner": "eve"}
    ok("alter", "altered", "reset", "property", "owner")
    assert json.loads(ok("describe", "altered", "--json"))["custom_properties"] == {}


def test_partitions(ok: Ok, refused: Refused) -> None:
    ok("create", "parts", "day string, id int", "--partition-by", "day")
    assert json.loads(ok("partitions", "parts", "--json")) == []
    ok("partitions", "parts", "add", "day=2026-07-01")
    ok("partitions", "parts", "add", "2026-07-02")
    ok("partitions", "parts", "add", "2026-07-02", "--if-not-exists")
    assert [one["name"] for one in json.loads(ok("partitions", "parts", "--json"))] == ["2026-07-01", "2026-07-02"]
    assert "2026-07-01" in ok("partitions", "parts")
    ok("partitions", "parts", "drop", "day=2026-07-01", "--yes")
    assert [one["name"] for one in json.loads(ok("partitions", "parts", "--json"))] == ["2026-07-02"]
    refused("partitions", "parts", "drop", "day=2026-07-01", "--yes", code=3)


def test_databases(ok: Ok, refused: Refused) -> None:
    ok("db", "create", "shop")
    ok("db", "create", "shop", "--if-not-exists")
    assert json.loads(ok("db", "ls", "--json")) == ["fluss", "shop"]
    ok("create", "shop.items", "id int")
    assert "1 table; add --cascade" in refused("db", "drop", "shop", "--yes")
    dropped = json.loads(ok("db", "drop", "shop", "--cascade", "--yes", "--json"))
    assert dropped == {"database": "shop", "tables": ["items"]}
    assert ok("db", "ls").split() == ["fluss"]
    assert "did you mean 'fluss'" in refused("db", "drop", "flus", "--yes", code=3)


def test_in_a_real_process(process: Any) -> None:
    assert process("create", "real", "id int, name string", "--key", "id").stderr.strip() == "created fluss.real"
    dropped = process("drop", "real", "--yes")
    assert (dropped.returncode, dropped.stdout) == (0, "")
    assert process("describe", "real").returncode == 3
