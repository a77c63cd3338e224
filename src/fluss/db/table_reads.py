# SPDX-License-Identifier: Apache-2.0
"""Reading a whole table."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from fluss.client.arguments import integer, wrong_argument
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import to_pandas, to_polars
from fluss.db.bridge import offload
from fluss.db.file_writers import open_writer
from fluss.db.read_plan import Moment, Read, is_tiered, list_buckets, plan_read, python_rows
from fluss.db.table_info import TableDescription
from fluss.errors import InvalidArgumentError, InvalidTableError, UnsupportedVersionError
from fluss.metadata import Column, OffsetSpec, Predicate, TableInfo
from fluss.metadata.where import Params

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

T = TypeVar("T")
Where = str | Predicate
"""A filter: SQL-like text such as ``"price > 10 and item like 't%'"``, or a predicate built with `fluss.col`."""


class TableReads(TableDescription[T]):
    """The rows of a table at one point in time."""

    # -- read the whole table -------------------------------------------------------------------------------------

    async def _plan(
        self,
        columns: Sequence[str] | str | None,
        where: Where | None,
        limit: int | None,
        snapshot: int | None,
        params: Params | None = None,
        at: Moment | None = None,
    ) -> Read:
        return await plan_read(
            self._database._connection,
            self._info,
            columns=columns,
            predicate=where,
            params=params,
            limit=limit,
            snapshot=snapshot,
            at=self._at if at is None else at,
        )

    async def to_arrow(
        self,
        columns: Sequence[str] | str | None = None,
        where: Where | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
        *,
        params: Params | None = None,
        at: Moment | None = None,
    ) -> pa.Table:
        """The whole table as Arrow: all buckets and partitions at one point in time, current rows of primary keys.

        Args:
            columns: The columns to read, in this order, such as ``["id", "price"]`` or ``"id, price"``; all by default.
            where: Only rows that match: SQL-like text or a predicate.
            limit: At most so many rows; which ones is not defined.
            snapshot: The id of a lake snapshot: the table as it was then.
            params: Values for ``?`` (a list) or ``$name`` (a dict) in the text of `where`.
            at: The table as it was before this time, as far back as its log goes: rows of a log table that have
                expired since are not there, and a primary-key table needs its changelog from then on. The columns are
                those of now.

        Example:
            table = await orders.to_arrow(columns=["id", "price"], where="price > ?", params=[10])
        """
        return await (await self._plan(columns, where, limit, snapshot, params, at)).to_arrow()

    async def to_pandas(
        self,
        columns: Sequence[str] | str | None = None,
        where: Where | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
        *,
        params: Params | None = None,
    ) -> pd.DataFrame:
        """The same as a pandas DataFrame; see `to_arrow`.

        Example:
            frame = await orders.to_pandas(where="price > 10")
        """
        table = await self.to_arrow(columns, where, limit, snapshot, params=params)
        return await offload(lambda: to_pandas(table))

    async def to_polars(
        self,
        columns: Sequence[str] | str | None = None,
        where: Where | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
        *,
        params: Params | None = None,
    ) -> pl.DataFrame:
        """The same as a polars DataFrame; see `to_arrow`.

        Example:
            frame = await orders.to_polars(columns=["id", "price"])
        """
        table = await self.to_arrow(columns, where, limit, snapshot, params=params)
        return await offload(lambda: to_polars(table))

    async def to_pylist(
        self,
        columns: Sequence[str] | str | None = None,
        where: Where | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
        *,
        params: Params | None = None,
    ) -> list[T]:
        """The same as a list of rows: dicts, or instances of the table's model; see `to_arrow`.

        Example:
            rows = await orders.to_pylist(where="item = 'tea'", limit=10)
        """
        chosen = self._model.columns if columns is None else columns
        read = await self._plan(chosen, where, limit, snapshot, params)
        table = await read.to_arrow()
        if columns is None:
            return await offload(lambda: self._model.make(python_rows(table, read.info)))
        if self._cls is not None:
            raise InvalidArgumentError(f"rows of {self._cls.__name__} have all its columns; use to_arrow(columns=…)")
        return cast("list[T]", await offload(lambda: python_rows(table, read.info)))

    async def to_parquet(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | str | None = None,
        where: Where | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
        *,
        params: Params | None = None,
    ) -> int:
        """Write the same to a Parquet file, batch by batch, and return the number of rows; see `to_arrow`.

        The file appears under its name when it is complete.

        Example:
            await orders.to_parquet("orders.parquet", where="price > 10")
        """
        return await self._to_file(path, "parquet", columns, where, limit, snapshot, params)

    async def to_csv(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | str | None = None,
        where: Where | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
        *,
        params: Params | None = None,
    ) -> int:
        """Write the same to a CSV file with a header, as `to_parquet` does; a name with ``.gz`` is compressed.

        Null is an empty field, and an empty text is ``""``. Bytes are base64, nested values JSON.

        Example:
            await orders.to_csv("orders.csv", columns=["id", "price"])
        """
        return await self._to_file(path, "csv", columns, where, limit, snapshot, params)

    async def _to_file(
        self,
        path: str | os.PathLike[str],
        kind: str,
        columns: Sequence[str] | str | None,
        where: Where | None,
        limit: int | None,
        snapshot: int | None,
        params: Params | None,
    ) -> int:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise wrong_argument(f"to_{kind}", "path", "the path of a file", path)
        read = await self._plan(columns, where, limit, snapshot, params)
        rows = 0
        with contextlib.ExitStack() as file:
            write = await offload(lambda: file.enter_context(open_writer(os.fspath(path), kind, read.schema)))
            async with contextlib.aclosing(read.batches()) as batches:
                async for batch in batches:
                    await offload(functools.partial(write, batch))
                    rows += batch.num_rows
            await offload(file.close)
        return rows

    async def head(self, n: int = 5) -> list[T]:
        """Some rows, to see what they look like.

        Example:
            await orders.head(3)
        """
        return await self.to_pylist(limit=integer("head", "n", n))

    async def batches(
        self,
        columns: Sequence[str] | str | None = None,
        where: Where | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
        *,
        params: Params | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The same batch by batch, in bounded memory; see `to_arrow`.

        Example:
            async for batch in orders.batches(columns=["id"]):
                print(batch.num_rows)
        """
        read = await self._plan(columns, where, limit, snapshot, params)
        async for batch in read.batches():
            yield batch

    async def count(self, where: Where | None = None, *, params: Params | None = None) -> int:
        """The number of rows, all of them or those that match.

        Example:
            await orders.count(where="price > 10")
        """
        if where is None:
            self._use(await self._get_same())
        info = self._info
        counted = await self._count_without_reading() if where is None and params is None else None
        if counted is not None:
            return counted
        narrow = self.primary_key[:1] or [_narrowest(info)]
        read = await self._plan(narrow, where, None, None, params)
        rows = 0
        async for batch in read.batches():
            rows += batch.num_rows
        return rows

    async def _count_without_reading(self) -> int | None:
        """The number of all rows, if the server knows it; None if they have to be read."""
        info, connection = self._info, self._database._connection
        if self._handle._view is not None or self._at is not None:
            return None
        if info.lake_format is not None and await is_tiered(connection, info.table_path):
            return None  # the lake may keep rows that have expired on the server
        if info.has_primary_key():
            try:
                return (await self._database._admin.get_table_stats(info.table_path)).row_count
            except (InvalidTableError, UnsupportedVersionError):
                return None  # not counted with changelog image WAL, nor by servers before 0.9
        buckets = await list_buckets(connection, info)
        plan = ScanPlan(connection._cluster, info)
        ends = await plan.offsets(buckets, OffsetSpec.latest())
        starts = await plan.offsets(buckets, OffsetSpec.earliest())
        return sum(max(0, ends[bucket] - starts[bucket]) for bucket in buckets)


def _narrowest(info: TableInfo) -> str:
    """A column that is quick to read."""

    def width(column: Column) -> int:
        try:
            return int(column.data_type.to_arrow().bit_width)
        except ValueError:
            return 1_000

    return min(info.schema.columns, key=width).name
