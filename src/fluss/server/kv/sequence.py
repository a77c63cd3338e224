# SPDX-License-Identifier: Apache-2.0
"""Values of auto-increment columns: unique in their table, growing in each bucket."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from fluss.errors import KvStorageError, UnknownServerError
from fluss.server import disk

FILE_NAME = "auto-increment"

InThread = Callable[["Callable[[], int | None]"], "Awaitable[int | None]"]
"""Runs work that reads a file."""


class Block(NamedTuple):
    """Numbers that belong to one bucket."""

    first: int
    last: int


class BlockSource:
    """Hands out blocks of numbers of one table. A block is on disk before its first number is used.

    The file may be an older copy, or missing, when an operator put the data folder back. It is known to be where a
    bucket has used numbers that are free by the file; then blocks begin behind the numbers of all rows of the table.
    An older copy that gives out numbers of other buckets before one of them shows it is not noticed.

    Args:
        highest_used: Returns the largest number that the rows of the table ever had.
    """

    def __init__(
        self,
        table_folder: Path,
        block_size: Callable[[], int],
        is_there: Callable[[str], bool] = lambda _: True,
        highest_used: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._path = table_folder / FILE_NAME
        self._block_size = block_size
        self._is_there = is_there
        """Returns whether the partition of a bucket was not dropped. Called in threads."""
        self._highest_used = highest_used
        self._least = 1
        self._lock = threading.Lock()

    async def check(self, highest_used: int, in_thread: InThread) -> None:
        """Compare the file with the largest number of one bucket, before the bucket draws from it."""
        free = await in_thread(self._free)
        if self._highest_used is not None and (free is None or highest_used >= max(free, self._least)):
            self._least = max(self._least, await self._highest_used() + 1)

    def _free(self) -> int | None:
        """The next number that is free by the file; None when it is missing."""
        with self._lock:
            free, known = self._read()
        return free if known else None

    def current(self, bucket: str) -> Block | None:
        """The newest block of a bucket, if it has one."""
        with self._lock:
            return self._read()[1].get(bucket)

    def take(self, bucket: str, least: int = 1) -> Block:
        """A new block for a bucket, whose numbers below `least` are known to be used."""
        with self._lock:
            free, known = self._read()
            first = max(free, least, self._least)
            blocks = {name: block for name, block in known.items() if self._is_there(name)}
            blocks[bucket] = block = Block(first, first + self._block_size() - 1)
            body = json.dumps({"next": block.last + 1, "blocks": blocks}).encode()
            try:
                # From the folder of all tables on, which is durable from the start: database, then table.
                disk.make_folders_durably(self._path.parent, self._path.parents[2])
                disk.write_atomically(self._path, disk.seal(body))
                disk.sync_folder(self._path.parent)
            except OSError as error:
                raise KvStorageError(f"cannot reserve auto-increment numbers in '{self._path}': {error}") from None
        return block

    def _read(self) -> tuple[int, dict[str, Block]]:
        """The next number of the table that is free, and the blocks of the buckets."""
        try:
            data = disk.read_file(self._path)
        except FileNotFoundError:
            return 1, {}
        except OSError as error:
            raise KvStorageError(f"cannot read '{self._path}': {error}") from None
        try:
            document = json.loads(disk.unseal(data))
            return int(document["next"]), {name: Block(*pair) for name, pair in document["blocks"].items()}
        except (ValueError, KeyError, TypeError) as error:
            # Not a code that clients retry: numbers given out twice would be worse than none.
            raise UnknownServerError(
                f"the numbers of an auto-increment column are unknown: '{self._path}' is damaged ({error}). "
                "Restore the file from a copy, or drop the table."
            ) from None


class NumberSequence:
    """The numbers of one bucket; only one write at a time draws from it."""

    def __init__(self, source: BlockSource, bucket: str, largest: int, column: str) -> None:
        self._source = source
        self._bucket = bucket
        self._largest = largest
        self._column = column
        self._next, self._last = 1, 0
        self._highest_used: int | None = None
        self._is_checked = False

    @property
    def last(self) -> int:
        """The last number of the present block."""
        return self._last

    def resume(self, highest_used: int) -> None:
        """After a start: go on behind the largest number that the bucket's rows ever had.

        The block is read when the first number is drawn: damage to it is no reason to refuse reads.
        """
        self._highest_used = highest_used

    async def check(self, in_thread: InThread) -> None:
        """Compare the file with what `resume` was given, once; before the first number is drawn."""
        if not self._is_checked:
            await self._source.check(self._highest_used or 0, in_thread)
            self._is_checked = True

    def _resume(self, highest_used: int) -> None:
        if not self._last:
            first, self._last = self._source.current(self._bucket) or (1, 0)
            self._next = max(first, highest_used + 1)
        self._highest_used = None

    def __call__(self) -> int:
        if self._highest_used is not None:
            self._resume(self._highest_used)
        if self._next > self._last:
            self._next, self._last = self._source.take(self._bucket, self._next)
        number = self._next
        if number > self._largest:
            raise UnknownServerError(
                f"the auto-increment column '{self._column}' has run out of numbers: {self._largest} is its last"
            )
        self._next += 1
        return number
