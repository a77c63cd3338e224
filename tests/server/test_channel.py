# SPDX-License-Identifier: Apache-2.0
"""Bytes of one accepted socket, with a peer that takes them when it likes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from tests.waiting import wait_until

from fluss.protocol.frames import FrameReader
from fluss.server.channel import Channel


@contextmanager
def channel_and_peer(closed: list[str]) -> Iterator[tuple[Channel, socket.socket]]:
    ours, peer = socket.socketpair()
    for sock in (ours, peer):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    channel = Channel(
        asyncio.get_running_loop(),
        ours,
        FrameReader(1 << 20),
        ThreadPoolExecutor(1),
        on_frame=lambda _: None,
        on_closed=closed.append,
        on_sent=lambda: None,
    )
    try:
        yield channel, peer
    finally:
        channel.close()
        peer.close()


@pytest.mark.parametrize("seed", range(4))
async def test_answers_arrive_in_order_whatever_the_peer_takes(seed: int) -> None:
    """Small answers, which are sent at once while there is room, between large ones and ones of many parts."""
    chance = random.Random(seed)

    closed: list[str] = []
    with channel_and_peer(closed) as (channel, peer):
        sent = bytearray()
        received = bytearray()
        for number in range(300):
            head, body = b"%06d" % number, bytes([number % 251]) * chance.choice((0, 1, 50, 3_000, 9_000, 40_000))
            parts = chance.choice(([head, body], [head + body], [head, memoryview(body)], [head, body, b"end"]))
            channel.write(parts)
            sent += b"".join(parts)
            if chance.random() < 0.3:
                await asyncio.sleep(0)
                received += await asyncio.get_running_loop().sock_recv(peer, 1 << 16)
        assert channel.unsent_bytes > 0  # the peer was slower, so both ways were taken
        while len(received) < len(sent):
            received += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 1 << 16), 5)
        assert received == sent
        assert channel.unsent_bytes == 0
        assert channel.bytes_out == len(sent)
        assert closed == []


async def test_a_peer_that_is_gone_closes_the_channel() -> None:
    closed: list[str] = []
    with channel_and_peer(closed) as (channel, peer):
        peer.close()
        channel.write([b"head", b"body"])
        assert channel.closed
        [reason] = closed
        assert "lost" in reason
        channel.write([b"head", b"body"])  # the peer is gone, which is no error


async def test_a_peer_that_takes_all_at_once_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending stops after a while, and goes on when the event loop comes back to it."""
    monkeypatch.setattr("fluss.server.channel._SECONDS_AT_ONCE", 0.0)
    monkeypatch.setattr("fluss.server.channel._PARTS_PER_SEND", 1)
    closed: list[str] = []
    with channel_and_peer(closed) as (channel, peer):
        sends = 0
        real = channel._send_memory

        def send() -> int:
            nonlocal sends
            sends += 1
            return real()

        monkeypatch.setattr(channel, "_send_memory", send)
        channel.write([b"x"] * 50)
        received = b""
        while len(received) < 50:
            before = sends
            await asyncio.sleep(0)
            assert sends - before <= 1, "one part for each iteration of the event loop"
            with contextlib.suppress(BlockingIOError):
                received += peer.recv(100)
        assert received == b"x" * 50
        assert channel.unsent_bytes == 0
        assert closed == []


async def test_a_user_without_time_is_neither_read_from_nor_watched() -> None:
    closed: list[str] = []
    frames: list[bytes] = []
    with channel_and_peer(closed) as (channel, peer):
        channel._on_frame = lambda frame: frames.append(bytes(frame))
        channel.resume_reading()
        peer.sendall(b"\0\0\0\1x")
        channel.share.charge(60)
        channel._readable()
        assert not channel._watched, "the event loop does not wake up for bytes that nothing takes now"
        assert frames == []
        await wait_until(lambda: frames == [b"x"])
        assert channel._watched
        peer.sendall(b"\0\0\0\1y")
        channel.share.charge(60)
        channel._readable()
        channel.pause_reading()
        await asyncio.sleep(0.02)
        assert frames == [b"x"], "reading was paused meanwhile"
        channel.resume_reading()
        await wait_until(lambda: frames == [b"x", b"y"])


async def test_a_large_frame_that_has_come_is_taken_in_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first bytes tell how large it is; the rest follows at once, and the next frame is not lost."""
    iterations: list[int] = []
    real = Channel._readable
    monkeypatch.setattr(Channel, "_readable", lambda self: iterations.append(1) or real(self))

    ours, peer = socket.socketpair()
    ours.setblocking(False)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    frames: list[bytes] = []
    closed: list[str] = []
    channel = Channel(
        asyncio.get_running_loop(),
        ours,
        FrameReader(1 << 20),
        ThreadPoolExecutor(1),
        on_frame=lambda frame: frames.append(bytes(frame)),
        on_closed=closed.append,
        on_sent=lambda: None,
    )
    large, small = b"x" * 100_000, b"y" * 100
    peer.sendall(len(large).to_bytes(4, "big") + large + len(small).to_bytes(4, "big") + small)
    channel.resume_reading()
    await wait_until(lambda: len(frames) == 2)
    assert (frames, iterations) == ([large, small], [1, 1])
    # Only the beginning of one, and then its end: the second look finds nothing, and that is no error.
    peer.sendall(len(large).to_bytes(4, "big") + large[:10])
    await asyncio.sleep(0.05)
    assert channel.buffered_bytes == 10
    peer.sendall(large[10:])
    await wait_until(lambda: len(frames) == 3)
    assert frames[2] == large
    assert closed == []
    channel.close()
    peer.close()
