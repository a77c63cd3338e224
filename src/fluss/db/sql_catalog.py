# SPDX-License-Identifier: Apache-2.0
"""What SQL can ask about the tables themselves: `show tables`, `describe`, `information_schema`.

DuckDB knows the tables that earlier queries named, under names of its own. Questions about the catalog are answered by
a second DuckDB instead, which has all tables of the server, without rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.errors import DatabaseNotExistError, TableNotExistError
from fluss.metadata import TableInfo, TablePath

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from fluss.client.core import FlussConnection

_TABLES_AT_ONCE = 16
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
    if names[-1:] == [None]:  # a semicolon, or nothing that fits
        names = names[:-1]
    words = tuple(name and name.lower() for name in names)
    if words[:3] == ("show", "tables", "from") and len(words) == 4 and names[3]:
        return f"show tables from fluss.{quoted(names[3])}"
    return _QUESTIONS.get(words)


async def all_tables(connection: FlussConnection) -> dict[str, list[TableInfo]]:
    """All databases of the server with their tables."""
    admin = connection.get_admin()
    limit = asyncio.Semaphore(_TABLES_AT_ONCE)

    async def one(path: TablePath) -> TableInfo | None:
        async with limit:
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
        found[database] = [info for info in await asyncio.gather(*map(one, paths)) if info is not None]
    return found


def answer(question: str, databases: Mapping[str, Sequence[TableInfo]], default_database: str) -> pa.Table:
    """The result of a query of the catalog, over tables without rows."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1}) as catalog:
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
        return arrow_of(catalog.sql(question))


def arrow_of(relation: DuckDBPyRelation | DuckDBPyConnection) -> pa.Table:
    """The rows of a relation, or of what a connection executed."""
    # The name changed with DuckDB 1.4.
    read = relation.to_arrow_table if hasattr(relation, "to_arrow_table") else relation.fetch_arrow_table
    return read()


def arrow_result(connection: DuckDBPyConnection, query: str, params: Any) -> pa.Table:
    """The rows of a query with parameters.

    Before 2.0, `sql()` of DuckDB waits for its threads with the interpreter lock held when there are parameters, and
    they wait for the lock to release the rows they have read. `execute()` gives it away.
    """
    if is_before_2():
        return arrow_of(connection.execute(query, params))
    return arrow_of(connection.sql(query, params=params))


def is_before_2() -> bool:
    """Whether the DuckDB that is installed is older than 2.0."""
    import duckdb

    return bool(duckdb.__version__.startswith("1."))


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
