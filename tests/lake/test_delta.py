# SPDX-License-Identifier: Apache-2.0
"""Delta tables: what they cannot hold, and changes from outside."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.lake.support import ROW, LakeHarness, row, rows_of

from fluss import TablePath
from fluss.errors import FlussError, InvalidTableError
from fluss.lake.layout import LakeConfig
from fluss.lake.registry import open_lake


def opened(lake: LakeHarness, path: TablePath) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(f"{lake.warehouse}/{path.database_name}/{path.table_name}")


def test_one_version_per_round_with_the_offsets_in_it(delta: LakeHarness) -> None:
    path = delta.create("t", buckets=2)
    delta.append(path, [row(i) for i in range(20)])
    report = delta.tier(path)
    table = opened(delta, path)
    assert table.version() == report.snapshot_id == 1
    commit = table.history(1)[0]
    assert commit["commit-user"] == "__fluss_lake_tiering"
    assert commit["fluss-offsets"].endswith(".offsets")
    assert rows_of(delta.alone(path), ROW.names) == [row(i) for i in range(20)]


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        (pa.schema([ROW.field("id"), ("at", pa.time32("ms"))]), {}, "no type for TIME; column 'at'"),
        (pa.schema([ROW.field("id"), ("at", pa.list_(pa.time32("ms")))]), {}, "no type for TIME; column 'at'"),
        (ROW, {"primary_keys": ["id"]}, "delta takes log tables only"),
        (
            pa.schema([ROW.field("id"), pa.field("day", pa.int32(), nullable=False)]),
            {"partitions": {"day": []}},
            "'day' is not",
        ),
    ],
)
def test_other_types_are_refused(delta: LakeHarness, schema: pa.Schema, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTableError, match=reason):
        delta.create("refused", schema, **options)
    assert not delta.session.run(delta.session.admin.table_exists(TablePath(delta.database, "refused")))


def test_any_version_that_comes_between_ends_the_round(delta: LakeHarness) -> None:
    path = delta.create("raced")
    delta.append(path, [row(1)])
    delta.tier(path)
    delta.append(path, [row(2)])
    stale: Any = delta.table(path)
    known = delta.session.lake_snapshot(path)
    # The version is read, and another one comes before this one is written.
    tiered_after = stale.tiered_after

    def other_first(known_id: int | None) -> Any:
        found = tiered_after(known_id)
        opened(delta, path).delete("id = 1")
        return found

    stale.tiered_after = other_first
    with pytest.raises(FlussError, match="meanwhile"):
        stale.commit((), "/offsets", known.snapshot_id)
    delta.tier(path)
    assert rows_of(delta.alone(path), ROW.names) == [row(2)], "what others delete stays deleted"
    assert delta.union(path) == [row(2)]


def test_a_table_that_was_rolled_back_is_noticed(delta: LakeHarness) -> None:
    path = delta.create("restored")
    for i in range(3):
        delta.append(path, [row(i)])
        delta.tier(path)
    opened(delta, path).restore(1)
    delta.append(path, [row(3)])
    with pytest.raises(FlussError, match="rolled back, overwritten"):
        delta.tier(path)


def test_a_warehouse_is_needed() -> None:
    pytest.importorskip("deltalake")
    with pytest.raises(FlussError, match=r"datalake\.delta\.warehouse"):
        open_lake(LakeConfig("delta", {}))
