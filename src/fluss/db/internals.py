# SPDX-License-Identifier: Apache-2.0
"""What the tools and the console use of a blocking `Database` beyond its public methods."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fluss.client.scan.as_of import rows_as_of
from fluss.client.scan.plan import ScanPlan
from fluss.db.bulk_write import Sink
from fluss.errors import FlussError
from fluss.metadata import EARLIEST_OFFSET, TableBucket, TablePath

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from fluss.client.admin import FlussAdmin
    from fluss.client.write import WriteResultHandle
    from fluss.db.blocking import Database, Table

T = TypeVar("T")


def admin_call(db: Database, call: Callable[[FlussAdmin], Coroutine[Any, Any, T]]) -> T:
    """Wait for a call of the asynchronous admin client.

    Example:
        admin_call(db, lambda admin: admin.list_databases())
    """
    return db._bridge.run(call(db._core._admin))


def table_path(db: Database, name: str) -> TablePath:
    """The path of a table, which need not exist."""
    return db._core._path(name)


def open_sink(
    db: Database,
    table: Table[Any],
    operation: Literal["append", "upsert", "delete"],
    columns: Sequence[str] = (),
    *,
    exact: bool = False,
) -> Sink:
    """A writer of the client for batches of a table, of all or some columns.

    With `exact`, rows that were read from another table are stored as they are, past the merge engine.
    """
    overwrite = exact and operation != "append" and table.info.config.merge_engine is not None
    return db._bridge.call(lambda: table._core._sink(operation, columns, overwrite=overwrite))


def bucket_rows(db: Database, table: Table[Any], bucket: TableBucket, end: int) -> Iterator[pa.RecordBatch]:
    """The rows of a bucket as they were after all changes below an offset."""
    plan = ScanPlan(db._core._connection._cluster, table.info)
    if table.primary_key:
        return (found.batch for found in db._bridge.iterate(rows_as_of(plan, bucket, end)))
    groups = plan.read_groups({bucket: EARLIEST_OFFSET}, {bucket: end})
    return (found.batch for group in db._bridge.iterate(groups) for found in group)


def wait_for_writes(db: Database, handles: Sequence[WriteResultHandle]) -> None:
    """Wait until the rows of handles are durable; raises the first error once all are known."""

    async def wait() -> None:
        failure: FlussError | None = None
        for handle in handles:
            try:
                await handle.wait()
            except FlussError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    db._bridge.run(wait())


def sql_connection(db: Database) -> DuckDBPyConnection:
    """The DuckDB connection that runs the SQL of a database, to interrupt it from another thread."""
    return db._engine()._connection
