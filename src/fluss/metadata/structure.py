# SPDX-License-Identifier: Apache-2.0
"""The structural rules that tie partition keys and bucket keys to the schema."""

from __future__ import annotations

from fluss.errors import InvalidTableError
from fluss.metadata.schema import Schema


def physical_primary_key(schema: Schema, partition_keys: tuple[str, ...]) -> tuple[str, ...]:
    """The primary key without the partition keys, in the order of the primary key: the key within a bucket."""
    return tuple(name for name in schema.primary_key if name not in partition_keys)


def _check_known_and_unique(what: str, keys: tuple[str, ...], schema: Schema) -> None:
    if len(set(keys)) < len(keys):
        raise InvalidTableError(f"{what} keys must be unique, found {', '.join(keys)}")
    for name in keys:
        if name not in schema.column_names:
            raise InvalidTableError(f"{what} key '{name}' does not exist in the schema")


def resolve_bucket_keys(
    schema: Schema, partition_keys: tuple[str, ...], bucket_keys: tuple[str, ...]
) -> tuple[str, ...]:
    """Check the keys of a table against each other; returns the bucket keys, with the default filled in.

    Tables with a primary key are bucketed by it (without the partition keys) unless they say otherwise. Log tables
    without bucket keys let the writer choose.
    """
    _check_known_and_unique("partition", partition_keys, schema)
    _check_known_and_unique("bucket", bucket_keys, schema)
    if overlap := [name for name in bucket_keys if name in partition_keys]:
        raise InvalidTableError(
            f"bucket keys must not be partition keys, for the partition is chosen first: {', '.join(overlap)}"
        )
    if not schema.primary_key:
        return bucket_keys
    if outside := [name for name in partition_keys if name not in schema.primary_key]:
        raise InvalidTableError(
            f"partition keys must be a subset of the primary key ({', '.join(schema.primary_key)}); "
            f"outside of it: {', '.join(outside)}"
        )
    key = physical_primary_key(schema, partition_keys)
    if not key:
        raise InvalidTableError(
            f"the primary key ({', '.join(schema.primary_key)}) must not be the same as the partition keys: "
            "each partition would hold a single row"
        )
    if outside := [name for name in bucket_keys if name not in key]:
        raise InvalidTableError(
            f"bucket keys must be a subset of the primary key without the partition keys ({', '.join(key)}); "
            f"outside of it: {', '.join(outside)}"
        )
    return bucket_keys or key
