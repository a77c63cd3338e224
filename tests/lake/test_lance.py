# SPDX-License-Identifier: Apache-2.0
"""Lance datasets: vectors, what the table may not be, changes from outside, and search while rows come in."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from tests.lake.support import PARTITIONED, ROW, LakeHarness, in_small_files, row, rows_of

from fluss import DataTypes, TablePath
from fluss.errors import FlussError, InvalidArgumentError, InvalidTableError
from fluss.lake.layout import LakeConfig
from fluss.lake.registry import open_lake
from fluss.lake.rounds import RoundSettings

VECTORS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("embedding", pa.list_(pa.float32()))])
SIZE = "embedding.arrow.fixed-size-list.size"


def dataset(lake: LakeHarness, path: TablePath):  # type: ignore[no-untyped-def]
    import lance

    return lance.dataset(f"{lake.warehouse}/{path.database_name}/{path.table_name}.lance")


def vector(i: int, size: int = 4) -> dict[str, object]:
    return {"id": i, "embedding": [float(i)] * size}


def test_vectors_of_one_length_are_searched_while_rows_come_in(lance: LakeHarness) -> None:
    path = lance.create("vectors", VECTORS, **{SIZE: "4"})
    rows = [vector(i) for i in range(300)]
    lance.append(path, rows)
    lance.tier(path)
    opened = dataset(lance, path)
    assert opened.schema.field("embedding").type == pa.list_(pa.float32(), 4)
    opened.create_index("embedding", "IVF_FLAT", num_partitions=2)
    lance.append(path, [vector(1000), {"id": 1001, "embedding": None}])
    lance.tier(path)
    nearest = {"column": "embedding", "q": [1000.0] * 4, "k": 1}
    found = dataset(lance, path).to_table(nearest=nearest)
    assert found.column("id").to_pylist() == [1000], "rows after the index was made are found as well"
    lance.append(path, [vector(2000)])
    truth = [*rows, vector(1000), {"id": 1001, "embedding": None}, vector(2000)]
    assert lance.union(path) == truth
    assert lance.session.info(path).schema.arrow_schema.field("embedding").type.value_type == pa.float32()


def test_vectors_of_another_length_are_refused_by_name(lance: LakeHarness) -> None:
    path = lance.create("odd", VECTORS, **{SIZE: "4"})
    lance.append(path, [vector(1), vector(2, 3)])
    with pytest.raises(FlussError, match=r"column 'embedding': values do not fit .*odd"):
        lance.tier(path)
    assert dataset(lance, path).count_rows() == 0
    assert lance.table(path).sweep(older_than_ms=2**53) == []


@pytest.mark.parametrize(
    ("size", "options", "reason"),
    [
        ("0", {}, "positive integer"),
        ("four", {}, "positive integer"),
        ("4", {"primary_keys": ["id"]}, "lance takes log tables only"),
    ],
)
def test_what_a_dataset_cannot_hold_is_refused(lance: LakeHarness, size: str, options: dict, reason: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidTableError, match=reason):
        lance.create("refused", VECTORS, **options, **{SIZE: size})
    assert not lance.session.run(lance.session.admin.table_exists(TablePath(lance.database, "refused")))


def test_a_size_for_a_column_that_is_no_array(lance: LakeHarness) -> None:
    with pytest.raises(InvalidTableError, match="'name' is no ARRAY"):
        lance.create("refused", ROW, **{"name.arrow.fixed-size-list.size": "3"})


def test_an_added_array_has_the_length_that_the_table_gives(lance: LakeHarness) -> None:
    path = lance.create("grows", ROW, **{SIZE: "2"})
    lance.append(path, [row(1)])
    lance.tier(path)
    admin = lance.session.admin
    lance.session.run(admin.alter_table(path, add_columns={"embedding": DataTypes.array(DataTypes.float())}))
    lance.append(path, [{**row(2), "embedding": [1.0, 2.0]}])
    lance.tier(path)
    assert dataset(lance, path).schema.field("embedding").type == pa.list_(pa.float32(), 2)
    assert lance.union(path) == [{**row(1), "embedding": None}, {**row(2), "embedding": [1.0, 2.0]}]


def test_a_dataset_that_was_rolled_back_is_noticed(lance: LakeHarness) -> None:
    path = lance.create("restored")
    for i in range(3):
        lance.append(path, [row(i)])
        lance.tier(path)
    old = dataset(lance, path).checkout_version(2)
    old.restore()
    lance.append(path, [row(3)])
    with pytest.raises(FlussError, match="rolled back, overwritten"):
        lance.tier(path)
    assert dataset(lance, path).count_rows() == 1


def test_rows_of_another_program_are_left_alone(lance: LakeHarness) -> None:
    """An append from outside does not stop tiering, and what it wrote stays."""
    path = lance.create("shared")
    lance.append(path, [row(1)])
    lance.tier(path)
    dataset(lance, path).insert(pa.Table.from_pylist([row(100)], ROW))
    lance.append(path, [row(2)])
    lance.tier(path)
    assert rows_of(lance.alone(path)) == [row(1), row(2), row(100)]


def test_an_append_from_outside_during_the_commit_ends_the_round(lance: LakeHarness) -> None:
    path = lance.create("raced")
    lance.append(path, [row(1)])
    opened = lance.table(path)
    # The version is read, and another one comes before this one is written.
    dataset(lance, path).insert(pa.Table.from_pylist([row(100)], ROW))
    with pytest.raises(FlussError, match="meanwhile"):
        opened._merge([], "/offsets")  # type: ignore[attr-defined]
    lance.tier(path)
    assert rows_of(lance.alone(path)) == [row(1), row(100)]


def test_a_compaction_that_is_overtaken_half_way_keeps_its_files(lance: LakeHarness) -> None:
    from fluss.lake.lance import LanceTable

    path = in_small_files(lance, "overtaken")
    one = lance.round(settings=RoundSettings(compact=True, compact_files_min=2))
    report = one.run(path)
    merge = LanceTable._merge

    def other_first(self: LanceTable, *arguments: Any) -> int:
        # The first of the two versions is there, and another one comes before that with the offsets.
        dataset(lance, path).insert(pa.Table.from_pylist([row(100)], ROW))
        return merge(self, *arguments)

    with mock.patch.object(LanceTable, "_merge", other_first), pytest.raises(FlussError, match="stay merged"):
        one.maintain(report, sweep=False)
    lance.append(path, [row(4)])
    lance.tier(path)
    assert rows_of(lance.alone(path)) == [*(row(i) for i in range(5)), row(100)]


def test_where_rows_came_from_is_not_known(lance: LakeHarness) -> None:
    path = lance.create("placed", buckets=1)
    lance.append(path, [row(1)])
    lance.tier(path)
    assert [one["_commit_timestamp"] for one in lance.spark_union(path, columns="id,_commit_timestamp")] == [None]
    for name in ("_bucket", "_log_offset"):
        with pytest.raises(InvalidArgumentError, match="has no column __"):
            lance.spark_union(path, columns=f"id,{name}")


def test_options_of_the_table_are_used(lance: LakeHarness) -> None:
    path = lance.create("files", buckets=1, **{"lance.max_row_per_file": "10"})
    lance.append(path, [row(i) for i in range(35)])
    lance.tier(path)
    assert lance.table(path).stats().files == 4
    assert rows_of(lance.alone(path)) == [row(i) for i in range(35)]


def test_partitions_of_other_types_are_refused(lance: LakeHarness) -> None:
    schema = pa.schema([PARTITIONED.field("id"), pa.field("day", pa.int32(), nullable=False)])
    with pytest.raises(InvalidTableError, match="'day' is not"):
        lance.create("typed", schema, partitions={"day": []})


def test_a_warehouse_is_needed() -> None:
    pytest.importorskip("lance")
    with pytest.raises(FlussError, match=r"datalake\.lance\.warehouse"):
        open_lake(LakeConfig("lance", {}))
