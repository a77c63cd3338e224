# SPDX-License-Identifier: Apache-2.0
"""Damaged files hurt their own object and are reported; everything else goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.catalog.support import Harness, create, create_partition, log_table, partitioned_table, path

from fluss.errors import ErrorCode
from fluss.metadata import TablePath
from fluss.metadata.acl import AclBinding, OperationType, ResourceType
from fluss.protocol import fluss_pb2 as pb
from fluss.server.handlers import admin


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.call(admin.create_table, create(log_table(), "good"))
    harness.call(admin.create_table, create(log_table(), "bad"))
    harness.call(admin.create_table, create(partitioned_table(), "part"))
    harness.call(admin.create_partition, create_partition("part", dt="a"))
    harness.call(admin.create_partition, create_partition("part", dt="b"))
    return harness


def flip_content(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-10] ^= 0x04
    file.write_bytes(data)


def flip_identity(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[30] ^= 0x04
    file.write_bytes(data)


def cut_content(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def remove(file: Path) -> None:
    file.unlink()


def damage(harness: Harness, table: str, name: str, how: Callable[[Path], None]) -> Path:
    folder = harness.catalog.storage.table_dir(harness.catalog.table(TablePath("fluss", table)).table_id)
    harness.run(harness.catalog.close())
    how(folder / name)
    harness.open()
    return folder / name


def good_table_works(harness: Harness) -> None:
    assert harness.catalog.table(TablePath("fluss", "good")).bucket_total == 1
    harness.call(admin.create_table, create(log_table(), "new"))


@pytest.mark.parametrize("how", [flip_content, cut_content])
def test_a_damaged_table_is_named_refused_and_can_be_dropped(
    harness: Harness, how: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        file = damage(harness, "bad", "table.doc", how)
    assert str(file) in caplog.text
    assert [report.path for report in harness.catalog.damages] == [file]
    good_table_works(harness)
    text = harness.fails(-1, admin.get_table_info, pb.GetTableInfoRequest(table_path=path("bad")), "fluss.bad")
    assert "table.doc" in text
    harness.fails(-1, admin.get_metadata, pb.MetadataRequest(table_path=[path("bad")]))
    # It is still there: its name is not free, its data not garbage.
    harness.fails(-1, admin.create_table, create(log_table(), "bad", ignore=True))
    assert harness.call(admin.table_exists, pb.TableExistsRequest(table_path=path("bad"))).exists
    assert "bad" in harness.call(admin.list_tables, pb.ListTablesRequest(database_name="fluss")).table_name
    assert harness.catalog.owns_data_of(1)
    harness.call(admin.drop_table, pb.DropTableRequest(table_path=path("bad"), ignore_if_not_exists=False))
    assert not harness.catalog.owns_data_of(1)
    harness.call(admin.create_table, create(log_table(), "bad"))
    assert harness.catalog.table(TablePath("fluss", "bad")).table_id > 2
    harness.reopen()
    assert harness.catalog.damages == []


def newer(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"fluss-document 1 ", b"fluss-document 2 ", 1))


@pytest.mark.parametrize("source", ["document of a newer release", "document before", "folder of the rows"])
def test_the_name_of_a_damaged_table_is_not_free(harness: Harness, source: str) -> None:
    """A second table of that name would take the rows that belong into the first."""
    folder = harness.catalog.storage.table_dir(1)
    if source == "document of a newer release":
        damage(harness, "bad", "table.doc", newer)
    elif source == "document before":
        (folder / "table.doc.prev").write_bytes((folder / "table.doc").read_bytes())
        damage(harness, "bad", "table.doc", empty)
    else:
        (harness.catalog.data_dir / "tables" / "fluss" / "bad-1").mkdir(parents=True)
        damage(harness, "bad", "table.doc", empty)
    good_table_works(harness)
    text = harness.fails(-1, admin.create_table, create(log_table(), "bad", ignore=True), "fluss.bad")
    assert ("newer release" in text) == (source == "document of a newer release")
    assert "bad" in harness.call(admin.list_tables, pb.ListTablesRequest(database_name="fluss")).table_name


@pytest.mark.parametrize("how", [flip_identity, empty, remove])
def test_a_table_without_a_readable_name_keeps_its_data(harness: Harness, how: Callable[[Path], None]) -> None:
    damage(harness, "bad", "table.doc", how)
    assert len(harness.catalog.damages) == 1
    good_table_works(harness)
    assert harness.catalog.owns_data_of(1)
    assert harness.catalog.find_table(TablePath("fluss", "bad")) is None
    harness.reopen()
    assert harness.catalog.owns_data_of(1)


def test_a_restored_document_brings_the_table_back(harness: Harness) -> None:
    original = harness.catalog.storage.table_dir(1) / "table.doc"
    saved = original.read_bytes()
    damage(harness, "bad", "table.doc", flip_content)
    harness.run(harness.catalog.close())
    original.write_bytes(saved)
    harness.open()
    assert harness.catalog.table(TablePath("fluss", "bad")).table_id == 1


def test_a_partition_whose_name_is_readable_serves_on(harness: Harness) -> None:
    damage(harness, "part", "partitions/0.doc", flip_content)
    assert len(harness.catalog.damages) == 1
    assert list(harness.catalog.table(TablePath("fluss", "part")).partitions) == ["a", "b"]
    good_table_works(harness)


def test_a_partition_without_a_name_stops_its_table(harness: Harness) -> None:
    damage(harness, "part", "partitions/0.doc", flip_identity)
    # A second, empty partition "a" must not take the place of the lost one.
    harness.fails(-1, admin.create_partition, create_partition("part", dt="a"), "fluss.part")
    good_table_works(harness)
    assert harness.catalog.owns_data_of(2, 0)
    harness.call(admin.drop_table, pb.DropTableRequest(table_path=path("part"), ignore_if_not_exists=False))


def test_a_damaged_database_document_keeps_its_tables(harness: Harness) -> None:
    file = harness.catalog.storage.database_path(harness.catalog.databases["fluss"].database_id)
    harness.run(harness.catalog.close())
    flip_content(file)
    harness.open()
    good_table_works(harness)
    harness.fails(-1, admin.get_database_info, pb.GetDatabaseInfoRequest(database_name="fluss"), "damaged")


@pytest.mark.parametrize("how", [flip_identity, remove])
def test_a_lost_database_document_is_made_again_for_its_tables(harness: Harness, how: Callable[[Path], None]) -> None:
    file = harness.catalog.storage.database_path(harness.catalog.databases["fluss"].database_id)
    harness.run(harness.catalog.close())
    how(file)
    harness.open()
    good_table_works(harness)


def test_damaged_rules_close_the_doors_and_damaged_options_are_reported(harness: Harness) -> None:
    storage = harness.catalog.storage
    storage.write("acls", {"acls": []})
    storage.write("configs", {"dynamic": {"datalake.format": "paimon"}})
    storage.write("server-tags", {"tags": {}})
    harness.run(harness.catalog.close())
    for name in ("acls", "configs", "server-tags"):
        flip_content(storage.root / f"{name}.doc")
    harness.open()
    assert {report.path.stem for report in harness.catalog.damages} == {"acls", "configs", "server-tags"}
    assert harness.catalog.configs.lake_format is None
    good_table_works(harness)


def test_damaged_rules_let_only_super_users_in(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"authorizer.enabled": "true", "super.users": "User:root"})
    outside = {"listener": "C"}
    request = pb.GetTableInfoRequest(table_path=path("t"))
    harness.call(admin.create_table, create(log_table(), "t"), user="root", **outside)
    rule = AclBinding(ResourceType.TABLE, "fluss.t", "alice", OperationType.READ)
    harness.catalog.authorizer.store.apply(harness.catalog.authorizer.store.write([rule]))
    harness.call(admin.get_table_info, request, user="alice", **outside)
    harness.fails(ErrorCode.AUTHORIZATION_EXCEPTION, admin.get_table_info, request, user="bob", **outside)
    harness.run(harness.catalog.close())
    flip_content(harness.catalog.storage.root / "acls.doc")
    harness.open()
    for user in ("alice", "bob"):
        harness.fails(ErrorCode.AUTHORIZATION_EXCEPTION, admin.get_table_info, request, user=user, **outside)
    harness.call(admin.get_table_info, request, user="root", **outside)


def test_documents_of_a_strange_shape_are_damage_too(harness: Harness) -> None:
    storage = harness.catalog.storage
    storage.store.write(
        storage.table_dir(1) / "table.doc",
        {"kind": "table", "id": 1, "database": "fluss", "table": "bad"},
        {"schemas": "what?"},
    )
    storage.write("acls", {"acls": [{"operation": 99}]})
    harness.reopen()
    assert len(harness.catalog.damages) == 2
    harness.fails(-1, admin.get_table_info, pb.GetTableInfoRequest(table_path=path("bad")), "fluss.bad")
    good_table_works(harness)
