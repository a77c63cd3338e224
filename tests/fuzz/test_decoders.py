# SPDX-License-Identifier: Apache-2.0
"""Every decoder against bytes that were good once.

Valid inputs are mutated from fixed seeds: each family of decoders sees 25,000 inputs, and 400,000 in
the slow test. A decoder may accept or refuse them, but it refuses with an error of our own tree, quickly, and without
asking for memory out of proportion.
"""

from __future__ import annotations

import itertools
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.records import vectors
from tests.records.tables import ALL_TYPES, ID_NAME, NESTED, NESTED_ROWS, ROW_A, ROW_B, project_batch, to_batch

from fluss.errors import FlussError
from fluss.metadata import Schema, statistics_columns
from fluss.metadata.predicate import col
from fluss.protocol import messages as pb
from fluss.protocol.frames import FrameReader, encode_error, encode_request, parse_error, parse_request, parse_response
from fluss.protocol.lookup_messages import (
    LookedUpBucket,
    decode_lookup,
    decode_lookup_response,
    encode_lookup,
    encode_lookup_response,
)
from fluss.protocol.predicates import decode_predicate, encode_predicate
from fluss.protocol.record_messages import (
    FetchedBucket,
    FetchedTable,
    decode_fetch_log_response,
    decode_produce_log,
    decode_put_kv,
    encode_fetch_log_response,
    encode_produce_log,
    encode_put_kv,
)
from fluss.protocol.wire import parse_message
from fluss.records import (
    KvBatch,
    LogBatch,
    Statistics,
    build_statistics,
    decode_arrow_batch,
    decode_row_batch,
    decode_value_batch,
    encode_arrow_body,
    encode_row_body,
    encode_value_batch,
    iter_log_batches,
    read_header,
    seal_log_batch,
)
from fluss.records.log_batch import EncodedBody
from fluss.rows import aligned, compacted, indexed, vector
from fluss.rows.slices import Slices
from fluss.server.auth import Accounts
from fluss.server.config import ServerConfig

SECONDS_PER_INPUT_MAX = 2.0
MEMORY_GROWTH_KB_MAX = 400_000

_INTERESTING = [0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1]


@dataclass(frozen=True)
class Target:
    """One decoder and inputs that it accepts."""

    name: str
    decode: Callable[[bytes], object]
    seeds: list[bytes]


def mutations(seeds: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` damaged copies, always the same ones for the same arguments."""
    generator = random.Random(seed)
    below = generator.random  # much cheaper than randrange
    for _ in range(count):
        data = bytearray(seeds[int(below() * len(seeds))])
        for _ in range(1 + int(below() * 3)):
            size = len(data)
            kind = int(below() * 8)
            at = int(below() * size) if size else 0
            if size == 0 or kind == 0:
                data[at:at] = generator.randbytes(1 + int(below() * 8))
            elif kind in (1, 2):
                data[at] ^= 1 << int(below() * 8)
            elif kind == 3:
                data[at] = int(below() * 256)
            elif kind == 4:
                width = (1, 2, 4, 8)[int(below() * 4)]
                value = _INTERESTING[int(below() * len(_INTERESTING))]
                data[at : at + width] = (value % (1 << (8 * width))).to_bytes(width, "little")
            elif kind == 5:
                del data[at:]
            elif kind == 6:
                del data[at : at + 1 + int(below() * 8)]
            else:
                other = seeds[int(below() * len(seeds))]
                start = int(below() * len(other))
                data[at : at + 16] = other[start : start + int(below() * 32)]
        yield bytes(data)


# -- rows --------------------------------------------------------------------------------------------------------------

FLAT_TYPES = ALL_TYPES.data_types
NESTED_TYPES = NESTED.data_types


def _row_targets() -> list[Target]:
    targets = []
    for name, coder in (("compacted", compacted), ("indexed", indexed), ("aligned", aligned)):
        for kind, types, rows in (
            ("flat", FLAT_TYPES, [ROW_A, ROW_B]),
            ("nested", NESTED_TYPES, NESTED_ROWS),
        ):
            seeds = [coder.encode_row(types, row) for row in rows]
            targets.append(
                Target(f"{name} {kind}", lambda data, coder=coder, types=types: coder.decode_row(types, data), seeds)
            )
    flat = [compacted.encode_row(FLAT_TYPES, row) for row in (ROW_A, ROW_B)]
    nested = [compacted.encode_row(NESTED_TYPES, row) for row in NESTED_ROWS]
    key_types = [data_type.with_nullable(False) for data_type in FLAT_TYPES]
    key = compacted.encode_key(key_types, ROW_A)
    return [
        *targets,
        Target(
            "compacted columns",
            lambda data: vector.decode_compacted(FLAT_TYPES, Slices.from_list([flat[0], data, flat[1]])),
            flat,
        ),
        Target(
            "compacted nested columns",
            lambda data: vector.decode_compacted(NESTED_TYPES, Slices.from_list([nested[0], data])),
            nested,
        ),
        Target("compacted key", lambda data: compacted.decode_key(key_types, data), [key]),
        Target(
            "compacted key columns",
            lambda data: vector.decode_compacted_key(key_types, Slices.from_list([key, data])),
            [key],
        ),
    ]


# -- records -----------------------------------------------------------------------------------------------------------


def _with_message(message: bytes) -> LogBatch:
    return LogBatch(b"".join(seal_log_batch(EncodedBody([message], len(message), 2, True), schema_id=1)))


def _decode_arrow(batch: LogBatch, schema: Schema) -> None:
    batch.change_types()
    decode_arrow_batch(batch, schema.arrow_schema, max_bytes=1 << 20)


def _walk(data: bytes, strict: bool) -> None:
    for batch in iter_log_batches(data, strict=strict):
        _decode_arrow(batch, ID_NAME)


def _project(data: bytes, columns: list[int], schema: Schema) -> None:
    joined = b"".join(project_batch(LogBatch(data), columns, schema.arrow_schema))
    assert read_header(joined).size_bytes == len(joined) <= len(data) + 64


def _kv_batch(data: bytes) -> None:
    batch = KvBatch.parse(data, verify=False)
    assert len(batch.keys.to_list()) == len(batch.rows.to_list()) == batch.record_count


def _arrow_batches(schema: Schema, rows: list[Any]) -> list[bytes]:
    batch = to_batch(schema, rows)
    return [
        b"".join(seal_log_batch(encode_arrow_body(batch, compression=compression), schema_id=1))
        for compression in ("NONE", "LZ4_FRAME", "ZSTD")
    ]


def _record_targets() -> list[Target]:
    small = [
        data
        for name, data in vectors.LOG_BATCHES.items()
        if name not in ("INDEXED", "COMPACTED", "ALL_TYPES", "NESTED") and "PROJECTED" not in name
    ]
    long_rows = [(1, "a" * 300), (2, "b" * 300)]
    small += _arrow_batches(ID_NAME, long_rows)
    nested = [vectors.NESTED, *_arrow_batches(NESTED, NESTED_ROWS)]
    all_types = [vectors.ALL_TYPES, *_arrow_batches(ALL_TYPES, [ROW_A, ROW_B])]
    messages = [bytes(LogBatch(data).arrow_view) for data in small if data != vectors.EMPTY]
    indexed_batch = b"".join(
        seal_log_batch(encode_row_body("INDEXED", FLAT_TYPES, to_batch(ALL_TYPES, [ROW_A, ROW_B])), schema_id=1)
    )
    compacted_batch = b"".join(
        seal_log_batch(encode_row_body("COMPACTED", FLAT_TYPES, to_batch(ALL_TYPES, [ROW_A, ROW_B])), schema_id=1)
    )
    statistics = build_statistics(to_batch(ALL_TYPES, [ROW_A, ROW_B]), ALL_TYPES, statistics_columns(ALL_TYPES, ["*"]))
    return [
        Target("log batches", lambda data: _walk(data, strict=False), [a + b for a, b in itertools.pairwise(small)]),
        Target("log batches, strict", lambda data: _walk(data, strict=True), small),
        Target("arrow messages", lambda data: _decode_arrow(_with_message(data), ID_NAME), messages),
        Target("arrow, all types", lambda data: _decode_arrow(LogBatch(data), ALL_TYPES), all_types),
        Target("arrow, nested", lambda data: _decode_arrow(LogBatch(data), NESTED), nested),
        Target(
            "arrow, some columns",
            lambda data: decode_arrow_batch(LogBatch(data), NESTED.arrow_schema, columns=[1, 4], max_bytes=1 << 20),
            nested,
        ),
        Target("projection", lambda data: _project(data, [1], ID_NAME), small),
        Target("nested projection", lambda data: _project(data, [1, 3], NESTED), nested),
        Target(
            "indexed batches",
            lambda data: decode_row_batch(LogBatch(data), "INDEXED", ALL_TYPES.row_type),
            [indexed_batch],
        ),
        Target(
            "compacted batches",
            lambda data: decode_row_batch(LogBatch(data), "COMPACTED", ALL_TYPES.row_type),
            [compacted_batch],
        ),
        Target("statistics", lambda data: Statistics.parse(data, ALL_TYPES), [statistics]),
        Target("KV batches", _kv_batch, list(vectors.KV_BATCHES.values())),
        Target(
            "value batches",
            decode_value_batch,
            [vectors.VALUE_BATCH, encode_value_batch([b"\1\0" + bytes(40)] * 30)],
        ),
    ]


# -- protocol ----------------------------------------------------------------------------------------------------------


def _feed(data: bytes) -> None:
    reader = FrameReader(1 << 20, buffer_bytes=256)
    for start in range(0, len(data), 100):
        reader.feed(data[start : start + 100])


def _predicate(data: bytes) -> None:
    decode_predicate(parse_message(pb.PbPredicate, data), ALL_TYPES)


def _protocol_targets() -> list[Target]:
    buckets = [(None, 0, [vectors.ARROW_PLAIN]), (7, 3, [b"ab", b"cd"])]
    produce = b"".join(encode_produce_log(-1, 101, 30_000, buckets))
    put = b"".join(encode_put_kv(-1, 101, 30_000, buckets, target_columns=[0, 2], agg_mode=1))
    fetched = b"".join(
        encode_fetch_log_response(
            [
                FetchedTable(
                    101,
                    [
                        FetchedBucket(0, high_watermark=5, records=[vectors.ARROW_PLAIN]),
                        FetchedBucket(1, partition_id=4, error_code=3, error_message="no", filtered_end_offset=9),
                        FetchedBucket(
                            2,
                            remote_log_fetch_info=pb.PbRemoteLogFetchInfo(
                                remote_log_tablet_dir="file:///r",
                                partition_name="p",
                                remote_log_segments=[
                                    pb.PbRemoteLogSegment(
                                        remote_log_segment_id="id",
                                        remote_log_start_offset=0,
                                        remote_log_end_offset=9,
                                        segment_size_in_bytes=100,
                                    )
                                ],
                            ),
                        ),
                    ],
                )
            ]
        )
    )
    lookup = encode_lookup(101, [(None, 0, [b"\1", b"\2"]), (5, 1, [b"key" * 50])], acks=1, timeout_ms=5)
    found = encode_lookup_response([LookedUpBucket(0, values=[b"\1\0value", None]), LookedUpBucket(1, error_code=7)])
    filters = [
        (col("f3") > 5) & (col("f8") == "x") | col("f11").is_in([1, 2]),
        (col("f0") == True) & col("f8").starts_with("h") & (col("f6") < 1.5),  # noqa: E712
        col("f12").is_null() | (col("f12") > 1) | (col("f9") == b"\1\2\3\4"),
    ]
    request = b"".join(encode_request(1014, 0, 5, [produce]))
    error = b"".join(encode_error(5, 7, "no such table"))
    return [
        Target("frames", _feed, [request * 2, request + error]),
        Target("requests", lambda data: parse_request(memoryview(data)), [request[4:]]),
        Target("responses", lambda data: parse_response(memoryview(data)), [error[4:]]),
        Target("errors", lambda data: parse_error(memoryview(data)), [error[9:]]),
        Target("ProduceLog", decode_produce_log, [produce]),
        Target("PutKv", decode_put_kv, [put]),
        Target("FetchLog response", decode_fetch_log_response, [fetched]),
        Target("Lookup", decode_lookup, [lookup]),
        Target("Lookup response", decode_lookup_response, [bytes(found)]),
        Target("predicates", _predicate, [encode_predicate(f, ALL_TYPES).SerializeToString() for f in filters]),
        Target("SASL/PLAIN", _log_in, [b"\0user\0secret", b"user\0user\0secret"]),
        Target("CreateTable", lambda data: parse_message(pb.CreateTableRequest, data), [_create_table()]),
    ]


_ACCOUNTS = Accounts(lambda: ServerConfig({"security.sasl.plain.credentials": {"user": "secret"}}))


def _log_in(token: bytes) -> None:
    _ACCOUNTS.log_in_plain("FLUSS", token)


def _create_table() -> bytes:
    path = pb.PbTablePath(database_name="db", table_name="t")
    return pb.CreateTableRequest(table_path=path, table_json=b"{}", ignore_if_exists=True).SerializeToString()


FAMILIES: dict[str, Callable[[], list[Target]]] = {
    "rows": _row_targets,
    "records": _record_targets,
    "protocol": _protocol_targets,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_good_inputs_are_accepted(family: str) -> None:
    for target in FAMILIES[family]():
        for seed in target.seeds:
            target.decode(seed)


@pytest.mark.parametrize("inputs", [10_000, pytest.param(400_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_damaged_inputs_raise_our_errors_only(family: str, inputs: int) -> None:
    targets = FAMILIES[family]()
    share = -(-inputs // len(targets))
    memory_before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for number, target in enumerate(targets):
        for data in mutations(target.seeds, share, seed=1000 + number):
            started = time.perf_counter()
            try:
                target.decode(data)
            except FlussError:
                refused += 1
            except BaseException as error:
                raise AssertionError(f"{target.name} raised {error!r} for {data.hex()}") from error
            assert time.perf_counter() - started < SECONDS_PER_INPUT_MAX, f"{target.name} is slow for {data.hex()}"
    assert refused > inputs // 10
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before_kb
    assert grown_kb < MEMORY_GROWTH_KB_MAX


def test_mutations_are_always_the_same() -> None:
    first, again = (list(mutations([b"0123456789" * 5, struct.pack("<4q", 1, 2, 3, 4)], 200, seed=3)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 190
