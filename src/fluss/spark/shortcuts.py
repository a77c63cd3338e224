# SPDX-License-Identifier: Apache-2.0
"""Short forms: a DataFrame of some columns and rows of a table, a stream that is upserted, writes in other threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluss.client.blocking_client import BlockingClient
from fluss.errors import InvalidArgumentError
from fluss.spark.client_options import is_client_option
from fluss.spark.options import override, write_options
from fluss.spark.presets import session_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def read(
    spark: SparkSession,
    table: str,
    bootstrap_servers: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    stream: bool = False,
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """A DataFrame of a table, or of some of its columns and rows, chosen before they leave the server.

    What is named here is all that is read, also without the bridge (see `bridge_jar`).

    Args:
        spark: The session.
        table: The table, `database.table`.
        bootstrap_servers: The server, `host:port`; default what the session or the environment says.
        columns: Columns to read; default all.
        where: A condition as after WHERE in SQL; its columns need not be among `columns`.
        stream: Read the table as it grows.
        options: More options of the data source.

    Example:
        fluss.spark.read(spark, "shop.orders", columns=["id"], where="amount > 10").count()
    """
    given = _options(spark, bootstrap_servers, options)
    if columns is not None:
        if isinstance(columns, str) or not columns:
            raise InvalidArgumentError("columns takes a list of names, such as ['id', 'amount']")
        given["columns"] = ",".join(columns)
    if where is not None:
        given["scan.filter"] = where
    reader = spark.readStream if stream else spark.read
    return reader.format("fluss").options(**given).load(table)


def upsert_stream(
    frame: DataFrame,
    table: str,
    bootstrap_servers: str | None = None,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start a query that upserts the rows of a stream that change, such as those of an aggregation.

    With the bridge, `writeStream.format("fluss").outputMode("update")` does the same. This writes each micro-batch with
    `foreachBatch`, which works without it too. A micro-batch that runs again upserts the same rows, so the table is
    exact, unless its merge engine sums up.

    Args:
        frame: The stream.
        table: A primary-key table, `database.table`.
        bootstrap_servers: The server, `host:port`; default what the session or the environment says.
        checkpoint: The folder of the query's checkpoint.
        trigger: The trigger, such as `{"availableNow": True}` or `{"processingTime": "5 seconds"}`; default as soon as
            possible.
        name: The name of the query.
        options: More options of the data source, such as `create.primary-key`.

    Example:
        totals = orders.groupBy("customer").count()
        query = upsert_stream(totals, "shop.totals", "localhost:9123", checkpoint="/checkpoints/totals")
    """
    if not frame.isStreaming:
        raise InvalidArgumentError("upsert_stream takes a stream; write other DataFrames with df.write.format('fluss')")
    given = _options(frame.sparkSession, bootstrap_servers, options)
    checked = write_options({**given, "table": table})
    if checked["create.primary-key"] is None:
        with BlockingClient(checked.client) as client:
            info = client.info(checked.table_path)
        if not info.has_primary_key():
            raise InvalidArgumentError(
                f"{table} is a log table, which takes no updates; upsert_stream needs one with a primary key"
            )

    def upsert(changed: DataFrame, _: int) -> None:
        activate(changed.sparkSession)
        changed.write.format("fluss").options(**given).mode("append").save(table)

    writer = frame.writeStream.outputMode("update").foreachBatch(upsert).option("checkpointLocation", checkpoint)
    if name is not None:
        writer = writer.queryName(name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()


def activate(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread, so that `format("fluss")` can be written to in it.

    Spark looks the source of a write up in the session that is active in the calling thread. A thread that was started
    by Python has none in the JVM, so that Spark knows no Python source there and answers DATA_SOURCE_NOT_FOUND.
    With the bridge, which `fluss.spark.session()` and `configure()` load, that needs no call. Without it, call this in
    each thread but the main one, before its first write or stream start.

    Example:
        with ThreadPoolExecutor(initializer=fluss.spark.activate, initargs=(spark,)) as pool:
            pool.map(write_one_day, days)
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:  # a session of Spark Connect has its threads on the server
        spark._jvm.SparkSession.setActiveSession(session)


def _options(spark: SparkSession, bootstrap_servers: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    given = override(session_options(spark), options or {})
    if bootstrap_servers is not None:
        given = {name: value for name, value in given.items() if not _is_servers(name)}
        given["bootstrap.servers"] = bootstrap_servers
    return given


def _is_servers(name: str) -> bool:
    return is_client_option(name) and name.lower().removeprefix("client.") == "bootstrap.servers"
