# SPDX-License-Identifier: Apache-2.0
"""`TableWriter`: many single rows, as fast as the full client takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluss.db.models import as_mapping, is_model
from fluss.errors import InvalidArgumentError, InvalidRowError

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
            needed = set(schema.column_names) - set(schema.get_auto_increment_columns())
            self.upsert = _taking_models(upserts.upsert, needed if whole and columns is None else ())  # type: ignore[method-assign]
            self.delete = _taking_keys(upserts.delete, len(table.get_table_info().primary_keys))  # type: ignore[method-assign]
        else:
            if columns is not None:
                raise InvalidArgumentError(f"table {self._path} has no primary key: rows are written whole")
            appends = self._writer = table.new_append().create_writer()
            self.append = _taking_models(appends.append)  # type: ignore[method-assign]

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


def _taking_models(take: Any, needed: Collection[str] = ()) -> Any:
    count = len(needed)

    def convert(row: Any) -> Any:
        if type(row) is not dict and type(row) is not tuple and is_model(type(row)):
            row = as_mapping(row)
        if len(row) < count and isinstance(row, Mapping):
            lacking = sorted(set(needed).difference(row))
            raise InvalidRowError(
                f"{lacking[0]!r} is not given, and a row that is replaced would lose what it has there",
                hint="choose the columns to write with writer(columns=[…]), or set the others to null with "
                "writer(missing='null')",
            )
        return take(row)

    return convert


def _taking_keys(take: Any, width: int) -> Any:
    def convert(key: Any) -> Any:
        if width == 1 and not isinstance(key, (dict, tuple, list)) and as_mapping(key) is None:
            key = (key,)
        elif is_model(type(key)):
            key = as_mapping(key)
        return take(key)

    return convert
