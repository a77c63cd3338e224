# SPDX-License-Identifier: Apache-2.0
"""One accepted socket: bytes in as frames, bytes out as parts.

asyncio's own transports copy what does not fit into the socket buffer (before Python 3.12), which doubles the cost of a
large fetch answer. Here the parts wait in a queue as they are and are handed to ``sendmsg`` again. Parts of a log file
are sent from the file by the operating system.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import monotonic

from fluss.errors import FormatError
from fluss.net.transport import WakeMark
from fluss.protocol.frames import FrameReader
from fluss.server import disk
from fluss.server.log.files import FileRange
from fluss.server.memory import UnsentAnswers
from fluss.server.scheduler import Scheduler, Share
from fluss.server.tls import TlsSocket

Buffer = bytes | bytearray | memoryview

_PARTS_PER_SEND = 256
_JOIN_BYTES_MAX = 16 * 1024
_SEND_BYTES_MAX = 1024 * 1024
_RETRY_SECONDS = 0.1
_SECONDS_AT_ONCE = 0.0005
"""Requests that came in one piece are handled, and answers sent, for so long before others are served."""
_MSG_MORE: int = getattr(socket, "MSG_MORE", 0)


def _nothing(*_: object) -> None:
    """Take the place of the callbacks of a closed channel."""


class Channel:
    """Non-blocking I/O of one connection. All methods run in the event loop.

    An exception in a callback of the event loop closes this connection, after a call of `on_error`, and nothing else.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket | TlsSocket,
        reader: FrameReader,
        executor: Executor,
        *,
        on_frame: Callable[[memoryview], None],
        on_closed: Callable[[str], None],
        on_sent: Callable[[], None],
        on_error: Callable[[Exception], None] = _nothing,
        answers: UnsentAnswers | None = None,
        share: Share | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self.fd = sock.fileno()
        self._reader = reader
        self._wake_mark = WakeMark(sock, tls=isinstance(sock, TlsSocket))
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_sent = on_sent
        self._on_error = on_error
        self._answers = answers or UnsentAnswers(0)
        self.share = share or Scheduler().share(None)
        self._executor = executor
        self._queue: deque[memoryview | FileRange] = deque()
        self._frames: deque[memoryview] = deque()
        """Received in one piece with a frame after which reading was paused, or whose handling took long."""
        self._watched = False
        """Whether the event loop watches for bytes to read."""
        self._queued = False
        """Whether reading goes on when the user is served next."""
        self._reading_again = False
        self._writing = False
        self.reading = False
        self._closing = False
        self.closed = False
        self.unsent_bytes = 0
        self.held_bytes = 0
        """What of it is held in memory, not in files."""
        self.last_activity = monotonic()
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that has not arrived completely."""
        return self._reader.buffered_bytes

    @property
    def is_receiving_large(self) -> bool:
        """Whether a large frame, which has its memory already, is arriving."""
        return self._reader.in_large

    @property
    def frame_position(self) -> int | None:
        """Where in the stream the frame that is arriving began; None if none is, or it is this server that waits."""
        if not self._reader.in_frame or self._reader.blocked_bytes:
            return None
        return self.bytes_in - self._reader.buffered_bytes

    def resume_reading(self) -> None:
        if not self.reading and not self.closed and not self._closing:
            self.reading = True
            if self._frames:
                self._read_later()
            self._watch()

    def unblock(self) -> None:
        """Receive the large frame that waited for memory."""
        if self.closed:
            return
        try:
            self._reader.unblock()
        except Exception as error:
            self._fail(error)
            return
        self._watch()

    def pause_reading(self) -> None:
        if self.reading:
            self.reading = False
            self._watch()

    def _watch(self) -> None:
        """Watch for bytes exactly while they can be used: else the event loop would wake up for them all the time."""
        wanted = self.reading and not self._queued and not self._reader.blocked_bytes
        if wanted is not self._watched:
            self._watched = wanted
            if wanted:
                self._loop.add_reader(self.fd, self._readable)
            else:
                self._loop.remove_reader(self.fd)
        if wanted and isinstance(self._sock, TlsSocket) and self._sock.has_decrypted and not self._reading_again:
            # The event loop sees the bytes of the socket only, not those that are decrypted already.
            self._reading_again = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._reading_again = False
        if self._watched:
            self._readable()

    def write(self, parts: Sequence[Buffer | FileRange]) -> None:
        """Send the parts in order, now as far as possible and later as the peer takes them."""
        if self.closed or (not self._queue and self._sent_at_once(parts)):
            return
        held_bytes = 0
        for part in parts:
            if isinstance(part, FileRange):
                self._queue.append(part)
                self.unsent_bytes += part.size_bytes
                continue
            view = memoryview(part)
            if view.nbytes:
                self._queue.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
                held_bytes += view.nbytes
        self.unsent_bytes += held_bytes
        self.held_bytes += held_bytes
        self._answers.add(held_bytes)
        if not self._writing:
            self._send()

    def _sent_at_once(self, parts: Sequence[Buffer | FileRange]) -> bool:
        """Small answers, which nearly always fit: one copy and one system call, and no queue."""
        if len(parts) != 2 or isinstance(self._sock, TlsSocket):
            return False
        head, body = parts
        if type(head) is not bytes or type(body) is not bytes or len(body) > _JOIN_BYTES_MAX:
            return False
        data = head + body
        try:
            sent = self._sock.send(data)
        except OSError:  # full, or gone: sending it the long way finds out
            return False
        self.bytes_out += sent
        self.last_activity = monotonic()
        if sent < len(data):
            self.write((data[sent:],))
        return True

    def close(self) -> None:
        """Close at once; what is unsent is lost."""
        self._close("closed by this server")

    def close_after_sending(self) -> None:
        """Read no more, and close when everything is sent."""
        self._closing = True
        self.pause_reading()
        if not self._queue:
            self._close("closed by this server")

    def _readable(self) -> None:
        if self.share.may_run:
            self._do(self._read)
        else:
            self._read_later()

    def _read_later(self) -> None:
        """Read, or handle what was read, when this user is served next."""
        if not self._queued:
            self._queued = True
            self._watch()
            self.share.enqueue(self._read_queued)

    def _read_queued(self) -> None:
        self._queued = False
        if self.reading:
            self._do(self._hand_out if self._frames else self._read)
            self._watch()

    def _do(self, work: Callable[[], None]) -> None:
        """Read or write, at the expense of this user."""
        began = monotonic()
        try:
            work()
        except Exception as error:
            self._fail(error)
        self.share.charge(monotonic() - began)

    def _fail(self, error: Exception) -> None:
        """End this connection because of an error of this server or a lack of memory."""
        if isinstance(error, FormatError):
            self._close(error.message)
            return
        on_error = self._on_error
        self._close(f"failed in the server: {type(error).__name__}: {error}")
        on_error(error)

    def _read(self) -> None:
        was_large = self._reader.in_large
        if not self._receive():
            return
        if self._reader.in_large and not was_large:
            # A large frame has begun. Most of it has often come, and is taken in the same iteration of the loop.
            self._receive()
        if (was_large or self._reader.in_large) and not self.closed:
            self._wake_mark.expect(self._reader.missing_bytes)

    def _receive(self) -> bool:
        """Take what has come, as much as the reader has room for; whether anything had."""
        try:
            count = self._sock.recv_into(self._reader.get_buffer())
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._close(f"connection lost: {error.strerror or error}")
            return False
        if count == 0:
            self._close(
                "closed by the peer in the middle of a frame" if self._reader.in_frame else "closed by the peer"
            )
            return False
        self.bytes_in += count
        self.last_activity = monotonic()
        try:
            frames = self._reader.buffer_updated(count)
        except FormatError as error:
            self._close(error.message)
            return False
        if frames:
            self._frames.extend(frames)
            self._hand_out()
        self._watch()
        return True

    def _hand_out(self) -> None:
        frames = self._frames
        end = monotonic() + _SECONDS_AT_ONCE
        while frames and self.reading:
            self._on_frame(frames.popleft())
            if monotonic() > end:
                break
        if frames and self.reading:
            self._read_later()

    def _send(self) -> None:
        end = monotonic() + _SECONDS_AT_ONCE
        try:
            # A peer that takes bytes as fast as this sends them leaves time for others as well.
            while self._queue:
                first = self._queue[0]
                if isinstance(first, FileRange) and not first.is_cached(_SEND_BYTES_MAX):
                    self._read_ahead(first)
                    return
                sent = self._send_file(first) if isinstance(first, FileRange) else self._send_memory()
                self.bytes_out += sent
                self.unsent_bytes -= sent
                if monotonic() > end:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._close(f"connection lost: {error.strerror or error}")
            return
        self.last_activity = monotonic()
        if self._queue:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self.fd, self._writable)
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self.fd)
        if self._closing:
            self._close("closed by this server")

    def _read_ahead(self, part: FileRange) -> None:
        """Wait for the disk in a thread, and then go on sending: the event loop belongs to all connections."""
        if self._writing:
            self._loop.remove_writer(self.fd)
        self._writing = True
        work = self._loop.create_task(self.share.in_thread(self._executor, part.read_ahead, _SEND_BYTES_MAX))
        work.add_done_callback(self._was_read)

    def _was_read(self, work: asyncio.Task[None]) -> None:
        if work.cancelled() or work.exception() is not None:
            self._loop.call_later(_RETRY_SECONDS, self._watch_writable)  # there may be no thread
        else:
            self._watch_writable()

    def _watch_writable(self) -> None:
        if not self.closed:
            self._loop.add_writer(self.fd, self._writable)

    def _send_memory(self) -> int:
        parts: list[memoryview] = []
        size = 0
        flags = 0
        for part in self._queue:
            if isinstance(part, FileRange):
                # The head of an answer waits for the bytes of the file, instead of going out in a packet of its own.
                flags = _MSG_MORE
                break
            parts.append(part)
            size += part.nbytes
            if size >= _SEND_BYTES_MAX or len(parts) >= _PARTS_PER_SEND:
                break
        sent = left = self._sock.sendmsg(parts, (), flags)
        for part in parts:
            if left < part.nbytes:
                self._queue[0] = part[left:]
                break
            left -= part.nbytes
            self._queue.popleft()
        self.held_bytes -= sent
        self._answers.remove(sent)
        return sent

    def _send_file(self, part: FileRange) -> int:
        sent = part.send(self._send_from, _SEND_BYTES_MAX)
        if not part.size_bytes:
            self._queue.popleft()
        return sent

    def _send_from(self, file: int, position: int, size_bytes: int) -> int:
        if isinstance(self._sock, TlsSocket):
            return self._sock.send_file(file, position, size_bytes)
        return disk.send_file(self.fd, file, position, size_bytes)

    def _writable(self) -> None:
        if self.share.may_run:
            self._do(self._send_on)
        else:
            self._loop.remove_writer(self.fd)
            self.share.enqueue(self._send_queued)

    def _send_queued(self) -> None:
        if not self.closed:
            self._loop.add_writer(self.fd, self._writable)
            self._do(self._send_on)

    def _send_on(self) -> None:
        self._send()
        if not self.closed:
            self._on_sent()

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.pause_reading()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self.fd)
        self._queue.clear()
        self._frames.clear()
        held_bytes, self.held_bytes, self.unsent_bytes = self.held_bytes, 0, 0
        self._sock.close()
        self._reader.close()
        on_closed = self._on_closed
        # The session refers to this channel. Without the way back its memory is free at once, not at the next search
        # for reference cycles, which on a busy server may be far away.
        self._on_frame = self._on_closed = self._on_sent = self._on_error = _nothing
        on_closed(reason)
        self._answers.remove(held_bytes)
