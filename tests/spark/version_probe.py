# SPDX-License-Identifier: Apache-2.0
"""What works on the installed version of PySpark: small jobs, one line of JSON each. Run by `tests.spark.versions`."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.lake import TieringService
from fluss.metadata import BigIntType, Column, Schema, TableDescriptor, TablePath, TimeType
from fluss.spark import configure, create_table, read, session, tables, upsert_stream
from fluss.spark.metrics import lag_in

FEATURES: dict[str, Callable[[Probe], bool]] = {}
WAIT_S_MAX = 120.0


def feature(title: str) -> Callable[[Callable[[Probe], bool]], Callable[[Probe], bool]]:
    def keep(check: Callable[[Probe], bool]) -> Callable[[Probe], bool]:
        FEATURES[title] = check
        return check

    return keep


class Probe:
    """A session and a server with one table of 20 rows in one bucket."""

    def __init__(self, spark: Any, servers: str, folder: str) -> None:
        self.spark = spark
        self.servers = servers
        self.folder = folder
        rows = spark.range(20).selectExpr("id", "id % 2 as k")
        create_table(rows, "probe.rows", servers, buckets=1)
        self.append(20)

    def append(self, rows: int) -> None:
        frame = self.spark.range(rows).selectExpr("id", "id % 2 as k").coalesce(1)
        frame.write.format("fluss").option("bootstrap.servers", self.servers).mode("append").save("probe.rows")

    def batches(
        self, name: str, trigger: dict[str, Any], wanted: int, *, more: int = 0, **options: Any
    ) -> tuple[list[int], Any]:
        """The sizes of the micro-batches of a query until it has all wanted rows, and `more` that come then."""
        sizes: list[int] = []
        frame = read(self.spark, "probe.rows", self.servers, stream=True, options=options)
        writer = frame.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        query = writer.option("checkpointLocation", f"{self.folder}/{name}").trigger(**trigger).start()
        self._wait(query, lambda: sum(sizes) >= wanted)
        if more:
            self.append(more)
            self._wait(query, lambda: sum(sizes) >= wanted + more)
        if "availableNow" in trigger:
            query.awaitTermination(WAIT_S_MAX)
        query.stop()
        return [size for size in sizes if size], query

    def _wait(self, query: Any, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not condition() and query.isActive and time.monotonic() < deadline:
            time.sleep(0.1)


@feature("batch reads and writes")
def batch(probe: Probe) -> bool:
    return bool(read(probe.spark, "probe.rows", probe.servers, columns=["id"], where="k = 1").count() == 10)


@feature("options of the session under `spark.fluss.`")
def session_wide(probe: Probe) -> bool:
    own = probe.spark.newSession()
    own.conf.set("spark.fluss.bootstrap.servers", probe.servers)
    configure(own)
    create_table(own.range(1), "probe.wide", probe.servers, buckets=1)
    own.range(1).write.format("fluss").mode("append").save("probe.wide")
    return bool(own.read.format("fluss").load("probe.wide").count() == 1)


@feature("`INSERT INTO`, `spark.table` with `fluss.spark.tables()`")
def sql(probe: Probe) -> bool:
    create_table(probe.spark.range(1), "probe.target", probe.servers, buckets=1)
    tables(probe.spark, probe.servers, databases=["probe"])
    probe.spark.sql("INSERT INTO probe.target SELECT id FROM probe.rows")
    return bool(probe.spark.table("probe.target").count() == 20)


@feature("the catalog `fluss`")
def catalog(probe: Probe) -> bool:
    own = probe.spark.newSession()
    configure(own)
    own.conf.set("spark.sql.catalog.fluss.bootstrap.servers", probe.servers)
    own.sql("CREATE TABLE fluss.probe.made (id BIGINT, k BIGINT) TBLPROPERTIES ('primary.key' 'id')")
    own.sql("INSERT INTO fluss.probe.made VALUES (1, 2)")
    own.sql("CREATE OR REPLACE TABLE fluss.probe.ctas AS SELECT id, k FROM fluss.probe.made")
    return [tuple(row) for row in own.table("fluss.probe.ctas").collect()] == [(1, 2)]


@feature("streams from and to tables, exactly once")
def stream(probe: Probe) -> bool:
    writer = read(probe.spark, "probe.rows", probe.servers, stream=True).writeStream.format("fluss")
    options = {"bootstrap.servers": probe.servers, "create.table": "true", "checkpointLocation": f"{probe.folder}/copy"}
    query = writer.options(**options).trigger(availableNow=True).start("probe.copy")
    query.awaitTermination(WAIT_S_MAX)
    return bool(read(probe.spark, "probe.copy", probe.servers).count() == 20)


@feature("`upsert_stream`")
def upsert(probe: Probe) -> bool:
    counts = read(probe.spark, "probe.rows", probe.servers, stream=True).groupBy("k").count()
    keys = {"create.primary-key": "k"}
    query = upsert_stream(
        counts,
        "probe.counts",
        probe.servers,
        checkpoint=f"{probe.folder}/counts",
        trigger={"availableNow": True},
        options=keys,
    )
    query.awaitTermination(WAIT_S_MAX)
    found = read(probe.spark, "probe.counts", probe.servers).collect()
    return sorted((row["k"], row["count"]) for row in found) == [(0, 10), (1, 10)]


@feature("`maxRowsPerTrigger`: first micro-batch of a query")
def limit_of_first(probe: Probe) -> bool:
    sizes, _ = probe.batches("limits", {"processingTime": "0 seconds"}, 20, maxRowsPerTrigger=8)
    return sum(sizes) == 20 and max(sizes) <= 8


@feature("`maxRowsPerTrigger`: later micro-batches")
def limit_of_later(probe: Probe) -> bool:
    sizes, _ = probe.batches("later", {"processingTime": "0 seconds"}, 20, more=20, maxRowsPerTrigger=8)
    return sum(sizes) == 40 and max(sizes[1:]) <= 8


@feature("`maxRowsPerTrigger`: first micro-batch after a restart")
def limit_after_restart(probe: Probe) -> bool:
    probe.append(20)
    sizes, _ = probe.batches("later", {"processingTime": "0 seconds"}, 20, maxRowsPerTrigger=8)
    return sum(sizes) == 20 and max(sizes) <= 8


@feature("`maxRowsPerTrigger` with the trigger `availableNow`")
def limit_of_available_now(probe: Probe) -> bool:
    sizes, _ = probe.batches("available", {"availableNow": True}, 60, maxRowsPerTrigger=25)
    return len(sizes) == 3 and max(sizes) <= 25


@feature("streams that start with the lake of a table")
def lake(probe: Probe) -> bool:
    numbers = probe.spark.range(20)
    create_table(numbers, "probe.tiered", probe.servers, buckets=1, properties={"table.datalake.enabled": "true"})
    into = {"bootstrap.servers": probe.servers}
    numbers.write.format("fluss").options(**into).mode("append").save("probe.tiered")
    TieringService(into).run_once()
    probe.spark.range(20, 25).write.format("fluss").options(**into).mode("append").save("probe.tiered")
    rows = read(probe.spark, "probe.tiered", probe.servers, stream=True)
    found: list[int] = []
    writer = rows.writeStream.foreachBatch(lambda batch, _: found.extend(row.id for row in batch.collect()))
    query = writer.option("checkpointLocation", f"{probe.folder}/lake").trigger(availableNow=True).start()
    query.awaitTermination(WAIT_S_MAX)
    return sorted(found) == list(range(25))


@feature("lag in the progress of a query, `LagListener`")
def lag(probe: Probe) -> bool:
    _, query = probe.batches("lag", {"availableNow": True}, 60)
    return any(lag_in(step["sources"][0]["latestOffset"]) for step in query.recentProgress)


@feature("columns and filters pushed down (with the bridge)")
def push_down(probe: Probe) -> bool:
    rows = probe.spark.sql("select id, concat('d', id) as day from range(4)")
    options = {"bootstrap.servers": probe.servers, "create.partitioned-by": "day", "create.buckets": 1}
    rows.write.format("fluss").options(**options).mode("append").save("probe.days")
    frame = read(probe.spark, "probe.days", probe.servers)
    return bool(frame.where("day = 'd1'").rdd.getNumPartitions() == 1)


@feature("columns of type TIME")
def time_of_day(probe: Probe) -> bool:
    schema = Schema.of([Column("id", BigIntType()), Column("at", TimeType(3))])
    client = BlockingClient({"bootstrap.servers": probe.servers})
    try:
        client.run(client.admin.create_table(TablePath("probe", "times"), TableDescriptor(schema, bucket_count=1)))
    finally:
        client.close()
    return bool(read(probe.spark, "probe.times", probe.servers).count() == 0)


def main() -> None:
    warnings.simplefilter("ignore")
    import pyspark

    folder = tempfile.mkdtemp(prefix="fluss-probe-")
    options = {"datalake.format": "paimon", "datalake.paimon.warehouse": f"{folder}/warehouse"}
    with fluss.LocalServer(options=options) as server:
        spark = session("probe", master="local[2]", config={"spark.sql.shuffle.partitions": "1"})
        try:
            probe = Probe(spark, server.bootstrap_servers, folder)
            for title, check in FEATURES.items():
                reason = None
                try:
                    works = check(probe)
                except Exception as error:
                    works, reason = False, str(error)[:500]
                print(json.dumps({"version": pyspark.__version__, "feature": title, "works": works, "reason": reason}))
        finally:
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
