# SPDX-License-Identifier: Apache-2.0
"""Frames captured from other clients and answers they accepted: we must read and write the very same bytes."""

from __future__ import annotations

import json

import pytest
from google.protobuf.message import Message

from fluss.protocol import apis, frames
from fluss.protocol import messages as pb
from fluss.protocol.lookup_messages import (
    LookedUpBucket,
    decode_lookup,
    decode_lookup_response,
    encode_lookup,
    encode_lookup_response,
)
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
from fluss.protocol.sasl import Credentials, encode_plain_token

VECTORS = {
    "V1": "0000001b03e80000000000000a0a666c7573732d727573741205312e302e30",
    "V2": "0000025000000000000a0708e807100018000a0708e907100018000a0708ea0710001800",
    "V3": "0000000803f4000000000000",
    "V4": "0000002b00000000000a11080012093132372e302e302e3118c3e3011211080112093132372e302e302e3118c4e301",
    "V5": "0000001803f40000000000010a0e0a05666c7573731205745f6c6f67",
    "V6": "0000001f03f400000000001512150a05666c7573731206745f706172741a0432303234",
    "V7": (
        "0000004000000000150a11080012093132372e302e302e3118a7e4011211080112093132372e302e302e3118a8e40122"
        "13086712043230323418682207080010011a0101"
    ),
    "V8": "0000001e040e0000000000000a05504c41494e120d00616c69636500736563726574",
    "V9": "00000011040e0000000000010a05504c41494e1200",
    "V10": "0000000803eb000000000000",
    "V11": "0000000c00000000000a05666c757373",
    "V12": (
        "0000004a03e90000000000010a02643110011a3a7b22636f6d6d656e74223a226331222c22637573746f6d5f70726f70"
        "657274696573223a7b2261223a2262227d2c2276657273696f6e223a317d"
    ),
    "V13": (
        "0000010303ed0000000000020a0e0a05666c7573731205745f6c6f6712e6017b226275636b65745f636f756e74223a31"
        "2c226275636b65745f6b6579223a5b5d2c22637573746f6d5f70726f70657274696573223a7b7d2c2270617274697469"
        "6f6e5f6b6579223a5b5d2c2270726f70657274696573223a7b7d2c22736368656d61223a7b22636f6c756d6e73223a5b"
        "7b22646174615f74797065223a7b2274797065223a22494e5445474552227d2c226e616d65223a226964227d2c7b2264"
        "6174615f74797065223a7b2274797065223a22535452494e47227d2c226e616d65223a226e616d65227d5d2c22766572"
        "73696f6e223a317d2c2276657273696f6e223a317d1801"
    ),
    "V14": (
        "0000012603ed0000000000030a0e0a05666c7573731205745f6c6f671289027b226275636b65745f636f756e74223a31"
        "2c226275636b65745f6b6579223a5b5d2c22637573746f6d5f70726f70657274696573223a7b7d2c2270617274697469"
        "6f6e5f6b6579223a5b5d2c2270726f70657274696573223a7b7d2c22736368656d61223a7b22636f6c756d6e73223a5b"
        "7b22646174615f74797065223a7b2274797065223a22494e5445474552227d2c226964223a302c226e616d65223a2269"
        "64227d2c7b22646174615f74797065223a7b2274797065223a22535452494e47227d2c226964223a312c226e616d6522"
        "3a226e616d65227d5d2c22686967686573745f6669656c645f6964223a312c2276657273696f6e223a317d2c22766572"
        "73696f6e223a317d1801"
    ),
    "V15": (
        "000001a903ed0000000000060a0d0a05666c7573731204745f706b128d037b226275636b65745f636f756e74223a312c"
        "226275636b65745f6b6579223a5b226964225d2c22636f6d6d656e74223a2263222c22637573746f6d5f70726f706572"
        "74696573223a7b7d2c22706172746974696f6e5f6b6579223a5b5d2c2270726f70657274696573223a7b227461626c65"
        "2e6c6f672e666f726d6174223a224152524f57227d2c22736368656d61223a7b22636f6c756d6e73223a5b7b22646174"
        "615f74797065223a7b226e756c6c61626c65223a66616c73652c2274797065223a22494e5445474552227d2c22696422"
        "3a302c226e616d65223a226964227d2c7b22646174615f74797065223a7b2274797065223a22535452494e47227d2c22"
        "6964223a312c226e616d65223a226e616d65227d2c7b22646174615f74797065223a7b2274797065223a22424947494e"
        "54227d2c226964223a322c226e616d65223a2276227d5d2c22686967686573745f6669656c645f6964223a322c227072"
        "696d6172795f6b6579223a5b226964225d2c2276657273696f6e223a317d2c2276657273696f6e223a317d1800"
    ),
    "V16": "0000000701000000070808",
    "V17": "00000029010000001b080712205461626c6520666c7573732e6e6f706520646f6573206e6f742065786973742e",
    "V18": "00000029040c0000000000080a0f0a05666c7573731206745f70617274120c0a0a0a0264731204323032341801",
    "V19": "0000001903f10000000000090a0f0a05666c7573731206745f70617274",
    "V20": "0000001804020000000000030a0e0a05666c7573731205745f6c6f67",
    "V21": (
        "0000029103f600000000000408ffffffffffffffffff01106518b0ea0122f50410001af0040000000000000000640200"
        "00000000000000000000ddc1a6e60100010100000007000000000000000000000002000000fffffffff8000000100000"
        "000c00140012001100040008000c0000001c0000004001000000000000000304000c001c0010000c00080004000c0000"
        "009c0000003c000000100000000200000000000000000000000200000002000000000000000000000000000000020000"
        "000000000000000000000000000000000005000000000000000000000009000000000000004000000000000000100000"
        "000000000080000000000000000900000000000000c000000000000000140000000000000000010000000000000b0000"
        "000000000000000600080007000600000000000001000000000000000000000000000000000000000000000000000000"
        "0000000000ffffffffffffffffff00000000000000000000000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000000000000000ffffffffffffffff01000000020000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffffff0000"
        "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000ffffffffffffffff0000000001000000030000000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000000000000000ffffffffffffffff61626200000000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000000000000000000000"
    ),
    "V22": (
        "0000004c03f800020000001108ffffffffffffffffff01106618b0ea012a3110001a2d290000000050dc261d01000007"
        "000000000000000000000002000000070000000101000101610a020000000102"
    ),
    "V23": (
        "0000004803f800000000001108ffffffffffffffffff01106618b0ea01220200022a2910001a25210000000086aa0847"
        "0100000700000000000000010000000100000005000000010302031e"
    ),
    "V24": "0000001103f90001000000130866120510001a0101",
    "V25": "00000011040a00010000001d0869120510001a0101",
    "V26": "0000001a03fd00000000000608ffffffffffffffffff01100118652a0100",
    "V27": "0000002103fd00000000000a08ffffffffffffffffff01100218652a01003080d095ffbc31",
    "V28": "0000001c03fd00000000001a08ffffffffffffffffff011001186720682a0100",
    "V29": "00000008040100000000000b",
    "V30": (
        "0000003603f700000000000c08ffffffffffffffffff0110808080081a17086510002211100018feffffffffffffffff"
        "012080804020f4032801"
    ),
    "V31": ("00000286000000000c0afe04086512f90410002802300042f004000000000000000064020000007b68e5cf8b010000ddc1a6"),
    "V32": ("0000002d03f700000000000d08ffffffffffffffffff0110808080081a0e086510002208100018022080804020f4032801"),
    "V33": ("0000003003f700000000000f08ffffffffffffffffff0110808080081a11086510011a01012208100018002080804020f4032801"),
    "V34": (
        "0000005c03f700000000000608ffffffffffffffffff0110808080081a3d08651000220810001800208080402a2b0801"
        "1a27080012100800120c080410001a0608031000200112110800120d080010011a0708081000420178300120f4032801"
    ),
    "V35": "0000000e040900000000001f10652000280a",
    "V36": "0000001804080000000000050a0e0a05666c7573731205745f6c6f67",
    "V37": "0000001a03ee0000000000050a0e0a05666c7573731205745f6c6f671001",
    "V38": "0000001003ea0000000000060a02643110011801",
}

T_LOG = pb.PbTablePath(database_name="fluss", table_name="t_log")
T_PK = pb.PbTablePath(database_name="fluss", table_name="t_pk")
T_PART = pb.PbTablePath(database_name="fluss", table_name="t_part")
DS_2024 = pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key="ds", value="2024")])


def frame(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name])


def only_frame(data: bytes) -> memoryview:
    (found,) = frames.FrameReader().feed(data)
    return found


def fetch(**table: object) -> pb.FetchLogRequest:
    bucket = pb.PbFetchLogReqForBucket(bucket_id=0, fetch_offset=table.pop("fetch_offset"), max_fetch_bytes=1 << 20)
    return pb.FetchLogRequest(
        follower_server_id=-1,
        max_bytes=16 << 20,
        tables_req=[pb.PbFetchLogReqForTable(table_id=101, buckets_req=[bucket], **table)],
        max_wait_ms=500,
        min_bytes=1,
    )


def compact_json(**document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def log_table_json(with_ids: bool) -> bytes:
    columns: list[dict[str, object]] = [
        {"name": "id", "data_type": {"type": "INTEGER"}},
        {"name": "name", "data_type": {"type": "STRING"}},
    ]
    schema: dict[str, object] = {"columns": columns, "version": 1}
    if with_ids:
        for number, column in enumerate(columns):
            column["id"] = number
        schema["highest_field_id"] = 1
    return compact_json(
        bucket_count=1, bucket_key=[], custom_properties={}, partition_key=[], properties={}, schema=schema, version=1
    )


PK_TABLE_JSON = compact_json(
    bucket_count=1,
    bucket_key=["id"],
    comment="c",
    custom_properties={},
    partition_key=[],
    properties={"table.log.format": "ARROW"},
    schema={
        "columns": [
            {"data_type": {"nullable": False, "type": "INTEGER"}, "id": 0, "name": "id"},
            {"data_type": {"type": "STRING"}, "id": 1, "name": "name"},
            {"data_type": {"type": "BIGINT"}, "id": 2, "name": "v"},
        ],
        "highest_field_id": 2,
        "primary_key": ["id"],
        "version": 1,
    },
    version=1,
)

ID_GREATER_1 = pb.PbPredicate(
    type=0,
    leaf=pb.PbLeafPredicate(
        function=4, field_id=0, literals=[pb.PbLiteralValue(literal_type=3, is_null=False, int_value=1)]
    ),
)
NAME_IS_X = pb.PbPredicate(
    type=0,
    leaf=pb.PbLeafPredicate(
        function=0, field_id=1, literals=[pb.PbLiteralValue(literal_type=8, is_null=False, string_value="x")]
    ),
)

REQUESTS: dict[str, tuple[int, Message]] = {
    "V1": (0, pb.ApiVersionsRequest(client_software_name="fluss-rust", client_software_version="1.0.0")),
    "V3": (0, pb.MetadataRequest()),
    "V5": (1, pb.MetadataRequest(table_path=[T_LOG])),
    "V6": (
        0x15,
        pb.MetadataRequest(
            partitions_path=[pb.PbPhysicalTablePath(database_name="fluss", table_name="t_part", partition_name="2024")]
        ),
    ),
    "V8": (0, pb.AuthenticateRequest(protocol="PLAIN", token=b"\0alice\0secret")),
    "V9": (1, pb.AuthenticateRequest(protocol="PLAIN", token=b"")),
    "V10": (0, pb.ListDatabasesRequest()),
    "V12": (
        1,
        pb.CreateDatabaseRequest(
            database_name="d1",
            ignore_if_exists=True,
            database_json=b'{"comment":"c1","custom_properties":{"a":"b"},"version":1}',
        ),
    ),
    "V13": (2, pb.CreateTableRequest(table_path=T_LOG, table_json=log_table_json(False), ignore_if_exists=True)),
    "V14": (3, pb.CreateTableRequest(table_path=T_LOG, table_json=log_table_json(True), ignore_if_exists=True)),
    "V15": (6, pb.CreateTableRequest(table_path=T_PK, table_json=PK_TABLE_JSON, ignore_if_exists=False)),
    "V18": (8, pb.CreatePartitionRequest(table_path=T_PART, partition_spec=DS_2024, ignore_if_not_exists=True)),
    "V19": (9, pb.ListPartitionInfosRequest(table_path=T_PART)),
    "V20": (3, pb.InitWriterRequest(table_path=[T_LOG])),
    "V24": (0x13, pb.LookupRequest(table_id=102, buckets_req=[pb.PbLookupReqForBucket(bucket_id=0, keys=[b"\x01"])])),
    "V25": (
        0x1D,
        pb.PrefixLookupRequest(table_id=105, buckets_req=[pb.PbPrefixLookupReqForBucket(bucket_id=0, keys=[b"\x01"])]),
    ),
    "V26": (6, pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=101, bucket_id=[0])),
    "V27": (
        10,
        pb.ListOffsetsRequest(
            follower_server_id=-1, offset_type=2, table_id=101, bucket_id=[0], startTimestamp=1700000000000
        ),
    ),
    "V28": (
        0x1A,
        pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=103, partition_id=104, bucket_id=[0]),
    ),
    "V29": (11, pb.GetFileSystemSecurityTokenRequest()),
    "V30": (12, fetch(projection_pushdown_enabled=False, fetch_offset=-2)),
    "V32": (13, fetch(projection_pushdown_enabled=False, fetch_offset=2)),
    "V33": (15, fetch(projection_pushdown_enabled=True, projected_fields=[1], fetch_offset=0)),
    "V34": (
        6,
        fetch(
            projection_pushdown_enabled=False,
            fetch_offset=0,
            filter_predicate=pb.PbPredicate(
                type=1, compound=pb.PbCompoundPredicate(function=0, children=[ID_GREATER_1, NAME_IS_X])
            ),
            filter_schema_id=1,
        ),
    ),
    "V35": (0x1F, pb.LimitScanRequest(table_id=101, bucket_id=0, limit=10)),
    "V36": (5, pb.GetLakeSnapshotRequest(table_path=T_LOG)),
    "V37": (5, pb.DropTableRequest(table_path=T_LOG, ignore_if_not_exists=True)),
    "V38": (6, pb.DropDatabaseRequest(database_name="d1", ignore_if_not_exists=True, cascade=True)),
}
VERSIONS = {"V24": 1, "V25": 1}
"""Of requests that are not of version 0."""

NODES_29123, NODES_29223 = (
    [pb.PbServerNode(node_id=number, host="127.0.0.1", port=port + number) for number in (0, 1)]
    for port in (29123, 29223)
)

RESPONSES: dict[str, tuple[int, Message]] = {
    frame_hex: (request_id, message)
    for frame_hex, request_id, message in (
        (VECTORS["V4"], 0, pb.MetadataResponse(coordinator_server=NODES_29123[0], tablet_servers=[NODES_29123[1]])),
        (
            VECTORS["V7"],
            0x15,
            pb.MetadataResponse(
                coordinator_server=NODES_29223[0],
                tablet_servers=[NODES_29223[1]],
                partition_metadata=[
                    pb.PbPartitionMetadata(
                        table_id=103,
                        partition_name="2024",
                        partition_id=104,
                        bucket_metadata=[pb.PbBucketMetadata(bucket_id=0, leader_id=1, replica_id=[1])],
                    )
                ],
            ),
        ),
        ("0000000700000000000a00", 0, pb.AuthenticateResponse(challenge=b"")),
        (VECTORS["V11"], 0, pb.ListDatabasesResponse(database_name=["fluss"])),
        ("000000050000000003", 3, pb.CreateTableResponse()),
        (
            "0000001700000000090a100868120c0a0a0a026473120432303234",
            9,
            pb.ListPartitionInfosResponse(
                partitions_info=[pb.PbPartitionInfo(partition_id=104, partition_spec=DS_2024)]
            ),
        ),
        ("0000000700000000030807", 3, pb.InitWriterResponse(writer_id=7)),
        (
            "0000000b00000000040a0410002800",
            4,
            pb.ProduceLogResponse(buckets_resp=[pb.PbProduceLogRespForBucket(bucket_id=0, base_offset=0)]),
        ),
        (
            "0000000b00000000110a0410002805",
            0x11,
            pb.PutKvResponse(buckets_resp=[pb.PbPutKvRespForBucket(bucket_id=0, log_end_offset=5)]),
        ),
        (
            "0000000b00000000130a0410002a00",
            0x13,
            pb.LookupResponse(buckets_resp=[pb.PbLookupRespForBucket(bucket_id=0, values=[pb.PbValue()])]),
        ),
        (
            "0000000b000000001d0a0410002a00",
            0x1D,
            pb.PrefixLookupResponse(
                buckets_resp=[pb.PbPrefixLookupRespForBucket(bucket_id=0, value_lists=[pb.PbValueList()])]
            ),
        ),
        (
            "0000000b00000000060a0408002002",
            6,
            pb.ListOffsetsResponse(buckets_resp=[pb.PbListOffsetsRespForBucket(bucket_id=0, offset=2)]),
        ),
    )
}


@pytest.mark.parametrize("name", REQUESTS)
def test_request_frames(name: str) -> None:
    request_id, message = REQUESTS[name]
    api, version = next(api for api in apis.APIS.values() if api.request is type(message)), VERSIONS.get(name, 0)
    request = frames.parse_request(only_frame(frame(name)))
    assert (request.api_key, request.version, request.request_id) == (api.key, version, request_id)
    assert api.request.FromString(bytes(request.body)) == message
    assert b"".join(frames.encode_request(api.key, version, request_id, [message.SerializeToString()])) == frame(name)


@pytest.mark.parametrize("frame_hex", RESPONSES)
def test_response_frames(frame_hex: str) -> None:
    request_id, message = RESPONSES[frame_hex]
    response = frames.parse_response(only_frame(bytes.fromhex(frame_hex)))
    assert (response.kind, response.request_id) == (frames.ResponseKind.SUCCESS, request_id)
    assert type(message).FromString(bytes(response.body)) == message
    encoded = frames.encode_response(request_id, [message.SerializeToString()])
    assert b"".join(encoded).hex() == frame_hex


def test_api_versions_response_begins_with_the_entries() -> None:
    """V2 shows the beginning; the whole frame of that server had 592 bytes."""
    start = frame("V2")
    assert start[:9] == bytes.fromhex("000002500000000000")
    entries = [pb.PbApiVersion(api_key=key, min_version=0, max_version=0) for key in (1000, 1001, 1002)]
    assert start[9:] == pb.ApiVersionsResponse(api_versions=entries).SerializeToString()


@pytest.mark.parametrize(
    ("frame_hex", "request_id", "code", "message"),
    [
        (VECTORS["V16"], 7, 8, None),
        (VECTORS["V17"], 27, 7, "Table fluss.nope does not exist."),
        ("0000000701000000050835", 5, 53, None),
    ],
)
def test_error_frames(frame_hex: str, request_id: int, code: int, message: str | None) -> None:
    response = frames.parse_response(only_frame(bytes.fromhex(frame_hex)))
    assert (response.kind, response.request_id) == (frames.ResponseKind.ERROR, request_id)
    assert frames.parse_error(response.body) == (code, message)
    assert b"".join(frames.encode_error(request_id, code, message)).hex() == frame_hex


def test_plain_token() -> None:
    request = pb.AuthenticateRequest.FromString(bytes(frames.parse_request(only_frame(frame("V8"))).body))
    alice = Credentials("alice", "secret")
    assert encode_plain_token(alice) == request.token


def test_produce_log_with_records() -> None:
    api_key, version, request_id, body = frames.parse_request(only_frame(frame("V21")))
    assert (api_key, version, request_id) == (apis.PRODUCE_LOG.key, 0, 4)
    request = decode_produce_log(body)
    assert (request.acks, request.table_id, request.timeout_ms) == (-1, 101, 30000)
    (bucket,) = request.buckets
    assert (bucket.partition_id, bucket.bucket_id, len(bucket.records)) == (None, 0, 624)
    assert bucket.records[:12].hex() == "000000000000000064020000"
    parts = encode_produce_log(-1, 101, 30000, [(None, 0, [bucket.records[:48], bucket.records[48:]])])
    assert b"".join(frames.encode_request(api_key, version, request_id, parts)) == frame("V21")


def test_put_kv_upsert_and_delete() -> None:
    api_key, version, request_id, body = frames.parse_request(only_frame(frame("V22")))
    assert (api_key, version, request_id) == (apis.PUT_KV.key, 2, 0x11)
    request = decode_put_kv(body)
    assert (request.acks, request.table_id, request.timeout_ms) == (-1, 102, 30000)
    assert request.target_columns == []
    assert request.agg_mode is None
    (bucket,) = request.buckets
    assert len(bucket.records) == 45
    parts = encode_put_kv(-1, 102, 30000, [(None, 0, [bucket.records])])
    assert b"".join(frames.encode_request(api_key, version, request_id, parts)) == frame("V22")


def test_put_kv_partial_update() -> None:
    api_key, version, request_id, body = frames.parse_request(only_frame(frame("V23")))
    request = decode_put_kv(body)
    assert request.target_columns == [0, 2]
    parts = encode_put_kv(-1, 102, 30000, [(None, 0, [request.buckets[0].records])], target_columns=[0, 2])
    assert b"".join(frames.encode_request(api_key, version, request_id, parts)) == frame("V23")


def test_lookup_codecs() -> None:
    body = frames.parse_request(only_frame(frame("V24"))).body
    request = decode_lookup(body)
    assert (request.table_id, request.buckets[0].bucket_id, request.buckets[0].keys) == (102, 0, [b"\x01"])
    assert encode_lookup(102, [(None, 0, [b"\x01"])]) == body
    not_found = bytes.fromhex("0a0410002a00")
    (bucket,) = decode_lookup_response(not_found)
    assert bucket == LookedUpBucket(0, values=[None])
    assert encode_lookup_response([bucket]) == not_found


def test_fetch_log_response_begins_with_table_and_bucket() -> None:
    """V31 shows the beginning: the records are the 624 bytes of V21 with a commit timestamp."""
    records = bytearray(decode_produce_log(frames.parse_request(only_frame(frame("V21"))).body).buckets[0].records)
    records[13:21] = bytes.fromhex("7b68e5cf8b010000")
    start = frame("V31")
    table = FetchedTable(101, [FetchedBucket(0, high_watermark=2, log_start_offset=0, records=[records])])
    whole = b"".join(frames.encode_response(12, encode_fetch_log_response([table])))
    assert whole[: len(start)] == start
    (decoded,) = decode_fetch_log_response(frames.parse_response(only_frame(whole)).body)
    assert decoded.table_id == 101
    assert decoded.buckets[0].records == records


def test_empty_fetch_log_response() -> None:
    whole = bytes.fromhex("00000013000000000d0a0c086512081000280230004200")
    response = frames.parse_response(only_frame(whole))
    (table,) = decode_fetch_log_response(response.body)
    (bucket,) = table.buckets
    assert (bucket.high_watermark, bucket.log_start_offset, bucket.error_code) == (2, 0, None)
    assert bucket.records is not None
    assert len(bucket.records) == 0
    again = FetchedTable(101, [FetchedBucket(0, high_watermark=2, log_start_offset=0, records=[])])
    assert b"".join(frames.encode_response(13, encode_fetch_log_response([again]))) == whole


def test_limit_scan_response() -> None:
    """The captured beginning announces 624 bytes of records; a shorter body of the same kind must read alike."""
    start = bytes.fromhex("0000027a000000001f180122f00400")
    records = b"\0" * 624
    whole = start[:-1] + records
    response = frames.parse_response(only_frame(whole))
    decoded = pb.LimitScanResponse.FromString(bytes(response.body))
    assert (decoded.is_log_table, decoded.HasField("error_code")) == (True, False)
    assert decoded.records == records


def test_every_vector_is_used() -> None:
    elsewhere = {"V2", "V4", "V7", "V11", "V16", "V17", "V21", "V22", "V23", "V31"}
    assert set(VECTORS) == set(REQUESTS) | elsewhere
