# SPDX-License-Identifier: Apache-2.0
"""What works on the installed version of PySpark: small jobs, one line of JSON each. Run by `tests.spark.versions`."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.metadata import BigIntType, Column, Schema, TableDescriptor, TablePath, TimeType
from fluss.spark import create_table, read, session, tables, upsert_stream

FEATURES: dict[str, Callable[[Probe], bool]] = {}
WAIT_S_MAX = 120.0


def feature(title: str) -> Callable[[Callable[[Probe], bool]], Callable[[Probe], bool]]:
    def keep(check: Callable[[Probe], bool]) -> Callable[[Probe], bool]:
        FEATURES[title] = check
        return check

    return keep


class Probe:
    """A session and a server with one table of 20 rows in one bucket."""

    def __init__(self, spark: Any, servers: str) -> None:
        self.spark = spark
        self.servers = servers
        self.folder = tempfile.mkdtemp(prefix="fluss-probe-")
        rows = spark.range(20).selectExpr("id", "id % 2 as k")
        create_table(rows, "probe.rows", servers, buckets=1)
        rows.coalesce(1).write.format("fluss").option("bootstrap.servers", servers).mode("append").save("probe.rows")

    def batches(self, name: str, trigger: dict[str, Any], wanted: int, **options: Any) -> tuple[list[int], Any]:
        """The sizes of the micro-batches of a query until it has so many rows."""
        sizes: list[int] = []
        frame = read(self.spark, "probe.rows", self.servers, stream=True, options=options)
        writer = frame.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        query = writer.option("checkpointLocation", f"{self.folder}/{name}").trigger(**trigger).start()
        deadline = time.monotonic() + WAIT_S_MAX
        while sum(sizes) < wanted and query.isActive and time.monotonic() < deadline:
            time.sleep(0.1)
        if "availableNow" in trigger:
            query.awaitTermination(WAIT_S_MAX)
        query.stop()
        return [size for size in sizes if size], query


@feature("batch reads and writes")
def batch(probe: Probe) -> bool:
    return bool(read(probe.spark, "probe.rows", probe.servers, columns=["id"], where="k = 1").count() == 10)


@feature("`INSERT INTO`, `spark.table` with `fluss.spark.tables()`")
def sql(probe: Probe) -> bool:
    create_table(probe.spark.range(1), "probe.target", probe.servers, buckets=1)
    tables(probe.spark, probe.servers, databases=["probe"])
    probe.spark.sql("INSERT INTO probe.target SELECT id FROM probe.rows")
    return bool(probe.spark.table("probe.target").count() == 20)


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


@feature("`maxRowsPerTrigger` in a running query")
def limits(probe: Probe) -> bool:
    sizes, _ = probe.batches("limits", {"processingTime": "0 seconds"}, 20, maxRowsPerTrigger=8)
    return sizes == [8, 8, 4]


@feature("`maxRowsPerTrigger` right after a restart")
def limits_after_restart(probe: Probe) -> bool:
    first, _ = probe.batches("restart", {"processingTime": "0 seconds"}, 4, maxRowsPerTrigger=4)
    rest, _ = probe.batches("restart", {"processingTime": "0 seconds"}, 20 - sum(first), maxRowsPerTrigger=4)
    return sum(first) + sum(rest) == 20 and max(rest, default=0) <= 4


@feature("`maxRowsPerTrigger` with the trigger `availableNow`")
def limits_of_available_now(probe: Probe) -> bool:
    sizes, _ = probe.batches("available", {"availableNow": True}, 20, maxRowsPerTrigger=8)
    return sizes == [8, 8, 4]


@feature("lag in the progress of a query, `LagListener`")
def lag(probe: Probe) -> bool:
    _, query = probe.batches("lag", {"availableNow": True}, 20)
    latest = [json.loads(step["sources"][0]["latestOffset"] or "{}") for step in query.recentProgress]
    return any("lag" in one for one in latest)


@feature("`scan.pushFilters`")
def push_down(probe: Probe) -> bool:
    probe.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(probe.spark, "probe.rows", probe.servers, options={"scan.pushFilters": "true"}).where("id = 3")
        plan = frame._jdf.queryExecution().executedPlan().toString()
        return bool(frame.count() == 1 and "EqualTo(id,3)" in plan)
    finally:
        probe.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


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

    with fluss.LocalServer() as server:
        spark = session("probe", master="local[2]", config={"spark.sql.shuffle.partitions": "1"})
        try:
            probe = Probe(spark, server.bootstrap_servers)
            for title, check in FEATURES.items():
                reason = None
                try:
                    works = check(probe)
                except Exception as error:
                    works, reason = False, str(error)[:500]
                print(json.dumps({"version": pyspark.__version__, "feature": title, "works": works, "reason": reason}))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
