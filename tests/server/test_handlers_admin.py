# SPDX-License-Identifier: Apache-2.0
"""Databases, tables and partitions through their handlers: every rule with its code."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.server.catalog.support import (
    NOW_MS,
    Harness,
    alter,
    create,
    create_partition,
    drop_partition,
    drop_table,
    log_table,
    partitioned_table,
    path,
    pk_table,
    spec,
)
from tests.shared import raising

from fluss.errors import LakeTableAlreadyExistError
from fluss.metadata import HISTORICAL_PARTITION, AggFunction, Column, DataTypes, Schema, TableDescriptor, TablePath
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog.lake_hook import LakeHook
from fluss.server.catalog.tables import REFUSED_PROPERTIES
from fluss.server.handlers import admin


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def lake_harness(tmp_path: Path, **options: str) -> Harness:
    return Harness(tmp_path, {"datalake.format": "paimon", **options})


FIRST_ROW = {"table.merge-engine": "first_row"}
AUTO = {"table.auto-partition.enabled": "true"}

# ---------------------------------------------------------------------- databases


def new_database(name: str = "d", ignore: bool = False, **document: Any) -> pb.CreateDatabaseRequest:
    request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=ignore)
    if document:
        request.database_json = json.dumps({"version": 1, "custom_properties": {}, **document}).encode()
    return request


def database_info(harness: Harness, name: str = "d") -> tuple[Any, dict[str, Any]]:
    info = harness.call(admin.get_database_info, pb.GetDatabaseInfoRequest(database_name=name))
    return info, json.loads(info.database_json)


def drop_database(name: str = "d", ignore: bool = False, cascade: bool = False) -> pb.DropDatabaseRequest:
    return pb.DropDatabaseRequest(database_name=name, ignore_if_not_exists=ignore, cascade=cascade)


def names(harness: Harness) -> list[str]:
    return list(harness.call(admin.list_databases, pb.ListDatabasesRequest()).database_name)


def test_the_default_database_is_there_at_first(harness: Harness) -> None:
    assert names(harness) == ["fluss"]
    harness.fails(-1, admin.drop_database, drop_database("fluss", ignore=True, cascade=True), "default database")


def test_the_default_database_is_made_only_when_there_is_none(harness: Harness) -> None:
    harness.call(admin.create_database, new_database())
    entry = harness.catalog.databases["fluss"]
    harness.catalog.storage.delete_database(entry.database_id)
    harness.reopen()
    assert names(harness) == ["d"]


def test_create_database(harness: Harness) -> None:
    harness.call(admin.create_database, new_database(comment="hello", custom_properties={"k": "v", "k2": "v2"}))
    info, document = database_info(harness)
    assert document == {"version": 1, "comment": "hello", "custom_properties": {"k": "v", "k2": "v2"}}
    assert info.created_time == info.modified_time == NOW_MS
    harness.fails(6, admin.create_database, new_database(), "Database d already exists.")
    harness.clock.now_ms += 5
    harness.call(admin.create_database, new_database(ignore=True, comment="other"))
    assert database_info(harness)[1]["comment"] == "hello"
    harness.reopen()
    assert database_info(harness) == (info, document)


@pytest.mark.parametrize("name", ["", ".", "..", "a.b", "a b", "ä", "__x", "x" * 201, "a$b", "a/b"])
def test_bad_names(harness: Harness, name: str) -> None:
    harness.fails(16, admin.create_database, new_database(name), "Database name", "is invalid")
    harness.fails(15, admin.create_table, create(log_table(), name), "Table name", "is invalid")
    harness.fails(16, admin.create_table, create(log_table(), "t", name), "Database name")
    harness.fails(15, admin.alter_table, alter({"k": "v"}, name), "Table name")
    # Nothing has such a name, so looking for it is no error of its own.
    harness.fails(7, admin.get_table_info, pb.GetTableInfoRequest(table_path=path(name)))
    harness.fails(7, admin.drop_table, drop_table(name))
    harness.call(admin.drop_table, drop_table(name, ignore=True))
    assert not harness.call(admin.table_exists, pb.TableExistsRequest(table_path=path(name))).exists
    harness.fails(4, admin.drop_database, drop_database(name))


def test_longest_and_case_sensitive_names(harness: Harness) -> None:
    harness.call(admin.create_database, new_database("x" * 200))
    harness.call(admin.create_database, new_database("A"))
    harness.call(admin.create_database, new_database("a"))
    harness.reopen()
    assert names(harness) == ["A", "a", "fluss", "x" * 200]


def test_a_database_document_that_cannot_be_read(harness: Harness) -> None:
    for data in (b"{", b"[]", b'{"version":1,"custom_properties":{"k":1}}'):
        request = pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=False, database_json=data)
        harness.fails(16, admin.create_database, request, "database d")
    assert names(harness) == ["fluss"]


def test_missing_database(harness: Harness) -> None:
    harness.fails(4, admin.get_database_info, pb.GetDatabaseInfoRequest(database_name="no"), "no")
    harness.fails(4, admin.drop_database, drop_database("no"))
    harness.call(admin.drop_database, drop_database("no", ignore=True))
    harness.fails(4, admin.list_tables, pb.ListTablesRequest(database_name="no"))
    assert not harness.call(admin.database_exists, pb.DatabaseExistsRequest(database_name="no")).exists
    assert harness.call(admin.database_exists, pb.DatabaseExistsRequest(database_name="fluss")).exists


def test_drop_database(harness: Harness) -> None:
    harness.call(admin.create_database, new_database())
    dropped: list[int] = []
    harness.catalog.on_dropped.append(lambda gone: dropped.append(gone.table.table_id))
    for table in ("a", "b"):
        harness.call(admin.create_table, create(log_table(), table, "d"))
    ids = [entry.table_id for entry in harness.catalog.tables()]
    harness.fails(5, admin.drop_database, drop_database(), "Database d is not empty.")
    harness.call(admin.drop_database, drop_database(cascade=True))
    assert names(harness) == ["fluss"]
    assert dropped == ids
    assert harness.catalog.table_by_id(ids[0]) is None
    harness.reopen()
    assert names(harness) == ["fluss"]
    assert not any(harness.catalog.storage.tables.iterdir())


@pytest.mark.parametrize("step", ["drop_table", "remove_dropped", "delete_database"])
def test_a_database_is_created_again_when_the_one_before_is_erased(harness: Harness, step: str) -> None:
    """Otherwise the next start takes the tables of the one for those of the other."""
    harness.call(admin.create_database, new_database())
    for table in ("a", "b"):
        harness.call(admin.create_table, create(log_table(), table, "d"))
    with mock.patch.object(harness.catalog.storage, step, raising(OSError, 5, "the disk fails")):
        harness.call(admin.drop_database, drop_database(cascade=True))
        if step != "remove_dropped":
            harness.fails(-1, admin.create_database, new_database(), "the disk fails")
    harness.call(admin.create_database, new_database())
    harness.call(admin.create_table, create(log_table(), "a", "d"))
    harness.reopen()
    assert names(harness) == ["d", "fluss"]
    assert list(harness.catalog.databases["d"].tables) == ["a"]
    assert not harness.catalog.damages


def test_list_databases_with_summaries(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    answer = harness.call(admin.list_databases, pb.ListDatabasesRequest(include_summary=True))
    assert not answer.database_name
    assert [(s.database_name, s.created_time, s.table_count) for s in answer.database_summary] == [("fluss", NOW_MS, 1)]


def test_alter_database(harness: Harness) -> None:
    harness.call(admin.create_database, new_database(comment="old", custom_properties={"a": "1", "b": "2"}))

    def request(comment: str | None = None, ignore: bool = False, name: str = "d") -> pb.AlterDatabaseRequest:
        return pb.AlterDatabaseRequest(database_name=name, ignore_if_not_exists=ignore, comment=comment)

    change = request("new")
    change.config_changes.add(config_key="a", op_type=1)
    change.config_changes.add(config_key="b", config_value="3", op_type=0)
    harness.clock.now_ms += 10
    harness.call(admin.alter_database, change)
    info, document = database_info(harness)
    assert (document["comment"], document["custom_properties"]) == ("new", {"b": "3"})
    assert (info.created_time, info.modified_time) == (NOW_MS, NOW_MS + 10)
    harness.clock.now_ms += 10
    harness.call(admin.alter_database, change)
    assert database_info(harness)[0].modified_time == NOW_MS + 10
    harness.call(admin.alter_database, request(""))
    assert "comment" not in database_info(harness)[1]
    appended = request()
    appended.config_changes.add(config_key="b", config_value="3", op_type=2)
    harness.fails(-1, admin.alter_database, appended)
    harness.fails(4, admin.alter_database, request("x", name="no"))
    harness.call(admin.alter_database, request("x", ignore=True, name="no"))
    harness.reopen()
    assert database_info(harness)[1]["custom_properties"] == {"b": "3"}


# ---------------------------------------------------------------------- create table


def table_info(harness: Harness, table: str = "t") -> tuple[Any, dict[str, Any]]:
    info = harness.call(admin.get_table_info, pb.GetTableInfoRequest(table_path=path(table)))
    return info, json.loads(info.table_json)


def test_create_and_describe_a_log_table(harness: Harness) -> None:
    created: list[int] = []
    harness.catalog.on_table_created.append(lambda entry: created.append(entry.table_id))
    harness.call(admin.create_table, create(log_table(comment="c", bucket_count=3, custom_properties={"owner": "me"})))
    info, document = table_info(harness)
    assert (info.table_id, info.schema_id) == (0, 1)
    assert info.created_time == info.modified_time == NOW_MS
    assert info.remote_data_dir == str(harness.data_dir.absolute() / "remote")
    assert document["properties"] == {"table.replication.factor": "1"}
    assert document["custom_properties"] == {"owner": "me"}
    assert (document["bucket_count"], document["bucket_key"], document["partition_key"]) == (3, [], [])
    assert document["comment"] == "c"
    assert [c["id"] for c in document["schema"]["columns"]] == [0, 1]
    assert created == [0]
    assert harness.call(admin.list_tables, pb.ListTablesRequest(database_name="fluss")).table_name == ["t"]
    assert harness.call(admin.table_exists, pb.TableExistsRequest(table_path=path())).exists
    harness.reopen()
    assert table_info(harness) == (info, document)


def test_a_table_whose_schema_has_no_column_ids(harness: Harness) -> None:
    document = log_table().to_json()
    for column in document["schema"]["columns"]:
        del column["id"]
    del document["schema"]["highest_field_id"]
    harness.call(admin.create_table, create(document))
    schema = table_info(harness)[1]["schema"]
    assert [column["id"] for column in schema["columns"]] == [0, 1]
    assert schema["highest_field_id"] == 1


def test_what_the_server_adds(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"default.bucket.number": 4})
    harness.call(admin.create_table, create(pk_table()))
    document = table_info(harness)[1]
    added = {"table.replication.factor": "1", "table.kv.format-version": "2"}
    assert document["properties"] == added, "and nothing that a server of release 0.9 does not know"
    assert (document["bucket_count"], document["bucket_key"]) == (4, ["id"])
    harness.call(admin.create_table, create(pk_table(properties=FIRST_ROW), "engine"))
    assert table_info(harness, "engine")[1]["properties"]["table.delete.behavior"] == "IGNORE"
    kept = {
        **FIRST_ROW,
        "table.delete.behavior": "DISABLE",
        "table.kv.format-version": "1",
        "table.kv.standby-replica.enabled": "false",
    }
    harness.call(admin.create_table, create(pk_table(properties=kept), "kept"))
    assert kept.items() <= table_info(harness, "kept")[1]["properties"].items()
    several = partitioned_table(("dt", "region"), properties={**AUTO, "table.auto-partition.key": "dt"})
    harness.call(admin.create_table, create(several, "several"))
    assert table_info(harness, "several")[1]["properties"]["table.auto-partition.num-precreate"] == "0"
    assert harness.catalog.table(TablePath("fluss", "several")).partitions == {}


def test_lake_properties_are_shown_but_not_stored(tmp_path: Path) -> None:
    harness = lake_harness(
        tmp_path,
        **{
            "datalake.paimon.warehouse": "/lake",
            "datalake.paimon.s3.secret-key": "s3cret",
            "datalake.paimon.jdbc.password": "s3cret",
            "datalake.iceberg.warehouse": "/other",
        },
    )
    harness.call(admin.create_table, create(log_table(), "off"))
    off = table_info(harness, "off")[1]["properties"]
    assert off == {"table.replication.factor": "1", "table.datalake.format": "paimon"}
    harness.call(admin.create_table, create(log_table(properties={"table.datalake.enabled": "true"}), "on"))
    on = table_info(harness, "on")[1]["properties"]
    assert on == {
        "table.replication.factor": "1",
        "table.datalake.format": "paimon",
        "table.datalake.enabled": "true",
        "table.datalake.paimon.warehouse": "/lake",
    }
    stored = harness.catalog.table(TablePath("fluss", "on")).table_info.properties
    assert "table.datalake.paimon.warehouse" not in stored
    # What is shown must not stand in the way of a later change.
    harness.call(admin.alter_table, alter({"table.datalake.freshness": "1 min"}, "on"))
    assert table_info(harness, "on")[1]["properties"]["table.datalake.freshness"] == "1 min"
    assert "s3cret" not in json.dumps(table_info(harness, "on")[1])


def test_existing_table_and_the_order_of_checks(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    harness.fails(8, admin.create_table, create(log_table()), "Table fluss.t already exists.")
    harness.call(admin.create_table, create(log_table(), ignore=True))
    assert table_info(harness)[0].table_id == 0
    # A bad descriptor is refused whatever else is true.
    bad = log_table(properties={"table.nonsense": "1"})
    harness.fails(39, admin.create_table, create(bad, ignore=True), "table.nonsense")
    harness.fails(39, admin.create_table, create(bad, database="missing"))
    harness.fails(4, admin.create_table, create(log_table(), database="missing"), "missing")
    harness.fails(4, admin.create_table, create(log_table(), database="missing", ignore=True))
    tripled = log_table(properties={"table.replication.factor": "3"})
    harness.fails(17, admin.create_table, create(tripled, ignore=True), "3", "1")


def test_a_dropped_table_comes_back_with_a_new_id(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    dropped: list[int] = []
    harness.catalog.on_dropped.append(lambda gone: dropped.append(gone.table.table_id))
    harness.call(admin.drop_table, drop_table())
    assert dropped == [0]
    harness.fails(7, admin.drop_table, drop_table(), "Table 'fluss.t' does not exist.")
    harness.call(admin.drop_table, drop_table(ignore=True))
    harness.fails(7, admin.get_table_info, pb.GetTableInfoRequest(table_path=path()), "Table 'fluss.t' does not exist.")
    harness.fails(7, admin.get_table_schema, pb.GetTableSchemaRequest(table_path=path()))
    harness.call(admin.create_table, create(log_table()))
    assert table_info(harness)[0].table_id == 1
    assert harness.catalog.table_by_id(0) is None
    assert not harness.catalog.owns_data_of(0)
    assert harness.catalog.owns_data_of(1)


@pytest.mark.parametrize("key", REFUSED_PROPERTIES)
def test_properties_that_promise_what_does_not_happen_are_refused(harness: Harness, key: str) -> None:
    refused = pk_table(properties={key: "1 d"})
    harness.fails(39, admin.create_table, create(refused), f"'{key}' cannot be set on this server")


def test_a_table_too_large_for_its_document_is_refused(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.server.catalog.documents.DOCUMENT_BYTES_MAX", 2000)
    harness.call(admin.create_table, create(log_table(), "small"))
    harness.fails(-1, admin.create_table, create(log_table(comment="x" * 2000)), "2000")
    harness.fails(-1, admin.alter_table, alter({"k": "x" * 2000}, "small"))
    assert not harness.call(admin.table_exists, pb.TableExistsRequest(table_path=path())).exists
    harness.reopen()
    assert harness.catalog.damages == []


@pytest.mark.parametrize("text", ["\x00", "北京 \U0001f600", '"\\\n'])
def test_any_text_in_a_comment_comes_back(harness: Harness, text: str) -> None:
    document = {**log_table().to_json(), "comment": text}
    harness.call(admin.create_table, create(document))
    assert table_info(harness)[1]["comment"] == text
    harness.reopen()
    assert table_info(harness)[1]["comment"] == text


def test_half_a_character_is_refused(harness: Harness) -> None:
    harness.fails(15, admin.create_table, create({**log_table().to_json(), "comment": "\ud800"}), "Unicode")
    harness.fails(16, admin.create_database, new_database(comment="\udfff"), "Unicode")
    harness.call(admin.create_table, create(log_table()))
    row = {"type": "ROW", "fields": [{"name": "\ud800", "field_type": {"type": "INTEGER"}, "field_id": 0}]}
    harness.fails(15, admin.alter_table, add_column("c", kind=row), "Unicode")


@pytest.mark.parametrize(("kind", "refused", "allowed"), [("log", log_table, pk_table), ("kv", pk_table, log_table)])
def test_kinds_of_tables_can_be_forbidden(tmp_path: Path, kind: str, refused: Any, allowed: Any) -> None:
    harness = Harness(tmp_path, {f"allow.create.{kind}.tables": "false"})
    harness.fails(15, admin.create_table, create(refused()), f"allow.create.{kind}.tables")
    harness.call(admin.create_table, create(allowed()))


def edited(descriptor: TableDescriptor, **changes: Any) -> dict[str, Any]:
    return {**descriptor.to_json(), **changes}


def edited_schema(**changes: Any) -> dict[str, Any]:
    document = pk_table().to_json()
    document["schema"].update(changes)
    return document


def column(name: str, kind: str, index: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": {"type": kind, **more.pop("data_type", {})}, "id": index, **more}


STRUCTURE = {
    "duplicate columns": edited_schema(columns=[column("id", "INTEGER", 0), column("id", "INTEGER", 1)]),
    "duplicate primary key": edited_schema(primary_key=["id", "id"]),
    "unknown primary key": edited_schema(primary_key=["nope"]),
    "unknown partition key": edited(log_table(), partition_key=["nope"]),
    "partition key outside the primary key": edited(pk_table(), partition_key=["name"]),
    "unknown bucket key": edited(log_table(), bucket_key=["nope"]),
    "bucket key is partition key": edited(log_table(), partition_key=["name"], bucket_key=["name"]),
    "bucket key outside the primary key": edited(pk_table(), bucket_key=["name"]),
    "primary key equals partition keys": edited(pk_table(), partition_key=["id"], bucket_key=[]),
    "two auto-increment columns": edited_schema(auto_increment_column=["n", "name"]),
    "auto-increment on the primary key": edited_schema(auto_increment_column=["id"]),
    "auto-increment on a string": edited_schema(auto_increment_column=["name"]),
    "aggregation on the primary key": edited_schema(
        columns=[column("id", "INTEGER", 0, agg_function={"type": "sum", "parameters": {}}), column("n", "BIGINT", 1)]
    ),
    "doubled field ids": edited_schema(columns=[column("id", "INTEGER", 0), column("n", "BIGINT", 0)]),
    "null property": edited(log_table(), properties={"table.log.ttl": None}),
    "unknown type": edited_schema(columns=[column("id", "WONDER", 0)]),
    "no columns": edited_schema(columns=[]),
    "no schema": {"version": 1},
}


@pytest.mark.parametrize("document", STRUCTURE.values(), ids=STRUCTURE.keys())
def test_structural_rules_are_code_15(harness: Harness, document: dict[str, Any]) -> None:
    harness.fails(15, admin.create_table, create(document))
    harness.fails(15, admin.create_table, create(document, ignore=True))
    assert not harness.call(admin.table_exists, pb.TableExistsRequest(table_path=path())).exists


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"version": 9}', b"[" * 100_000])
def test_documents_that_cannot_be_read_are_code_15(harness: Harness, data: bytes) -> None:
    request = pb.CreateTableRequest(table_path=path(), table_json=data, ignore_if_exists=False)
    harness.fails(15, admin.create_table, request)


def test_nullable_primary_keys_become_not_null(harness: Harness) -> None:
    document = pk_table().to_json()
    document["schema"]["columns"][0]["data_type"]["nullable"] = True
    harness.call(admin.create_table, create(document))
    assert table_info(harness)[1]["schema"]["columns"][0]["data_type"]["nullable"] is False


def with_types(kind: Any, **options: Any) -> TableDescriptor:
    return TableDescriptor(Schema.builder().column("k", kind).column("v", DataTypes.int()).build(), **options)


def aggregating(*functions: tuple[str, Any, AggFunction], **properties: str) -> TableDescriptor:
    columns = [Column("id", DataTypes.int()), *(Column(n, t, agg_function=f) for n, t, f in functions)]
    given = {f"table.{key.replace('__', '.').replace('_', '-')}": value for key, value in properties.items()}
    return TableDescriptor(Schema.of(columns, ["id"]), properties=given)


def auto_partitioned(**options: str) -> TableDescriptor:
    """A table with two partition keys."""
    more = {f"table.auto-partition.{key.replace('__', '-')}": value for key, value in options.items()}
    return partitioned_table(("a", "b"), properties={**AUTO, **more})


def versioned_by(column: str) -> TableDescriptor:
    return pk_table(properties={"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": column})


VALIDATION: dict[str, tuple[int, TableDescriptor]] = {
    "unknown table property": (39, log_table(properties={"table.nope": "1"})),
    "property without prefix": (39, log_table(properties={"owner": "1"})),
    "unparseable property": (39, log_table(properties={"table.log.ttl": "soon"})),
    "too many buckets": (49, log_table(bucket_count=4097)),
    "bucket key of a nested type": (15, with_types(DataTypes.array(DataTypes.int()), bucket_keys=["k"])),
    "replication factor 0": (39, log_table(properties={"table.replication.factor": "0"})),
    "indexed log with compacted kv": (39, pk_table(properties={"table.log.format": "INDEXED"})),
    "zstd level": (39, log_table(properties={"table.log.arrow.compression.zstd.level": "23"})),
    "merge engine on a log table": (39, log_table(properties=FIRST_ROW)),
    "versioned without column": (39, pk_table(properties={"table.merge-engine": "versioned"})),
    "versioned by a string": (39, versioned_by("name")),
    "versioned by an unknown column": (39, versioned_by("x")),
    "aggregation with WAL": (39, aggregating(merge_engine="aggregation", changelog__image="WAL")),
    "function without engine": (39, aggregating(("n", DataTypes.int(), AggFunction("sum", {})))),
    "sum of strings": (39, aggregating(("n", DataTypes.string(), AggFunction("sum", {})), merge_engine="aggregation")),
    "delete behaviour of a log table": (39, log_table(properties={"table.delete.behavior": "ALLOW"})),
    "deletes with first_row": (39, pk_table(properties={**FIRST_ROW, "table.delete.behavior": "allow"})),
    "no local segments": (39, log_table(properties={"table.log.tiered.local-segments": "0"})),
    "local ttl above ttl": (39, log_table(properties={"table.log.ttl": "1 h", "table.log.local-ttl": "2 h"})),
    "auto partition without partitions": (39, log_table(properties=AUTO)),
    "decimal partition key": (15, with_types(DataTypes.decimal(5, 1), partition_keys=["k"])),
    "auto partition without its key": (15, auto_partitioned()),
    "auto partition by another column": (15, auto_partitioned(key="id")),
    "precreate with several keys": (15, auto_partitioned(key="a", num__precreate="2")),
    "time format": (15, partitioned_table(properties={**AUTO, "table.auto-partition.time-format": "MMyyyy"})),
    "date key with the default format": (15, with_types(DataTypes.date(), partition_keys=["k"], properties=AUTO)),
    "time zone": (39, partitioned_table(properties={**AUTO, "table.auto-partition.time-zone": "Mars/Olympus"})),
    "system column": (15, TableDescriptor(Schema.of([Column("__offset", DataTypes.int())]))),
    "statistics on a primary-key table": (39, pk_table(properties={"table.statistics.columns": "*"})),
    "statistics of an unknown column": (39, log_table(properties={"table.statistics.columns": "nope"})),
    "kv format version": (39, pk_table(properties={"table.kv.format-version": "3"})),
    "lake without a lake": (15, log_table(properties={"table.datalake.enabled": "true"})),
    "replication factor above the servers": (17, log_table(properties={"table.replication.factor": "2"})),
}


@pytest.mark.parametrize(("code", "descriptor"), VALIDATION.values(), ids=VALIDATION.keys())
def test_validation_after_defaults(harness: Harness, code: int, descriptor: TableDescriptor) -> None:
    harness.fails(code, admin.create_table, create(descriptor))
    assert list(harness.catalog.tables()) == []


@pytest.mark.parametrize("count", [0, -1])
def test_bucket_count_must_be_positive(harness: Harness, count: int) -> None:
    harness.fails(-1, admin.create_table, create(edited(log_table(), bucket_count=count)), "larger than 0")


def test_other_names_with_two_underscores_are_legal_columns(harness: Harness) -> None:
    harness.call(admin.create_table, create(TableDescriptor(Schema.of([Column("__mine", DataTypes.int())]))))


def test_lake_rules_at_creation(tmp_path: Path) -> None:
    harness = lake_harness(tmp_path)
    on = {"table.datalake.enabled": "true"}
    harness.fails(39, admin.create_table, create(log_table(properties={**on, "table.datalake.format": "iceberg"})))
    harness.call(admin.create_table, create(log_table(properties={"table.datalake.format": "iceberg"}), "later"))
    bucketed = log_table(properties=on, custom_properties={"paimon.bucket": "3"})
    harness.fails(39, admin.create_table, create(bucketed), "bucket")
    harness = Harness(tmp_path / "off", {"datalake.format": "paimon", "datalake.enabled": "false"})
    harness.fails(15, admin.create_table, create(log_table(properties=on)), "table.datalake.enabled")
    harness.call(admin.create_table, create(log_table()))
    assert table_info(harness)[1]["properties"]["table.datalake.format"] == "paimon"
    harness = Harness(tmp_path / "lance", {"datalake.format": "lance"})
    harness.fails(15, admin.create_table, create(pk_table(properties=on)))
    harness = Harness(tmp_path / "iceberg", {"datalake.format": "iceberg"})
    harness.fails(15, admin.create_table, create(log_table(properties=on, bucket_keys=["id", "name"])))


class RecordingLake(LakeHook):
    """Stands for a lake: notes what it is asked, and refuses a table that is there."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.taken: set[str] = set()

    async def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        self.asked.append(("create", str(path), must_be_empty))
        if path.table_name in self.taken:
            raise LakeTableAlreadyExistError(f"lake table {path} exists and does not fit")

    async def add_columns(self, path: TablePath, columns: Any) -> None:
        self.asked.append(("add", str(path), [column.name for column in columns]))
        if path.table_name in self.taken:
            raise LakeTableAlreadyExistError("the lake refuses")


def test_the_lake_is_changed_first_and_may_refuse(tmp_path: Path) -> None:
    harness = lake_harness(tmp_path)
    lake = RecordingLake()
    harness.catalog.lake_hook = lake
    on = {"table.datalake.enabled": "true"}
    lake.taken.add("t")
    harness.fails(4, admin.create_table, create(log_table(properties=on), database="missing"))
    harness.fails(54, admin.create_table, create(log_table(properties=on)))
    assert list(harness.catalog.tables()) == []
    harness.call(admin.create_table, create(log_table()))
    harness.fails(54, admin.create_table, create(log_table(properties=on)))
    harness.fails(54, admin.alter_table, alter(on))
    assert "table.datalake.enabled" not in table_info(harness)[1]["properties"]
    lake.taken.clear()
    harness.call(admin.alter_table, alter(on))
    lake.taken.add("t")
    harness.fails(54, admin.alter_table, add_column("extra"))
    assert table_info(harness)[0].schema_id == 1
    lake.taken.clear()
    harness.call(admin.alter_table, add_column("extra"))
    creations = [("create", "fluss.t", must_be_empty) for must_be_empty in (True, True, False, False)]
    assert lake.asked == [*creations, *[("add", "fluss.t", ["extra"])] * 2]


def test_the_partition_for_lookups_of_expired_ones(tmp_path: Path) -> None:
    harness = lake_harness(tmp_path)
    schema = Schema.of([Column("id", DataTypes.int()), Column("dt", DataTypes.string())], ["id", "dt"])
    wanted = "table.datalake.historical-partition.enabled"
    on = {"table.datalake.enabled": "true", "table.auto-partition.num-precreate": "0", **AUTO, wanted: "true"}
    harness.call(admin.create_table, create(TableDescriptor(schema, partition_keys=["dt"], properties=on)))
    entry = harness.catalog.table(TablePath("fluss", "t"))
    assert list(entry.partitions) == [HISTORICAL_PARTITION]
    first = entry.partitions.pop(HISTORICAL_PARTITION)  # as if the server had ended before it was made
    asyncio.run(harness.catalog.auto_partitioner.run())
    assert entry.partitions[HISTORICAL_PARTITION].partition_id != first.partition_id
    harness.fails(39, admin.alter_table, alter({"table.auto-partition.enabled": "false"}), wanted)
    harness.call(admin.alter_table, alter({"table.auto-partition.enabled": "false", wanted: "false"}))
    assert entry.partitions == {}


# ---------------------------------------------------------------------- alter table


def test_alterable_properties(harness: Harness) -> None:
    altered: list[int] = []
    harness.catalog.on_table_altered.append(lambda entry: altered.append(entry.table_id))
    harness.call(admin.create_table, create(log_table(custom_properties={"a": "1"})))
    harness.clock.now_ms += 7
    properties = {
        "table.log.ttl": "2 d",
        "table.log.local-ttl": "1 d",
        "table.log.tiered.local-segments": "5",
        "table.statistics.columns": "*",
    }
    changes = {**properties, "a": None, "paimon.write-only": "true"}
    harness.call(admin.alter_table, alter(changes))
    info, document = table_info(harness)
    assert (info.created_time, info.modified_time, info.schema_id) == (NOW_MS, NOW_MS + 7, 1)
    assert document["properties"] == {"table.replication.factor": "1", **properties}
    assert document["custom_properties"] == {"paimon.write-only": "true"}
    assert altered == [0]
    harness.clock.now_ms += 7
    harness.call(admin.alter_table, alter(changes))
    assert table_info(harness)[0].modified_time == NOW_MS + 7
    assert altered == [0]
    harness.call(admin.alter_table, alter({}))
    harness.call(admin.alter_table, alter({"table.log.local-ttl": None, "table.log.ttl": None}))
    assert "table.log.ttl" not in table_info(harness)[1]["properties"]
    harness.reopen()
    assert table_info(harness)[1]["custom_properties"] == {"paimon.write-only": "true"}


def test_a_stored_table_with_a_forbidden_lake_property_can_be_healed(harness: Harness) -> None:
    key = "iceberg.write.py-location-provider.impl"
    with mock.patch("fluss.metadata.validation.check_lake_properties", return_value=None):
        harness.call(admin.create_table, create(log_table(custom_properties={key: "builtins.print"})))
    harness.reopen()
    harness.fails(39, admin.alter_table, alter({"table.log.ttl": "2 d"}), key)
    harness.call(admin.alter_table, alter({key: None}))
    harness.call(admin.alter_table, alter({"table.log.ttl": "2 d"}))


def test_refused_property_changes(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    harness.call(admin.create_table, create(pk_table(), "pk"))
    before = table_info(harness)
    fixed = {"table.log.format": "INDEXED", "table.kv.format": "INDEXED", "table.nope": "1", "table.log.ttl": "1 d"}
    text = harness.fails(56, admin.alter_table, alter(fixed))
    assert all(key in text for key in ("table.log.format", "table.kv.format", "table.nope"))
    assert "table.log.ttl" not in text
    harness.fails(56, admin.alter_table, alter({"table.kv.standby-replica.enabled": "false"}), "primary-key")
    harness.call(admin.alter_table, alter({"table.kv.standby-replica.enabled": "false"}, "pk"))
    harness.fails(39, admin.alter_table, alter({"table.log.ttl": "soon"}))
    harness.fails(39, admin.alter_table, alter({"table.log.tiered.local-segments": "0"}))
    harness.fails(39, admin.alter_table, alter({"table.statistics.columns": "*"}, "pk"))
    harness.fails(56, admin.alter_table, alter({"table.datalake.enabled": "true"}), "no lake")
    harness.fails(56, admin.alter_table, alter({"table.datalake.freshness": "1 min"}), "table.datalake.freshness")
    harness.fails(56, admin.alter_table, alter({"table.datalake.enabled": "true"}, "pk"))
    harness.fails(7, admin.alter_table, alter({"k": "v"}, "missing"), "fluss.missing")
    harness.call(admin.alter_table, alter({"k": "v"}, "missing", ignore=True))
    for operation in (2, 3):
        request = pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False)
        request.config_changes.add(config_key="k", config_value="v", op_type=operation)
        harness.fails(-1, admin.alter_table, request)
    both = add_column("x")
    both.config_changes.add(config_key="k", config_value="v", op_type=0)
    harness.fails(56, admin.alter_table, both)
    assert table_info(harness) == before


def test_lake_switched_on_later(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.call(admin.create_table, create(log_table()))
    harness.call(admin.create_table, create(log_table(bucket_keys=["id"]), "keyed"))
    harness.options["datalake.format"] = "paimon"
    harness.reopen()
    on = {"table.datalake.enabled": "true"}
    harness.fails(56, admin.alter_table, alter(on, "keyed"), "table.datalake.enabled")
    harness.fails(56, admin.alter_table, alter({**on, "table.datalake.freshness": "1 min"}))
    harness.call(admin.alter_table, alter(on))
    assert table_info(harness)[1]["properties"]["table.datalake.format"] == "paimon"
    harness.call(admin.alter_table, alter({"table.datalake.enabled": "false"}))


def add_column(
    *column_names: str, kind: dict[str, Any] | None = None, position: int = 0, table: str = "t", function: str = ""
) -> pb.AlterTableRequest:
    request = pb.AlterTableRequest(table_path=path(table), ignore_if_not_exists=False)
    for name in column_names:
        request.add_columns.add(
            column_name=name,
            data_type_json=json.dumps(kind or {"type": "STRING"}).encode(),
            column_position_type=position,
            agg_function_type=function or None,
        )
    return request


def test_add_columns(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    harness.clock.now_ms += 5
    row = {"type": "ROW", "fields": [{"name": "x", "field_type": {"type": "INTEGER"}, "field_id": 0}]}
    harness.call(admin.alter_table, add_column("c", "d", kind=row))
    harness.call(admin.alter_table, add_column("e"))
    info, document = table_info(harness)
    assert (info.schema_id, info.modified_time) == (3, NOW_MS)
    schema = document["schema"]
    assert [(c["name"], c["id"]) for c in schema["columns"]] == [("id", 0), ("name", 1), ("c", 2), ("d", 4), ("e", 6)]
    assert [c["data_type"]["fields"][0]["field_id"] for c in schema["columns"][2:4]] == [3, 5]
    assert schema["highest_field_id"] == 6

    def columns(schema_id: int | None) -> tuple[int, list[str]]:
        request = pb.GetTableSchemaRequest(table_path=path(), schema_id=schema_id)
        answer = harness.call(admin.get_table_schema, request)
        return answer.schema_id, [c["name"] for c in json.loads(answer.schema_json)["columns"]]

    harness.reopen()
    assert columns(None) == columns(3) == (3, ["id", "name", "c", "d", "e"])
    assert columns(1) == (1, ["id", "name"])
    assert columns(2) == (2, ["id", "name", "c", "d"])
    for unknown in (0, 4, -1):
        request = pb.GetTableSchemaRequest(table_path=path(), schema_id=unknown)
        harness.fails(9, admin.get_table_schema, request)


def test_refused_schema_changes(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    harness.fails(56, admin.alter_table, add_column("name"), "Column name already exists.")
    harness.fails(56, admin.alter_table, add_column("x", "x"), "Column x already exists.")
    harness.fails(-1, admin.alter_table, add_column("x", position=1), "last")
    harness.fails(-1, admin.alter_table, add_column("x", kind={"type": "INTEGER", "nullable": False}), "nullable")
    harness.fails(15, admin.alter_table, add_column("__bucket"), "__bucket")
    harness.fails(39, admin.alter_table, add_column("x", function="sum", kind={"type": "INTEGER"}))
    harness.fails(56, admin.alter_table, add_column("x", kind={"type": "WONDER"}))
    for field, item in (
        ("drop_columns", pb.PbDropColumn(column_name="name")),
        ("rename_columns", pb.PbRenameColumn(old_column_name="name", new_column_name="x")),
        ("modify_columns", pb.PbModifyColumn(column_name="name")),
    ):
        request = pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False, **{field: [item]})
        harness.fails(-1, admin.alter_table, request, f"Not support {field.partition('_')[0]} column now.")
        request.table_path.table_name = "missing"
        harness.fails(7, admin.alter_table, request)
        request.ignore_if_not_exists = True
        harness.call(admin.alter_table, request)
    harness.fails(7, admin.alter_table, add_column("x", table="missing"))
    assert table_info(harness)[0].schema_id == 1


def test_an_aggregating_column_can_be_added_where_the_engine_aggregates(harness: Harness) -> None:
    harness.call(admin.create_table, create(aggregating(merge_engine="aggregation")))
    harness.call(admin.alter_table, add_column("total", function="sum", kind={"type": "BIGINT"}))
    harness.fails(39, admin.alter_table, add_column("words", function="sum"))
    harness.fails(39, admin.alter_table, add_column("words", function="nope"))
    assert table_info(harness)[1]["schema"]["columns"][-1]["agg_function"]["type"] == "sum"


# ---------------------------------------------------------------------- partitions


def partitions_of(harness: Harness, table: str = "t", **partial: str) -> dict[str, int]:
    partial_spec = spec(**partial) if partial else None
    request = pb.ListPartitionInfosRequest(table_path=path(table), partial_partition_spec=partial_spec)
    answer = harness.call(admin.list_partition_infos, request)
    return {
        "$".join(pair.value for pair in info.partition_spec.partition_key_values): info.partition_id
        for info in answer.partitions_info
    }


def test_partitions(harness: Harness) -> None:
    dropped: list[str] = []
    harness.catalog.on_dropped.append(lambda gone: dropped.append(gone.partition.name))
    harness.call(admin.create_table, create(partitioned_table(("dt", "region"))))
    assert partitions_of(harness) == {}
    # The order of the pairs is the client's; the name follows the table.
    harness.call(admin.create_partition, create_partition(region="EMEA", dt="2024-01-15"))
    harness.call(admin.create_partition, create_partition(dt="2024-01-15", region="APAC"))
    assert partitions_of(harness) == {"2024-01-15$EMEA": 0, "2024-01-15$APAC": 1}
    assert partitions_of(harness, region="APAC") == {"2024-01-15$APAC": 1}
    assert partitions_of(harness, dt="2024-01-15", region="X") == {}
    text = harness.fails(42, admin.create_partition, create_partition(dt="2024-01-15", region="EMEA"))
    assert "dt=2024-01-15/region=EMEA" in text
    harness.call(admin.create_partition, create_partition(ignore=True, dt="2024-01-15", region="EMEA"))
    harness.call(admin.drop_partition, drop_partition(dt="2024-01-15", region="EMEA"))
    harness.fails(36, admin.drop_partition, drop_partition(dt="2024-01-15", region="EMEA"))
    harness.call(admin.drop_partition, drop_partition(ignore=True, dt="2024-01-15", region="EMEA"))
    harness.call(admin.create_partition, create_partition(dt="2024-01-15", region="EMEA"))
    expected = {"2024-01-15$APAC": 1, "2024-01-15$EMEA": 2}
    assert partitions_of(harness) == expected
    assert dropped == ["2024-01-15$EMEA"]
    harness.reopen()
    assert partitions_of(harness) == expected
    assert harness.catalog.partition_by_id(0) is None
    assert harness.catalog.partition_by_id(2)[1].name == "2024-01-15$EMEA"
    assert not harness.catalog.owns_data_of(0, 0)
    assert harness.catalog.owns_data_of(0, 2)


def test_refused_partitions(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table(), "plain"))
    harness.call(admin.create_table, create(partitioned_table(("dt", "region"))))
    request = pb.ListPartitionInfosRequest(table_path=path("plain"))
    harness.fails(37, admin.list_partition_infos, request, "Table 'fluss.plain' is not a partitioned table.")
    harness.fails(37, admin.create_partition, create_partition("plain", dt="x"), "Only partitioned table")
    harness.fails(37, admin.drop_partition, drop_partition("plain", dt="x"), "Only partitioned table")
    harness.fails(43, admin.create_partition, create_partition(dt="x"))
    harness.fails(43, admin.create_partition, create_partition(dt="x", region="y", more="z"))
    harness.fails(43, admin.create_partition, create_partition(dt="x", other="y"))
    doubled = create_partition(dt="x", region="y")
    doubled.partition_spec.partition_key_values.add(key="dt", value="z")
    harness.fails(43, admin.create_partition, doubled)
    for value in ("", "a$b", "a b", "__x", ".", "x" * 201, "ä"):
        harness.fails(43, admin.create_partition, create_partition(dt=value, region="y"))
    harness.fails(43, admin.drop_partition, drop_partition(dt="x"))
    harness.fails(7, admin.create_partition, create_partition("missing", dt="x"))
    harness.fails(7, admin.drop_partition, drop_partition("missing", ignore=True, dt="x"))
    harness.fails(7, admin.list_partition_infos, pb.ListPartitionInfosRequest(table_path=path("missing")))
    unknown = pb.ListPartitionInfosRequest(table_path=path(), partial_partition_spec=spec(nope="1"))
    harness.fails(-1, admin.list_partition_infos, unknown, "nope")
    assert partitions_of(harness) == {}


def test_limits_of_partitions(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"max.partition.num": 2})
    harness.call(admin.create_table, create(partitioned_table(bucket_count=8)))
    for value in ("a", "b"):
        harness.call(admin.create_partition, create_partition(dt=value))
    harness.fails(45, admin.create_partition, create_partition(dt="c"), "max.partition.num")
    harness.call(admin.create_partition, create_partition(ignore=True, dt="a"))
    harness.call(admin.drop_partition, drop_partition(dt="a"))
    harness.options["max.bucket.num"] = 4
    harness.reopen()
    harness.fails(49, admin.create_partition, create_partition(dt="c"))


def test_replication_factor_of_a_partitioned_table(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties={"table.replication.factor": "3"})))
    harness.fails(17, admin.create_partition, create_partition(dt="a"), "3", "1")


def test_many_writers_make_the_same_partition(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table()))

    async def rush() -> None:
        request = create_partition(ignore=True, dt="a")
        await asyncio.gather(*(admin.create_partition(harness.context(), request) for _ in range(50)))

    harness.run(rush())
    assert partitions_of(harness) == {"a": 0}
