# SPDX-License-Identifier: Apache-2.0
"""A table of mistakes: each gets one sentence with the cause and the next step, the right exit code, no traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Call

import fluss

ERROR, USAGE, MISSING = 1, 2, 3

MISTAKES: list[tuple[str, int, str]] = [
    ("sql 'select 1' --times 3", 2, "--times needs --every"),
    ("-b 127.0.0.1:1 tables", USAGE, "options come after it: fluss tables -b"),
    ("--versoin", USAGE, "Did you mean"),
    # names
    ("describe ordres", MISSING, "did you mean 'orders'"),
    ("describe shop.orders", MISSING, "no database 'shop'"),
    ("describe flus.orders", MISSING, "did you mean 'fluss'"),
    ("describe fluss.", USAGE, "DATABASE.TABLE"),
    ("describe .orders", USAGE, "DATABASE.TABLE"),
    ("cat ordres", MISSING, "did you mean 'orders'"),
    ("head ordres", MISSING, "did you mean 'orders'"),
    ("count ordres", MISSING, "did you mean 'orders'"),
    ("tail ordres", MISSING, "did you mean 'orders'"),
    ("put ordres {}", MISSING, "did you mean 'orders'"),
    ("get ordres 1", MISSING, "did you mean 'orders'"),
    ("load ordres rows.csv", MISSING, "did you mean 'orders'"),
    ("export ordres x.csv", MISSING, "did you mean 'orders'"),
    ("drop ordres --yes", MISSING, "did you mean 'orders'"),
    ("alter ordres add x int", MISSING, "did you mean 'orders'"),
    ("partitions ordres", MISSING, "did you mean 'orders'"),
    ("offsets ordres", MISSING, "did you mean 'orders'"),
    ("snapshots ordres", MISSING, "did you mean 'orders'"),
    ("ls shop", MISSING, "database"),
    ("tables shop", MISSING, "database"),
    ("db drop shop --yes", MISSING, "no database 'shop'"),
    ("profile use nowhere", MISSING, "no profile 'nowhere'"),
    ("ls -b 127.0.0.1:1 --profile nowhere", USAGE, "not both"),
    ("profile rm nowhere", MISSING, "no profile 'nowhere'"),
    ("ls --profile nowhere", MISSING, "no profile 'nowhere'"),
    # commands and options
    ("lss", USAGE, "did you mean 'ls'"),
    ("xyzzy", USAGE, 'see "fluss --help"'),
    ("cat", USAGE, "Missing argument"),
    ("cat orders --colums id", USAGE, "--columns"),
    ("cat orders -n many", USAGE, "not a valid integer"),
    ("cat orders --csv --json", USAGE, "choose one"),
    ("tail orders --changes -w id=1", USAGE, "cannot be combined"),
    ("tail orders -n 0", USAGE, "0 is not in the range"),
    ("alter orders", USAGE, "Missing argument"),
    ("alter orders grow x", USAGE, "'grow' is not one of add, set, reset"),
    ("alter orders add column", USAGE, "add what"),
    ("alter orders add column note", USAGE, "a name and a type"),
    ("alter orders rename column item to name", USAGE, "no Fluss server can rename columns"),
    ("alter orders drop column item", USAGE, "no Fluss server can drop columns"),
    ("alter orders add column n int not null", ERROR, "cannot be NOT NULL"),
    ("alter orders set table.log.tll=1d", ERROR, "did you mean 'table.log.ttl'"),
    ("copy orders 127.0.0.1:43929", USAGE, "127.0.0.1:43929/orders"),
    ("copy @staging orders", USAGE, "@staging/orders"),
    ("alter orders set ttl", USAGE, "KEY=VALUE"),
    ("completion tcsh", USAGE, "tcsh"),
    ("acl grant alice fly orders", USAGE, "fly"),
    # connecting
    ("ls -b 127.0.0.1:1", ERROR, "nothing listens at 127.0.0.1:1; run \"fluss server --port 1\""),
    ("ls -b 127.0.0.1:99999", USAGE, "is not an address"),
    ("ls -b :9123", USAGE, "is not an address"),
    ("ls -b 9123", USAGE, "is not an address"),
    ("ls -b ''", USAGE, "an empty text"),
    ("ls -b ./nowhere", USAGE, "no folder"),
    ("ls -b http://127.0.0.1:9123", USAGE, "is not an address"),
    ("ls -b no-such-host.invalid:9123", ERROR, "no-such-host.invalid"),
    ("ls --password secret", USAGE, "without a user"),
    ("tier --once --master local[2", USAGE, "is not a Spark master"),
    ("tier --once --lake x", USAGE, "KEY=VALUE"),
    # creating
    ("create orders 'id int'", ERROR, "exists already; add --if-not-exists"),
    ("create new", USAGE, "give the columns"),
    ("create new 'id int' --like orders", USAGE, "give the columns"),
    ("create new 'id integr'", ERROR, "integr"),
    ("create new 'id'", ERROR, "id"),
    ("create new 'id int, id int'", ERROR, "id"),
    ("create new 'id int' --key nope", ERROR, "nope"),
    ("create new 'id int' --partition-by nope", ERROR, "nope"),
    ("create new 'id int' --bucket-key nope", ERROR, "nope"),
    ("create new 'id int' --buckets 0", USAGE, "0 is not in the range"),
    ("create new 'id int' -p table.log.tll=1d", ERROR, "did you mean 'table.log.ttl'"),
    ("create new 'id int' -p ttl", USAGE, "KEY=VALUE"),
    ("create new --like nope.parquet", ERROR, "there is no file 'nope.parquet'"),
    ("create new --like text.parquet", ERROR, "is not a Parquet file"),
    ("create new --like ordres", MISSING, "did you mean 'orders'"),
    ("create 'bad name' 'id int'", ERROR, "bad name"),
    ("db create fluss", ERROR, "fluss"),
    ("drop orders", USAGE, "--yes"),
    ("partitions orders add day=1", ERROR, "is not partitioned"),
    ("partitions parts add", USAGE, "day=VALUE"),
    ("partitions parts add month=1", ERROR, "month"),
    ("partitions parts drop day=2020 --yes", MISSING, "2020"),
    ("partitions parts add 2020 2021", USAGE, "one partition"),
    # conditions and columns
    ("cat orders -c idd", ERROR, "did you mean 'id'"),
    ("cat orders -c id,id", ERROR, "once"),
    ("cat orders -c ,", USAGE, "separated by commas"),
    ("cat orders -w 'prise > 1'", ERROR, "prise"),
    ("cat orders -w 'id >>> 1'", ERROR, ">>>"),
    ("cat orders -w 'id = '", ERROR, "id = "),
    ("tail orders --from yesterday", ERROR, "10m"),
    ("tail orders --from ²", ERROR, "10m"),
    ("offsets orders --at noon", USAGE, "is not a time"),
    ("offsets orders --at ²m", USAGE, "is not a time"),
    ("cat orders --at noon", USAGE, "is not a time"),
    # rows and files
    ("put orders {", ERROR, "line 1: it is not JSON"),
    ("put orders [1]", ERROR, "JSON object"),
    ("""put orders '{"idd": 1}'""", ERROR, "did you mean 'id'"),
    ("""put orders '{"id": "x"}'""", ERROR, "column 'id'"),
    ("""put orders '{"id": 1, "day": "soon"}'""", ERROR, "column 'day'"),
    ("""put orders '{"item": "x"}'""", ERROR, "column 'id'"),
    ("put orders {} -f rows.csv", USAGE, "not both"),
    ("put orders -f nowhere.jsonl", ERROR, "there is no file"),
    ("""put events --delete '{"id": 1}'""", ERROR, "no primary key"),
    ("get events 1", ERROR, "no primary key"),
    ("get orders 99", MISSING, "no row with key 99"),
    ("get orders x", ERROR, "id"),
    ("""get orders '{"item": 1}'""", ERROR, "not a column of the primary key"),
    ("""put nested '{"tags": "abc"}'""", ERROR, "column 'tags': 'abc' cannot be read as array<string>: it is not a"),
    ("""put nested '{"tags": {"a": 1}}'""", ERROR, "column 'tags'"),
    ("""put nested '{"r": "x"}'""", ERROR, "column 'r': 'x' cannot be read as row<a: int>: it is not an object"),
    ("""put nested '{"r": [1]}'""", ERROR, "column 'r'"),
    ("""put nested '{"m": "x"}'""", ERROR, "column 'm'"),
    ("""put nested '{"m": [1]}'""", ERROR, "column 'm'"),
    ("""put nested '{"m": [["a", 1, 2]]}'""", ERROR, "column 'm'"),
    ("load orders nowhere.csv", ERROR, "there is no file"),
    ("load orders rows.txt", ERROR, "format of 'rows.txt' is not known"),
    ("load orders wrong.csv", ERROR, "did you mean 'item'"),
    ("load orders text.parquet", ERROR, "is not a Parquet file"),
    ("load orders text.arrow", ERROR, "is not an Arrow file"),
    ("load orders empty.csv", ERROR, "begins with a header"),
    ("load orders rows.csv --rejects r.jsonl", USAGE, "--on-error skip"),
    ("load orders rows.csv --atomic --on-error skip", USAGE, "contradict"),
    ("load orders rows.csv --key id", USAGE, "--create"),
    ("load orders rows.csv --checkpoint rows.csv", ERROR, "is not a checkpoint"),
    ("export orders x.txt", ERROR, "format of 'x.txt' is not known"),
    ("export orders nowhere/x.csv", ERROR, "there is no folder 'nowhere'. Create it first"),
    ("cat orders --parquet nowhere/x.parquet", ERROR, "there is no folder 'nowhere'"),
    ("load orders rows.csv --encoding klingon", ERROR, "no encoding 'klingon'"),
    ("load orders rows.csv --encoding utf-16", ERROR, "is not a text in the encoding that was given"),
    ("export orders out --partitioned", ERROR, "is not partitioned"),
    ("restore s3://bucket/shop new -D s3.endpoint", USAGE, "KEY=VALUE"),
    # the server and its options
    ("config set no.such.option=1", ERROR, "no.such.option"),
    ("config set kv.snapshot.interval=soon", ERROR, "soon"),
    ("config set x", USAGE, "KEY=VALUE"),
    ("acl ls", ERROR, "authorizer"),
    ("server --host 203.0.113.1 --port 0", ERROR, "203.0.113.1"),
    ("server -D coffee=hot", ERROR, "coffee"),
    ("server --port 70000", USAGE, "70000"),
    ("server --config nowhere.yaml", ERROR, "nowhere.yaml"),
    ("server --config broken.yaml", ERROR, "'broken.yaml', line 2, column 9 is not YAML: mapping values are not"),
    ("profile add x h:1 --password-env A --password-file B --user u", USAGE, "one source"),
    ("profile add x h:1 --password-env A", USAGE, "needs a user"),
    ("profile add x not/an/address", USAGE, "-b"),
]  # fmt: skip


@pytest.fixture(scope="module")
def tables(db: fluss.Database) -> None:
    db.create_table("orders", "id bigint, item string, day date", primary_key="id")
    db.create_table("events", "id bigint")
    db.create_table("nested", "tags array<string>, r row<a int>, m map<string, int>")
    db.create_table("parts", "day string, id int", partition_by="day")


def test_there_are_enough() -> None:
    assert len(MISTAKES) >= 80
    assert len({line for line, _, _ in MISTAKES}) == len(MISTAKES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the mistakes name."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "rows.csv").write_text("id,item\n1,tea\n")
    (folder / "rows.txt").write_text("id,item\n1,tea\n")
    (folder / "wrong.csv").write_text("id,itme\n1,tea\n")
    (folder / "empty.csv").write_text("")
    (folder / "broken.yaml").write_text("data:\n  dir: x: y\n")
    for name in ("text.parquet", "text.arrow"):
        (folder / name).write_text("this is text")
    return folder


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(("line", "code", "words"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_mistakes(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, words: str) -> None:
    monkeypatch.chdir(folder)
    result = call(*shlex.split(line))
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert words in result.stderr
    shown = [text for text in result.stderr.splitlines() if not text.startswith(("Usage: ", "Try ", "\t")) and text]
    assert len(shown) == 1
    assert result.stdout == ""
