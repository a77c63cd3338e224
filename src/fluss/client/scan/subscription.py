# SPDX-License-Identifier: Apache-2.0
"""What a fetcher keeps of each bucket, and the limits it works within."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fluss.client.scan.records import RecordBatch
from fluss.errors import (
    DeadlineExceededError,
    FencedLeaderEpochError,
    FlussError,
    InvalidCoordinatorError,
    KvStorageError,
    LogStorageError,
    NetworkError,
    StorageError,
    UnknownServerError,
)
from fluss.metadata import TableBucket

if TYPE_CHECKING:
    from fluss.metadata import TablePath

# Seen while a bucket moves to another server, or a disk or the network hiccups: the scan goes on by itself.
PASSING_ERRORS = (
    DeadlineExceededError,
    FencedLeaderEpochError,
    InvalidCoordinatorError,
    KvStorageError,
    LogStorageError,
    NetworkError,
    StorageError,
    UnknownServerError,
)

Waiting: TypeAlias = asyncio.Future[RecordBatch | None] | Callable[[], RecordBatch | None]
"""A batch that a thread decodes, or what decodes it when it is taken."""


class Queued(NamedTuple):
    """A batch that was fetched and not taken out yet."""

    waiting: Waiting
    next_offset: int
    """The offset after the batch."""
    size_bytes: int
    """As it came over the network."""
    ahead_bytes: int
    """What it says to decompress to, if a thread decodes it before it is taken."""


@dataclass(frozen=True)
class FetchOptions:
    """Limits that differ between scans of one connection."""

    max_bytes_for_bucket: int
    buffered_bytes_for_bucket: int
    patience_ms: float = 60_000
    """How long a bucket may fail with retriable errors before the last one is raised."""
    pause_s: Callable[[], float] = lambda: 0.0
    """Returns how long to wait before a bucket that was read to its end is asked for again: longer pauses make fewer
    requests with more rows."""


class Subscription:
    """One bucket of a scan."""

    def __init__(self, bucket: TableBucket, start_offset: int, stop_offset: int | None = None) -> None:
        self.bucket = bucket
        self.position = start_offset
        """The next offset to hand out."""
        self.fetch_offset = start_offset
        """The next offset to ask for."""
        self.stop_offset = stop_offset
        self.high_watermark: int | None = None
        self.queue: deque[Queued] = deque()
        self.buffered_bytes = 0
        self.not_before = 0.0
        self.failures = 0
        self.warned = False
        """Whether a warning about these failures was logged."""
        self.failing_since = 0.0
        self.error: FlussError | None = None
        """What the next poll raises."""
        self.last_error: FlussError | None = None
        """Why the last fetch failed that did."""
        self.remote: asyncio.Task[None] | None = None
        self.remote_offset: int | None = None
        """Where the next batch of the remote log must begin; None before the first one."""
        self.stalled: tuple[int, float] | None = None
        """The offset at which a bounded read goes on no further, and since when."""

    @property
    def fetched_all(self) -> bool:
        return self.stop_offset is not None and self.fetch_offset >= self.stop_offset

    @property
    def is_ready(self) -> bool:
        """Whether the next batch can be taken out without waiting for it."""
        if not self.queue:
            return False
        waiting = self.queue[0].waiting
        return not isinstance(waiting, asyncio.Future) or waiting.done()

    @property
    def has_news(self) -> bool:
        """Whether there is a batch or an error to hand out."""
        return bool(self.queue) or self.error is not None

    @property
    def done(self) -> bool:
        return self.fetched_all and not self.queue

    def check_progress(self, now: float, patience_ms: float, path: TablePath) -> bool:
        """Note an answer without progress; whether `error` says that a read up to `stop_offset` would wait for ever.

        The end of the log may lie before that offset: the server lost rows, or named a wrong end.
        """
        if self.stop_offset is None:
            return False
        if self.stalled is None or self.stalled[0] != self.fetch_offset:
            self.stalled = self.fetch_offset, now
        if (now - self.stalled[1]) * 1000 <= patience_ms:
            return False
        self.stalled = None
        end = "" if self.high_watermark is None else f" The server says that the log ends at {self.high_watermark}."
        self.error = DeadlineExceededError(
            f"Reading {self.bucket} of table '{path}' up to offset {self.stop_offset} came to offset "
            f"{self.fetch_offset} and no further within {patience_ms:.0f} ms.{end} Read up to an offset in the log."
        )
        return True
