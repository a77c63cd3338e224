# SPDX-License-Identifier: Apache-2.0
"""Moving old segments to the remote log, and out of it when they have expired."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from fluss.errors import FlussError
from fluss.metadata import TableBucket
from fluss.metadata.documents import RemoteLogManifestFile
from fluss.server.catalog import Catalog, Dropped, TableEntry
from fluss.server.clock import Clock
from fluss.server.config import ServerConfig
from fluss.server.log.files import DamagedLogError
from fluss.server.log.remote import RemoteLog
from fluss.server.log.segment import expired_count
from fluss.server.log.tablet import LogTablet
from fluss.server.remote_files import RemoteFiles

logger = logging.getLogger("fluss.server.remote")


class RemoteLogManager:
    """Copies closed segments, takes local ones that are no longer needed out of their logs, and expires remote ones.

    Args:
        snapshot_offset_of: Returns from which offset on the changelog of a primary-key bucket must stay local, because
            its state is rebuilt from it.
    """

    def __init__(
        self,
        root: str,
        catalog: Catalog,
        config: ServerConfig,
        *,
        clock: Clock,
        executor: Executor,
        snapshot_offset_of: Callable[[TableBucket], int],
    ) -> None:
        self.store = RemoteFiles(root, config.store_options)
        self._root = f"{self.store.root}/log"
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._executor = executor
        self._snapshot_offset_of = snapshot_offset_of
        self._moving: LogTablet | None = None
        """The log whose segments are moved now, and when that has ended."""
        self._moved = asyncio.Event()
        catalog.on_dropped.append(self._drop)

    def attach(self, tablet: LogTablet) -> None:
        """Give a log its remote part. Runs before the log is shared, or for a new bucket."""
        bucket = tablet.bucket
        entry, found = self._catalog.table_by_id(bucket.table_id), self._catalog.partition_by_id(bucket.partition_id)
        if entry is None or (found is None and bucket.partition_id is not None):
            return
        path, partition = entry.table_path, None if found is None else found[1]
        name = None if partition is None else partition.name
        empty = RemoteLogManifestFile(path.database_name, path.table_name, bucket, name)
        folder = f"{self._root}/{entry.folder(partition)}/{bucket.bucket_id}"
        tablet.remote = RemoteLog(self.store, folder, tablet.folder, empty)
        try:
            tablet.remote.load()
        except (DamagedLogError, OSError) as error:
            # Taken for empty, the remote log would be swept.
            reason = self.store.explain(error)
            tablet.put_out_of_service(
                DamagedLogError(f"the remote log of {tablet.bucket} cannot be read: {reason}. Restart to try again.")
            )

    async def run_round(self, tablets: list[LogTablet]) -> None:
        """One round over all logs; what fails is tried again in the next one."""
        for tablet in tablets:
            entry = self._catalog.table_by_id(tablet.bucket.table_id)
            if entry is None or tablet.remote is None or tablet.deleted or tablet.damage is not None:
                continue
            self._moving, self._moved = tablet, asyncio.Event()
            try:
                await self._copy(tablet, tablet.remote, entry)
                if not tablet.deleted:
                    await self._expire(tablet, tablet.remote, entry)
            except (FlussError, OSError) as error:
                if not tablet.deleted:  # a drop takes the files away, and that is no failure
                    reason = self.store.explain(error)
                    logger.error("moving segments of %s to the remote log failed: %s", tablet.bucket, reason)
                continue
            finally:
                self._moving = None
                self._moved.set()
            if tablet.deleted:
                continue
            keep = entry.table_info.config.tiered_local_segments
            if len(tablet.segments) > keep:
                limit = min(tablet.segments[-keep].base_offset, tablet.remote.copied_end)
                if entry.table_info.has_primary_key():
                    limit = min(limit, self._snapshot_offset_of(tablet.bucket))
                tablet.detach_segments_before(limit)

    async def _copy(self, tablet: LogTablet, remote: RemoteLog, entry: TableEntry) -> None:
        copied_end = max(remote.copied_end, tablet.start_offset)
        ready = [
            segment
            for segment in tablet.segments[:-1]
            if segment.base_offset >= copied_end and segment.end_offset <= tablet.high_watermark
        ][: self._config.integer("remote.log.task-max-upload-segments")]
        if not ready:
            return
        loop = asyncio.get_running_loop()
        entry.counters.remote_copy += len(ready)
        try:
            manifest = await loop.run_in_executor(self._executor, remote.upload, ready, lambda: tablet.deleted)
            if not tablet.deleted:
                await self._put_in_force(remote, manifest)
        except Exception:
            entry.counters.remote_copy_failed += len(ready)
            raise
        if not tablet.deleted:
            entry.counters.remote_copy_bytes += sum(segment.size_bytes for segment in ready)
            logger.info("copied %d segments of %s to '%s'", len(ready), tablet.bucket, remote.folder)

    async def _expire(self, tablet: LogTablet, remote: RemoteLog, entry: TableEntry) -> None:
        ttl_ms = self._catalog.log_ttl_ms(entry.table_info)
        if ttl_ms <= 0:
            return
        now_ms = self._clock.expiry_ms()
        segments = remote.segments
        if entry.table_info.config.lake_enabled:
            limit = self._catalog.lake_end_offset(tablet.bucket) or 0
            segments = tuple(segment for segment in segments if segment.end_offset <= limit)
        count = expired_count((segment.max_timestamp for segment in segments), now_ms - ttl_ms, now_ms)
        if count:
            entry.counters.remote_delete += 1
            try:
                await self._put_in_force(remote, remote.without(count))
            except Exception:
                entry.counters.remote_delete_failed += 1
                raise
            logger.info("%d remote segments of %s have expired", count, tablet.bucket)

    async def _put_in_force(self, remote: RemoteLog, manifest: RemoteLogManifestFile) -> None:
        loop = asyncio.get_running_loop()
        path = await loop.run_in_executor(self._executor, remote.write_manifest, manifest)
        superfluous = remote.commit(manifest, path)
        await loop.run_in_executor(self._executor, remote.clean_up, *superfluous)

    # Drops -------------------------------------------------------------------------------------------------------

    async def _drop(self, dropped: Dropped) -> None:
        """Delete the folder of a table or partition in the background."""
        folder = f"{self._root}/{dropped.folder}"
        await self._catalog.removals.add(folder)
        self._catalog.spawn(self._remove_when_moved(folder, dropped.owns))

    async def _remove_when_moved(self, folder: str, owns: Callable[[TableBucket], bool]) -> None:
        if self._moving is not None and owns(self._moving.bucket):
            # An upload that has begun would put its files back.
            await self._moved.wait()
        await self._catalog.removals.remove(folder, self.store, self._executor)
