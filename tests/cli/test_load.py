# SPDX-License-Identifier: Apache-2.0
"""Files in and out, and an exact account of rows that do not fit."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
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


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "arrow"])
def test_what_is_exported_can_be_loaded(kind: str, ok: Callable[..., str], tmp_path: Path) -> None:
    name = kind.replace(".", "_")
    ok("create", f"from_{name}", SCHEMA, "--key", "id")
    ok("put", f"from_{name}", input="\n".join(json.dumps(row) for row in ROWS))
    file = str(tmp_path / f"rows.{kind}")
    assert json.loads(ok("export", f"from_{name}", file, "--json"))["rows"] == 3
    ok("create", f"to_{name}", "--like", f"from_{name}")
    assert json.loads(ok("load", f"to_{name}", file, "--json"))["written"] == 3
    rows = [json.loads(line) for line in ok("cat", f"to_{name}", "--json").splitlines()]
    expected = [json.loads(line) for line in ok("cat", f"from_{name}", "--json").splitlines()]
    assert sorted(rows, key=lambda row: int(row["id"])) == sorted(expected, key=lambda row: int(row["id"]))
    assert not list(tmp_path.glob("*.partial"))


def test_create_infers_and_shows_the_columns(call: Any, ok: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,name,price\n1,a,1.5\n2,b,\n")
    result = call("load", "inferred", str(file), "--create", "--key", "id", "--buckets", "2")
    assert result.exit_code == 0, result.output
    assert "created fluss.inferred (id bigint not null, name string, price double)" in result.stderr
    assert "2 rows written" in result.stderr
    assert result.stdout == ""
    assert ok("count", "inferred") == "2\n"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_header_shows_what_is_between_values(ok: Callable[..., str], tmp_path: Path, delimiter: str) -> None:
    file, name = tmp_path / "rows.csv", f"between_{ord(delimiter)}"
    file.write_text(f'id{delimiter}"two words"\n1{delimiter}"x{delimiter},y"\n')
    ok("load", name, str(file), "--create")
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
def test_a_wrong_file_leaves_no_table_of_wrong_columns(
    call: Any, ok: Callable[..., str], tmp_path: Path, file: str, content: bytes, says: str
) -> None:
    (tmp_path / file).write_bytes(content)
    result = call("load", "wrong", str(tmp_path / file), "--create", "--atomic")
    assert result.exit_code == 1
    assert says in result.stderr
    assert call("describe", "wrong").exit_code == 3, "the table is gone, if there was one"


def test_columns_are_inferred_from_whole_lines(ok: Callable[..., str], tmp_path: Path) -> None:
    """A line break in quotes may be where the part of the file ends that columns are inferred from."""
    file = tmp_path / "lines.csv"
    text = "\n".join(["word" * 5] * 20)
    file.write_text("id,name\n" + "".join(f'{number},"{text}"\n' for number in range(5_000)))
    ok("load", "lines", str(file), "--create")
    assert ok("count", "lines", "-w", f"id = 4999 and name = '{text}'") == "1\n"


BAD_CSV = 'id,item,price\n1,tea,2.50\n2,"two\nlines",1\n3,mug,cheap\nx,jug,1\n5,pot,9\n6,cup\n'
BAD_JSON = '{"id": 1}\n\n{"id": 2, "item": "x"}\n{"id": "x"}\n{"id": 4, "itme": "y"}\n{broken\n[1]\n{}\n{"id": 9}\n'


def test_the_first_bad_row_is_named_with_line_and_column(call: Any, ok: Callable[..., str], tmp_path: Path) -> None:
    ok("create", "strict", "id bigint not null, item string, price decimal(10,2)")
    file = tmp_path / "bad.csv"
    file.write_text(BAD_CSV)
    result = call("load", "strict", str(file))
    assert result.exit_code == 1
    assert f"{file}, line 5, column 'price': 'cheap' is not a value of type decimal(10,2)" in result.stderr
    assert "2 rows written before it" in result.stderr
    assert ok("count", "strict") == "2\n"
    refused = call("load", "strict", str(file), "--atomic")
    assert "line 5" in refused.stderr
    assert "0 rows written" in refused.stderr
    assert ok("count", "strict") == "2\n"


def test_bad_rows_can_be_skipped(ok: Callable[..., str], tmp_path: Path) -> None:
    ok("create", "lenient", "id bigint not null, item string, price decimal(10,2)")
    file, rejects = tmp_path / "bad.csv", tmp_path / "rejects.jsonl"
    file.write_text(BAD_CSV)
    found = json.loads(ok("load", "lenient", str(file), "--on-error", "skip", "--rejects", str(rejects), "--json"))
    assert (found["written"], found["rejected"]) == (3, 3)
    reasons = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(one["line"], one["column"]) for one in reasons] == [(5, "price"), (6, "id"), (8, None)]
    lines = tmp_path / "bad.jsonl"
    lines.write_text(BAD_JSON)
    found = json.loads(ok("load", "lenient", str(lines), "--on-error", "skip", "--rejects", str(rejects), "--json"))
    assert (found["written"], found["rejected"]) == (3, 5)
    reasons = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(one["line"], one["column"]) for one in reasons] == [
        (4, "id"),
        (5, "itme"),
        (6, None),
        (7, None),
        (8, "id"),
    ]
    assert "did you mean 'item'" in reasons[1]["reason"]
    assert ok("count", "lenient") == "6\n"


def test_put_tells_what_it_wrote(call: Any, ok: Callable[..., str]) -> None:
    ok("create", "exact", "id bigint not null, item string")
    result = call("put", "exact", '{"id": 1}', '{"id": "x"}', '{"id": 3}')
    assert result.exit_code == 1
    assert "line 2, column 'id'" in result.stderr
    assert "1 row written before it" in result.stderr
    assert ok("count", "exact") == "1\n"
    nothing = call("put", "exact", '{"id": 4}', "{broken", "--atomic")
    assert "line 2: it is not JSON" in nothing.stderr
    assert ok("count", "exact") == "1\n"


def test_parquet_rows_that_do_not_fit(call: Any, ok: Callable[..., str], tmp_path: Path) -> None:
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


def test_partitioned_folders(ok: Callable[..., str], tmp_path: Path) -> None:
    ok("create", "by_day", "day string, id int", "--partition-by", "day")
    ok("put", "by_day", '{"day": "2026-01-01", "id": 1}', '{"day": "2026-01-02", "id": 2}')
    ok("export", "by_day", str(tmp_path / "out"), "--partitioned")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["day=2026-01-01", "day=2026-01-02"]


def test_a_load_that_was_killed_goes_on(environment: dict[str, str], ok: Callable[..., str], tmp_path: Path) -> None:
    ok("create", "resumed", "id bigint not null, text string", "--key", "id")
    file, checkpoint = tmp_path / "many.jsonl", tmp_path / "checkpoint"
    with open(file, "w") as out:
        for number in range(60_000):
            out.write(f'{{"id": {number}, "text": "some text of row {number}"}}\n')
    command = ["load", "resumed", str(file), "--checkpoint", str(checkpoint), "--json"]
    running = subprocess.Popen([sys.executable, "-m", "fluss", *command], env={**os.environ, **environment})
    wait_for(checkpoint.exists)
    running.send_signal(signal.SIGKILL)
    running.wait()
    found = json.loads(ok(*command))
    assert found["skipped"] > 0  # all, if the machine was too busy to kill it in time
    assert found["skipped"] + found["written"] == 60_000
    assert ok("count", "resumed") == "60000\n"


def test_ctrl_c_says_what_was_written(environment: dict[str, str], ok: Callable[..., str]) -> None:
    ok("create", "interrupted", "id bigint not null")
    running = subprocess.Popen(
        [sys.executable, "-m", "fluss", "load", "interrupted"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert running.stdin is not None
    assert running.stderr is not None
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


def test_digits_after_a_zero_are_no_number(ok: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,zip,zero,price\n1,00123,0,0.5\n2,99999,10,02.5\n")
    ok("load", "codes", str(file), "--create")
    assert [json.loads(line) for line in ok("cat", "codes", "--json").splitlines()] == [
        {"id": 1, "zip": "00123", "zero": 0, "price": 0.5},
        {"id": 2, "zip": "99999", "zero": 10, "price": 2.5},
    ]


def test_digits_that_are_too_many_for_a_bigint_are_texts_and_not_rounded(
    ok: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,hash,size\n1,18446744073709551615,1e30\n2,,9223372036854775808.5\n3,7,5\n")
    ok("load", "hashes", str(file), "--create")
    assert [json.loads(line) for line in ok("cat", "hashes", "--json").splitlines()] == [
        {"id": 1, "hash": "18446744073709551615", "size": 1e30},
        {"id": 2, "hash": None, "size": 9223372036854775808.5},
        {"id": 3, "hash": "7", "size": 5.0},
    ]


def test_a_key_that_the_table_does_not_have_is_not_passed_over(
    call: Any, ok: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,name\n1,a\n")
    ok("load", "keyless", str(file), "--create")
    result = call("load", "keyless", str(file), "--create", "--key", "id")
    assert result.exit_code == 1
    assert "keyless exists and has no primary key, not id: leave out --key" in result.stderr
    assert ok("count", "keyless") == "1\n"
    ok("load", "keyed", str(file), "--create", "--key", "id")
    ok("load", "keyed", str(file), "--create", "--key", "id")
    assert ok("count", "keyed") == "1\n"
    assert "has the primary key id, not name" in call("load", "keyed", str(file), "--create", "--key", "name").stderr


def test_several_files_of_which_one_does_not_fit(call: Any, ok: Callable[..., str], tmp_path: Path) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), first)
    pq.write_table(pa.table({"id": [3], "more": ["x"]}), second)
    result = call("load", "several", str(first), str(tmp_path / "nothing.parquet"), "--create")
    assert f"there is no file '{tmp_path / 'nothing.parquet'}'" in result.stderr
    assert call("count", "several").exit_code == 3, "found before anything is created or written"
    result = call("load", "several", str(first), str(second), "--create")
    assert result.exit_code == 1
    assert "has no column 'more'; there is id; the 2 rows before it were written" in result.stderr
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
def test_files_that_cannot_be_loaded_in_one_sentence(
    call: Any, tmp_path: Path, name: str, text: str | None, problem: str
) -> None:
    file = tmp_path / name
    if text is None:
        file.mkdir()
    else:
        file.write_bytes(text.encode())
    result = call("load", "unloaded", str(file), "--create")
    assert result.exit_code == 1
    assert problem in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert call("count", "unloaded").exit_code == 3


def test_columns_that_a_file_does_not_have(call: Any, ok: Callable[..., str], tmp_path: Path) -> None:
    ok("create", "parts", "id int, a string, b string", "--key", "id")
    ok("put", "parts", '{"id": 1, "a": "a", "b": "b"}')
    file, lines = tmp_path / "some.csv", tmp_path / "some.jsonl"
    file.write_text("id,a\n1,x\n2,x\n")
    lines.write_text('{"id": 1, "a": "y"}\n')
    for given in (["load", "parts", str(file)], ["load", "parts", str(lines)], ["put", "parts", '{"id": 1, "a": "y"}']):
        refused = call(*given)
        assert refused.exit_code == 1
        assert "--missing keep" in refused.stderr
    shown = lambda: [json.loads(line) for line in ok("cat", "parts", "--json", "-w", "id = 1").splitlines()]  # noqa: E731
    assert shown() == [{"id": 1, "a": "a", "b": "b"}]
    ok("load", "parts", str(file), "--missing", "keep")
    assert shown() == [{"id": 1, "a": "x", "b": "b"}]
    ok("load", "parts", str(lines), "--missing", "keep")
    ok("put", "parts", '{"id": 2, "b": "z"}', "--missing", "keep")
    assert shown() == [{"id": 1, "a": "y", "b": "b"}]
    assert json.loads(ok("get", "parts", "2", "--json")) == {"id": 2, "a": "x", "b": "z"}
    ok("load", "parts", str(file), "--missing", "null")
    assert shown() == [{"id": 1, "a": "x", "b": None}]


def test_numbers_that_json_has_not(ok: Callable[..., str], tmp_path: Path) -> None:
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
def test_encodings(ok: Callable[..., str], tmp_path: Path, encoding: str, given: tuple[str, ...], suffix: str) -> None:
    name, file = f"in_{encoding}_{suffix}".replace(".", "_").replace("-", "_"), tmp_path / f"rows.{suffix}"
    lines = ["id,größe", "1,Café"] if suffix != "jsonl" else ['{"id": 1, "größe": "Café"}']
    content = "\n".join([*lines, ""]).encode(encoding)
    file.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    ok("load", name, str(file), "--create", *given)
    assert json.loads(ok("cat", name, "--json")) == {"id": 1, "größe": "Café"}


def test_an_array_of_rows_is_loaded(call: Any, ok: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('\n[\n  {"id": 1, "tags": ["a"]},\n  {"id": 2,\n "tags": null}\n]\n', "utf-8")
    ok("load", "of_array", str(file), "--create", "--key", "id")
    rows = [json.loads(line) for line in ok("cat", "of_array", "--json").splitlines()]
    assert sorted(rows, key=lambda row: row["id"]) == [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}]
    file.write_text('[{"id": 3, "tags": null}, {"id": "x"}]', "utf-8-sig")  # with a mark, as Windows writes it
    refused = call("load", "of_array", str(file))
    assert "line 2, column 'id'" in refused.stderr
    assert "1 row written before it" in refused.stderr


def test_digits_that_a_float_has_not(ok: Callable[..., str], tmp_path: Path) -> None:
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
def test_integers_that_a_float_has_not(call: Any, ok: Callable[..., str], tmp_path: Path, columns: str) -> None:
    ok("create", "whole", columns, "--key", "id", "--if-not-exists")
    file, many = tmp_path / "rows.jsonl", "9007199254740993.0"
    file.write_text(f'{{"id": {many}, "many": [-{many}, 2.0]}}\n{{"id": 1e18}}\n{{"id": 9.223372036854775807e18}}\n')
    ok("load", "whole", str(file), "--missing", "null")
    ok("put", "whole", '{"id": -9007199254740995.0}', "--missing", "null")
    rows = [json.loads(line) for line in ok("cat", "whole", "--json").splitlines()]
    assert sorted(row["id"] for row in rows) == [-(2**53) - 3, 2**53 + 1, 10**18, 2**63 - 1]
    assert json.loads(ok("get", "whole", many, "--json"))["many"] == [-(2**53) - 1, 2]
    for text in ("9007199254740993.5", "9223372036854775808.0", "1e999999999", "-1e300", "1.5"):
        file.write_text(f'{{"id": {text}}}\n')
        assert "line 1, column 'id': " in call("load", "whole", str(file), "--missing", "null").stderr, text
    for text in ("NaN", "Infinity", "-Infinity"):
        file.write_text(f'{{"id": {text}}}\n')
        assert "it is no whole number" in call("load", "whole", str(file), "--missing", "null").stderr, text
    ok("drop", "whole", "--yes")


@pytest.mark.parametrize("text", ['[{"id": 1},    {"id": 2}]', '{"id": 1}\n{"id": 2,       "id": 2}'])
def test_what_is_held_in_memory_is_limited(
    call: Any, ok: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(files, "_ARRAY_BYTES_MAX", 20)
    ok("create", "limited", "id bigint", "--if-not-exists")
    (tmp_path / "rows.json").write_text(text)
    assert "has a line or an array that is larger than" in call("load", "limited", str(tmp_path / "rows.json")).stderr


def test_null_and_the_text_null(ok: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('id,name\n1,NULL\n2,\n3,""\n4,NA\n')
    ok("load", "texts", str(file), "--create", "--key", "id")
    names = {row["id"]: row["name"] for row in map(json.loads, ok("cat", "texts", "--json").splitlines())}
    assert names == {1: "NULL", 2: None, 3: "", 4: "NA"}
    shown = {line.split()[0]: line.split()[1:] for line in ok("cat", "texts").splitlines()[1:]}
    assert shown == {"1": ['"NULL"'], "2": ["NULL"], "3": [], "4": ["NA"]}
    ok("load", "nulls", str(file), "--create", "--key", "id", "--null", "NULL")
    names = {row["id"]: row["name"] for row in map(json.loads, ok("cat", "nulls", "--json").splitlines())}
    assert names == {1: None, 2: None, 3: "", 4: "NA"}


def test_a_null_in_the_only_column_is_a_row(ok: Callable[..., str], tmp_path: Path) -> None:
    ok("create", "one_column", "n int")
    ok("put", "one_column", '{"n": 1}', '{"n": null}', '{"n": 3}')
    ok("export", "one_column", str(tmp_path / "rows.csv"))
    ok("load", "one_column_loaded", str(tmp_path / "rows.csv"), "--create")
    assert ok("cat", "one_column_loaded", "--json") == ok("cat", "one_column", "--json")
    ok("create", "one_required", "n int not null")
    (tmp_path / "rows.csv").write_text("n\n1\n\n")
    ok("load", "one_required", str(tmp_path / "rows.csv"))  # where there is no null, an empty line is none


def test_a_batch_that_failed_is_not_skipped_by_the_next_load(
    server: fluss.LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_checkpoint_is_of_files_as_they_were(call: Any, ok: Callable[..., str], tmp_path: Path) -> None:
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


def test_a_resumed_load_adds_to_the_rejects(call: Any, ok: Callable[..., str], tmp_path: Path) -> None:
    ok("create", "rejecting", "id bigint not null")
    first, second, rejects = tmp_path / "first.jsonl", tmp_path / "second.csv", tmp_path / "rejects"
    first.write_text('{"id": "x"}\n{"id": 1}\n')
    second.write_text("wrong\n1\n")
    command = ["load", "rejecting", str(first), str(second), "--on-error", "skip", "--rejects", str(rejects)]
    assert call(*command, "--checkpoint", str(tmp_path / "checkpoint")).exit_code == 1
    second.write_text("id\ny\n2\n")
    ok(*command, "--checkpoint", str(tmp_path / "checkpoint"))
    assert [json.loads(line)["text"] for line in rejects.read_text().splitlines()] == ['{"id": "x"}', "y"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_rows_that_were_rejected_at_the_end_are_not_rejected_again(
    ok: Callable[..., str], tmp_path: Path, name: str
) -> None:
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
    server: fluss.LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that is killed goes on behind them."""
    monkeypatch.setattr(loading, "_IN_FLIGHT", 0)
    file, rejects = tmp_path / "rows.jsonl", tmp_path / "rejects"
    file.write_text('{"id": "x"}\n{"id": 1}\n')
    found = []
    with fluss.connect(server.bootstrap_servers) as db:
        table, checkpoint = db.create_table("killed", "id bigint not null"), str(tmp_path / "checkpoint")
        load = Load(db, table, [str(file)], on_error="skip", rejects=str(rejects), checkpoint=checkpoint)
        monkeypatch.setattr(load._checkpoint, "advance", lambda *_: found.append(rejects.read_text()))
        load.run()
    assert [text.count("\n") for text in found] == [1]


@pytest.mark.parametrize(
    ("kind", "text"), [("jsonl", '{"id": 1}\n{"id": 2}\n'), ("csv", "id\n1\n2\n"), ("csv", "id\n")]
)
def test_pipes(call: Any, ok: Callable[..., str], tmp_path: Path, kind: str, text: str) -> None:
    pipe, rows = tmp_path / "pipe", text.count("\n") - (kind == "csv")
    os.mkfifo(pipe)
    ok("create", "piped", "id bigint not null", "--if-not-exists")
    threading.Thread(target=pipe.write_text, args=[text], daemon=True).start()
    assert json.loads(ok("load", "piped", str(pipe), "--format", kind, "--json"))["written"] == rows
    refused = call("load", "piped", str(pipe), "--format", kind, "--atomic")
    assert "can be read once only" in refused.stderr
    assert json.loads(ok("load", "piped", "--format", kind, "--json", input=text))["written"] == rows
