# SPDX-License-Identifier: Apache-2.0
"""What SQL can ask about the tables themselves: `show tables`, `describe`, `information_schema`.

DuckDB knows the tables that earlier queries named, under names of its own. Questions about the catalog are answered by
a second DuckDB instead, which has all tables of the server, without rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from fluss.client.fanout import run_all
from fluss.db.duckdb_setup import scratch_duckdb
from fluss.db.sql_text import Chain, quoted
from fluss.errors import DatabaseNotExistError, InvalidArgumentError, TableNotExistError
from fluss.metadata import TableInfo, TablePath

if TYPE_CHECKING:
    from fluss.client.connection import FlussConnection, FlussTable
    from fluss.db.table import Table

_QUESTIONS: dict[tuple[str | None, ...], str] = {
    ("show", "tables"): "show tables",
    ("show", "all", "tables"): "show all tables",
    ("show",): "show all tables",
    ("describe",): "show all tables",
    ("show", "databases"): "select schema_name as database_name from information_schema.schemata "
    "where catalog_name = 'fluss' and schema_name <> 'main' order by 1",
}  # fmt: skip
_QUESTIONS["show", "schemas"] = _QUESTIONS["show", "databases"]


def question_of(names: Sequence[str | None]) -> str | None:
    """The query that answers a statement about the catalog; None if the statement is something else.

    Args:
        names: The names and words of the statement; None for everything else in it.
    """
    words = tuple(name and name.lower() for name in names)
    if words[:3] == ("show", "tables", "from") and len(words) == 4 and names[3]:
        return f"show tables from fluss.{quoted(names[3])}"
    return _QUESTIONS.get(words)


class SqlCatalog(Protocol):
    """What SQL needs of a database: to find, open and create its tables."""

    @property
    def connection(self) -> FlussConnection: ...

    @property
    def name(self) -> str: ...

    async def table(self, name: TablePath) -> Table[dict[str, Any]]: ...

    @property
    def create_table(self) -> Callable[..., Coroutine[Any, Any, Table[Any]]]: ...

    async def drop_table(self, name: TablePath) -> None: ...

    async def create_database(self, name: str, *, exist_ok: bool) -> None: ...

    async def drop_database(self, name: str, *, missing_ok: bool, cascade: bool) -> None: ...


class Tables(NamedTuple):
    """The tables that a query can mean."""

    found: dict[Chain, TableInfo]
    handles: dict[Chain, FlussTable]
    known: list[str]
    """The names of all tables of the default database."""
    databases: dict[str, str]
    """The databases that names with a dot begin with, by their names in lower case."""


class _Names(dict[str, list[str]]):
    """Names by what they are in lower case: DuckDB compares names without case, Fluss does not."""

    def __init__(self, names: Iterable[str]) -> None:
        for name in names:
            self.setdefault(name.lower(), []).append(name)

    def meant(self, name: str) -> str | None:
        """The only one of these names that a name of SQL can mean, if there is one."""
        found = self.get(name.lower(), [])
        if len(found) > 1:
            raise InvalidArgumentError(
                f"SQL compares names without case and cannot tell {' from '.join(map(repr, found))}. Use db.table(…)"
            )
        return found[0] if found else None


async def find_tables(database: SqlCatalog, chains: Iterable[Chain]) -> Tables:
    """The tables among names of a query; names are compared without case, as DuckDB does."""
    admin, connection = database.connection.get_admin(), database.connection
    names: dict[str, _Names] = {}

    async def tables_of(name: str) -> _Names:
        if name not in names:
            try:
                names[name] = _Names(await admin.list_tables(name))
            except DatabaseNotExistError:
                names[name] = _Names(())
        return names[name]

    own = await tables_of(database.name)
    all_databases: _Names | None = None
    databases: dict[str, str] = {}
    found: dict[Chain, TableInfo] = {}
    handles: dict[Chain, FlussTable] = {}
    for chain in chains:
        candidates = [(database.name, chain[0], chain[:1])]
        if len(chain) > 1:
            if all_databases is None:
                all_databases = _Names(await admin.list_databases())
            if (other := all_databases.meant(chain[0])) is not None:
                databases[other.lower()] = other
                candidates.append((other, chain[1], chain[:2]))
        for name, table, key in candidates:
            base, dollar, view = table.lower().partition("$")
            real = (await tables_of(name)).meant(base)
            key = tuple(part.lower() for part in key)
            if real is not None and key not in found:
                try:
                    handles[key] = await connection.get_table(TablePath(name, f"{real}{dollar}{view}"))
                    found[key] = handles[key]._shown_info()
                except TableNotExistError:  # dropped since it was listed
                    continue
    return Tables(found, handles, sorted(itertools.chain.from_iterable(own.values())), databases)


async def database_meant(catalog: SqlCatalog, name: str) -> str:
    """The database that a name of SQL means: this very one, else one that differs in case, else the name itself."""
    names = await catalog.connection.get_admin().list_databases()
    return name if name in names else _Names(names).meant(name) or name


async def all_tables(connection: FlussConnection) -> dict[str, list[TableInfo]]:
    """All databases of the server with their tables."""
    admin = connection.get_admin()

    async def one(path: TablePath) -> TableInfo | None:
        try:
            return await admin.get_table_info(path)
        except TableNotExistError:  # dropped since it was listed
            return None

    found = {}
    for database in await admin.list_databases():
        try:
            paths = [TablePath(database, name) for name in await admin.list_tables(database)]
        except DatabaseNotExistError:  # dropped since it was listed
            continue
        infos = await run_all(functools.partial(one, path) for path in paths)
        found[database] = [info for info in infos if info is not None]
    return found


def answer(question: str, databases: Mapping[str, Sequence[TableInfo]], default_database: str) -> pa.Table:
    """The result of a query of the catalog, over tables without rows."""
    with scratch_duckdb() as catalog:
        catalog.execute("attach ':memory:' as fluss")
        for database, tables in {default_database: (), **databases}.items():
            schema = f"fluss.{quoted(database)}"
            catalog.execute(f"create schema if not exists {schema}")
            for info in tables:
                catalog.register("empty", info.schema.arrow_schema.empty_table())
                # DuckDB compares names without case: of two tables that differ in nothing else, the first is shown.
                name = f"{schema}.{quoted(info.table_path.table_name)}"
                catalog.execute(f"create table if not exists {name} as select * from temp.empty")
        catalog.execute("drop view if exists temp.empty")
        catalog.execute(f"use fluss.{quoted(default_database)}")
        return catalog.sql(question).to_arrow_table()
