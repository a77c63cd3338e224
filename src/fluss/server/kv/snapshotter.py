# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of all primary-key buckets in rounds, and removes those that are no longer needed.

A bucket is due when its changelog goes beyond its newest snapshot. Files are written in threads, one bucket at a time,
while the bucket serves on. Readers lease snapshots: those, and the changelog after them, stay.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket
from fluss.server import disk
from fluss.server.catalog import Catalog, Dropped, TableEntry
from fluss.server.catalog.documents import json_text
from fluss.server.clock import Clock
from fluss.server.kv.snapshots import BucketSnapshot, BucketSnapshots
from fluss.server.kv.tablet import KvTablet
from fluss.server.log.tablet import LogTablet
from fluss.server.remote_files import RemoteFiles
from fluss.server.tablets import Tablets

logger = logging.getLogger("fluss.server.kv")

LEASES_NAME = "kv-snapshot-leases"
_LEASES_MAX = 10_000
_LEASES_PER_OWNER_MAX = 1_000
_SNAPSHOTS_PER_OWNER_MAX = 100_000
"""All of them are written with every change."""
_ID_LENGTH_MAX = 256
_DURATION_MS_MAX = 366 * 24 * 3600 * 1000


@dataclass
class Lease:
    """What one reader holds."""

    expires_ms: int
    snapshots: dict[TableBucket, int] = field(default_factory=dict)


def lease_key(owner: str, name: str) -> str:
    """Name a lease of an owner, so that no other owner has one with the same id."""
    return f"{quote(owner, safe=':')}/{name}"


class SnapshotLeases:
    """All leases of a server. They survive a restart.

    The id of a lease is that of its owner, `/`, and a name, as `lease_key` makes it.

    Methods belong to the event loop, but for `save`, which runs in a thread with what `copy` returned.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / LEASES_NAME
        self._clock = clock
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def snapshot_count(self) -> int:
        """The snapshots that are held, each of them once."""
        return len({held for lease in self._leases.values() for held in lease.snapshots.items()})

    def load(self) -> None:
        """Read what was saved. What is damaged is left out: readers whose snapshot is gone start over."""
        try:
            for lease_id, found in json.loads(disk.unseal(disk.read_file(self._path))).items():
                snapshots = {TableBucket(t, b, p): snapshot_id for t, p, b, snapshot_id in found["snapshots"]}
                self._leases[lease_id] = Lease(found["expires_ms"], snapshots)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.error("the leases of snapshots in '%s' cannot be read: %s", self._path, error)

    def copy(self) -> dict[str, Lease]:
        """What `save` writes."""
        return {lease_id: Lease(one.expires_ms, dict(one.snapshots)) for lease_id, one in self._leases.items()}

    def save(self, leases: Mapping[str, Lease]) -> None:
        found = {
            lease_id: {
                "expires_ms": lease.expires_ms,
                "snapshots": [[b.table_id, b.partition_id, b.bucket_id, n] for b, n in lease.snapshots.items()],
            }
            for lease_id, lease in leases.items()
        }
        disk.write_atomically(self._path, disk.seal(json_text(found).encode()))
        disk.sync_folder(self._path.parent)

    def is_leased(self, bucket: TableBucket, snapshot_id: int) -> bool:
        """Whether a reader holds a snapshot now."""
        now_ms = self._clock.expiry_ms()
        return any(
            lease.expires_ms >= now_ms and lease.snapshots.get(bucket) == snapshot_id for lease in self._leases.values()
        )

    def acquire(self, lease_id: str, duration_ms: int, snapshots: Mapping[TableBucket, int]) -> None:
        """Begin or prolong a lease. It holds one snapshot per bucket: the one that was named last.

        One that would hold nothing is not begun.
        """
        if not lease_id or len(lease_id) > _ID_LENGTH_MAX:
            raise InvalidArgumentError(f"the id of a lease has 1 to {_ID_LENGTH_MAX} characters, not {len(lease_id)}")
        if not 0 < duration_ms <= _DURATION_MS_MAX:
            raise InvalidArgumentError(f"a lease lasts 1 to {_DURATION_MS_MAX} ms, not {duration_ms}")
        self.expire()
        if lease_id not in self._leases and not snapshots:
            return
        self._check_room(lease_id, snapshots)
        lease = self._leases.setdefault(lease_id, Lease(0))
        lease.expires_ms = self._clock.now_ms() + duration_ms
        lease.snapshots.update(snapshots)

    def _check_room(self, lease_id: str, snapshots: Mapping[TableBucket, int]) -> None:
        """Refuse a lease too many, of this owner or of all."""
        owner = lease_id.partition("/")[0]
        own = [lease for other, lease in self._leases.items() if other.partition("/")[0] == owner]
        known = self._leases.get(lease_id)
        if known is None:
            for count, limit, who in (
                (len(self._leases), _LEASES_MAX, "the server has"),
                (len(own), _LEASES_PER_OWNER_MAX, f"{owner} has"),
            ):
                if count >= limit:
                    raise InvalidArgumentError(f"{who} {limit} leases of snapshots, its limit. Drop some first.")
        added = len(snapshots) if known is None else len(snapshots.keys() - known.snapshots.keys())
        if added and sum(len(lease.snapshots) for lease in own) + added > _SNAPSHOTS_PER_OWNER_MAX:
            raise InvalidArgumentError(
                f"the leases of {owner} would hold more than {_SNAPSHOTS_PER_OWNER_MAX} snapshots of buckets. "
                "Release some first."
            )

    def release(self, lease_id: str, buckets: Iterable[TableBucket]) -> None:
        """Give back the snapshots of some buckets. A lease that holds nothing ends."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            for bucket in buckets:
                lease.snapshots.pop(bucket, None)
            if not lease.snapshots:
                del self._leases[lease_id]

    def drop(self, lease_id: str) -> None:
        self._leases.pop(lease_id, None)

    def expire(self) -> None:
        now_ms = self._clock.expiry_ms()
        self._leases = {lease_id: lease for lease_id, lease in self._leases.items() if lease.expires_ms >= now_ms}

    def drop_buckets(self, matches: Callable[[TableBucket], bool]) -> None:
        """Remove buckets that were dropped from all leases."""
        for lease in self._leases.values():
            for bucket in [bucket for bucket in lease.snapshots if matches(bucket)]:
                del lease.snapshots[bucket]


T = TypeVar("T")

_STAGING_SUFFIX = ".snapshot"


class Snapshotter:
    """The snapshots of all buckets of a server.

    Args:
        tablet_of: Returns the state of a bucket.
    """

    def __init__(
        self,
        catalog: Catalog,
        tablets: Tablets,
        executor: Executor,
        clock: Clock,
        tablet_of: Callable[[TableEntry, TableBucket], KvTablet],
    ) -> None:
        self._catalog = catalog
        self._tablets = tablets
        self._executor = executor
        self._clock = clock
        self._tablet_of = tablet_of
        self._files = RemoteFiles(catalog.remote_data_dir, catalog.configs.initial.store_options)
        self._root = f"{self._files.root}/kv"
        self._buckets: dict[TableBucket, BucketSnapshots] = {}
        self._opened: asyncio.Queue[BucketSnapshots] = asyncio.Queue()
        self._discarding = asyncio.Lock()
        self._saving = asyncio.Lock()
        self.leases = SnapshotLeases(catalog.data_dir, clock)
        self.leases.load()
        catalog.on_dropped.append(self._drop)
        tablets.snapshot_offset_of = self.retained_offset

    # Look-up -----------------------------------------------------------------------------------------------------

    def of(self, entry: TableEntry, bucket: TableBucket) -> BucketSnapshots:
        """The snapshots of a bucket; `BucketSnapshots.load` comes before they are used."""
        known = self._buckets.get(bucket)
        if known is None:
            state = self._tablets.bucket_folder(bucket, "kv")
            partition = self._catalog.partition_by_id(bucket.partition_id)
            folder = f"{self._root}/{entry.folder(partition[1] if partition else None)}/{bucket.bucket_id}"
            staging = state.with_name(state.name + _STAGING_SUFFIX)
            known = self._buckets[bucket] = BucketSnapshots(self._files, folder, bucket, staging)
            known.on_opened = self._opened.put_nowait
        return known

    @property
    def known(self) -> tuple[BucketSnapshots, ...]:
        """The snapshots of all buckets that were used since the server started."""
        return tuple(self._buckets.values())

    async def loaded(self, entry: TableEntry, bucket: TableBucket) -> BucketSnapshots:
        """The snapshots of a bucket, as they are on disk."""
        found = self.of(entry, bucket)
        if not found.loaded:
            await self._in_thread(found.load)
        return found

    def retained_offset(self, bucket: TableBucket) -> int:
        """From this offset on the changelog of a bucket is needed; 0 as long as there is no snapshot."""
        found, log = self._buckets.get(bucket), self._tablets.find(bucket)
        return 0 if found is None or log is None else found.retained_offset(log.high_watermark)

    # Rounds ------------------------------------------------------------------------------------------------------

    async def run_round(self, retained: int) -> None:
        """Take a snapshot of every bucket that changed; what fails is tried again in the next round."""
        self.leases.expire()
        for log in self._tablets:
            entry = self._catalog.table_by_id(log.bucket.table_id)
            if entry is None or not entry.table_info.has_primary_key() or not log.segments:
                continue
            if log.damage is not None or log.failure is not None or log.deleted:
                continue
            snapshots = self.of(entry, log.bucket)
            try:
                await self.loaded(entry, log.bucket)
                await self._discard_lost(snapshots)
                if log.high_watermark > snapshots.log_offset:
                    await self._take(entry, log, snapshots)
                await self._prune(snapshots, retained, log.high_watermark)
            except Exception as error:  # RocksDB raises plain exceptions; the other buckets are not concerned
                if not log.deleted:  # a drop takes the files away, and that is no failure
                    logger.error(
                        "no snapshot of %s was taken, it is tried again later: %s",
                        log.bucket,
                        self._files.explain(error),
                    )
            if log.deleted:
                # It may have been dropped while files were written.
                await self._in_thread(snapshots.remove_all)

    async def _take(self, entry: TableEntry, log: LogTablet, snapshots: BucketSnapshots) -> None:
        started = self._clock.monotonic()
        tablet = self._tablet_of(entry, log.bucket)
        taken = await tablet.checkpoint(snapshots.staging)
        row_count = None if entry.table_info.config.changelog_image == "WAL" else taken.meta.rows
        numbers = tablet.number_range(taken.meta.number)
        snapshot = await self._in_thread(snapshots.write, taken, row_count, numbers)
        snapshots.snapshots = (*snapshots.snapshots, snapshot)
        logger.info(
            "snapshot %d of %s at offset %d: %d bytes, %d of them new, in %.2f s",
            snapshot.snapshot_id, log.bucket, snapshot.log_offset, snapshot.size_bytes, snapshot.new_bytes,
            self._clock.monotonic() - started,
        )  # fmt: skip

    async def discard_lost(self) -> None:
        """Delete snapshots that no state can begin with, of each bucket soon after its state was opened.

        A restart would not know them any more once the log has grown. Requests do not wait for it, and it takes one
        thread: the store may be down. Then it is left to the rounds.
        """
        while True:
            snapshots = await self._opened.get()
            try:
                await self._in_thread(snapshots.load)
                await self._discard_lost(snapshots)
            except Exception as error:  # of any file system
                logger.error(
                    "the snapshots of %s cannot be read, it is tried again later: %s",
                    snapshots.bucket,
                    self._files.explain(error),
                )
                while not self._opened.empty():
                    self._opened.get_nowait()

    async def _discard_lost(self, snapshots: BucketSnapshots) -> None:
        async with self._discarding:
            lost = snapshots.lost
            if not lost:
                return
            logger.error(
                "%d snapshots of %s are damaged, or of changes that its log has lost; they are deleted",
                len(lost),
                snapshots.bucket,
            )
            kept = tuple(found for found in snapshots.snapshots if found not in lost)
            await self._in_thread(snapshots.remove, lost, kept)
            snapshots.snapshots = tuple(found for found in snapshots.snapshots if found not in lost)

    async def _prune(self, snapshots: BucketSnapshots, retained: int, end_offset: int) -> None:
        """Remove the oldest snapshots that the log reaches, but for those that a reader holds."""
        older = snapshots.up_to(end_offset)[:-retained]
        expired = [found for found in older if not self.leases.is_leased(snapshots.bucket, found.snapshot_id)]
        # From here on no reader can get hold of them.
        snapshots.snapshots = tuple(found for found in snapshots.snapshots if found not in expired)
        if expired:
            await self._in_thread(snapshots.remove, expired, snapshots.snapshots)
        if snapshots.snapshots:
            await self._in_thread(snapshots.sweep, snapshots.snapshots)

    # Leases ------------------------------------------------------------------------------------------------------

    async def acquire(self, lease_id: str, duration_ms: int, wanted: dict[TableBucket, int]) -> list[TableBucket]:
        """Lease snapshots of buckets that are `loaded`; returns the buckets whose snapshot is gone."""
        # In one go with the lease itself: what is there now is not removed before it.
        available = {
            bucket: snapshot_id for bucket, snapshot_id in wanted.items() if self._find(bucket, snapshot_id) is not None
        }
        self.leases.acquire(lease_id, duration_ms, available)
        await self._save()
        return [bucket for bucket in wanted if bucket not in available]

    def _find(self, bucket: TableBucket, snapshot_id: int) -> BucketSnapshot | None:
        found, log = self._buckets.get(bucket), self._tablets.find(bucket)
        return None if found is None or log is None else found.find(snapshot_id, log.high_watermark)

    async def release(self, lease_id: str, buckets: Iterable[TableBucket]) -> None:
        self.leases.release(lease_id, buckets)
        await self._save()

    async def drop(self, lease_id: str) -> None:
        self.leases.drop(lease_id)
        await self._save()

    async def _save(self) -> None:
        async with self._saving:
            await self._in_thread(self.leases.save, self.leases.copy())

    # Drops -------------------------------------------------------------------------------------------------------

    async def _drop(self, dropped: Dropped) -> None:
        if not dropped.table.table_info.has_primary_key():
            return
        self.leases.drop_buckets(dropped.owns)
        for bucket in [bucket for bucket in self._buckets if dropped.owns(bucket)]:
            del self._buckets[bucket]
        removals, folder = self._catalog.removals, f"{self._root}/{dropped.folder}"
        await removals.add(folder)
        self._catalog.spawn(removals.remove(folder, self._files, self._executor))

    async def remove_what_is_left(self) -> None:
        """Delete remote folders of tables and partitions that could not be deleted when these were dropped."""
        await self._catalog.removals.retry(self._files, self._executor)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
