# SPDX-License-Identifier: Apache-2.0
"""Every command as a process of its own, as users start it; `drop` in a pseudo-terminal, because it asks."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.cli.conftest import Ok, Start
from tests.cli.test_help import leaves
from tests.cli.test_sql import Terminal

from fluss.cli import main

Process = Callable[..., subprocess.CompletedProcess[str]]

ELSEWHERE = {
    "dev": "test_dev.py",
    "copy": "test_copy.py",
    "migrate": "test_migrate.py",
    "pipeline init": "spark/test_pipelines.py",
    "pipeline run": "spark/test_pipelines.py",
    "sql": "test_sql.py",
}
"""Commands that other tests run as processes."""

STEPS: list[list[tuple[str, int, str]]] = [
    # Command line, exit code, and what it shows. Those of one group run at the same time.
    [
        ("create orders 'id bigint not null, item string' --key id", 0, "orders"),
        ("create days 'day string, id int' --partition-by day", 0, "days"),
        ("db create shop", 0, "shop"),
        ("profile add here {address}", 0, "profile here added"),
        ("completion bash", 0, "complete"),
        ("doctor", 0, "Python"),
        ("user add alice --data-dir folder --password-file rows.csv", 0, "user alice added"),
    ],
    [
        ('put orders \'{{"id": 1, "item": "tea"}}\'', 0, "1 row"),
        ("load orders rows.csv", 0, "2 rows"),
        ("partitions days add day=monday", 0, "monday"),
        ("profile use here", 0, "profile here is active"),
        ("db ls", 0, "shop"),
        ("user ls --data-dir folder", 0, "alice"),
    ],
    [
        ("cat orders", 0, "tea"),
        ("head orders", 0, "tea"),
        ("get orders 1", 0, "tea"),
        ("tail orders --no-follow", 0, "mug"),
        ("count orders", 0, "3"),
        ("ls", 0, "fluss"),
        ("tables", 0, "orders"),
        ("describe orders", 0, "item"),
        ("offsets orders", 0, "3"),
        ("snapshots orders", 0, ""),
        ("status", 0, "tables"),
        ("export orders out.csv", 0, "3 rows"),
        ("backup saved", 0, "2 tables with 3 rows"),
        ("profile ls", 0, "here"),
        ("config ls", 0, "data.dir"),
        ("bench --seconds 0.01", 0, "lookup"),
        ("acl ls", 1, "authorizer"),
        ("acl grant alice read orders", 1, "authorizer"),
        ("acl revoke alice read orders", 1, "authorizer"),
        ("group allow alice", 1, "authorizer"),
        ("lake status", 0, ""),
        ("tier --once", 0, ""),
    ],
    [
        ("alter orders add column note string", 0, "note"),
        ("db drop shop --yes", 0, "shop"),
        ("tail orders --group billing --timeout 2", 0, "change"),
        ("config set kv.snapshot.interval=5min", 0, "kv.snapshot.interval"),
        ("profile rm here", 0, "profile here removed"),
        ("restore saved", 1, "exist"),
        ("user rm alice --data-dir folder", 0, "user alice removed"),
    ],
    [
        ("config reset kv.snapshot.interval", 0, "kv.snapshot.interval"),
        ("groups", 0, "billing"),
        ("group show billing", 0, "changes behind"),
    ],
    [("group reset billing --to earliest --yes", 0, "changes behind")],
    [("group delete billing --yes", 0, "group billing deleted")],
]
LONG = {"server": r"^ready (\S+)$", "ui": r"(http://\S+)"}
"""Commands that run until they are stopped, and what they show when they are ready."""


def test_every_command_is_here() -> None:
    here = {name for group in STEPS for line, _, _ in group for name in _names(line)}
    commands = {" ".join(path) for path, _ in leaves(main)}
    assert here | set(ELSEWHERE) | set(LONG) | {"drop"} >= commands


def _names(line: str) -> Sequence[str]:
    words = line.split()
    return words[0], " ".join(words[:2])


@pytest.mark.slow  # fifty processes
def test_commands(
    process: Process, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("id,item\n2,mug\n3,pot\n")
    wrong: list[str] = []

    def run(step: tuple[str, int, str]) -> None:
        line, code, words = step
        done = process(*shlex.split(line.format(address=environment["FLUSS_BOOTSTRAP_SERVERS"])))
        if done.returncode != code or words not in done.stdout + done.stderr or "Traceback" in done.stderr:
            wrong.append(f"fluss {line}: {done.returncode} (not {code}), {done.stdout!r}, {done.stderr!r}")

    with ThreadPoolExecutor(3) as pool:
        for group in STEPS:
            list(pool.map(run, group))
    assert not wrong, "\n".join(wrong)


def test_drop_asks_first(process: Process) -> None:
    assert process("create", "gone", "id int").returncode == 0
    for answer, code in (("n\n", 1), ("y\n", 0)):
        terminal = Terminal("drop", "gone")
        terminal.expect("[y/N]")
        terminal.type(answer)
        terminal.drain()
        assert terminal.end() == code
    assert process("describe", "gone").returncode == 3


@pytest.mark.parametrize("command", list(LONG))
def test_commands_that_run_until_they_are_stopped(command: str, start: Start, tmp_path: Path) -> None:
    more = ["--data-dir", str(tmp_path / "data"), "--port", "0"] if command == "server" else ["--port", "0"]
    with start(command, *more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        shown = ""
        for line in running.stdout:
            shown += line
            if re.search(LONG[command], shown, re.MULTILINE):
                break
        else:
            pytest.fail(shown)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0, shown


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
@pytest.mark.parametrize("command", ["sql 'select 1 as a'", "sql 'select 1 as a' --json", "db ls", "--help"])
def test_a_full_disk_is_one_line(command: str, start: Start) -> None:
    with open("/dev/full", "w") as full:
        running = start(*shlex.split(command), stdout=full, stderr=subprocess.PIPE)
        try:
            _, shown = running.communicate(timeout=60)
        finally:
            running.kill()
    assert (running.returncode, shown) == (1, "Error: No space left on device\n")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("export filling {folder}/out.csv", "out.csv"),
        ("export filling {folder}/out.jsonl.gz", "out.jsonl.gz"),
        ("export filling {folder}/out.arrow", "out.arrow"),
        ("export filling {folder}/out.parquet", "out.parquet"),
        ("cat filling --parquet {folder}/out.parquet", "out.parquet"),
        ("backup {folder}/saved filling", "saved' is not a complete backup"),
    ],
)
def test_a_full_file_is_one_line(command: str, named: str, ok: Ok, environment: dict[str, str], tmp_path: Path) -> None:
    noise = base64.b64encode(os.urandom(60_000)).decode()
    ok("create", "filling", "id int, text string", "--key", "id", "--if-not-exists")
    ok("put", "filling", json.dumps({"id": 1, "text": noise}))
    done = subprocess.run(
        [sys.executable, "-m", "fluss", *shlex.split(command.format(folder=tmp_path))],
        capture_output=True,
        text=True,
        timeout=60,
        # Python would cut its own compiled modules off too, and every later process fail on them.
        env={**os.environ, **environment, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(r"Error: '.*': File too large.*\n", done.stderr)
    assert named in done.stderr
    assert not list(tmp_path.glob("out.*"))
