# SPDX-License-Identifier: Apache-2.0
"""Backups under load, restored after the server was killed."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fluss
from fluss.cli import main
from fluss.errors import FlussError


def call(server: fluss.LocalServer, *args: str) -> Any:
    return CliRunner().invoke(main, [*args, "-b", server.bootstrap_servers])


def test_a_backup_under_load_survives_a_kill(tmp_path: Path) -> None:
    folder = str(tmp_path / "backup")
    acknowledged = 0
    ready = threading.Event()
    with fluss.LocalServer(tmp_path / "data") as server:
        with fluss.connect(server.bootstrap_servers) as db:
            db.create_table("shop.empty", "id int, tags array<string>", properties={"owner": "anna"})
            db.create_table("shop.days", "day string, id int", partition_by="day").append([("a", 1), ("b", 2)])
            db.create_table("log", "id bigint")
            db.create_table("keyed", "id bigint, n bigint", primary_key="id", buckets=2, comment="k")

        def write() -> None:
            nonlocal acknowledged
            with (
                contextlib.suppress(FlussError),  # the server is killed
                fluss.connect(server.bootstrap_servers, options={"writer.delivery-timeout-ms": "1 s"}) as own,
            ):
                mine, keys = own.table("log"), own.table("keyed")
                for start in range(0, 10_000_000, 100):
                    mine.append([(number,) for number in range(start, start + 100)])
                    keys.upsert([(number, start) for number in range(100)])
                    acknowledged = start + 100
                    if acknowledged >= 1_000:
                        ready.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert ready.wait(30)
        before = acknowledged
        result = call(server, "backup", folder, "--json")
        after = acknowledged + 100
        assert result.exit_code == 0, result.output
        server.kill()
        writer.join(60)
    with fluss.LocalServer(tmp_path / "new") as server:
        restored = call(server, "restore", folder, "--json")
        assert restored.exit_code == 0, restored.output
        assert json.loads(restored.stdout)["rows"] == json.loads(result.stdout)["rows"]
        with fluss.connect(server.bootstrap_servers) as db:
            ids = db.table("log").to_arrow()["id"].to_pylist()
            assert ids == list(range(len(ids)))
            assert before <= len(ids) <= after
            rows = db.table("keyed").to_pylist()
            assert sorted(row["id"] for row in rows) == list(range(100))
            assert before - 100 <= min(row["n"] for row in rows)
            assert db.table("keyed").info.comment == "k"
            assert db.table("shop.empty").info.get_custom_properties() == {"owner": "anna"}
            assert db.table("shop.days").count() == 2
        again = call(server, "restore", folder)
        assert again.exit_code == 1
        assert "exists already" in again.stderr


def test_an_incomplete_or_damaged_backup_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with fluss.LocalServer() as server:
        with fluss.connect(server.bootstrap_servers) as db:
            table = db.create_table("log", [{"id": 1}])
            with table.follow(group="billing", timeout=30) as changes:
                next(changes)
        assert call(server, "backup", str(folder)).exit_code == 0
        tables = json.loads((folder / "manifest.json").read_text())["tables"]
        assert [entry["name"] for entry in tables] == ["fluss.log"]
        assert "not an empty folder" in call(server, "backup", str(folder)).stderr
        assert "has no table fluss.other" in call(server, "restore", str(folder), "other").stderr
        data = folder / "0000.arrow"
        data.write_bytes(data.read_bytes()[:-1] + b"x")
        assert "its checksum is wrong" in call(server, "restore", str(folder)).stderr
        (folder / "manifest.json").unlink()
        refused = call(server, "restore", str(folder))
        assert refused.exit_code == 1
        assert "not a complete backup" in refused.stderr


@pytest.mark.parametrize("name", ["backup", "restore"])
def test_help_has_an_example(name: str) -> None:
    assert f"Example: fluss {name}" in CliRunner().invoke(main, [name, "--help"]).output
