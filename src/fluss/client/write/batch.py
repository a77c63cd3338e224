# SPDX-License-Identifier: Apache-2.0
"""Batches on their way: pieces of rows that grow together, and the sealed batch that is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fluss.client.write.handle import Positions, Ticket
from fluss.errors import FlussError
from fluss.metadata import TableBucket
from fluss.net.deadline import Deadline

Parts = list[Any]
Seal = Callable[[int, int], Parts]
"""Header last: (writer id, batch sequence) to the bytes of the batch, as parts."""


class Piece(Protocol):
    """Some rows for one bucket."""

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def is_encoded(self) -> bool:
        """Whether a batch of this piece alone takes no time to encode."""
        ...


class Encoder(Protocol):
    """Turns the pieces of one batch into bytes. Called in a worker thread."""

    def __call__(self, pieces: Sequence[Any]) -> tuple[Seal, int]:
        """The sealing function and the size of the encoded rows."""
        ...


@dataclass(frozen=True)
class Share:
    """The part a ticket has in a batch."""

    ticket: Ticket
    rows: int
    positions: Positions | None = None


@dataclass
class OpenBatch:
    """Pieces for one bucket that still grow until the batch is large or old enough."""

    pieces: list[Any] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    reserved_bytes: int = 0

    def add(self, piece: Piece, share: Share, reserved_bytes: int) -> None:
        self.pieces.append(piece)
        self.shares.append(share)
        self.rows += piece.rows
        self.size_bytes += piece.size_bytes
        self.reserved_bytes += reserved_bytes


class WriteBatch:
    """A sealed batch: encoded once, sent until it is acknowledged, refused or too old."""

    __slots__ = (
        "attempts",
        "bucket",
        "deadline",
        "encoder",
        "failures",
        "in_thread",
        "maybe_written",
        "misfit",
        "on_done",
        "order",
        "pieces",
        "reserved_bytes",
        "rows",
        "seal",
        "sequence",
        "shares",
        "size_bytes",
        "writer_id",
    )

    def __init__(
        self, opened: OpenBatch, encoder: Encoder, order: int, timeout_ms: float, on_done: Callable[..., None]
    ) -> None:
        self.pieces = opened.pieces
        self.shares = opened.shares
        self.rows = opened.rows
        self.size_bytes = opened.size_bytes
        self.reserved_bytes = opened.reserved_bytes
        self.encoder = encoder
        self.order = order
        self.deadline = Deadline(timeout_ms)
        self.on_done = on_done
        self.seal: Seal | None = None
        if len(self.pieces) == 1 and self.pieces[0].is_encoded:
            self.encode()
        self.in_thread = False
        """Whether a thread was asked to encode it."""
        self.misfit: Exception | None = None
        """Why it cannot be encoded."""
        self.attempts = 0
        """How often it was sent."""
        self.failures = 0
        """How often it could not be sent, or was not acknowledged."""
        self.bucket: TableBucket | None = None
        """Where it was last sent to."""
        self.maybe_written = False
        self.writer_id = -1
        self.sequence = -1

    def encode(self) -> None:
        seal, self.size_bytes = self.encoder(self.pieces)
        self.pieces = []
        self.seal = seal  # last: the loop looks at it while a thread is here

    def settle(self, error: FlussError | None) -> None:
        settle_shares(self.shares, error)
        self.shares = []
        self.seal = None
        self.pieces = []


def settle_shares(shares: Sequence[Share], error: FlussError | None) -> None:
    """Tell the tickets what became of their parts."""
    for share in shares:
        share.ticket.settle(share.rows, share.positions, error)
