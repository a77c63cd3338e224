# SPDX-License-Identifier: Apache-2.0
"""Type checkers see every public name, with its precise type, on both faces."""

from __future__ import annotations

import json
import os
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


async def async_face() -> None:
    connection = await fluss.aio.FlussConnection.create(fluss.aio.Config())
    table = await connection.get_table(fluss.aio.TablePath("d", "t"))
    scanner = await table.new_scan().create_log_scanner()
    assert_type(scanner, fluss.aio.LogScanner[fluss.ScanRecord])
    assert_type(await scanner.poll(100), fluss.aio.ScanRecords)
"""

VALUES = {"EARLIEST_OFFSET": "Literal[-2]", "LATEST_OFFSET": "Literal[-1]"}
FUNCTIONS = {"connect": "Database", "col": "ColumnRef"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("types")
    for face in (fluss, fluss.aio):
        revealed = "\n".join(f"reveal_type({face.__name__}.{name})" for name in face.__all__)
        (folder / f"names_of_{face.__name__.replace('.', '_')}.py").write_text(f"import {face.__name__}\n{revealed}\n")
    (folder / "program.py").write_text(PROGRAM)
    settings = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


def test_mypy_accepts_a_program_of_both_faces(program: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, sorted(program.glob("*.py")))],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    revealed = [line.split("Revealed type is ")[1] for line in done.stdout.splitlines() if "Revealed type is" in line]
    assert len(revealed) == len(fluss.__all__) + len(fluss.aio.__all__)
    assert not [text for text in revealed if text.strip('"') == "Any"]


def test_pyright_sees_the_same_types(program: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "basedpyright",
            "--pythonpath",
            sys.executable,
            "--outputjson",
            "--project",
            str(program),
        ],
        cwd=program,
        capture_output=True,
        text=True,
        check=False,
    )
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    assert not [entry for entry in diagnostics if entry["severity"] in ("error", "warning")]
    revealed = dict(entry["message"].removeprefix("Type of ").split(" is ", 1) for entry in diagnostics)
    for face in (fluss, fluss.aio):
        for name in face.__all__:
            # Pyright shows the open parameter of a generic class as `[Unknown]`.
            text = (
                revealed[f'"{face.__name__}.{name}"']
                .strip('"')
                .replace(f"{name}[Unknown]", name)
                .replace(f"{name}[Any]", name)
            )
            if name in FUNCTIONS:
                assert FUNCTIONS[name] in text.rpartition("->")[2]
                continue
            assert text == VALUES.get(name, f"type[{name}]")
