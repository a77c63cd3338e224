# SPDX-License-Identifier: Apache-2.0
"""Cursors over the rows of a bucket: a client reads them step by step while writes go on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

from fluss.errors import InvalidScanRequestError, ScannerExpiredError, TooManyScannersError, UnknownScannerIdError
from fluss.metadata import TableBucket
from fluss.records import encode_values, value_batch_header
from fluss.server.auth import Principal
from fluss.server.config import ServerConfig
from fluss.server.kv.ordered import Values
from fluss.server.kv.tablet import KvTablet
from fluss.server.quotas import USER_SHARE
from fluss.server.scheduler import TimeSlice

Buffer = bytes | memoryview

_EXPIRED_REMEMBERED = 1_000
_VALUE_OVERHEAD_BYTES = 4
_VIEW_BYTES_PER_ROW = 100
_VALUES_PER_STEP = 2_000


@dataclass
class Cursor:
    """One scan of one bucket."""

    tablet: KvTablet
    parts: Values
    rows_left: int | None
    used_at: float
    log_offset: int = 0
    """Of the state that is read. Cursors of one bucket and offset share the memory of their view."""
    row_count: int = 0
    """Rows that the view keeps in memory."""
    owner: Hashable = None
    """The user who opened it, or the address where users are not known."""
    next_call: int = 1
    ended: bool = False
    _ahead: list[bytes] = field(default_factory=list)
    """Values that were taken out of `parts` and not given out yet."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a call: one that comes before the answer to the one before has to wait."""
    scanner_id: bytes = field(default_factory=lambda: os.urandom(16))

    @property
    def bucket(self) -> TableBucket:
        return self.tablet.log.bucket

    async def read(self, size_max: int, time_slice: TimeSlice) -> list[Buffer]:
        """The next values, at least one, up to about `size_max` bytes, as the parts of a value batch.

        Nothing when no value is left. Read and encoded in slices.
        """
        parts: list[Buffer] = [b""]
        size = count = 0
        while self.has_more:
            values, self._ahead = self._ahead, []
            encoded = encode_values(values)
            if size + len(encoded) > size_max:
                fitting = _fitting(values, size_max - size, at_least=0 if count else 1)
                values, self._ahead = values[:fitting], values[fitting:]
                encoded = encode_values(values)
            parts.append(encoded)
            size += len(encoded)
            count += len(values)
            if self._ahead:
                break
            if time_slice.is_over:
                await time_slice.next()
        parts[0] = value_batch_header(count, size)
        return parts if count else []

    @property
    def has_more(self) -> bool:
        """Whether another value follows; looks ahead."""
        if not self._ahead and self.rows_left != 0:
            self._ahead = next(self.parts, [])
            if self.rows_left is not None:
                self._ahead = self._ahead[: self.rows_left]
                self.rows_left -= len(self._ahead)
        return bool(self._ahead)


def _fitting(values: Sequence[bytes], size_max: int, at_least: int) -> int:
    """How many of the values fit into so many bytes."""
    size = 0
    for number, value in enumerate(values):
        size += len(value) + _VALUE_OVERHEAD_BYTES
        if size > size_max and number >= at_least:
            return number
    return len(values)


def _check_count(cursors: Collection[Cursor], limit: int, owner: Hashable, what: str) -> None:
    if len(cursors) >= limit:
        raise TooManyScannersError(f"{what} has {len(cursors)} open scans, its limit")
    share = max(1, int(limit * USER_SHARE))
    if isinstance(owner, Principal) and sum(cursor.owner == owner for cursor in cursors) >= share:
        raise TooManyScannersError(
            f"{owner} has {share} of the {limit} scans that {what} may have, the limit of a user. End some, or wait."
        )


class Cursors:
    """All open cursors of a server."""

    def __init__(self, config: ServerConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = config.integer("kv.scanner.ttl") / 1000
        self._per_bucket_max = config.integer("kv.scanner.max-per-bucket")
        self._total_max = config.integer("kv.scanner.max-per-server")
        self.batch_bytes_max = config.integer("kv.scanner.max-batch-size")
        self._memory_bytes_max = config.integer("kv.memory-size")
        self._now = now
        self._cursors: dict[bytes, Cursor] = {}
        self._expired: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._cursors)

    @property
    def memory_bytes(self) -> int:
        """What the views of all cursors take beside the rows themselves."""
        views = {(cursor.bucket, cursor.log_offset): cursor.row_count for cursor in self._cursors.values()}
        return sum(views.values()) * _VIEW_BYTES_PER_ROW

    def held_by(self, owner: Hashable) -> int:
        return sum(cursor.owner == owner for cursor in self._cursors.values())

    def check_room(self, bucket: TableBucket, owner: Hashable = None) -> None:
        """Refuse a further scan when there are too many, too many of one user, or their views take too much memory."""
        self.expire()
        if self.memory_bytes >= self._memory_bytes_max:
            raise TooManyScannersError(
                f"the open scans take {self.memory_bytes} bytes of memory, the limit (option 'kv.memory-size')"
            )
        _check_count(self._cursors.values(), self._total_max, owner, "the server")
        of_bucket = [cursor for cursor in self._cursors.values() if cursor.bucket == bucket]
        _check_count(of_bucket, self._per_bucket_max, owner, str(bucket))

    def open(
        self,
        tablet: KvTablet,
        parts: Values,
        limit: int | None,
        log_offset: int = 0,
        row_count: int = 0,
        owner: Hashable = None,
    ) -> Cursor:
        """A new cursor over a view of `row_count` rows in memory, taken at `log_offset`."""
        self.check_room(tablet.log.bucket, owner)
        cursor = Cursor(tablet, parts, limit, self._now(), log_offset, row_count, owner)
        self._cursors[cursor.scanner_id] = cursor
        return cursor

    def resume(self, scanner_id: bytes, call_number: int) -> Cursor:
        """The cursor for its next call."""
        self.expire()
        cursor = self._cursors.get(scanner_id)
        if cursor is None:
            if scanner_id in self._expired:
                raise ScannerExpiredError("the scan was idle for too long and has ended; begin it again")
            raise UnknownScannerIdError("there is no such scan on this server")
        if call_number != cursor.next_call:
            raise InvalidScanRequestError(f"call {call_number} of the scan came, but {cursor.next_call} is next")
        cursor.next_call += 1
        cursor.used_at = self._now()
        return cursor

    def renew(self, cursor: Cursor) -> None:
        """Restart its idle time."""
        cursor.used_at = self._now()

    def end(self, scanner_id: bytes) -> None:
        cursor = self._cursors.pop(scanner_id, None)
        if cursor is not None:
            cursor.ended = True

    def drop(self, bucket: TableBucket) -> None:
        for cursor in [cursor for cursor in self._cursors.values() if cursor.bucket == bucket]:
            self.end(cursor.scanner_id)

    def expire(self) -> None:
        oldest = self._now() - self._ttl_s
        for cursor in [cursor for cursor in self._cursors.values() if cursor.used_at < oldest]:
            self.end(cursor.scanner_id)
            self._expired[cursor.scanner_id] = None
        while len(self._expired) > _EXPIRED_REMEMBERED:
            self._expired.pop(next(iter(self._expired)))

    def close(self) -> None:
        self._cursors.clear()


async def encode_values_in_slices(values: Sequence[bytes], time_slice: TimeSlice) -> list[Buffer]:
    """A value batch as parts; many values are encoded in slices."""
    parts: list[Buffer] = [b""]
    size_bytes = 0
    for at in range(0, len(values), _VALUES_PER_STEP):
        parts.append(encode_values(values[at : at + _VALUES_PER_STEP]))
        size_bytes += len(parts[-1])
        if time_slice.is_over:
            await time_slice.next()
    parts[0] = value_batch_header(len(values), size_bytes)
    return parts
