# SPDX-License-Identifier: Apache-2.0
"""Lake tables without system columns, as Apache Fluss creates them from 1.0 on: tiered to, read and extended."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.lake.support import ROW, LakeHarness, row, rows_of

from fluss.lake import iceberg_schema, paimon_schema
from fluss.metadata import Schema, TableDescriptor, TablePath

both_formats = pytest.mark.parametrize("lake", ["paimon", "iceberg"], indirect=True)


def create(lake: LakeHarness, name: str, **layout: Any) -> TablePath:
    """Make the lake table as Apache Fluss 1.0 does, then the table that is tiered to it."""
    path = TablePath(lake.database, name)
    descriptor = TableDescriptor(
        Schema(ROW, primary_keys=layout.get("primary_keys")),
        partition_keys=list(layout.get("partitions") or ()) or None,
        bucket_count=2,
        bucket_keys=layout.get("bucket_keys"),
    )
    if lake.lake_format == "paimon":
        from pypaimon import CatalogFactory

        catalog = CatalogFactory.create({"warehouse": str(lake.warehouse)})
        catalog.create_database(path.database_name, True)
        catalog.create_table(str(path), paimon_schema.paimon_schema(descriptor, clean=True), False)
    else:
        from pyiceberg.catalog import load_catalog

        uri = f"sqlite:///{lake.warehouse}/catalog.db"
        tables = load_catalog("fluss", type="sql", uri=uri, warehouse=str(lake.warehouse))
        tables.create_namespace_if_not_exists(path.database_name)
        schema = iceberg_schema.iceberg_schema(descriptor, clean=True)
        tables.create_table(
            (path.database_name, path.table_name),
            schema,
            partition_spec=iceberg_schema.iceberg_spec(descriptor, schema),
            properties=iceberg_schema.iceberg_properties(descriptor),
        )
        tables.close()
    return lake.create(name, **layout)


@both_formats
@pytest.mark.parametrize("bucket_keys", [None, ["id"]])
def test_log_table(lake: LakeHarness, bucket_keys: list[str] | None) -> None:
    path = create(lake, f"clean_log_{bool(bucket_keys)}", bucket_keys=bucket_keys)
    truth = [row(i) for i in range(200)]
    for first in (0, 100):
        lake.append(path, truth[first : first + 100])
        assert lake.tier(path).rows == 100
    more = [row(i) for i in range(200, 250)]
    lake.append(path, more)
    assert lake.union(path) == truth + more
    assert lake.union(path, lake_only=True) == truth
    alone = lake.alone(path)
    assert alone.schema.names == ROW.names
    assert rows_of(alone, ROW.names) == truth
    lake.session.run(lake.session.admin.alter_table(path, add_columns={"extra": pa.string()}))
    lake.append(path, [{**row(250), "extra": "x"}])
    lake.tier(path)
    assert lake.alone(path).schema.names == [*ROW.names, "extra"]
    table = lake.table(path)
    table.compact(files_min=2)  # files without offsets have no order, and can be merged all the same


@both_formats
def test_primary_key_table(lake: LakeHarness) -> None:
    path = create(lake, "clean_key", primary_keys=["id"])
    lake.upsert(path, [row(i) for i in range(100)])
    lake.tier(path)
    lake.upsert(path, [row(i, version=1) for i in range(50, 120)], deletes=[{"id": 3}])
    truth = [row(i) for i in range(50) if i != 3] + [row(i, version=1) for i in range(50, 120)]
    assert lake.union(path) == truth
    lake.tier(path)
    assert rows_of(lake.alone(path), ROW.names) == truth
    assert lake.union(path, lake_only=True) == truth


def test_some_system_columns_are_refused(iceberg: LakeHarness) -> None:
    schema = iceberg_schema.iceberg_schema(TableDescriptor(Schema(ROW), bucket_count=1))
    columns = Schema(ROW).columns
    assert iceberg_schema.differences(schema, columns) == ([], [])
    clean = iceberg_schema.iceberg_schema(TableDescriptor(Schema(ROW), bucket_count=1), clean=True)
    assert iceberg_schema.differences(clean, columns) == ([], [])
    part = schema.select(*(name for name in schema.column_names if name != "__offset"))
    assert iceberg_schema.differences(part, columns) == ([], ["column '__offset' is missing"])
