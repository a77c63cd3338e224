# SPDX-License-Identifier: Apache-2.0
"""The catalog is cut off before every single step on the disk; reopening gives the state before or after the change."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.server.catalog.support import NOW_MS, Clock, log_table, partitioned_table, pk_table
from tests.shared import raising
from tests.waiting import cancel_and_wait

from fluss.errors import FlussError
from fluss.metadata import Column, DatabaseDescriptor, DataTypes, TablePath
from fluss.metadata.acl import CLUSTER_RESOURCE_NAME, AclBinding, OperationType, ResourceType
from fluss.server import disk
from fluss.server.catalog import Catalog, partitions, tables
from fluss.server.catalog.producers import ProducerEntry


class Cut(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a power cut."""


class CuttingDisk:
    """Lets a number of steps on the disk pass, and then cuts. A file being written is left half there."""

    STEPS = ("write_file", "link", "rename", "make_folders", "sync_folder", "unlink_if_there", "remove_tree")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cut_after(None)
        for name in self.STEPS:
            monkeypatch.setattr(disk, name, self._cutting(getattr(disk, name)))

    def cut_after(self, steps: int | None) -> None:
        self.steps, self._cut_at = 0, steps

    def _cutting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def take(*args: Any) -> Any:
            if self._cut_at is not None and self.steps >= self._cut_at:
                if step.__name__ == "write_file" and self.steps == self._cut_at:
                    Path(args[0]).write_bytes(args[1][: len(args[1]) // 2])
                raise Cut
            self.steps += 1
            return step(*args)

        return take


OWNER = "User:alice"
P1 = ProducerEntry("p1", NOW_MS + 5, {0: {(None, 0): 3}}, OWNER)
LOG, PART = TablePath("fluss", "log"), TablePath("fluss", "part")


def open_catalog(folder: Path) -> Catalog:
    return Catalog(folder, {"datalake.format": "paimon"}, clock_ms=Clock())


def state(catalog: Catalog) -> dict[str, Any]:
    """Everything a client can see, and nothing else."""
    return {
        "databases": {name: db.descriptor.to_json() for name, db in catalog.databases.items()},
        "tables": {
            str(entry.table_path): (
                entry.table_id,
                entry.schema_id,
                entry.table_info.descriptor.to_json(),
                {schema_id: schema.to_json() for schema_id, schema in entry.schemas.items()},
                {name: (p.partition_id, dict(p.spec)) for name, p in entry.partitions.items()},
                entry.lake.to_json() if entry.lake else None,
            )
            for entry in catalog.tables()
        },
        "acls": sorted(str(acl) for acl in catalog.acls.all()),
        "configs": catalog.configs.dynamic,
        "producers": {p: catalog.producers.get(OWNER, p) for p in ("p1", "p2")},
    }


async def base(catalog: Catalog) -> None:
    await tables.create_database(catalog, "d", DatabaseDescriptor(comment="old"), ignore_if_exists=False)
    await tables.create_table(catalog, LOG, log_table(), ignore_if_exists=False)
    await tables.create_table(catalog, PART, partitioned_table(), ignore_if_exists=False)
    for name in ("a", "b"):
        await tables.create_table(catalog, TablePath("d", name), pk_table(), ignore_if_exists=False)
    await partitions.create_partition(catalog, PART, [("dt", "one")], ignore_if_exists=False)
    catalog.producers.write(P1)


async def create_database(catalog: Catalog) -> None:
    await tables.create_database(catalog, "new", DatabaseDescriptor(comment="c"), ignore_if_exists=False)


async def alter_database(catalog: Catalog) -> None:
    await tables.alter_database(catalog, "d", [("k", "v", 0)], "new", ignore_if_not_exists=False)


async def drop_database(catalog: Catalog) -> None:
    await tables.drop_database(catalog, "d", ignore_if_not_exists=False, cascade=True)


async def create_table(catalog: Catalog) -> None:
    await tables.create_table(catalog, TablePath("d", "new"), pk_table(), ignore_if_exists=False)


async def drop_table(catalog: Catalog) -> None:
    await tables.drop_table(catalog, PART, ignore_if_not_exists=False)


async def alter_properties(catalog: Catalog) -> None:
    await tables.alter_properties(catalog, LOG, [("table.log.ttl", "1 d", 0)], ignore_if_not_exists=False)


async def add_column(catalog: Catalog) -> None:
    await tables.add_columns(catalog, LOG, [Column("extra", DataTypes.string())], ignore_if_not_exists=False)


async def create_partition(catalog: Catalog) -> None:
    await partitions.create_partition(catalog, PART, [("dt", "two")], ignore_if_exists=False)


async def drop_partition(catalog: Catalog) -> None:
    await partitions.drop_partition(catalog, PART, [("dt", "one")], ignore_if_not_exists=False)


async def commit_lake_snapshot(catalog: Catalog) -> None:
    await catalog.lake.commit_inline(catalog.table(LOG).table_id, 5, {(None, 0): 42}, {})


async def add_acl(catalog: Catalog) -> None:
    acls = [AclBinding(ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, "alice", OperationType.READ)]
    await catalog.in_storage_thread(lambda: catalog.acls.write(acls))


async def alter_config(catalog: Catalog) -> None:
    await catalog.in_storage_thread(lambda: catalog.configs.write({"datalake.format": "iceberg"}))


async def register_producer(catalog: Catalog) -> None:
    entry = ProducerEntry("p2", NOW_MS + 5, {1: {(7, 0): 3}}, OWNER)
    await catalog.in_storage_thread(lambda: catalog.producers.write(entry))


async def delete_producer(catalog: Catalog) -> None:
    await catalog.in_storage_thread(lambda: catalog.producers.erase(P1))


CHANGES: list[Callable[[Catalog], Awaitable[None]]] = [
    create_database, alter_database, drop_database, create_table, drop_table, alter_properties, add_column,
    create_partition, drop_partition, commit_lake_snapshot, add_acl, alter_config, register_producer, delete_producer,
]  # fmt: skip


async def apply(catalog: Catalog, change: Callable[[Catalog], Awaitable[None]]) -> None:
    try:
        await change(catalog)
    except Cut:
        pass
    finally:
        # As a killed process would: nothing is flushed, no counter given back.
        catalog.remote_executor.shutdown(wait=True)
        catalog.executor.shutdown(wait=True)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_cut_at_any_step_leaves_before_or_after(
    change: Callable[[Catalog], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, folder = tmp_path / "origin", tmp_path / "run"
    catalog = open_catalog(origin)
    asyncio.run(base(catalog))
    catalog.close_now()
    cutting = CuttingDisk(monkeypatch)

    def start() -> Catalog:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(origin, folder)
        cutting.cut_after(None)
        return open_catalog(folder)

    catalog = start()
    before = state(catalog)
    ids_used = set(catalog.tables_by_id) | set(catalog.partitions_by_id)
    cutting.cut_after(None)
    asyncio.run(apply(catalog, change))
    steps = cutting.steps
    reopened = open_catalog(folder)
    after = state(reopened)
    reopened.close_now()
    assert after != before
    assert steps >= 3

    seen = set()
    for step in range(steps):
        catalog = start()
        cutting.cut_after(step)
        asyncio.run(apply(catalog, change))
        # The second start may be cut as well, while it cleans up.
        for cut in (2, 7, None):
            cutting.cut_after(cut)
            try:
                reopened = open_catalog(folder)
            except Cut:
                continue
        found = state(reopened)
        assert found in (before, after), f"cut before step {step} of {steps}"
        assert reopened.damages == []
        seen.add("after" if found == after else "before")
        cutting.cut_after(None)
        fresh = asyncio.run(new_ids(reopened))
        assert not fresh & ids_used
        reopened.close_now()
    assert seen == {"before", "after"}, "a cut before the first step and one after the decision must differ"


async def new_ids(catalog: Catalog) -> set[int]:
    entry = await tables.create_table(catalog, TablePath("fluss", "fresh"), log_table(), ignore_if_exists=False)
    return {entry.table_id}


def test_ids_are_not_reused_after_a_drop_and_a_crash(tmp_path: Path) -> None:
    seen: set[int] = set()
    for _ in range(4):
        catalog = open_catalog(tmp_path)

        async def work(catalog: Catalog = catalog) -> None:
            entry = await tables.create_table(catalog, LOG, log_table(), ignore_if_exists=False)
            assert entry.table_id not in seen
            seen.add(entry.table_id)
            await tables.drop_table(catalog, LOG, ignore_if_not_exists=False)

        asyncio.run(work())
        catalog.remote_executor.shutdown(wait=True)
        catalog.executor.shutdown(wait=True)


def based(folder: Path) -> Catalog:
    """A catalog with something of everything in it."""
    catalog = open_catalog(folder)
    asyncio.run(base(catalog))
    return catalog


def lasting(catalog: Catalog) -> dict[str, Any]:
    """What does not depend on the time: offsets of producers expire."""
    return {name: value for name, value in state(catalog).items() if name != "producers"}


class FailingDisk:
    """Fails to flush folders, and to rename after that, as long as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail = self.renames_fail = False
        self._sync_folder, self._rename = disk.sync_folder, disk.rename
        monkeypatch.setattr(disk, "sync_folder", self.sync_folder)
        monkeypatch.setattr(disk, "rename", self.rename)

    def sync_folder(self, path: Path) -> None:
        if self.fail:
            raise OSError(5, "Input/output error")
        self._sync_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        if self.renames_fail and self.fail and target.parent.name == "staging":
            raise OSError(5, "Input/output error")
        self._rename(source, target)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


@pytest.mark.parametrize("renames_fail", [False, True])
def test_a_failing_disk_stops_changes_but_not_reads(tmp_path: Path, failing: FailingDisk, renames_fail: bool) -> None:
    failing.renames_fail = renames_fail
    catalog = based(tmp_path)
    failing.fail = True
    with pytest.raises(FlussError, match=r"nothing was changed: .*Input/output error"):
        asyncio.run(create_table(catalog))
    with pytest.raises(FlussError, match="the catalog refuses changes"):
        asyncio.run(create_partition(catalog))
    assert catalog.table(LOG).table_path == LOG
    before = lasting(catalog)
    failing.fail = False
    # Without a restart, and what was not acknowledged is not there after one.
    asyncio.run(create_partition(catalog))
    after = lasting(catalog)
    assert after != before
    catalog.close_now()
    again = open_catalog(tmp_path)
    assert again.damages == []
    assert lasting(again) == after
    again.close_now()


def test_a_changed_document_that_is_not_confirmed_is_the_old_one_again(tmp_path: Path, failing: FailingDisk) -> None:
    catalog = based(tmp_path)
    before = lasting(catalog)
    failing.fail = True
    with pytest.raises(FlussError, match=r"nothing was changed: .* a power failure may bring this one back"):
        asyncio.run(tables.add_columns(catalog, LOG, [Column("more", DataTypes.int())], ignore_if_not_exists=False))
    assert lasting(catalog) == before
    catalog.close_now()
    failing.fail = False
    again = open_catalog(tmp_path)
    assert lasting(again) == before
    again.close_now()


def test_a_drop_that_is_not_confirmed_is_a_drop(tmp_path: Path, failing: FailingDisk) -> None:
    """The rename comes first, so a restart would not find the table: it must not be served until then."""
    catalog = based(tmp_path)
    dropped: list[TablePath] = []
    catalog.on_dropped.append(lambda gone: dropped.append(gone.table.table_path))
    failing.fail = True
    with pytest.raises(FlussError, match="was dropped, but the disk did not confirm it"):
        asyncio.run(tables.drop_table(catalog, LOG, ignore_if_not_exists=False))
    assert catalog.find_table(LOG) is None
    assert dropped == [LOG]
    failing.fail = False
    asyncio.run(create_database(catalog))
    catalog.close_now()
    again = open_catalog(tmp_path)
    assert again.find_table(LOG) is None
    assert again.damages == []
    again.close_now()


def test_a_full_disk_before_the_decision_changes_nothing(tmp_path: Path) -> None:
    catalog = based(tmp_path)
    full = mock.patch.object(disk, "write_file", raising(OSError, 28, "No space left on device"))
    with full, pytest.raises(FlussError, match="nothing was changed"):
        asyncio.run(create_database(catalog))
    asyncio.run(create_database(catalog))
    assert "new" in catalog.databases
    catalog.close_now()


async def test_a_change_is_finished_when_its_client_goes_away(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)

    task = asyncio.ensure_future(create_database(catalog))
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    await catalog.close()
    assert "new" in catalog.databases
    assert "new" in open_catalog(tmp_path).databases
