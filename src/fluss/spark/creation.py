# SPDX-License-Identifier: Apache-2.0
"""Fluss tables made from the schema of a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from fluss.client.blocking_client import BlockingClient
from fluss.config import Config
from fluss.db.schemas import with_column_properties
from fluss.errors import ConfigError, InvalidArgumentError
from fluss.metadata import TableDescriptor, TablePath
from fluss.spark.client_options import environment_options
from fluss.spark.types import all_nullable, to_fluss_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def client_options_of(bootstrap_servers: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of the client, checked: those given, and where there are none those of the environment."""
    merged = {**environment_options(), **(options or {})}
    if bootstrap_servers is not None:
        merged["bootstrap.servers"] = bootstrap_servers
    if "bootstrap.servers" not in merged:
        raise ConfigError(
            "bootstrap_servers is missing: give the address of a server, such as 'localhost:9123', or set the variable "
            "FLUSS_BOOTSTRAP_SERVERS"
        )
    Config(merged).validate()
    return merged


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
    descriptor = table_descriptor(
        schema,
        primary_key=primary_key,
        not_null=not_null,
        partitioned_by=partitioned_by,
        bucket_key=bucket_key,
        buckets=buckets,
        properties=properties,
        comment=comment,
    )
    with BlockingClient(client_options_of(bootstrap_servers, options)) as client:
        client.run(client.admin.create_database(parts[0], None, True))
        client.run(client.admin.create_table(TablePath(*parts), descriptor, if_not_exists))


def table_descriptor(
    schema: StructType,
    *,
    primary_key: Sequence[str] = (),
    not_null: Sequence[str] = (),
    partitioned_by: Sequence[str] = (),
    bucket_key: Sequence[str] | None = None,
    buckets: int | None = None,
    properties: Mapping[str, str] | None = None,
    custom_properties: Mapping[str, str] | None = None,
    comment: str | None = None,
) -> TableDescriptor:
    """Describe a table for rows of a Spark schema; the arguments are those of `create_table`."""
    for name in (*partitioned_by, *(bucket_key or ()), *not_null):
        if name not in schema.names:
            raise InvalidArgumentError(f"column '{name}' is not among {', '.join(schema.names)}")
    own, others = with_column_properties(to_fluss_schema(schema, primary_key, not_null), custom_properties or {})
    return TableDescriptor(
        schema=own,
        partition_keys=list(partitioned_by),
        bucket_count=buckets,
        bucket_keys=list(bucket_key) if bucket_key is not None else None,
        properties=dict(properties or {}),
        custom_properties=others,
        comment=comment,
    )
