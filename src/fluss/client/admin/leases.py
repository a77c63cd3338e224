# SPDX-License-Identifier: Apache-2.0
"""Leases on snapshots of primary-key tables: they keep snapshots from being deleted while they are read."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from fluss.client.admin.base import AdminBase, bucket_message, check_name
from fluss.client.admin.types import KvSnapshot
from fluss.client.requests import bucket_from
from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket
from fluss.protocol import apis
from fluss.protocol import messages as pb

LEASE_DURATION_MS = 24 * 60 * 60 * 1000


class KvSnapshotLease:
    """A lease on snapshots. Obtain it with `admin.create_kv_snapshot_lease()`; `async with` drops it at the end.

    The server knows of it from the first `acquire_snapshots()` on, and drops it when it was neither used nor renewed
    for `lease_duration_ms`.

    Example:
        async with admin.create_kv_snapshot_lease() as lease:
            await lease.acquire_snapshots(await admin.get_latest_kv_snapshots("shop.users"))
    """

    def __init__(self, admin: LeaseAdmin, lease_id: str, lease_duration_ms: int) -> None:
        self._admin = admin
        self._lease_id = check_name(lease_id, "lease id")
        is_number = isinstance(lease_duration_ms, int) and not isinstance(lease_duration_ms, bool)
        if not is_number or lease_duration_ms <= 0:
            raise InvalidArgumentError(f"lease_duration_ms is a number of milliseconds, not {lease_duration_ms!r}")
        self._lease_duration_ms = lease_duration_ms

    @property
    def lease_id(self) -> str:
        """The name of the lease.

        Example:
            print(lease.lease_id)
        """
        return self._lease_id

    @property
    def lease_duration_ms(self) -> int:
        """For how long the lease holds after each call.

        Example:
            print(lease.lease_duration_ms)
        """
        return self._lease_duration_ms

    async def acquire_snapshots(
        self, snapshots: Mapping[TableBucket, int] | Iterable[KvSnapshot], *, timeout: float | None = None
    ) -> dict[TableBucket, int]:
        """Keep snapshots, given by bucket or as `get_latest_kv_snapshots()` gives them; return those that are gone.

        Example:
            gone = await lease.acquire_snapshots(await admin.get_latest_kv_snapshots("shop.users"))
        """
        if not isinstance(snapshots, Mapping):
            snapshots = {one.bucket: one.snapshot_id for one in snapshots if one.snapshot_id is not None}
        if not snapshots:
            raise InvalidArgumentError(f"no snapshots to acquire for the lease {self._lease_id!r}")
        return await self._admin.acquire_kv_snapshot_lease(
            self._lease_id, self._lease_duration_ms, snapshots, timeout=timeout
        )

    async def renew(self, *, timeout: float | None = None) -> None:
        """Let the lease hold for its duration from now on.

        Example:
            await lease.renew()
        """
        await self._admin.acquire_kv_snapshot_lease(self._lease_id, self._lease_duration_ms, {}, timeout=timeout)

    async def release_snapshots(self, buckets: Iterable[TableBucket], *, timeout: float | None = None) -> None:
        """Let go of the snapshots of some buckets.

        Example:
            await lease.release_snapshots([bucket])
        """
        await self._admin.release_kv_snapshot_lease(self._lease_id, buckets, timeout=timeout)

    async def drop_lease(self, *, timeout: float | None = None) -> None:
        """Let go of everything the lease holds. It may be used again afterwards.

        Example:
            await lease.drop_lease()
        """
        await self._admin.drop_kv_snapshot_lease(self._lease_id, timeout=timeout)

    async def __aenter__(self) -> KvSnapshotLease:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop_lease()

    def __repr__(self) -> str:
        return f"KvSnapshotLease({self._lease_id!r}, {self._lease_duration_ms} ms)"


class LeaseAdmin(AdminBase):
    """Leases on snapshots of primary-key tables."""

    def create_kv_snapshot_lease(
        self, lease_id: str | None = None, lease_duration_ms: int = LEASE_DURATION_MS
    ) -> KvSnapshotLease:
        """A lease that keeps snapshots from being deleted; by default for a day, under a name of its own.

        Example:
            lease = admin.create_kv_snapshot_lease("nightly-export", 3_600_000)
        """
        return KvSnapshotLease(self, str(uuid.uuid4()) if lease_id is None else lease_id, lease_duration_ms)

    async def acquire_kv_snapshot_lease(
        self, lease_id: str, duration_ms: int, snapshots: Mapping[TableBucket, int], *, timeout: float | None = None
    ) -> dict[TableBucket, int]:
        """Keep snapshots from being deleted for a while; gives those that were gone already."""
        request = pb.AcquireKvSnapshotLeaseRequest(
            lease_id=check_name(lease_id, "lease id"), lease_duration_ms=duration_ms
        )
        tables: dict[int, pb.PbKvSnapshotLeaseForTable] = {}
        for bucket, snapshot_id in snapshots.items():
            if bucket.table_id not in tables:
                tables[bucket.table_id] = request.snapshots_to_lease.add(table_id=bucket.table_id)
            tables[bucket.table_id].bucket_snapshots.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, snapshot_id=snapshot_id
            )
        response = await self._change(apis.ACQUIRE_KV_SNAPSHOT_LEASE, request, idempotent=True, timeout=timeout)
        return {
            bucket_from(table.table_id, b): b.snapshot_id
            for table in response.unavailable_snapshots
            for b in table.bucket_snapshots
        }

    async def release_kv_snapshot_lease(
        self, lease_id: str, buckets: Iterable[TableBucket], *, timeout: float | None = None
    ) -> None:
        """Let go of the snapshots of some buckets."""
        request = pb.ReleaseKvSnapshotLeaseRequest(lease_id=check_name(lease_id, "lease id"))
        request.buckets_to_release.extend(bucket_message(bucket) for bucket in buckets)
        await self._change(apis.RELEASE_KV_SNAPSHOT_LEASE, request, idempotent=True, timeout=timeout)

    async def drop_kv_snapshot_lease(self, lease_id: str, *, timeout: float | None = None) -> None:
        """Let go of everything a lease holds."""
        request = pb.DropKvSnapshotLeaseRequest(lease_id=check_name(lease_id, "lease id"))
        await self._change(apis.DROP_KV_SNAPSHOT_LEASE, request, idempotent=True, timeout=timeout)
