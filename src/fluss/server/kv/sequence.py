# SPDX-License-Identifier: Apache-2.0
"""Values of auto-increment columns: unique in their table, growing in each bucket."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from fluss.errors import KvStorageError, UnknownServerError

_FILE_NAME = "auto-increment"


class BlockSource:
    """Hands out blocks of numbers of one table. A block is on disk before its first number is used."""

    def __init__(self, table_folder: Path, block_size: int) -> None:
        self._path = table_folder / _FILE_NAME
        self._block_size = block_size
        self._lock = threading.Lock()

    def take(self) -> tuple[int, int]:
        """The first and the last number of a new block."""
        with self._lock:
            try:
                first = int(self._path.read_text()) if self._path.exists() else 1
                last = first + self._block_size - 1
                temporary = self._path.with_suffix(".new")
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with open(temporary, "w") as file:
                    file.write(str(last + 1))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self._path)
            except (OSError, ValueError) as error:
                raise KvStorageError(f"cannot reserve auto-increment numbers in '{self._path}': {error}") from None
        return first, last


class Sequence:
    """The numbers of one bucket; only one write at a time draws from it."""

    def __init__(self, source: BlockSource, largest: int, column: str) -> None:
        self._source = source
        self._largest = largest
        self._column = column
        self._next, self._last = 1, 0

    def __call__(self) -> int:
        if self._next > self._last:
            self._next, self._last = self._source.take()
        number = self._next
        if number > self._largest:
            raise UnknownServerError(f"the auto-increment column '{self._column}' has run out of numbers")
        self._next += 1
        return number
