# SPDX-License-Identifier: Apache-2.0
"""How far groups of followers are behind, read from the table in which they keep it when the page is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fluss.errors import FlussError, FormatError
from fluss.metadata import TableBucket
from fluss.metadata.group_rows import GROUPS_TABLE, MemberRow, Progress, add_progress
from fluss.rows.slices import Slices
from fluss.server.metrics import Labels

if TYPE_CHECKING:
    from fluss.server.services import Services

logger = logging.getLogger("fluss.server")

_ROWS_MAX = 1_000
"""As many rows of a bucket of the table are read: one for each member."""
_SERIES_MAX = 1_000
_NAME_MAX = 200


class GroupLags:
    """Registers the lag of each group."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._progress: dict[tuple[str, int], dict[TableBucket, Progress]] = {}
        """By group and id of the table that it follows."""
        self._is_reported = False
        services.metrics.before_page.append(self._read)
        services.metrics.series("coordinator_group_lag", self._lags)
        services.metrics.series("coordinator_group_bucket_lag", self._bucket_lags)

    async def _read(self) -> None:
        try:
            self._progress = await self._find_progress()
        except Exception:  # users write this table, and may have created another one under its name
            self._progress = {}
            if not self._is_reported:
                logger.exception("the lag of groups is not shown: table %s cannot be read", GROUPS_TABLE)
            self._is_reported = True

    async def _find_progress(self) -> dict[tuple[str, int], dict[TableBucket, Progress]]:
        found: dict[tuple[str, int], dict[TableBucket, Progress]] = {}
        entry = self._services.catalog.find_table(GROUPS_TABLE)
        if entry is None or entry.is_partitioned or not entry.has_primary_key:
            return found
        for number in range(entry.table_info.num_buckets):
            tablet = self._services.kv.tablet(entry, TableBucket(entry.table_id, number))
            try:
                values = await tablet.first(_ROWS_MAX)
                rows = tablet.codec.decode_values(Slices.from_list(values)).to_pylist() if values else []
            except FlussError:
                continue  # a bucket that is out of service is reported elsewhere
            for stored in rows:
                await asyncio.sleep(0)  # a row may name thousands of buckets
                try:
                    row = MemberRow.from_json(stored["member"], stored["state"])
                except FormatError:
                    continue
                key = (stored["group_name"][:_NAME_MAX], row.table_id)
                add_progress(found.setdefault(key, {}), row)
        return found

    def _found(self) -> Iterator[tuple[Labels, TableBucket, int]]:
        groups: dict[int, list[tuple[str, dict[TableBucket, Progress]]]] = {}
        for (name, table_id), progress in self._progress.items():
            groups.setdefault(table_id, []).append((name, progress))
        for tablet in self._services.tablets:
            bucket = tablet.bucket
            entry = self._services.catalog.table_by_id(bucket.table_id)
            if entry is None:
                continue
            for name, progress in groups.get(bucket.table_id, ()):
                position = progress[bucket].offset if bucket in progress else tablet.start_offset
                yield (("group", name), *entry.labels), bucket, max(0, tablet.high_watermark - max(0, position))

    def _lags(self) -> Iterator[tuple[Labels, float]]:
        sums: dict[Labels, int] = {}
        for labels, _, lag in self._found():
            sums[labels] = sums.get(labels, 0) + lag
        return iter(list(sums.items())[:_SERIES_MAX])

    def _bucket_lags(self) -> Iterator[tuple[Labels, float]]:
        found = list(self._found())
        for labels, bucket, lag in found if len(found) <= _SERIES_MAX else ():
            where = () if bucket.partition_id is None else (("partition", str(bucket.partition_id)),)
            yield (*labels, *where, ("bucket", str(bucket.bucket_id))), lag
