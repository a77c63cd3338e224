# SPDX-License-Identifier: Apache-2.0
"""The server as a process: start, stop, crash, and what a second one gets to hear."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.server.log_support import Client, ids_of, make_batch
from tests.waiting import wait_for

from fluss.cli import main
from fluss.errors import ConfigError
from fluss.net.connection import Connection
from fluss.server.local import LocalServer


async def client_of(server: LocalServer) -> Client:
    host, _, port = server.bootstrap_servers.rpartition(":")
    connection = await Connection.open(
        host, int(port), software_name="t", connect_timeout_ms=5000, request_timeout_ms=10_000, max_frame_bytes=1 << 28
    )
    return Client(connection)


async def test_data_survives_a_stop_and_a_crash(tmp_path: Path) -> None:
    server = LocalServer(tmp_path)
    table = -1
    for number in range(3):
        server.start()
        client = await client_of(server)
        if number == 0:
            table = await client.create_table()
        assert (await client.produce(table, make_batch(number * 3))).base_offset == number * 3
        assert ids_of((await client.fetch(table, 0)).records) == list(range(number * 3 + 3))
        await client.connection.close()
        if number == 1:
            server.crash()
        else:
            server.stop()
            assert (tmp_path / ".clean-shutdown").exists()


def test_temporary_data_goes_with_the_server() -> None:
    with LocalServer() as server:
        folder = server.data_dir
        assert folder.is_dir()
        assert server.bootstrap_servers in repr(server.config())
        assert server.pid is not None
    assert not folder.exists()
    assert server.pid is None
    with pytest.raises(ConfigError, match="not running"):
        _ = server.bootstrap_servers


async def test_async_context() -> None:
    async with LocalServer() as server:
        client = await client_of(server)
        await client.create_table()
        await client.connection.close()


def test_second_server_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
    with LocalServer(tmp_path) as first, pytest.raises(ConfigError, match=f"process id {first.pid}\\b"):
        LocalServer(tmp_path).start()
    # Free again after the stop.
    with LocalServer(tmp_path):
        pass


def test_bad_options_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown server option 'no\.such'"):
        LocalServer(tmp_path, options={"no.such": 1}).start()


def test_several_listeners(tmp_path: Path) -> None:
    options = {
        "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
        "security.protocol.map": {"CLIENT": "SASL"},
        "security.sasl.plain.jaas.config": 'm required user_alice="alice-secret";',
    }
    with LocalServer(tmp_path, options=options) as server:
        assert len(set(server.addresses)) == 2
        assert "alice-secret" not in server.log_text
        command = Path(f"/proc/{server.pid}/cmdline")
        if command.exists():
            assert b"alice-secret" not in command.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_command_with_zero(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fluss.server", "--data-dir", str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        line = process.stdout.readline().decode()
        assert line.startswith("ready 127.0.0.1:")
        process.send_signal(number)
        assert process.wait(15) == 0
        assert process.stdout.read() == b""
        assert (tmp_path / ".clean-shutdown").exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from fluss.server.local import LocalServer\n"
        "server = LocalServer(sys.argv[1]).start()\n"
        "print(server.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, timeout=60, check=False
    )
    child = int(done.stdout)
    wait_for(lambda: not Path(f"/proc/{child}").exists())
    assert (tmp_path / ".clean-shutdown").exists()


def test_command_line_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    runner = CliRunner()
    refused = runner.invoke(main, ["server", "--data-dir", str(tmp_path), "-D", "data.dirs=a,b"])
    assert refused.exit_code == 1
    assert "'data.dirs' cannot be used" in refused.output
    assert runner.invoke(main, ["server", "-D", "novalue"]).exit_code == 2
    both = runner.invoke(main, ["server", "--port", "1", "-D", "bind.listeners=FLUSS://127.0.0.1:0"])
    assert both.exit_code == 2
    assert "bind.listeners" in both.output
