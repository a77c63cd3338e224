# SPDX-License-Identifier: Apache-2.0
"""Between what users write (dicts, lists, tuples, dataclasses) and keys on the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fluss.errors import InvalidRowError
from fluss.metadata import DataType, TableInfo, format_partition_value, partition_name
from fluss.rows.bucketing import bucket_hash
from fluss.rows.keys import KeyEncoder, bucket_key_encoder, kv_key_encoder, prefix_key_encoder
from fluss.rows.logical import from_python


class LookupKey(NamedTuple):
    """Where a key lives and what it is."""

    partition: str | None
    bucket_hash: int
    """Modulo the number of buckets of the table or partition, its bucket."""
    encoded: bytes


def named_values(row: object, names: Sequence[str], known: Mapping[str, int], what: str) -> Sequence[Any]:
    """The values of the columns `names`, in that order, from anything a user may give as a row.

    A mapping or dataclass may hold other columns of the table too (`known`), but no column the table does not have:
    that is a typing error more often than not.
    """
    if type(row) is dict or isinstance(row, Mapping):
        try:
            values = [row[name] for name in names]
        except KeyError as error:
            raise InvalidRowError(
                f"The {what} lacks column {error.args[0]!r}; it needs {_listed(names)}, got {_listed(row)}"
            ) from None
        if len(row) != len(names):
            for name in row:
                if name not in known:
                    raise InvalidRowError(f"Unknown column name {name!r} in the {what}; it needs {_listed(names)}")
        return values
    if isinstance(row, (list, tuple)):
        if len(row) != len(names):
            raise InvalidRowError(
                f"The {what} needs {len(names)} values in this order: {_listed(names)}; got {len(row)}"
            )
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        missing = [name for name in names if not hasattr(row, name)]
        if missing:
            raise InvalidRowError(f"The {what} {type(row).__name__} lacks {_listed(missing)}")
        return [getattr(row, name) for name in names]
    raise InvalidRowError(
        f"The {what} must be a dict, list or tuple (or another mapping, or a dataclass), got {type(row).__name__}"
    )


def _listed(names: Any) -> str:
    shown = [repr(name) for name in list(names)[:20]]
    return ", ".join(shown) if shown else "nothing"


class KeyMaker:
    """Turns key values of one table into partition, hash of the bucket key and key bytes."""

    def __init__(
        self,
        info: TableInfo,
        names: Sequence[str],
        key_encoder: KeyEncoder,
        key_names: Sequence[str],
        what: str,
        variant: str,
    ) -> None:
        schema = info.schema
        self.info = info
        self.what = what
        self.names = tuple(names)
        self.variant = variant
        self.known = {name: index for index, name in enumerate(schema.column_names)}
        self.types: tuple[DataType, ...] = tuple(schema.columns[schema.column_index(n)].data_type for n in names)
        position = {name: index for index, name in enumerate(names)}
        self.key_positions = [position[name] for name in key_names]
        self.bucket_positions = [position[name] for name in info.bucket_keys]
        self.partition_positions = [position[name] for name in info.partition_keys]
        self.key_encoder = key_encoder
        self.bucket_encoder = bucket_key_encoder(info)
        self._whole_key = self.key_positions == list(range(len(names)))
        # The bucket is a hash of the bucket key; often that is the same columns in the same encoding as the key.
        self.same_key = self.bucket_positions == self.key_positions and type(self.bucket_encoder) is type(key_encoder)
        # Partitions may differ in their numbers of buckets, also from that of the table.
        self._one_bucket = info.num_buckets == 1 and not info.is_partitioned()
        self._lake_format = info.lake_format

    @classmethod
    def for_primary_key(cls, info: TableInfo, variant: str) -> KeyMaker:
        return cls(info, info.primary_keys, kv_key_encoder(info), info.physical_primary_key, "primary key", variant)

    @classmethod
    def for_prefix(cls, info: TableInfo, columns: Sequence[str], variant: str) -> KeyMaker:
        encoder = prefix_key_encoder(info)
        return cls(info, columns, encoder, info.bucket_keys, "prefix key", variant)

    def make(self, key: object) -> LookupKey:
        """Encode one key as a user gives it."""
        raw = named_values(key, self.names, self.known, self.what)
        values = [self._logical(index, value) for index, value in enumerate(raw)]
        encoded = self.key_encoder.encode(values if self._whole_key else [values[i] for i in self.key_positions])
        hashed = 0
        if not self._one_bucket:
            bucket_key = encoded
            if not self.same_key:
                bucket_key = self.bucket_encoder.encode([values[i] for i in self.bucket_positions])
            hashed = bucket_hash(bucket_key, self._lake_format, self.variant)
        partition = None
        if self.partition_positions:
            partition = partition_name(
                [format_partition_value(self.types[i], values[i], self.variant) for i in self.partition_positions]
            )
        return LookupKey(partition, hashed, encoded)

    def _logical(self, index: int, value: object) -> Any:
        if value is None:
            raise InvalidRowError(f"Column {self.names[index]!r} of the {self.what} must not be null")
        try:
            return from_python(value, self.types[index])
        except InvalidRowError as error:
            raise InvalidRowError(f"Column {self.names[index]!r} of the {self.what}: {error.message}") from None
