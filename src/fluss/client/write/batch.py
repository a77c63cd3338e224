# SPDX-License-Identifier: Apache-2.0
"""Batches: the builder that rows of one bucket are added to, the sealed batch that is sent, and how large it grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fluss.client.write.handle import Positions, Ticket
from fluss.errors import FlussError
from fluss.metadata import TableBucket
from fluss.net.deadline import Deadline

Parts = list[Any]
Seal = Callable[[int, int], Parts]
"""Makes the bytes of an encoded batch, as parts, from writer id and batch sequence: the header is made last."""


class BucketRows(Protocol):
    """The converted rows of one chunk that go to one bucket."""

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def is_encoded(self) -> bool:
        """Whether a batch of these rows alone takes no time to encode."""
        ...


class RouteKey(NamedTuple):
    """The bucket that rows go to."""

    partition_name: str | None
    bucket_id: int
    routing_count: int | None
    """The number of buckets by which the rows chose theirs; None if any bucket would do."""


RoutedRows = tuple[RouteKey, BucketRows, "Positions | None"]


class Encoder(Protocol):
    """Turns the rows of one batch into bytes. Called in a worker thread."""

    def __call__(self, contents: Sequence[Any]) -> tuple[Seal, int]:
        """Return the sealing function and the size of the encoded rows."""
        ...


@dataclass(frozen=True)
class ChunkShare:
    """The rows of one chunk in a batch, for the ticket of the chunk."""

    ticket: Ticket
    rows: int
    positions: Positions | None = None


@dataclass
class BatchBuilder:
    """Rows for one bucket that are added to until the batch is large or old enough to be sealed."""

    contents: list[Any] = field(default_factory=list)
    shares: list[ChunkShare] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    is_overdue: bool = False
    """Whether the rows have waited long enough, and are sent when the server has time for them."""

    def add(self, part: BucketRows, share: ChunkShare) -> None:
        self.contents.append(part)
        self.shares.append(share)
        self.rows += part.rows
        self.size_bytes += part.size_bytes


class WriteBatch:
    """A sealed batch: encoded once, sent until it is acknowledged, refused or too old."""

    def __init__(
        self,
        builder: BatchBuilder,
        encoder: Encoder,
        order: int,
        timeout_ms: float,
        on_done: Callable[..., None],
        routing_count: int | None = None,
    ) -> None:
        self.contents = builder.contents
        self.shares = builder.shares
        self.rows = builder.rows
        self.size_bytes = builder.size_bytes
        self.reserved_bytes = builder.size_bytes
        self.encoder = encoder
        self.routing_count = routing_count
        """The number of buckets by which the rows chose theirs; None if any bucket would do."""
        self.order = order
        self.deadline = Deadline(timeout_ms)
        self.on_done = on_done
        self.seal: Seal | None = None
        if len(self.contents) == 1 and self.contents[0].is_encoded:
            self.encode()
        self.in_thread = False
        """Whether a thread was asked to encode it."""
        self.encode_error: Exception | None = None
        """Why it cannot be encoded."""
        self.attempts = 0
        """How often it was sent."""
        self.failures = 0
        """How often it could not be sent, or was not acknowledged."""
        self.refusal: FlussError | None = None
        """Why it was not acknowledged, when there was an answer or a lost connection and not only silence."""
        self.bucket: TableBucket | None = None
        """Where it was last sent to."""
        self.maybe_written = False
        self.writer_id = -1
        self.sequence = -1

    def encode(self) -> None:
        seal, self.size_bytes = self.encoder(self.contents)
        self.contents = []
        self.seal = seal  # last: the event loop reads it while a thread encodes

    def complete(self, error: FlussError | None) -> None:
        complete_shares(self.shares, error)
        self.shares = []
        self.seal = None
        self.contents = []


def complete_shares(shares: Sequence[ChunkShare], error: FlussError | None) -> None:
    """Complete the shares of the tickets with the outcome of their rows."""
    for share in shares:
        share.ticket.complete(share.rows, share.positions, error)


_FULL = 0.8
_SPARSE = 0.5
_SHRINK = 0.95
_GROW = 2.0


class BatchSizer:
    """The size at which a batch is complete: between a minimum and `writer.batch-size`, fitted to what was seen.

    A table that gets few rows sends its batches when their time is up, half empty; then a smaller size loses nothing,
    and keeps a sudden burst from sitting in one large batch until that is full. Full batches are the sign that there is
    much to send, so that the size grows fast and shrinks slowly.
    """

    def __init__(self, size_max: int, size_min: int, *, enabled: bool) -> None:
        self.size_max = size_max
        self.size_min = min(size_min, size_max)
        self.enabled = enabled
        self._target = float(size_max)

    @property
    def target(self) -> int:
        """Bytes at which a batch is complete."""
        return int(self._target)

    def sealed(self, size_bytes: int) -> None:
        """A batch left with `size_bytes`."""
        if not self.enabled:
            return
        if size_bytes >= self._target * _FULL:
            self._target = min(float(self.size_max), self._target * _GROW)
        elif size_bytes < self._target * _SPARSE:
            self._target = max(float(self.size_min), self._target * _SHRINK)
