# SPDX-License-Identifier: Apache-2.0
"""SQL of the console: DuckDB over the tables, without any access to files, and with limits."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

import fluss
from fluss.console.json_values import to_json
from fluss.console.settings import ROWS_OF_EXPORT_MAX, ROWS_OF_SQL_MAX, SQL_SECONDS_MAX, Settings
from fluss.db.internals import sql_connection
from fluss.errors import DeadlineExceededError, FlussError, InvalidArgumentError, MissingDependencyError
from fluss.tools.files import open_writer

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_WAITING_MAX = 4
_LOCKED = (
    "set enable_external_access=false",
    "set python_enable_replacements=false",
    "set memory_limit='1GB'",
    "set threads=2",
    "set lock_configuration=true",
)
"""No files, no network, no variables of this program, and no way to change that."""
_READING = frozenset({"SELECT", "EXPLAIN"})
_WRITING = frozenset({"INSERT", "CREATE", "DROP"})
T = TypeVar("T")


class SqlRunner:
    """Runs the queries of one user, one after the other, in a thread of its own."""

    def __init__(self, settings: Settings, user: str | None, password: str | None) -> None:
        self._settings = settings
        self._user = user
        self._password = password
        self._pool = ThreadPoolExecutor(1, "fluss-console-sql")
        self._waiting = 0
        self._db: fluss.Database | None = None
        self._connection: DuckDBPyConnection | None = None
        """The one that the thread's queries run on."""

    async def query(self, text: str) -> dict[str, Any]:
        """Run statements; the first rows of the last one's result."""
        return await self._run(partial(self._query, text))

    async def export(self, text: str, form: str) -> bytes:
        """The result of a query as the bytes of a CSV or Parquet file."""
        if form not in ("csv", "parquet"):
            raise InvalidArgumentError(f"results are exported as csv or parquet, not {form!r:.40}")
        return await self._run(partial(self._export, text, form))

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._db is not None:
            db, self._db = self._db, None
            await asyncio.to_thread(db.close)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._waiting >= _WAITING_MAX:
            raise InvalidArgumentError(f"{_WAITING_MAX} queries are waiting already. Try again when they are done.")
        self._waiting += 1
        loop = asyncio.get_running_loop()
        timer = loop.call_later(SQL_SECONDS_MAX, self._interrupt)
        try:
            return await loop.run_in_executor(self._pool, _guarded, work)
        finally:
            timer.cancel()
            self._waiting -= 1

    def _interrupt(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    def _open(self) -> fluss.Database:
        if self._db is None:
            login = self._settings.login(self._user, self._password)
            db = fluss.connect(self._settings.bootstrap_servers, **asdict(login), timeout=SQL_SECONDS_MAX)
            try:
                for statement in _LOCKED:
                    db.sql(statement)
            except BaseException:
                db.close()
                raise
            self._db = db
            self._connection = sql_connection(db)
        return self._db

    def _relation(self, text: str) -> DuckDBPyRelation:
        try:
            import duckdb
        except ImportError:
            raise MissingDependencyError("SQL needs DuckDB: pip install 'fluss-python[sql]'") from None
        allowed = _READING if self._settings.read_only else _READING | _WRITING
        for statement in duckdb.extract_statements(text):
            kind = statement.type.name
            if kind not in allowed:
                why = "this console is read-only" if kind in _WRITING else "it is not available in the console"
                raise InvalidArgumentError(f"{kind} is refused: {why}. Use SELECT.")
        return self._open().sql(text)

    def _query(self, text: str) -> dict[str, Any]:
        began = perf_counter()
        relation = self._relation(text)
        columns, types = list(relation.columns), [str(kind) for kind in relation.types]
        table = _arrow(relation.limit(ROWS_OF_SQL_MAX + 1))
        shown = table.slice(0, ROWS_OF_SQL_MAX)
        return {
            "columns": columns,
            "types": types,
            "rows": [[to_json(value) for value in row] for row in zip(*(one.to_pylist() for one in shown.columns))],
            "more": table.num_rows > ROWS_OF_SQL_MAX,
            "seconds": perf_counter() - began,
        }

    def _export(self, text: str, form: str) -> bytes:
        table = _arrow(self._relation(text).limit(ROWS_OF_EXPORT_MAX))
        out = io.BytesIO()
        with open_writer(out, form, table.schema) as write:
            for batch in table.to_batches():
                write(batch)
        return out.getvalue()


def _guarded(work: Callable[[], T]) -> T:
    """Run a query; errors of DuckDB become errors with its own words."""
    try:
        return work()
    except FlussError:
        raise
    except Exception as error:
        if type(error).__name__ == "InterruptException":
            raise DeadlineExceededError(f"The query was stopped after {SQL_SECONDS_MAX:.0f} s.") from None
        if type(error).__module__.startswith(("duckdb", "_duckdb")):
            raise InvalidArgumentError(str(error)) from None
        raise


def _arrow(relation: DuckDBPyRelation) -> pa.Table:
    # The name changed with DuckDB 1.4.
    read = relation.to_arrow_table if hasattr(relation, "to_arrow_table") else relation.fetch_arrow_table
    return read()
