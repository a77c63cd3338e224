# SPDX-License-Identifier: Apache-2.0
"""Lanes: the ordered queue of batches of one bucket, and the target that all lanes of a writer share."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from fluss.client.write.batch import WriteBatch
from fluss.metadata import TableBucket, TablePath

_LANES_MIN = 1024
_IDLE_S_MAX = 600.0
"""A lane that was not used for so long is evicted, once there are many: partitions come and go."""


@dataclass(frozen=True)
class WriteTarget:
    """Where batches of one writer go, and with which kind of request."""

    table_path: TablePath
    table_id: int
    is_kv: bool
    target_columns: tuple[int, ...] = ()
    agg_mode: int | None = None


class Lane:
    """The ordered queue of batches of one bucket, waiting and in flight."""

    def __init__(self, target: WriteTarget, partition_name: str | None, bucket_id: int) -> None:
        self.target = target
        self.partition_name = partition_name
        self.bucket_id = bucket_id
        self.bucket: TableBucket | None = (
            None if partition_name is not None else TableBucket(target.table_id, bucket_id)
        )
        self.queue: deque[WriteBatch] = deque()
        self.in_flight: list[WriteBatch] = []
        self.backing_off = False
        self.failures = 0
        """How often it backed off since the last batch that was acknowledged."""
        self.failing_since = 0.0
        """When the first of these failures was, by the loop's clock."""
        self.warned = False
        """Whether a warning about them was logged."""
        self.writer_id: int | None = None
        self.retired_writer_id: int | None = None
        """The writer id that this lane used last and will not use again."""
        self.next_sequence = 0
        self.numbered_for = self.bucket
        """The bucket the sequence numbers belong to. A partition created again has other buckets."""
        self.refused: tuple[int, int] | None = None
        """Writer id and sequence of the last batch that the server refused for good."""
        self.not_before = 0.0
        """When the server can take more, by the loop's clock."""
        self.running = False
        """Whether the sender works on the queue."""
        self.task: asyncio.Task[None] | None = None
        """The task that does, if it had to wait for something."""
        self.used_at = 0.0
        """When a batch was last queued, by the loop's clock."""

    def __str__(self) -> str:
        where = f"{self.target.table_path} bucket {self.bucket_id}"
        return where if self.partition_name is None else f"{where} of partition {self.partition_name}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or in flight."""
        return not (self.queue or self.in_flight)

    def requeue(self, batch: WriteBatch) -> None:
        self.queue = deque(sorted([batch, *self.queue], key=lambda b: b.order))
        self.back_off()

    def back_off(self) -> None:
        """Send nothing until all batches in flight are answered, and then for a pause."""
        if not self.backing_off:
            self.backing_off = True
            self.failures += 1

    def retire_writer_id(self) -> None:
        """Send nothing more under the present writer id."""
        if self.writer_id is not None:
            self.retired_writer_id, self.writer_id = self.writer_id, None


class Lanes:
    """The lanes of a connection: in number those in use, not those of all partitions that it ever wrote to."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[WriteTarget, str | None, int], Lane] = {}
        self._many = _LANES_MIN
        self.writer_ids: dict[WriteTarget, int] = {}
        """The newest writer id of each target; its lanes share it, since sequences count per bucket."""

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def find(self, target: WriteTarget, partition_name: str | None, bucket_id: int) -> Lane | None:
        return self._lanes.get((target, partition_name, bucket_id))

    def use(self, target: WriteTarget, partition_name: str | None, bucket_id: int, now: float) -> Lane:
        """Return the lane of a bucket, a new one if there is none."""
        key = (target, partition_name, bucket_id)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= self._many:
                self._remove_unused(now)
            lane = self._lanes[key] = Lane(target, partition_name, bucket_id)
        lane.used_at = now
        return lane

    def _remove_unused(self, now: float) -> None:
        for key, lane in list(self._lanes.items()):
            if lane.is_idle and not lane.running and now - lane.used_at > _IDLE_S_MAX:
                del self._lanes[key]
                # Its sequence is lost: another lane of this bucket would count from 0, under the same id.
                self.writer_ids.pop(lane.target, None)
        self._many = max(_LANES_MIN, 2 * len(self._lanes))


def share_out(entries: list[tuple[Lane, WriteBatch]], size_bytes_max: int) -> Iterator[list[tuple[Lane, WriteBatch]]]:
    """Share batches out among as few requests as can be: one batch per bucket in each, and none beyond the limit.

    The first batches of all lanes travel together, then the second ones: a lane keeps its order.
    """
    rounds: list[list[tuple[Lane, WriteBatch]]] = []
    taken: Counter[Lane] = Counter()
    for lane, batch in entries:
        if taken[lane] == len(rounds):
            rounds.append([])
        rounds[taken[lane]].append((lane, batch))
        taken[lane] += 1
    for batches in rounds:
        first, size = 0, 0
        for at, (_, batch) in enumerate(batches):
            if at > first and size + batch.size_bytes > size_bytes_max:
                yield batches[first:at]
                first, size = at, 0
            size += batch.size_bytes
        yield batches[first:]
