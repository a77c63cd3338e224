# SPDX-License-Identifier: Apache-2.0
"""What a table or a database is asked to be when it is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fluss.errors import InvalidArgumentError, InvalidTableError
from fluss.metadata.checks import (
    JsonDocument,
    mapping_of,
    optional_member,
    read_document,
    read_names,
    read_strings,
)
from fluss.metadata.properties import TABLE_PROPERTIES, TableConfig
from fluss.metadata.schema import Schema, names_tuple

BuilderT = TypeVar("BuilderT", bound="_Builder")

DESCRIPTOR_JSON_VERSION = 1


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


def _property_text(key: object, value: object) -> str:
    if not isinstance(key, str):
        raise InvalidArgumentError(f"the key of a property must be a string, not {key!r}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise InvalidArgumentError(f"the value of property {key!r} must be a string, not {value!r}")


def _property_map(what: str, properties: Mapping[str, Any] | None) -> dict[str, str]:
    return {key: _property_text(key, value) for key, value in mapping_of(what, properties).items()}


def _comment(comment: object) -> str | None:
    if comment is not None and not isinstance(comment, str):
        raise InvalidArgumentError(f"a comment must be a string, not {comment!r}")
    return comment


@dataclass(frozen=True, init=False, repr=False)
class TableDescriptor(JsonDocument):
    """What a table is: schema, partitions, buckets, properties.

    Tables with a primary key and no bucket keys are bucketed by their primary key without the partition keys.
    A descriptor never changes; `replace` makes a changed copy.
    """

    document_name = "table"

    schema: Schema
    partition_keys: tuple[str, ...]
    """The columns the table is partitioned by."""
    bucket_count: int | None
    """The number of buckets of the table, or of each partition; None leaves it to the server."""
    bucket_keys: tuple[str, ...]
    """The columns that decide the bucket of a row; empty where the writer may choose."""
    comment: str | None
    _properties: dict[str, str]
    _custom_properties: dict[str, str]

    def __init__(
        self,
        schema: Schema,
        *,
        partition_keys: Sequence[str] | None = None,
        bucket_count: int | None = None,
        bucket_keys: Sequence[str] | None = None,
        comment: str | None = None,
        log_format: str | None = None,
        kv_format: str | None = None,
        properties: Mapping[str, Any] | None = None,
        custom_properties: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(schema, Schema):
            raise InvalidArgumentError(f"TableDescriptor takes a fluss.Schema, not {type(schema).__name__}")
        is_number = isinstance(bucket_count, int) and not isinstance(bucket_count, bool)
        if bucket_count is not None and (not is_number or bucket_count <= 0):
            raise InvalidArgumentError(f"bucket_count must be a number larger than 0, not {bucket_count!r}")
        table_properties = _property_map("properties", properties)
        for name, value in (("table.log.format", log_format), ("table.kv.format", kv_format)):
            if value is not None:
                table_properties[name] = TABLE_PROPERTIES[name].parse(str(value))
        self._init(
            schema,
            names_tuple("partition_keys", partition_keys),
            bucket_count,
            names_tuple("bucket_keys", bucket_keys),
            _comment(comment),
            table_properties,
            _property_map("custom_properties", custom_properties),
        )

    def _init(
        self,
        schema: Schema,
        partition_keys: tuple[str, ...],
        bucket_count: int | None,
        bucket_keys: tuple[str, ...],
        comment: str | None,
        properties: dict[str, str],
        custom_properties: dict[str, str],
    ) -> None:
        self.__dict__.update(
            schema=schema,
            partition_keys=partition_keys,
            bucket_count=bucket_count,
            bucket_keys=resolve_bucket_keys(schema, partition_keys, bucket_keys),
            comment=comment,
            _properties=properties,
            _custom_properties=custom_properties,
        )

    @staticmethod
    def builder() -> TableDescriptorBuilder:
        """Build a descriptor step by step."""
        return TableDescriptorBuilder()

    def get_schema(self) -> Schema:
        """The schema of the table."""
        return self.schema

    @property
    def properties(self) -> dict[str, str]:
        """The properties that begin with ``table.``."""
        return dict(self._properties)

    @property
    def custom_properties(self) -> dict[str, str]:
        """The properties that mean nothing to the server."""
        return dict(self._custom_properties)

    def get_properties(self) -> dict[str, str]:
        """The properties that begin with ``table.``."""
        return self.properties

    def get_custom_properties(self) -> dict[str, str]:
        """The properties that mean nothing to the server."""
        return self.custom_properties

    @property
    def config(self) -> TableConfig:
        """Typed access to the properties."""
        return TableConfig(self._properties)

    def has_primary_key(self) -> bool:
        """Whether the table has a primary key."""
        return self.schema.has_primary_key

    def is_partitioned(self) -> bool:
        """Whether the table is partitioned."""
        return bool(self.partition_keys)

    def replace(self, **changes: Any) -> TableDescriptor:
        """A copy with some of schema, partition_keys, bucket_count, bucket_keys, comment, properties and
        custom_properties changed."""
        values: dict[str, Any] = {
            "schema": self.schema,
            "partition_keys": self.partition_keys,
            "bucket_count": self.bucket_count,
            "bucket_keys": self.bucket_keys,
            "comment": self.comment,
            "properties": self._properties,
            "custom_properties": self._custom_properties,
        }
        if unknown := changes.keys() - values.keys():
            raise InvalidArgumentError(f"a TableDescriptor has no {', '.join(sorted(unknown))}")
        return TableDescriptor(**{**values, **changes})

    def to_json(self) -> dict[str, Any]:
        """The table document."""
        document: dict[str, Any] = {
            "version": DESCRIPTOR_JSON_VERSION,
            "schema": self.schema.to_json(),
            "partition_key": list(self.partition_keys),
            "bucket_key": list(self.bucket_keys),
            "properties": dict(self._properties),
            "custom_properties": dict(self._custom_properties),
        }
        if self.bucket_count is not None:
            document["bucket_count"] = self.bucket_count
        if self.comment is not None:
            document["comment"] = self.comment
        return document

    @classmethod
    def from_json(cls, document: Any, where: str = "table") -> TableDescriptor:
        """Read a table document. Broken documents are a FormatError, broken rules an InvalidTableError.

        The number of buckets is not judged here: that is the server's validation.
        """
        document = read_document(document, where, DESCRIPTOR_JSON_VERSION)
        descriptor = cls.__new__(cls)
        descriptor._init(
            Schema.from_json(document.get("schema"), f"{where}.schema"),
            tuple(read_names(document, "partition_key", where)),
            optional_member(document, "bucket_count", int, where),
            tuple(read_names(document, "bucket_key", where)),
            optional_member(document, "comment", str, where),
            read_strings(document.get("properties", {}), f"{where}.properties"),
            read_strings(document.get("custom_properties", {}), f"{where}.custom_properties"),
        )
        return descriptor

    def __hash__(self) -> int:
        return hash((self.schema, self.partition_keys, self.bucket_count, self.bucket_keys, self.comment))

    def __reduce__(self) -> tuple[Any, ...]:
        return TableDescriptor.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        parts = [repr(self.schema)]
        for name, value in (
            ("partition_keys", list(self.partition_keys)),
            ("bucket_count", self.bucket_count),
            ("bucket_keys", list(self.bucket_keys)),
            ("comment", self.comment),
            ("properties", self._properties),
            ("custom_properties", self._custom_properties),
        ):
            if value:
                parts.append(f"{name}={value!r}")
        return f"TableDescriptor({', '.join(parts)})"


class _Builder:
    """What is set in the same way for tables and databases."""

    def __init__(self) -> None:
        self._options: dict[str, Any] = {}
        self._custom_properties: dict[str, Any] = {}

    def comment(self: BuilderT, comment: str) -> BuilderT:
        """Set the comment."""
        self._options["comment"] = comment
        return self

    def custom_property(self: BuilderT, key: str, value: Any) -> BuilderT:
        """Set one property that means nothing to the server."""
        self._custom_properties[key] = value
        return self

    def custom_properties(self: BuilderT, properties: Mapping[str, Any]) -> BuilderT:
        """Set several properties that mean nothing to the server."""
        self._custom_properties.update(properties)
        return self


class TableDescriptorBuilder(_Builder):
    """Builds a table descriptor. Every call returns the builder."""

    def __init__(self) -> None:
        super().__init__()
        self._schema: Schema | None = None
        self._properties: dict[str, Any] = {}

    def schema(self, schema: Schema) -> TableDescriptorBuilder:
        """Set the schema."""
        self._schema = schema
        return self

    def log_format(self, log_format: str) -> TableDescriptorBuilder:
        """Set the layout of the log: ARROW, INDEXED or COMPACTED."""
        self._options["log_format"] = log_format
        return self

    def kv_format(self, kv_format: str) -> TableDescriptorBuilder:
        """Set the layout of the key-value store: COMPACTED or INDEXED."""
        self._options["kv_format"] = kv_format
        return self

    def property(self, key: str, value: Any) -> TableDescriptorBuilder:
        """Set one property that begins with ``table.``."""
        self._properties[key] = value
        return self

    def properties(self, properties: Mapping[str, Any]) -> TableDescriptorBuilder:
        """Set several properties that begin with ``table.``."""
        self._properties.update(properties)
        return self

    def partitioned_by(self, keys: Sequence[str]) -> TableDescriptorBuilder:
        """Set the partition keys."""
        self._options["partition_keys"] = keys
        return self

    def distributed_by(
        self, bucket_count: int | None = None, bucket_keys: Sequence[str] | None = None
    ) -> TableDescriptorBuilder:
        """Set the number of buckets and the bucket keys."""
        self._options["bucket_count"] = bucket_count
        self._options["bucket_keys"] = bucket_keys
        return self

    def build(self) -> TableDescriptor:
        """The descriptor."""
        if self._schema is None:
            raise InvalidArgumentError("a table descriptor needs a schema: call schema(...) before build()")
        return TableDescriptor(
            self._schema, properties=self._properties, custom_properties=self._custom_properties, **self._options
        )


@dataclass(frozen=True, init=False, repr=False)
class DatabaseDescriptor(JsonDocument):
    """What a database is: a comment and custom properties."""

    document_name = "database"

    comment: str | None
    """The comment of the database."""
    _custom_properties: dict[str, str]

    def __init__(self, comment: str | None = None, custom_properties: Mapping[str, Any] | None = None) -> None:
        properties = _property_map("custom_properties", custom_properties)
        self.__dict__.update(comment=_comment(comment), _custom_properties=properties)

    @staticmethod
    def builder() -> DatabaseDescriptorBuilder:
        """Build a descriptor step by step."""
        return DatabaseDescriptorBuilder()

    @property
    def custom_properties(self) -> dict[str, str]:
        """The custom properties."""
        return dict(self._custom_properties)

    def get_custom_properties(self) -> dict[str, str]:
        """The custom properties."""
        return self.custom_properties

    def to_json(self) -> dict[str, Any]:
        """The database document."""
        document: dict[str, Any] = {
            "version": DESCRIPTOR_JSON_VERSION,
            "custom_properties": dict(self._custom_properties),
        }
        if self.comment is not None:
            document["comment"] = self.comment
        return document

    @classmethod
    def from_json(cls, document: Any, where: str = "database") -> DatabaseDescriptor:
        """Read a database document."""
        document = read_document(document, where, DESCRIPTOR_JSON_VERSION)
        return cls(
            optional_member(document, "comment", str, where),
            read_strings(document.get("custom_properties", {}), f"{where}.custom_properties"),
        )

    def __hash__(self) -> int:
        return hash((self.comment, frozenset(self._custom_properties.items())))

    def __repr__(self) -> str:
        return f"DatabaseDescriptor(comment={self.comment!r}, custom_properties={self._custom_properties!r})"


class DatabaseDescriptorBuilder(_Builder):
    """Builds a database descriptor. Every call returns the builder."""

    def build(self) -> DatabaseDescriptor:
        """The descriptor."""
        return DatabaseDescriptor(custom_properties=self._custom_properties, **self._options)
