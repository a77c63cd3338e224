# SPDX-License-Identifier: Apache-2.0
"""Frames: the length-prefixed envelope around every message on a connection.

Nothing here touches a socket. `FrameReader` owns the receive buffers and is driven by the owner of the bytes: an
`asyncio.BufferedProtocol` calls `get_buffer`/`buffer_updated`, a test calls `feed`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from fluss.errors import FormatError
from fluss.protocol import fluss_pb2 as pb

Buffer: TypeAlias = bytes | bytearray | memoryview
Parts: TypeAlias = list[Buffer]

LENGTH_BYTES: Final = 4
REQUEST_HEADER_BYTES: Final = 8  # api key, api version, request id
RESPONSE_HEADER_BYTES: Final = 5  # kind, request id
FRAME_BYTES_MAX: Final = 0x7FFF_FFFF  # the length is a signed int32
ERROR_MESSAGE_CHARS_MAX: Final = 2048
_OTHER_PROTOCOLS = {
    b"HTTP": "the server answers HTTP. Use the port of its Fluss listener",
    b"\x15\x03": "the server uses TLS on this port. Connect with TLS (tls=True, client.security.ssl.enabled)",
    b"SSH-": "this is an SSH server",
    b"\x16\x03": "the client uses TLS, which this listener does not",
    **dict.fromkeys((b"GET ", b"POST", b"HEAD", b"PUT "), "the client speaks HTTP"),
}
"""What a peer speaks that begins with these bytes: read as the length of a frame, they make no sense."""
_ALIGNMENT = 8
_HEAD_BYTES = 1024
_SMALL_PART_BYTES = 4 * 1024
_JOINED_BYTES_MAX = 64 * 1024

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">ihhi")
_REQUEST_HEADER = struct.Struct(">hhi")
_RESPONSE = struct.Struct(">ibi")
_RESPONSE_HEADER = struct.Struct(">bi")
_SERVER_FAILURE = struct.Struct(">ib")


class ResponseKind(IntEnum):
    SUCCESS = 0
    ERROR = 1
    SERVER_FAILURE = 2


class Request(NamedTuple):
    api_key: int
    version: int
    request_id: int
    body: memoryview


class Response(NamedTuple):
    kind: int
    request_id: int
    """-1 for a server failure, which concerns the whole connection and names no request."""
    body: memoryview


def body_size(body: Sequence[Buffer]) -> int:
    """Bytes in all parts. Parts must be flat byte buffers: `len` of a memoryview counts items, not bytes."""
    size = 0
    for part in body:
        size += part.nbytes if type(part) is memoryview else len(part)
    return size


def join_small_parts(parts: Sequence[Buffer]) -> Parts:
    """The same bytes in fewer parts: runs of small ones are joined, large ones and files stay as they are."""
    joined: Parts = []
    run: Parts = []
    run_bytes = 0
    for part in parts:
        if isinstance(part, (bytes, memoryview)) and len(part) < _SMALL_PART_BYTES:
            run.append(part)
            run_bytes += len(part)
            if run_bytes < _JOINED_BYTES_MAX:
                continue
            part = b"".join(run)
        elif run:
            joined.append(b"".join(run))
        else:
            joined.append(part)
            continue
        joined.append(part)
        run, run_bytes = [], 0
    if run:
        joined.append(b"".join(run))
    return joined


def _frame_length(header_bytes: int, body: Sequence[Buffer]) -> int:
    length = header_bytes + body_size(body)
    if length > FRAME_BYTES_MAX:
        raise FormatError(f"A frame of {length} bytes cannot be sent: the protocol allows {FRAME_BYTES_MAX} bytes")
    return length


def encode_request(api_key: int, version: int, request_id: int, body: Sequence[Buffer]) -> Parts:
    """Header and body as parts to be written one after the other; the body is not copied."""
    length = _frame_length(REQUEST_HEADER_BYTES, body)
    return [_REQUEST.pack(length, api_key, version, request_id), *body]


def encode_response(request_id: int, body: Sequence[Buffer]) -> Parts:
    """A success response as parts; the body is not copied."""
    length = _frame_length(RESPONSE_HEADER_BYTES, body)
    return [_RESPONSE.pack(length, ResponseKind.SUCCESS, request_id), *body]


def _error_body(code: int, message: str | None) -> bytes:
    error = pb.ErrorResponse(error_code=code)
    if message is not None:
        # A lone surrogate (from a file name, say) must not turn an error report into a second failure.
        error.error_message = message[:ERROR_MESSAGE_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")
    return error.SerializeToString()


def encode_error(request_id: int, code: int, message: str | None = None) -> Parts:
    """An error response to one request. Without a message the peer shows its own text for the code."""
    body = _error_body(code, message)
    return [_RESPONSE.pack(RESPONSE_HEADER_BYTES + len(body), ResponseKind.ERROR, request_id) + body]


def encode_server_failure(code: int, message: str | None = None) -> Parts:
    """A failure of the whole connection. Some clients do not know this kind: prefer `encode_error` or closing."""
    body = _error_body(code, message)
    return [_SERVER_FAILURE.pack(1 + len(body), ResponseKind.SERVER_FAILURE) + body]


def parse_request(frame: memoryview) -> Request:
    """Split a request frame (without its length prefix)."""
    if len(frame) < REQUEST_HEADER_BYTES:
        raise FormatError(f"Request frame of {len(frame)} bytes is shorter than its {REQUEST_HEADER_BYTES}-byte header")
    api_key, version, request_id = _REQUEST_HEADER.unpack_from(frame)
    return Request(api_key, version, request_id, frame[REQUEST_HEADER_BYTES:])


def parse_response(frame: memoryview) -> Response:
    """Split a response frame (without its length prefix)."""
    if len(frame) >= RESPONSE_HEADER_BYTES:
        kind, request_id = _RESPONSE_HEADER.unpack_from(frame)
        if kind == ResponseKind.SUCCESS or kind == ResponseKind.ERROR:
            return Response(kind, request_id, frame[RESPONSE_HEADER_BYTES:])
    if len(frame) > 0 and frame[0] == ResponseKind.SERVER_FAILURE:
        return Response(ResponseKind.SERVER_FAILURE, -1, frame[1:])
    if len(frame) < RESPONSE_HEADER_BYTES:
        raise FormatError(
            f"Response frame of {len(frame)} bytes is shorter than its {RESPONSE_HEADER_BYTES}-byte header"
        )
    raise FormatError(f"Response frame has the unknown kind {frame[0]} at position 0; known are 0, 1 and 2")


def parse_error(body: Buffer) -> tuple[int, str | None]:
    """Code and message of an error body. Text that is not UTF-8 is repaired: the code matters more."""
    error = pb.ErrorResponse()
    try:
        error.ParseFromString(bytes(body))
    except DecodeError:
        raise FormatError(f"Error response of {len(body)} bytes is not a valid ErrorResponse message") from None
    if not error.HasField("error_message"):
        return error.error_code, None
    text: object = error.error_message  # the parser hands out bytes when they are not UTF-8
    return error.error_code, text.decode("utf-8", "replace") if isinstance(text, bytes) else error.error_message


def _uncleared(size_bytes: int) -> memoryview:
    # Memory from numpy is not cleared, so a peer that announces much and sends little costs little.
    return np.empty(size_bytes, dtype=np.uint8).data


class FrameReader:
    """Cuts a byte stream into frames.

    Bytes arrive in a shared buffer that is used again and again. A frame that lies in it completely is copied out (it
    is small). A frame that does not gets a buffer of exactly its size, and the rest of it is received straight into
    that buffer: however large the frame, only what was in the shared buffer is ever copied. The frames handed out own
    their memory and may be kept.

    After a `FormatError` the stream position is lost and the reader refuses further work.

    `allocate` makes the buffers of large frames, for those who use memory again. `align` is given the first bytes of a
    large frame and its length, and returns which position of it shall lie on a multiple of 8 bytes in memory: columns
    are then used where they were received.

    `admit` is asked with the length of a large frame before memory is allocated for it. If it returns False the reader
    is blocked: `blocked_bytes` is the length, nothing may be received, and `unblock` goes on with the frame.

    The shared buffer has `buffer_bytes`. `set_limits` changes both limits later, for peers that have identified
    themselves; the buffer grows once such a peer fills it, so that an idle connection holds little.
    """

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        *,
        frame_bytes_min: int = 1,
        buffer_bytes: int = 64 * 1024,
        allocate: Callable[[int], memoryview] | None = None,
        align: Callable[[memoryview, int], int] | None = None,
        admit: Callable[[int], bool] | None = None,
    ) -> None:
        self.set_limits(frame_bytes_max, buffer_bytes)
        self._frame_bytes_min = frame_bytes_min
        self._allocate = allocate or _uncleared
        self._align = align
        self._admit = admit
        self._shared = memoryview(bytearray(buffer_bytes))
        self._filled = 0  # bytes of the shared buffer that wait for the rest of a length prefix or frame
        self._large: memoryview | None = None
        self._large_filled = 0
        self.in_large = False
        """Whether a frame is being received into a buffer of its own."""
        self._after_large = False
        """The next frame is probably large as well: take little more than its length, and the rest where it belongs."""
        self.blocked_bytes = 0
        """Length of a frame that waits to be admitted; 0 if none does."""
        self._received_bytes = 0
        self._failure: str | None = None

    def set_limits(self, frame_bytes_max: int, buffer_bytes: int) -> None:
        """Set the largest frame, and the size to which the shared buffer may grow."""
        if buffer_bytes < LENGTH_BYTES:
            raise ValueError(f"buffer_bytes must be at least {LENGTH_BYTES}, not {buffer_bytes}")
        self._frame_bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX)
        self._buffer_bytes_max = buffer_bytes

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and is not complete: an end of the stream now means that bytes were lost."""
        return self._filled > 0 or self._large is not None

    @property
    def buffered_bytes(self) -> int:
        """Bytes received that belong to a frame not yet complete."""
        return self._filled + (self._large_filled if self._large is not None else 0)

    @property
    def missing_bytes(self) -> int:
        """What is still to come of a large frame; 0 where the frame is small, or its length not known yet."""
        return 0 if self._large is None else len(self._large) - self._large_filled

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes are to be written; never empty."""
        if self._failure is not None:
            raise FormatError(self._failure)
        if self._large is not None:
            return self._large[self._large_filled :]
        if self._after_large and not self._filled:
            return self._shared[:_HEAD_BYTES]
        return self._shared[self._filled :]

    def buffer_updated(self, size_bytes: int) -> list[memoryview]:
        """Take note of bytes written into the last `get_buffer` and return the frames that became complete."""
        if self._failure is not None:
            raise FormatError(self._failure)
        self._received_bytes += size_bytes
        large = self._large
        if large is not None:
            self._large_filled += size_bytes
            if self._large_filled < len(large):
                return []
            self._large = None
            self.in_large = False
            self._after_large = True
            return [large]
        self._after_large = False
        return self._cut(self._filled + size_bytes)

    def unblock(self) -> None:
        """Go on with the frame that waited to be admitted."""
        length, self.blocked_bytes = self.blocked_bytes, 0
        head = self._shared[LENGTH_BYTES : self._filled]
        self._filled = 0
        self._start_large(length, head)

    def close(self) -> None:
        """Let go of all memory and of the callbacks; the reader refuses further work."""
        self._failure = "The connection is closed"
        self._shared = self._shared[:0]
        self._large = self._align = self._admit = None
        self._allocate = _uncleared
        self._filled = self._large_filled = self.blocked_bytes = 0
        self.in_large = False

    def feed(self, data: Buffer) -> list[memoryview]:
        """Copy bytes in, as if they had been received, and return the frames that became complete."""
        frames: list[memoryview] = []
        view = memoryview(data)
        while len(view) > 0:
            target = self.get_buffer()
            count = min(len(target), len(view))
            target[:count] = view[:count]
            frames += self.buffer_updated(count)
            view = view[count:]
        return frames

    def _cut(self, end: int) -> list[memoryview]:
        shared = self._shared
        frames: list[memoryview] = []
        pos = 0
        while end - pos >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(shared, pos)
            if not self._frame_bytes_min <= length <= self._frame_bytes_max:
                self._refuse(length, end - pos)
            start = pos + LENGTH_BYTES
            if start + length > end:
                if LENGTH_BYTES + length > self._buffer_bytes_max:
                    if self._admit is not None and not self._admit(length):
                        self.blocked_bytes = length
                    else:
                        self._start_large(length, shared[start:end])
                        pos = end
                elif LENGTH_BYTES + length > len(shared):
                    self._shared = memoryview(bytearray(self._buffer_bytes_max))
                break
            pos = start + length
            frames.append(memoryview(bytes(shared[start:pos])))
        if end == len(shared) < self._buffer_bytes_max and shared is self._shared:
            self._shared = memoryview(bytearray(self._buffer_bytes_max))
        if pos < end and (pos or shared is not self._shared):
            self._shared[: end - pos] = bytes(shared[pos:end])
        self._filled = end - pos
        return frames

    def _start_large(self, length: int, head: memoryview) -> None:
        try:
            shift = 0 if self._align is None else -self._align(head, length) % _ALIGNMENT
            large = self._allocate(length + shift)[shift:]
        except MemoryError:
            self._failure = f"There is no memory for a frame of {length} bytes; lower the limit on frames or fetch less"
            raise FormatError(self._failure) from None
        large[: len(head)] = head
        self._large = large
        self.in_large = True
        self._large_filled = len(head)

    def _refuse(self, length: int, unread_bytes: int) -> None:
        position = self._received_bytes - unread_bytes
        first = _LENGTH.pack(length)
        other = _OTHER_PROTOCOLS.get(first) or _OTHER_PROTOCOLS.get(first[:2]) if position == 0 else None
        if other is not None:
            self._failure = f"This is not the Fluss protocol: {other}"
            raise FormatError(self._failure)
        if length > self._frame_bytes_max:
            reason = f"larger than the limit of {self._frame_bytes_max} bytes"
        else:
            reason = f"smaller than the least possible {self._frame_bytes_min} bytes"
        self._failure = (
            f"Frame length {length} at position {position} of the connection is {reason}; "
            "the peer may not speak this protocol"
        )
        raise FormatError(self._failure)
