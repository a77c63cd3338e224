# SPDX-License-Identifier: Apache-2.0
"""Conditions as text: what of them can be pushed down, and the rest, which DuckDB evaluates.

`parse_condition` reads a condition with the grammar of `fluss.metadata.where`, which needs no further package. What is
not in that grammar (functions, arithmetic, comparisons of columns) goes to DuckDB, twice: DuckDB plans a query over a
table without rows, by which it reports the columns that it needs and the part of the condition that a scan can apply;
and it evaluates the whole condition over each batch that was read.
"""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.db.duckdb_setup import arrow_result, scratch_duckdb
from fluss.db.expressions import translate
from fluss.db.sql_text import quoted
from fluss.errors import InvalidArgumentError
from fluss.metadata import Predicate, Schema
from fluss.metadata.where import Params, UnknownColumnError, UnreadableConditionError, check_params, parse_where

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ROWS = "rows of a fluss table"
"""A name that no condition contains: a subquery would see one batch instead of the table."""
SECONDS_MAX = 60.0
"""How long a condition may take for one batch: nothing else ends a query over a generated series, for instance."""


@functools.cache
def _duckdb(process_id: int) -> DuckDBPyConnection:
    """The DuckDB of a process, without any tables."""
    return scratch_duckdb()


@dataclass(frozen=True)
class Condition:
    """A filter of rows: what can be pushed down, and what is evaluated over the rows that were read."""

    predicate: Predicate | None
    """Holds for every row that matches."""
    computed: Computed | None = None
    """Holds for exactly the rows that match. None: the predicate does."""

    def columns(self) -> list[str]:
        """The names of the columns it looks at, each once."""
        pushed = [] if self.predicate is None else self.predicate.columns()
        return list(dict.fromkeys([*pushed, *(() if self.computed is None else self.computed.columns)]))


def parse_condition(text: str, schema: Schema, params: Params | None = None) -> Condition:
    """Read a condition as it stands after WHERE in SQL; see `fluss.metadata.where.parse_where`.

    Raises:
        InvalidArgumentError: The text is no condition over these columns.

    Example:
        condition = parse_condition("price * 2 > ? and lower(item) = 'tea'", schema, [10])
    """
    try:
        return Condition(parse_where(text, schema, params))
    except UnreadableConditionError as error:
        computed = _computed(text, schema, params, error)
    pushed = None if computed.pushed is None else translate(computed.pushed, schema, as_sql=True)
    return Condition(None if pushed is None else pushed.predicate, computed)


def _computed(text: str, schema: Schema, params: Params | None, unreadable: UnreadableConditionError) -> Computed:
    try:
        import duckdb
    except ImportError:
        raise InvalidArgumentError(
            unreadable.message,
            hint="functions, arithmetic and comparisons of columns need DuckDB: pip install 'fluss-python[sql]'",
        ) from None
    try:
        return Computed(text, schema, params)
    except duckdb.Error as error:
        if isinstance(error, duckdb.ParserException) or isinstance(unreadable, UnknownColumnError):
            raise InvalidArgumentError(unreadable.message) from None  # it names the position and the nearest column
        reason = str(error).partition("\n\n")[0].replace("\n", " ")
        quotes = "texts stand in single quotes; double quotes are for names of columns"
        hint = quotes if isinstance(error, duckdb.BinderException) and '"' in text else None
        raise InvalidArgumentError(f"{reason}, in the condition {text!r:.200}", hint=hint) from None


class Computed:
    """A condition that DuckDB evaluates over Arrow batches."""

    def __init__(self, text: str, schema: Schema, params: Params | None) -> None:
        import duckdb
        from pyarrow.dataset import Dataset, Scanner

        check_params("where", params)
        empty = schema.arrow_schema.empty_table()

        class EmptyTable(Dataset):  # type: ignore[misc]
            """A table without rows that notes what a query asks of it."""

            def __init__(self) -> None:  # the base class wraps an object of C++; nothing here uses it
                self.columns: list[str] = []
                self.filter: Any = None

            @property
            def schema(self) -> pa.Schema:
                return empty.schema

            def scanner(self, columns: Any = None, filter: Any = None, **_: Any) -> Scanner:
                self.columns = empty.column_names if columns is None else list(columns)
                self.filter = filter
                found = empty.select(self.columns)
                return Scanner.from_batches(found.to_batches(), schema=found.schema)

        probe = EmptyTable()
        self._params = params
        self._connection = _duckdb(os.getpid()).cursor()
        self._connection.register(_ROWS, probe)
        duckdb.SQLExpression(text)  # fails if it is more than one expression
        # As a condition of WHERE: aggregates and windows, which mean all rows and not one, are refused.
        self._evaluate(f"select 1 from {quoted(_ROWS)} where (\n{text}\n)")
        self.pushed = probe.filter
        """An Arrow expression that holds for every row that matches, as SQL understands it; None: nothing is known."""
        self._query = f"select (\n{text}\n)::boolean from {quoted(_ROWS)}"
        self._evaluate(self._query)
        self.columns = probe.columns
        """The columns that it looks at, at least one."""
        # What can be evaluated without a column (`1 = 2 and length(name) > 3`) still names it.
        self._unread = [
            field
            for field in empty.schema
            if field.name not in self.columns and field.name.casefold() in text.casefold()
        ]
        self._connection.unregister(_ROWS)

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that match.

        Raises:
            InvalidArgumentError: The condition cannot be evaluated for a row, such as a division by zero.
        """
        return batch.filter(self.mask(batch))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Whether each row of a batch matches: true, false, or null where that is unknown."""
        import duckdb

        rows = pa.Table.from_batches([batch.select(self.columns)])
        for field in self._unread:
            rows = rows.append_column(field, pa.nulls(len(rows), field.type))
        self._connection.register(_ROWS, rows)
        try:
            return self._evaluate(self._query).column(0).combine_chunks()
        except duckdb.Error as error:
            raise InvalidArgumentError(f"the condition cannot be evaluated: {error}") from None
        finally:
            self._connection.unregister(_ROWS)

    def _evaluate(self, query: str) -> pa.Table:
        import duckdb

        stop = threading.Timer(SECONDS_MAX, self._connection.interrupt)
        stop.start()
        try:
            return arrow_result(self._connection, query, self._params)
        except duckdb.InterruptException:
            raise InvalidArgumentError(f"the condition takes more than {SECONDS_MAX:g} s for one batch") from None
        finally:
            stop.cancel()
