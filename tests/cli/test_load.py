# SPDX-License-Identifier: Apache-2.0
"""Files in and out, and an exact account of rows that do not fit."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Call, Ok, Refused, Rows, Start
from tests.waiting import wait_for

import fluss
from fluss.db.internals import open_sink
from fluss.tools import files, loading, row_files
from fluss.tools.loading import Load

SCHEMA = (
    "id bigint not null, item string, price decimal(10,2), day date, at timestamp(6), raw bytes, tags array<string>"
)
ROWS = [
    {"id": 1, "item": "tea", "price": "2.5", "day": "2026-01-01", "at": "2026-01-01T10:00", "raw": "AQI=", "tags": []},
    {"id": 2, "item": "mug, big\n2nd line", "price": None, "day": None, "at": None, "raw": None, "tags": None},
    {"id": 3, "item": "", "price": "-1.00", "day": "1969-12-31", "at": "1969-12-31T23:59:59", "raw": "", "tags": ["a"]},
]  # fmt: skip


Written = Callable[[str, str | bytes], str]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a file, whose path it gives."""

    def write(name: str, content: str | bytes) -> str:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "arrow"])
def test_what_is_exported_can_be_loaded(kind: str, ok: Ok, rows: Rows, tmp_path: Path) -> None:
    name = kind.replace(".", "_")
    ok("create", f"from_{name}", SCHEMA, "--key", "id")
    ok("put", f"from_{name}", input="\n".join(json.dumps(row) for row in ROWS))
    file = str(tmp_path / f"rows.{kind}")
    assert json.loads(ok("export", f"from_{name}", file, "--json"))["rows"] == 3
    ok("create", f"to_{name}", "--like", f"from_{name}")
    assert json.loads(ok("load", f"to_{name}", file, "--json"))["written"] == 3
    found, expected = rows("cat", f"to_{name}"), rows("cat", f"from_{name}")
    assert sorted(found, key=lambda row: int(row["id"])) == sorted(expected, key=lambda row: int(row["id"]))
    assert not list(tmp_path.glob("*.partial"))


def test_create_infers_and_shows_the_columns(call: Call, ok: Ok, written: Written) -> None:
    file = written("rows.csv", "id,name,price\n1,a,1.5\n2,b,\n")
    result = call("load", "inferred", file, "--create", "--key", "id", "--buckets", "2")
    assert result.exit_code == 0, result.output
    assert "created fluss.inferred (id bigint not null, name string, price double)" in result.stderr
    assert "2 rows written" in result.stderr
    assert result.stdout == ""
    assert ok("count", "inferred") == "2\n"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_header_shows_what_is_between_values(ok: Ok, written: Written, delimiter: str) -> None:
    name = f"between_{ord(delimiter)}"
    ok("load", name, written("rows.csv", f'id{delimiter}"two words"\n1{delimiter}"x{delimiter},y"\n'), "--create")
    assert json.loads(ok("cat", name, "--json")) == {"id": 1, "two words": f"x{delimiter},y"}


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("latin.csv", "id,name\n1,Caf\xe9\n".encode("latin-1"), "is not a text in UTF-8; convert it"),
        ("header.csv", "id,Caf\xe9\n1,a\n".encode("latin-1"), "is not a text in UTF-8; convert it"),
        ("rows.txt", b"id,name\n1,a\n", "the format of"),
        ("open.csv", b'id,name\n1,tea\n2,"open\n3,b\n', "the quote before 'open' is never closed"),
        ("late.csv", b"id,name\n" + b"1,%s\n" % (b"a" * 60) * 20_000 + b"x,a\n", "line 20002, column 'id'"),
        ("first.jsonl", b'{"id": 1}\n' * 10_000 + b'{"id": "x"}\n', "line 10001"),
    ],
)
def test_a_wrong_file_leaves_no_table(refused: Refused, written: Written, file: str, content: bytes, says: str) -> None:
    assert says in refused("load", "wrong", written(file, content), "--create", "--atomic")
    refused("describe", "wrong", code=3)  # the table is gone, if there was one


def test_columns_are_inferred_from_whole_lines(ok: Ok, written: Written) -> None:
    """A line break in quotes may be where the part of the file ends that columns are inferred from."""
    text = "\n".join(["word" * 5] * 20)
    file = written("lines.csv", "id,name\n" + "".join(f'{number},"{text}"\n' for number in range(5_000)))
    ok("load", "lines", file, "--create")
    assert ok("count", "lines", "-w", f"id = 4999 and name = '{text}'") == "1\n"


BAD_CSV = 'id,item,price\n1,tea,2.50\n2,"two\nlines",1\n3,mug,cheap\nx,jug,1\n5,pot,9\n6,cup\n'
BAD_JSON = '{"id": 1}\n\n{"id": 2, "item": "x"}\n{"id": "x"}\n{"id": 4, "itme": "y"}\n{broken\n[1]\n{}\n{"id": 9}\n'


def test_the_first_bad_row_has_a_line_and_a_column(call: Call, ok: Ok, refused: Refused, written: Written) -> None:
    ok("create", "strict", "id bigint not null, item string, price decimal(10,2)")
    file = written("bad.csv", BAD_CSV)
    reason = refused("load", "strict", file)
    assert f"{file}, line 5, column 'price': 'cheap' is not a value of type decimal(10,2)" in reason
    assert "2 rows written before it" in reason
    assert ok("count", "strict") == "2\n"
    reason = call("load", "strict", file, "--atomic").stderr
    assert "line 5" in reason
    assert "0 rows written" in reason
    assert ok("count", "strict") == "2\n"


def test_bad_rows_can_be_skipped(ok: Ok, written: Written, tmp_path: Path) -> None:
    ok("create", "lenient", "id bigint not null, item string, price decimal(10,2)")
    rejects = tmp_path / "rejects.jsonl"
    for name, content, expected in (
        ("bad.csv", BAD_CSV, [(5, "price"), (6, "id"), (8, None)]),
        ("bad.jsonl", BAD_JSON, [(4, "id"), (5, "itme"), (6, None), (7, None), (8, "id")]),
    ):
        command = ["load", "lenient", written(name, content), "--on-error", "skip", "--rejects", str(rejects)]
        found = json.loads(ok(*command, "--json"))
        assert (found["written"], found["rejected"]) == (3, len(expected))
        reasons = [json.loads(line) for line in rejects.read_text().splitlines()]
        assert [(one["line"], one["column"]) for one in reasons] == expected
    assert "did you mean 'item'" in reasons[1]["reason"]
    assert ok("count", "lenient") == "6\n"


def test_put_tells_what_it_wrote(call: Call, ok: Ok, refused: Refused) -> None:
    ok("create", "exact", "id bigint not null, item string")
    reason = refused("put", "exact", '{"id": 1}', '{"id": "x"}', '{"id": 3}')
    assert "line 2, column 'id'" in reason
    assert "1 row written before it" in reason
    assert ok("count", "exact") == "1\n"
    assert "line 2: it is not JSON" in call("put", "exact", '{"id": 4}', "{broken", "--atomic").stderr
    assert ok("count", "exact") == "1\n"


def test_parquet_rows_that_do_not_fit(call: Call, ok: Ok, tmp_path: Path) -> None:
    ok("create", "narrow", "id int not null")
    file = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"id": [1, 2, 1 << 40, None, 5]}), file)
    result = call("load", "narrow", str(file))
    assert "line 3, column 'id'" in result.stderr
    assert "2 rows written" in result.stderr
    found = json.loads(ok("load", "narrow", str(file), "--on-error", "skip", "--json"))
    assert (found["written"], found["rejected"]) == (3, 2)
    ok("create", "floats", "x float, many array<float>, day date, at timestamp(9)")
    rows = {"x": [1e300, 0.5, 1.5], "many": [[1.0], [2.0], [-1e300]], "day": ["2026-01-01", "soon", "2026-01-02"]}
    pq.write_table(pa.table({**rows, "at": pa.array([1, 2, 3], pa.timestamp("ns"))}), file)
    refused = call("load", "floats", str(file), "--on-error", "skip")
    assert "0 rows written" in refused.stderr
    assert "3 rows rejected, the first: " in refused.stderr
    assert "line 1, column 'x': 1e+300 is not a value of type float" in refused.stderr
    cells = tmp_path / "wide.csv"
    cells.write_text("x\n0.1\ninf\n1e300\n")
    assert "line 4, column 'x': 1e+300 is not a value of type float" in call("load", "floats", str(cells)).stderr
    cells.write_text("x\n1e300\nmany\n")
    assert "2 rows rejected" in call("load", "floats", str(cells), "--on-error", "skip").stderr
    assert ok("cat", "floats", "-c", "x", "--csv").split() == ["x", "0.1", "inf"]


def test_partitioned_folders(ok: Ok, tmp_path: Path) -> None:
    ok("create", "by_day", "day string, id int", "--partition-by", "day")
    ok("put", "by_day", '{"day": "2026-01-01", "id": 1}', '{"day": "2026-01-02", "id": 2}')
    ok("export", "by_day", str(tmp_path / "out"), "--partitioned")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["day=2026-01-01", "day=2026-01-02"]


def test_a_load_that_was_killed_goes_on(start: Start, ok: Ok, written: Written, tmp_path: Path) -> None:
    ok("create", "resumed", "id bigint not null, text string", "--key", "id")
    lines = (f'{{"id": {number}, "text": "some text of row {number}"}}\n' for number in range(60_000))
    file, checkpoint = written("many.jsonl", "".join(lines)), tmp_path / "checkpoint"
    command = ["load", "resumed", file, "--checkpoint", str(checkpoint), "--json"]
    running = start(*command)
    wait_for(checkpoint.exists)
    running.send_signal(signal.SIGKILL)
    running.wait()
    found = json.loads(ok(*command))
    assert found["skipped"] > 0  # all, if the machine was too busy to kill it in time
    assert found["skipped"] + found["written"] == 60_000
    assert ok("count", "resumed") == "60000\n"


def test_ctrl_c_says_what_was_written(start: Start, ok: Ok) -> None:
    ok("create", "interrupted", "id bigint not null")
    running = start("load", "interrupted", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    for number in range(8192 * 2 + 5):
        running.stdin.write(f'{{"id": {number}}}\n')
    running.stdin.flush()
    wait_for(lambda: int(ok("count", "interrupted")) >= 8192)
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 1
    running.stdin.close()
    shown = running.stderr.read()
    running.stderr.close()
    assert f"interrupted; {int(ok('count', 'interrupted')):,} rows written" in shown


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "id,zip,zero,price\n1,00123,0,0.5\n2,99999,10,02.5\n",
            [{"id": 1, "zip": "00123", "zero": 0, "price": 0.5}, {"id": 2, "zip": "99999", "zero": 10, "price": 2.5}],
        ),
        (
            "id,hash,size\n1,18446744073709551615,1e30\n2,,9223372036854775808.5\n3,7,5\n",
            [
                {"id": 1, "hash": "18446744073709551615", "size": 1e30},
                {"id": 2, "hash": None, "size": 9223372036854775808.5},
                {"id": 3, "hash": "7", "size": 5.0},
            ],
        ),
    ],
    ids=["zeros in front", "too many for a bigint"],
)
def test_long_digits_are_not_rounded(ok: Ok, rows: Rows, written: Written, content: str, expected: list[Any]) -> None:
    table = f"digits_{len(expected)}"
    ok("load", table, written("rows.csv", content), "--create")
    assert rows("cat", table) == expected


def test_a_key_that_the_table_does_not_have_is_not_passed_over(ok: Ok, refused: Refused, written: Written) -> None:
    file = written("rows.csv", "id,name\n1,a\n")
    ok("load", "keyless", file, "--create")
    reason = refused("load", "keyless", file, "--create", "--key", "id")
    assert "keyless exists and has no primary key, not id: leave out --key" in reason
    assert ok("count", "keyless") == "1\n"
    for _ in range(2):
        ok("load", "keyed", file, "--create", "--key", "id")
    assert ok("count", "keyed") == "1\n"
    assert "has the primary key id, not name" in refused("load", "keyed", file, "--create", "--key", "name")


def test_several_files_of_which_one_does_not_fit(ok: Ok, refused: Refused, tmp_path: Path) -> None:
    first, second, missing = (str(tmp_path / f"{name}.parquet") for name in "abc")
    pq.write_table(pa.table({"id": [1, 2]}), first)
    pq.write_table(pa.table({"id": [3], "more": ["x"]}), second)
    assert f"there is no file '{missing}'" in refused("load", "several", first, missing, "--create")
    refused("count", "several", code=3)  # found before anything is created or written
    reason = refused("load", "several", first, second, "--create")
    assert "has no column 'more'; there is id; the 2 rows before it were written" in reason
    assert ok("count", "several") == "2\n"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("rows.json", '[{"id": 1}', "is neither an array of rows nor a row a line"),
        ("rows.json", "[1]", "line 1: not a JSON object"),
        ("rows.json", '{"id": 12345678901234567890123}', "column 'id': a number is too large"),
        ("rows.jsonl", '{"id": 1}\n{"id": "x"}', "type of column 'id'"),
        ("rows.csv", "id\r1\r2\r", "a carriage return ends its first line"),
        ("folder.csv", None, "is a folder: name its files"),
        ("folder", None, "is a folder: name its files"),
    ],
)
def test_unusable_files_are_named(refused: Refused, tmp_path: Path, name: str, text: str | None, problem: str) -> None:
    file = tmp_path / name
    if text is None:
        file.mkdir()
    else:
        file.write_bytes(text.encode())
    reason = refused("load", "unloaded", str(file), "--create")
    assert problem in reason
    assert reason.startswith("Error: ")
    assert reason.count("\n") == 1
    refused("count", "unloaded", code=3)


def test_columns_that_a_file_does_not_have(ok: Ok, refused: Refused, rows: Rows, written: Written) -> None:
    ok("create", "parts", "id int, a string, b string", "--key", "id")
    ok("put", "parts", '{"id": 1, "a": "a", "b": "b"}')
    file, lines = written("some.csv", "id,a\n1,x\n2,x\n"), written("some.jsonl", '{"id": 1, "a": "y"}\n')
    for given in (["load", "parts", file], ["load", "parts", lines], ["put", "parts", '{"id": 1, "a": "y"}']):
        assert "--missing keep" in refused(*given)
    shown = ("cat", "parts", "-w", "id = 1")
    assert rows(*shown) == [{"id": 1, "a": "a", "b": "b"}]
    ok("load", "parts", file, "--missing", "keep")
    assert rows(*shown) == [{"id": 1, "a": "x", "b": "b"}]
    ok("load", "parts", lines, "--missing", "keep")
    ok("put", "parts", '{"id": 2, "b": "z"}', "--missing", "keep")
    assert rows(*shown) == [{"id": 1, "a": "y", "b": "b"}]
    assert rows("get", "parts", "2") == [{"id": 2, "a": "x", "b": "z"}]
    ok("load", "parts", file, "--missing", "null")
    assert rows(*shown) == [{"id": 1, "a": "x", "b": None}]


def test_numbers_that_json_has_not(ok: Ok, tmp_path: Path) -> None:
    """Strict JSON: other parsers read it, and a load gives the same numbers again."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    ok("create", "numbers", "id int, x double, y float, many array<double>", "--key", "id")
    ok("put", "numbers", '{"id": 1, "x": "NaN", "y": "Infinity", "many": ["-Infinity", 1.5]}')
    shown = ok("cat", "numbers", "--json")
    row = {"id": 1, "x": "NaN", "y": "Infinity", "many": ["-Infinity", 1.5]}
    assert json.loads(shown, parse_constant=refuse) == row
    file = tmp_path / "numbers.jsonl"
    ok("export", "numbers", str(file))
    ok("create", "again", "id int, x double, y float, many array<double>", "--key", "id")
    ok("load", "again", str(file))
    assert ok("cat", "again", "--json") == shown
    assert ok("count", "again", "-w", "y > 1e38") == "1\n"


@pytest.mark.parametrize(
    ("encoding", "given"), [("utf-16", ()), ("latin-1", ("--encoding", "latin1")), ("utf-8-sig", ())]
)
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl"])
def test_encodings(ok: Ok, tmp_path: Path, encoding: str, given: tuple[str, ...], suffix: str) -> None:
    name, file = f"in_{encoding}_{suffix}".replace(".", "_").replace("-", "_"), tmp_path / f"rows.{suffix}"
    lines = ["id,größe", "1,Café"] if suffix != "jsonl" else ['{"id": 1, "größe": "Café"}']
    content = "\n".join([*lines, ""]).encode(encoding)
    file.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    ok("load", name, str(file), "--create", *given)
    assert json.loads(ok("cat", name, "--json")) == {"id": 1, "größe": "Café"}


def test_an_array_of_rows_is_loaded(call: Call, ok: Ok, rows: Rows, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('\n[\n  {"id": 1, "tags": ["a"]},\n  {"id": 2,\n "tags": null}\n]\n', "utf-8")
    ok("load", "of_array", str(file), "--create", "--key", "id")
    found = sorted(rows("cat", "of_array"), key=lambda row: row["id"])
    assert found == [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}]
    file.write_text('[{"id": 3, "tags": null}, {"id": "x"}]', "utf-8-sig")  # with a mark, as Windows writes it
    reason = call("load", "of_array", str(file)).stderr
    assert "line 2, column 'id'" in reason
    assert "1 row written before it" in reason


def test_digits_that_a_float_has_not(ok: Ok, tmp_path: Path) -> None:
    ok("create", "precise", "id decimal(18,2), prices array<decimal(18,2)>, text string", "--key", "id")
    many, file, cells = "1234567890123456.78", tmp_path / "rows.json", tmp_path / "rows.csv"
    row = f'"prices": [{many}], "text": null'
    ok("put", "precise", f'{{"id": {many}, {row}}}')
    file.write_text(f'[{{"id": {many[1:]}, {row}}}, {{"id": 1, {row}}}]')
    ok("load", "precise", str(file))
    cells.write_text(f"id,prices,text\n{many[2:]},[{many}],1.50\n")
    ok("load", "precise", str(cells))
    for key in (many, many[1:], "1", many[2:]):
        assert json.loads(ok("get", "precise", key, "--json"))["prices"] == [many]


@pytest.mark.parametrize("columns", ["id bigint, many array<bigint>", "id bigint, many array<bigint>, d decimal(9,2)"])
def test_integers_that_a_float_has_not(call: Call, ok: Ok, rows: Rows, written: Written, columns: str) -> None:
    ok("create", "whole", columns, "--key", "id", "--if-not-exists")
    many = "9007199254740993.0"
    lines = f'{{"id": {many}, "many": [-{many}, 2.0]}}\n{{"id": 1e18}}\n{{"id": 9.223372036854775807e18}}\n'
    ok("load", "whole", written("rows.jsonl", lines), "--missing", "null")
    ok("put", "whole", '{"id": -9007199254740995.0}', "--missing", "null")
    assert sorted(row["id"] for row in rows("cat", "whole")) == [-(2**53) - 3, 2**53 + 1, 10**18, 2**63 - 1]
    assert json.loads(ok("get", "whole", many, "--json"))["many"] == [-(2**53) - 1, 2]
    for texts, problem in (
        (("9007199254740993.5", "9223372036854775808.0", "1e999999999", "-1e300", "1.5"), "line 1, column 'id': "),
        (("NaN", "Infinity", "-Infinity"), "it is no whole number"),
    ):
        for text in texts:
            file = written("rows.jsonl", f'{{"id": {text}}}\n')
            assert problem in call("load", "whole", file, "--missing", "null").stderr, text
    ok("drop", "whole", "--yes")


@pytest.mark.parametrize("text", ['[{"id": 1},    {"id": 2}]', '{"id": 1}\n{"id": 2,       "id": 2}'])
def test_memory_is_limited(call: Call, ok: Ok, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(files, "_ARRAY_BYTES_MAX", 20)
    ok("create", "limited", "id bigint", "--if-not-exists")
    (tmp_path / "rows.json").write_text(text)
    assert "has a line or an array that is larger than" in call("load", "limited", str(tmp_path / "rows.json")).stderr


def test_null_and_the_text_null(ok: Ok, rows: Rows, written: Written) -> None:
    file = written("rows.csv", 'id,name\n1,NULL\n2,\n3,""\n4,NA\n')
    ok("load", "texts", file, "--create", "--key", "id")
    assert {row["id"]: row["name"] for row in rows("cat", "texts")} == {1: "NULL", 2: None, 3: "", 4: "NA"}
    shown = {line.split()[0]: line.split()[1:] for line in ok("cat", "texts").splitlines()[1:]}
    assert shown == {"1": ['"NULL"'], "2": ["NULL"], "3": [], "4": ["NA"]}
    ok("load", "nulls", file, "--create", "--key", "id", "--null", "NULL")
    assert {row["id"]: row["name"] for row in rows("cat", "nulls")} == {1: None, 2: None, 3: "", 4: "NA"}


def test_a_null_in_the_only_column_is_a_row(ok: Ok, tmp_path: Path) -> None:
    ok("create", "one_column", "n int")
    ok("put", "one_column", '{"n": 1}', '{"n": null}', '{"n": 3}')
    ok("export", "one_column", str(tmp_path / "rows.csv"))
    ok("load", "one_column_loaded", str(tmp_path / "rows.csv"), "--create")
    assert ok("cat", "one_column_loaded", "--json") == ok("cat", "one_column", "--json")
    ok("create", "one_required", "n int not null")
    (tmp_path / "rows.csv").write_text("n\n1\n\n")
    ok("load", "one_required", str(tmp_path / "rows.csv"))  # where there is no null, an empty line is none


def test_a_failed_batch_comes_again(server: fluss.LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later batches that succeed do not move the checkpoint past it."""
    monkeypatch.setattr(loading, "_IN_FLIGHT", 1)
    monkeypatch.setattr(row_files, "_LINES_AT_ONCE", 10)
    file, checkpoint = tmp_path / "rows.jsonl", str(tmp_path / "checkpoint")
    file.write_text("".join(f'{{"id": {number}}}\n' for number in range(50)))
    with fluss.connect(server.bootstrap_servers, options={"writer.delivery-timeout-ms": "1 s"}) as db:
        table, gone = db.create_table("partly", "id bigint"), db.create_table("gone", "id bigint")
        work = Load(db, table, [str(file)], checkpoint=checkpoint)
        writes = iter([work._sink.write, open_sink(db, gone, "append").write])
        db.drop_table("gone")
        write = work._sink.write
        monkeypatch.setattr(work._sink, "write", lambda batch: next(writes, write)(batch))
        with pytest.raises(fluss.FlussError):
            work.run()
        assert work.report.written == 20
        assert Load(db, table, [str(file)], checkpoint=checkpoint).run().skipped == 10
        assert {row["id"] for row in table.to_pylist()} == set(range(50))


def test_a_checkpoint_is_of_files_as_they_were(call: Call, ok: Ok, tmp_path: Path) -> None:
    ok("create", "corrected", "id bigint not null")
    file, more, checkpoint = tmp_path / "rows.jsonl", tmp_path / "more.jsonl", tmp_path / "checkpoint"
    command = ["load", "corrected", str(file), "--checkpoint", str(checkpoint)]
    file.write_text('{"id": 1}\n{"id": "x"}\n')
    assert "1 row written before it" in call(*command).stderr
    assert "0 rows written before it" in call(*command).stderr
    file.write_text('{"id": 1}\n{"id": 22}\n')
    assert "has changed since 1 of its rows were loaded" in call(*command).stderr
    more.write_text('{"id": 22}\n')
    ok(*command[:2], str(more), *command[3:])
    assert ok("count", "corrected") == "2\n"
    assert "can be read once only" in call(*command[:2], *command[3:], input='{"id": 3}').stderr


def test_a_resumed_load_adds_to_the_rejects(refused: Refused, ok: Ok, tmp_path: Path) -> None:
    ok("create", "rejecting", "id bigint not null")
    first, second, rejects = tmp_path / "first.jsonl", tmp_path / "second.csv", tmp_path / "rejects"
    first.write_text('{"id": "x"}\n{"id": 1}\n')
    second.write_text("wrong\n1\n")
    command = ["load", "rejecting", str(first), str(second), "--on-error", "skip", "--rejects", str(rejects)]
    refused(*command, "--checkpoint", str(tmp_path / "checkpoint"))
    second.write_text("id\ny\n2\n")
    ok(*command, "--checkpoint", str(tmp_path / "checkpoint"))
    assert [json.loads(line)["text"] for line in rejects.read_text().splitlines()] == ['{"id": "x"}', "y"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_rows_that_were_rejected_at_the_end_are_not_rejected_again(ok: Ok, tmp_path: Path, name: str) -> None:
    table = f"ends_{name[-3:]}"
    ok("create", table, "id bigint not null, n int")
    file, rejects = tmp_path / name, tmp_path / "rejects"
    file.write_text("id,n\n1,1\n2\n3\n" if name.endswith("csv") else '{"id": "x"}\n{"id": "y"}\n')
    command = ["load", table, str(file), "--on-error", "skip", "--rejects", str(rejects), "--json"]
    command += ["--checkpoint", str(tmp_path / "checkpoint")]
    assert json.loads(ok(*command))["rejected"] == 2
    again = json.loads(ok(*command))
    assert (again["rejected"], again["skipped"]) == (0, 3 if name.endswith("csv") else 2)
    assert len(rejects.read_text().splitlines()) == 2


def test_rejects_are_in_their_file_before_the_checkpoint_passes_them(
    db: fluss.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that is killed goes on behind them."""
    monkeypatch.setattr(loading, "_IN_FLIGHT", 0)
    file, rejects = tmp_path / "rows.jsonl", tmp_path / "rejects"
    file.write_text('{"id": "x"}\n{"id": 1}\n')
    found = []
    table, checkpoint = db.create_table("killed", "id bigint not null"), str(tmp_path / "checkpoint")
    load = Load(db, table, [str(file)], on_error="skip", rejects=str(rejects), checkpoint=checkpoint)
    monkeypatch.setattr(load._checkpoint, "advance", lambda *_: found.append(rejects.read_text()))
    load.run()
    assert [text.count("\n") for text in found] == [1]


@pytest.mark.parametrize(
    ("kind", "text"), [("jsonl", '{"id": 1}\n{"id": 2}\n'), ("csv", "id\n1\n2\n"), ("csv", "id\n")]
)
def test_pipes(call: Call, ok: Ok, tmp_path: Path, kind: str, text: str) -> None:
    pipe, rows = tmp_path / "pipe", text.count("\n") - (kind == "csv")
    os.mkfifo(pipe)
    ok("create", "piped", "id bigint not null", "--if-not-exists")
    threading.Thread(target=pipe.write_text, args=[text], daemon=True).start()
    assert json.loads(ok("load", "piped", str(pipe), "--format", kind, "--json"))["written"] == rows
    assert "can be read once only" in call("load", "piped", str(pipe), "--format", kind, "--atomic").stderr
    assert json.loads(ok("load", "piped", "--format", kind, "--json", input=text))["written"] == rows
