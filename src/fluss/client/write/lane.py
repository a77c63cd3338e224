# SPDX-License-Identifier: Apache-2.0
"""The queue of one bucket, and what all queues of a writer have in common."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from fluss.client.write.batch import WriteBatch
from fluss.metadata import TableBucket, TablePath


@dataclass(frozen=True)
class Target:
    """Where batches of one writer go, and with which kind of request."""

    table_path: TablePath
    table_id: int
    is_kv: bool
    target_columns: tuple[int, ...] = ()
    agg_mode: int | None = None


class Lane:
    """The queue of one bucket."""

    __slots__ = (
        "bucket",
        "bucket_id",
        "failures",
        "given_up_id",
        "in_flight",
        "next_sequence",
        "not_before",
        "numbered_for",
        "partition_name",
        "queue",
        "refused",
        "running",
        "silent",
        "target",
        "task",
        "writer_id",
    )

    def __init__(self, target: Target, partition_name: str | None, bucket_id: int) -> None:
        self.target = target
        self.partition_name = partition_name
        self.bucket_id = bucket_id
        self.bucket: TableBucket | None = (
            None if partition_name is not None else TableBucket(target.table_id, bucket_id)
        )
        self.queue: deque[WriteBatch] = deque()
        self.in_flight: list[WriteBatch] = []
        self.silent = False
        self.failures = 0
        """How often in a row it fell silent, since the last batch that was acknowledged."""
        self.writer_id: int | None = None
        self.given_up_id: int | None = None
        """The writer id that this lane used last and will not use again."""
        self.next_sequence = 0
        self.numbered_for = self.bucket
        """The bucket that knows the numbers. A partition that is dropped and created again is another one."""
        self.refused: tuple[int, int] | None = None
        """Writer id and sequence of the last batch that the server refused for good."""
        self.not_before = 0.0
        """When the server can take more, by the loop's clock."""
        self.running = False
        """Whether somebody sends what is in the queue."""
        self.task: asyncio.Task[None] | None = None
        """Who does, if there was something to wait for."""

    def __str__(self) -> str:
        where = f"{self.target.table_path} bucket {self.bucket_id}"
        return where if self.partition_name is None else f"{where} of partition {self.partition_name}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return not (self.queue or self.in_flight)

    def put_back(self, batch: WriteBatch) -> None:
        self.queue = deque(sorted([batch, *self.queue], key=lambda b: b.order))
        self.fall_silent()

    def fall_silent(self) -> None:
        """Send nothing until everything under way has come back, and then a pause has passed."""
        if not self.silent:
            self.silent = True
            self.failures += 1

    def give_up_id(self) -> None:
        """Nothing more is sent under the present writer id."""
        if self.writer_id is not None:
            self.given_up_id, self.writer_id = self.writer_id, None
