# SPDX-License-Identifier: Apache-2.0
"""SQL over all tables with DuckDB: `db.sql(query)`.

Before a query runs, every name in it that is the name of a table becomes a view of DuckDB over the dataset of that
table (see `fluss.db.dataset`), so DuckDB asks each table for the columns and rows it needs. Statements that change
tables are done by Fluss, see `fluss.db.sql_changes`.
"""

from __future__ import annotations

import functools
import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss._lazy import import_extra
from fluss._text import did_you_mean
from fluss.client.arguments import wrong_argument
from fluss.db.duckdb_setup import is_before_2
from fluss.db.log_cache import LogCache
from fluss.db.read_ahead import Submit
from fluss.db.sql_catalog import SqlCatalog, Tables, all_tables, answer, find_tables, question_of
from fluss.db.sql_changes import CHANGES, change_of, definition_of, explained_at
from fluss.db.sql_text import Chain, Token, chain_at, chains_of, quoted, statements_of, text_of, tokens_of
from fluss.db.suggest import CREATE_HINT
from fluss.errors import ConnectionClosedError, InvalidArgumentError, TableNotExistError
from fluss.metadata import TablePath

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from fluss.client.connection import FlussTable
    from fluss.db.dataset import FlussDataset

_MISSING_TABLE = re.compile(r"Table with name (?P<name>.+?) does not exist")

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the loop of the client, and waits for it."""


class Engine:
    """A DuckDB of its own for one database. Threads have connections of their own to it."""

    def __init__(self, core: SqlCatalog, submit: Submit, run: Run) -> None:
        """Make an engine.

        Args:
            core: The database, whose coroutines run on the loop of the client.
            submit: Starts a coroutine there.
            run: Runs a coroutine there, and waits for it.
        """
        self._duckdb = import_extra("duckdb", "sql() needs DuckDB", "sql")
        self._core = core
        self._submit = submit
        self._wait_for = run
        self._cache = LogCache()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """One statement of this database at a time reads rows and writes them: `set n = n + 1` counts each time."""
        # Data frames of the caller can be named in a query: DuckDB looks for them in the frames that called it.
        self._main: DuckDBPyConnection = self._duckdb.connect(":memory:", config={"python_scan_all_frames": True})
        self._local = threading.local()
        self._closed = False
        self._has_bitmap_functions = False
        self._views: dict[Chain, pa.Schema] = {}
        """The views of tables of other databases, which all threads share."""

    @property
    def _connection(self) -> DuckDBPyConnection:
        connection: DuckDBPyConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._main.cursor()
        return connection

    @property
    def _registered(self) -> dict[Chain, tuple[str, int, int]]:
        """The tables that the connection of this thread knows: their names there, their ids and schema ids."""
        registered: dict[Chain, tuple[str, int, int]] | None = getattr(self._local, "registered", None)
        if registered is None:
            registered = self._local.registered = {}
        return registered

    def close(self) -> None:
        """Drop what is kept. Relations that were given out give no more rows; results that were read stay."""
        self._closed = True
        self._main.close()
        self._local = threading.local()

    def run(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None) -> DuckDBPyRelation:
        """Run one or more statements; the result is that of the last one."""
        if self._closed:
            raise ConnectionClosedError("The database is closed; connect again to run SQL")
        if not isinstance(query, str) or not query.strip():
            raise wrong_argument("sql", "query", 'a statement such as "select * from orders"', query)
        if parameters is not None and (
            isinstance(parameters, (str, bytes)) or not isinstance(parameters, (Sequence, Mapping))
        ):
            raise wrong_argument(
                "sql", "parameters", "a list of values for ? or a dict of values for $name", parameters
            )
        if "rb_" in query.lower():
            self._add_bitmap_functions()
        result = None
        for kind, statement in self._statements(query):
            text = self._with_catalog(statement)
            tokens = tokens_of(text)
            question = question_of([token.name for token in tokens])
            if question is not None:
                result = self._connection.from_arrow(self._answer(question))
                continue
            chains = chains_of(tokens)
            tables = self._wait_for(find_tables(self._core, chains))
            self._evict(chains, tables)
            try:
                result = self._run_one(kind, text, tokens, tables, parameters)
            except self._duckdb.CatalogException as error:
                missing = _MISSING_TABLE.search(str(error))
                if missing is None:
                    raise
                name = missing["name"].strip('"')
                near = did_you_mean(name, tables.known)
                raise TableNotExistError(
                    f"there is no table {name!r} in {self._core.name!r}, nor a data frame so named{near}",
                    hint=None if near else CREATE_HINT,
                ) from error
        if result is None:  # statements such as SET have none
            result = self._connection.sql('select true as "Success"')
        return _keeping(_with_distinct_names(result), self, self._connection)

    def _statements(self, query: str) -> list[tuple[str, str]]:
        """The statements of a text, with their kinds as DuckDB calls them."""
        found = [(self._connection.extract_statements(one), one) for one in statements_of(query)]
        if sum(len(parsed) for parsed, _ in found) != len(self._connection.extract_statements(query)):
            # What DuckDB takes for a text, a name or a comment must never run.
            raise InvalidArgumentError("it is not clear where the statements of this text end: run them one by one")
        # Before 2.0, DuckDB makes two statements of PIVOT: the last one is what it is.
        return [(parsed[-1].type.name, one) for parsed, one in found]

    def _add_bitmap_functions(self) -> None:
        from fluss.db.sql_bitmaps import add_bitmap_functions

        with self._lock:
            if not self._has_bitmap_functions:
                add_bitmap_functions(self._main)
                self._has_bitmap_functions = True

    def _answer(self, question: str) -> pa.Table:
        return answer(question, self._wait_for(all_tables(self._core.connection)), self._core.name)

    def _with_catalog(self, text: str) -> str:
        """A statement that reads views of `information_schema` from tables with what they contain."""
        tokens = tokens_of(text)
        for at in range(len(tokens) - 3, -1, -1):
            schema, dot, view = tokens[at : at + 3]
            if (schema.name or "").lower() == "information_schema" and dot.text == "." and view.name:
                name = f"information_schema.{view.name.lower()}"
                rows = self._answer(f"select * from information_schema.{quoted(view.name.lower())}")
                self._connection.register(name, rows)
                text = f"{text[: schema.at]}{quoted(name)}{text[view.at + len(view.text) :]}"
        return text

    def run_to_end(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None) -> DuckDBPyRelation:
        """The same, with a result that has its rows already and can be used in any thread."""
        rows = self.run(query, parameters).to_arrow_table()
        connection = self._main.cursor()
        return _keeping(connection.from_arrow(rows), self, connection)

    def _run_one(
        self, kind: str, text: str, tokens: Sequence[Token], tables: Tables, parameters: Any
    ) -> DuckDBPyRelation | None:
        self._register(tables)
        if kind == "EXPLAIN":
            return self._query(self._explained(text, tokens, tables), parameters)
        counted = _counted_table(tokens, tables)
        if counted is not None:
            path, name = counted
            return self._number(self._wait_for(_count(self._core, path)), name)
        change = change_of(kind, text, tokens, tables)
        if change is not None:
            with self._writing:
                rows = change.fitted(self._connection, self._rows(change.query, parameters))
                return self._number(self._wait_for(change.write(self._core, rows)), "Count")
        work = definition_of(
            kind,
            text,
            tokens,
            tables,
            self._core.name,
            lambda query: self._rows(query, parameters).to_arrow_table(),
        )
        if work is None:
            return self._query(text, parameters)
        written = self._wait_for(work(self._core))
        return None if written is None else self._number(written, "Count")

    def _explained(self, text: str, tokens: Sequence[Token], tables: Tables) -> str:
        """An EXPLAIN that shows how the rows of a change are found."""
        at = explained_at(tokens)
        if tokens[at].word in CHANGES or tokens[at].word == "with":
            inner = text_of(text, tokens[at:])
            [statement] = self._connection.extract_statements(inner)
            change = change_of(statement.type.name, inner, tokens_of(inner), tables)
            if change is not None:
                if "analyze" in (token.word for token in tokens[:at]):
                    raise InvalidArgumentError("EXPLAIN ANALYZE would change the table: use EXPLAIN")
                return f"explain {change.query}"
        return text

    def _rows(self, query: str, parameters: Any) -> DuckDBPyRelation:
        relation = self._query(query, parameters)
        assert relation is not None
        return relation

    def _query(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] | None) -> DuckDBPyRelation | None:
        if parameters is None:
            return self._connection.sql(text)
        if is_before_2():
            return self._executed(text, parameters)
        return self._connection.sql(text, params=parameters)

    def _executed(self, text: str, parameters: Sequence[Any] | Mapping[str, Any]) -> DuckDBPyRelation | None:
        """Run a statement with parameters to its end, as `arrow_result` does."""
        connection = self._connection
        connection.execute(text, parameters)
        columns = connection.description
        if not columns:
            return None
        # Arrow has no HUGEINT, UUID and so on, and DuckDB reads no Arrow table with two columns of one name.
        rows = connection.to_arrow_table()
        relation = connection.from_arrow(rows.rename_columns([f"c{at}" for at in range(len(columns))]))
        casts = [f"c{at}::{column[1]} as {quoted(column[0])}" for at, column in enumerate(columns)]
        return relation.project(", ".join(casts))

    def _evict(self, chains: Iterable[Chain], tables: Tables) -> None:
        """Take back the views of tables that exist no longer: of the default database, and those that are named."""
        registered = self._registered
        known = {name.lower() for name in tables.known}
        for gone in [key for key in registered if len(key) == 1 and key[0].partition("$")[0] not in known]:
            self._connection.unregister(registered.pop(gone)[0])
        for chain in chains:
            for length in (1, 2):
                key = tuple(part.lower() for part in chain[:length])
                if key not in tables.found and key in registered:
                    self._connection.unregister(registered.pop(key)[0])
                    if length == 2:
                        with self._lock:
                            self._views.pop(key, None)
                            self._connection.execute(f"drop view if exists {'.'.join(map(quoted, key))}")

    def _register(self, tables: Tables) -> None:
        """Make the tables known to DuckDB: with the columns they have now. Rows are read when they are asked for."""
        connection = self._connection
        for chain, info in tables.found.items():
            name = info.table_path.table_name if len(chain) == 1 else f"fluss {info.table_path}"
            state = (name, info.table_id, info.schema_id)
            if self._registered.get(chain) == state:
                continue  # the dataset reads the table anew each time
            dataset = self._dataset(tables.handles[chain])
            connection.register(name, dataset)
            self._registered[chain] = state
            if len(chain) == 1:
                continue
            with self._lock:
                if self._views.get(chain) == dataset.schema:
                    continue
                schema, view = (quoted(part) for part in (info.table_path.database_name, info.table_path.table_name))
                connection.execute(f"create schema if not exists {schema}")
                connection.execute(f"create or replace view {schema}.{view} as select * from {quoted(name)}")
                self._views[chain] = dataset.schema

    def _dataset(self, handle: FlussTable) -> FlussDataset:
        from fluss.db.dataset import DatasetSource, FlussDataset

        info = handle._shown_info()
        # It must not refer to this engine: the garbage collector does not see what DuckDB holds.
        count = functools.partial(_count, self._core, info.table_path)
        source = DatasetSource(self._core.connection, info, self._submit, count, self._wait_for, self._cache, handle)
        # Before 2.0, DuckDB writes comparisons of floating point numbers plainly, and means NaN to be the greatest.
        return FlussDataset(source, as_sql=True)

    def _number(self, number: int, name: str) -> DuckDBPyRelation:
        return self._connection.sql(f"select {number}::bigint as {quoted(name)}")


def _counted_table(tokens: Sequence[Token], tables: Tables) -> tuple[TablePath, str] | None:
    """The table of ``select count(*) from table``, whose rows need not be read, and the name of the result."""
    if [token.text.lower() for token in tokens[:5]] != ["select", "count", "(", "*", ")"]:
        return None
    at, name = 5, "count_star()"
    if len(tokens) > 7 and tokens[5].word == "as":
        at, name = 7, tokens[6].name or name
    chain, end = chain_at(tokens, at + 1)
    info = tables.found.get(tuple(part.lower() for part in chain))
    if info is None or end != len(tokens) or tokens[at].word != "from":
        return None
    return info.table_path, name


async def _count(core: SqlCatalog, path: TablePath) -> int:
    return await (await core.table(path)).count()


def _with_distinct_names(relation: DuckDBPyRelation) -> DuckDBPyRelation:
    """Number columns that have the same name, as DuckDB does in data frames: id, id_1."""
    names: list[str] = []
    taken = {name.lower() for name in relation.columns}
    seen: set[str] = set()
    for column in relation.columns:
        name, number = column, 0
        while name.lower() in seen or (number and name.lower() in taken):
            number += 1
            name = f"{column}_{number}"
        seen.add(name.lower())
        names.append(name)
    if names == relation.columns:
        return relation
    return relation.project(", ".join(f"#{at} as {quoted(name)}" for at, name in enumerate(names, 1)))


def _keeping(relation: DuckDBPyRelation, *owners: object) -> DuckDBPyRelation:
    """Keep what a relation reads from for as long as it is in use. Before 2.0, DuckDB does not."""
    weakref.finalize(relation, lambda *_: None, *owners).atexit = False
    return relation
