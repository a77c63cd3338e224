# SPDX-License-Identifier: Apache-2.0
"""The partitions that rows are written to: found, or created, before rows are spread over their buckets."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fluss.client.fanout import run_all
from fluss.client.metadata_cache import check_table_id
from fluss.client.requests import pb_path
from fluss.errors import ConnectionClosedError, FlussError
from fluss.metadata import TableInfo, TablePath
from fluss.net.background import RunningLoop, running_loop
from fluss.net.deadline import Deadline
from fluss.protocol import apis, messages

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster
    from fluss.client.metadata_cache import PartitionState

_ATTEMPTS = 3


async def find_or_create(
    cluster: Cluster, path: TablePath, table_id: int, name: str, deadline: Deadline, *, create: bool
) -> PartitionState | None:
    """Find a partition; None if there is none and it may not be created."""
    partition = await cluster.partition(path, name, deadline=deadline, table_id=table_id)
    if partition is None and create:
        # Partitions are created by the name of the table, which another table may have by now.
        state = await cluster.table(path, refresh=True, deadline=deadline)
        check_table_id(state, table_id)
        await _create(cluster, state.table_info, name, deadline)
        # Another question may have been in flight before the creation: its answer, shared with us, is old.
        for _ in range(_ATTEMPTS):
            partition = await cluster.partition(path, name, deadline=deadline, table_id=table_id)
            if partition is not None:
                break
    return partition


async def _create(cluster: Cluster, info: TableInfo, name: str, deadline: Deadline) -> None:
    # The field says "if not exists" on the wire and means "if it exists already".
    request = messages.CreatePartitionRequest(table_path=pb_path(info.table_path), ignore_if_not_exists=True)
    for key, value in zip(info.get_partition_keys(), name.split("$"), strict=True):
        request.partition_spec.partition_key_values.add(key=key, value=value)
    await cluster.call_coordinator(apis.CREATE_PARTITION, request, deadline=deadline)


class UnknownPartitions(Exception):
    """Rows cannot be routed on the event loop before these partitions are looked up."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"{len(names)} partitions are not known yet")
        self.names = names


class BucketCounts:
    """How many buckets the partitions of one table have: their own numbers, which may differ from that of the table."""

    def __init__(self, cluster: Cluster, info: TableInfo, timeout_ms: float, *, create: bool) -> None:
        self._cluster = cluster
        self._info = info
        self._timeout_ms = timeout_ms
        self._create = create
        self.missing: frozenset[str] = frozenset()
        """Partitions that were looked up in vain: their rows are routed somehow, and fail when they are sent."""

    def of(self, names: Sequence[str | None]) -> list[int]:
        """Return the numbers for these partitions; [None] stands for a table without partitions.

        In a thread the partitions that are not known yet are waited for; on the event loop `UnknownPartitions` is
        raised for them.
        """
        if names[0] is None:
            return [self._info.num_buckets]
        known = self._known()
        unknown = [name for name in names if name is not None and name not in known and name not in self.missing]
        # Without an epoch the server is of a release whose partitions all have the number of the table.
        if unknown and self._info.bucket_count_epoch is not None:
            if running_loop() is self._cluster.loop:
                raise UnknownPartitions(unknown)
            # What fails here fails again, with a better text, when the rows are sent.
            with contextlib.suppress(RuntimeError, ConnectionClosedError, concurrent.futures.CancelledError):
                RunningLoop(self._cluster.loop).run(self.find(unknown))
            known = self._known()
        table = self._cluster.metadata.tables.get(self._info.table_path)
        count = self._info.num_buckets if table is None else table.num_buckets
        return [known[name].num_buckets if name is not None and name in known else count for name in names]

    def _known(self) -> dict[str, PartitionState]:
        table = self._cluster.metadata.tables.get(self._info.table_path)
        return {} if table is None else table.partitions

    async def find(self, names: Sequence[str]) -> frozenset[str]:
        """Look partitions up, and create them if writers may; return those that were not found."""
        deadline = Deadline(self._timeout_ms)
        path, table_id = self._info.table_path, self._info.table_id

        async def is_missing(name: str) -> bool:
            try:
                found = await find_or_create(self._cluster, path, table_id, name, deadline, create=self._create)
            except FlussError:
                return True
            return found is None

        missing = await run_all(partial(is_missing, name) for name in names)
        return frozenset(itertools.compress(names, missing))
