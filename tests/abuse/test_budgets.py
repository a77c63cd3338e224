# SPDX-License-Identifier: Apache-2.0
"""Resource budgets: what clients can make a server take, before and after authentication, and what they leave behind.

The tests of the default suite are short. `make budgets` runs the long ones, which are marked `slow`; MINUTES sets how
long the mixed load lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pytest
from tests.abuse.attackers import MIB, HealthyClient, ServerProcess, Usage, exchange, frame, is_closed_within
from tests.abuse.stalls import Wait, stalls
from tests.tls_support import Authority

import fluss.aio as fluss
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb

ROOT = Path(__file__).parents[2]
MIXED_ROUNDS_MIN = 9
VERSIONS = pb.ApiVersionsRequest(client_software_name="x", client_software_version="1").SerializeToString()


class Watched(ServerProcess):
    """A server from its start to its end."""

    def __enter__(self) -> Watched:
        self.server.start()
        self.plain, self.sasl = self.server.addresses
        for address in (self.plain, self.sasl):  # what the first connection loads is no leak
            with self.connect(address) as sock:
                assert exchange(sock, frame(apis.API_VERSIONS.key, 0, 1, VERSIONS)) is not None
        return self

    def __exit__(self, *_: object) -> None:
        self.server.kill()

    def wait_until_idle(self, connections_max: int = 0, seconds: float = 10) -> None:
        """Wait until the connections that were closed here are closed there."""
        before = time.monotonic() + seconds
        while self.connections > connections_max and time.monotonic() < before:
            time.sleep(0.02)

    @property
    def connections(self) -> int:
        links = []
        for entry in os.listdir(f"/proc/{self.server.pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{self.server.pid}/fd/{entry}"))
        return sum(link.startswith("socket:") for link in links) - self._own_sockets

    _own_sockets = 0

    def count_own_sockets(self) -> None:
        self._own_sockets = 0
        time.sleep(0.2)
        self._own_sockets = self.connections


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    options = {"netty.server.max-request-size": "16mb", "server.buffer.memory-size": "48mb"}
    with Watched(tmp_path, **options) as server:
        server.count_own_sockets()
        yield server


def send_incomplete(sock: socket.socket, size_bytes: int, seconds: float = 0.3) -> int:
    """Send a frame without its last bytes, as far as the server takes it; returns how much it took."""
    sock.settimeout(seconds)
    data = memoryview(struct.pack(">ihhi", size_bytes, apis.PRODUCE_LOG.key, 0, 1) + bytes(size_bytes - 1024))
    sent = 0
    try:
        while sent < len(data):
            sent += sock.send(data[sent : sent + MIB])
    except OSError:  # the server stopped reading, or closed the connection
        return sent
    return sent


def check_incomplete_frames(watched: Watched, connections: int, frame_bytes: int, bound_bytes: int) -> None:
    before = watched.memory_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            send_incomplete(stack.enter_context(watched.connect()), frame_bytes)
        time.sleep(0.3)
        grown = watched.memory_bytes - before
        assert grown < bound_bytes, f"{connections} incomplete frames take {grown // MIB} MiB"
        # Small requests are served meanwhile, and a large one as soon as the silent ones have been closed.
        sock = stack.enter_context(watched.connect())
        assert exchange(sock, frame(apis.API_VERSIONS.key, 0, 1, VERSIONS)) is not None
        large = frame(apis.PRODUCE_LOG.key, 0, 2, bytes(frame_bytes - 1024))
        assert exchange(sock, large, 60) is not None


def test_incomplete_frames_stay_within_the_budget(watched: Watched) -> None:
    check_incomplete_frames(watched, 6, 15 * MIB, (48 + 24) * MIB)


def test_memory_of_closed_connections_is_given_back(watched: Watched) -> None:
    """At once, and not at the next search for reference cycles."""
    before = watched.memory_bytes
    for _ in range(20):
        with watched.connect() as sock:
            assert send_incomplete(sock, 15 * MIB, 5) > 14 * MIB
    watched.wait_until_idle()
    grown = watched.memory_bytes - before
    assert grown < 40 * MIB, f"20 closed connections left {grown // MIB} MiB"


def test_memory_before_authentication(watched: Watched) -> None:
    """A connection that has not authenticated holds 64 KB at most, whatever it sends and does not take."""
    count = 100
    before = watched.memory_bytes
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(watched.connect(watched.sasl)) for _ in range(count)]
        for sock in socks[: count // 2]:
            # As much as is allowed, and one byte less than all of it.
            sock.sendall(struct.pack(">ihhi", 32 * 1024, apis.AUTHENTICATE.key, 0, 1) + bytes(32 * 1024 - 9))
        for sock in socks[count // 2 :]:
            # Questions without taking the answers.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                for _ in range(60):
                    sock.sendall(frame(apis.API_VERSIONS.key, 0, 1, VERSIONS) * 500)
        for _ in range(20):
            time.sleep(0.1)
            grown = watched.memory_bytes - before
            assert grown < count * 64 * 1024, f"{count} unauthenticated connections take {grown // 1024} KiB"


def partial_hello(size_bytes: int, sent_bytes: int) -> bytes:
    """The beginning of a client hello of this size, in records as large as they may be."""
    message = b"\x01" + size_bytes.to_bytes(3, "big") + b"\x03\x03" + bytes(size_bytes - 2)
    records = [message[at : at + 16384] for at in range(0, len(message), 16384)]
    return b"".join(b"\x16\x03\x01" + len(one).to_bytes(2, "big") + one for one in records)[:sent_bytes]


@pytest.mark.parametrize(
    ("hello", "is_refused"),
    [
        (b"", False),
        (partial_hello(8_000, 7_999), False),
        (partial_hello(16_380, 16_388), True),
        (partial_hello(130_000, 130_000), True),
    ],
    ids=["silent", "almost complete", "one byte short of a record", "large"],
)
def test_memory_of_unfinished_tls_handshakes(tmp_path: Path, hello: bytes, is_refused: bool) -> None:
    count = 300
    options: dict[str, object] = {
        "security.protocol.map": "FLUSS:ssl",
        "security.ssl.keystore.location": Authority(tmp_path).issue("server", host="127.0.0.1"),
    }
    watched = ServerProcess(tmp_path, **{"bind.listeners": "FLUSS://127.0.0.1:0"} | options)
    with watched.server, contextlib.ExitStack() as stack:
        [address] = watched.server.addresses
        trust = ssl.create_default_context(cafile=str(tmp_path / "tests-ca.pem"))
        for _ in range(10):  # what the first ones load is no part of the others
            trust.wrap_socket(watched.connect(address), server_hostname="127.0.0.1").close()
        before = watched.memory_bytes
        socks = [stack.enter_context(watched.connect(address)) for _ in range(count)]
        for sock in socks:
            with contextlib.suppress(ConnectionError):
                sock.sendall(hello)
        if is_refused:
            assert all(is_closed_within(sock, 5) for sock in socks)
        for _ in range(10):
            time.sleep(0.1)
            grown = watched.memory_bytes - before
            assert grown < count * 64 * 1024, f"{count} unfinished handshakes take {grown // 1024} KiB"


def test_a_large_frame_before_authentication_ends_the_connection(watched: Watched) -> None:
    with watched.connect(watched.sasl) as sock:
        sock.sendall(struct.pack(">ihhi", 64 * 1024, apis.AUTHENTICATE.key, 0, 1))
        assert is_closed_within(sock, 3)


def open_and_close(watched: Watched, count: int) -> None:
    for number in range(count):
        with watched.connect(watched.sasl if number % 2 else watched.plain) as sock:
            assert exchange(sock, frame(apis.API_VERSIONS.key, 0, 1, VERSIONS)) is not None


def check_memory_after_connections(watched: Watched, count: int) -> None:
    open_and_close(watched, 300)
    watched.wait_until_idle()
    memory, files = watched.memory_bytes, watched.open_files
    open_and_close(watched, count)
    watched.wait_until_idle()
    assert watched.open_files <= files + 1
    assert watched.memory_bytes - memory < 6 * MIB


def test_memory_and_handles_after_many_connections(watched: Watched) -> None:
    check_memory_after_connections(watched, 1_000)


@pytest.mark.slow
def test_memory_and_handles_after_ten_thousand_connections(watched: Watched) -> None:
    check_memory_after_connections(watched, 10_000)


@pytest.mark.slow
def test_thirty_frames_of_98_mb_with_default_options(tmp_path: Path) -> None:
    with Watched(tmp_path) as watched:
        check_incomplete_frames(watched, 30, 98 * MIB, (512 + 64) * MIB)


@pytest.mark.slow
def test_twenty_closed_connections_of_98_mb_with_default_options(tmp_path: Path) -> None:
    with Watched(tmp_path) as watched:
        watched.count_own_sockets()
        before = watched.memory_bytes
        for _ in range(20):
            with watched.connect() as sock:
                assert send_incomplete(sock, 98 * MIB, 20) > 97 * MIB
        watched.wait_until_idle()
        assert watched.memory_bytes - before < 64 * MIB


# Handles --------------------------------------------------------------------------------------------------------------


def limit_handles(watched: Watched, limit: int) -> None:
    resource.prlimit(watched.server.pid, resource.RLIMIT_NOFILE, (limit, limit))


@pytest.mark.parametrize("listener", ["plain", "sasl"])
def test_idle_connections_do_not_starve_the_server(tmp_path: Path, listener: str) -> None:
    """More of them than the process has handles: clients that work go on, new ones get in, new files are opened."""
    with Watched(tmp_path) as watched, contextlib.ExitStack() as stack:
        limit_handles(watched, 256)
        healthy = HealthyClient(watched.plain)
        healthy.start()
        assert healthy.started.wait(30)
        assert healthy.error is None
        for _ in range(400):
            stack.enter_context(watched.connect(getattr(watched, listener)))
        time.sleep(0.5)
        assert watched.open_files <= 256 // 2 + 64
        served = healthy.served
        late = HealthyClient(watched.plain, "late")
        late.start()
        assert late.started.wait(10)
        time.sleep(1)
        for client in (healthy, late):
            client.stopping.set()
            client.join(10)
            assert client.error is None
        assert healthy.served > served
        assert late.served > 0
        assert "cannot accept" not in watched.server.log_text


# Mixed load -----------------------------------------------------------------------------------------------------------


async def _mixed_load(address: str, seconds: float, sample: Callable[[], None]) -> int:
    """Write, read, look up, scan and create and drop tables until the time is over; returns how many rounds it took."""
    rounds = 0
    deadline = time.monotonic() + seconds
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
    while time.monotonic() < deadline or rounds < MIXED_ROUNDS_MIN:
        # New connections each time, and tables that go again: what they take has to come back.
        async with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address})) as connection:
            admin = connection.get_admin()
            await admin.create_database("mixed", ignore_if_exists=True)
            log, keyed = (fluss.TablePath("mixed", f"{kind}{rounds % 5}") for kind in ("log", "keyed"))
            await admin.create_table(log, fluss.TableDescriptor(fluss.Schema(columns), bucket_count=2))
            schema = fluss.Schema(columns, primary_keys=["id"])
            await admin.create_table(keyed, fluss.TableDescriptor(schema, bucket_count=2))
            ids = list(range(rounds * 50, rounds * 50 + 2_000))
            data = pa.table({"id": ids, "name": [f"row {number}" for number in ids]}, schema=columns)
            log_table, keyed_table = await connection.get_table(log), await connection.get_table(keyed)
            async with log_table.new_append().create_writer() as appender:
                appender.write_arrow(data)
            async with keyed_table.new_upsert().create_writer() as upserter:
                upserter.write_arrow(data)
            lookuper = keyed_table.new_lookup().create_lookuper()
            found = await asyncio.gather(*(lookuper.lookup([number]) for number in ids[:100]))
            assert all(row is not None for row in found)
            for bucket in range(2):
                table_bucket = fluss.TableBucket(keyed_table.get_table_info().table_id, bucket)
                await keyed_table.new_scan().create_bucket_batch_scanner(table_bucket).to_arrow()
            for path in (log, keyed):
                await admin.drop_table(path)
        rounds += 1
        sample()
    return rounds


@contextlib.contextmanager
def without_stalls(watched: Watched, control: Watched) -> Iterator[None]:
    """Fail if the server answers nothing for a while in which the other one, on the same machine, answers."""
    command = [sys.executable, "-m", "tests.abuse.stalls", watched.plain, control.plain]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield
            found, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert json.loads(found) == []


def check_mixed_load(folder: Path, seconds: float, growth_bytes_max: int) -> None:
    samples: list[Usage] = []
    with (
        Watched(folder / "loaded") as watched,
        Watched(folder / "control") as control,
        without_stalls(watched, control),
    ):
        rounds = asyncio.run(_mixed_load(watched.plain, seconds, lambda: samples.append(watched.usage)))
    # The first third fills caches and pools; from then on everything has to be flat.
    steady = samples[len(samples) // 3 :]
    half = len(steady) // 2
    first, last = (Usage(*map(fmean, zip(*part))) for part in (steady[:half], steady[half:]))
    print(f"{rounds} rounds in {seconds:.0f} s: {first}, then {last}")
    assert last.memory_bytes - first.memory_bytes < growth_bytes_max
    assert last.files - first.files < 3
    assert last.threads - first.threads < 1


def test_mixed_load(tmp_path: Path) -> None:
    check_mixed_load(tmp_path, 2, 24 * MIB)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_long_mixed_load(tmp_path: Path) -> None:
    check_mixed_load(tmp_path, 60 * float(os.environ.get("MINUTES", "60")), 16 * MIB)


def test_stalls_that_the_control_has_too_are_those_of_the_machine() -> None:
    stall = Wait(10, 0.4)
    assert stalls([stall, Wait(20, 0.2)], []) == [stall]
    assert stalls([stall], [Wait(9.9, 0.3)]) == []
    assert stalls([stall], [Wait(9, 0.9), Wait(10.1, 0.15), Wait(10.4, 1)]) == [stall]
