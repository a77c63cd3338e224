# SPDX-License-Identifier: Apache-2.0
"""`TableWriter`: many single rows, as fast as the full client takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.rows.named_fields import as_mapping

if TYPE_CHECKING:
    from fluss.client.connection import FlussTable
    from fluss.client.write import AppendWriter, UpsertWriter


class TableWriter:
    """Takes rows one by one and sends them in batches. Obtain it with `table.writer()`.

    Example:
        async with events.writer() as writer:
            for number in range(1_000_000):
                writer.append({"id": number, "kind": "click"})
    """

    def __init__(self, table: FlussTable, columns: Sequence[str] | None, *, whole: bool = False) -> None:
        self._path = table.table_path
        self._writer: AppendWriter | UpsertWriter
        # The methods of the client's writer themselves: a call in between would be a tenth of what a row costs.
        if table.has_primary_key():
            upserts = self._writer = table.new_upsert(columns).create_writer()
            schema = table.get_table_info().schema
            upsert, delete = upserts.upsert, upserts.delete
            if whole and columns is None:
                upsert = _refusing_parts(upsert, schema.column_names, schema.get_auto_increment_columns())
            if len(schema.primary_key) == 1:
                delete = _taking_values(delete)
            self.upsert = upsert  # type: ignore[method-assign]
            self.delete = delete  # type: ignore[method-assign, assignment]
        else:
            if columns is not None:
                raise InvalidArgumentError(f"table {self._path} has no primary key: rows are written whole")
            appends = self._writer = table.new_append().create_writer()
            self.append = appends.append  # type: ignore[method-assign]

    def append(self, row: Any) -> Any:
        """Append a row to a log table.

        Example:
            writer.append({"id": 1, "kind": "click"})
        """
        raise InvalidArgumentError(f"table {self._path} has a primary key: use upsert()")

    def upsert(self, row: Any) -> Any:
        """Insert or replace a row of a primary-key table.

        Example:
            writer.upsert({"id": 7, "item": "tea"})
        """
        raise InvalidArgumentError(f"table {self._path} has no primary key: use append()")

    def delete(self, key: Any) -> Any:
        """Delete a row of a primary-key table by its key.

        Example:
            writer.delete({"id": 7})
        """
        raise InvalidArgumentError(f"table {self._path} has no primary key: nothing can be deleted")

    async def flush(self) -> None:
        """Wait until all rows are durable; raises what went wrong with those that are not.

        Example:
            await writer.flush()
        """
        await self._writer.flush()

    async def close(self) -> None:
        """Flush and be done. Leaving an `async with` block does it too, unless it is left with an error.

        Example:
            await writer.close()
        """
        await self._writer.close()

    async def __aenter__(self) -> TableWriter:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None = None, *_: object) -> None:
        if exc_type is None:
            await self._writer.flush()

    def __repr__(self) -> str:
        return f"TableWriter({self._path})"


def _refusing_parts(upsert: Any, columns: Sequence[str], given_by_server: Sequence[str]) -> Any:
    known = frozenset(columns)
    needed = known.difference(given_by_server)

    def refuse_or_upsert(row: Any) -> Any:
        if isinstance(row, (list, tuple)) and known.isdisjoint(getattr(row, "_fields", ())):
            return upsert(row)  # by position
        given = row if type(row) is dict else as_mapping(row)
        if given is None:
            return upsert(row)  # which says that it is no row
        if not given.keys() >= needed:
            raise InvalidRowError(
                f"{min(needed.difference(given))!r} is not given, and a row that is replaced would lose what it has "
                "there",
                hint="choose the columns to write with writer(columns=[…]), or set the others to null with "
                "writer(missing='null')",
            )
        return upsert(given)

    return refuse_or_upsert


def _taking_values(delete: Any) -> Any:
    def delete_key(key: Any) -> Any:
        is_value = not isinstance(key, (dict, tuple, list)) and as_mapping(key) is None
        return delete((key,) if is_value else key)

    return delete_key
