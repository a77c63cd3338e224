# SPDX-License-Identifier: Apache-2.0
"""Snapshots of primary-key buckets on a real S3 server: taken, read by a client, and recovered from."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pyarrow as pa
from tests.s3.server import BUCKET, S3Server

import fluss
import fluss.aio
from fluss.server.local import LocalServer

OPTIONS = {"kv.snapshot.interval": "200ms", "log.retention.check-interval": "200ms"}


async def read_newest_snapshot(config: fluss.Config) -> pa.Table:
    path = fluss.TablePath("fluss", "states")
    async with await fluss.aio.FlussConnection.create(config) as connection:
        admin, deadline = connection.get_admin(), time.monotonic() + 30
        while (found := (await admin.get_latest_kv_snapshots(path))[0]).snapshot_id is None:
            assert time.monotonic() < deadline, "no snapshot was taken"
            await asyncio.sleep(0.1)
        table = await connection.get_table(path)
        return (
            await table.new_scan().create_bucket_batch_scanner(found.bucket, snapshot_id=found.snapshot_id).to_arrow()
        )


def test_snapshots_are_taken_read_and_recovered_from(s3: S3Server, tmp_path: Path) -> None:
    options = {**s3.options(), **OPTIONS, "remote.data.dir": f"s3://{BUCKET}/snapshots"}
    own_keys = {"client.fs.s3.access-key": s3.access_key, "client.fs.s3.secret-key": s3.secret_key}
    expected = {i: f"row {i}" for i in range(500)}
    with LocalServer(tmp_path / "data", options=options) as server:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers, **own_keys})
        with fluss.connect(server.bootstrap_servers) as db:
            db.create_table("states", "k int not null, v string", primary_key="k", buckets=1)
            db.table("states").upsert([{"k": k, "v": v} for k, v in expected.items()])
        read = asyncio.run(read_newest_snapshot(config))
        assert dict(zip(read["k"].to_pylist(), read["v"].to_pylist())) == expected
        assert s3.files(f"{BUCKET}/snapshots/kv")
        assert s3.secret_key not in server.log_text
        server.crash()
        # Without the state on disk, it begins with the snapshot.
        for current in sorted((tmp_path / "data").rglob("CURRENT")):
            for file in current.parent.iterdir():
                file.unlink()
        server.start()
        with fluss.connect(server.bootstrap_servers) as db:
            assert {row["k"]: row["v"] for row in db.table("states").to_pylist()} == expected
