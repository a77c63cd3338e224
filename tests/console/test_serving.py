# SPDX-License-Identifier: Apache-2.0
"""`fluss ui`: the console alone, for a server that runs elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.ports import free_port, silent_address

import fluss
from fluss.console.inspection import Inspection, Sampler
from fluss.console.serving import bind
from fluss.console.settings import Settings
from fluss.server.inspection import Inspector
from fluss.tools.status import parse_metrics

from .conftest import SOURCE, Browser


def test_a_console_for_another_server() -> None:
    port = free_port()
    with fluss.LocalServer(options={"metrics.prometheus.port": port}) as server:
        command = [sys.executable, "-m", "fluss", "ui", "-b", server.bootstrap_servers, "--port", "0"]
        process = subprocess.Popen(
            [*command, "--metrics-url", f"http://127.0.0.1:{port}/metrics"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        try:
            found = re.fullmatch(r"console http://127\.0\.0\.1:(\d+)\n", process.stdout.readline())
            browser = Browser(int(found[1])).open()
            assert browser.get("session").json["embedded"] is False
            with browser.events("overview") as stream:
                event = next(stream)
                assert event["problem"] is None
                assert event["samples"][-1]["connections"] >= 1
            assert "--ui" in browser.get("clients").refused()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait(20)
            process.stdout.close()


def test_a_port_in_use_is_named() -> None:
    with silent_address() as address, pytest.raises(fluss.ConfigError, match=re.escape(address)):
        bind(Settings("", port=int(address.partition(":")[2])))


async def test_a_late_answer_of_the_server_is_not_taken_for_the_next_one() -> None:
    mine, theirs = socket.socketpair()
    inspection, inspector = Inspection(mine), Inspector(None, theirs)  # type: ignore[arg-type]
    impatient = mock.patch("fluss.console.inspection._ANSWER_S_MAX", 0.01)
    with impatient, pytest.raises(fluss.NetworkError, match="does not answer"):
        await inspection.ask("nothing")
    inspector.start()
    assert await inspection.ask("log") == {"lines": []}
    await inspector.stop()
    with pytest.raises(fluss.NetworkError, match="has stopped"):
        await inspection.ask("log")
    mine.close()


def test_metrics_are_read_with_their_labels() -> None:
    found = parse_metrics('# TYPE x counter\nx{table="a\\"b\\\\c\\n",n="1"} 2.5\ny 3\nz NaNo\nbroken\n')
    assert found["x"] == {(("table", 'a"b\\c\n'), ("n", "1")): 2.5}
    assert found["y"] == {(): 3.0}


async def test_samples_of_a_page_with_other_labels_and_no_numbers() -> None:
    page = "\n".join(
        [
            'fluss_tabletserver_table_messagesIn_total{table="orders"} 1',
            'fluss_tabletserver_table_messagesIn_total{database="fluss",table="orders"} 2',
            "fluss_tabletserver_openConnections NaN",
            "fluss_tabletserver_bytesIn_total +Inf",
        ]
    )
    sampler = Sampler(Inspection())
    for _ in range(2):
        sampler._take({"metrics": page})
    (sample,) = await sampler.after(1)
    await sampler.stop()
    assert (sample["connections"], sample["rows_per_s"]) == (0, 0)
    json.dumps(sample, allow_nan=False)


@pytest.mark.parametrize("command", ["server --ui --port 0", "ui"])
def test_without_its_extra_the_console_refuses_to_start(command: str, tmp_path: Path) -> None:
    """A server whose console cannot run must not start without it: users would wait for a page that never comes."""
    program = (
        "import sys, importlib.util as util; real = util.find_spec; "
        "util.find_spec = lambda name, package=None: None if name == 'uvicorn' else real(name, package); "
        f"from fluss.cli import main; main({command.split()!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "The console needs uvicorn: pip install 'fluss-python[console,sql]'" in done.stderr
