# SPDX-License-Identifier: Apache-2.0
"""What a fetcher keeps of each bucket, and the limits it works within."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fluss.client.scan.decode import Decoded
from fluss.errors import FlussError
from fluss.metadata import TableBucket

Waiting: TypeAlias = asyncio.Future[Decoded | None] | Callable[[], Decoded | None]
"""A batch that a thread decodes, or what decodes it when it is taken."""


@dataclass(frozen=True)
class FetchOptions:
    """Limits of one scan."""

    max_bytes: int
    max_bytes_for_bucket: int
    min_bytes: int
    max_wait_ms: int
    buffered_bytes_for_bucket: int
    request_timeout_ms: int
    buffered_bytes: int = 64 * 1024 * 1024
    """What all buckets together may have waiting."""
    patience_ms: float = 60_000
    """How long a bucket may fail with retriable errors before the last one is raised."""
    remote_prefetch: int = 4
    remote_threads: int = 3
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options and credentials of the reader for the store of remote segments."""
    remote_reads: int = 4
    remote_first: bool = False
    """Whether rows that servers have too are read from the remote log."""


class Subscription:
    """One bucket of a scan."""

    __slots__ = (
        "bucket",
        "buffered_bytes",
        "error",
        "failing_since",
        "failures",
        "fetch_offset",
        "high_watermark",
        "last_error",
        "not_before",
        "position",
        "queue",
        "remote",
        "remote_offset",
        "stop_offset",
        "taken",
        "warned",
    )

    def __init__(self, bucket: TableBucket, start_offset: int, stop_offset: int | None = None) -> None:
        self.bucket = bucket
        self.position = start_offset
        """The next offset to hand out."""
        self.fetch_offset = start_offset
        """The next offset to ask for."""
        self.stop_offset = stop_offset
        self.high_watermark: int | None = None
        self.queue: deque[tuple[Waiting, int, int]] = deque()
        """Batches, the offset after each, and its size."""
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
        self.taken = asyncio.Event()

    @property
    def fetched_all(self) -> bool:
        return self.stop_offset is not None and self.fetch_offset >= self.stop_offset

    @property
    def is_ready(self) -> bool:
        """Whether the next batch can be taken out without waiting for it."""
        if not self.queue:
            return False
        waiting = self.queue[0][0]
        return not isinstance(waiting, asyncio.Future) or waiting.done()

    @property
    def has_news(self) -> bool:
        """Whether there is a batch or an error to hand out."""
        return bool(self.queue) or self.error is not None

    @property
    def done(self) -> bool:
        return self.fetched_all and not self.queue
