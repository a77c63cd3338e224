# SPDX-License-Identifier: Apache-2.0
"""What leaves through a socket that is full most of the time, and when its reader is woken."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fluss.errors import FlussError
from fluss.net import transport as transport_module
from fluss.net.transport import WAKE_BYTES, FrameTransport, WakeMark
from fluss.protocol.frames import FrameReader


def low_water(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def connected(peer: Peer, take: Callable[[memoryview], None]) -> AsyncIterator[FrameTransport]:
    """A transport whose other end is `peer`, and which must not be lost."""
    peers: list[asyncio.Task[None] | None] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(asyncio.current_task())
        await peer(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    lost: list[FlussError] = []
    made = FrameTransport("peer", FrameReader(), take, lost.append)
    await asyncio.get_running_loop().create_connection(lambda: made, *server.sockets[0].getsockname())
    yield made
    assert not lost
    await made.close()
    server.close()
    await asyncio.gather(*(task for task in peers if task is not None))


@pytest.mark.parametrize("direct", [True, False])
async def test_parts_leave_in_order_through_a_slow_socket(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small and large frames in turn, while the peer reads little by little; with and without sending by ourselves."""
    if not direct:
        monkeypatch.setattr(transport_module, "_second_handle", lambda sock: None)
    chance = random.Random(3)
    frames = [
        [chance.randbytes(chance.choice([10, 3_000, 100_000, 1_500_000])) for _ in range(chance.randint(1, 4))]
        for _ in range(30)
    ]
    expected = b"".join(part for frame in frames for part in frame)

    received = bytearray()
    complete = asyncio.Event()

    async def peer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while len(received) < len(expected):
            received.extend(await reader.read(300_000))
            await asyncio.sleep(0)
        complete.set()

    async with connected(peer, lambda frame: None) as made:
        for frame in frames:
            made.send(frame, sum(map(len, frame)))
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        await asyncio.wait_for(complete.wait(), 30)
        assert bytes(received) == expected
    assert made._direct is None


def test_the_reader_of_a_large_frame_is_woken_for_large_pieces() -> None:
    left, right = socket.socketpair()
    with left, right:
        mark = WakeMark(left)
        mark.expect(WAKE_BYTES - 1)
        assert low_water(left) == 1
        mark.expect(10 * WAKE_BYTES)
        assert low_water(left) > 1
        mark.expect(100)
        assert low_water(left) == 1


def test_a_mark_on_a_socket_that_is_gone_is_no_error() -> None:
    left, right = socket.socketpair()
    mark = WakeMark(left)
    left.close()
    right.close()
    mark.expect(10 * WAKE_BYTES)
    mark.expect(0)


async def test_a_large_frame_that_comes_slowly_arrives() -> None:
    """The last bytes of a frame are fewer than the mark: the writer must not wait for more than there are."""
    payload = random.Random(4).randbytes(3 * WAKE_BYTES + 17)

    got: list[bytes] = []
    done = asyncio.Event()

    async def peer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = len(payload).to_bytes(4, "big") + payload
        for at in range(0, len(data), 90_000):
            writer.write(data[at : at + 90_000])
            await writer.drain()
            await asyncio.sleep(0.002)
        await done.wait()

    def take(frame: memoryview) -> None:
        got.append(bytes(frame))
        done.set()

    async with connected(peer, take):
        await asyncio.wait_for(done.wait(), 10)
        assert got == [payload]
