# SPDX-License-Identifier: Apache-2.0
"""Joining a DataFrame, or a stream, with a primary-key table by looking its rows up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as s

from fluss import aio
from fluss.client.blocking_client import BlockingClient
from fluss.errors import InvalidArgumentError
from fluss.metadata import TablePath
from fluss.spark.connect import client_of
from fluss.spark.options import table_path
from fluss.spark.types import to_spark_schema
from fluss.spark.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def lookup_join(
    frame: DataFrame,
    table: str,
    on: Mapping[str, str] | Sequence[str] | str,
    bootstrap_servers: str,
    *,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """The rows of `frame`, each with the columns of the row of a primary-key table that belongs to it; nulls if none.

    Rows are looked up when they pass, batch by batch, so a stream sees every row as it is at that moment, and nothing
    of the table is kept in Spark.

    Args:
        frame: A DataFrame or stream.
        table: A primary-key table, `database.table`.
        on: The columns that hold the primary key: their names, or `{column of the frame: column of the key}`.
        bootstrap_servers: The server, `host:port`.
        columns: Columns of the table to add; default all but the key.
        options: More options of the client.
    """
    given = {"bootstrap.servers": bootstrap_servers, **(options or {})}
    pairs = {on: on} if isinstance(on, str) else dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    path = table_path(table)
    with BlockingClient(given) as client:
        info = client.info(path)
    if not info.has_primary_key() or set(pairs.values()) != set(info.schema.primary_key):
        raise InvalidArgumentError(
            f"a lookup needs the whole primary key of {table} ({', '.join(info.schema.primary_key) or 'it has none'}); "
            f"got {', '.join(pairs.values())}"
        )
    missing = [name for name in pairs if name not in frame.columns]
    if missing:
        raise InvalidArgumentError(f"the frame has no column {missing[0]!r}; it has {', '.join(frame.columns)}")
    added = list(columns) if columns is not None else [c for c in info.schema.column_names if c not in pairs.values()]
    twice = [name for name in added if name in frame.columns]
    if twice:
        raise InvalidArgumentError(f"the frame has a column {twice[0]!r} already; rename it, or choose other columns")
    found = to_spark_schema(info.schema, added)
    schema = s.StructType([*frame.schema.fields, *(s.StructField(x.name, x.dataType, True) for x in found.fields)])
    return frame.mapInArrow(_Join(given, path, pairs, added, schema), schema)


class _Join:
    """What the tasks do. Travels to them by pickle."""

    def __init__(
        self, options: dict[str, Any], path: TablePath, pairs: dict[str, str], added: list[str], schema: s.StructType
    ) -> None:
        self._options = options
        self._path = path
        self._pairs = pairs
        self._added = added
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = client_of(self._options)
        table = client.table(self._path)
        lookuper = client.call(lambda: table.new_lookup().create_lookuper())
        wanted: pa.Schema = arrow_schema(self._schema)
        for batch in batches:
            if not batch.num_rows:
                continue
            found = self._look_up(client, lookuper, batch)
            columns = [*batch.columns, *(found.column(name) for name in self._added)]
            arrays = [
                (c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c).cast(field.type, safe=False)
                for c, field in zip(columns, wanted)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def _look_up(self, client: BlockingClient, lookuper: aio.Lookuper, batch: pa.RecordBatch) -> pa.Table:
        """One row of the table for each row of the batch; every key is asked for once."""
        names = batch.schema.names
        keys = pa.table({key: batch.column(names.index(name)) for name, key in self._pairs.items()})
        distinct = keys.group_by(list(self._pairs.values())).aggregate([]).drop_null()
        rows = client.run(lookuper.lookup_many(distinct, missing="null")).select(self._added)
        if not distinct.num_rows:
            return pa.table([pa.nulls(batch.num_rows, field.type) for field in rows.schema], schema=rows.schema)
        at = pa.array(np.arange(distinct.num_rows))
        numbered = distinct.append_column("__at", at)
        here = keys.append_column("__row", pa.array(np.arange(keys.num_rows)))
        joined = here.join(numbered, keys=list(self._pairs.values()), join_type="left outer").sort_by("__row")
        return rows.take(joined.column("__at"))
