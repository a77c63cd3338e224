# SPDX-License-Identifier: Apache-2.0
"""SQL over all tables with DuckDB: `db.sql(query)`.

Before a query runs, every name in it that is the name of a table becomes a view of DuckDB over the dataset of that
table (see `fluss.db.dataset`), so DuckDB asks each table for the columns and rows it needs. INSERT and CREATE TABLE AS
write through Fluss; statements that would change a table in another way are refused.
"""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from fluss.client.arguments import wrong_argument
from fluss.db.log_cache import LogCache
from fluss.db.sql_catalog import all_tables, answer, arrow_of, is_before_2, question_of, quoted
from fluss.db.streams import Submit
from fluss.db.suggest import CREATE_HINT, did_you_mean
from fluss.errors import (
    ConnectionClosedError,
    DatabaseNotExistError,
    InvalidArgumentError,
    InvalidRowError,
    MissingDependencyError,
    TableAlreadyExistError,
    TableNotExistError,
)
from fluss.metadata import TableInfo, TablePath

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from fluss.client.core import FlussConnection, FlussTable
    from fluss.db.dataset import FlussDataset
    from fluss.db.table import Table

_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?\*/
    | (?P<text>[eExX]?'(?:[^']|'')*' | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<word>[^\W\d][\w$]*)
    | (?P<other>\d[\w.]* | .)""",
    re.VERBOSE | re.DOTALL,
)
_READS = frozenset({"select", "with", "values", "from", "table", "describe", "summarize", "pivot", "unpivot"})
_MISSING_TABLE = re.compile(r"Table with name (?P<name>.+?) does not exist")

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the loop of the client, and waits for it."""
Chain = tuple[str, ...]
"""A name and the names before its dots: ``("shop", "orders")``."""


class Token(NamedTuple):
    """A piece of a statement that is neither space nor comment."""

    kind: str
    """``word``, ``quoted`` (a name in double quotes), ``text`` or ``other``."""
    text: str
    at: int

    @property
    def word(self) -> str:
        """In lower case if it is a word, else empty."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str | None:
        """The name it stands for, if it can be one."""
        if self.kind == "quoted":
            return self.text[1:-1].replace('""', '"')
        return self.text if self.kind == "word" else None


def tokens_of(query: str) -> list[Token]:
    """The pieces of a statement."""
    return [
        Token(match.lastgroup if match.lastgroup != "tag" else "text", match.group(), match.start())
        for match in _TOKEN.finditer(query)
        if match.lastgroup is not None
    ]


def chains_of(tokens: Sequence[Token]) -> list[Chain]:
    """Everything in a statement that could be the name of a table."""
    found: dict[Chain, None] = {}
    at = 0
    while at < len(tokens):
        chain, at = _chain(tokens, at)
        if chain:
            found[chain] = None
        else:
            at += 1
    return list(found)


def _chain(tokens: Sequence[Token], at: int) -> tuple[Chain, int]:
    """The dotted name that begins at a token, and where it ends; empty if there is none."""
    names: list[str] = []
    while at < len(tokens) and (name := tokens[at].name) is not None:
        names.append(name)
        at += 1
        if at >= len(tokens) or tokens[at].text != ".":
            break
        at += 1
    return tuple(names), at


class SqlCatalog(Protocol):
    """What SQL needs of a database: to find, open and create its tables."""

    @property
    def connection(self) -> FlussConnection: ...

    @property
    def name(self) -> str: ...

    async def table(self, name: TablePath) -> Table[dict[str, Any]]: ...

    async def create_table(self, name: TablePath, source: Any, *, replace: bool) -> Table[dict[str, Any]]: ...


class Tables(NamedTuple):
    """The tables that a query can mean."""

    found: dict[Chain, TableInfo]
    handles: dict[Chain, FlussTable]
    known: list[str]
    """The names of all tables of the default database."""


async def find_tables(database: SqlCatalog, chains: Iterable[Chain]) -> Tables:
    """The tables among names of a query; names are compared without case, as DuckDB does."""
    admin, connection = database.connection.get_admin(), database.connection
    names: dict[str, dict[str, str]] = {}

    async def tables_of(name: str) -> dict[str, str]:
        if name not in names:
            try:
                names[name] = {table.lower(): table for table in await admin.list_tables(name)}
            except DatabaseNotExistError:
                names[name] = {}
        return names[name]

    own = await tables_of(database.name)
    databases: dict[str, str] | None = None
    found: dict[Chain, TableInfo] = {}
    handles: dict[Chain, FlussTable] = {}
    for chain in chains:
        candidates = [(database.name, chain[0], chain[:1])]
        if len(chain) > 1:
            if databases is None:
                databases = {name.lower(): name for name in await admin.list_databases()}
            if chain[0].lower() in databases:
                candidates.append((databases[chain[0].lower()], chain[1], chain[:2]))
        for name, table, key in candidates:
            base, dollar, view = table.lower().partition("$")
            known = await tables_of(name)
            real = known.get(base)
            key = tuple(part.lower() for part in key)
            if real is not None and key not in found:
                try:
                    handles[key] = await connection.get_table(TablePath(name, f"{real}{dollar}{view}"))
                    found[key] = handles[key]._shown_info()
                except TableNotExistError:  # dropped since it was listed
                    continue
    return Tables(found, handles, sorted(own.values()))


class Host(NamedTuple):
    """What SQL needs of the synchronous API."""

    find_tables: Callable[[Iterable[Chain]], Tables]
    dataset: Callable[[FlussTable], FlussDataset]
    write: Callable[[TableInfo, pa.Table], int]
    create: Callable[[TablePath, pa.Table, bool], int]
    """Create a table from data; the last argument says whether one that exists is replaced."""
    default_database: str
    all_tables: Callable[[], dict[str, list[TableInfo]]]


def host_of(core: SqlCatalog, submit: Submit, run: Run, run_offloading: Run) -> Host:
    """What SQL needs of a database.

    Args:
        core: The database, whose coroutines run on the loop of the client.
        submit: Starts a coroutine there.
        run: Runs a coroutine there, and waits for it.
        run_offloading: The same, for coroutines that leave work to the waiting thread.
    """
    cache = LogCache()

    def dataset(handle: FlussTable) -> FlussDataset:
        from fluss.db.dataset import DatasetSource, FlussDataset

        info = handle._shown_info()

        async def count() -> int:
            return await (await core.table(info.table_path)).count()

        # Before 2.0, DuckDB writes comparisons of floating point numbers plainly, and means NaN to be the greatest.
        return FlussDataset(DatasetSource(core.connection, info, submit, count, run, cache, handle), as_sql=True)

    async def write(info: TableInfo, rows: pa.Table) -> int:
        table = await core.table(info.table_path)
        if info.has_primary_key():
            return (await table.upsert(rows, missing="keep")).rows
        return (await table.append(rows)).rows

    async def create(path: TablePath, rows: pa.Table, replace: bool) -> int:
        await core.create_table(path, rows, replace=replace)
        return int(rows.num_rows)

    return Host(
        lambda chains: run(find_tables(core, chains)),
        dataset,
        lambda info, rows: run_offloading(write(info, rows)),
        lambda path, rows, replace: run_offloading(create(path, rows, replace)),
        core.name,
        lambda: run(all_tables(core.connection)),
    )


def engine_on(loop: asyncio.AbstractEventLoop, core: SqlCatalog) -> Engine:
    """An engine for a database whose loop is the caller's own; it has to run in other threads."""

    def submit(coro: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coro, loop)

    def run(coro: Coroutine[Any, Any, Any]) -> Any:
        return submit(coro).result()

    return Engine(host_of(core, submit, run, run))


class Engine:
    """A DuckDB of its own for one database. Threads have connections of their own to it."""

    def __init__(self, host: Host) -> None:
        try:
            import duckdb
        except ImportError:
            raise MissingDependencyError("sql() needs DuckDB: pip install 'fluss-python[sql]'") from None
        self._duckdb = duckdb
        self._host = host
        self._lock = threading.Lock()
        # Data frames of the caller can be named in a query: DuckDB looks for them in the frames that called it.
        self._main: DuckDBPyConnection = duckdb.connect(":memory:", config={"python_scan_all_frames": True})
        self._local = threading.local()
        self._closed = False
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
        """Forget everything. Relations that were given out give no more rows; results that were read stay."""
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
        statements = self._connection.extract_statements(query)
        result = None
        for statement in statements:
            text = self._with_catalog(statement.query)
            tokens = tokens_of(text)
            question = question_of([token.name for token in tokens])
            if question is not None:
                result = self._connection.from_arrow(self._answer(question))
                continue
            chains = chains_of(tokens)
            tables = self._host.find_tables(chains)
            self._forget(chains, tables)
            try:
                result = self._run_one(statement.type.name, text, tokens, tables, parameters)
            except self._duckdb.CatalogException as error:
                missing = _MISSING_TABLE.search(str(error))
                if missing is None:
                    raise
                name = missing["name"].strip('"')
                near = did_you_mean(name, tables.known)
                raise TableNotExistError(
                    f"there is no table {name!r} in {self._host.default_database!r}, nor a data frame so named{near}",
                    hint=None if near else CREATE_HINT,
                ) from error
        if result is None:  # statements such as SET have none
            result = self._connection.sql('select true as "Success"')
        return _keeping(_with_distinct_names(result), self, self._connection)

    def _answer(self, question: str) -> pa.Table:
        return answer(question, self._host.all_tables(), self._host.default_database)

    def _with_catalog(self, text: str) -> str:
        """A statement that reads views of `information_schema` from tables with what they contain."""
        tokens = tokens_of(text)
        for at in range(len(tokens) - 3, -1, -1):
            schema, dot, view = tokens[at : at + 3]
            if (schema.name or "").lower() == "information_schema" and dot.text == "." and view.name:
                name = f"information_schema.{view.name.lower()}"
                self._connection.register(name, self._answer(f"select * from {name}"))
                text = f"{text[: schema.at]}{quoted(name)}{text[view.at + len(view.text) :]}"
        return text

    def run_to_end(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None) -> DuckDBPyRelation:
        """The same, with a result that has its rows already and can be used in any thread."""
        rows = arrow_of(self.run(query, parameters))
        connection = self._main.cursor()
        return _keeping(connection.from_arrow(rows), self, connection)

    def _run_one(
        self, kind: str, text: str, tokens: Sequence[Token], tables: Tables, parameters: Any
    ) -> DuckDBPyRelation | None:
        if kind == "INSERT":
            target = _insert_target(tokens, tables)
            if target is not None:
                return self._insert(text, tokens, target, tables, parameters)
        elif kind == "CREATE" and _creates_table(tokens):
            return self._create(text, tokens, tables, parameters)
        elif kind in _INSTEAD:
            _refuse_change(kind, tokens, tables)
        self._register(tables)
        return self._query(text, parameters)

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
        rows = arrow_of(connection)
        relation = connection.from_arrow(rows.rename_columns([f"c{at}" for at in range(len(columns))]))
        casts = [f"c{at}::{column[1]} as {quoted(column[0])}" for at, column in enumerate(columns)]
        return relation.project(", ".join(casts))

    def _forget(self, chains: Iterable[Chain], tables: Tables) -> None:
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
            dataset = self._host.dataset(tables.handles[chain])
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

    # -- writes -------------------------------------------------------------------------------------------------------

    def _insert(
        self, text: str, tokens: Sequence[Token], target: _Target, tables: Tables, parameters: Any
    ) -> DuckDBPyRelation | None:
        info, at = target
        path = info.table_path
        words = [token.word for token in tokens]
        for index, word in enumerate(words):
            conflict = word == "on" and words[index + 1 : index + 2] == ["conflict"]
            if conflict or word == "returning":
                raise InvalidArgumentError(
                    f"INSERT INTO {path} has no {'ON CONFLICT' if conflict else 'RETURNING'}: rows of a primary-key "
                    "table replace those with the same key"
                )
        columns, at, by_name = _insert_columns(tokens, at, info)
        if at >= len(tokens) or (tokens[at].word not in _READS and tokens[at].text != "("):
            raise InvalidArgumentError(f"INSERT INTO {path} takes VALUES or a query, such as a SELECT")
        self._register(tables)
        relation = self._query(text[tokens[at].at :], parameters)
        assert relation is not None
        rows = _fitted(arrow_of(relation), info, columns, by_name)
        return self._counted(self._host.write(info, rows))

    def _create(self, text: str, tokens: Sequence[Token], tables: Tables, parameters: Any) -> DuckDBPyRelation | None:
        words = [token.word for token in tokens]
        replace = words[1] == "or"
        at = words.index("table") + 1
        exist_ok = words[at : at + 3] == ["if", "not", "exists"]
        chain, at = _chain(tokens, at + 3 * exist_ok)
        if not 1 <= len(chain) <= 2:
            raise InvalidArgumentError("CREATE TABLE needs a name such as orders or shop.orders")
        path = TablePath(chain[0] if len(chain) == 2 else self._host.default_database, chain[-1])
        if at >= len(tokens) or tokens[at].word != "as":
            raise InvalidArgumentError(
                f"CREATE TABLE {path} without AS is not supported: use db.create_table({str(path)!r}, 'id bigint, …', "
                "primary_key=…), which can say more, or CREATE TEMP TABLE for a table of DuckDB"
            )
        exists = tuple(part.lower() for part in chain) in tables.found
        if exists and exist_ok:
            return self._counted(0)
        if exists and not replace:
            raise TableAlreadyExistError(f"table {path} exists already; write CREATE OR REPLACE TABLE to replace it")
        self._register(tables)
        relation = self._query(text[tokens[at + 1].at :], parameters)
        assert relation is not None
        return self._counted(self._host.create(path, arrow_of(relation), replace))

    def _counted(self, rows: int) -> DuckDBPyRelation:
        return self._connection.sql(f'select {rows}::bigint as "Count"')


class _Target(NamedTuple):
    info: TableInfo
    end: int
    """The token after its name."""


def _target(tokens: Sequence[Token], at: int, tables: Tables) -> _Target | None:
    chain, end = _chain(tokens, at)
    info = tables.found.get(tuple(part.lower() for part in chain))
    return None if info is None else _Target(info, end)


def _insert_target(tokens: Sequence[Token], tables: Tables) -> _Target | None:
    """The table of an INSERT, if it is one of Fluss."""
    at = next((index + 1 for index, token in enumerate(tokens) if token.word == "into"), len(tokens))
    target = _target(tokens, at, tables)
    if target is not None and (at != 2 or tokens[0].word != "insert"):
        raise InvalidArgumentError(
            f"begin with INSERT INTO {target.info.table_path}; rows of a primary-key table replace those with their key"
        )
    return target


def _insert_columns(tokens: Sequence[Token], at: int, info: TableInfo) -> tuple[list[str], int, bool]:
    """The columns that an INSERT names (all by default), where its rows begin, and whether rows are matched by name."""
    columns = list(info.schema.column_names)
    if at < len(tokens) and tokens[at].text == "(" and tokens[at + 1].word not in _READS:
        given = []
        at += 1
        while at < len(tokens) and tokens[at].text != ")":
            if tokens[at].text != ",":
                given.append(tokens[at].name or tokens[at].text)
            at += 1
        at += 1
        lower = {name.lower(): name for name in reversed(columns)}
        for name in given:
            if name.lower() not in lower:
                raise InvalidArgumentError(
                    f"table {info.table_path} has no column {name!r}{did_you_mean(name, columns)}"
                )
        columns = [name if name in columns else lower[name.lower()] for name in given]
    by = [token.word for token in tokens[at : at + 2]]
    if by in (["by", "name"], ["by", "position"]):
        return columns, at + 2, by[1] == "name"
    return columns, at, False


def _fitted(rows: pa.Table, info: TableInfo, columns: Sequence[str], by_name: bool) -> pa.Table:
    """The rows of an INSERT in the columns and types of the table."""
    path = info.table_path
    if by_name:
        lower = {name.lower(): name for name in columns}
        unknown = [name for name in rows.column_names if name.lower() not in lower]
        if unknown:
            raise InvalidArgumentError(f"table {path} has no column {unknown[0]!r}{did_you_mean(unknown[0], columns)}")
        columns = [lower[name.lower()] for name in rows.column_names]
    elif rows.num_columns != len(columns):
        raise InvalidArgumentError(
            f"INSERT INTO {path} gives {rows.num_columns} values for {len(columns)} columns: {', '.join(columns)}"
        )
    arrays = []
    for name, column in zip(columns, rows.columns):
        wanted = info.schema.column(name).data_type.to_arrow()
        if column.null_count == len(column):
            arrays.append(pa.nulls(len(column), wanted))  # NULL alone is an integer to DuckDB, which cannot be a date
            continue
        try:
            arrays.append(column if column.type == wanted else column.cast(wanted))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidRowError(f"INSERT INTO {path}, column {name!r} of type {wanted}: {error}") from None
    return pa.table(dict(zip(columns, arrays)))


def _creates_table(tokens: Sequence[Token]) -> bool:
    """Whether a CREATE makes a table that would stay: not a temporary one, a view or anything else of DuckDB."""
    words = [token.word for token in tokens]
    return words[1:2] == ["table"] or words[1:4] == ["or", "replace", "table"]


_INSTEAD = {
    "UPDATE": "db.table({!r}).update(key, column=value)",
    "DELETE": "db.table({!r}).delete(keys) or delete(where=…)",
    "MERGE_INTO": "db.table({!r}).upsert(rows)",
    "COPY": "db.table({!r}).append(rows) or upsert(rows)",
    "ALTER": "db.table({!r}).add_column(name, type) or set_properties({{…}})",
    "DROP": "db.drop_table({!r})",
}
"""Kinds of statements that change a table, and how to do it without SQL."""
_BEFORE_TARGET = frozenset(
    {"update", "delete", "truncate", "merge", "copy", "alter", "drop", "from", "into", "table", "if", "exists", "view"}
)


def _refuse_change(kind: str, tokens: Sequence[Token], tables: Tables) -> None:
    """Fail if a statement would change a table of Fluss in a way that SQL cannot do here."""
    verbs = {kind.split("_")[0].lower(), "truncate" if kind == "DELETE" else ""}
    at = next((index for index, token in enumerate(tokens) if token.word in verbs), len(tokens))
    while at < len(tokens) and tokens[at].word in _BEFORE_TARGET:
        at += 1
    target = _target(tokens, at, tables)
    if target is None:
        return
    if kind == "COPY" and "from" not in (token.word for token in tokens[target.end : target.end + 1]):
        return  # a table that is copied to a file
    path = target.info.table_path
    statement = kind.split("_")[0]
    raise InvalidArgumentError(
        f"{statement} of table {path} is not supported in SQL: use {_INSTEAD[kind].format(str(path))}"
    )


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
