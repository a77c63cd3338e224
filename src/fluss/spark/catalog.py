# SPDX-License-Identifier: Apache-2.0
"""Tables of a server as tables of a Spark session, and Fluss tables made from the schema of a DataFrame."""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from fluss.client.blocking_client import BlockingClient
from fluss.config import Config
from fluss.errors import ConfigError, FlussError, InvalidArgumentError
from fluss.metadata import TableDescriptor, TablePath
from fluss.spark.options import is_client_option, is_lake_option
from fluss.spark.types import all_nullable, to_fluss_schema, to_spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SOURCES = "fluss_sources"
"""The database of the session's catalog that holds what the views stand on."""


def _client_options(bootstrap_servers: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    merged = dict(options or {})
    if bootstrap_servers is not None:
        merged["bootstrap.servers"] = bootstrap_servers
    if "bootstrap.servers" not in merged:
        raise ConfigError("bootstrap_servers is missing: give the address of a server, such as 'localhost:9123'")
    Config(merged).validate()
    return merged


def tables(
    spark: SparkSession,
    bootstrap_servers: str | None = None,
    *,
    databases: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Register all tables of a server as views, so that `spark.sql("select * from fluss.orders")` works.

    Each database becomes a database of the session's catalog. Views that are registered already are replaced, so call
    it again when tables were made or changed. Tables with types that Spark does not have are left out.

    Args:
        spark: The session.
        bootstrap_servers: The server, `host:port`.
        databases: Only these databases; default all.
        options: More options of the client, such as `security.sasl.username`, and of the data source.

    Returns:
        The names of the registered tables, `database.table`.
    """
    given = dict(options or {})
    client_options = _client_options(
        bootstrap_servers, {name: value for name, value in given.items() if is_client_option(name)}
    )
    lake_options = {name: value for name, value in given.items() if is_lake_option(name)}
    shown = {name: value for name, value in given.items() if not is_client_option(name) and name not in lake_options}
    shown["client.options.file"] = _private_file({**client_options, **lake_options})
    registered = []
    client = BlockingClient(client_options)
    try:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {_SOURCES}")
        for database in databases if databases is not None else client.run(client.admin.list_databases()):
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
            for name in sorted(client.run(client.admin.list_tables(database))):
                path = TablePath(database, name)
                try:
                    schema = to_spark_schema(client.info(path).schema)
                    _register(spark, path, schema, {**shown, "table": str(path)})
                except (FlussError, AnalysisException):
                    continue  # a type that Spark has not, or (TIME) that its catalog does not take
                registered.append(str(path))
    finally:
        client.close()
    return registered


def _register(spark: SparkSession, path: TablePath, schema: StructType, options: Mapping[str, Any]) -> None:
    # A catalog table of a Python source loses its options when it is read; given with the query they stay. So each
    # table is a view over a table without options.
    source = f"{_SOURCES}.{_quoted(f'{path.database_name}__{path.table_name}')}"
    view = f"{_quoted(path.database_name)}.{_quoted(path.table_name)}"
    columns = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)
    given = ", ".join(f"{_quoted(name)} = {_string(str(value))}" for name, value in options.items())
    spark.sql(f"DROP TABLE IF EXISTS {source}")
    spark.sql(f"CREATE TABLE {source} ({columns}) USING fluss")
    spark.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {source} WITH ({given})")


def _private_file(options: Mapping[str, Any]) -> str:
    """Client options in a file that only this user can read: what a view is made of can be read by everyone."""
    handle, name = tempfile.mkstemp(prefix="fluss-spark-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(dict(options), file)
    atexit.register(Path(name).unlink, missing_ok=True)
    return name


def create_table(
    source: DataFrame | StructType,
    table: str,
    bootstrap_servers: str | None = None,
    *,
    primary_key: Sequence[str] = (),
    not_null: Sequence[str] = (),
    partitioned_by: Sequence[str] = (),
    bucket_key: Sequence[str] | None = None,
    buckets: int | None = None,
    properties: Mapping[str, str] | None = None,
    comment: str | None = None,
    if_not_exists: bool = False,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Create a Fluss table for the rows of a DataFrame.

    Args:
        source: The DataFrame, or a schema. The columns of a DataFrame become nullable, apart from the key: Spark
            calls a column NOT NULL wherever the query happens to produce no null. A schema is taken as it is written.
            A type that Fluss does not have is refused by its name.
        table: The new table, `database.table`; the database is made if need be.
        bootstrap_servers: The server, `host:port`.
        primary_key: Columns of the primary key, which become NOT NULL; none makes a log table.
        not_null: More columns that become NOT NULL.
        partitioned_by: Columns to partition by.
        bucket_key: Columns that decide on the bucket of a row.
        buckets: How many buckets; default what the server says.
        properties: Table properties, such as `table.log.ttl`.
        comment: What the table is for.
        if_not_exists: Leave a table alone that is there already.
        options: More options of the client.
    """
    schema = source if isinstance(source, StructType) else all_nullable(source.schema)
    assert isinstance(schema, StructType)
    parts = table.split(".")
    if len(parts) != 2 or not all(parts):
        raise InvalidArgumentError(f"{table!r:.200} is not the name of a table; write 'database.table'")
    for name in (*partitioned_by, *(bucket_key or ()), *not_null):
        if name not in schema.names:
            raise InvalidArgumentError(f"column '{name}' is not among {', '.join(schema.names)}")
    descriptor = TableDescriptor(
        schema=to_fluss_schema(schema, primary_key, not_null),
        partition_keys=list(partitioned_by),
        bucket_count=buckets,
        bucket_keys=list(bucket_key) if bucket_key is not None else None,
        properties=dict(properties or {}),
        comment=comment,
    )
    client = BlockingClient(_client_options(bootstrap_servers, options))
    try:
        client.run(client.admin.create_database(parts[0], None, True))
        client.run(client.admin.create_table(TablePath(*parts), descriptor, if_not_exists))
    finally:
        client.close()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
