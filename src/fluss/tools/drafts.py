# SPDX-License-Identifier: Apache-2.0
"""Descriptions of new tables: from text, from the columns of a file, or the same as another table.

Everything that creates a table like another one (backups, copies, ``--like``) takes its descriptor from `descriptor_of`
and compares the outcome with `differences`, so that no property of a table is lost without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluss.db.schemas import arrow_schema, source_of, split_properties, with_column_properties
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import Column, Schema, TableDescriptor, TableInfo
from fluss.metadata.properties import TABLE_PROPERTIES
from fluss.tools.files import UTF8, TextStyle, file_schema, is_file_name

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Table


@dataclass(frozen=True)
class TableDraft:
    """What a new table is to look like."""

    name: str
    descriptor: TableDescriptor

    @property
    def text(self) -> str:
        """The columns as SQL text."""
        return columns_text(self.descriptor.schema.columns)

    @property
    def code(self) -> str:
        """The Python call that creates this table."""
        made = self.descriptor
        key = list(made.schema.primary_key)
        schema = repr(self.text)
        if not _says_everything(self.text, made.schema):
            schema, key = f"fluss.Schema.from_json({made.schema.to_json()!r})", []
        options = {
            "primary_key": key,
            "partition_by": list(made.partition_keys),
            "buckets": made.bucket_count,
            "bucket_key": [] if _has_default_bucket_key(made) else list(made.bucket_keys),
            "properties": {**made.properties, **made.custom_properties},
            "comment": made.comment,
        }
        given = [f"    {name}={value!r}," for name, value in options.items() if value]
        call = ["db.create_table(", f"    {self.name!r},", f"    {schema},", *given, ")"]
        return "\n".join(["import fluss", "", "db = fluss.connect()", *call])

    def changed(
        self,
        *,
        partition_by: Sequence[str] | None = None,
        buckets: int | None = None,
        bucket_key: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        comment: str | None = None,
    ) -> TableDraft:
        """Return a draft with those changed that are given."""
        old = self.descriptor
        schema, others = with_column_properties(old.schema, properties or {})
        own, custom = split_properties(others)
        keeps_key = bucket_key or (not partition_by and not _has_default_bucket_key(old))
        descriptor = old.replace(
            schema=schema,
            partition_keys=partition_by or old.partition_keys,
            bucket_count=buckets or old.bucket_count,
            bucket_keys=(bucket_key or old.bucket_keys) if keeps_key else (),
            properties={**old.properties, **own},
            custom_properties={**old.custom_properties, **custom},
            comment=comment or old.comment,
        )
        return replace(self, descriptor=descriptor)

    def create(self, db: Database, *, exist_ok: bool = False) -> Table[dict[str, Any]]:
        """Create the table, and check that the server made what was asked for."""
        if exist_ok and self.name in db:
            return db.table(self.name)
        table = db.create_table(self.name, self.descriptor)
        check_same(self.descriptor, table)
        return table


def draft_of(name: str, schema: str, primary_key: Sequence[str] | None = None) -> TableDraft:
    """A draft from the text of a schema."""
    return TableDraft(name, TableDescriptor(source_of(schema, primary_key).schema))


def draft_like(
    db: Database | None,
    name: str,
    like: str,
    primary_key: Sequence[str] | None = None,
    kind: str | None = None,
    style: TextStyle = UTF8,
) -> TableDraft:
    """A draft with the columns of a file, or with everything of another table."""
    if kind is not None or like == "-" or is_file_name(like):
        return TableDraft(name, TableDescriptor(arrow_schema(file_schema(like, kind, style), primary_key or ())))
    if db is None:
        raise InvalidArgumentError(f"{like!r} is a table: its server is needed")
    made = descriptor_of(db.table(like).info)
    if primary_key:
        schema = Schema.of(_without_ids(made.schema), primary_key, made.schema.auto_increment_columns)
        bucket_keys = () if _has_default_bucket_key(made) else made.bucket_keys
        made = made.replace(schema=schema, bucket_keys=bucket_keys)
    return TableDraft(name, made)


def descriptor_of(info: TableInfo) -> TableDescriptor:
    """The descriptor that creates the same table again: all of it, but for what the server fills in by itself.

    Ids of columns are given anew, as after columns were dropped.
    """
    schema = info.schema
    return info.descriptor.replace(
        schema=Schema.of(_without_ids(schema), schema.primary_key, schema.auto_increment_columns),
        properties={key: value for key, value in info.properties.items() if not _is_of_the_server(key, value)},
    )


def identity_of(info: TableInfo) -> str:
    """What tells a table from all others in a checkpoint: ids alone are the same on every new server.

    Example:
        identity_of(db.table("orders").info)  # '3@1767225600000'
    """
    return f"{info.table_id}@{info.created_time}"


def differences(wanted: TableDescriptor, found: TableDescriptor) -> list[str]:
    """What two descriptors differ in, in words; empty if they describe the same table."""
    pairs = zip(_parts(wanted).items(), _parts(found).values())
    return [what for (what, left), right in pairs if left != right]


def _parts(made: TableDescriptor) -> dict[str, Any]:
    columns = made.schema.columns
    return {
        "columns": [(column.name, column.data_type, column.comment) for column in columns],
        "aggregation functions": [column.agg_function for column in columns],
        "auto-increment column": made.schema.auto_increment_columns,
        "primary key": made.schema.primary_key,
        "partition columns": made.partition_keys,
        "number of buckets": made.bucket_count,
        "bucket key": made.bucket_keys,
        "properties": made.properties,
        "custom properties": made.custom_properties,
        "comment": made.comment,
    }


def check_same(wanted: TableDescriptor, table: Table[Any]) -> None:
    """Raise an error if a table that was just created is not what was asked for."""
    found = descriptor_of(table.info)
    # A server may choose the number of buckets, and add properties; it must not drop or change any.
    found = found.replace(
        bucket_count=wanted.bucket_count and found.bucket_count,
        properties={key: value for key, value in table.info.properties.items() if key in wanted.properties},
    )
    if wrong := differences(wanted, found):
        raise FlussError(
            f"table {table.name} was created, but the server gave it other {' and '.join(wrong)} than asked for: "
            "look at it with 'fluss describe', and drop it"
        )


def check_partitions(table: Table[Any], wanted: Iterable[Mapping[str, str]]) -> None:
    """Raise an error if a table does not have the partitions of the one that it was made like.

    A table that creates partitions by itself may have more, and lacks those that expired meanwhile.
    """
    found = {frozenset(one.partition_spec.spec_map.items()) for one in table.partitions()}
    lacking = [spec for spec in wanted if frozenset(spec.items()) not in found]
    if lacking:
        automatic = table.info.config.auto_partition_enabled
        reason = "; has it expired? See table.auto-partition.num-retention" if automatic else ""
        raise FlussError(f"table {table.name} lacks the partition {lacking[0]}{reason}")


def check_numbers(name: str, made: TableDescriptor) -> None:
    """Refuse rows whose auto-increment column was filled by another table."""
    for column in made.schema.auto_increment_columns:
        raise InvalidArgumentError(
            f"table {name}: the server fills the auto-increment column {column!r}, and takes no numbers for it. Allow "
            "new numbers with --renumber, unless something refers to the old ones"
        )


def columns_text(columns: Sequence[Column]) -> str:
    """Columns as SQL text.

    Example:
        columns_text(table.schema.columns)  # 'id bigint not null, item string'
    """
    parts = [f"{column.name} {str(column.data_type).replace('NOT NULL', 'not null')}" for column in columns]
    return ", ".join(parts)


def _says_everything(text: str, schema: Schema) -> bool:
    """Whether the text of a schema has all of it: it has no words for aggregation functions, for instance."""
    try:
        return source_of(text, schema.primary_key).schema == schema
    except InvalidArgumentError:
        return False


def _without_ids(schema: Schema) -> list[Column]:
    return [replace(column, column_id=-1) for column in schema.columns]


def _has_default_bucket_key(made: TableDescriptor) -> bool:
    return made.bucket_keys == tuple(name for name in made.schema.primary_key if name not in made.partition_keys)


_OF_THE_SERVER = frozenset(
    {"table.replication.factor", "table.datalake.format", "table.kv.format-version", "table.kv.value-layout-version"}
)


def _is_of_the_server(key: str, value: str) -> bool:
    """Whether a server fills in a property by itself: another one may refuse what it does not know."""
    of_its_lake = key.startswith("table.datalake.") and TABLE_PROPERTIES.find(key) is None
    return of_its_lake or key in _OF_THE_SERVER or (key == "table.kv.standby-replica.enabled" and value == "true")
