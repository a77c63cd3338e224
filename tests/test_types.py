# SPDX-License-Identifier: Apache-2.0
"""Type checkers see every public name, with its precise type, on both faces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fluss
import fluss.aio

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import fluss
import fluss.aio
from typing_extensions import assert_type


def both_faces_share_what_does_not_wait() -> None:
    assert_type(fluss.TablePath("d", "t"), fluss.aio.TablePath)
    assert_type(fluss.Config({"writer.retries": 1}).writer_retries, int)
    assert_type(fluss.__version__, str)
    assert_type(fluss.errors.FencedLeaderEpochError("x").error_code, int)
    try:
        raise fluss.TableNotExistError("d.t")
    except fluss.FlussError as error:
        assert_type(error.message, str)


async def plain_face() -> None:
    connection = await fluss.FlussConnection.create(fluss.Config())
    table = await connection.get_table(fluss.TablePath("d", "t"))
    scanner = await table.new_scan().create_log_scanner()
    assert_type(scanner, fluss.LogScanner[fluss.ScanRecord])
    assert_type(scanner.poll(100), fluss.ScanRecords)
    for record in scanner:
        assert_type(record, fluss.ScanRecord)
        print(record.row["id"])
    async for record in scanner:
        print(record.offset, record.row)
    for found in await table.new_scan().create_record_batch_log_scanner():
        assert_type(found, fluss.RecordBatch)


async def async_face() -> None:
    connection = await fluss.aio.FlussConnection.create(fluss.aio.Config())
    table = await connection.get_table(fluss.aio.TablePath("d", "t"))
    scanner = await table.new_scan().create_log_scanner()
    assert_type(scanner, fluss.aio.LogScanner[fluss.ScanRecord])
    assert_type(await scanner.poll(100), fluss.aio.ScanRecords)
    async for record in scanner:
        assert_type(record, fluss.ScanRecord)
"""

ROWS = """# pyright: basic, reportMissingModuleSource=none
from __future__ import annotations

import dataclasses
from typing import Any

import fluss
import fluss.aio
from typing_extensions import assert_type


@dataclasses.dataclass
class Order:
    id: int
    item: str


def plain() -> None:
    with fluss.connect("./shop") as db:
        orders = db.create_table("orders", Order, primary_key="id")
        assert_type(orders, fluss.Table[Order])
        assert_type(db.create_table("plain", "id int"), fluss.Table[dict[str, Any]])
        typed = db.table("orders", Order)
        assert_type(typed, fluss.Table[Order])
        assert_type(typed.get(7), Order | None)
        assert_type(typed.get(7, Order(7, "")), Order)
        assert_type(typed.to_pylist(), list[Order])
        assert_type(typed.get_many([1]), list[Order | None])
        assert_type(typed.upsert(Order(1, "tea")).rows, int)
        for change in typed.follow():
            assert_type(change.row, Order)
            assert_type(change.position, fluss.Position)
        for pair in typed.changes():
            assert_type(pair.new, Order | None)
        for found in typed.follow(batches=True):
            assert_type(found.kinds[0] == "append", bool)
        assert_type(len(typed), int)
        assert_type(7 in typed, bool)
        with typed.writer() as writer:
            writer.upsert(Order(2, "milk"))


async def asynchronous() -> None:
    async with await fluss.aio.connect("./shop") as db:
        typed = await db.table("orders", Order)
        assert_type(typed, fluss.aio.Table[Order])
        assert_type(await typed.get(7), Order | None)
        assert_type(await typed.to_pylist(), list[Order])
        async for change in typed.follow():
            assert_type(change.row, Order)
        async with typed.writer() as writer:
            writer.upsert(Order(2, "milk"))
"""

WRONG = """# pyright: basic
import dataclasses

import fluss


@dataclasses.dataclass
class Order:
    id: int


def wrong() -> None:
    with fluss.connect() as db:
        text: str = db.table("orders", Order).to_pylist()[0].id
        print(text)
"""

VALUES = {"EARLIEST_OFFSET": "Literal[-2]", "LATEST_OFFSET": "Literal[-1]"}
FUNCTIONS = {
    "fluss.connect": "Database",
    "fluss.aio.connect": "Connecting",
    "fluss.col": "ColumnRef",
    "fluss.aio.col": "ColumnRef",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("types")
    for face in (fluss, fluss.aio):
        revealed = "\n".join(f"reveal_type({face.__name__}.{name})" for name in face.__all__)
        (folder / f"names_of_{face.__name__.replace('.', '_')}.py").write_text(f"import {face.__name__}\n{revealed}\n")
    for name, text in (("program", PROGRAM), ("rows", ROWS), ("wrong", WRONG)):
        (folder / f"{name}.py").write_text(text)
    settings = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


def test_mypy_knows_every_type(program: Path) -> None:
    # With the options of the project, and so with the cache that `make lint` left: without it this takes a minute.
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *map(str, sorted(program.glob("*.py")))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    wrong = {Path(line.split(":")[0]).name for line in done.stdout.splitlines() if ": error:" in line}
    assert wrong == {"wrong.py"}, done.stdout + done.stderr
    revealed = [line.split("Revealed type is ")[1] for line in done.stdout.splitlines() if "Revealed type is" in line]
    assert len(revealed) == len(fluss.__all__) + len(fluss.aio.__all__)
    assert not [text for text in revealed if text.strip('"') == "Any"]


def test_pyright_sees_the_same_types(program: Path) -> None:
    pyright = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"]
    command = [*pyright, "--project", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=program)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    bad = [entry for entry in diagnostics if entry["severity"] in ("error", "warning")]
    assert {Path(entry["file"]).name for entry in bad} == {"wrong.py"}, bad
    notes = [entry["message"] for entry in diagnostics if entry not in bad]
    revealed = dict(message.removeprefix("Type of ").split(" is ", 1) for message in notes)
    for face in (fluss, fluss.aio):
        for name in face.__all__:
            # Pyright shows the open parameter of a generic class as `[Unknown]`.
            text = (
                revealed[f'"{face.__name__}.{name}"']
                .strip('"')
                .replace(f"{name}[Unknown]", name)
                .replace(f"{name}[Any]", name)
            )
            if returned := FUNCTIONS.get(f"{face.__name__}.{name}"):
                assert returned in text.rpartition("->")[2]
                continue
            assert text == VALUES.get(name, f"type[{name}]")
