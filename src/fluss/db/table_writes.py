# SPDX-License-Identifier: Apache-2.0
"""Writing to a table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

import pyarrow as pa

from fluss.client.arguments import wrong_argument
from fluss.client.write.arrow_input import BatchReader
from fluss.client.write.row_reader import RowReader
from fluss.db.bulk_write import BulkWrite, Sink
from fluss.db.inputs import MISSING_HINT, BadRow, Missing, Rows, frame_of, is_one_row, to_batch
from fluss.db.keys import check_rules, key_of, keys_of_many, require_key, rows_of_keys
from fluss.db.row_writer import TableWriter
from fluss.db.suggest import check_columns
from fluss.db.table_reads import TableReads, Where
from fluss.db.write_results import WriteResult, rejected
from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import MergeMode
from fluss.metadata.where import Params
from fluss.rows.named_fields import as_mapping

T = TypeVar("T")


class TableWrites(TableReads[T]):
    """Append, upsert, update, delete."""

    # -- write ----------------------------------------------------------------------------------------------------

    async def append(self, rows: Rows, *, progress: bool = False) -> WriteResult:
        """Append rows to a log table; they are durable when it returns.

        Args:
            rows: A row (dict, tuple, dataclass, pydantic model), an iterable of rows, an Arrow table, batch or reader,
                or a pandas or polars frame.
            progress: Show a progress bar.

        Raises:
            InvalidRowError: A row does not fit. The error has its `position`, and `written`: how many rows before it
                are durable.

        Example:
            await events.append([{"id": 1, "kind": "click"}, {"id": 2, "kind": "view"}])
        """
        if self._info.has_primary_key():
            raise InvalidArgumentError(f"table {self.path} has a primary key: write to it with upsert()")
        return await BulkWrite(self._sink("append"), progress).run(rows)

    async def upsert(self, rows: Rows, *, missing: Missing = None, progress: bool = False) -> WriteResult:
        """Insert rows, or replace those with the same primary key; durable when it returns.

        Args:
            rows: As for `append`.
            missing: What becomes of columns that are not given. ``"null"``: they are null. ``"keep"``: rows that exist
                keep what they have there, in new ones they are null. None: such rows are refused.
            progress: Show a progress bar.

        Example:
            await orders.upsert({"id": 7, "item": "tea", "price": 2.5})
            await orders.upsert({"id": 7, "price": 3.0}, missing="keep")
        """
        require_key(self._info, "upsert()", "write to it with append()")
        check_missing("upsert", missing)
        if missing == "keep":
            names, rows = self._named("upsert", rows)
            return await BulkWrite(self._sink("upsert", names), progress).run(rows)
        return await BulkWrite(self._sink("upsert", missing=missing), progress).run(rows)

    async def delete(
        self,
        keys: Any = None,
        *,
        where: Where | None = None,
        params: Params | None = None,
        progress: bool = False,
    ) -> WriteResult:
        """Delete rows by primary key, or by a filter. The result has the number of rows that were there.

        Args:
            keys: A key (value, tuple, dict or row), an iterable of keys, or a frame that has the key columns. Of an
                iterator the keys are counted, whether there are rows for them or not.
            where: Delete the rows that match now, instead.
            params: Values for ``?`` (a list) or ``$name`` (a dict) in the text of `where`.
            progress: Show a progress bar.

        Example:
            await orders.delete(7)
            await orders.delete(where="price = 0")
        """
        require_key(self._info, "delete()", "rows of a log are never deleted")
        check_rules(self._info, f"delete() of table {self.path}", deletes=True)
        if (keys is None) == (where is None):
            raise InvalidArgumentError("delete() takes keys, or a filter: delete(7) or delete(where='price = 0')")
        if where is not None:
            keys = await self.to_arrow(columns=self.primary_key, where=where, params=params)
        rows = rows_of_keys(keys, self.primary_key, self.columns)
        there = None
        if where is None and (hasattr(keys, "__len__") or isinstance(rows, list)):
            rows = rows if hasattr(rows, "__len__") else list(rows)
            with contextlib.suppress(InvalidArgumentError, InvalidRowError):  # of which the write knows the position
                found = (await self._lookup(rows)).select(self.primary_key)
                # Only keys that exist are sent: the others would create the partitions that they name.
                rows = found.filter(found[0].is_valid()).group_by(self.primary_key).aggregate([])
                there = rows.num_rows
        result = await BulkWrite(self._sink("delete"), progress).run(rows)
        return WriteResult(result.rows if there is None else there, result.seconds)

    async def update(self, key: Any, /, *, upsert: bool = False, **values: Any) -> WriteResult:
        """Change some columns of rows and leave the others as they are. The result has the number of rows there were.

        It is a partial update, which the server merges with the row. Of a table with other columns that are NOT NULL,
        such as that of a dataclass, the client reads the rows and writes them whole: what another program writes to
        the same rows meanwhile is lost.

        Args:
            key: The key of one row, whose columns `values` are set; or, without `values`, rows or a frame that have the
                key columns and those to change.
            upsert: Insert keys that do not exist, with null in the other columns.

        Example:
            await orders.update(7, price=9.5)
            await orders.update([{"id": 7, "price": 9.5}, {"id": 8, "price": 3.0}])
        """
        require_key(self._info, "update()", "rows of a log never change")
        check_rules(self._info, f"update() of table {self.path}")
        rows: Any = key
        if values:
            check_columns(list(values), self._info)
            found = key_of(key, self.primary_key, self.columns)
            named = found if isinstance(found, dict) else dict(zip(self.primary_key, found))
            moved = [name for name, value in values.items() if name in named and value != named[name]]
            if moved:
                raise InvalidArgumentError(
                    f"update() of table {self.path} cannot change {moved[0]!r}: it is part of the primary key. "
                    "Upsert the row under its new key, and delete the old one"
                )
            rows = [{**named, **values}]
        names, rows = self._named("update", rows, whole_rows=not upsert)
        if not upsert:
            found = await self._lookup(rows)
            there = found.column(self.primary_key[0]).is_valid()
            if self._required(names):
                given = self._converted(names, rows)
                columns = {name: given[name] if name in names else found[name] for name in self.columns}
                return await BulkWrite(self._sink("upsert"), False).run(pa.table(columns).filter(there))
            if isinstance(rows, list):
                rows = [row for row, exists in zip(rows, there.to_pylist()) if exists]
            else:
                rows = rows.filter(there) if isinstance(rows, pa.Table) else rows[there.to_pylist()]
        return await BulkWrite(self._sink("upsert", names), False).run(rows)

    async def _lookup(self, keys: Any) -> pa.Table:
        """The rows with these keys, one of nulls for each that is not there."""
        lookuper = self._handle.new_lookup().create_lookuper()
        found: pa.Table = await lookuper.lookup_many(keys_of_many(keys, self.primary_key, self.columns), missing="null")
        return found

    def _converted(self, names: Sequence[str], rows: Any) -> pa.Table:
        """Rows or a frame as Arrow of the types of these columns."""
        row_reader = self._row_reader(names)
        if isinstance(rows, list):
            try:
                return pa.Table.from_batches([to_batch(row_reader, rows)])
            except BadRow as bad:
                raise rejected(bad.error.replace(table=str(self.path)), bad.position, 0) from None
        reader = BatchReader(row_reader.table, row_reader.columns)
        table = rows if isinstance(rows, pa.Table) else reader.from_pandas(rows)
        return pa.Table.from_batches([reader.read(batch) for batch in table.to_batches()], reader.schema)

    def _row_reader(self, names: Sequence[str], missing_hint: str | None = None) -> RowReader:
        schema = self._info.schema
        columns = [schema.column_index(name) for name in names]
        return RowReader(str(self.path), schema.columns, columns, whole_rows=True, missing_hint=missing_hint)

    def _required(self, names: Sequence[str]) -> list[str]:
        """The columns because of which a partial update of these columns is refused: those that are NOT NULL."""
        if set(names) == set(self.columns):
            return []
        columns = self._info.schema.columns
        return [one.name for one in columns if not one.data_type.nullable and one.name not in self.primary_key]

    def _named(self, call: str, rows: Any, *, whole_rows: bool = False) -> tuple[list[str], Any]:
        """The columns of rows that do not have all, and the rows."""
        names, rows = _given_columns(call, rows, self.columns)
        check_columns(names, self._info)
        missing = [name for name in self.primary_key if name not in names]
        if missing:
            raise InvalidArgumentError(
                f"{call}() of table {self.path} needs the primary key; {missing[0]!r} is missing"
            )
        required = self._required(names)
        if required and not whole_rows:
            raise InvalidArgumentError(
                f"{call}() of some columns of table {self.path} needs every column outside the primary key to be "
                f"nullable, because a key may not exist yet; {required[0]!r} is NOT NULL. Upsert whole rows"
            )
        return names, rows

    def writer(self, columns: Sequence[str] | None = None, *, missing: Literal["null"] | None = None) -> TableWriter:
        """A writer for many single rows, at the speed of the full client; leave it, and all rows are durable.

        Args:
            columns: Write only these columns of a primary-key table (a partial update).
            missing: ``"null"``: columns that a row to upsert does not have become null. None: such rows are refused.

        Example:
            async with orders.writer() as writer:
                for number in range(1_000):
                    writer.upsert({"id": number, "item": "tea", "price": 2.5})
        """
        self._check_present("writer()")
        return TableWriter(self._handle, columns, whole=missing is None)

    def _sink(
        self,
        kind: Literal["append", "upsert", "delete"],
        columns: Sequence[str] = (),
        *,
        overwrite: bool = False,
        missing: Missing = None,
    ) -> Sink:
        self._check_present("writing")
        names = tuple(columns) if set(columns) != set(self.columns) else ()
        whole = kind == "upsert" and missing is None
        sink = self._sinks.get((kind, names, overwrite, whole))
        if sink is None:
            schema = self._info.schema
            if kind == "delete":
                wanted = self.primary_key
            else:
                generated = schema.get_auto_increment_columns()
                wanted = [
                    name for name in schema.column_names if name not in generated and (not names or name in names)
                ]
            rows = self._row_reader(wanted, MISSING_HINT if whole else None)
            if kind == "append":
                sink = Sink(self._handle.new_append().create_writer(), rows)
            else:
                mode = MergeMode.OVERWRITE if overwrite else MergeMode.DEFAULT
                writer = self._handle.new_upsert(list(names) or None).merge_mode(mode).create_writer()
                sink = Sink(writer, rows, is_delete=kind == "delete")
            self._sinks[kind, names, overwrite, whole] = sink
        return sink


def check_missing(call: str, missing: Missing) -> None:
    """Refuse another word for what becomes of columns that are not given."""
    if missing not in (None, "null", "keep"):
        raise wrong_argument(call, "missing", "'null', 'keep' or None", missing)


def _given_columns(call: str, rows: Any, known: Sequence[str]) -> tuple[list[str], Any]:
    """The columns that rows have, and the rows: an iterator is looked into."""
    frame = rows.read_all() if isinstance(rows, pa.RecordBatchReader) else frame_of(rows, known)
    if frame is not None:
        return [str(name) for name in (frame.column_names if isinstance(frame, pa.Table) else frame.columns)], frame
    if isinstance(rows, (str, bytes)) or not (is_one_row(rows) or isinstance(rows, Iterable)):
        raise InvalidArgumentError(
            f"{call}() needs the columns to change, as in update({rows!r:.60}, price=9.5), or rows that have them"
        )
    given = [rows] if is_one_row(rows) else list(rows)
    found: list[str] = []
    for position, row in enumerate(given):
        mapping = as_mapping(row)
        if mapping is None:
            raise InvalidArgumentError(f"{call}() takes rows with names: dicts or models, not {row!r:.60}")
        if position and set(mapping) != set(found):
            raise InvalidArgumentError(
                f"the rows of one {call}() have the same columns; row {position} has {list(mapping)}, row 0 {found}"
            )
        found = list(mapping)
    return found, given
