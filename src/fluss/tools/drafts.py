# SPDX-License-Identifier: Apache-2.0
"""Drafts of new tables: like a file, like another table, or from a text; shown before they are created."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fluss.db.schemas import arrow_schema, source_of
from fluss.errors import InvalidArgumentError
from fluss.metadata import Column, Schema
from fluss.tools.files import file_schema, is_file_name

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Table


@dataclass
class TableDraft:
    """What a new table is to look like."""

    name: str
    columns: list[Column]
    primary_key: list[str] = field(default_factory=list)
    partition_by: list[str] = field(default_factory=list)
    buckets: int | None = None
    bucket_key: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    comment: str | None = None

    @property
    def text(self) -> str:
        """The columns as `create_table` takes them."""
        return columns_text(self.columns)

    @property
    def code(self) -> str:
        """The Python call that creates this table."""
        options = [f"    {key}={value!r}," for key, value in self._options().items() if value]
        call = ["db.create_table(", f"    {self.name!r},", f"    {self.text!r},", *options, ")"]
        return "\n".join(["import fluss", "", "db = fluss.connect()", *call])

    def create(self, db: Database, *, exist_ok: bool = False) -> Table[dict[str, Any]]:
        """Create the table.

        Example:
            draft_like(db, "orders_2", "orders").create(db)
        """
        options: dict[str, Any] = {key: value or None for key, value in self._options().items()}
        return db.create_table(self.name, Schema.of(self.columns, self.primary_key), exist_ok=exist_ok, **options)

    def _options(self) -> dict[str, Any]:
        names = ("primary_key", "partition_by", "buckets", "bucket_key", "properties", "comment")
        return {name: getattr(self, name) for name in names}


def columns_text(columns: list[Column]) -> str:
    """Columns as SQL text.

    Example:
        columns_text(list(table.schema.columns))  # 'id bigint not null, item string'
    """
    parts = [f"{column.name} {str(column.data_type).replace('NOT NULL', 'not null')}" for column in columns]
    return ", ".join(parts)


def draft_of(name: str, schema: str, primary_key: list[str] | None = None) -> TableDraft:
    """A draft from the text of a schema.

    Example:
        draft_of("orders", "id bigint, item string", ["id"])
    """
    made = source_of(schema, primary_key or None).schema
    return TableDraft(name, list(made.columns), list(made.primary_key))


def draft_like(
    db: Database | None, name: str, like: str, primary_key: list[str] | None = None, kind: str | None = None
) -> TableDraft:
    """A draft with the columns of a file, or with everything of another table.

    Example:
        draft_like(db, "orders", "orders.parquet", ["id"])
    """
    if kind is not None or like == "-" or is_file_name(like):
        made = arrow_schema(file_schema(like, kind), primary_key or [])
        return TableDraft(name, list(made.columns), list(made.primary_key))
    if db is None:
        raise InvalidArgumentError(f"{like!r} is a table: its server is needed")
    info = db.table(like).info
    key = primary_key or list(info.primary_keys)
    columns = [Column(column.name, column.data_type, column.comment) for column in info.schema.columns]
    properties = {**info.get_properties(), **info.get_custom_properties()}
    bucket_key = list(info.bucket_keys)
    default_key = [column for column in key if column not in info.partition_keys]
    return TableDraft(
        name,
        columns,
        key,
        list(info.partition_keys),
        info.num_buckets,
        [] if bucket_key == default_key else bucket_key,
        {key: value for key, value in properties.items() if not _is_of_the_server(key, value)},
        info.comment,
    )


_OF_THE_SERVER = frozenset({"table.replication.factor", "table.datalake.format", "table.kv.format-version"})


def _is_of_the_server(key: str, value: str) -> bool:
    """Whether a server fills in a property by itself: another one may refuse what it does not know."""
    return key in _OF_THE_SERVER or (key == "table.kv.standby-replica.enabled" and value == "true")
