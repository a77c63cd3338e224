# SPDX-License-Identifier: Apache-2.0
"""A few hand-written frames, enough to ask a server who is there.

Deliberately not the package's own codec: readiness of the real cluster must not depend on the code under test.
"""

from __future__ import annotations

import socket
import struct

GET_METADATA = 1012
_FRAME_BYTES_MAX = 64 * 1024 * 1024


def call(address: str, api_key: int, body: bytes, *, version: int = 0, timeout_s: float = 5.0) -> bytes:
    """Sends one request on a fresh connection and returns the body of its success response."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">ihhi", 8 + len(body), api_key, version, 0) + body)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        if not 5 <= size <= _FRAME_BYTES_MAX:
            raise ConnectionError(f"{address} answered with a frame of {size} bytes")
        frame = _exactly(connection, size)
    if frame[0] != 0:
        raise ConnectionError(f"{address} answered with an error frame: {frame[5:]!r}")
    return frame[5:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 16))
        if not part:
            raise ConnectionError("the server closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The top-level fields of a protobuf message, in order: (number, varint or bytes)."""
    found: list[tuple[int, int | bytes]] = []
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, position = _varint(data, position)
        elif kind == 2:
            size, position = _varint(data, position)
            value, position = data[position : position + size], position + size
        else:
            raise ValueError(f"unexpected wire type {kind}")
        found.append((tag >> 3, value))
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def servers(address: str) -> tuple[int, list[int]]:
    """(number of coordinators, ids of the tablet servers) as an empty GetMetadata lists them."""
    coordinators = 0
    tablets = []
    for number, value in fields(call(address, GET_METADATA, b"")):
        if number == 1:
            coordinators += 1
        elif number == 2 and isinstance(value, bytes):
            tablets.extend(node_id for n, node_id in fields(value) if n == 1 and isinstance(node_id, int))
    return coordinators, tablets
