# SPDX-License-Identifier: Apache-2.0
"""A cursor over the bytes of one row that never leaves them."""

from __future__ import annotations

import struct
from typing import Any

from fluss.errors import FormatError
from fluss.rows.varint import read_varint32, read_varint64


class Reader:
    """Reads values one after another; every error says where."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        self.pos = 0
        self.end = len(self.data)

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes."""
        start = self.pos
        if not 0 <= count <= self.end - start:
            raise FormatError(f"{count} bytes wanted at byte {start}, but the data ends at byte {self.end}")
        self.pos = start + count
        return self.data[start : self.pos]

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def unpack(self, layout: struct.Struct) -> Any:
        """The next value of a one-field layout."""
        return layout.unpack(self.take(layout.size))[0]

    def varint32(self) -> int:
        """The next signed 32-bit varint."""
        pos = self.pos
        if pos < self.end and (byte := self.data[pos]) < 0x80:  # as most lengths are
            self.pos = pos + 1
            return byte
        value, self.pos = read_varint32(self.data, self.pos, self.end)
        return value

    def varint64(self) -> int:
        """The next signed 64-bit varint."""
        pos = self.pos
        if pos < self.end and (byte := self.data[pos]) < 0x80:  # as most lengths are
            self.pos = pos + 1
            return byte
        value, self.pos = read_varint64(self.data, self.pos, self.end)
        return value

    def sized(self) -> memoryview:
        """The bytes behind a varint length."""
        return self.take(self.varint32())

    def finish(self) -> None:
        """Nothing may be left over."""
        if self.pos != self.end:
            raise FormatError(f"{self.end - self.pos} unexpected bytes from byte {self.pos} on")
