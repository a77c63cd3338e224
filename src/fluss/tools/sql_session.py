# SPDX-License-Identifier: Apache-2.0
"""SQL for a shell: statements one by one, results batch by batch, completion of names."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from fluss.db.internals import sql_connection
from fluss.db.profiles import config_dir
from fluss.db.sql_text import statements_of, tokens_of
from fluss.errors import FlussError, InvalidArgumentError

if TYPE_CHECKING:
    from fluss.db.blocking import Database

_KEYWORDS = (
    "select", "from", "where", "group by", "order by", "limit", "join", "on", "using", "insert into", "create table",
    "update", "set", "delete from", "alter table", "drop table", "explain",
    "with", "having", "count(*)", "sum(", "avg(", "min(", "max(", "distinct", "between", "like", "is null", "desc",
)  # fmt: skip
_CHANGES = {
    **dict.fromkeys(
        ("insert", "create", "alter", "drop", "set", "reset", "use", "load", "install", "pragma"), "written"
    ),
    "update": "updated",
    "delete": "deleted",
    "truncate": "deleted",
}
"""Words that begin statements without rows to show, and what becomes of the rows that they count."""
_NAMES_FRESH_S = 5.0
_TABLES_ASKED = 50
_INTERRUPT_S = 10.0

T = TypeVar("T")


def history_file() -> Path:
    """Where the shell keeps what was typed."""
    return config_dir() / "sql_history"


class _Worker:
    """Runs queries in a thread of its own, so that Ctrl-C ends them.

    DuckDB works in the thread that asks for rows, and looks for signals there only between two pieces of work: a
    Ctrl-C in the middle of a large one waited for its end, and then came as a RuntimeError.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._pool = ThreadPoolExecutor(1, "fluss-sql")

    def run(self, work: Callable[[], T]) -> T:
        result = self._pool.submit(work)
        try:
            return result.result()
        except (pa.ArrowException, OSError) as error:  # of rows that are read: DuckDB's own errors are of its classes
            raise InvalidArgumentError(str(error).split("\n\n")[0]) from None
        except KeyboardInterrupt:
            self._interrupt()
            wait([result], _INTERRUPT_S)  # until the query has let go of its tables
            raise


class Answer:
    """The result of one statement."""

    def __init__(self, relation: Any, change: str | None, started: float, worker: _Worker) -> None:
        self._started = started
        self._worker = worker
        self.is_rows = change is None
        """Whether it is rows to show, and not the account of a statement that changed something."""
        self.rows = 0
        self.seconds = 0.0
        self._reader = worker.run(relation.to_arrow_reader)
        self.schema: pa.Schema = self._reader.schema
        self.summary = "done"
        if change is not None:
            found = worker.run(self._reader.read_all).to_pylist()
            counts = [value for row in found for value in row.values() if type(value) is int]
            if counts:
                self.rows = counts[0]
                self.summary = f"{counts[0]:,} row{'' if counts[0] == 1 else 's'} {change}"
            self.seconds = time.perf_counter() - started

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; afterwards `rows` and `seconds` are known."""
        while (batch := self._worker.run(lambda: next(self._reader, None))) is not None:
            self.rows += batch.num_rows
            yield batch
        self.seconds = time.perf_counter() - self._started


class SqlSession:
    """Runs SQL over the tables of a database.

    Example:
        answer = SqlSession(db).run("select count(*) from orders")
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        # The connection of DuckDB is one for each thread: this one makes the relations.
        self._worker = _Worker(lambda: sql_connection(db).interrupt())
        self._names: tuple[float, list[str]] = (0.0, [])
        self._columns: dict[str, list[str]] = {}

    def statements(self, text: str) -> list[str]:
        """The statements of a text, without empty ones."""
        statements = statements_of(text)
        if not statements:
            raise InvalidArgumentError('there is no statement; write one such as "select * from orders"')
        return statements

    def is_complete(self, text: str) -> bool:
        """Whether the last statement ends with a semicolon."""
        tokens = tokens_of(text)
        return bool(tokens) and tokens[-1].text == ";"

    def run(self, statement: str) -> Answer:
        """Run one statement."""
        started = time.perf_counter()
        tokens = tokens_of(statement)
        first = tokens[0].word if tokens else ""
        relation = self._db.sql(statement)
        return Answer(relation, _CHANGES.get(first), started, self._worker)

    def table_names(self) -> list[str]:
        """The tables of the database."""
        at, names = self._names
        if time.monotonic() - at > _NAMES_FRESH_S:
            with contextlib.suppress(FlussError):
                names = sorted(self._db.tables())
            self._names = time.monotonic(), names
        return names

    def completions(self, prefix: str, line: str) -> list[str]:
        """What a word can become: columns of the tables of the line, tables, keywords."""
        tables = self.table_names()
        if prefix.startswith("."):
            return [
                word
                for word in (".tables", ".schema", ".timing", ".watch", ".help", ".quit")
                if word.startswith(prefix)
            ]
        tokens = tokens_of(line.removesuffix(prefix))
        if tokens and tokens[-1].word in ("from", "join", "into", "table", "describe"):
            return [table for table in tables if table.lower().startswith(prefix.lower())]
        used = [table for table in tables if table in {token.name for token in tokens_of(line)}]
        columns = [column for table in used or tables[:_TABLES_ASKED] for column in self._columns_of(table)]
        every = dict.fromkeys([*columns, *tables, *_KEYWORDS])
        return [word for word in every if word.lower().startswith(prefix.lower())]

    def _columns_of(self, table: str) -> list[str]:
        if table not in self._columns:
            with contextlib.suppress(FlussError):
                self._columns[table] = self._db.table(table).columns
        return self._columns.get(table, [])
