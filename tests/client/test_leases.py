# SPDX-License-Identifier: Apache-2.0
"""Leases keep snapshots readable that the server would delete."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import fluss
import fluss.aio
from fluss.errors import KvSnapshotNotExistError


@pytest.fixture(scope="module")
def snapshotting():
    """A server that takes a snapshot of what changed every moment and keeps one."""
    with fluss.LocalServer(options={"kv.snapshot.interval": "100 ms", "kv.snapshot.num-retained": "1"}) as server:
        yield fluss.Config({"bootstrap.servers": server.bootstrap_servers})


async def next_snapshot(admin, path, after):
    for _ in range(300):
        [found] = await admin.get_latest_kv_snapshots(path)
        if found.snapshot_id is not None and found.snapshot_id > after:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"no snapshot after {after}")


@pytest.mark.parametrize("face", [fluss, fluss.aio])
async def test_a_lease_keeps_a_snapshot(snapshotting, face):
    async with await face.FlussConnection.create(snapshotting) as conn:
        admin = conn.get_admin()
        path = fluss.TablePath("fluss", f"leased_{face.__name__.replace('.', '_')}")
        schema = fluss.Schema(pa.schema([("id", pa.int32()), ("v", pa.int32())]), primary_keys=["id"])
        await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        table = await conn.get_table(path)
        writer = table.new_upsert().create_writer()

        async def write(value):
            await writer.upsert((1, value)).wait()

        async def held(snapshot_id):
            try:
                await admin.get_kv_snapshot_metadata(first.bucket, snapshot_id)
            except KvSnapshotNotExistError:
                return False
            return True

        await write(1)
        first = await next_snapshot(admin, path, -1)
        async with admin.create_kv_snapshot_lease(lease_duration_ms=60_000) as lease:
            assert await lease.acquire_snapshots([first]) == {}
            assert await lease.acquire_snapshots({first.bucket: first.snapshot_id}) == {}
            await lease.renew()
            await write(2)
            second = await next_snapshot(admin, path, first.snapshot_id)
            await write(3)
            third = await next_snapshot(admin, path, second.snapshot_id)
            assert await held(first.snapshot_id), "leased"
            assert not await held(second.snapshot_id), "not leased"
            assert await lease.acquire_snapshots({first.bucket: 10_000}) == {first.bucket: 10_000}, "not there"
            await lease.acquire_snapshots([first])
            await lease.release_snapshots([first.bucket])
            await lease.drop_lease()
        await write(4)
        await next_snapshot(admin, path, third.snapshot_id)
        assert not await held(first.snapshot_id), "let go"


async def test_what_a_lease_is(snapshotting):
    async with await fluss.aio.FlussConnection.create(snapshotting) as conn:
        admin = conn.get_admin()
        one, two = admin.create_kv_snapshot_lease(), admin.create_kv_snapshot_lease()
        assert one.lease_id != two.lease_id
        assert one.lease_duration_ms == 24 * 60 * 60 * 1000
        assert repr(admin.create_kv_snapshot_lease("mine", 5)) == "KvSnapshotLease('mine', 5 ms)"
        with pytest.raises(fluss.InvalidArgumentError, match="no snapshots to acquire"):
            await one.acquire_snapshots({})
        for lease_id, duration in (("", 5), ("mine", 0), ("mine", "1 d")):
            with pytest.raises(fluss.InvalidArgumentError):
                admin.create_kv_snapshot_lease(lease_id, duration)
