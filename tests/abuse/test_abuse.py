# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from tests.abuse.attackers import MIB, Attacked, error_of, exchange, frame, is_closed_within, mutations
from tests.server.log_support import fetch_request
from tests.waiting import at_most, wait_for

from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.frames import parse_response

IDLE_SECONDS = 3.0


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    attacked = Attacked(tmp_path_factory.mktemp("abuse"))
    try:
        attacked.start()
        yield attacked
        attacked.stop()
    finally:
        attacked.server.kill()


@pytest.fixture(autouse=True)
def unharmed(attacked: Attacked) -> Iterator[None]:
    yield
    attacked.check()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 1, 7, 16 * MIB + 1, (1 << 31) - 1])
def test_impossible_lengths_end_the_connection(attacked: Attacked, length: int) -> None:
    with attacked.connect() as sock:
        sock.sendall(struct.pack(">i", length) + bytes(100))
        assert is_closed_within(sock, 3)


def test_half_frames_do_not_take_memory_and_are_not_kept(attacked: Attacked, stack: contextlib.ExitStack) -> None:
    socks = [stack.enter_context(attacked.connect()) for _ in range(60)]
    for number, sock in enumerate(socks):
        # All announce as much as is allowed; together that is twenty times the memory for requests.
        sock.sendall(struct.pack(">ihhi", 16 * MIB, 1014, 0, 1) + bytes(number * 1000))
    attacked.watch(1)
    assert all(is_closed_within(sock, IDLE_SECONDS + 4) for sock in socks)


def test_large_frames_that_never_end_leave_room_for_others(attacked: Attacked, stack: contextlib.ExitStack) -> None:
    """More bytes than the server keeps for all requests, from connections that then fall silent."""
    for _ in range(8):
        sock = stack.enter_context(attacked.connect())
        sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError):  # the server stops reading, as it should
            sock.sendall(struct.pack(">ihhi", 16 * MIB, 1014, 0, 1) + bytes(12 * MIB))
    attacked.watch(1)


def test_more_connections_than_allowed(attacked: Attacked) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(attacked.connect()) for _ in range(200)]
        attacked.watch(0.5)
        assert sum(is_closed_within(sock, 0.01) for sock in socks) >= 40
    request = pb.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    ask = frame(apis.API_VERSIONS.key, 0, 1, request.SerializeToString())

    def is_served() -> bool:
        with attacked.connect() as sock:
            answer = exchange(sock, ask)
            return answer is not None and error_of(answer) is None

    wait_for(is_served)  # their places are free again


def test_readers_that_never_take_their_answers(attacked: Attacked, stack: contextlib.ExitStack) -> None:
    request = pb.MetadataRequest()
    request.table_path.add(database_name="abuse", table_name="keyed")
    ask = frame(apis.GET_METADATA.key, 0, 1, request.SerializeToString())
    before = attacked.open_files
    for _ in range(6):
        sock = stack.enter_context(attacked.connect())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(0.3)
        with contextlib.suppress(TimeoutError):  # the server stops reading, as it should
            for _ in range(20):
                sock.sendall(ask * 500)
    attacked.watch(1)
    # Who takes nothing for so long is not waited for. Asked of the system: reading here would be taking.
    wait_for(lambda: attacked.open_files <= before + 2)


def test_nothing_is_served_before_authentication(attacked: Attacked) -> None:
    allowed = {apis.API_VERSIONS.key, apis.AUTHENTICATE.key}
    asked = 0
    for data in attacked.frames:
        (api_key,) = struct.unpack_from(">h", data, 4)
        if api_key in allowed:
            continue
        with attacked.connect(attacked.sasl) as sock:
            answer = exchange(sock, data)
            assert answer is None or error_of(answer) == 46
            asked += 1
    assert asked > 50
    with attacked.connect(attacked.sasl) as sock:
        request = pb.AuthenticateRequest(protocol="PLAIN", token=b"\0user\0wrong")
        assert error_of(exchange(sock, frame(apis.AUTHENTICATE.key, 0, 1, request.SerializeToString()))) == 46
        assert attacked.server.log_text.count("wrong") == 0


def test_every_version_number_is_answered(attacked: Attacked) -> None:
    with attacked.connect() as sock:
        for number, api in enumerate(apis.APIS.values()):
            for version in (-32768, -1, 0, api.max_version + 1, 32767):
                answer = exchange(sock, frame(api.key, version, number, b""))
                assert answer is not None
                assert parse_response(memoryview(answer)).request_id == number


def length_delimited(field: int, body: bytes) -> bytes:
    size, text = len(body), bytearray()
    for value in (field << 3 | 2, size):
        while value > 127:
            text.append(value & 127 | 128)
            value >>= 7
        text.append(value)
    return bytes(text) + body


@pytest.mark.parametrize("depth", [50, 99, 1000, 5000])
def test_deep_predicate_trees(attacked: Attacked, depth: int) -> None:
    request = fetch_request(0, 0, max_bytes=1000)
    [table] = request.tables_req
    predicate = pb.PbPredicate.DESCRIPTOR.fields_by_name
    compound = predicate["compound"].message_type.fields_by_name["children"].number
    body = b""
    for _ in range(depth):
        body = length_delimited(predicate["compound"].number, length_delimited(compound, body) + b"\x08\x00")
    filter_field = table.DESCRIPTOR.fields_by_name["filter_predicate"].number
    table_field = request.DESCRIPTOR.fields_by_name["tables_req"].number
    whole = table.SerializeToString() + length_delimited(filter_field, body)
    del request.tables_req[:]
    data = request.SerializeToString() + length_delimited(table_field, whole)
    with attacked.connect() as sock:
        assert exchange(sock, frame(apis.FETCH_LOG.key, 0, 7, data)) is not None


def giant_requests() -> dict[str, tuple[apis.Api, bytes]]:
    """Requests of some megabytes that are nothing but one field, repeated."""
    path = length_delimited(1, b"abuse") + length_delimited(2, b"log")
    listed = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=0, table_id=0)
    lookup = pb.LookupRequest(table_id=1)
    lookup.buckets_req.add(bucket_id=0).keys.extend([b"k"] * 300_000)
    fetch = fetch_request(0, 0, buckets=[0] * 50_000, max_bytes=1000, max_wait_ms=0)
    put = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1000)
    produce = pb.ProduceLogRequest(acks=-1, table_id=0, timeout_ms=1000)
    for _ in range(50_000):
        put.buckets_req.add(bucket_id=0, records=b"")
        produce.buckets_req.add(bucket_id=0, records=b"")
    columns = fetch_request(0, 0, max_bytes=1000, max_wait_ms=0)
    columns.tables_req[0].projection_pushdown_enabled = True
    columns.tables_req[0].projected_fields.extend([0] * 2_000_000)
    fetch_head = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1000, max_wait_ms=0).SerializePartialToString()
    table_head = b"\x08\x00\x10\x00"
    whole_bucket, empty = length_delimited(4, b"\x10\x00\x18\x00\x20\x01"), length_delimited(4, b"")
    written, unknown = b"\x10\x00\x1a\x00", b"\x78\x00"
    write_head = pb.ProduceLogRequest(acks=-1, table_id=0, timeout_ms=1000).SerializePartialToString()
    lookup_head = pb.LookupRequest(table_id=1).SerializePartialToString()
    prefix = pb.PrefixLookupRequest(table_id=1)
    prefix.buckets_req.add(bucket_id=0).keys.extend([b""] * 50_000)
    return {
        # Two bytes for each message that the parser makes.
        "empty messages": (apis.GET_METADATA, length_delimited(1, b"") * 7_000_000),
        "some empty messages": (apis.GET_METADATA, length_delimited(1, b"") * 2_000_000),
        "buckets without fields": (apis.FETCH_LOG, fetch_head + length_delimited(3, table_head + empty * 2_000_000)),
        "many fetched buckets": (apis.FETCH_LOG, fetch_head + length_delimited(3, table_head + whole_bucket * 450_000)),
        "unknown numbers": (apis.PRODUCE_LOG, write_head + unknown * 7_000_000),
        "many written buckets": (apis.PRODUCE_LOG, write_head + length_delimited(4, written) * 2_000_000),
        "buckets of unknown numbers": (
            apis.PRODUCE_LOG,
            write_head + length_delimited(4, written + unknown * 150) * 40_000,
        ),
        "target columns": (apis.PUT_KV, write_head + length_delimited(4, bytes(15_000_000))),
        "empty keys": (apis.LOOKUP, lookup_head + length_delimited(2, b"\x10\x00" + b"\x1a\x00" * 7_000_000)),
        "prefixes of everything": (apis.PREFIX_LOOKUP, prefix.SerializeToString()),
        "metadata": (apis.GET_METADATA, length_delimited(1, path) * 100_000),
        "offsets": (apis.LIST_OFFSETS, listed.SerializeToString() + b"\x28\x00" * 500_000),
        "lookup": (apis.LOOKUP, lookup.SerializeToString()),
        "fetch": (apis.FETCH_LOG, fetch.SerializeToString()),
        "projection": (apis.FETCH_LOG, columns.SerializeToString()),
        "put": (apis.PUT_KV, put.SerializeToString()),
        "produce": (apis.PRODUCE_LOG, produce.SerializeToString()),
        "writers": (apis.INIT_WRITER, length_delimited(1, path) * 200_000),
        "unknown fields": (apis.LIST_DATABASES, length_delimited(999, b"x" * 100) * 100_000),
    }


def test_giant_repeated_fields(attacked: Attacked) -> None:
    peaks = [0, 0]
    for turn in range(2):
        for name, (api, body) in giant_requests().items():
            with attacked.connect() as sock, at_most(10):
                answer = exchange(sock, frame(api.key, api.max_version, 9, body), 30)
                assert answer is not None, name
                assert parse_response(memoryview(answer)).request_id == 9
            attacked.check()
        peaks[turn] = attacked.peak_bytes()
    # What one request took is there for the next: the process keeps it. At most one request's worth comes on top, when
    # the memory of the one before is not free yet; a leak would add several hundred MiB.
    assert peaks[1] < peaks[0] + 128 * MIB


def test_clients_that_go_away_in_the_middle(attacked: Attacked) -> None:
    randomness = random.Random(5)
    for _ in range(150):
        sock = attacked.connect()
        data = randomness.choice(attacked.frames)
        sock.sendall(data * 3 if randomness.random() < 0.5 else data[: randomness.randrange(len(data))])
        if randomness.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


# Last, because mutated requests drop and alter the tables of the others.


def attack_with_mutations(attacked: Attacked, seconds: float, seed: int) -> int:
    """Several connections send mutated frames as fast as they are answered; returns how many were sent."""
    deadline = time.monotonic() + seconds
    sent = [0]

    def attack(number: int) -> None:
        randomness = random.Random(seed * 100 + number)
        source = mutations(attacked.frames, randomness)
        while time.monotonic() < deadline:
            with attacked.connect() as sock:
                sock.settimeout(0.05)
                try:
                    for _ in range(randomness.randint(1, 200)):
                        sock.sendall(b"".join(next(source) for _ in range(randomness.choice((1, 1, 1, 3)))))
                        sent[0] += 1
                        if randomness.random() < 0.5:
                            try:
                                if not sock.recv(1 << 16):
                                    break
                            except TimeoutError:
                                # An answer that takes time (a fetch that waits), or half a frame.
                                break
                        if time.monotonic() > deadline:
                            break
                except OSError:
                    continue

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    attacked.watch(seconds)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return sent[0]


def test_mutated_frames(attacked: Attacked) -> None:
    assert attack_with_mutations(attacked, 8, seed=1) > 100


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_mutated_frames(attacked: Attacked, seed: int) -> None:
    attack_with_mutations(attacked, 120, seed)
