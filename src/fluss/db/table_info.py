# SPDX-License-Identifier: Apache-2.0
"""What a table is: its columns, its properties, its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from fluss.client.arguments import wrong_argument
from fluss.client.lookup import Lookuper, PrefixLookuper
from fluss.client.metadata_cache import check_table_id
from fluss.db.models import row_model
from fluss.db.schemas import column_type, split_properties
from fluss.db.session import DatabaseSession
from fluss.db.suggest import check_columns
from fluss.errors import InvalidArgumentError
from fluss.metadata import Column, ColumnRef, PartitionInfo, Schema, TableInfo, TablePath

if TYPE_CHECKING:
    from fluss.client.connection import FlussTable
    from fluss.db.bulk_write import Sink
    from fluss.db.read_plan import Moment

T = TypeVar("T")


class TableDescription(Generic[T]):
    """The description of a table, and how to change it."""

    def __init__(
        self, database: DatabaseSession, handle: FlussTable, cls: type[T] | None, at: Moment | None = None
    ) -> None:
        self._database = database
        self._cls = cls
        self._at = at
        self._use(handle)

    def _use(self, handle: FlussTable) -> None:
        """Take a (new) description of the table; what was made for the old one is dropped."""
        self._handle = handle
        self._info = handle._shown_info()
        self._model = row_model(self._cls, self._info)
        self._sinks: dict[tuple[str, tuple[str, ...], bool, bool], Sink] = {}
        self._lookuper: Lookuper | None = None
        self._prefix_lookuper: PrefixLookuper | None = None

    def _check_present(self, call: str) -> None:
        """Refuse a call that has no meaning for the table as it was at a time."""
        if self._at is not None:
            raise InvalidArgumentError(
                f"table {self.path} as of {self._at} can only be read as a whole, so {call} cannot be used: filter it "
                f"with to_pylist(where=…), or use '{self.path}' itself"
            )

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the table, with its database.

        Example:
            orders.name  # 'fluss.orders'
        """
        return str(self._info.table_path)

    @property
    def path(self) -> TablePath:
        """The name of the table as the full client takes it.

        Example:
            orders.path.table_name  # 'orders'
        """
        return self._info.table_path

    @property
    def schema(self) -> Schema:
        """The columns and the primary key.

        Example:
            orders.schema.column_names
        """
        return self._info.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns.

        Example:
            orders.columns  # ['id', 'item']
        """
        return list(self._info.schema.column_names)

    @property
    def primary_key(self) -> list[str]:
        """The columns of the primary key; empty for log tables.

        Example:
            orders.primary_key  # ['id']
        """
        return list(self._info.primary_keys)

    @property
    def info(self) -> TableInfo:
        """The description of the table as the server gave it: buckets, properties, comment, times.

        Example:
            orders.info.num_buckets
        """
        return self._info

    def __getitem__(self, column: str) -> ColumnRef:
        """A column, to build a filter from: `orders["price"] > 10`."""
        if not isinstance(column, str):
            raise InvalidArgumentError(
                f"table[…] takes the name of a column, to build a filter from, not {column!r:.60}. get() looks up a "
                "row, to_pylist() gives all of them"
            )
        [name] = check_columns([column], self._info)
        return ColumnRef(name)

    def __iter__(self) -> NoReturn:
        raise TypeError("a Table is not iterable: to_pylist() gives its rows, follow() its changes")

    async def refresh(self) -> TableInfo:
        """Ask the server for the description again: other programs may have changed the table.

        If the table was dropped and created again, this becomes the new one. All else is refused until then.

        Example:
            await orders.refresh()
        """
        self._use(await self._database._connection.get_table(self.path))
        return self._info

    async def _get_same(self) -> FlussTable:
        """Get the table again; refuse one that was dropped and created again."""
        handle = await self._database._connection.get_table(self.path)
        check_table_id(handle._shown_info(), self._info.table_id)
        return handle

    async def add_column(self, name: str, data_type: Any = None, *, comment: str | None = None) -> None:
        """Add a column at the end; rows that exist have null in it.

        Args:
            name: Its name; or name and type in one text, such as ``"note string"``.
            data_type: Its type, as SQL text, Python, Arrow or Fluss type.

        Example:
            await orders.add_column("note", "string")
        """
        self._check_present("add_column()")
        if data_type is None:
            name, _, data_type = name.strip().partition(" ")
            if not data_type:
                raise InvalidArgumentError(f"add_column needs a type: add_column({name!r}, 'string')")
        column = Column(name, column_type(data_type), comment)
        if not column.data_type.nullable:
            raise InvalidArgumentError(
                f"table {self.path}: the new column {name!r} cannot be NOT NULL, because rows that exist have null in "
                "it. Leave out 'not null'"
            )
        await self._get_same()
        await self._database._admin.alter_table(self.path, add_columns=[column])
        await self.refresh()

    async def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Set properties of the table; a value of None resets one to its default.

        Example:
            await orders.set_properties({"table.log.ttl": "3d"})
        """
        self._check_present("set_properties()")
        split_properties(properties)  # a misspelt one is refused
        await self._get_same()
        await self._database._admin.alter_table(
            self.path,
            set_properties={name: _text(value) for name, value in properties.items() if value is not None},
            reset_properties=[name for name, value in properties.items() if value is None],
        )
        await self.refresh()

    async def partitions(self) -> list[PartitionInfo]:
        """The partitions there are now; an empty list for a table without partitions.

        Example:
            names = [partition.partition_name for partition in await orders.partitions()]
        """
        if not self._info.is_partitioned():
            return []
        admin = self._database._admin
        # The answer has no id of the table, which a second request asks for at the same time.
        found, _ = await asyncio.gather(admin.list_partition_infos(self.path), self._get_same())
        return found

    async def add_partition(self, values: Mapping[str, Any] | str, *, exist_ok: bool = False) -> None:
        """Create a partition. Writers create those they need by themselves.

        Example:
            await orders.add_partition({"day": "2026-07-01"}, exist_ok=True)
        """
        spec = self._spec(values)
        await self._get_same()
        await self._database._admin.create_partition(self.path, spec, exist_ok)

    async def drop_partition(self, values: Mapping[str, Any] | str, *, missing_ok: bool = False) -> None:
        """Drop a partition with its rows.

        Example:
            await orders.drop_partition({"day": "2026-07-01"}, missing_ok=True)
        """
        spec = self._spec(values)
        await self._get_same()
        await self._database._admin.drop_partition(self.path, spec, missing_ok)

    def _spec(self, values: Mapping[str, Any] | str) -> dict[str, str]:
        self._check_present("adding or dropping a partition")
        keys = list(self._info.partition_keys)
        if isinstance(values, Mapping):
            return {str(name): str(value) for name, value in values.items()}
        if len(keys) != 1:
            raise InvalidArgumentError(f"table {self.path} is partitioned by {keys}: give a dict with their values")
        if not isinstance(values, str):
            raise wrong_argument("add_partition", "values", "a dict or a string", values)
        return {keys[0]: values}

    # -- how it looks ---------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        rows = "" if self._cls is None else f" of {self._cls.__name__}"
        rows += "" if self._at is None else f" as of {self._at}"
        return f"Table({self.name}{rows}: {', '.join(f'{name} {kind}' for name, kind in self.schema.get_columns())})"

    def _repr_html_(self) -> str:
        return _table_html(self._info)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table_html(info: TableInfo) -> str:
    """A table: its name, what it is, its columns."""
    kind = f"primary key ({', '.join(info.primary_keys)})" if info.has_primary_key() else "log table"
    facts = [kind, f"{info.num_buckets} bucket{'' if info.num_buckets == 1 else 's'}"]
    if info.is_partitioned():
        facts.append(f"partitioned by {', '.join(info.partition_keys)}")
    if info.lake_format is not None and info.config.lake_enabled:
        facts.append(f"lake: {info.lake_format}")
    rows = "".join(
        f"<tr><td>{escape(column.name)}</td><td><code>{escape(str(column.data_type))}</code></td>"
        f"<td>{escape(column.comment or '')}</td></tr>"
        for column in info.schema.columns
    )
    comment = f"<br>{escape(info.comment)}" if info.comment else ""
    return (
        f"<div><b>{escape(str(info.table_path))}</b> <small>{escape(' · '.join(facts))}</small>{comment}"
        f"<table><thead><tr><th>column</th><th>type</th><th>comment</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )
