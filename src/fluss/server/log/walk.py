# SPDX-License-Identifier: Apache-2.0
"""Walking through the batches of a log file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from fluss.records import HEADER_SIZE_MIN
from fluss.records.log_batch import BatchSpan, NeedMoreBytes, crc_fits, read_span
from fluss.server.log.files import DamagedLogError

__all__ = ["BadBatch", "BatchSpan", "NeedMoreBytes", "crc_fits", "read_span", "read_whole", "walk_file"]


class BadBatch(Exception):
    """The bytes at a position of a file are no batch, or not a whole one."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class ReadableFile(Protocol):
    def read(self, position: int, size_bytes: int) -> memoryview: ...


def walk_file(
    file: ReadableFile,
    position: int,
    end: int,
    window_bytes: int,
    wanted: Callable[[int], bool] | None = None,
    *,
    headers_only: bool = False,
) -> Iterator[tuple[memoryview, BatchSpan, int]]:
    """All batches between two positions: the bytes read, where the batch lies in them, and its position in the file.

    Checksums are left to the caller. Raises BadBatch where the bytes stop being whole batches. `wanted` is asked, with
    its size, whether more has to be read for a batch that goes on beyond what was read; if not, the walk ends. With
    `headers_only`, what was read may lack the end of a batch, which the caller knows to be there.
    """
    while position < end:
        view = _read_window(file, position, min(window_bytes, end - position))
        at = 0
        while at < len(view):
            try:
                span = read_span(view, at, whole=not headers_only)
            except NeedMoreBytes as more:
                if at > 0:
                    if wanted is not None and not wanted(more.size_bytes):
                        return
                    break
                if position + more.size_bytes > end:
                    raise BadBatch(position, "the batch is cut off") from None
                view = read_whole(file, position, more.size_bytes)
                continue
            except ValueError as error:
                raise BadBatch(position + at, str(error)) from None
            if position + span.end > end:
                raise BadBatch(position + at, "the batch is cut off")
            yield view, span, position + at
            at = span.end
        if at == 0:
            raise BadBatch(position, "the file ends before the log does")
        position += at


def read_whole(file: ReadableFile, position: int, size_bytes: int) -> memoryview:
    """Read one batch, or its header. Raises BadBatch when the file ends before that."""
    view = file.read(position, size_bytes)
    if len(view) < size_bytes:
        raise BadBatch(position, "the file ends inside the batch")
    return view


def _read_window(file: ReadableFile, position: int, size_bytes: int) -> memoryview:
    """Read some batches, or the first header if there are bytes behind it that cannot be read.

    A sector that is lost takes the batch with it that it is in, not those before.
    """
    try:
        return file.read(position, size_bytes)
    except DamagedLogError:
        return file.read(position, min(HEADER_SIZE_MIN, size_bytes))
