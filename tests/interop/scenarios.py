# SPDX-License-Identifier: Apache-2.0
"""What is asked of every pair of client and server. Written once; each expects the same answers everywhere.

A scenario names the capabilities it needs; a client without one of them (an old release has no prefix lookup) is not
asked. What the client under test cannot *set up* but can use (an aggregation table, say) is set up by the helper.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.interop import rights
from tests.interop.cluster import USERS
from tests.interop.context import Context, Mismatch, refused, same
from tests.interop.environment import FLUSS_VERSION
from tests.interop.peers import Peer, PeerError
from tests.interop.tables import (
    BIGINT,
    INT,
    STRING,
    array,
    binary,
    char,
    column,
    decimal,
    flat_columns,
    flat_rows,
    nested_columns,
    nested_rows,
    required,
    row_of,
    table,
    timestamp,
    timestamp_ltz,
)


@dataclass(frozen=True)
class Scenario:
    name: str
    requires: frozenset[str]
    run: Callable[[Context], None]


SCENARIOS: list[Scenario] = []


def scenario(name: str, *requires: str) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    def register(run: Callable[[Context], None]) -> Callable[[Context], None]:
        SCENARIOS.append(Scenario(name, frozenset(requires), run))
        return run

    return register


# -------------------------------------------------------------------- databases and tables


@scenario("databases")
def databases(c: Context) -> None:
    call, name = c.call, c.database + "_x"
    same(call("database_exists", db=name), False, "an unknown database exists")
    call("create_database", db=name, comment="a comment", custom={"k1": "v1", "k2": "v2"})
    same(call("database_exists", db=name), True, "the new database exists")
    same(name in call("list_databases"), True, "the new database is listed")
    same(
        call("database_info", db=name),
        {"db": name, "comment": "a comment", "custom": {"k1": "v1", "k2": "v2"}},
        "its description",
    )
    refused(6, "creating it again", lambda: call("create_database", db=name))
    call("create_database", db=name, ignore=True)
    one = table(name, "t", [column("id", INT)], buckets=1)
    call("create_table", table=one)
    refused(5, "dropping it with a table inside", lambda: call("drop_database", db=name, cascade=False))
    call("drop_database", db=name, cascade=True)
    same(call("database_exists", db=name), False, "the dropped database exists")
    refused(4, "describing it", lambda: call("database_info", db=name))
    refused(4, "dropping it again", lambda: call("drop_database", db=name))
    refused(4, "listing its tables", lambda: call("list_tables", db=name))
    call("drop_database", db=name, ignore=True)
    refused(16, "a bad name", lambda: call("create_database", db="no spaces"))


@scenario("tables")
def tables(c: Context) -> None:
    call = c.call
    one = table(
        c.database, "t", [column("id", required(INT)), column("name", STRING)], primary_key=["id"], buckets=3,
        comment="about t", custom={"owner": "me"},
    )  # fmt: skip
    same(call("table_exists", table=one), False, "an unknown table exists")
    c.create(one)
    same(call("table_exists", table=one), True, "the new table exists")
    same(call("list_tables", db=c.database), ["t"], "tables of the database")
    info = call("table_info", table=one)
    same(info["columns"], ["id", "name"], "columns")
    same(info["primary_key"], ["id"], "primary key")
    same(info["bucket_keys"], ["id"], "default bucket key")
    same(info["partition_keys"], [], "partition keys")
    same(info["buckets"], 3, "buckets")
    same(info["comment"], "about t", "comment")
    same(info["schema_id"], 1, "schema id")
    same(info["custom"].get("owner"), "me", "custom property")
    same(info["properties"].get("table.replication.factor"), "1", "replication factor filled in")
    same(info["properties"].get("table.kv.format-version"), "2", "key format version filled in")
    refused(8, "creating it again", lambda: call("create_table", table=one))
    call("create_table", table=one, ignore=True)
    call("drop_table", table=one)
    same(call("table_exists", table=one), False, "the dropped table exists")
    refused(7, "dropping it again", lambda: call("drop_table", table=one))
    call("drop_table", table=one, ignore=True)
    refused(7, "describing it", lambda: call("table_info", table=one))
    refused(4, "a table in an unknown database", lambda: call("create_table", table={**one, "db": "nowhere"}))
    bad = {**one, "name": "t2", "properties": {"table.no-such-thing": "1"}}
    refused(39, "an unknown table property", lambda: call("create_table", table=bad))
    refused(37, "partitions of a plain table", lambda: call("list_partitions", table=c.create({**one, "name": "t3"})))
    defaults = table(c.database, "t4", [column("id", INT)])
    call("create_table", table=defaults)
    same(call("table_info", table=defaults)["buckets"], 3, "the default number of buckets")


@scenario("server nodes")
def server_nodes(c: Context) -> None:
    nodes = c.call("server_nodes")
    kinds = [node[0].upper().replace("_", "") for node in nodes]
    same(sum("COORDINATOR" in kind for kind in kinds), 1, "coordinators")
    same(any("TABLET" in kind for kind in kinds), True, "a tablet server is listed")
    same(all(node[2] == "127.0.0.1" and node[3] > 0 for node in nodes), True, "addresses")


@scenario("no lake snapshot")
def no_lake_snapshot(c: Context) -> None:
    one = c.table("t", [column("id", INT)], buckets=1)
    refused({40, 53}, "the lake snapshot of a table without one", lambda: c.call("lake_snapshot", table=one))


# -------------------------------------------------------------------- values


@scenario("log table, every flat type")
def log_types(c: Context) -> None:
    one = c.table("t", flat_columns(), buckets=1)
    rows = flat_rows()
    c.call("append", table=one, rows=rows)
    same(c.rows(one, len(rows)), rows, "rows read back")


@scenario("log table, every flat type, as Arrow", "arrow")
def log_types_arrow(c: Context) -> None:
    one = c.table("t", flat_columns(), buckets=1)
    rows = flat_rows()
    c.call("append", table=one, rows=rows, way="batch")
    same(c.rows(one, len(rows), way="batches"), rows, "rows read back as batches")
    same(c.rows(one, len(rows), way="to_arrow"), rows, "rows read back as one table")
    same(c.rows(one, len(rows)), rows, "rows read back one by one")


@scenario("primary-key table, every flat type")
def key_types(c: Context) -> None:
    one = c.table("t", [column("id", required(INT)), *flat_columns()], primary_key=["id"], buckets=1)
    rows = [[i, *row] for i, row in enumerate(flat_rows())]
    c.call("upsert", table=one, rows=rows)
    keys = [[row[0]] for row in rows]
    same(c.call("lookup", table=one, keys=[*keys, [99]]), [*rows, None], "rows looked up")


@scenario("nanosecond timestamps", "arrow")
def nanoseconds(c: Context) -> None:
    one = c.table("t", [column("id", INT), column("t", timestamp(9)), column("z", timestamp_ltz(9))], buckets=1)
    rows = [[1, [1705321845123, 456789], [1705321845123, 1]], [2, None, None]]
    c.call("append", table=one, rows=rows, way="batch")
    same(c.rows(one, 2, way="batches"), rows, "rows read back")


@scenario("timestamps before 1970", "before_1970")
def before_1970(c: Context) -> None:
    columns = [column("id", required(INT)), column("t", timestamp(6)), column("z", timestamp_ltz(6))]
    rows = [[1, [-1, 999000], [-1, 999000]], [2, [-62135596800000, 0], [-62135596800000, 0]]]
    log = c.table("l", columns, buckets=1)
    c.call("append", table=log, rows=rows)
    same(c.rows(log, 2), rows, "rows read from the log")
    keyed = c.table("k", columns, primary_key=["id"], buckets=1)
    c.call("upsert", table=keyed, rows=rows)
    same(c.call("lookup", table=keyed, keys=[[1], [2]]), rows, "rows looked up")


@scenario("fixed-length types", "binary")
def fixed_length(c: Context) -> None:
    columns = [column("id", required(INT)), column("b", binary(4))]
    rows = [[1, "00010203"], [2, None]]
    log = c.table("l", columns, buckets=1)
    c.call("append", table=log, rows=rows)
    same(c.rows(log, 2), rows, "rows read from the log")
    keyed = c.table("k", columns, primary_key=["id"], buckets=1)
    c.call("upsert", table=keyed, rows=rows)
    same(c.call("lookup", table=keyed, keys=[[1], [2]]), rows, "rows looked up")


@scenario("CHAR", "char")
def chars(c: Context) -> None:
    columns = [column("id", required(INT)), column("c", char(5))]
    rows = [[1, "ab"], [2, "grüße"], [3, None]]
    keyed = c.table("k", columns, primary_key=["id"], buckets=1)
    c.call("upsert", table=keyed, rows=rows)
    same(c.call("lookup", table=keyed, keys=[[1], [2], [3]]), rows, "rows looked up")


@scenario("nested types in a log table", "nested")
def nested_log(c: Context) -> None:
    one = c.table("t", nested_columns(), buckets=1)
    rows = nested_rows()
    c.call("append", table=one, rows=rows)
    same(c.rows(one, len(rows)), rows, "rows read back")


@scenario("nested types in a primary-key table", "nested")
def nested_key(c: Context) -> None:
    one = c.table("t", [column("id", required(INT)), *nested_columns()], primary_key=["id"], buckets=1)
    rows = [[i, *row] for i, row in enumerate(nested_rows())]
    c.call("upsert", table=one, rows=rows)
    same(c.call("lookup", table=one, keys=[[row[0]] for row in rows]), rows, "rows looked up")


@scenario("arrays of rows", "nested")
def arrays_of_rows(c: Context) -> None:
    one = c.table("t", [column("id", INT), column("rs", array(row_of(a=INT, b=STRING)))], buckets=1)
    rows = [[1, [[1, "x"], [None, None]]], [2, []], [3, None], [4, [None, [2, ""]]]]
    c.call("append", table=one, rows=rows)
    same(c.rows(one, 4), rows, "rows read back")


# -------------------------------------------------------------------- writing and reading logs

_PAIR = [column("id", INT), column("name", STRING)]


@scenario("every way to write", "arrow")
def ways_to_write(c: Context) -> None:
    one = c.table("t", _PAIR, buckets=1)
    expected = []
    for i, way in enumerate(("rows", "lists", "batch", "arrow", "pandas")):
        rows = [[i * 10 + k, f"{way}-{k}"] for k in range(3)]
        c.call("append", table=one, rows=rows, way=way)
        expected += rows
    same(c.rows(one, len(expected)), expected, "rows in the order written")


@scenario("projection")
def projection(c: Context) -> None:
    columns = [column("a", INT), column("b", STRING), column("c", BIGINT), column("d", STRING)]
    one = c.table("t", columns, buckets=1)
    c.call("append", table=one, rows=[[i, f"b{i}", i * 100, None if i % 2 else "d"] for i in range(4)])
    same(c.rows(one, 4, project=["b", "c"]), [[f"b{i}", i * 100] for i in range(4)], "two columns")
    same(c.rows(one, 4, project=["d", "a"]), [[None if i % 2 else "d", i] for i in range(4)], "in another order")
    same(c.rows(one, 4, project=["c"]), [[i * 100] for i in range(4)], "one column")


@scenario("start offsets")
def start_offsets(c: Context) -> None:
    one = c.table("t", _PAIR, buckets=1)
    rows = [[i, str(i)] for i in range(6)]
    c.call("append", table=one, rows=rows[:4])
    c.call("append", table=one, rows=rows[4:])
    same(
        c.scan(one, 4, start={"0": 2}),
        [[None, 0, i, "+A", rows[i]] for i in range(2, 6)],
        "records from offset 2, inside a batch",
    )
    same(c.scan(one, 0, start={"0": 6}, idle_ms=600), [], "records from the end")


@scenario("filter", "filter")
def filters(c: Context) -> None:
    one = c.create(table(c.database, "t", _PAIR, buckets=1, properties={"table.statistics.columns": "*"})
                   if c.server.name == "ours" else table(c.database, "t", _PAIR, buckets=1))  # fmt: skip
    for start in (0, 100, 200):
        c.call("append", table=one, rows=[[start + k, f"n{start + k}"] for k in range(5)])
    wanted = ["and", ["greater_or_equal", "id", 100], ["less_than", "id", 103]]
    found = c.rows(one, 3, filter=wanted, idle_ms=2000)
    # The server may hand out more than asked (it prunes whole batches); the rows that match must all be there.
    same([row for row in found if 100 <= row[0] < 103], [[k, f"n{k}"] for k in (100, 101, 102)], "rows that match")
    found = c.rows(one, 1, filter=["starts_with", "name", "n20"], idle_ms=2000)
    same([row for row in found if row[1].startswith("n20")], [[200 + k, f"n{200 + k}"] for k in range(5)], "by prefix")


@scenario("limit scan", "limit_scan")
def limit_scan(c: Context) -> None:
    log = c.table("l", _PAIR, buckets=1)
    c.call("append", table=log, rows=[[i, f"r{i}"] for i in range(5)])
    found = c.call("limit_scan", table=log, bucket=0, limit=3)
    same(found, [[i, f"r{i}"] for i in (2, 3, 4)], "the last three rows of the log")
    same(c.call("limit_scan", table=log, bucket=0, limit=9, project=["name"]), [[f"r{i}"] for i in range(5)],
         "all rows, one column")  # fmt: skip
    keyed = c.table("k", [column("id", required(INT)), column("name", STRING)], primary_key=["id"], buckets=1)
    c.call("upsert", table=keyed, rows=[[i, f"r{i}"] for i in range(5)])
    same(sorted(c.call("limit_scan", table=keyed, bucket=0, limit=3)), [[i, f"r{i}"] for i in range(3)],
         "three rows of the keyed table")  # fmt: skip
    empty = c.table("e", _PAIR, buckets=1)
    same(c.call("limit_scan", table=empty, bucket=0, limit=3), [], "rows of an empty table")


@scenario("offsets")
def offsets(c: Context) -> None:
    one = c.table("t", _PAIR, buckets=2)

    def ask(spec: object) -> object:
        return c.call("list_offsets", table=one, buckets=[0, 1], spec=spec)

    same(ask("earliest"), [[0, 0], [1, 0]], "earliest of an empty table")
    same(ask("latest"), [[0, 0], [1, 0]], "latest of an empty table")
    before = int(time.time() * 1000)
    time.sleep(0.05)
    for i in range(4):
        c.call("append", table=one, rows=[[i, "x"], [i, "y"]])
    time.sleep(0.1)
    after = int(time.time() * 1000)
    time.sleep(0.05)
    latest = ask("latest")
    same(sum(offset for _, offset in latest), 8, "rows in both buckets")  # type: ignore[attr-defined]
    same(ask("earliest"), [[0, 0], [1, 0]], "earliest")
    same(ask(before), [[0, 0], [1, 0]], "by a time before the rows")
    same(ask(after), latest, "by a time after the rows")
    refused(38, "by a time in the future", lambda: ask(int(time.time() * 1000) + 3_600_000))


@scenario("empty batches", "arrow")
def empty_batches(c: Context) -> None:
    one = c.table("t", _PAIR, buckets=1)
    c.call("append", table=one, rows=[], way="arrow")
    c.call("append", table=one, rows=[[1, "a"]], way="batch")
    c.call("append", table=one, rows=[], way="arrow")
    c.call("append", table=one, rows=[[2, "b"]], way="batch")
    same(c.rows(one, 2), [[1, "a"], [2, "b"]], "rows around the empty batches")


@scenario("large batches")
def large_batches(c: Context) -> None:
    one = c.table("t", [column("id", INT), column("text", STRING)], buckets=1)
    rows = [[i, f"{i:08d}" * 40] for i in range(8000)]
    way = {"way": "batch"} if "arrow" in c.client.capabilities else {}
    for start in range(0, len(rows), 4000):
        c.call("append", table=one, rows=rows[start : start + 4000], **way)
    found = c.scan(one, len(rows))
    same(len(found), len(rows), "number of rows")
    same([record[2] for record in found], list(range(len(rows))), "offsets without a gap")
    if [record[4] for record in found] != rows:
        raise Mismatch("the rows differ from those written")


@scenario("log with segments in remote storage")
def remote_segments(c: Context) -> None:
    properties = {"table.log.arrow.compression.type": "NONE", "table.log.tiered.local-segments": "1"}
    columns = [column("id", INT), column("text", STRING)]
    one = c.table("t", columns, buckets=1, properties=properties)
    rows = [[i, f"{i:08d}" * 250] for i in range(2000)]
    for start in range(0, len(rows), 250):
        c.call("append", table=one, rows=rows[start : start + 250])
    _wait_until_remote(c)
    found = c.scan(one, len(rows))
    same([record[2] for record in found], list(range(len(rows))), "offsets without a gap")
    if [record[4] for record in found] != rows:
        raise Mismatch("the rows differ from those written")


def _wait_until_remote(c: Context) -> None:
    """Until the first segment of a log is in remote storage and not with the server any more."""
    first = f"{0:020d}.log"
    deadline = time.monotonic() + 60
    while True:
        places = {path.relative_to(c.server.home).parts for path in c.server.home.rglob(first) if path.is_file()}
        own = {parts[0].partition("-")[0] for parts in places if c.database in parts}
        if own == {"remote"}:
            return
        if time.monotonic() > deadline:
            raise Mismatch(f"the first segment is in {sorted(own)} after a minute, expected it in remote storage only")
        time.sleep(0.5)


@scenario("many buckets")
def many_buckets(c: Context) -> None:
    one = c.table("t", [column("id", required(INT)), column("v", BIGINT)], primary_key=["id"], buckets=16)
    rows = [[i, i * i] for i in range(120)]
    c.call("upsert", table=one, rows=rows)
    same(c.call("lookup", table=one, keys=[[row[0]] for row in rows[::6]]), rows[::6], "rows looked up")
    latest = c.call("list_offsets", table=one, buckets=list(range(16)), spec="latest")
    same(sum(offset for _, offset in latest), 120, "records in all buckets")
    same(sum(offset > 0 for _, offset in latest) >= 12, True, "the buckets share the rows")


@scenario("compression none and LZ4")
def compression(c: Context) -> None:
    for kind in ("NONE", "LZ4_FRAME", "ZSTD"):
        properties = {"table.log.arrow.compression.type": kind}
        one = c.table("t_" + kind.lower(), _PAIR, buckets=1, properties=properties)
        rows = [[i, "abc" * 50] for i in range(50)]
        c.call("append", table=one, rows=rows)
        same(c.rows(one, 50), rows, f"rows compressed with {kind}")


@scenario("indexed log format", "indexed_log")
def indexed_log(c: Context) -> None:
    one = c.table("t", _PAIR, buckets=1, properties={"table.log.format": "INDEXED"})
    rows = [[i, f"n{i}"] for i in range(5)] + [[None, None]]
    c.call("append", table=one, rows=rows)
    same(c.rows(one, 6), rows, "rows read back")


# -------------------------------------------------------------------- partitions


@scenario("partitioned log table")
def partitioned_log(c: Context) -> None:
    columns = [column("id", INT), column("region", STRING), column("v", BIGINT)]
    one = c.table("t", columns, partition_keys=["region"], buckets=1)
    call = c.call
    same(call("list_partitions", table=one), [], "partitions of a new table")
    c.create_partition(one, {"region": "US"})
    c.create_partition(one, {"region": "EU"})
    same(call("list_partitions", table=one), ["EU", "US"], "partitions")
    refused(42, "creating one again", lambda: call("create_partition", table=one, spec={"region": "US"}))
    call("create_partition", table=one, spec={"region": "US"}, ignore=True)
    refused(43, "a value that makes no name", lambda: call("create_partition", table=one, spec={"region": "a b"}))
    rows = [[i, "US" if i % 2 else "EU", i * 10] for i in range(6)]
    call("append", table=one, rows=rows)
    for name in ("EU", "US"):
        same(
            call("list_offsets", table=one, buckets=[0], spec="latest", partition=name), [[0, 3]], f"offsets of {name}"
        )
    expected = [["EU", 0, i, "+A", rows[2 * i]] for i in range(3)]
    expected += [["US", 0, i, "+A", rows[2 * i + 1]] for i in range(3)]
    same(c.scan(one, 6), expected, "records of both partitions")
    call("drop_partition", table=one, spec={"region": "EU"})
    same(call("list_partitions", table=one), ["US"], "partitions after a drop")
    refused(36, "dropping it again", lambda: call("drop_partition", table=one, spec={"region": "EU"}))
    call("drop_partition", table=one, spec={"region": "EU"}, ignore=True)


@scenario("partitioned primary-key table")
def partitioned_key(c: Context) -> None:
    columns = [column("id", required(INT)), column("dt", required(STRING)), column("region", required(STRING)),
               column("v", BIGINT)]  # fmt: skip
    one = c.table("t", columns, primary_key=["id", "dt", "region"], partition_keys=["dt", "region"], buckets=2)
    for dt in ("2024-01-15", "2024-01-16"):
        c.create_partition(one, {"dt": dt, "region": "EMEA"})
    same(c.call("list_partitions", table=one), ["2024-01-15$EMEA", "2024-01-16$EMEA"], "partition names")
    rows = [[i, f"2024-01-1{5 + i % 2}", "EMEA", i] for i in range(8)]
    c.call("upsert", table=one, rows=rows)
    keys = [row[:3] for row in rows]
    same(c.call("lookup", table=one, keys=keys), rows, "rows looked up")
    same(c.call("lookup", table=one, keys=[[1, "1999-01-01", "EMEA"]]), [None], "in an unknown partition")
    c.call("delete", table=one, keys=[keys[0]])
    same(c.call("lookup", table=one, keys=keys[:3]), [None, *rows[1:3]], "after a delete")


@scenario("partitions made by writing", "dynamic_partitions")
def dynamic_partitions(c: Context) -> None:
    columns = [column("id", INT), column("day", required(INT))]
    one = c.table("t", columns, partition_keys=["day"], buckets=1)
    c.call("append", table=one, rows=[[1, 20240101], [2, 20240102]])
    same(c.call("list_partitions", table=one), ["20240101", "20240102"], "partitions")
    same([record[4] for record in c.scan(one, 2)], [[1, 20240101], [2, 20240102]], "rows")


# -------------------------------------------------------------------- primary keys

_KEYED = [column("id", required(INT)), column("name", STRING), column("v", BIGINT)]


@scenario("upsert, delete, lookup")
def upserts(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=3)
    call = c.call
    call("upsert", table=one, rows=[[1, "a", 10], [2, "b", 20], [3, "c", None]])
    same(
        call("lookup", table=one, keys=[[1], [2], [3], [4]]), [[1, "a", 10], [2, "b", 20], [3, "c", None], None], "rows"
    )
    call("upsert", table=one, rows=[[1, "A", 11]])
    call("delete", table=one, keys=[[2], [77]])
    same(call("lookup", table=one, keys=[[1], [2], [3]]), [[1, "A", 11], None, [3, "c", None]], "after changes")


@scenario("composite keys")
def composite_keys(c: Context) -> None:
    columns = [column("region", required(STRING)), column("score", BIGINT), column("user", required(INT)),
               column("event", required(BIGINT))]  # fmt: skip
    one = c.table("t", columns, primary_key=["region", "user", "event"], bucket_keys=["region", "user"], buckets=3)
    rows = [["US", 1, 10, 100], ["US", 2, 10, 101], ["EU", 3, 10, 100], ["Ümläut", 4, -1, -1]]
    c.call("upsert", table=one, rows=rows)
    keys = [[row[0], row[2], row[3]] for row in rows]
    same(c.call("lookup", table=one, keys=keys), rows, "rows looked up")
    c.call("delete", table=one, keys=[keys[1]])
    same(c.call("lookup", table=one, keys=keys[:2]), [rows[0], None], "after a delete")


@scenario("prefix lookup", "prefix_lookup")
def prefix_lookup(c: Context) -> None:
    columns = [column("region", required(STRING)), column("user", required(INT)), column("event", required(BIGINT)),
               column("v", STRING)]  # fmt: skip
    one = c.table("t", columns, primary_key=["region", "user", "event"], bucket_keys=["region", "user"], buckets=3)
    rows = [["US", 1, 1, "a"], ["US", 1, 2, "b"], ["US", 2, 1, "c"], ["EU", 1, 1, "d"]]
    c.call("upsert", table=one, rows=rows)
    found = c.call("prefix_lookup", table=one, by=["region", "user"], keys=[["US", 1], ["EU", 1], ["EU", 9]])
    same([sorted(part) for part in found], [rows[:2], [rows[3]], []], "rows by prefix")


@scenario("partial update", "partial_update")
def partial_update(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1)
    call = c.call
    call("upsert", table=one, rows=[[1, "a", 10], [2, "b", 20]])
    call("upsert", table=one, columns=["id", "v"], rows=[[1, 11], [3, 33]])
    same(call("lookup", table=one, keys=[[1], [2], [3]]), [[1, "a", 11], [2, "b", 20], [3, None, 33]], "rows")
    call("upsert", table=one, columns=["id", "name"], rows=[[3, "c"], [1, None]])
    same(call("lookup", table=one, keys=[[1], [3]]), [[1, None, 11], [3, "c", 33]], "rows after the other column")


@scenario("changelog", "changelog")
def changelog(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1)
    call = c.call
    call("upsert", table=one, rows=[[1, "a", 10]])
    call("upsert", table=one, rows=[[2, "b", 20]])
    call("upsert", table=one, rows=[[1, "A", 11]])
    call("delete", table=one, keys=[[2]])
    call("upsert", table=one, rows=[[1, "A", 11]])
    expected = [
        ["+I", [1, "a", 10]], ["+I", [2, "b", 20]], ["-U", [1, "a", 10]], ["+U", [1, "A", 11]], ["-D", [2, "b", 20]],
        ["-U", [1, "A", 11]], ["+U", [1, "A", 11]],
    ]  # fmt: skip
    found = c.scan(one, len(expected))
    same([record[3:] for record in found], expected, "changes")
    same([record[2] for record in found], list(range(len(expected))), "offsets")
    same([record[3:] for record in c.scan(one, 7, project=["v"])], [[change, [row[2]]] for change, row in expected],
         "changes, one column")  # fmt: skip


@scenario("changelog without old images", "changelog")
def changelog_wal(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1, properties={"table.changelog.image": "WAL"})
    c.call("upsert", table=one, rows=[[1, "a", 10]])
    c.call("upsert", table=one, rows=[[1, "A", 11]])
    c.call("delete", table=one, keys=[[1]])
    found = [record[3:] for record in c.scan(one, 3)]
    same(found, [["+U", [1, "a", 10]], ["+U", [1, "A", 11]], ["-D", [1, "A", 11]]], "changes")


@scenario("delete of a missing key, then a write", "changelog")
def delete_missing(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1)
    c.call("delete", table=one, keys=[[5]])
    c.call("upsert", table=one, rows=[[1, "a", 10]])
    same(c.call("list_offsets", table=one, buckets=[0], spec="latest"), [[0, 2]], "the empty change took an offset")
    same([record[2:] for record in c.scan(one, 1)], [[1, "+I", [1, "a", 10]]], "changes")


# -------------------------------------------------------------------- merge engines


@scenario("merge engine first_row")
def first_row(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1, properties={"table.merge-engine": "first_row"})
    c.call("upsert", table=one, rows=[[1, "first", 1], [2, "only", 2]])
    c.call("upsert", table=one, rows=[[1, "second", 3]])
    c.call("delete", table=one, keys=[[2]])
    same(c.call("lookup", table=one, keys=[[1], [2]]), [[1, "first", 1], [2, "only", 2]], "rows")


@scenario("merge engine versioned")
def versioned(c: Context) -> None:
    properties = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"}
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1, properties=properties)
    for row in ([1, "five", 5], [1, "three", 3], [1, "five again", 5]):
        c.call("upsert", table=one, rows=[row])
    same(c.call("lookup", table=one, keys=[[1]]), [[1, "five again", 5]], "the newest version")


@scenario("merge engine aggregation")
def aggregation(c: Context) -> None:
    columns = [
        column("id", required(INT)),
        column("total", BIGINT, agg={"type": "sum"}),
        column("most", INT, agg={"type": "max"}),
        column("least", INT, agg={"type": "min"}),
        column("all", STRING, agg={"type": "listagg", "parameters": {"delimiter": ";"}}),
        column("first", STRING, agg={"type": "first_value"}),
        column("money", decimal(10, 2), agg={"type": "sum"}),
        column("last", STRING),
    ]
    one = c.table("t", columns, primary_key=["id"], buckets=1, properties={"table.merge-engine": "aggregation"})
    c.call("upsert", table=one, rows=[[1, 10, 5, 5, "a", "x", "1.50", "p"]])
    c.call("upsert", table=one, rows=[[1, 7, 9, 9, "b", "y", "2.25", "q"], [1, None, 1, 1, "c", "z", None, None]])
    same(c.call("lookup", table=one, keys=[[1]]), [[1, 17, 9, 1, "a;b;c", "x", "3.75", "q"]], "the merged row")


@scenario("deletes ignored or disabled")
def delete_behaviour(c: Context) -> None:
    def keyed(name: str, behaviour: str) -> dict[str, object]:
        properties = {"table.delete.behavior": behaviour}
        return c.table(name, _KEYED, primary_key=["id"], buckets=1, properties=properties)

    ignored = keyed("ignored", "IGNORE")
    c.call("upsert", table=ignored, rows=[[1, "a", 1]])
    c.call("delete", table=ignored, keys=[[1]])
    same(c.call("lookup", table=ignored, keys=[[1]]), [[1, "a", 1]], "the row stays")
    disabled = keyed("disabled", "DISABLE")
    c.call("upsert", table=disabled, rows=[[1, "a", 1]])
    refused(57, "a delete where it is disabled", lambda: c.call("delete", table=disabled, keys=[[1]]))


@scenario("auto-increment column", "auto_increment", "partial_update")
def auto_increment(c: Context) -> None:
    columns = [column("name", required(STRING)), column("v", INT), column("uid", BIGINT)]
    one = c.table("t", columns, primary_key=["name"], buckets=1, auto_increment="uid")
    c.call("upsert", table=one, columns=["name", "v"], rows=[["a", 1]])
    c.call("upsert", table=one, columns=["name", "v"], rows=[["b", 2], ["a", 3]])
    found = c.call("lookup", table=one, keys=[["a"], ["b"]])
    same([row[:2] for row in found], [["a", 3], ["b", 2]], "rows")
    same(found[0][2] is not None and found[0][2] < found[1][2], True, f"numbers grow: {found}")


# -------------------------------------------------------------------- changing tables


@scenario("schema evolution of a log", "evolution")
def evolution_log(c: Context) -> None:
    one = c.table("t", _PAIR, buckets=1)
    c.call("append", table=one, rows=[[1, "old"]])
    two = _add_column(c, one, column("extra", BIGINT))
    c.call("append", table=two, rows=[[2, "new", 22]])
    same(c.call("table_info", table=two)["schema_id"], 2, "schema id")
    same(c.rows(two, 2), [[1, "old", None], [2, "new", 22]], "rows of both schemas")


@scenario("schema evolution of a log, projected", "evolution_projected")
def evolution_projected(c: Context) -> None:
    one = c.table("t", _PAIR, buckets=1)
    c.call("append", table=one, rows=[[1, "old"]])
    two = _add_column(c, one, column("extra", BIGINT))
    c.call("append", table=two, rows=[[2, "new", 22]])
    same(c.rows(two, 2, project=["name", "id"]), [["old", 1], ["new", 2]], "two old columns of both schemas")
    same(c.rows(two, 2, project=["extra", "id"]), [[None, 1], [22, 2]], "an old and a new column of both schemas")


@scenario("schema evolution of a keyed table", "evolution")
def evolution_key(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1)
    c.call("upsert", table=one, rows=[[1, "old", 1]])
    two = _add_column(c, one, column("extra", STRING))
    c.call("upsert", table=two, rows=[[2, "new", 2, "x"]])
    same(c.call("lookup", table=two, keys=[[1], [2]]), [[1, "old", 1, None], [2, "new", 2, "x"]], "rows")
    if "changelog" in c.client.capabilities:
        c.call("upsert", table=two, rows=[[1, "newer", 1, "y"]])
        found = [record[3:] for record in c.scan(two, 4)]
        expected = [["+I", [1, "old", 1, None]], ["+I", [2, "new", 2, "x"]], ["-U", [1, "old", 1, None]],
                    ["+U", [1, "newer", 1, "y"]]]  # fmt: skip
        same(found, expected, "changes of both schemas")


# -------------------------------------------------------------------- snapshots


@scenario("snapshot of a keyed table, then its log", "snapshots", "changelog")
def snapshot_then_log(c: Context) -> None:
    """Every flat type, several buckets, deletes: the snapshot, and the log from its offset, give the present rows."""
    columns = [column("k", required(INT)), *flat_columns()]
    one = c.table("t", columns, primary_key=["k"], buckets=2)
    rows = [[i, *row] for i, row in enumerate(flat_rows() * 3)]
    c.call("upsert", table=one, rows=rows)
    c.call("delete", table=one, keys=[[0]])
    stored = _snapshots_with(c, one, len(rows) - 1)
    same(sorted(stored["rows"], key=_first), sorted(rows[1:], key=_first), "rows of the snapshots")
    changed = [[1, *rows[2][1:]], [500, *rows[3][1:]]]
    c.call("upsert", table=one, rows=changed)
    c.call("delete", table=one, keys=[[2]])
    present = {row[0]: row for row in stored["rows"]}
    starts = {str(bucket): offset for bucket, _, offset in stored["snapshots"] if offset is not None}
    for record in c.scan(one, 4, start=starts):
        if record[3] in ("-D", "-U"):
            present.pop(record[4][0], None)
        else:
            present[record[4][0]] = record[4]
    expected = {row[0]: row for row in [*rows[1:2], *rows[3:], *changed]}
    same(present, expected, "rows of the snapshots with the log that follows")


@scenario("snapshot of nested types", "snapshots", "nested")
def snapshot_nested(c: Context) -> None:
    columns = [column("k", required(INT)), *nested_columns()]
    one = c.table("t", columns, primary_key=["k"], buckets=1)
    rows = [[i, *row] for i, row in enumerate(nested_rows())]
    c.call("upsert", table=one, rows=rows)
    same(_snapshots_with(c, one, len(rows))["rows"], rows, "rows of the snapshot")


@scenario("snapshot over two schemas", "snapshots", "evolution")
def snapshot_evolved(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1)
    c.call("upsert", table=one, rows=[[1, "old", 1], [2, "old", 2]])
    two = _add_column(c, one, column("extra", STRING))
    c.call("upsert", table=two, rows=[[2, "new", 2, "x"]])
    expected = [[1, "old", 1, None], [2, "new", 2, "x"]]
    stored = _snapshots_with(c, two, 2, lambda rows: rows == expected)
    same(stored["rows"], expected, "rows of both schemas")
    (newest,) = stored["snapshots"]
    found = c.call("snapshot_scan", table=two, bucket=0, snapshot=newest[1], project=["extra", "id"])
    same(found, [[None, 1], ["x", 2]], "two columns")


@scenario("snapshots of a large bucket", "snapshots")
def snapshot_large(c: Context) -> None:
    """Our server moves such a bucket to disk: its snapshots are checkpoints that share files, not exports."""
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1)
    rows: list[list[object]] = [[i, "x" * 60, i] for i in range(20_000)]
    for start in range(0, len(rows), 5_000):
        c.call("upsert", table=one, rows=rows[start : start + 5_000])
    same(sorted(_snapshots_with(c, one, len(rows))["rows"]), rows, "rows")
    changed = [[i, "changed", -i] for i in range(0, 20_000, 1_000)]
    c.call("upsert", table=one, rows=changed)
    c.call("delete", table=one, keys=[[1]])
    expected = {row[0]: row for row in rows} | {row[0]: row for row in changed}
    del expected[1]
    found = _snapshots_with(c, one, len(expected), lambda rows: [row[1] for row in rows].count("changed") == 20)
    same(sorted(found["rows"]), sorted(expected.values()), "rows after changes")


@scenario("snapshots of partitions", "snapshots")
def snapshot_partitions(c: Context) -> None:
    columns = [column("id", required(INT)), column("p", required(STRING)), column("v", STRING)]
    one = c.table("t", columns, primary_key=["id", "p"], partition_keys=["p"], bucket_keys=["id"], buckets=1)
    for name in ("a", "b"):
        c.create_partition(one, {"p": name})
    c.call("upsert", table=one, rows=[[1, "a", "x"], [1, "b", "y"], [2, "b", "z"]])
    same(_snapshots_with(c, one, 1, partition="a")["rows"], [[1, "a", "x"]], "rows of the first partition")
    same(_snapshots_with(c, one, 2, partition="b")["rows"], [[1, "b", "y"], [2, "b", "z"]], "rows of the second")


@scenario("snapshot that is not there", "snapshots")
def snapshot_missing(c: Context) -> None:
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1)
    same(c.call("kv_snapshots", table=one), [[0, None, None]], "snapshots of an empty table")
    refused(41, "reading one that never was", lambda: c.call("snapshot_scan", table=one, bucket=0, snapshot=12345))


@scenario("all rows of a keyed table", "full_scan")
def full_scan(c: Context) -> None:
    """Listed by the server, or put together from the newest snapshot and the log where it cannot list them."""
    one = c.table("t", _KEYED, primary_key=["id"], buckets=1)
    c.call("upsert", table=one, rows=[[i, "old", i] for i in range(50)])
    _snapshots_with(c, one, 50)
    c.call("upsert", table=one, rows=[[7, "new", 7], [50, "new", 50]])
    c.call("delete", table=one, keys=[[8]])
    rows, snapshot = c.call("full_scan", table=one, bucket=0)
    expected = {i: [i, "old", i] for i in range(50)} | {7: [7, "new", 7], 50: [50, "new", 50]}
    del expected[8]
    same(sorted(rows), sorted(expected.values()), "rows")
    if c.server.name == f"fluss-{FLUSS_VERSION}":
        same(snapshot is not None, True, "a snapshot was read")


def _first(row: list[object]) -> int:
    return int(row[0])  # type: ignore[call-overload, no-any-return]


def _snapshots_with(
    c: Context,
    one: dict[str, object],
    count: int,
    fits: Callable[[list[list[object]]], bool] = lambda rows: True,
    partition: str | None = None,
) -> dict[str, list[list[object]]]:
    """Wait until the newest snapshots of all buckets hold so many rows; read them with the client under test."""
    more = {"partition": partition} if partition else {}
    deadline = time.monotonic() + 40
    rows: list[list[object]] = []
    while time.monotonic() < deadline:
        found = c.call("kv_snapshots", table=one, **more)
        rows = []
        try:
            for bucket, snapshot, _ in found:
                if snapshot is not None:
                    rows += c.call("snapshot_scan", table=one, bucket=bucket, snapshot=snapshot, **more)
        except PeerError as error:
            if error.code != 41:  # it was removed meanwhile
                raise
        if len(rows) == count and fits(rows):
            return {"rows": rows, "snapshots": found}
        time.sleep(0.3)
    raise Mismatch(f"no snapshot with {count} rows within 40 s; the newest has {len(rows)}")


def _add_column(c: Context, one: dict[str, object], added: dict[str, object]) -> dict[str, object]:
    altering = c.client if "alter" in c.client.capabilities else c.helper
    altering.call("alter_table", table=one, add_columns=[added])
    two = {**one, "columns": [*one["columns"], added]}  # type: ignore[misc]
    # Tablet servers of a real cluster learn of the new schema a moment after the call has returned.
    deadline = time.monotonic() + 10
    while c.call("table_info", table=two)["schema_id"] != 2:
        if time.monotonic() > deadline:
            raise Mismatch("the new schema did not show up")
        time.sleep(0.1)
    return two


@scenario("altering a table", "alter")
def alter(c: Context) -> None:
    call = c.call
    one = c.table("t", _PAIR, buckets=1, custom={"gone": "1"})
    call("alter_table", table=one, set={"owner": "me"}, reset=["gone"])
    same(call("table_info", table=one)["custom"], {"owner": "me"}, "custom properties")
    refused(56, "a property that is fixed", lambda: call("alter_table", table=one, set={"table.log.format": "INDEXED"}))
    again = [column("id", INT)]
    refused(56, "a column that is there", lambda: call("alter_table", table=one, add_columns=again))
    refused(7, "a table that is not", lambda: call("alter_table", table={**one, "name": "no"}, set={"a": "b"}))
    call("alter_table", table={**one, "name": "no"}, set={"a": "b"}, ignore=True)


# -------------------------------------------------------------------- security


@scenario("SASL, good credentials")
def sasl_good(c: Context) -> None:
    c.client.connect(c.server.sasl, user="admin", password=USERS["admin"])
    one = c.create_as_is(table(c.database, "t", _PAIR, buckets=1))
    c.call("append", table=one, rows=[[1, "a"]])
    same(c.rows(one, 1), [[1, "a"]], "rows through the SASL listener")
    c.client.connect(c.server.sasl, user="alice", password=USERS["alice"])
    same(c.call("database_exists", db="no_such_database"), False, "what another user sees")


@scenario("SASL, bad credentials")
def sasl_bad(c: Context) -> None:
    for user, password in (("admin", "wrong"), ("nobody", "nothing")):
        refused(
            46,
            f"{user} with {password}",
            lambda u=user, p=password: c.client.connect(c.server.sasl, user=u, password=p),
        )
    try:
        c.client.connect(c.server.plain, user="admin", password=USERS["admin"])
    except PeerError:
        return
    raise Mismatch("a SASL client was let in at the plain listener")


@scenario("access control")
def access_control(c: Context) -> None:
    one = c.table("t", _PAIR, buckets=1)
    keyed = c.table("k", _KEYED, primary_key=["id"], buckets=1)
    c.call("append", table=one, rows=[[1, "a"]])
    c.call("upsert", table=keyed, rows=[[1, "a", 1]])
    call = c.call
    c.client.connect(c.server.sasl, user="alice", password=USERS["alice"])
    refused(48, "alice creating a database", lambda: call("create_database", db=c.database + "_alice"))
    refused(48, "alice describing the table", lambda: call("table_info", table=one))
    refused(48, "alice dropping the table", lambda: call("drop_table", table=one))
    with _Granted(c, "READ", one), _Granted(c, "READ", keyed):
        _until_allowed(c.client, lambda: call("table_info", table=keyed))
        same(
            _until_allowed(c.client, lambda: call("lookup", table=keyed, keys=[[1]])),
            [[1, "a", 1]],
            "alice reads by key",
        )
        same(_until_allowed(c.client, lambda: c.rows(one, 1)), [[1, "a"]], "alice reads the log")
        refused(48, "alice dropping the table", lambda: call("drop_table", table=one))
        with _Granted(c, "WRITE", one):
            _until_allowed(c.client, lambda: call("append", table=one, rows=[[2, "b"]]))
            same(c.rows(one, 2), [[1, "a"], [2, "b"]], "alice reads what she wrote")


@scenario("SASL, texts of refusals", "wire")
def sasl_texts(c: Context) -> None:
    wrong = asyncio.run(rights.login_texts(c.server.plain, c.server.sasl))
    if wrong:
        raise Mismatch("; ".join(wrong))


@scenario("authorization matrix", "wire")
def authorization_matrix(c: Context) -> None:
    """Every API with every single right: as our table of rights says, on our server and on the real one."""
    keyed = c.table("k", _KEYED, primary_key=["id"], buckets=1)
    server = c.server
    wrong = asyncio.run(rights.differences(server.plain, server.sasl, c.database, keyed["name"], server=server.name))
    if wrong:
        raise Mismatch(f"{len(wrong)} answers: {'; '.join(wrong[:20])}")


class _Granted:
    def __init__(self, c: Context, operation: str, document: dict[str, object]) -> None:
        self.c = c
        name = f"{document['db']}.{document['name']}"
        self.acl = {"resource_type": "TABLE", "resource": name, "user": "alice", "operation": operation}

    def __enter__(self) -> None:
        self._as_admin("create_acl")

    def __exit__(self, *_: object) -> None:
        self._as_admin("drop_acl")

    def _as_admin(self, op: str) -> None:
        helper = self.c.acl_helper
        helper.connect(self.c.server.plain)
        helper.call(op, acl=self.acl)


def _until_allowed(client: Peer, call: Callable[[], object]) -> object:
    """Grants reach the servers of a cluster by notification, a moment after the call has returned."""
    deadline = time.monotonic() + 15
    while True:
        try:
            return call()
        except PeerError as error:
            # pyfluss 0.1.0 wraps a refusal while it asks for a writer id into an error of its own.
            refusal = error.code in (48, 7) or "code: 48" in error.message
            # pyfluss 1.0.0 closes its writer when it is refused; only a new connection has a new one.
            closed = "writer closed" in error.message
            if not (refusal or closed) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
            if closed:
                client.reconnect()
