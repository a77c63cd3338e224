# SPDX-License-Identifier: Apache-2.0
"""A server under attack, a client that wants to work meanwhile, and frames to attack with."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import fluss.aio as fluss
from fluss.net import connection as net
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import APIS
from fluss.protocol.frames import ResponseKind, parse_response
from fluss.server.local import LocalServer

MIB = 1024 * 1024
GROWTH_BYTES_MAX = 450 * MIB
"""All buffers at their limits, and the largest message that is parsed, which the process keeps for the next one."""
SILENCE_SECONDS_MAX = 10.0
"""A shared machine may be slow for a while; a server that hangs is silent for ever."""

HEADER = struct.Struct(">ihhi")

SASL_OPTIONS: dict[str, object] = {
    "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "security.protocol.map": "FLUSS:PLAINTEXT,CLIENT:SASL",
    "security.sasl.plain.jaas.config": 'org.example.Module required user_user="password";',
}
SERVER_OPTIONS: dict[str, object] = {
    "netty.server.max-request-size": "16mb",
    "netty.connection.max-idle-time": "3s",
    "server.max-connections": "150",
    "server.buffer.memory-size": "48mb",
    "server.connection.max-unsent-size": "2mb",
}


def error_of(answer: bytes | None) -> int | None:
    """The code of an error answer; None for a success."""
    assert answer is not None
    response = parse_response(memoryview(answer))
    if response.kind == ResponseKind.SUCCESS:
        return None
    return int(pb.ErrorResponse.FromString(bytes(response.body)).error_code)


class HealthyClient(threading.Thread):
    """Writes and reads a row again and again, and notes how long it had to wait."""

    def __init__(self, address: str, table: str = "rows") -> None:
        super().__init__(name="healthy client", daemon=True)
        self.address = address
        self.table = table
        self.stopping = threading.Event()
        self.started = threading.Event()
        self.served = 0
        self.last_served = time.monotonic()
        self.longest_seconds = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self.error = error
        finally:
            self.started.set()

    async def _work(self) -> None:
        config = fluss.Config({"bootstrap.servers": self.address})
        path = fluss.TablePath("healthy", self.table)
        async with await fluss.FlussConnection.create(config) as connection:
            admin = connection.get_admin()
            await admin.create_database("healthy", ignore_if_exists=True)
            schema = fluss.Schema(pa.schema([("k", pa.int32()), ("v", pa.int64())]), primary_keys=["k"])
            await admin.create_table(path, fluss.TableDescriptor(schema), ignore_if_exists=True)
            table = await connection.get_table(path)
            writer, lookuper = table.new_upsert().create_writer(), table.new_lookup().create_lookuper()
            self.started.set()
            while not self.stopping.is_set():
                began = time.monotonic()
                await writer.upsert((1, self.served)).wait()
                row = await lookuper.lookup([1])
                assert row == {"k": 1, "v": self.served}, row
                self.last_served = time.monotonic()
                self.longest_seconds = max(self.longest_seconds, self.last_served - began)
                self.served += 1
                await asyncio.sleep(0.02)


class Usage(NamedTuple):
    memory_bytes: int
    files: int
    threads: int


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


class ServerProcess:
    """A server in a process of its own, and figures of that process."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.server = LocalServer(folder / "data", options={**SASL_OPTIONS, **options})
        self.plain = self.sasl = ""

    @property
    def memory_bytes(self) -> int:
        assert self.server.pid is not None, f"the server died: {self.server.log_text[-3000:]}"
        with open(f"/proc/{self.server.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096

    @property
    def open_files(self) -> int:
        """Open files and connections of the server."""
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))

    @property
    def usage(self) -> Usage:
        """What the server and its writer process take now."""
        pid = self.server.pid
        found = [0, 0, 0]
        for each in (pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            folder = Path(f"/proc/{each}")
            pages = int((folder / "statm").read_text().split()[1])
            counts = (pages * 4096, *(len(os.listdir(folder / name)) for name in ("fd", "task")))
            found = [total + count for total, count in zip(found, counts)]
        return Usage(*found)

    def connect(self, address: str | None = None) -> socket.socket:
        return connect(address or self.plain)


class Attacked(ServerProcess):
    """A running server, watched."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, **SERVER_OPTIONS)

    def start(self) -> None:
        self.server.start()
        self.plain, self.sasl = self.server.addresses
        self.frames = capture_frames(self.plain)
        self.healthy = HealthyClient(self.plain)
        self.healthy.start()
        assert self.healthy.started.wait(30)
        self.memory_at_start = self.memory_bytes

    def stop(self) -> None:
        self.healthy.stopping.set()
        self.healthy.join(30)
        self.server.stop()

    def peak_bytes(self) -> int:
        """The most memory that the server has had at any moment."""
        with open(f"/proc/{self.server.pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

    def check(self) -> None:
        """The server lives, has not grown, and serves the healthy client."""
        assert self.healthy.error is None, repr(self.healthy.error)
        before, deadline = self.healthy.served, time.monotonic() + SILENCE_SECONDS_MAX
        while self.healthy.served < before + 2:
            assert time.monotonic() < deadline, f"the healthy client is not served: {self.server.log_text[-3000:]}"
            assert self.healthy.error is None, repr(self.healthy.error)
            time.sleep(0.01)
        grown = self.memory_bytes - self.memory_at_start
        assert grown < GROWTH_BYTES_MAX, f"the server has grown by {grown // MIB} MiB"
        assert self.healthy.longest_seconds < SILENCE_SECONDS_MAX

    def watch(self, seconds: float) -> None:
        """Check again and again for some time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()


def exchange(sock: socket.socket, data: bytes, seconds: float = 10.0) -> bytes | None:
    """Send bytes and return the next frame of the answer; None when the server closed the connection."""
    sock.settimeout(seconds)
    try:
        sock.sendall(data)
        head = _exactly(sock, 4)
        return None if head is None else _exactly(sock, struct.unpack(">i", head)[0])
    except (ConnectionError, BrokenPipeError):
        return None


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return data


def frame(api_key: int, version: int, request_id: int, body: bytes) -> bytes:
    return HEADER.pack(8 + len(body), api_key, version, request_id) + body


def is_closed_within(sock: socket.socket, seconds: float) -> bool:
    """Whether the server ends the connection in time; what it sends before is thrown away."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            if not sock.recv(1 << 16):
                return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
    return False


# Frames ---------------------------------------------------------------------------------------------------------------


def capture_frames(address: str) -> list[bytes]:
    """The requests of a client that does a bit of everything, and a made-up one for every API there is."""
    captured: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        real = net.encode_request  # type: ignore[attr-defined]

        def encode(api_key: int, version: int, request_id: int, body: Any) -> Any:
            parts = real(api_key, version, request_id, body)
            captured.append(b"".join(bytes(part) for part in parts))
            return parts

        patch.setattr(net, "encode_request", encode)
        asyncio.run(_do_everything(address))
    for api in APIS.values():
        message = api.request()
        _fill(message, 0)
        captured.append(frame(api.key, api.max_version, 1, message.SerializePartialToString()))
    return captured


async def _do_everything(address: str) -> None:
    config = fluss.Config({"bootstrap.servers": address})
    async with await fluss.FlussConnection.create(config) as connection:
        admin = connection.get_admin()
        await admin.create_database("abuse", ignore_if_exists=True)
        log, keyed, parted = (fluss.TablePath("abuse", name) for name in ("log", "keyed", "parted"))
        columns = pa.schema([("id", pa.int32()), ("part", pa.string()), ("n", pa.float64())])
        await admin.create_table(log, fluss.TableDescriptor(fluss.Schema(columns), bucket_count=2))
        keys = ["id", "part"]
        schema = fluss.Schema(columns, primary_keys=keys)
        await admin.create_table(keyed, fluss.TableDescriptor(schema, bucket_count=2, bucket_keys=["id"]))
        await admin.create_table(parted, fluss.TableDescriptor(fluss.Schema(columns), partition_keys=["part"]))
        await admin.create_partition(parted, {"part": "a"})
        table = await connection.get_table(log)
        async with table.new_append().create_writer() as writer:
            for number in range(50):
                writer.append((number, "x" * number, number / 3))
        scan = table.new_scan().filter(fluss.col("id") > 10)
        async for _ in scan.read_batches({fluss.TableBucket(table.get_table_info().table_id, 0): 0}):
            pass
        table = await connection.get_table(keyed)
        async with table.new_upsert().create_writer() as upserter:
            for number in range(20):
                upserter.upsert((number, "p", 1.5))
            upserter.delete((3, "p", None))
        await table.new_lookup().create_lookuper().lookup([1, "p"])
        await table.new_lookup().lookup_by(["id"]).create_lookuper().lookup([1])
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        await table.new_scan().create_bucket_batch_scanner(bucket).to_arrow()
        await table.new_scan().limit(3).create_bucket_batch_scanner(bucket).to_arrow()
        await admin.list_offsets(log, [0, 1], fluss.OffsetSpec.latest())
        await admin.alter_table(log, add_columns={"more": pa.int64()})
        await admin.list_partition_infos(parted)
        await admin.get_table_schema(log)


def _fill(message: Message, depth: int) -> None:
    """Set every field to something plausible."""
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth < 4:
                target = getattr(message, field.name)
                _fill(target.add() if hasattr(target, "add") else target, depth + 1)
            continue
        value = _value(field)
        present = getattr(message, field.name)
        if hasattr(present, "append"):
            present.append(value)
        else:
            setattr(message, field.name, value)


def _value(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return "abuse" if "database" in field.name else "log"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"{}"
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return 0.5
    return 0


def mutations(frames: list[bytes], randomness: random.Random) -> Iterator[bytes]:
    """Frames with wrong bytes, for ever. Most keep a right length, so that they get past the first check."""
    while True:
        data = bytearray(randomness.choice(frames))
        how = randomness.randrange(10)
        if how < 4:
            for _ in range(randomness.choice((1, 1, 2, 5, 20))):
                data[randomness.randrange(4, len(data))] = randomness.randrange(256)
        elif how == 4 and len(data) > 13:
            del data[randomness.randrange(12, len(data)) :]
        elif how == 5 and len(data) > 13:
            at = randomness.randrange(12, len(data))
            del data[at : at + randomness.randint(1, 20)]
        elif how == 6:
            at = randomness.randrange(12, len(data) + 1)
            data[at:at] = randomness.randbytes(randomness.randint(1, 50))
        elif how == 7:
            at = randomness.randrange(12, len(data) + 1)
            data[at:at] = data[12:at] * randomness.randint(1, 30)
        elif how == 8:
            struct.pack_into(">hh", data, 4, randomness.randrange(-5, 1100), randomness.randrange(-3, 5))
        else:
            data = bytearray(struct.pack(">i", 0) + randomness.randbytes(randomness.randint(8, 300)))
        struct.pack_into(">i", data, 0, len(data) - 4)
        if randomness.random() < 0.03:
            struct.pack_into(">i", data, 0, randomness.choice((-1, 0, 7, len(data), 1 << 24, (1 << 31) - 1)))
        yield bytes(data)
