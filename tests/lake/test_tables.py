# SPDX-License-Identifier: Apache-2.0
"""Lake tables themselves: what the server makes of them, columns that come later, all types, files that go."""

from __future__ import annotations

import datetime as dt
import gc
import threading
import time
from dataclasses import replace
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from tests.lake.support import (
    ROW,
    LakeHarness,
    every_format,
    every_format_and_key,
    in_small_files,
    row,
    rows_of,
    system_columns,
)
from tests.shared import raising
from tests.waiting import wait_for

import fluss
from fluss import DataTypes, Schema, TableDescriptor, TablePath, errors
from fluss.lake.api import LakeBucket
from fluss.lake.layout import LakeConfig, lake_config
from fluss.lake.registry import open_lake
from fluss.lake.rounds import RoundSettings
from fluss.lake.tasks import BucketTask, run_task
from fluss.metadata import Column, OffsetSpec, TableBucket, TableInfo


def run(lake: LakeHarness, coro: Any) -> Any:
    return lake.session.run(coro)


@every_format
def test_the_server_creates_the_lake_table_first(lake: LakeHarness) -> None:
    path = lake.create("made")
    alone = lake.alone(path)
    assert alone.num_rows == 0
    assert alone.schema.names == [*ROW.names, *system_columns(lake.lake_format)]
    # Dropping the Fluss table leaves the lake table; an empty one may be taken over, one with rows may not.
    run(lake, lake.session.admin.drop_table(path))
    lake.create("made")
    lake.append(path, [row(1)])
    lake.tier(path)
    run(lake, lake.session.admin.drop_table(path))
    with pytest.raises(errors.LakeTableAlreadyExistError, match="not empty"):
        lake.create("made")
    assert not run(lake, lake.session.admin.table_exists(path)), "the refusal of the lake stops the table"
    with pytest.raises(errors.LakeTableAlreadyExistError, match="does not fit"):
        lake.create("made", pa.schema([pa.field("id", pa.string(), nullable=False), *list(ROW)[1:]]))
    if lake.lake_format in ("paimon", "iceberg"):
        with pytest.raises(errors.LakeTableAlreadyExistError, match="does not fit"):
            lake.create("made", primary_keys=["id"])


def test_a_table_with_rows_in_the_lake_is_not_replaced(paimon: LakeHarness) -> None:
    path = paimon.create("kept", buckets=1)
    paimon.append(path, [row(1)])
    paimon.tier(path)
    options: dict[str, Any] = {"buckets": 1, "properties": {"table.datalake.enabled": "true"}}
    with fluss.connect(paimon.server.bootstrap_servers, database=path.database_name) as db:
        with pytest.raises(errors.LakeTableAlreadyExistError, match="not empty"):
            db.create_table("kept", ROW, replace=True, **options)
        with pytest.raises(errors.TableAlreadyExistError, match="exist_ok=True"):
            db.create_table("kept", ROW, **options)
        assert db.create_table("kept", ROW, exist_ok=True, **options).to_pylist() == [row(1)]
        db.drop_table("kept")
        with pytest.raises(errors.LakeTableAlreadyExistError, match="not empty"):
            db.create_table("kept", ROW, exist_ok=True, **options)


def test_paimon_options(paimon: LakeHarness) -> None:
    path = paimon.create("opts", primary_keys=["id"], buckets=3)
    options = paimon.table(path).table.table_schema.options  # type: ignore[attr-defined]
    assert (options["bucket"], options["bucket-key"]) == ("3", "id")
    assert options["changelog-producer"] == "input"
    assert options["partition.legacy-name"] == "false"
    assert options["fluss.table.datalake.freshness"] == "1s"
    assert not any("warehouse" in name for name in options), "catalog settings are no part of the table"
    on, custom = {"table.datalake.enabled": "true"}, {"paimon.bucket": "7"}
    bad = TableDescriptor(Schema(ROW), bucket_count=1, properties=on, custom_properties=custom)
    with pytest.raises(errors.InvalidConfigError, match="bucket"):
        run(paimon, paimon.session.admin.create_table(TablePath(paimon.database, "bad"), bad))


def test_iceberg_layout(iceberg: LakeHarness) -> None:
    path = iceberg.create("spec", primary_keys=["id"], buckets=3)
    table = iceberg.table(path).table  # type: ignore[attr-defined]
    assert str(table.spec().fields[0].transform) == "bucket[3]"
    assert table.schema().identifier_field_names() == {"id"}
    assert table.properties["write.merge.mode"] == "merge-on-read"
    assert [field.source_id for field in table.sort_order().fields] == [table.schema().find_field("__offset").field_id]
    plain = iceberg.table(iceberg.create("plain")).table  # type: ignore[attr-defined]
    assert [field.name for field in plain.spec().fields] == ["__bucket"]
    with pytest.raises(errors.InvalidTableError, match="one bucket key"):
        iceberg.create("two", bucket_keys=["id", "name"])
    fine = pa.schema([pa.field("at", pa.timestamp("ns"), nullable=False), ("name", pa.string())])
    with pytest.raises(errors.InvalidTableError, match="microseconds"):
        iceberg.create("fine", fine, primary_keys=["at"])
    iceberg.create("fine", fine)


@every_format
def test_added_columns(lake: LakeHarness) -> None:
    path = lake.create("grows")
    lake.append(path, [row(1)])
    lake.tier(path)
    run(lake, lake.session.admin.alter_table(path, add_columns={"extra": DataTypes.int()}))
    lake.append(path, [{**row(2), "extra": 7}])
    truth = [{**row(1), "extra": None}, {**row(2), "extra": 7}]
    assert lake.union(path) == truth
    assert lake.union(path, columns=["extra"]) == [{"extra": 7}, {"extra": None}], "files without it have rows too"
    lake.tier(path)
    alone = lake.alone(path)
    names = [*ROW.names, "extra", *system_columns(lake.lake_format)]
    # The library of Delta adds columns after all others.
    assert sorted(alone.schema.names) == sorted(names) if lake.lake_format == "delta" else alone.schema.names == names
    assert rows_of(alone, [*ROW.names, "extra"]) == truth
    assert lake.union(path) == truth


@every_format
def test_columns_the_lake_did_not_get_yet_are_added_by_the_round(lake: LakeHarness) -> None:
    path = lake.create("late")
    lake.append(path, [row(1)])
    snapshot_id = lake.tier(path).snapshot_id
    info = lake.session.info(path)
    columns = [Column(column.name, column.data_type) for column in info.schema.columns]
    columns.append(Column("extra", DataTypes.string()))
    descriptor = info.descriptor.replace(schema=Schema.of(columns))
    wider = TableInfo(path, info.table_id, 2, descriptor, info.created_time, info.modified_time)
    with open_lake(lake_config(info)) as opened:
        table = opened.table(path)
        assert [column.name for column in table.missing_columns(wider)] == ["extra"]
        with pytest.raises(errors.FlussError, match="'extra' is missing"):
            table.check(wider)
        found = [batch for split in table.plan(snapshot_id) for batch in table.read(split, wider, ["extra"])]
        assert pa.Table.from_batches(found).to_pylist() == [{"extra": None}]
        opened.add_columns(path, table.missing_columns(wider))
        opened.add_columns(path, [columns[-1]])
        opened.table(path).check(wider)
        opened.table(path).check(info)


def test_a_column_changed_from_outside_is_noticed(paimon: LakeHarness) -> None:
    from pypaimon import CatalogFactory
    from pypaimon.schema.schema_change import SchemaChange

    path = paimon.create("renamed")
    paimon.append(path, [row(1)])
    paimon.tier(path)
    paimon.append(path, [row(2)])
    catalog = CatalogFactory.create({"warehouse": str(paimon.warehouse)})
    catalog.alter_table(str(path), [SchemaChange.drop_column("score")])
    # A dropped column comes back as a new one; its old values are gone, which is what the outside change did.
    catalog.alter_table(str(path), [SchemaChange.add_column("score", paimon_int())])
    with pytest.raises(errors.FlussError, match="column 'score' is INT, not DOUBLE"):
        paimon.tier(path)


def paimon_int() -> Any:
    from pypaimon.schema.data_types import AtomicType

    return AtomicType("INT")


ALL = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("int", pa.int32()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("blob", pa.binary()),
        ("price", pa.decimal128(12, 3)),
        ("big", pa.decimal128(30, 5)),
        ("day", pa.date32()),
        ("clock", pa.time32("ms")),
        ("at", pa.timestamp("us")),
        ("at_ms", pa.timestamp("ms")),
        ("moment", pa.timestamp("us", "UTC")),
        ("list", pa.list_(pa.int32())),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("pair", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)


FULL: dict[str, Any] = {
    "id": 1,
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "int": -(2**31),
    "float": 1.5,
    "double": 2.25,
    "text": "grüße",
    "blob": b"\x00\xff",
    "price": Decimal("123456789.125"),
    "big": Decimal("1234567890123456789012345.12345"),
    "day": dt.date(1969, 12, 31),
    "clock": dt.time(23, 59, 59, 123000),
    "at": dt.datetime(2024, 1, 2, 3, 4, 5, 678901),
    "at_ms": dt.datetime(1960, 1, 2, 3, 4, 5, 678000),
    "moment": dt.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=dt.timezone.utc),
    "list": [1, None, 3],
    "map": [("k", 1), ("l", None)],
    "pair": {"a": 1, "b": None},
}


@every_format_and_key
def test_all_types(lake: LakeHarness, primary_keys: list[str] | None) -> None:
    # Delta has no TIME.
    schema = pa.schema([field for field in ALL if lake.lake_format != "delta" or field.name != "clock"])
    path = lake.create("types", schema, primary_keys=primary_keys, buckets=1)
    empty = {name: (2 if name == "id" else None) for name in ALL.names}
    full, empty = ({name: one[name] for name in schema.names} for one in (FULL, empty))
    truth = pa.Table.from_pylist([full, empty], lake.session.info(path).schema.arrow_schema)

    async def write() -> None:
        table = await lake.session.connection.get_table(path)
        writer: Any = (table.new_upsert() if primary_keys else table.new_append()).create_writer()
        writer.write_arrow(truth)
        await writer.flush()

    run(lake, write())
    lake.tier(path)
    assert lake.union(path) == rows_of(truth)
    assert lake.union(path, lake_only=True) == rows_of(truth)
    assert lake.alone(path).num_rows == 2


@every_format_and_key
def test_maintenance(lake: LakeHarness, primary_keys: list[str] | None) -> None:
    path = lake.create("small", primary_keys=primary_keys, buckets=2)
    live: dict[int, dict[str, Any]] = {}
    settings = RoundSettings(compact=True, compact_files_min=4, expire=True, expire_keep_min=2, expire_after_s=-60.0)
    compacted, expired = 0, 0
    for step in range(8):
        rows = [row(i, step) if primary_keys else row(i) for i in range(step * 6, step * 6 + 12)]
        live.update({r["id"] + (0 if primary_keys else 1000 * step): r for r in rows})
        lake.upsert(path, rows) if primary_keys else lake.append(path, rows)
        one = lake.round(settings=settings)
        report = one.run(path)
        one.maintain(report, sweep=True)
        compacted += report.compacted
        expired += report.expired
        truth = rows_of(pa.Table.from_pylist(list(live.values())))
        assert lake.union(path) == truth
        assert rows_of(lake.alone(path), ROW.names) == truth
        assert report.stats is not None
    assert expired > 0
    stats = lake.table(path).stats()
    assert stats.snapshots <= 4
    if lake.lake_format == "paimon" or not primary_keys:
        assert compacted > 0
    assert stats.files <= 10
    assert lake.table(path).sweep(older_than_ms=2**53) == []
    assert lake.union(path) == truth
    # Nothing but what is used is left on the disk.
    snapshot = lake.session.lake_snapshot(path)
    assert lake.table(path).stats(snapshot.snapshot_id).files == stats.files


@every_format
def test_a_compaction_the_server_was_not_told_of(lake: LakeHarness) -> None:
    path = in_small_files(lake, "untold")

    def crash(step: str) -> None:
        if step == "compacted":
            raise ConnectionResetError

    one = lake.round(settings=RoundSettings(compact=True, compact_files_min=2), on_step=crash)
    report = one.run(path)
    with pytest.raises(ConnectionResetError):
        one.maintain(report, sweep=False)
    assert lake.union(path) == [row(i) for i in range(4)]
    lake.append(path, [row(4)])
    report = lake.tier(path)
    assert report.recovered_id is not None
    assert report.rows == 1
    assert lake.union(path) == [row(i) for i in range(5)]
    assert rows_of(lake.alone(path), ROW.names) == [row(i) for i in range(5)]
    assert lake.table(path).stats().files == 2


@every_format
def test_a_compaction_that_is_given_up_leaves_no_files(lake: LakeHarness) -> None:
    path = in_small_files(lake, "abandoned")
    one = lake.round(settings=RoundSettings(compact=True, compact_files_min=2))
    report = one.run(path)
    one.fenced.set()
    with pytest.raises(errors.FlussError, match="another tiering service"):
        one.maintain(report, sweep=False)
    assert lake.table(path).sweep(older_than_ms=2**53) == []
    assert lake.table(path).stats().files == 4
    assert lake.union(path) == [row(i) for i in range(4)]


@every_format
def test_a_compaction_the_server_refuses_leaves_no_files(lake: LakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    path = in_small_files(lake, "refused")
    one = lake.round(settings=RoundSettings(compact=True, compact_files_min=2))
    report = one.run(path)
    refuse = raising(errors.StorageError, "no space left on the disk of the server")
    monkeypatch.setattr(lake.session.admin, "prepare_lake_table_snapshot", refuse)
    with pytest.raises(errors.StorageError):
        one.maintain(report, sweep=False)
    assert lake.table(path).sweep(older_than_ms=2**53) == []
    assert lake.union(path) == [row(i) for i in range(4)]


@every_format
def test_expiry_keeps_what_the_server_knows(lake: LakeHarness) -> None:
    path = lake.create("kept")
    ids = []
    for i in range(4):
        lake.append(path, [row(i)])
        ids.append(lake.tier(path).snapshot_id)
    table = lake.table(path)
    expired = table.expire(keep_min=1, older_than_ms=2**53, keep_ids={ids[1]})
    assert [one for one in expired if one in ids] == [ids[0]]
    assert table.expire(keep_min=1, older_than_ms=0, keep_ids={ids[1]}) == []
    with pytest.raises(errors.FlussError, match="is gone"):
        lake.union(path, snapshot_id=ids[0])
    assert lake.union(path, snapshot_id=ids[1], lake_only=True) == [row(0), row(1)]
    assert lake.union(path) == [row(i) for i in range(4)]


@pytest.mark.parametrize(
    ("lake", "owner", "method"),
    [
        ("delta", "deltalake.DeltaTable", "create_write_transaction"),
        ("lance", "lance.LanceDataset", "commit"),
        ("iceberg", "pyiceberg.catalog.sql.SqlCatalog", "commit_table"),
    ],
    indirect=["lake"],
)
def test_a_commit_whose_answer_got_lost(lake: LakeHarness, owner: str, method: str) -> None:
    """The library sends it again, and is told that another one was first: which was its own."""
    path = lake.create("twice", buckets=1)
    lake.append(path, [row(1)])
    module, _, name = owner.rpartition(".")
    found = getattr(import_module(module), name)
    commit = getattr(found, method)

    def twice(*arguments: Any, **options: Any) -> Any:
        commit(*arguments, **options)
        return commit(*arguments, **options)

    with mock.patch.object(found, method, staticmethod(twice) if lake.lake_format == "lance" else twice):
        report = lake.tier(path)
    snapshot = lake.session.lake_snapshot(path)
    assert snapshot.snapshot_id == report.snapshot_id
    lake.append(path, [row(2)])
    lake.tier(path)
    assert rows_of(lake.alone(path), ROW.names) == [row(1), row(2)]


def test_files_that_a_compaction_moved_to_another_level_stay(paimon: LakeHarness) -> None:
    """Java does not write a file anew that overlaps with none: it deletes it from one level and adds it to another."""
    from pypaimon.snapshot.snapshot import BATCH_COMMIT_IDENTIFIER
    from pypaimon.write.commit_message import CommitMessage

    path = paimon.create("moved", primary_keys=["id"], buckets=1)
    paimon.upsert(path, [row(1)])
    paimon.tier(path)
    table: Any = paimon.table(path)
    [split] = table.raw_splits(1)
    moved = [replace(file, level=5) for file in split.files]
    messages = [CommitMessage(partition=(), bucket=0, new_files=moved, deleted_files=split.files)]
    commit = table.table.new_batch_write_builder().new_commit()
    entries = commit.file_store_commit._collect_manifest_entries(messages)
    commit.file_store_commit._try_commit(
        commit_kind="COMPACT",
        commit_identifier=BATCH_COMMIT_IDENTIFIER,
        commit_entries_plan=lambda latest: entries,
        detect_conflicts=True,
        allow_rollback=False,
        changelog_entries=[],
    )
    commit.close()
    assert table.expire(keep_min=1, older_than_ms=2**53, keep_ids=()) == [1]
    assert table.sweep(older_than_ms=2**53) == []
    assert rows_of(paimon.alone(path), ROW.names) == [row(1)]


def test_snapshots_that_a_stream_has_still_to_read_stay(paimon: LakeHarness) -> None:
    from pypaimon.consumer.consumer import Consumer

    path = in_small_files(paimon, "streamed")
    table: Any = paimon.table(path)
    table.table.consumer_manager().reset_consumer("job", Consumer(next_snapshot=3))
    assert table.expire(keep_min=1, older_than_ms=2**53, keep_ids=()) == [1, 2]
    table.table.consumer_manager().delete_consumer("job")
    assert table.expire(keep_min=1, older_than_ms=2**53, keep_ids=()) == [3]


def test_files_of_a_place_with_another_name_are_not_swept(iceberg: LakeHarness) -> None:
    """Java catalogs write ``file:/folder`` for a local folder."""
    path = iceberg.create("named", buckets=1)
    opened: Any = iceberg.table(path)
    name = (path.database_name, path.table_name)
    catalog, schema, spec = opened.table.catalog, opened.table.schema(), opened.table.spec()
    catalog.drop_table(name)
    catalog.create_table(name, schema, location=f"file:{iceberg.warehouse}/elsewhere/named", partition_spec=spec)
    iceberg.append(path, [row(1)])
    iceberg.tier(path)
    assert iceberg.table(path).sweep(older_than_ms=2**53) == []
    assert iceberg.union(path, lake_only=True) == [row(1)]


def test_retention_keeps_what_is_not_tiered(paimon: LakeHarness) -> None:
    path = paimon.create("short", buckets=1, **{"table.log.ttl": "500ms"})
    for step in range(10):
        paimon.append(path, [row(i) for i in range(step * 50, step * 50 + 50)])

    def earliest() -> int:
        return int(run(paimon, paimon.session.admin.list_offsets(path, [0], OffsetSpec.earliest()))[0])

    time.sleep(1.2)
    assert earliest() == 0, "older than the log may be, but nowhere else yet"
    assert paimon.union(path) == [row(i) for i in range(500)]
    paimon.tier(path)
    wait_for(lambda: earliest() > 0)
    assert earliest() <= 500
    paimon.append(path, [row(500)])
    assert paimon.union(path) == [row(i) for i in range(501)]
    paimon.tier(path)
    assert paimon.union(path, lake_only=True) == [row(i) for i in range(501)]


def test_listed_rows_when_the_lake_is_turned_on_late(paimon: LakeHarness) -> None:
    """A primary-key bucket whose changelog does not reach back is tiered by listing its rows."""
    path = paimon.create("listed", primary_keys=["id"], buckets=1)
    paimon.upsert(path, [row(i) for i in range(20)])
    info = paimon.session.info(path)
    bucket = TableBucket(info.table_id, 0)
    task = BucketTask(paimon.client, lake_config(info), path, info.table_id, bucket, (), -2, 20, listed=True)
    result = run_task(task)
    assert (result.rows, result.end) == (20, 20)
    assert result.written is not None
    offsets = run(paimon, paimon.session.admin.prepare_lake_table_snapshot(path, info.table_id, {bucket: result.end}))
    paimon.table(path).commit([result.written], offsets, None)
    assert set(paimon.alone(path).column("__offset").to_pylist()) == {-1}
    paimon.upsert(path, [row(3, 1)])
    report = paimon.tier(path)
    assert report.recovered_id == 1
    assert paimon.union(path) == [row(i, 1 if i == 3 else 0) for i in range(20)]


def test_what_is_not_supported_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.ConfigError, match="'hudi' is not supported"):
        open_lake(LakeConfig("hudi", {}))
    with pytest.raises(errors.ConfigError, match="warehouse"):
        open_lake(LakeConfig("paimon", {}))
    with pytest.raises(errors.ConfigError, match="hadoop"):
        open_lake(LakeConfig("iceberg", {"type": "hadoop", "warehouse": str(tmp_path)}))
    monkeypatch.setitem(__import__("sys").modules, "fluss.lake.paimon", None)
    with pytest.raises(errors.MissingDependencyError, match=r"fluss-python\[paimon\]"):
        open_lake(LakeConfig("paimon", {"warehouse": str(tmp_path)}))
    assert "hush" not in repr(LakeConfig("paimon", {"s3.secret": "hush"}))


def test_jdbc_options_become_sql_options() -> None:
    from fluss.lake.iceberg import catalog_options

    found = catalog_options(
        {"type": "jdbc", "uri": "jdbc:postgresql://h/db", "jdbc.user": "me", "jdbc.password": "p@w/:", "warehouse": "w"}
    )
    assert found == {"type": "sql", "uri": "postgresql://me:p%40w%2F%3A@h/db", "warehouse": "w"}
    assert catalog_options({"type": "jdbc", "uri": "jdbc:sqlite:/a/b.db"})["uri"] == "sqlite:////a/b.db"


def test_an_abandoned_writer_leaves_nothing_to_threads(paimon: LakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native writer belongs to its thread: dropped by the garbage collector in another one, it is an error."""
    path = paimon.create("given_up")
    dropped: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", dropped.append)

    def give_up() -> None:
        writer = paimon.table(path).writer(LakeBucket(0, None), paimon.session.info(path))
        circle = [writer]
        circle.append(circle)  # type: ignore[arg-type]
        writer.abort()

    thread = threading.Thread(target=give_up)
    thread.start()
    thread.join()
    gc.collect()
    assert dropped == []
