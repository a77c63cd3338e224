# SPDX-License-Identifier: Apache-2.0
"""A table as a `pyarrow.dataset.Dataset`: DuckDB, polars and others read from it only what a query needs.

They call `scanner(columns=…, filter=…)`. Columns become a projection. A filter becomes a predicate as far as
it can be translated, by which partitions are skipped, keys looked up and batches pruned; what a predicate cannot say is
applied to the rows that were read.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from fluss.db.expressions import Translated, fields_of, translate
from fluss.db.read_ahead import Submit, read_ahead
from fluss.db.read_plan import Moment, matching, plan_read
from fluss.db.suggest import check_columns
from fluss.metadata import Predicate, TableInfo

if TYPE_CHECKING:
    from fluss.client.connection import FlussConnection, FlussTable
    from fluss.db.log_cache import LogCache


@dataclass(frozen=True)
class DatasetSource:
    """How a dataset reaches the rows of its table."""

    connection: FlussConnection
    info: TableInfo
    submit: Submit
    count: Callable[[], Coroutine[Any, Any, int]]
    run: Callable[[Coroutine[Any, Any, int]], int]
    cache: LogCache | None = None
    table: FlussTable | None = None
    """The table, where it is looked up for each query anyway."""
    at: Moment | None = None
    """A time: the table as it was then."""

    def batches(
        self, columns: Sequence[str], predicate: Predicate | None, limit: int | None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Read the table as it is now, or was at the time."""

        async def open_batches() -> AsyncGenerator[pa.RecordBatch, None]:
            read = await plan_read(
                self.connection,
                self.info,
                columns=columns,
                predicate=predicate,
                limit=limit,
                at=self.at,
                cache=self.cache,
                table=self.table,
            )
            async with contextlib.aclosing(read.batches()) as found:
                async for batch in found:
                    yield batch

        return read_ahead(self.submit, open_batches)


class FlussDataset(ds.Dataset):  # type: ignore[misc]
    """A table as an Arrow dataset. Obtain it with `table.dataset()`.

    Every scan reads the table as it is then; the columns are those the table had when the dataset was made.

    Example:
        import duckdb
        orders = db.table("orders").dataset()
        duckdb.sql("select item, sum(price) from orders where id > 5 group by item").df()
    """

    def __init__(self, source: DatasetSource, condition: pc.Expression | None = None, *, as_sql: bool = False) -> None:
        # The base class wraps an object of C++; everything that would use it is overridden.
        self._source = source
        self._schema: pa.Schema = source.info.schema.arrow_schema
        self._condition = condition
        self._as_sql = as_sql

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow fields."""
        return self._schema

    @property
    def partition_expression(self) -> pc.Expression:
        """What is known of all rows: nothing."""
        return pc.scalar(True)

    def scanner(
        self,
        columns: Sequence[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> ds.Scanner:
        """Prepare a read of some columns and rows.

        Args:
            columns: The columns to read; or new columns by name, as expressions.
            filter: Which rows.
            batch_size: The most rows of one batch.
            options: Further options of `pyarrow.dataset.Dataset.scanner`, which have no meaning here.

        Example:
            table.dataset().scanner(columns=["id"], filter=pc.field("price") > 10).to_table()
        """
        wanted = filter if self._condition is None or filter is None else self._condition & filter
        wanted = wanted if wanted is not None else self._condition
        if isinstance(columns, dict):
            return self._computed(columns, wanted, batch_size)
        names = self._schema.names if columns is None else list(columns)
        check_columns(list(dict.fromkeys(names)), self._source.info)
        return FlussScanner(self._source, names, wanted, batch_size, as_sql=self._as_sql)

    def _computed(
        self, columns: dict[str, pc.Expression], condition: pc.Expression | None, batch_size: int | None
    ) -> ds.Scanner:
        """Read what the expressions look at, and let Arrow evaluate them."""
        needed: dict[str, None] = {}
        for expression in columns.values():
            names = fields_of(expression)
            needed.update(dict.fromkeys(self._schema.names if names is None else names))
        names = check_columns(list(needed) or self._schema.names[:1], self._source.info)
        rows = FlussScanner(self._source, names, condition, batch_size, as_sql=self._as_sql)
        return ds.Scanner.from_batches(rows.to_reader(), columns=columns)

    def filter(self, expression: pc.Expression) -> FlussDataset:
        """The same dataset without the rows that do not match.

        Example:
            table.dataset().filter(pc.field("price") > 10).count_rows()
        """
        joined = expression if self._condition is None else self._condition & expression
        return FlussDataset(self._source, joined, as_sql=self._as_sql)

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        """Not supported: a table is read as a whole."""
        raise NotImplementedError("the dataset of a table has no fragments; read it with scanner() or to_batches()")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Not supported: the columns are those of the table."""
        raise NotImplementedError("the columns of a dataset are those of its table; cast what to_table() gives")

    def sort_by(self, sorting: Any, **options: Any) -> ds.Dataset:
        """All rows, sorted, in memory.

        Example:
            table.dataset().sort_by("id").to_table()
        """
        return ds.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: ds.Dataset, *args: Any, **options: Any) -> ds.Dataset:
        """Join all rows, in memory, with those of another dataset; see `pyarrow.Table.join`.

        Example:
            orders.dataset().join(items.dataset(), keys="id").to_table()
        """
        return ds.InMemoryDataset(self.to_table().join(right_dataset.to_table(), *args, **options))

    def join_asof(
        self,
        right_dataset: ds.Dataset,
        on: str,
        by: str | list[str],
        tolerance: int,
        right_on: str | None = None,
        right_by: str | list[str] | None = None,
    ) -> ds.Dataset:
        """Join all rows, in memory, with the nearest of another dataset; see `pyarrow.Table.join_asof`.

        Example:
            trades.dataset().join_asof(quotes.dataset(), on="at", by="item", tolerance=10)
        """
        left = self.to_table().sort_by(on)
        right = right_dataset.to_table().sort_by(right_on or on)
        return ds.InMemoryDataset(left.join_asof(right, on, by, tolerance, right_on, right_by))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a dataset belongs to the connection of its table and cannot be pickled: connect there anew")

    def __repr__(self) -> str:
        return f"<FlussDataset of {self._source.info.table_path}>"


class FlussScanner(ds.Scanner):  # type: ignore[misc]
    """A read of some columns and rows of a table, which begins when the first batch is taken.

    Example:
        table.dataset().scanner(columns=["id"]).to_table()
    """

    def __init__(
        self,
        source: DatasetSource,
        columns: Sequence[str],
        condition: pc.Expression | None,
        batch_size: int | None = None,
        *,
        as_sql: bool = False,
    ) -> None:
        self._source = source
        self._columns = list(columns)
        self._batch_size = batch_size
        self._predicate: Predicate | None = None
        self._residual = condition
        if condition is not None:
            found: Translated | None = translate(condition, source.info.schema, as_sql=as_sql)
            if found is not None:
                self._predicate = found.predicate
                self._residual = None if found.exact else condition
        arrow_schema = source.info.schema.arrow_schema
        self._schema = pa.schema([arrow_schema.field(name) for name in self._columns])

    @property
    def dataset_schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._source.info.schema.arrow_schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns that are read."""
        return self._schema

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows, batch by batch."""
        return self._batches(None)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as an Arrow reader."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches(None))

    def to_table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(list(self._batches(None)), self._schema)

    def scan_batches(self) -> Generator[ds.TaggedRecordBatch, None, None]:
        """The rows, batch by batch; there are no fragments to name."""
        return (ds.TaggedRecordBatch(batch, None) for batch in self._batches(None))

    def head(self, num_rows: int) -> pa.Table:
        """Some rows, no more of which are read than needed."""
        if num_rows <= 0:
            return self._schema.empty_table()
        return pa.Table.from_batches(list(self._batches(num_rows)), self._schema)

    def take(self, indices: Any) -> pa.Table:
        """Rows by position; the order of rows is not defined unless a log table has one bucket."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """The number of rows."""
        if self._predicate is None and self._residual is None:
            return self._source.run(self._source.count())
        return sum(batch.num_rows for batch in self._batches(None))

    def _batches(self, limit: int | None) -> Generator[pa.RecordBatch, None, None]:
        needed = list(dict.fromkeys(self._columns))
        if self._residual is not None:
            names = fields_of(self._residual)
            needed = list(dict.fromkeys([*needed, *(self.dataset_schema.names if names is None else names)]))
        # Rows without columns have to be counted all the same.
        needed = check_columns(needed or self.dataset_schema.names[:1], self._source.info)
        pushed_limit = limit if self._residual is None else None
        for found in self._source.batches(needed, self._predicate, pushed_limit):
            for batch in (found,) if self._residual is None else matching(found, self._residual):
                if batch.schema.names != self._columns:
                    batch = batch.select(self._columns)
                if not batch.schema.equals(self._schema):
                    batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
                if limit is not None:
                    batch = batch.slice(0, limit)
                    limit -= batch.num_rows
                step = self._batch_size or max(batch.num_rows, 1)
                for start in range(0, batch.num_rows, step):
                    yield batch.slice(start, step) if batch.num_rows > step else batch
                if limit == 0:
                    return
