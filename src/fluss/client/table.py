# SPDX-License-Identifier: Apache-2.0
"""`FlussTable`, the names of virtual tables, and the builders of writers.

Both faces use them; only what they build differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fluss.client.metadata_cache import TableState, require_primary_key
from fluss.client.runner import Runner
from fluss.errors import InvalidArgumentError
from fluss.metadata.changes import MergeMode
from fluss.metadata.path import LAKE, TablePath

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.client.lookup import TableLookup
    from fluss.client.write import WriteResultHandle
    from fluss.metadata import TableInfo


def check_view(info: TableInfo, view: str) -> None:
    """Refuse a view that a table does not have."""
    if view == "binlog" and not info.has_primary_key():
        raise InvalidArgumentError(f"'{info.table_path}$binlog': only primary-key tables have a binlog")
    if view == LAKE and not info.config.lake_enabled:
        raise InvalidArgumentError(
            f"'{info.table_path}$lake': the table has no lake; it has one with the property table.datalake.enabled"
        )


AppendT = TypeVar("AppendT")
UpsertT = TypeVar("UpsertT")
ScanT = TypeVar("ScanT")


class TableAppend(Generic[AppendT]):
    """Builder of an append writer. Obtain it with `table.new_append()`."""

    def __init__(self, info: TableInfo, make: Callable[[], AppendT]) -> None:
        self._info = info
        self._make = make

    def create_writer(self) -> AppendT:
        """Create the writer."""
        return self._make()

    def __repr__(self) -> str:
        return f"TableAppend({self._info.table_path})"


class TableUpsert(Generic[UpsertT]):
    """Builder of an upsert writer. Obtain it with `table.new_upsert()`; it can also be used as the writer itself."""

    def __init__(
        self,
        info: TableInfo,
        make: Callable[[Sequence[int] | None, MergeMode], UpsertT],
        columns: Sequence[int] | None = None,
        mode: MergeMode = MergeMode.DEFAULT,
    ) -> None:
        self._info = info
        self._make = make
        self._columns = columns
        self._mode = mode
        self._writer: UpsertT | None = None

    def partial_update_by_name(self, columns: Sequence[str]) -> TableUpsert[UpsertT]:
        """Write only these columns, which must include the primary key; the others keep their values."""
        return TableUpsert(self._info, self._make, column_indexes(self._info, columns), self._mode)

    def partial_update_by_index(
        self, column_indices: Sequence[int] | None = None, *, indices: Sequence[int] | None = None
    ) -> TableUpsert[UpsertT]:
        """Write only the columns at these positions, which must include the primary key.

        `indices` is what the reference documents call them.
        """
        given = indices if column_indices is None else column_indices
        return TableUpsert(self._info, self._make, check_indexes(self._info, given), self._mode)

    def merge_mode(self, mode: MergeMode | str) -> TableUpsert[UpsertT]:
        """Let the table's merge engine decide (`MergeMode.DEFAULT`), or replace values past it (`OVERWRITE`).

        Example:
            writer = table.new_upsert().merge_mode("overwrite").create_writer()
        """
        return TableUpsert(self._info, self._make, self._columns, MergeMode.of(mode))

    def create_writer(self) -> UpsertT:
        """Create the writer."""
        return self._make(self._columns, self._mode)

    def upsert(self, row: Any) -> WriteResultHandle:
        """Older form: the builder used as the writer."""
        handle: WriteResultHandle = self._own().upsert(row)
        return handle

    def delete(self, pk: Any) -> WriteResultHandle:
        """Older form: the builder used as the writer."""
        handle: WriteResultHandle = self._own().delete(pk)
        return handle

    async def flush(self, *, timeout: float | None = None) -> None:
        """Older form: the builder used as the writer."""
        await self._own().flush(timeout=timeout)

    def _own(self) -> Any:
        if self._writer is None:
            self._writer = self.create_writer()
        return self._writer

    def __await__(self) -> Generator[Any, None, TableUpsert[UpsertT]]:
        return self
        yield

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={list(self._columns)}"
        mode = "" if self._mode is MergeMode.DEFAULT else f", merge_mode={self._mode.name}"
        return f"TableUpsert({self._info.table_path}{columns}{mode})"


class TableBase(ABC, Generic[AppendT, UpsertT, ScanT]):
    """A table to read from and write to. Obtain it with `await conn.get_table(path)`."""

    def __init__(self, runner: Runner, state: TableState, view: str | None = None) -> None:
        if view is not None:
            check_view(state.table_info, view)
        self._runner = runner
        self._state = state
        self._view = view

    # Each face says what it builds.

    @abstractmethod
    def _append_writer(self) -> AppendT: ...

    @abstractmethod
    def _upsert_writer(self, columns: Sequence[int] | None, mode: MergeMode) -> UpsertT: ...

    @abstractmethod
    def new_scan(self) -> ScanT:
        """A builder of scanners."""

    def new_append(self) -> TableAppend[AppendT]:
        """A builder of append writers, for log tables."""
        self._check_no_view()
        info = self._state.table_info
        if info.has_primary_key():
            raise InvalidArgumentError(f"Table '{info.table_path}' has a primary key: write to it with new_upsert()")
        return TableAppend(info, self._append_writer)

    async def new_append_writer(self) -> AppendT:
        """Older form of `new_append().create_writer()`."""
        return self.new_append().create_writer()

    def new_upsert(self, columns: Sequence[str] | None = None) -> TableUpsert[UpsertT]:
        """A builder of upsert writers, for primary-key tables; with `columns`, of partial updates of these."""
        self._check_no_view()
        info = self._state.table_info
        require_primary_key(info, "upsert")
        builder = TableUpsert(info, self._upsert_writer)
        return builder if columns is None else builder.partial_update_by_name(columns)

    def new_lookup(self) -> TableLookup:
        """A builder of lookups, for primary-key tables."""
        self._check_no_view()
        from fluss.client.lookup import TableLookup  # scans do without it

        return TableLookup(self._runner, self._state)

    def _check_no_view(self) -> None:
        if self._view is not None:
            raise InvalidArgumentError(
                f"The virtual table '{self._state.table_path}${self._view}' can only be scanned; open "
                f"'{self._state.table_path}' to write to it or to look rows up"
            )

    def get_table_info(self) -> TableInfo:
        """The description of the table, as it was when the table was obtained."""
        return self._state.table_info

    def get_table_path(self) -> TablePath:
        """The name of the table."""
        return self._state.table_path

    @property
    def table_path(self) -> TablePath:
        """The name of the table."""
        return self._state.table_path

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        base = self._state.schema.arrow_schema
        if self._view is None or self._view == LAKE:
            return base
        from fluss.client.scan.views import VIEWS

        return VIEWS[self._view]().schema(base)

    def _shown_info(self) -> TableInfo:
        """The description of what is read: of the table, or of the virtual table as if it were one."""
        if self._view is None:
            return self._state.table_info
        from fluss.client.scan.views import view_info

        return view_info(self._state.table_info, self._view)

    def has_primary_key(self) -> bool:
        """Whether the table has a primary key."""
        return self._state.table_info.has_primary_key()

    def is_partitioned(self) -> bool:
        """Whether the table is partitioned."""
        return self._state.is_partitioned

    def __repr__(self) -> str:
        view = "" if self._view is None else f"${self._view}"
        return f"FlussTable({self._state.table_path}{view}, id={self._state.table_id})"


def column_indexes(info: TableInfo, names: Sequence[str]) -> list[int]:
    """Positions of columns by name, checked."""
    known = {name: index for index, name in enumerate(info.schema.column_names)}
    from fluss.metadata.checks import list_of  # not needed to connect

    listed = list_of("columns", "a list of column names", names)
    for name in listed:
        if not isinstance(name, str) or name not in known:
            raise InvalidArgumentError(f"Unknown column name {name!r}; table {info.table_path} has {', '.join(known)}")
    return [known[name] for name in listed]


def check_indexes(info: TableInfo, indexes: Sequence[int] | None) -> list[int]:
    """Positions of columns, checked."""
    count = len(info.schema.columns)
    from fluss.metadata.checks import list_of  # not needed to connect

    listed = list_of("column_indices", "a list of column positions", indexes)
    for index in listed:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            raise InvalidArgumentError(
                f"Column index {index!r} is out of range: table {info.table_path} has columns 0 to {count - 1}"
            )
    return listed
