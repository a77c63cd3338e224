# SPDX-License-Identifier: Apache-2.0
"""Operating a server: status, doctor, offsets, snapshots, configuration, access rights, profiles, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.conftest import Call, Ok
from tests.ports import free_port

import fluss
from fluss.cli import main


@pytest.fixture(scope="module")
def tables(db: fluss.Database) -> None:
    db.create_table("orders", [{"id": 1, "item": "tea"}, {"id": 2, "item": "mug"}], primary_key="id", buckets=2)
    db.create_table("events", [{"id": 1}])


pytestmark = pytest.mark.usefixtures("tables")


def test_status(ok: Ok, server: fluss.LocalServer) -> None:
    found = json.loads(ok("status", "--json"))
    assert found["address"] == server.bootstrap_servers
    assert (found["tables"], found["rows"], found["health"]) == (2, 3, "green")
    assert found["disk_bytes"] > 0
    assert found["security"] == "no login, no access rights"
    assert "3" in next(line for line in ok("status").splitlines() if line.startswith("rows"))


def test_status_reads_the_metrics_page() -> None:
    port = free_port()
    with fluss.LocalServer(options={"metrics.prometheus.port": str(port)}) as server:
        result = CliRunner().invoke(main, ["status", "-b", server.bootstrap_servers, "--json"])
        assert result.exit_code == 0
        found = json.loads(result.stdout)
        assert found["connections"] >= 1
        assert found["memory_bytes"] is not None


def test_offsets(ok: Ok) -> None:
    found = json.loads(ok("offsets", "orders", "--json"))
    assert sum(one["latest"] for one in found) == 2
    assert [one["bucket"] for one in found] == [0, 1]
    then = json.loads(ok("offsets", "orders", "--at", "1h", "--json"))
    assert [one["at"] for one in then] == [0, 0]
    assert "earliest" in ok("offsets", "events")


def test_snapshots(ok: Ok) -> None:
    assert json.loads(ok("snapshots", "events", "--json")) == []
    assert ok("snapshots", "orders").split()[:2] == ["kind", "partition"]


def test_config(ok: Ok, call: Call) -> None:
    assert json.loads(ok("config", "set", "kv.snapshot.interval=5min", "--json")) == {"kv.snapshot.interval": "5min"}
    found = {one["key"]: one["value"] for one in json.loads(ok("config", "ls", "--json"))}
    assert found["kv.snapshot.interval"] == "5min"
    ok("config", "reset", "kv.snapshot.interval")
    assert "kv.snapshot.interval" not in ok("config", "ls")
    assert call("config", "set", "data.dir=/elsewhere").exit_code == 1


def test_doctor(call: Call, ok: Ok, tmp_path: Path) -> None:
    found = {one["name"]: one for one in json.loads(ok("doctor", "--data-dir", str(tmp_path), "--json"))}
    assert found["Python"]["state"] == "ok"
    assert found["server"]["state"] == "ok"
    assert found["data folder"]["state"] == "ok"
    lost = call("doctor", "-b", "127.0.0.1:1", "--data-dir", str(tmp_path))
    assert lost.exit_code == 1
    assert "127.0.0.1:1: nothing listens there; run" in lost.stdout


@pytest.fixture(scope="module")
def guarded() -> Iterator[fluss.LocalServer]:
    options = {
        "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
        "security.protocol.map": "CLIENT:sasl",
        "security.sasl.enabled.mechanisms": "PLAIN",
        "security.sasl.plain.credentials": "root:root-secret,alice:alice-secret",
        "super.users": "User:root",
        "authorizer.enabled": "true",
    }
    with fluss.LocalServer(options=options) as server:
        yield server


def test_access_rights(guarded: fluss.LocalServer, environment: dict[str, str]) -> None:
    def run(user: str, *args: str) -> Any:
        words = ["-b", guarded.addresses[-1], "--user", user, "--password", f"{user}-secret"]
        return CliRunner().invoke(main, [*args, *words])

    assert run("root", "create", "orders", "id int").exit_code == 0
    assert run("root", "put", "orders", '{"id": 1}').exit_code == 0
    assert run("alice", "cat", "orders").exit_code != 0
    assert run("root", "acl", "grant", "alice", "read", "orders").exit_code == 0
    assert run("root", "acl", "grant", "alice", "describe", "orders").exit_code == 0
    assert run("alice", "cat", "orders").exit_code == 0
    listed = json.loads(run("root", "acl", "ls", "--on", "orders", "--json").stdout)
    assert {"principal": "alice", "operation": "read", "resource": "fluss.orders", "host": "*"} in listed
    assert "alice" in run("root", "acl", "ls").stdout
    assert run("root", "acl", "revoke", "alice", "read", "orders").exit_code == 0
    assert run("root", "acl", "revoke", "alice", "read", "orders").exit_code == 3
    assert run("root", "acl", "revoke", "alice", "describe", "orders").exit_code == 0
    assert run("alice", "cat", "orders").exit_code != 0
    assert run("root", "acl", "grant", "*", "read", "orders").exit_code == 0
    assert run("alice", "cat", "orders").exit_code == 0
    assert run("root", "acl", "revoke", "*", "read", "orders").exit_code == 0
    assert run("root", "acl", "revoke", "alice", "read", "orders", "--json").exit_code == 3
    assert run("alice", "cat", "orders").exit_code != 0
    assert run("root", "acl", "grant", "*", "read", "*").exit_code == 0  # every user, all tables
    assert run("alice", "cat", "orders").exit_code == 0
    assert run("root", "acl", "revoke", "*", "read", "*").exit_code == 0
    assert run("alice", "cat", "orders").exit_code != 0
    wrong = CliRunner().invoke(main, ["ls", "-b", guarded.addresses[-1], "--user", "root", "--password", "wrong"])
    assert wrong.exit_code == 1
    assert "wrong" not in wrong.stderr.replace("wrong password", "")


def test_profiles(call: Call, ok: Ok, server: fluss.LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS")
    assert "no profiles" in call("profile", "ls").stderr
    made = json.loads(ok("profile", "add", "here", server.bootstrap_servers, "--json"))
    assert made == {"name": "here", "active": True}
    ok("profile", "add", "there", "127.0.0.1:1", "--user", "alice", "--password-env", "THERE")
    assert ok("ls").split() == ["fluss"]
    assert "THERE" in call("ls", "--profile", "there").stderr
    ok("profile", "use", "there")
    monkeypatch.setenv("THERE", "secret")
    assert "nothing listens at 127.0.0.1:1" in call("ls").stderr
    assert call("profile", "add", "here", "h:1").exit_code == 1
    assert call("profile", "use", "her").exit_code == 3
    shown = ok("profile", "ls")
    assert "secret" not in shown
    assert shown.splitlines()[2].split() == ["*", "there", "127.0.0.1:1", "alice"]
    ok("profile", "rm", "there")
    assert [one["name"] for one in json.loads(ok("profile", "ls", "--json"))] == ["here"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, ok: Ok) -> None:
    assert f"_FLUSS_COMPLETE={shell}_complete" in ok("completion", shell)


@pytest.mark.parametrize(("words", "found"), [("o", ["plain,orders"]), ("-b . o", [])])
def test_completion_of_table_names(environment: dict[str, str], tmp_path: Path, words: str, found: list[str]) -> None:
    asked = {"COMP_WORDS": f"fluss describe {words}", "COMP_CWORD": str(1 + len(words.split()))}
    done = subprocess.run(
        [sys.executable, "-m", "fluss"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **environment, **asked, "_FLUSS_COMPLETE": "bash_complete"},
    )
    assert done.stdout.split() == found
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == [], "a folder is not made a database"
