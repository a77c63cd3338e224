# SPDX-License-Identifier: Apache-2.0
"""Descriptors of tables and databases, and the documents other clients send."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from tests.metadata.test_schema import DOCUMENT

from fluss.errors import FormatError, InvalidArgumentError, InvalidConfigError, InvalidTableError
from fluss.metadata import DatabaseDescriptor, DataTypes, DecimalType, Schema, TableDescriptor

FIELDS = pa.schema([("dt", pa.string()), ("id", pa.int32()), ("k", pa.int32()), ("v", pa.string())])
LOG = Schema(FIELDS)
PK = Schema(FIELDS, ["dt", "id", "k"])

OLD_CLIENT_TABLE = (
    b'{"bucket_count":3,"bucket_key":["id"],"comment":"c","custom_properties":{"x":"y"},"partition_key":[],'
    b'"properties":{"table.replication.factor":"1"},"schema":{"columns":[{"data_type":{"nullable":false,"type":'
    b'"INTEGER"},"name":"id"},{"data_type":{"precision":10,"scale":2,"type":"DECIMAL"},"name":"d"}],"primary_key":'
    b'["id"],"version":1},"version":1}'
)
NESTED_TABLE = (
    b'{"bucket_key":[],"custom_properties":{},"partition_key":[],"properties":{},"schema":{"columns":[{"data_type":'
    b'{"element_type":{"type":"INTEGER"},"type":"ARRAY"},"id":0,"name":"l"},{"data_type":{"key_type":{"nullable":false,'
    b'"type":"STRING"},"type":"MAP","value_type":{"type":"INTEGER"}},"id":1,"name":"m"},{"data_type":{"fields":'
    b'[{"field_id":3,"field_type":{"type":"INTEGER"},"name":"a"},{"field_id":4,"field_type":{"type":"STRING"},"name":'
    b'"b"}],"type":"ROW"},"id":2,"name":"s"}],"highest_field_id":4,"version":1},"version":1}'
)
LOG_TABLE = (
    b'{"bucket_count":1,"bucket_key":[],"custom_properties":{},"partition_key":[],"properties":{},"schema":{"columns":'
    b'[{"data_type":{"type":"INTEGER"},"id":0,"name":"id"},{"data_type":{"type":"STRING"},"id":1,"name":"name"}],'
    b'"highest_field_id":1,"version":1},"version":1}'
)
PK_TABLE = (
    b'{"bucket_count":1,"bucket_key":["id"],"comment":"c","custom_properties":{},"partition_key":[],"properties":'
    b'{"table.log.format":"ARROW"},"schema":{"columns":[{"data_type":{"nullable":false,"type":"INTEGER"},"id":0,"name":'
    b'"id"},{"data_type":{"type":"STRING"},"id":1,"name":"name"},{"data_type":{"type":"BIGINT"},"id":2,"name":"v"}],'
    b'"highest_field_id":2,"primary_key":["id"],"version":1},"version":1}'
)
PROPS = {
    "name": "props",
    "data_type": {
        "type": "MAP",
        "key_type": {"type": "STRING", "nullable": False},
        "value_type": {"type": "DECIMAL", "precision": 10, "scale": 2},
    },
    "id": 5,
}
SERVER_TABLE: dict[str, Any] = {
    "version": 1,
    "schema": {**DOCUMENT, "columns": [*DOCUMENT["columns"][:3], PROPS, DOCUMENT["columns"][4]]},
    "comment": "t",
    "partition_key": ["dt"],
    "bucket_key": ["id"],
    "bucket_count": 3,
    "properties": {"table.replication.factor": "1", "table.kv.format-version": "2"},
    "custom_properties": {"owner": "me"},
}


def test_document_of_a_server() -> None:
    descriptor = TableDescriptor.from_json(SERVER_TABLE)
    assert descriptor.to_json() == SERVER_TABLE
    assert descriptor.partition_keys == ("dt",)
    assert descriptor.bucket_keys == ("id",)
    assert descriptor.bucket_count == 3
    assert descriptor.comment == "t"
    assert descriptor.config.kv_format_version == 2
    assert descriptor.get_custom_properties() == {"owner": "me"}


def test_document_of_an_old_client() -> None:
    descriptor = TableDescriptor.from_json_bytes(OLD_CLIENT_TABLE)
    assert descriptor.schema.column("d").data_type == DecimalType(10, 2)
    assert [column.column_id for column in descriptor.schema.columns] == [0, 1]
    assert descriptor.bucket_count == 3
    document = json.loads(descriptor.to_json_bytes())
    assert document["schema"].pop("highest_field_id") == 1
    for column in document["schema"]["columns"]:
        del column["id"]
    assert document == json.loads(OLD_CLIENT_TABLE)


@pytest.mark.parametrize("text", [NESTED_TABLE, LOG_TABLE, PK_TABLE])
def test_documents_of_a_new_client_are_written_byte_for_byte(text: bytes) -> None:
    assert TableDescriptor.from_json_bytes(text).to_json_bytes() == text


def test_we_write_what_the_peer_writes() -> None:
    nested = pa.schema(
        [
            ("l", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.int32())),
            ("s", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ]
    )
    assert TableDescriptor(Schema(nested)).to_json_bytes() == NESTED_TABLE
    log = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
    assert TableDescriptor(log, bucket_count=1).to_json_bytes() == LOG_TABLE
    pk = Schema(pa.schema([("id", pa.int32()), ("name", pa.string()), ("v", pa.int64())]), ["id"])
    made = TableDescriptor(pk, bucket_count=1, comment="c", log_format="arrow")
    assert made.to_json_bytes() == PK_TABLE


def test_constructor_and_builder_agree() -> None:
    made = TableDescriptor(
        PK,
        partition_keys=["dt"],
        bucket_count=4,
        bucket_keys=["id"],
        comment="hello",
        log_format="ARROW",
        kv_format="compacted",
        properties={"table.replication.factor": 1, "table.datalake.enabled": True},
        custom_properties={"a": "b", "c": 1.5},
    )
    built = (
        TableDescriptor.builder()
        .schema(PK)
        .partitioned_by(["dt"])
        .distributed_by(4, ["id"])
        .comment("hello")
        .log_format("ARROW")
        .kv_format("COMPACTED")
        .property("table.replication.factor", "1")
        .properties({"table.datalake.enabled": "true"})
        .custom_property("a", "b")
        .custom_properties({"c": "1.5"})
        .build()
    )
    assert made == built
    assert hash(made) == hash(built)
    assert made.get_schema() is PK
    assert made.has_primary_key()
    assert made.is_partitioned()
    assert made.get_properties() == {
        "table.replication.factor": "1",
        "table.datalake.enabled": "true",
        "table.log.format": "ARROW",
        "table.kv.format": "COMPACTED",
    }
    assert made.custom_properties == {"a": "b", "c": "1.5"}
    assert pickle.loads(pickle.dumps(made)) == made
    assert made != TableDescriptor(PK)
    assert made != "descriptor"
    for part in ("partition_keys=['dt']", "bucket_count=4", "comment='hello'"):
        assert part in repr(made)
    assert "comment" not in repr(TableDescriptor(LOG))


def test_properties_cannot_be_changed_from_outside() -> None:
    descriptor = TableDescriptor(LOG, properties={"table.log.ttl": "1 d"})
    descriptor.properties["x"] = "y"
    descriptor.custom_properties["x"] = "y"
    assert descriptor.properties == {"table.log.ttl": "1 d"}
    assert descriptor.custom_properties == {}


def test_replace() -> None:
    descriptor = TableDescriptor(LOG, bucket_count=1, comment="a")
    changed = descriptor.replace(bucket_count=2, properties={"table.log.ttl": "1 d"})
    assert (changed.bucket_count, changed.comment, changed.config.log_ttl_ms) == (2, "a", 86_400_000)
    assert descriptor.bucket_count == 1
    with pytest.raises(InvalidArgumentError, match="has no buckets"):
        descriptor.replace(buckets=2)


def test_default_bucket_keys() -> None:
    assert TableDescriptor(LOG).bucket_keys == ()
    assert TableDescriptor(PK).bucket_keys == ("dt", "id", "k")
    assert TableDescriptor(PK, partition_keys=["id"]).bucket_keys == ("dt", "k")


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (LOG, {"partition_keys": ["x"]}, "partition key 'x' does not exist in the schema"),
        (LOG, {"partition_keys": ["dt", "dt"]}, "must be unique"),
        (LOG, {"bucket_keys": ["x"]}, "bucket key 'x' does not exist in the schema"),
        (LOG, {"bucket_keys": ["id", "id"]}, "must be unique"),
        (LOG, {"partition_keys": ["dt"], "bucket_keys": ["dt"]}, "must not be partition keys"),
        (PK, {"partition_keys": ["dt"], "bucket_keys": ["id", "dt"]}, "must not be partition keys"),
        (PK, {"partition_keys": ["v"]}, "partition keys must be a subset of the primary key"),
        (PK, {"bucket_keys": ["v"]}, "bucket keys must be a subset of the primary key"),
        (PK, {"partition_keys": ["k", "dt", "id"]}, "must not be the same as the partition keys"),
    ],
)
def test_keys_must_fit_the_schema(schema: Schema, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidTableError, match=text):
        TableDescriptor(schema, **options)
    document = TableDescriptor(schema).to_json()
    names = {"partition_keys": "partition_key", "bucket_keys": "bucket_key"}
    if "bucket_keys" not in options:
        del document["bucket_key"]
    with pytest.raises(InvalidTableError, match=text):
        TableDescriptor.from_json({**document, **{names[key]: value for key, value in options.items()}})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"bucket_count": 0}, InvalidArgumentError),
        ({"bucket_count": "3"}, InvalidArgumentError),
        ({"bucket_count": True}, InvalidArgumentError),
        ({"comment": 5}, InvalidArgumentError),
        ({"partition_keys": "dt"}, InvalidArgumentError),
        ({"properties": {"table.log.ttl": None}}, InvalidArgumentError),
        ({"properties": {5: "x"}}, InvalidArgumentError),
        ({"log_format": "PARQUET"}, InvalidConfigError),
        ({"kv_format": "ARROW"}, InvalidConfigError),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        TableDescriptor(LOG, **options)


def test_what_is_not_a_schema() -> None:
    with pytest.raises(InvalidArgumentError, match=r"fluss\.Schema"):
        TableDescriptor(FIELDS)
    with pytest.raises(InvalidArgumentError, match="needs a schema"):
        TableDescriptor.builder().build()


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"version": 9}, "table.version"),
        ({"schema": None}, "table.schema"),
        ({"bucket_count": "3"}, "table.bucket_count"),
        ({"bucket_key": [1]}, "table.bucket_key[0]"),
        ({"comment": 1}, "table.comment"),
        ({"properties": []}, "table.properties"),
        ({"properties": {"a": 1}}, "table.properties['a']"),
        ({"custom_properties": {"a": None}}, "table.custom_properties['a']"),
    ],
)
def test_broken_documents_name_the_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(FormatError) as caught:
        TableDescriptor.from_json({**SERVER_TABLE, **change})
    assert place in caught.value.message


def test_number_of_buckets_in_documents_is_judged_by_the_server() -> None:
    assert TableDescriptor.from_json({**SERVER_TABLE, "bucket_count": 0}).bucket_count == 0


def test_missing_parts_of_documents() -> None:
    schema = {"columns": [{"name": "a", "data_type": DataTypes.int().to_json()}]}
    descriptor = TableDescriptor.from_json({"schema": schema})
    assert descriptor == TableDescriptor(Schema(pa.schema([("a", pa.int32())])))


def test_database_descriptor() -> None:
    text = b'{"comment":"hello","custom_properties":{"k":"v"},"version":1}'
    made = DatabaseDescriptor("hello", {"k": "v"})
    assert made.to_json_bytes() == text
    assert DatabaseDescriptor.from_json_bytes(text) == made
    assert hash(made) == hash(DatabaseDescriptor.from_json_bytes(text))
    built = DatabaseDescriptor.builder().comment("hello").custom_property("k", "v").custom_properties({}).build()
    assert built == made
    assert made.comment == "hello"
    assert made.custom_properties == made.get_custom_properties() == {"k": "v"}
    assert repr(made) == "DatabaseDescriptor(comment='hello', custom_properties={'k': 'v'})"
    assert DatabaseDescriptor().to_json_bytes() == b'{"custom_properties":{},"version":1}'
    assert made != DatabaseDescriptor()
    assert made != 5
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(FormatError, match=r"database\.comment"):
        DatabaseDescriptor.from_json_bytes(b'{"comment":5}')
