# SPDX-License-Identifier: Apache-2.0
"""What the handlers of the log ask of the key-value state of primary-key tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fluss.metadata import TableBucket

if TYPE_CHECKING:
    from fluss.server.catalog import TableEntry

Buffer = bytes | bytearray | memoryview


class KvService(Protocol):
    async def limit_scan(self, entry: TableEntry, bucket: TableBucket, limit: int) -> Sequence[Buffer]:
        """The first rows of a bucket in key order, as the parts of a value batch."""
        ...

    async def row_count(self, entry: TableEntry, bucket: TableBucket) -> int:
        """The number of live keys."""
        ...
