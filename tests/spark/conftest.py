# SPDX-License-Identifier: Apache-2.0
"""One server and one Spark session for all tests of Spark: both take seconds to start."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import fluss
from fluss.metadata import Schema, TableDescriptor, TablePath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytest.importorskip("pyspark")

from fluss.client.blocking_client import BlockingClient

_names = itertools.count()

BRIDGE = os.environ.get("FLUSS_TEST_SPARK_BRIDGE", "1") == "1"
"""Whether the tests run with the jar in front of the Python source; `make test-spark-versions` runs both."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            # Spark's own code warns of its own deprecations, which are not ours to mend.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True, scope="session")
def light_machines() -> Iterator[None]:
    """Compile less in the Java machines of Spark: they run many small queries, and 40 % of their time was compiling."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as running:
        yield running


@pytest.fixture(scope="session")
def spark(light_machines: None) -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fluss.spark import session

        config = {"spark.sql.shuffle.partitions": "2"}
        running = session("fluss-tests", master="local[2]", config=config, bridge=BRIDGE)
        yield running
        running.stop()


class SparkHarness:
    """Tables of the test server, and short forms of what tests do with them."""

    def __init__(self, server: fluss.LocalServer, spark: SparkSession) -> None:
        self.bootstrap = server.bootstrap_servers
        self.spark = spark
        self.client = BlockingClient({"bootstrap.servers": self.bootstrap})

    def create(
        self,
        schema: Schema | pa.Schema,
        *,
        buckets: int = 2,
        partition_keys: Sequence[str] = (),
        properties: dict[str, str] | None = None,
        primary_key: Sequence[str] = (),
        name: str | None = None,
        bucket_keys: Sequence[str] | None = None,
    ) -> str:
        path = name or f"fluss.t{next(_names)}"
        if isinstance(schema, pa.Schema):
            schema = Schema(schema, primary_keys=list(primary_key) or None)
        descriptor = TableDescriptor(
            schema,
            bucket_count=buckets,
            partition_keys=list(partition_keys),
            properties=properties or {},
            bucket_keys=list(bucket_keys) if bucket_keys else None,
        )
        self.client.run(self.client.admin.create_table(TablePath(*path.split(".")), descriptor))
        return path

    def table(self, path: str) -> Any:
        return self.client.table(TablePath(*path.split(".")))

    def writer(self, path: str) -> Any:
        table = self.table(path)
        if table.has_primary_key():
            return self.client.call(lambda: table.new_upsert().create_writer())
        return self.client.call(lambda: table.new_append().create_writer())

    def put(self, path: str, rows: Sequence[dict[str, Any]], deletes: Sequence[dict[str, Any]] = ()) -> None:
        """Append or upsert rows, then delete some."""
        writer = self.writer(path)
        for row in rows:
            writer.upsert(row) if hasattr(writer, "upsert") else writer.append(row)
        for key in deletes:
            writer.delete(key)
        self.client.run(writer.flush())

    def lookup(self, path: str, key: dict[str, Any]) -> dict[str, Any] | None:
        table = self.table(path)
        lookuper = self.client.call(lambda: table.new_lookup().create_lookuper())
        found: dict[str, Any] | None = self.client.run(lookuper.lookup(key))
        return found

    def read(self, path: str, **options: Any) -> DataFrame:
        return self.reader(options).load(path)

    def reader(self, options: dict[str, Any]) -> Any:
        reader = self.spark.read.format("fluss").option("bootstrap.servers", self.bootstrap)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader

    def stream(self, path: str, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("fluss").option("bootstrap.servers", self.bootstrap)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader.load(path)

    def write(self, frame: DataFrame, path: str, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format("fluss").option("bootstrap.servers", self.bootstrap).mode(mode)
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), value)
        writer.save(path)

    def start(self, frame: DataFrame, path: str, checkpoint: Any, **options: Any) -> StreamingQuery:
        """Write a stream to a table with all that is available now."""
        writer = frame.writeStream.format("fluss").option("bootstrap.servers", self.bootstrap)
        mode = options.pop("output_mode", "append")
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), value)
        return (
            writer.option("checkpointLocation", str(checkpoint)).outputMode(mode).trigger(availableNow=True).start(path)
        )

    def collect(self, frame: DataFrame, checkpoint: Any, **trigger: Any) -> list[tuple[Any, ...]]:
        """The rows a stream gives with what is available now, batch after batch."""
        rows: list[tuple[Any, ...]] = []
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: rows.extend(tuple(row) for row in batch.collect()))
            .option("checkpointLocation", str(checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        assert query.awaitTermination(60)
        return rows


@pytest.fixture
def speculation(harness: SparkHarness) -> Iterator[None]:
    """A Spark that may run a task a second time beside the first."""
    settings = harness.spark._jsc.sc().conf()
    settings.set("spark.speculation", "true")
    yield
    settings.remove("spark.speculation")


@pytest.fixture(scope="session")
def harness(server: fluss.LocalServer, spark: SparkSession) -> Iterator[SparkHarness]:
    made = SparkHarness(server, spark)
    yield made
    made.client.close()


class Sql:
    """A session with the catalog `fluss`, and the results of statements as plain rows in order."""

    def __init__(self, harness: SparkHarness, spark: SparkSession) -> None:
        self.harness = harness
        self.spark = spark

    def __call__(self, statement: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.spark.sql(statement).collect())

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self(f"SELECT * FROM fluss.{table}")

    def info(self, table: str) -> Any:
        return self.harness.client.info(TablePath(*table.split(".")))


@pytest.fixture(scope="session")
def sql(harness: SparkHarness) -> Iterator[Sql]:
    """The catalog of the bridge, with a database `cat`."""
    from fluss.spark import configure

    spark = harness.spark.newSession()
    configure(spark)
    spark.conf.set("spark.sql.catalog.fluss.bootstrap.servers", harness.bootstrap)
    made = Sql(harness, spark)
    made("CREATE DATABASE fluss.cat")
    yield made
    made("DROP DATABASE fluss.cat CASCADE")
