# SPDX-License-Identifier: Apache-2.0
"""Tables of a server in the session catalog of Spark, for drivers without the bridge.

With it, `spark.sql.catalog.fluss` has all of them: see `presets`.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from fluss.client.blocking_client import BlockingClient
from fluss.errors import InvalidArgumentError, TableNotExistError
from fluss.metadata import TablePath
from fluss.spark.client_options import is_client_option, is_lake_option, options_of_file
from fluss.spark.creation import client_options_of
from fluss.spark.options import override
from fluss.spark.presets import session_options
from fluss.spark.source import FlussDataSource
from fluss.spark.types import to_spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SESSION_CATALOG = "spark_catalog"
"""Names must have it: a database may be called `fluss`, as the catalog of the bridge is."""

_PREFIX = "fluss_"
"""How the names of the sources of single tables begin."""


def tables(
    spark: SparkSession,
    bootstrap_servers: str | None = None,
    *,
    databases: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Register all tables of a server in the catalog of a session, so that SQL finds them by name.

    With the bridge, the catalog `fluss` has all tables at once: `spark.table("fluss.shop.orders")`. This is for drivers
    where it cannot be loaded, such as a server of Spark Connect that is not yours.

    Each database becomes one of `spark_catalog`. The tables take SELECT, INSERT INTO, INSERT OVERWRITE, `spark.table`,
    `df.writeTo(…).append()` and `spark.readStream.table`. Tables that are registered already are replaced, so call it
    again when tables were made or changed. Tables with types that Spark does not have are left out. A Spark table of
    the same name that is not of Fluss is left alone, and an error names it, as it does tables that differ in case only.

    Args:
        spark: The session.
        bootstrap_servers: The server, `host:port`; default what the session or the environment says.
        databases: Only these databases; default all.
        options: More options of the client, such as `security.sasl.username`, and of the data source.

    Returns:
        The names of the registered tables, `database.table`.

    Example:
        fluss.spark.tables(spark, "localhost:9123")
        spark.sql("INSERT INTO shop.copy SELECT * FROM shop.orders WHERE amount > 10")
    """
    client_options, shown = preset_options(override(session_options(spark), options or {}), bootstrap_servers)
    registered: dict[str, str] = {}
    with BlockingClient(client_options) as client:
        for database in databases if databases is not None else client.run(client.admin.list_databases()):
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {_SESSION_CATALOG}.{_quoted(database)}")
            for name in sorted(client.run(client.admin.list_tables(database))):
                path = TablePath(database, name)
                other = registered.get(str(path).lower())
                if other is not None:
                    raise InvalidArgumentError(f"{other} and {path} differ in case only, which Spark's catalog ignores")
                if _register_if_possible(spark, client, path, shown):
                    registered[str(path).lower()] = str(path)
    return list(registered.values())


def _register_if_possible(spark: SparkSession, client: BlockingClient, path: TablePath, shown: dict[str, Any]) -> bool:
    """Register a table; False if it is gone, or has a type that Spark, or Spark's catalog, does not have."""
    try:
        info = client.info(path)
    except TableNotExistError:
        return False  # dropped since the tables were listed
    try:
        schema = to_spark_schema(info.schema)
    except InvalidArgumentError:
        return False
    try:
        register(spark, path, {**shown, "table": str(path)})
    except AnalysisException:
        if "time(" not in schema.simpleString():
            raise
        return False  # Spark's catalog does not take TIME
    return True


def preset_options(
    given: Mapping[str, Any], bootstrap_servers: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the client, checked; and those for tables of the catalog, where the former stand in a file."""
    given = {**options_of_file(given), **given}
    client = client_options_of(bootstrap_servers, {k: v for k, v in given.items() if is_client_option(k)})
    lake = {name: value for name, value in given.items() if is_lake_option(name)}
    shown = {name: value for name, value in given.items() if not is_client_option(name) and name not in lake}
    shown["client.options.file"] = _private_file({**client, **lake})
    return client, shown


def register(spark: SparkSession, path: TablePath, options: Mapping[str, Any]) -> None:
    """Make a table of the session's catalog that stands for a table of a server.

    Spark hands a Python source no options of a catalog table, neither for reads nor for writes. So each table has a
    source of its own, which knows them.

    Args:
        spark: The session.
        path: Database and name in the catalog of the session.
        options: Options of the data source, `table` among them.
    """
    name = f"{_SESSION_CATALOG}.{_quoted(path.database_name)}.{_quoted(path.table_name)}"
    # The digest keeps names apart that differ in case, or in where `__` stands.
    digest = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
    source = f"{_PREFIX}{path.database_name}__{path.table_name}_{digest}".lower()
    preset = {key: str(value) for key, value in options.items()}
    own = {"PRESET": preset, "name": classmethod(lambda cls: source)}
    spark.dataSource.register(type("TableDataSource", (FlussDataSource,), own))
    provider = provider_of(spark, path)
    if provider is not None:
        if not provider.lower().startswith(_PREFIX):
            raise InvalidArgumentError(
                f"the catalog of the session has a table {path} of {provider}, not of Fluss; drop it, or name other "
                "databases"
            )
        spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING {_quoted(source)}")


def provider_of(spark: SparkSession, path: TablePath) -> str | None:
    """What a table of the catalog is made with; None if there is none, or if a Spark Connect server keeps it."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    catalog = session.sharedState().externalCatalog()
    if not catalog.tableExists(path.database_name, path.table_name):
        return None
    provider = catalog.getTable(path.database_name, path.table_name).provider()
    return str(provider.get()) if provider.isDefined() else "a view"


def _private_file(options: Mapping[str, Any]) -> str:
    """Client options in a file that only this user can read: the options of a table can be read by everyone."""
    handle, name = tempfile.mkstemp(prefix="fluss-spark-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(dict(options), file)
    atexit.register(Path(name).unlink, missing_ok=True)
    return name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
