# SPDX-License-Identifier: Apache-2.0
"""Every route of the API, against a real server and its console."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.waiting import wait_for

import fluss
from fluss.console.json_values import rows_of
from fluss.console.routes import access, data, overview, schema, sql, storage, streams, upload
from fluss.console.settings import Settings

from .conftest import Answer, Browser, Running, running_console

MARKUP = "<img src=x onerror=alert(1)>\"'&"


@pytest.fixture(autouse=True)
def _tables_are_dropped(db: fluss.Database) -> Iterator[None]:
    yield
    for name in db.tables():
        db.drop_table(name)


@pytest.fixture
def orders(db: fluss.Database) -> str:
    table = db.create_table("orders", "id bigint not null, item string, price double", primary_key="id", buckets=3)
    table.upsert([{"id": n, "item": f"tea {n % 7}", "price": n / 2} for n in range(500)])
    return "fluss.orders"


@pytest.fixture
def events(db: fluss.Database) -> str:
    table = db.create_table("events", "n bigint, kind string")
    table.append([{"n": n, "kind": "click"} for n in range(250)])
    return "fluss.events"


def test_tables_and_health(browser: Browser, orders: str, db: fluss.Database) -> None:
    health = browser.get("health").json
    assert health["status"] == "GREEN"
    assert {"name": orders, "kind": "primary key", "rows": 500, "buckets": 3} in health["tables"]
    assert health["servers"]
    (database,) = [one for one in browser.get("tables").json["databases"] if one["name"] == "fluss"]
    assert {"name": "orders", "kind": "primary key", "rows": 500} in database["tables"]
    db.create_table("orders", "id bigint", replace=True)
    db.create_table("new", "id bigint")  # all are counted again
    expected = {"name": orders, "kind": "log", "rows": 0, "buckets": 1}
    wait_for(lambda: expected in browser.get("health").json["tables"], 20)


def test_overview_streams_samples(browser: Browser, orders: str) -> None:
    with browser.events("overview") as stream:
        for event in stream:
            assert event["problem"] is None
            sample = event["samples"][-1]
            if "apis" in sample:
                break
    assert sample["tables"] >= 1
    assert sample["memory_bytes"] > 0
    assert sample["connections"] >= 1
    assert 0 <= sample["backup_behind_s"] < 3600
    assert sample["backup_behind_bytes"] >= 0
    put = next(one for one in sample["apis"] if one["request"] == "putKv")
    assert put["p50_ms"] > 0
    assert put["p99_ms"] >= put["p50_ms"]


def test_rows_page_by_page(browser: Browser, orders: str) -> None:
    found = browser.get("rows", table=orders, limit=200).json
    assert found["columns"] == ["id", "item", "price"]
    assert found["key"] == ["id"]
    ids = [row[0] for row in found["rows"]]
    while found["cursor"]:
        found = browser.get("rows/next", table=orders, cursor=found["cursor"], limit=200).json
        ids += [row[0] for row in found["rows"]]
    assert sorted(ids) == list(range(500))
    assert browser.get("rows/next", table=orders, cursor="gone").status == 400


def test_rows_with_filter_and_columns(browser: Browser, orders: str) -> None:
    found = browser.get("rows", table=orders, where="price > 240 and id < 490", columns='["id", "price"]').json
    assert found["columns"] == ["id", "price"]
    assert sorted(row[0] for row in found["rows"]) == list(range(481, 490))
    assert found["cursor"] is None
    assert "prize" in browser.get("rows", table=orders, where="prize > 1").refused()
    assert browser.get("rows", table="fluss.nothing").status == 404
    assert [browser.get("rows", table=orders, snapshot=one).status for one in ("x", "²")] == [400, 400]


def test_a_cursor_is_given_back(browser: Browser, orders: str) -> None:
    cursor = browser.get("rows", table=orders, limit=10).json["cursor"]
    assert browser.post("rows/close", cursor=cursor).status == 200
    assert browser.get("rows/next", table=orders, cursor=cursor).status == 400


def test_records_by_offset(browser: Browser, events: str) -> None:
    found = browser.get("records", table=events, offset=100, limit=50).json
    assert [one["offset"] for one in found["records"]] == list(range(100, 150))
    assert found["records"][0]["row"] == [100, "click"]
    assert found["records"][0]["kind"] == "append"
    assert (found["earliest"], found["latest"], found["next"]) == (0, 250, 150)
    newest = browser.get("records", table=events, offset=-10, limit=50).json
    assert [one["offset"] for one in newest["records"]] == list(range(240, 250))
    assert newest["next"] is None


def test_records_of_an_empty_bucket_name_the_others(browser: Browser, db: fluss.Database) -> None:
    table = db.create_table("sparse", "n bigint", buckets=4)
    assert browser.get("records", table="fluss.sparse").json["other_buckets"] == []
    table.append([{"n": 1}])
    found = [browser.get("records", table="fluss.sparse", bucket=bucket).json for bucket in range(4)]
    (filled,) = [bucket for bucket, one in enumerate(found) if one["records"]]
    assert [one["other_buckets"] for one in found] == [[] if bucket == filled else [filled] for bucket in range(4)]


def test_lookup_and_edit(browser: Browser, orders: str) -> None:
    assert browser.post("lookup", table=orders, key={"id": "7"}).json["row"] == {"id": 7, "item": "tea 0", "price": 3.5}
    taken = browser.post("rows/save", table=orders, row={"id": "7", "item": MARKUP})
    assert (taken.status, taken.json["row"]["item"]) == (409, "tea 0")
    new = {"id": 700, "item": MARKUP, "price": None}
    assert browser.post("rows/save", table=orders, row=new).json == {"rows": 1}
    found = browser.post("lookup", table=orders, key={"id": "700"}).json
    assert found["row"] == new
    change = {"table": orders, "key": {"id": 700}, "row": {"price": "1.25"}}
    first = {**change, "version": found["version"]}
    assert browser.post("rows/update", **first).status == 200
    late = browser.post("rows/update", **first)
    assert (late.status, late.json["row"]) == (409, {**new, "price": 1.25})
    assert browser.post("rows/delete", **first).status == 409
    version = browser.post("lookup", table=orders, key={"id": "700"}).json["version"]
    other = browser.post("rows/update", table=orders, key={"id": 700}, row={"id": 7, "price": "0"}, version=version)
    assert (other.status, "key" in other.json["error"]) == (400, True)
    assert browser.post("rows/delete", **change, version=version).status == 200
    assert browser.post("lookup", table=orders, key={"id": "700"}).json == {"row": None, "version": None}
    assert browser.post("rows/update", **first).json["row"] is None
    assert "seven" in browser.post("rows/save", table=orders, row={"id": "seven"}).refused()
    assert browser.post("rows/save", table=orders, row={"id": "1", MARKUP: "1"}).status == 400


@pytest.mark.parametrize("change", ["rows/save", "rows/update", "rows/delete"])
def test_of_browsers_that_change_a_row_at_once_one_wins(running: Running, orders: str, change: str) -> None:
    row = {"id": 900, "item": "tea", "price": 1.0}
    browsers = [Browser(running.port).open() for _ in range(8)]
    if change != "rows/save":
        assert browsers[0].post("rows/save", table=orders, row=row).status == 200
    version = browsers[0].post("lookup", table=orders, key={"id": 900}).json["version"]
    with ThreadPoolExecutor(len(browsers)) as pool:

        def work(number: int) -> int:
            new = {**row, "price": str(number + 2)} if change == "rows/save" else {"price": str(number + 2)}
            asked = {"table": orders, "key": {"id": 900}, "row": new, "version": version}
            return browsers[number].post(change, **asked).status

        assert sorted(pool.map(work, range(len(browsers)))) == [200] + [409] * (len(browsers) - 1)


def test_a_table_with_columns_that_are_not_null(browser: Browser, db: fluss.Database) -> None:
    """It has no partial updates: the whole row is written, with what was not changed as it was."""
    table = db.create_table("strict", "id bigint not null, at timestamp(9) not null, n int", primary_key="id")
    table.upsert(pa.table({"id": [1], "at": pa.array([123_456_789], pa.timestamp("ns")), "n": [1]}))
    asked = {"table": "fluss.strict", "key": {"id": 1}}
    found = browser.post("lookup", **asked).json
    assert found["row"] == {"id": 1, "at": "1970-01-01 00:00:00.123456789", "n": 1}
    assert browser.post("rows/update", **asked, row={"n": "2"}, version=found["version"]).status == 200
    assert browser.post("lookup", **asked).json["row"] == {**found["row"], "n": 2}


def test_history_of_a_key(browser: Browser, db: fluss.Database) -> None:
    columns = "id bigint not null, day string not null, n int"
    table = db.create_table("past", columns, primary_key=["id", "day"], partition_by="day", buckets=3)
    table.add_partition({"day": "a"})
    for n in range(3):
        table.upsert([{"id": key, "day": "a", "n": n} for key in range(20)])
    table.delete({"id": 7, "day": "a"})
    found = browser.post("rows/history", table="fluss.past", key={"id": 7, "day": "a"}).json
    assert [(one["kind"], one["old"], one["new"]) for one in found["changes"]] == [
        ("delete", [7, "a", 2], None),
        ("update", [7, "a", 1], [7, "a", 2]),
        ("update", [7, "a", 0], [7, "a", 1]),
        ("insert", None, [7, "a", 0]),
    ]
    assert found["complete"]
    assert found["changes"][0]["time_ms"] > 0
    assert browser.post("rows/history", table="fluss.past", key={"id": 7, "day": "b"}).json["changes"] == []


def test_newest_changes_of_a_key_remain(running: Running, db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table = db.create_table("counter", "id bigint not null, n int", primary_key="id")
    table.upsert([{"id": 1, "n": n} for n in range(1_000)])
    for n in range(1_000, 1_003):
        table.upsert({"id": 1, "n": n})
    converted = []
    monkeypatch.setattr(data, "rows_of", lambda rows: [converted.append(rows.num_rows), *rows_of(rows)][1:])
    with running_console(Settings(running.server, port=0)) as console:
        found = Browser(console.port).open().post("rows/history", table="fluss.counter", key={"id": 1}).json
    changes = [(one["old"], one["new"]) for one in found["changes"]]
    assert changes == [([1, n - 1], [1, n]) for n in range(1_002, 502, -1)]
    assert not found["complete"]
    assert sum(converted) <= 1_001 + 3 * 2  # of the first batch only what can be shown


def test_live_changes(browser: Browser, orders: str, db: fluss.Database) -> None:
    with browser.events("live", table=orders, start="latest") as stream:
        head = next(stream)
        assert head["key"] == ["id"]
        time.sleep(0.3)
        db.table("orders").update(3, price=99.0)
        event = next(event for event in stream if event["changes"])
        change = event["changes"][0]
        assert (change["kind"], change["old"], change["new"]) == ("update", [3, "tea 3", 1.5], [3, "tea 3", 99.0])
        position = event["position"]
        db.table("orders").delete(3)
        event = next(event for event in stream if event["changes"])
        assert (event["changes"][0]["kind"], event["changes"][0]["new"]) == ("delete", None)
    with browser.events("live", table=orders, start=position) as stream:
        event = next(event for event in stream if event.get("changes"))
        assert event["changes"][0]["kind"] == "delete"


@pytest.mark.parametrize("start", ["10m", "2020-01-01T12:30", "0"])
def test_live_from_a_time_or_an_offset(browser: Browser, events: str, start: str) -> None:
    with browser.events("live", table=events, start=start) as stream:
        assert next(event["count"] for event in stream if event.get("count")) == 250


def test_live_from_the_start_sends_every_change_if_asked(browser: Browser, events: str) -> None:
    for every, expected in (("1", 250), ("0", 200)):
        seen, counted = 0, 0
        with browser.events("live", table=events, start="earliest", all=every) as stream:
            for event in stream:
                seen += len(event.get("changes", ()))
                counted += event.get("count", 0)
                if counted == 250:
                    break
        assert seen == expected


def test_live_refuses_what_is_no_position(browser: Browser, events: str) -> None:
    assert browser.follow("", "live", table=events, start="yesterday").status == 400


def test_a_stream_that_is_not_read_holds_back_nothing(browser: Browser, events: str, db: fluss.Database) -> None:
    with browser.events("live", table=events, start="earliest", all="1"):
        rows = pa.table({"n": list(range(200_000)), "kind": ["x" * 50] * 200_000})
        writer = threading.Thread(target=lambda: db.table("events").append(rows))
        writer.start()
        writer.join(20)
        assert not writer.is_alive()
        assert browser.get("tables").status == 200


def test_one_stream_has_all_that_a_browser_follows(browser: Browser, running: Running, events: str) -> None:
    def follow(key: str, asked: Browser = browser, **more: str) -> Any:
        args = {"table": events, "start": "earliest", **more}
        return asked.post("streams/follow", stream=stream, key=key, source="live", args=args)

    with browser.lines("streams") as lines:
        stream = next(lines).strip()
        assert follow("a").json == follow("b").json == {"open": True}
        seen = set()
        while seen != {"a", "b"}:
            seen.add(next(line for line in lines if '"changes": [{' in line).split()[0])
        assert browser.post("streams/leave", stream=stream, key="a").status == 200
        next(line for line in lines if line.startswith("b") and '"count": 0' in line)
        next(line for line in lines if line.startswith("b") and '"count": 0' in line)  # two seconds later: alone
        assert follow("c", Browser(running.port).open()).json == {"open": False}  # another browser's
        assert (follow("a b").status, follow("c", table="nothing").status) == (400, 404)
        assert browser.post("streams/follow", stream=stream, key="d", source="log", args={}).status == 400
    assert follow("e").json == {"open": False}


def test_sql(browser: Browser, orders: str) -> None:
    query = "select item, count(*) as n from orders group by item order by item"
    found = browser.post("sql", tab="t", query=query).json
    assert found["columns"] == ["item", "n"]
    assert found["rows"][0] == ["tea 0", 72]
    assert not found["more"]
    cut = browser.post("sql", tab="t", query="select a.id from orders a, orders b").json
    assert (len(cut["rows"]), cut["more"]) == (1_000, True)
    assert browser.post("sql", tab="t", query="insert into orders values (1000, 'x', 1)").status == 200
    assert browser.post("sql", tab="t", query="select price from orders where id = 1000").json["rows"] == [[1.0]]
    assert browser.get("sql/words").json["tables"]["orders"] == ["id", "item", "price"]


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        """select * from information_schema."schemata where false union all by name from read_text('/etc/passwd')" """,
        """from information_schema."tables; copy (select 1) to '/dev/null'; select 1" """,
        "copy orders to '/tmp/stolen.csv'",
        "set enable_external_access=true",
        "install httpfs",
        "attach 'x.db'",
        "select * from nothing",
        "selec 1",
        "",
        "-- nothing",
    ],
)
def test_sql_that_is_refused(browser: Browser, orders: str, query: str) -> None:
    answer = browser.post("sql", tab="t", query=query)
    assert answer.status == 400 or (answer.status == 404 and "nothing" in query)
    assert answer.json["error"]


def test_sql_writes_no_file_beside_what_does_not_fit_in_memory(browser: Browser, orders: str) -> None:
    def ask(query: str) -> Answer:
        return browser.post("sql", tab="f", query=query)

    [[folder]] = ask("select current_setting('temp_directory')").json["rows"]
    assert ask("select 1").json["rows"] == [[1]]
    copy = f"copy orders to '{folder}/x.csv'"
    for query in (f"analyze {copy}", f"(analyze) {copy}", "checkpoint"):
        assert "is refused" in ask(f"explain {query}").json["error"]
    for query in ("explain select 1", "explain analyze (select 1)", "explain (format json) select 1"):
        assert ask(query).status == 200, query


def test_sql_export(browser: Browser, orders: str) -> None:
    found = browser.post("sql", tab="x", query="select id, item from orders where id < 2 order by id").json
    export = {"tab": "x", "result": found["result"]}
    text = browser.post("sql/export", **export, format="csv")
    assert text.body.decode().splitlines() == ["id,item", '0,"tea 0"', '1,"tea 1"']
    assert "attachment" in text.headers["content-disposition"]
    assert browser.post("sql/export", **export, format="exe").status == 400
    found = browser.post("sql", tab="x", query="select a.id from orders a, orders b limit 3000").json
    binary = browser.post("sql/export", tab="x", result=found["result"], format="parquet")
    assert pyarrow.parquet.read_table(io.BytesIO(binary.body)).num_rows == 3_000
    assert "Run the query again" in browser.post("sql/export", **export, format="csv").json["error"]
    inserted = browser.post("sql", tab="x", query="insert into orders values (2000, 'x', 1)").json
    assert inserted["result"] is None


def test_an_error_while_rows_are_read_is_reported_and_ends_no_session(browser: Browser) -> None:
    assert browser.post("sql", tab="x", query="create macro beans() as 7").status == 200
    failing = "select if(range = {}, error('no such bean'), range) as n from range(900_000)"
    assert "no such bean" in browser.post("sql", tab="x", query=failing.format(0)).refused()
    found = browser.post("sql", tab="x", query=failing.format(899_999)).json
    assert "no such bean" in browser.post("sql/export", tab="x", result=found["result"], format="csv").refused()
    assert browser.post("sql", tab="x", query="select beans()").json["rows"] == [[7]]


@pytest.mark.parametrize(
    ("query", "writes"),
    [
        ("-- nightly\ninsert into orders values (1000, 'x', 1)", True),
        ("with x as (select 1001 as id) insert into orders select id, 'x', 1 from x", True),
        ("insert into orders values (1002, 'x', 1); select 1", True),
        ("select 1; create temp table kept as select 1", True),
        ("select 1; explain select * from orders", False),
    ],
)
def test_sql_says_whether_it_wrote(browser: Browser, orders: str, query: str, writes: bool) -> None:
    assert browser.post("sql", tab="t", query=query).json["writes"] is writes


def test_sql_can_be_cancelled_and_does_not_block_other_tabs(browser: Browser, orders: str) -> None:
    endless = "select sum(a.range + b.range) from range(10_000_000) a, range(10_000_000) b"
    answers: list[Any] = []
    running = threading.Thread(target=lambda: answers.append(browser.post("sql", tab="slow", query=endless)))
    running.start()
    try:
        assert browser.post("sql", tab="quick", query="select 1").status == 200
        while not answers:
            browser.post("sql/cancel", tab="slow")
            running.join(0.1)
    finally:
        running.join(90)
    assert answers[0].json["error"] == "The query was cancelled."
    assert browser.post("sql", tab="slow", query="select 1").json["rows"] == [[1]]


@pytest.mark.slow
def test_sql_that_needs_too_much_memory_ends_alone(browser: Browser, orders: str) -> None:
    assert browser.post("sql", tab="other", query="create temp table kept as select 1").status == 200
    query = "select repeat('x', 50000000) from range(60)"
    assert "memory" in browser.post("sql", tab="big", query=query).refused().lower()
    assert browser.post("sql", tab="big", query="select 1").status == 200
    assert browser.post("sql", tab="other", query="select * from kept").json["rows"] == [[1]]


def test_schema(browser: Browser, orders: str) -> None:
    about = browser.get("table", table=orders).json
    assert about["kind"] == "primary key"
    assert [(one["name"], one["key"]) for one in about["columns"]] == [("id", True), ("item", False), ("price", False)]
    ttl = next(one for one in about["properties"] if one["name"] == "table.log.ttl")
    assert ttl["meaning"]
    assert ttl["default"]
    change = {"add_columns": [{"name": "note", "type": "string"}], "properties": {"table.log.ttl": "3d"}}
    code = browser.post("table/alter/code", table=orders, **change).json
    assert "add_column('note', 'string')" in code["python"]
    assert "fluss alter fluss.orders add column note string" in code["cli"]
    assert browser.post("table/alter", table=orders, **change).status == 200
    about = browser.get("table", table=orders).json
    assert about["columns"][-1]["name"] == "note"
    versions = browser.get("table/history", table=orders).json["versions"]
    assert [len(one["columns"]) for one in versions] == [4, 3]
    assert browser.get("table/properties").json["properties"]


def test_create_and_drop(browser: Browser, db: fluss.Database) -> None:
    form = {
        "name": "made",
        "columns": "id bigint not null, day string not null, item string",
        "primary_key": ["id", "day"],
        "partition_by": ["day"],
        "buckets": "2",
        "properties": {"table.log.ttl": "3d"},
        "comment": MARKUP,
    }
    code = browser.post("table/create/code", **form).json
    compile(code["python"], "form", "exec")
    compile(code["spark"], "form", "exec")
    assert "--key id,day" in code["cli"]
    assert browser.post("table/create", **form).json == {"name": "fluss.made"}
    assert browser.get("table", table="fluss.made").json["comment"] == MARKUP
    assert browser.post("table/drop", table="fluss.made", confirm="made").status == 400
    assert browser.post("table/drop", table="fluss.made", confirm="fluss.made").status == 200
    assert "made" not in db.tables()
    assert browser.post("table/create", name="", columns="").status == 400


def test_the_python_code_of_a_form_works(browser: Browser, running: Running, db: fluss.Database) -> None:
    form = {"name": "coded", "columns": "id bigint not null, item string", "primary_key": ["id"], "buckets": "2"}
    namespace: dict[str, object] = {}
    exec(browser.post("table/create/code", **form).json["python"], namespace)
    namespace["db"].close()  # type: ignore[attr-defined]
    assert db.table("coded").info.num_buckets == 2


def test_storage(browser: Browser, orders: str) -> None:
    found = browser.get("storage", table=orders).json
    assert [one["bucket"] for one in found["buckets"]] == [0, 1, 2]
    assert sum(one["rows"] for one in found["buckets"]) == 500
    assert all(one["log_bytes"] > 0 and one["segments"] >= 1 for one in found["buckets"])
    assert all(one["latest"] > one["earliest"] for one in found["buckets"])


def test_partitions(browser: Browser, db: fluss.Database) -> None:
    table = db.create_table("days", "n bigint, day string not null", partition_by="day")
    for day in ("a", "b"):
        table.add_partition({"day": day})
    table.append([{"n": 1, "day": "a"}, {"n": 2, "day": "b"}])
    buckets = browser.get("storage", table="fluss.days").json["buckets"]
    assert sorted((one["partition"], one["latest"]) for one in buckets) == [("a", 1), ("b", 1)]
    assert all(one["log_bytes"] > 0 for one in buckets)
    assert browser.get("records", table="fluss.days", partition="b").json["records"][0]["row"] == [2, "b"]
    assert browser.get("records", table="fluss.days").status == 400


def test_lake_that_is_off(browser: Browser, orders: str) -> None:
    assert browser.get("lake", table=orders).json == {"enabled": False, "format": None}
    assert browser.post("lake/tier", table="fluss.nothing").status == 404


async def test_clients_report_what_they_are_and_read(browser: Browser, db: fluss.Database, running: Running) -> None:
    table = db.create_table("followed", "id bigint", buckets=1)
    table.append([{"id": number} for number in range(10)])
    config = fluss.Config({"bootstrap.servers": running.server, "client.id": "<b>reader</b>"})

    software = "fluss-python (<b>reader</b>) "

    def mine() -> dict[str, Any]:
        clients = browser.get("clients").json["clients"]
        return next(one for one in clients if one["software"].startswith(software) and one["reads"])

    async with await fluss.aio.FlussConnection.create(config) as connection:
        scan = (await connection.get_table(table.path)).new_scan()
        async with await scan.create_log_scanner() as scanner:
            scanner.subscribe(0, 0)
            assert (await scanner.poll(5_000)).count() == 10
            while (await asyncio.to_thread(mine))["reads"][0]["lag"]:
                await scanner.poll(50)
            # Blocks the event loop, on which the scanner would ask for more.
            table.append([{"id": 11}, {"id": 12}])
            assert mine()["reads"] == [{"table": "fluss.followed", "buckets": 1, "lag": 2}]


def test_clients_access_and_log(browser: Browser) -> None:
    found = browser.get("clients").json
    assert found["total"] == len(found["clients"]) >= 1
    assert {"peer", "user", "idle_s", "bytes_in", "requests"} <= set(found["clients"][0])
    about = browser.get("access").json
    assert about["acls"] == []
    assert about["problem"]
    assert about["listeners"]["FLUSS"]["users"] == []
    assert isinstance(browser.get("log", level="debug").json["lines"], list)
    assert browser.get("log", level="loud").status == 400
    assert browser.get("access/effective", table="fluss.x", principal="User:a").status == 400


def test_consumers_and_rights(browser: Browser, db: fluss.Database) -> None:
    table = db.create_table("grouped", "n int")
    table.append([(1,), (2,)])
    with table.follow("earliest", group="readers", timeout=10) as changes:
        next(changes)
        (group,) = [one for one in browser.get("consumers").json["groups"] if one["group"] == "readers"]
        assert (group["table"], len(group["members"])) == ("fluss.grouped", 1)
    assert browser.get("flows").json == {"flows": []}  # the browser tests have some
    right = {"principal": "alice", "operation": "read", "resource": "grouped"}
    assert "authorizer" in browser.post("access/grant", **right).json["error"]
    assert browser.post("access/grant", **{**right, "principal": " "}).status == 400
    rule = {"principal": "User:alice", "operation": "READ", "resource": "TABLE", "name": "fluss.grouped", "host": "*"}
    assert "authorizer" in browser.post("access/revoke", **rule).json["error"]
    assert browser.post("access/revoke", **{**rule, "operation": "FLY"}).status == 400


def test_sample_data(browser: Browser, db: fluss.Database) -> None:
    assert browser.post("samples", run=True).json == {"running": True, "table": "orders"}
    assert browser.get("health").json["samples"] is True
    assert db.table("orders").count() >= 100
    assert browser.post("samples", run=False).json["running"] is False


def test_live_with_a_filter_and_from_an_offset(browser: Browser, events: str) -> None:
    with browser.events("live", table=events, start="240", where="n >= 245") as stream:
        event = next(event for event in stream if event.get("changes"))
        assert [one["new"][0] for one in event["changes"]] == [245, 246, 247, 248, 249]
        assert (event["count"], event["skipped"]) == (5, 0)
    assert browser.follow("", "live", table=events, where="nothing = 1").status == 400


def test_upload(browser: Browser, db: fluss.Database) -> None:
    text = b"id,item,at\n1,tea,2026-07-01\n2,<b>coffee</b>,2026-07-02\n"
    seen = browser.upload("upload/preview", text, file="a.csv").json
    assert [name for name, _ in seen["columns"]] == ["id", "item", "at"]
    assert seen["rows"][1] == [2, "<b>coffee</b>", "2026-07-02"]
    made = browser.upload("upload/create", text, file="a.csv", name="up", key="id", buckets=2)
    assert made.json == {"name": "fluss.up", "rows": 2}
    assert db.table("up").get(2)["at"] == dt.date(2026, 7, 2)
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": [1.5]}), out)
    assert browser.upload("upload/preview", out.getvalue(), file="b.parquet").json["total"] == 1
    for name, content in (("b.exe", b"x"), ("b.parquet", b"x"), ("b.csv", b"")):
        assert browser.upload("upload/preview", content, file=name).status == 400


def test_every_route_has_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for module in (overview, access, data, sql, streams, schema, storage, upload):
        for path, _, _ in module.ROUTES:
            assert f'"{path}"' in text, path


def test_a_failing_request_tells_what_is_wrong(browser: Browser) -> None:
    assert "'table'" in browser.get("rows").refused()
    headers = {"Content-Type": "application/json", "X-Fluss-Console": "1"}
    assert browser.send("POST", "/api/sql", b"[1]", headers).status == 400
    assert browser.send("POST", "/api/sql", b"{", headers).status == 400
    large = browser.send("POST", "/api/sql", b'"' + b"x" * 5_000_000 + b'"', headers)
    assert large.refused() == "The request is larger than 4 MB."
