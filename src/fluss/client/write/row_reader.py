# SPDX-License-Identifier: Apache-2.0
"""Rows of any shape as values by position, one row or many: what is a row, and what is wrong with what is none."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fluss._text import did_you_mean
from fluss.errors import InvalidRowError
from fluss.metadata import ArrayType, BinaryType, BytesType, Column, DataType, MapType, RowType
from fluss.rows import ColumnConverter, LogicalConverter, from_python
from fluss.rows.named_fields import as_mapping

Values = Sequence[Any]

NESTED = (ArrayType, MapType, RowType)
"""Columns whose values are converted when their row is given: a copy has to be made then, and this is one."""
_MUTABLE = (*NESTED, BytesType, BinaryType)
"""Columns whose values may be objects that the caller can change: lists, dicts, byte arrays."""


class RowReader:
    """Takes the values of columns out of rows: mappings, dataclasses, pydantic models, lists and tuples.

    A named tuple is read by its names if one of them is a column, else by position.

    Args:
        table: For errors.
        all_columns: The columns of the table.
        columns: The positions of those that rows carry; all of them without it.
        whole_rows: Whether a row may have all columns of the table. The values of the others are ignored.
        missing_hint: Refuse a row with names that lacks a column, with this advice. Without it, the value is null.
    """

    def __init__(
        self,
        table: str,
        all_columns: Sequence[Column],
        columns: Sequence[int] | None = None,
        *,
        whole_rows: bool = False,
        missing_hint: str | None = None,
    ) -> None:
        self.table = table
        self.width = len(all_columns)
        self.positions = list(range(self.width)) if columns is None else list(columns)
        self.columns = [all_columns[i] for i in self.positions]
        # The very strings that stand in the caller's code as keys of rows: found by identity, without comparing them.
        self.names = [sys.intern(column.name) for column in self.columns]
        self._whole_rows = whole_rows
        self._known = frozenset(column.name for column in all_columns) if whole_rows else frozenset(self.names)
        self._missing_hint = missing_hint
        self._mutable = [(i, all_columns[i]) for i in self.positions if isinstance(all_columns[i].data_type, _MUTABLE)]
        self._required = [column.name for column in self.columns if not column.data_type.nullable]
        self._complete = self.positions == list(range(self.width))
        self.is_plain = self._complete and not self._mutable
        """Whether the values of a complete row can be taken as they are."""

    def read(self, row: Any) -> Values:
        """All values of the row in table order, None for columns that it does not carry; nested ones as logical values.

        Raises `InvalidRowError` for a row that cannot be one, and for nested values that do not fit.
        """
        given = self._given(row)
        if self.is_plain:
            return given
        values: list[Any]
        if self._complete:
            values = list(given)
        else:
            values = [None] * self.width
            for position, value in zip(self.positions, given):
                values[position] = value
        for position, column in self._mutable:
            value = values[position]
            # What the caller does to the object after this call must not count.
            if value is None or type(value) is bytes:
                continue
            if isinstance(column.data_type, NESTED):
                values[position] = self._converted(value, column)
            elif isinstance(value, (bytearray, memoryview)):
                values[position] = bytes(value)
        return values

    def read_many(self, rows: Sequence[Any]) -> tuple[list[list[Any]], dict[int, InvalidRowError]]:
        """The values of each column that rows carry, up to the first row that cannot be one, and its error by position.

        The values are the caller's own objects: they are to be converted before the caller goes on.
        """
        if all(type(row) is dict for row in rows) and self._known.issuperset(itertools.chain.from_iterable(rows)):
            if self._missing_hint is None:
                return [[row.get(name) for row in rows] for name in self.names], {}
            with contextlib.suppress(KeyError):  # what follows finds the row that lacks a column
                return [[row[name] for row in rows] for name in self.names], {}
        given: list[Values] = []
        bad: dict[int, InvalidRowError] = {}
        for position, row in enumerate(rows):
            try:
                given.append(self._given(row))
            except InvalidRowError as error:
                bad[position] = error
                break
        return [list(column) for column in zip(*given)] or [[] for _ in self.names], bad

    def check_names(self, given: Collection[str]) -> None:
        """Refuse names of which columns are missing, if a row has to have all."""
        if self._missing_hint is None or set(given).issuperset(self.names):
            return
        lacking = [name for name in self.names if name not in given]
        raise InvalidRowError(
            f"{', '.join(map(repr, lacking))} {'is' if len(lacking) == 1 else 'are'} not given, and a row that is "
            "replaced would lose what it has there",
            table=self.table,
            hint=self._missing_hint,
        )

    def _given(self, row: Any) -> Values:
        """The values of the columns that rows carry, in their order."""
        if isinstance(row, (list, tuple)) and self._known.isdisjoint(getattr(row, "_fields", ())):
            if len(row) == len(self.names):
                return row
            if self._whole_rows and len(row) == self.width:
                return [row[i] for i in self.positions]
            raise InvalidRowError(
                f"a {type(row).__name__} of {len(row)} values was given, but the columns are {len(self.names)}: "
                f"{', '.join(self.names)}",
                table=self.table,
            )
        mapping = as_mapping(row)
        if mapping is not None:
            return self._from_mapping(mapping)
        advice = ": give its to_dict()" if hasattr(row, "to_dict") else ""
        raise InvalidRowError(
            "a row is a dict, a tuple, a list, a dataclass or a pydantic model, not "
            f"{type(row).__name__}{advice or f' {row!r:.60}'}",
            table=self.table,
        )

    def _from_mapping(self, row: Mapping[str, Any]) -> Values:
        if not self._known.issuperset(row):
            unknown = next(name for name in row if name not in self._known)
            near = did_you_mean(str(unknown), sorted(self._known))
            raise InvalidRowError(f"unknown column {unknown!r}{near}", table=self.table)
        if self._missing_hint is not None:
            self.check_names(row)
        missing = [name for name in self._required if row.get(name) is None]
        if missing:
            fields = f"field{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
            raise InvalidRowError(f"Missing value for non-nullable {fields}", table=self.table)
        return [row.get(name) for name in self.names]

    def _converted(self, value: Any, column: Column) -> Any:
        try:
            return from_python(value, column.data_type, column.name)
        except InvalidRowError as error:
            raise error.replace(table=self.table) from None


def value_converter(data_type: DataType, name: str) -> ColumnConverter:
    """Make the converter of a column whose values `RowReader.read` gave."""
    return LogicalConverter(data_type, name) if isinstance(data_type, NESTED) else ColumnConverter(data_type, name)
