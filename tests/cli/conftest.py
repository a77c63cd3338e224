# SPDX-License-Identifier: Apache-2.0
"""One server for the tests of a module, and ways to call the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import fluss
from fluss.cli import main

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def server() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as server:
        yield server


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
def ok(call: Call) -> Callable[..., str]:
    """Call a command that succeeds; gives its standard output."""

    def run(*args: str, input: str | None = None) -> str:
        result = call(*args, input=input)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

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
