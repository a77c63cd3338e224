# SPDX-License-Identifier: Apache-2.0
"""The continuous backup of a server on a real S3 server, also on one that fails, and after the loss of a machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.crash.lost import LostRun
from tests.s3.server import BUCKET, S3Server

import fluss
from fluss.server.local import LocalServer
from fluss.server.replication.restoring import restore, verify


def store_of(s3: S3Server) -> dict[str, str]:
    """The options that a server needs for the store, without those of remote segments."""
    return {name: value for name, value in s3.options().items() if name.startswith("s3.")}


def test_a_backup_comes_back(s3: S3Server, tmp_path: Path) -> None:
    url, store = f"s3://{BUCKET}/shop", store_of(s3)
    own = {"replication.url": url, "replication.interval": "100 ms"}
    with LocalServer(tmp_path / "data", options={**store, **own}) as server:
        with fluss.connect(server.bootstrap_servers) as db:
            db.create_table("orders", "id int, item string", primary_key="id").upsert([(i, "tea") for i in range(200)])
        assert s3.secret_key not in server.log_text
    assert not verify(url, store_options=store).damages
    shutil.rmtree(tmp_path / "data")
    restore(url, tmp_path / "again", store_options=store)
    with fluss.connect(tmp_path / "again") as db:
        assert db.table("orders").count() == 200


def test_a_store_that_is_killed_and_comes_back(s3: S3Server, tmp_path: Path) -> None:
    url, store = f"s3://{BUCKET}/down", store_of(s3)
    own = {"replication.url": url, "replication.interval": "100 ms"}
    with (
        LocalServer(tmp_path / "data", options={**store, **own}) as server,
        fluss.connect(server.bootstrap_servers) as db,
    ):
        rows = db.create_table("rows", "id int")
        s3.kill()
        rows.append([(i,) for i in range(100)])
        s3.start()
        rows.append([(100,)])
    restore(url, tmp_path / "again", store_options=store)
    with fluss.connect(tmp_path / "again") as db:
        assert db.table("rows").count() == 101


@pytest.mark.slow
def test_losses_with_a_store_that_fails(tmp_path: Path, s3: S3Server) -> None:
    """Refused, cut and delayed requests, and old lists: `make crash-lost ARGS="--store s3"` does it for longer."""
    from tests.crash.bad_store import bad_store

    with bad_store(tmp_path / "s3", seed=7) as (url, store):
        LostRun(tmp_path, url, seed=7, store=store).run(4)
