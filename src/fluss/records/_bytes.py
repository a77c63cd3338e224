# SPDX-License-Identifier: Apache-2.0
"""What every codec of this room shares: parts, checksums, and the way bad bytes are reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

import crc32c

from fluss.errors import FormatError

Part: TypeAlias = bytes | bytearray | memoryview
"""One stretch of a message. Messages travel as lists of parts, so that a payload is never copied to get a header."""

INT32_MAX = 2**31 - 1


def as_view(data: Any) -> memoryview:
    """The bytes behind any buffer (bytes, memoryview, numpy array, Arrow buffer), as a flat view without a copy."""
    view = memoryview(data)
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


def checksum(parts: Iterable[Part], value: int = 0) -> int:
    """CRC-32C over parts, continuing from the checksum `value` of the bytes before them."""
    for part in parts:
        value = crc32c.crc32c(part, value)
    return value


def parts_size(parts: Iterable[Part]) -> int:
    """How many bytes the parts hold together."""
    return sum(len(part) for part in parts)


def malformed(what: str, field: str, position: int, problem: str) -> NoReturn:
    """Refuse bytes: `what` is the thing being read, `position` counts from its first byte."""
    raise FormatError(f"malformed {what}: {field} at byte {position}: {problem}")
