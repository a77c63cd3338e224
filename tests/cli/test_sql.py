# SPDX-License-Identifier: Apache-2.0
"""SQL from the terminal, and its shell in a pseudo-terminal."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Call, Ok, Rows, Start, read_all
from tests.waiting import wait_for

import fluss

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def tables(db: fluss.Database) -> None:
    db.create_table("orders", [{"id": 1, "item": "tea"}, {"id": 2, "item": "mug"}], primary_key="id")


pytestmark = pytest.mark.usefixtures("tables")


def test_queries(ok: Ok, call: Call) -> None:
    assert ok("sql", "select item, id from orders order by id").splitlines() == ["item  id", "tea    1", "mug    2"]
    assert json.loads(ok("sql", "select count(*) as n from orders", "--json")) == {"n": 2}
    assert ok("sql", "select id from orders order by id", "--csv") == "id\n1\n2\n"
    assert ok("sql", input="select 1 as a; select 'x;y' as b;").split() == ["a", "1", "b", "x;y"]
    timed = call("sql", "select 1 as a", "--timing")
    assert "1 rows in" in timed.stderr
    again = call("sql", "select count(*) as n from orders", "--every", "0.1", "--times", "3", "--json")
    assert again.stdout == '{"n": 2}\n' * 3


def test_an_error_behind_the_first_rows_is_one_line(call: Call) -> None:
    query = "select cast(if(i < 299999, '1', 'x') as int) as n from range(300000) t(i)"
    result = call("sql", query, "--csv")
    assert (result.exit_code, result.stderr) == (1, "Error: Conversion Error: Could not convert string 'x' to INT32\n")


def test_numbers_are_printed_as_numbers(ok: Ok) -> None:
    """A sum of whole numbers is a HUGEINT of DuckDB, which Arrow knows as a decimal."""
    query = "select sum(id) as total, 0.50::decimal(10, 2) as half, 0::decimal(12, 9) as none from orders"
    assert ok("sql", query, "--csv").splitlines() == ["total,half,none", '3,0.50,"0.000000000"']
    assert ok("sql", query, "--json") == '{"total": 3, "half": "0.50", "none": "0.000000000"}\n'


JOIN = "select * from orders o left join (select 1 as id, 2.5 as price) p on o.id = p.id order by o.id"


def test_columns_of_one_name_are_kept_apart(ok: Ok, rows: Rows) -> None:
    assert rows("sql", JOIN) == [
        {"id": 1, "item": "tea", "id_1": 1, "price": "2.5"},
        {"id": 2, "item": "mug", "id_1": None, "price": None},
    ]
    assert ok("sql", JOIN).splitlines()[0].split() == ["id", "item", "id_1", "price"]
    assert ok("sql", JOIN, "--csv").splitlines()[0] == "id,item,id_1,price"


def test_the_catalog(ok: Ok, db: fluss.Database) -> None:
    db.create_database("unnamed", exist_ok=True)
    db.create_table("unnamed.things", "id int", exist_ok=True)
    assert "orders" in ok("sql", "show tables").split()
    assert "things" not in ok("sql", "show tables").split()
    assert "things" in ok("sql", "show tables from unnamed;").split()
    assert {"fluss", "unnamed"} <= set(ok("sql", "show databases").split())
    found = ok("sql", "select concat_ws('.', table_schema, table_name) from information_schema.tables").split()
    assert {"fluss.orders", "unnamed.things"} <= set(found)


def test_inserts(call: Call, ok: Ok) -> None:
    ok("create", "copied", "id bigint, item string")
    result = call("sql", "insert into copied select id, item from orders")
    assert (result.stdout, result.stderr) == ("", "2 rows written\n")
    assert ok("count", "copied") == "2\n"


def test_statements_of_a_file(call: Call, ok: Ok, tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "create table scripted (id bigint primary key, n int); -- first\n"
        "insert into scripted values (1, 1), (2, 2), (3, 3);\n"
        "update scripted set n = n + 1 where id > 1;\ndelete from scripted where id = 1;\n"
        "select max(n) as most from scripted;\n"
    )
    result = call("sql", "-f", str(script), "--csv")
    assert (result.stdout, result.stderr) == ("most\n4\n", "done\n3 rows written\n2 rows updated\n1 row deleted\n")
    for arguments in (["-"], ["-f", "-"]):
        assert ok("sql", "--csv", *arguments, input="select count(*) as n from scripted") == "n\n2\n"
    assert "not both" in call("sql", "select 1", "-f", str(script)).stderr


def test_mistakes(call: Call) -> None:
    for query, words in (
        ("select * from order_", "did you mean 'orders'"),
        ("selec 1", "syntax error"),
        ("select nope from orders", "nope"),
        (";", "no statement"),
    ):
        result = call("sql", query)
        assert result.exit_code in (1, 3)
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr


ENDLESS = "select count(*) from range(100000000) a, range(100000) b where (a.range * b.range) % 7 = 3"


def test_an_interrupted_query_ends_in_one_word(start: Start) -> None:
    query = f"select 1; {ENDLESS}"
    with start("sql", "--timing", query, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert "1 rows in" in running.stderr.readline(), "the next statement runs now"
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        _, shown = running.communicate(timeout=30)
    assert (running.returncode, shown.strip()) == (1, "Aborted!")


class Terminal:
    """A process in a pseudo-terminal."""

    def __init__(self, *args: str) -> None:
        import pty

        self.pid, self.master = pty.fork()
        if self.pid == 0:  # pragma: no cover - the child
            os.environ["TERM"] = "dumb"
            os.execv(sys.executable, [sys.executable, "-m", "fluss", *args])
        self.shown = ""

    def expect(self, words: str, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while words not in self.shown:
            assert time.monotonic() < deadline, f"{words!r} is not in {self.shown!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.shown += os.read(self.master, 65536).decode()
        self.shown = self.shown.partition(words)[2]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def drain(self) -> None:
        """Read what is shown until the process has ended."""
        self.shown += read_all(self.master).decode()

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.master)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def shell(environment: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal("sql")
    terminal.expect("fluss> ")
    yield terminal
    terminal.type("\x04")
    assert terminal.end() == 0


def test_the_shell(shell: Terminal, environment: dict[str, str]) -> None:
    shell.type("select item\n")
    shell.expect("...> ")
    shell.type("from orders where id = 2;\n")
    shell.expect("mug")
    shell.expect("fluss> ")
    shell.type("selec;\n")
    shell.expect("Error: ")
    shell.type(".tables\n")
    shell.expect("orders")
    shell.type("\\dt\n")
    shell.expect("orders")
    shell.type("\\d orders\n")
    shell.expect("item string")
    shell.type("help\n")
    shell.expect("Statements end with")
    shell.expect("fluss> ")
    shell.type(".timing on\nselect 41 + 1 as answer;\n")
    shell.expect("42")
    shell.expect("1 rows in")
    shell.type(".watch 0.1 select 7 * 11 as n\n")
    shell.expect("77")
    shell.expect("77")
    shell.type("\x03")
    shell.expect("fluss> ")
    shell.type(f"select 'begun'; {ENDLESS};\n")
    shell.expect("begun\r\n")
    time.sleep(0.5)
    shell.type("\x03")
    shell.expect("interrupted")
    shell.expect("fluss> ")
    shell.type("select ite\t from ord\t where id = 1;\n")
    shell.expect("tea")
    shell.expect("fluss> ")
    shell.type("exit;\n")
    history = Path(environment["FLUSS_CONFIG_DIR"]) / "sql_history"
    wait_for(lambda: history.exists() and ".tables" in history.read_text())
    assert history.stat().st_mode & 0o077 == 0
