# SPDX-License-Identifier: Apache-2.0
"""One server for the tests of a module, and ways to call the command line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fluss
from fluss.cli import main

Call = Callable[..., Result]
Ok = Callable[..., str]
Refused = Callable[..., str]
Rows = Callable[..., list[dict[str, Any]]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as server:
        yield server


@pytest.fixture(scope="module")
def db(server: fluss.LocalServer) -> Iterator[fluss.Database]:
    with fluss.connect(server.bootstrap_servers) as db:
        yield db


@pytest.fixture
def environment(server: fluss.LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {
        "FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers,
        "FLUSS_CONFIG_DIR": str(tmp_path / "config"),
        "COLUMNS": "100",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def call(environment: dict[str, str]) -> Call:
    """Call a command within this process."""

    def run(*args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(main, list(args), input=input)

    return run


@pytest.fixture
def ok(call: Call) -> Ok:
    """Call a command that succeeds; gives its standard output."""

    def run(*args: str, input: str | None = None) -> str:
        result = call(*args, input=input)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    return run


@pytest.fixture
def refused(call: Call) -> Refused:
    """Call a command that fails; gives its standard error."""

    def run(*args: str, code: int = 1, input: str | None = None) -> str:
        result = call(*args, input=input)
        assert result.exit_code == code, (result.output, result.exception)
        return result.stderr

    return run


@pytest.fixture
def rows(ok: Ok) -> Rows:
    """Call a command that shows a JSON object a line; gives the objects."""

    def run(*args: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in ok(*args, "--json").splitlines()]

    return run


def read_all(terminal: int) -> bytes:
    """What is shown in a pseudo-terminal until its process has ended."""
    shown = b""
    with contextlib.suppress(OSError):  # the end, as Linux reports it
        while found := os.read(terminal, 65536):
            shown += found
    return shown


@pytest.fixture
def start(environment: dict[str, str]) -> Start:
    """Start a command as a process of its own."""

    def run(*args: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fluss", *args]
        return subprocess.Popen(command, text=True, env={**os.environ, **environment}, **options)

    return run


@pytest.fixture
def process(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call a command as a process of its own, as users do."""

    def run(*args: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fluss", *args],
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **environment},
        )

    return run
