# SPDX-License-Identifier: Apache-2.0
"""Tables, writes and comparisons for the lake tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.client.support import write

from fluss import Schema, TableDescriptor, TablePath
from fluss.lake.api import OpenLakeTable
from fluss.lake.layout import lake_config
from fluss.lake.registry import open_lake
from fluss.lake.rounds import Round, RoundReport, RoundSettings
from fluss.lake.tasks import LakeSession, LocalRunner
from fluss.lake.union import union_read
from fluss.server.local import LocalServer

PACKAGES = {"paimon": "pypaimon", "iceberg": "pyiceberg", "lance": "lance", "delta": "deltalake"}
"""The package that each format needs."""

every_format = pytest.mark.parametrize("lake", list(PACKAGES), indirect=True)
"""For tests of log tables, which every format has."""

every_format_and_key = pytest.mark.parametrize(
    ("lake", "primary_keys"),
    [(lake_format, None) for lake_format in PACKAGES] + [("paimon", ["id"]), ("iceberg", ["id"])],
    indirect=["lake"],
)


def system_columns(lake_format: str) -> list[str]:
    """The columns that tables of a format have beside those of the Fluss table."""
    return [] if lake_format == "lance" else ["__bucket", "__offset", "__timestamp"]


ROW = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("score", pa.float64())])
PARTITIONED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.string(), nullable=False),
        ("name", pa.string()),
        ("score", pa.float64()),
    ]
)


def lake_server_options(lake_format: str, warehouse: Path) -> dict[str, str]:
    options = {
        "datalake.format": lake_format,
        f"datalake.{lake_format}.warehouse": str(warehouse),
        # Small and often, so that a test can see the log being deleted.
        "log.segment.file-size": "2kb",
        "log.retention.check-interval": "200ms",
    }
    if lake_format == "paimon":
        options["datalake.paimon.metastore"] = "filesystem"
    return options


@dataclass
class LakeHarness:
    lake_format: str
    server: LocalServer
    warehouse: Path
    session: LakeSession
    database: str

    @property
    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.server.bootstrap_servers}

    def create_database(self) -> None:
        self.session.run(self.session.admin.create_database(self.database))

    def create(
        self,
        name: str,
        schema: pa.Schema = ROW,
        *,
        primary_keys: Sequence[str] | None = None,
        partitions: Mapping[str, Sequence[str]] | None = None,
        buckets: int = 2,
        bucket_keys: Sequence[str] | None = None,
        **properties: str,
    ) -> TablePath:
        path = TablePath(self.database, name)
        descriptor = TableDescriptor(
            Schema(schema, primary_keys=list(primary_keys) if primary_keys else None),
            partition_keys=list(partitions or ()) or None,
            bucket_count=buckets,
            bucket_keys=list(bucket_keys) if bucket_keys else None,
            properties={
                "table.datalake.enabled": "true",
                "table.datalake.freshness": "1s",
                **{name: text for name, text in properties.items() if name.startswith("table.")},
            },
            custom_properties={name: text for name, text in properties.items() if not name.startswith("table.")},
        )
        self.session.run(self.session.admin.create_table(path, descriptor))
        for key, values in (partitions or {}).items():
            for value in values:
                self.session.run(self.session.admin.create_partition(path, {key: value}))
        return path

    def append(self, path: TablePath, rows: Iterable[Mapping[str, Any]]) -> None:
        async def work() -> None:
            await write(await self.session.connection.get_table(path), rows)

        self.session.run(work())

    def upsert(
        self, path: TablePath, rows: Iterable[Mapping[str, Any]], deletes: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        async def work() -> None:
            table = await self.session.connection.get_table(path)
            writer = table.new_upsert().create_writer()
            for row in rows:
                writer.upsert(row)
            for row in deletes:
                writer.delete(row)
            await writer.flush()

        self.session.run(work())

    def round(self, **options: Any) -> Round:
        return Round(self.session, self.client, LocalRunner(2), **options)

    def tier(self, path: TablePath, settings: RoundSettings | None = None) -> RoundReport:
        # On a machine that is busy enough, a round of the default half a minute would commit less than all rows.
        return self.round(settings=settings or RoundSettings(duration_s_max=600.0)).run(path)

    def table(self, path: TablePath) -> OpenLakeTable:
        return open_lake(lake_config(self.session.info(path))).table(path)

    def union(self, path: TablePath, **options: Any) -> list[dict[str, Any]]:
        return rows_of(union_read(self.session, path, **options))

    def spark_plan(self, path: TablePath, **options: Any) -> tuple[Any, list[Any]]:
        """The reader that Spark would use, and its partitions, without Spark around them."""
        from fluss.spark.batches import source_schema
        from fluss.spark.options import read_options
        from fluss.spark.reader import FlussReader

        given = {"table": str(path), **{name.replace("__", "."): str(value) for name, value in options.items()}}
        parsed = read_options({**self.client, **given})
        info = self.session.info(path)
        schema = source_schema(info, parsed["columns"], metadata=parsed["includeMetadata"], changelog=False)
        reader = FlussReader(parsed, schema)
        return reader, list(reader.partitions())

    def spark_union(self, path: TablePath, **options: Any) -> list[dict[str, Any]]:
        reader, parts = self.spark_plan(path, **options)
        batches = [batch for part in parts for batch in reader.read(part)]
        return rows_of(pa.Table.from_batches(batches)) if batches else []

    def alone(self, path: TablePath, snapshot_id: int | None = None) -> pa.Table:
        """What the library of the format reads, with no help of ours."""
        if self.lake_format == "paimon":
            from pypaimon import CatalogFactory

            table = CatalogFactory.create({"warehouse": str(self.warehouse)}).get_table(str(path))
            if snapshot_id is not None:
                table = table.copy({"scan.snapshot-id": str(snapshot_id)})
            builder = table.new_read_builder()
            return builder.new_read().to_arrow(builder.new_scan().plan().splits())
        if self.lake_format == "lance":
            import lance

            uri = f"{self.warehouse}/{path.database_name}/{path.table_name}.lance"
            return lance.dataset(uri, version=snapshot_id).to_table()
        if self.lake_format == "delta":
            from deltalake import DeltaTable, QueryBuilder

            uri = f"{self.warehouse}/{path.database_name}/{path.table_name}"
            found = DeltaTable(uri, version=snapshot_id)
            return pa.table(QueryBuilder().register("t", found).execute("select * from t").read_all())
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(
            "fluss", type="sql", uri=f"sqlite:///{self.warehouse}/catalog.db", warehouse=str(self.warehouse)
        )
        try:
            return catalog.load_table((path.database_name, path.table_name)).scan(snapshot_id=snapshot_id).to_arrow()
        finally:
            catalog.close()


@contextmanager
def lake_harness(server: LocalServer, lake_format: str, warehouse: Path, database: str) -> Iterator[LakeHarness]:
    """A harness on a running server, with a database and a session of its own."""
    session = LakeSession({"bootstrap.servers": server.bootstrap_servers})
    harness = LakeHarness(lake_format, server, warehouse, session, database)
    try:
        harness.create_database()
        yield harness
    finally:
        session.close()


def in_small_files(lake: LakeHarness, name: str) -> TablePath:
    """A table of four rows, each in a file of its own, as a compaction finds it."""
    path = lake.create(name, buckets=1)
    for i in range(4):
        lake.append(path, [row(i)])
        lake.tier(path)
    return path


def rows_of(table: pa.Table, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows in an order that does not depend on where they came from."""
    chosen = table.select(list(columns)) if columns is not None else table
    return sorted(chosen.to_pylist(), key=lambda row: tuple((value is None, value) for value in row.values()))


def row(i: int, version: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": i, **more, "name": f"user-{i}" + (f"-{version}" if version else ""), "score": i / 2 + version}
