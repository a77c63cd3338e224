# SPDX-License-Identifier: Apache-2.0
"""The sender that all writers of a connection share, made on demand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fluss.client.cluster import Cluster
from fluss.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fluss.client.write import Sender

OnWriterId = Callable[[int], Awaitable[None] | None]
"""Called with each new writer id: an asynchronous function, which is awaited, or a plain one."""


class Senders:
    """Makes the sender that all writers of a connection share, when the first of them is created.

    Programs that only read do without its modules.

    All calls are made on the loop of the connection.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sender: Sender | None = None
        self._on_writer_id: OnWriterId | None = None

    def get(self) -> Sender:
        if self._sender is None:
            from fluss.client.write import Sender

            self._sender = Sender(self._cluster, self._cluster.config)
            self._sender.on_writer_id = self._on_writer_id
            self._cluster.attach(self._sender)
        return self._sender

    def on_writer_id(self, callback: OnWriterId) -> None:
        if not callable(callback):
            given = f"{type(callback).__name__} {callback!r:.80}"
            raise InvalidArgumentError(f"on_writer_id(): callback must be a function of a writer id, got {given}")
        self._on_writer_id = callback
        if self._sender is not None:
            self._sender.on_writer_id = callback
