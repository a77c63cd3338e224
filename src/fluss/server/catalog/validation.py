# SPDX-License-Identifier: Apache-2.0
"""The rules for a table that depend on the server it lives in; those of the table itself are in `fluss.metadata`."""

from __future__ import annotations

from fluss.errors import (
    InvalidConfigError,
    InvalidDatabaseError,
    InvalidReplicationFactorError,
    InvalidTableError,
    UnknownServerError,
)
from fluss.metadata import DatabaseDescriptor, TableDescriptor, validate_database_name, validate_table_name
from fluss.metadata.path import name_problem
from fluss.metadata.validation import validate_table_descriptor
from fluss.server.catalog.cluster_configs import ClusterConfigs
from fluss.server.catalog.documents import UnconfirmedError

__all__ = [
    "check_replication_factor",
    "check_text",
    "name_problem",
    "not_confirmed",
    "validate_database_name",
    "validate_descriptor",
    "validate_table_name",
]

COLUMNS_MAX = 10_000
"""The descriptor is encoded for clients and written to disk as a whole: this many take about 30 ms."""
_TABLET_SERVERS_ALIVE = 1


def check_text(descriptor: TableDescriptor | DatabaseDescriptor) -> None:
    """JSON can spell half of a character (a lone surrogate), which no answer could carry back."""
    try:
        descriptor.to_json_bytes()
    except UnicodeEncodeError:
        text = "The descriptor contains text that is not valid Unicode: a surrogate without its other half."
        raise (InvalidTableError if isinstance(descriptor, TableDescriptor) else InvalidDatabaseError)(text) from None


def validate_descriptor(descriptor: TableDescriptor, configs: ClusterConfigs) -> None:
    """Check a table as it would be stored, with the server's defaults in it."""
    count = len(descriptor.schema.columns)
    if count > COLUMNS_MAX:
        raise InvalidTableError(f"The table would have {count} columns, the most allowed is {COLUMNS_MAX}.")
    check_text(descriptor)
    validate_table_descriptor(descriptor, bucket_count_max=configs.current.integer("max.bucket.num"))
    _check_lake(descriptor, configs)


def _check_lake(descriptor: TableDescriptor, configs: ClusterConfigs) -> None:
    config = descriptor.config
    if not config.lake_enabled:
        return
    if not configs.lake_enabled or configs.lake_format is None:
        raise InvalidTableError(
            "'table.datalake.enabled' is set, but this server has no lake support switched on "
            "(option 'datalake.format')."
        )
    if config.lake_format is not None and config.lake_format != configs.lake_format:
        raise InvalidConfigError(
            f"'table.datalake.format' is '{config.lake_format}', but the lake of this server is of format "
            f"'{configs.lake_format}' (option 'datalake.format')."
        )
    if config.lake_historical_partition_enabled:
        # Accepted, it would let lookups say that rows of such partitions do not exist.
        raise InvalidConfigError(
            "'table.datalake.historical-partition.enabled' cannot be set on this server: a lookup finds no rows of a "
            "partition that has expired. Read them from the lake, with '$lake' after the name of the table."
        )
    if config.lake_format in ("lance", "delta") and descriptor.has_primary_key():
        raise InvalidTableError(
            f"The lake format {config.lake_format} takes log tables only, not tables with a primary key."
        )
    if config.lake_format == "iceberg" and len(descriptor.bucket_keys) > 1:
        raise InvalidTableError(
            f"The lake format iceberg takes one bucket key, not {len(descriptor.bucket_keys)}: "
            f"{', '.join(descriptor.bucket_keys)}."
        )


def check_replication_factor(descriptor: TableDescriptor) -> None:
    factor = descriptor.config.replication_factor or 1
    if factor > _TABLET_SERVERS_ALIVE:
        raise InvalidReplicationFactorError(
            f"Replication factor: {factor} larger than available tablet servers: {_TABLET_SERVERS_ALIVE}. "
            "Set 'table.replication.factor' to 1 on a single-node server."
        )


def not_confirmed(what: str, error: UnconfirmedError) -> UnknownServerError:
    """Make the error for a drop that may come undone with a power failure."""
    return UnknownServerError(
        f"{what}, but the disk did not confirm it ({error.strerror}). It is gone now; after a power failure it may be "
        "there again, without its data: drop it again then."
    )
