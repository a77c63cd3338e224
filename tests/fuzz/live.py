# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.fuzz.live --frames 100000``: changed frames against a running server.

Half of the frames have changed records with a checksum that fits, half are changed anywhere behind their length. The
server must answer or close the connection, log no unexpected error, and serve what it accepted: every stored batch and
row is read in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tests.fuzz.mutations import byte_ops, change_bytes
from tests.fuzz.targets import KvReader, LogReader, reseal_kv, reseal_log
from tests.server.log_support import SCHEMA, Client, connected, make_batch, rows, running_server

from fluss.errors import FlussError
from fluss.metadata import Column, IntType, Schema, StringType, TableDescriptor
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.frames import encode_request
from fluss.protocol.lookup_messages import encode_lookup
from fluss.protocol.record_messages import encode_produce_log, encode_put_kv
from fluss.records import encode_arrow_body, encode_kv_body, seal_kv_batch, seal_log_batch
from fluss.rows import Slices, compacted
from fluss.server.server import Server

KV_SCHEMA = Schema.of([Column("id", IntType(nullable=False)), Column("name", StringType())], primary_key=["id"])
_TIMEOUT_MS = 1000
_FRAME = struct.Struct(">i")
Make = Callable[[random.Random], Sequence[bytes | bytearray | memoryview]]


class _Errors(logging.Handler):
    """What the server did not foresee."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self.found.append(text[:500])


class LiveRun:
    """One server, and connections that send what no correct client would."""

    def __init__(self, frames: int, seed: int) -> None:
        self.frames = frames
        self.generator = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.errors = _Errors()

    async def run(self, folder: Path) -> None:
        logger = logging.getLogger("fluss.server")
        logger.addHandler(self.errors)
        try:
            async with running_server(folder) as server:
                async with connected(server) as client:
                    await self._prepare(client)
                await self._send_records(server)
                await self._send_frames(server)
                async with connected(server) as client:
                    await self._read_all(client)
        finally:
            logger.removeHandler(self.errors)

    async def _prepare(self, client: Client) -> None:
        self.log_table = await client.create_table("log")
        path = pb.PbTablePath(database_name="fluss", table_name="kv")
        descriptor = TableDescriptor(KV_SCHEMA, bucket_count=1)
        await client.call(
            apis.CREATE_TABLE,
            pb.CreateTableRequest(table_path=path, table_json=descriptor.to_json_bytes(), ignore_if_exists=False),
        )
        self.kv_table = int((await client.call(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path))).table_id)
        self.log_seeds = [
            b"".join(seal_log_batch(encode_arrow_body(rows(0, count), compression=codec), schema_id=1))
            for count in (1, 3, 40)
            for codec in ("NONE", "LZ4_FRAME", "ZSTD")
        ]
        self.log_seeds.append(bytes(make_batch(0, 5, statistics=True)))
        encoded = [compacted.encode_row(KV_SCHEMA.data_types, (i, f"name-{i}" * i)) for i in range(6)]
        keys = Slices.from_list([compacted.encode_key([IntType(nullable=False)], (i,)) for i in range(6)])
        deletes = np.array([False, False, True, False, False, False])
        body = encode_kv_body(keys, Slices.from_list(encoded), deletes)
        self.kv_seed = b"".join(seal_kv_batch(body, schema_id=1))

    # -- records ----------------------------------------------------------------------------------------------------

    def _changed(self, seed: bytes) -> bytes:
        return change_bytes(seed, byte_ops(self.generator, len(seed)))

    async def _send_records(self, server: Server) -> None:
        """Requests that are well-formed up to the records in them."""
        left = self.frames // 2
        while left > 0:
            async with connected(server) as client:
                for _ in range(min(left, 500)):
                    left -= 1
                    if self.generator.random() < 0.6:
                        data = reseal_log(self._changed(self.generator.choice(self.log_seeds)))
                        body = encode_produce_log(-1, self.log_table, _TIMEOUT_MS, [(None, 0, [data])])
                        api, answer_type = apis.PRODUCE_LOG, pb.ProduceLogResponse
                    else:
                        data = reseal_kv(self._changed(self.kv_seed))
                        targets = [0, 1] if self.generator.random() < 0.5 else []
                        body = encode_put_kv(
                            -1, self.kv_table, _TIMEOUT_MS, [(None, 0, [data])], target_columns=targets
                        )
                        api, answer_type = apis.PUT_KV, pb.PutKvResponse  # type: ignore[assignment]
                    try:
                        answer = answer_type.FromString(bytes(await client.connection.call_parts(api, body)))
                        code = answer.buckets_resp[0].error_code
                        self.outcomes[f"{api.name}: {code or 'accepted'}"] += 1
                    except FlussError as error:
                        self.outcomes[f"{api.name}: {type(error).__name__}"] += 1
                        if client.connection.closed:
                            break

    # -- frames -----------------------------------------------------------------------------------------------------

    def _frame_seeds(self) -> list[bytes]:
        fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 20)
        table = fetch.tables_req.add(table_id=self.log_table, projection_pushdown_enabled=True, projected_fields=[0, 1])
        table.buckets_req.add(bucket_id=0, fetch_offset=0, max_fetch_bytes=1 << 20)
        path = pb.PbTablePath(database_name="fluss", table_name="log")
        requests: list[tuple[apis.Api, Sequence[bytes | bytearray | memoryview]]] = [
            (apis.PRODUCE_LOG, encode_produce_log(1, self.log_table, 100, [(None, 0, [self.log_seeds[0]])])),
            (apis.PUT_KV, encode_put_kv(1, self.kv_table, 100, [(None, 0, [self.kv_seed])])),
            (apis.LOOKUP, [encode_lookup(self.kv_table, [(None, 0, [b"\1", b"\2"])])]),
            (apis.FETCH_LOG, [fetch.SerializeToString()]),
            (
                apis.LIMIT_SCAN,
                [pb.LimitScanRequest(table_id=self.kv_table, bucket_id=0, limit=10).SerializeToString()],
            ),
            (
                apis.LIST_OFFSETS,
                [
                    pb.ListOffsetsRequest(
                        follower_server_id=-1, offset_type=0, table_id=self.log_table, bucket_id=[0]
                    ).SerializeToString()
                ],
            ),
            (apis.GET_TABLE_INFO, [pb.GetTableInfoRequest(table_path=path).SerializeToString()]),
        ]
        return [b"".join(encode_request(api.key, 0, number, body)) for number, (api, body) in enumerate(requests)]

    async def _send_frames(self, server: Server) -> None:
        """Frames that are changed anywhere behind their length, which is made to fit."""
        bound = server.listeners["FLUSS"]
        handshake = b"".join(
            encode_request(
                apis.API_VERSIONS.key,
                0,
                1_000_000,
                [pb.ApiVersionsRequest(client_software_name="fuzz", client_software_version="1").SerializeToString()],
            )
        )
        seeds = self._frame_seeds()
        left = self.frames - self.frames // 2
        while left > 0:
            reader, writer = await asyncio.open_connection(bound.host, bound.port)
            try:
                writer.write(handshake)
                count = min(left, 40)
                left -= count
                for _ in range(count):
                    content = self._changed(self.generator.choice(seeds)[4:])
                    writer.write(_FRAME.pack(len(content)) + content)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                self.outcomes["frames"] += count
                self.outcomes["bytes answered"] += await _drain(reader)
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    # -- what is left -----------------------------------------------------------------------------------------------

    async def _read_all(self, client: Client) -> None:
        """Read every batch and row that the server accepted, as a client would."""
        reader = LogReader(SCHEMA)
        offset = 0
        while True:
            answer = await client.fetch(self.log_table, offset, max_bytes=1 << 26)
            assert not answer.HasField("error_code"), answer.error_message
            if not answer.records:
                break
            offset = self._read_batches(reader, answer.records, offset)
        assert offset == answer.high_watermark
        request = pb.LimitScanRequest(table_id=self.kv_table, bucket_id=0, limit=1_000_000).SerializeToString()
        response = pb.LimitScanResponse.FromString(
            bytes(await client.connection.call_parts(apis.LIMIT_SCAN, [request]))
        )
        assert not response.error_code, response.error_message
        if response.records:
            KvReader(KV_SCHEMA, "COMPACTED").read_values(bytes(response.records))

    def _read_batches(self, reader: LogReader, records: bytes, offset: int) -> int:
        from fluss.records import iter_log_batches

        for batch in iter_log_batches(records):
            assert batch.header.base_offset == offset
            offset = batch.header.next_offset
            try:
                reader.read(bytes(batch.view))
                self.outcomes["batches read"] += 1
            except FlussError:
                self.outcomes["batches refused by the reader"] += 1
        return offset


async def _drain(reader: asyncio.StreamReader) -> int:
    """Read until the server has nothing more to say for a moment, or closes."""
    size = 0
    with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
        while data := await asyncio.wait_for(reader.read(1 << 16), 0.05):
            size += len(data)
    return size


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.live", description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000, help="number of frames")
    parser.add_argument("--seed", type=int, default=None, help="random without one")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    run = LiveRun(options.frames, seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fluss-fuzz-") as folder:
        asyncio.run(run.run(Path(folder)))
    seconds = time.monotonic() - began
    print(f"seed {seed}: {options.frames:,} frames in {seconds:.0f} s, {len(run.errors.found)} unexpected errors")
    for outcome, count in sorted(run.outcomes.items()):
        print(f"  {count:>9,} {outcome}")
    for text in run.errors.found[:20]:
        print(text, file=sys.stderr)
    return 1 if run.errors.found else 0


if __name__ == "__main__":
    raise SystemExit(main())
