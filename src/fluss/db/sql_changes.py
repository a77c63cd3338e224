# SPDX-License-Identifier: Apache-2.0
"""SQL statements that change tables: INSERT, UPDATE and DELETE as a query and a write, CREATE, ALTER and DROP.

DuckDB never holds the rows of a table. `change_of` reads from a statement the query whose rows are to be written or
deleted, which DuckDB runs as any other query; `definition_of` reads what a statement does to the tables themselves.
Both give None for statements about DuckDB's own temporary tables.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from fluss._text import did_you_mean
from fluss.db.bulk_write import BulkWrite
from fluss.db.duckdb_setup import is_before_2, scratch_duckdb
from fluss.db.keys import check_rules
from fluss.db.sql_catalog import SqlCatalog, Tables, database_meant
from fluss.db.sql_text import Chain, Token, chain_at, closing, find_word, quoted, split_commas, text_of
from fluss.errors import InvalidArgumentError, InvalidRowError, TableAlreadyExistError
from fluss.metadata import TableInfo, TablePath

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

READS = frozenset({"select", "with", "values", "from", "table", "describe", "summarize", "pivot", "unpivot"})
CHANGES = frozenset({"insert", "update", "delete", "truncate"})
"""Words that begin statements that change rows."""
_LAYOUT = {"primary.key": "primary_key", "bucket.key": "bucket_key", "bucket.num": "buckets"}
"""Options of CREATE TABLE that are no table properties: their names in Spark SQL, and as arguments here."""
_INSTEAD = {"MERGE_INTO": "db.table({!r}).upsert(rows)", "COPY": "db.table({!r}).append(rows) or upsert(rows)"}
"""Statements that SQL does not have here, and how to do it without SQL."""
_REFUSED = {
    "TRANSACTION": "Fluss has no transactions: each statement is durable when it returns. Leave out BEGIN, COMMIT and "
    "ROLLBACK",
    "EXPORT": "EXPORT DATABASE would write DuckDB's own tables, and none of Fluss: write a table with COPY orders TO "
    "'orders.parquet', all of them with fluss backup",
}
"""Statements that DuckDB would do for its own tables only, while they seem to work for those of Fluss."""
_BEFORE_TARGET = frozenset({"merge", "copy", "into"})
_BEFORE_VIEW = frozenset({"or", "replace", "temp", "temporary", "local", "recursive"})

Work = Callable[[SqlCatalog], Coroutine[Any, Any, int | None]]
"""What to do with the database; its result is the number of rows, if it is about rows."""
RunQuery = Callable[[str], pa.Table]


class _Statement(NamedTuple):
    """A statement that DuckDB has parsed."""

    text: str
    tokens: Sequence[Token]
    tables: Tables

    def part(self, start: int, end: int) -> str:
        """What stands between two tokens."""
        return text_of(self.text, self.tokens[start:end])

    def words(self, start: int, count: int) -> list[str]:
        return [token.word for token in self.tokens[start : start + count]]

    def table_at(self, at: int) -> tuple[TableInfo | None, Chain, int]:
        """The table that is named at a token if it is one of Fluss, its name, and the token after it."""
        chain, end = chain_at(self.tokens, at)
        return self.tables.found.get(tuple(part.lower() for part in chain)), chain, end


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SqlChange:
    """Rows that a statement writes or deletes."""

    verb: str
    info: TableInfo
    columns: Sequence[str]
    """The columns that its rows have."""
    query: str
    """The query that gives the rows."""
    by_name: bool = False
    """Whether the columns of the query are matched by their names."""

    def fitted(self, connection: DuckDBPyConnection, relation: DuckDBPyRelation) -> pa.Table:
        """The rows of the query in the columns and types of the table, cast as DuckDB does."""
        path, columns = self.info.table_path, list(self.columns)
        if self.by_name:
            columns = [_column(name, self.info) for name in relation.columns]
        elif len(relation.columns) != len(columns):
            raise InvalidArgumentError(
                f"{self.verb} {path} gives {len(relation.columns)} values for {len(columns)} columns: "
                f"{', '.join(columns)}"
            )
        schema = pa.schema([self.info.schema.arrow_schema.field(name) for name in columns])
        fine = [one.name for one in schema if pa.types.is_timestamp(one.type) and one.type.unit == "ns" and one.type.tz]
        if fine and is_before_2() and self.verb != "INSERT INTO":  # keys that were read would be written as others
            raise InvalidArgumentError(
                f"{self.verb} {path} cannot be done: column {fine[0]!r} has times with a zone in nanoseconds, of which "
                "DuckDB before 2.0 has microseconds. Install DuckDB 2.0"
            )
        own = connection.from_arrow(schema.empty_table().rename_columns([f"c{at}" for at in range(len(columns))]))
        casts = ", ".join(f"#{at}::{kind} as c{at}" for at, kind in enumerate(own.types, 1))
        import duckdb

        try:
            rows = relation.project(casts).to_arrow_table()
            # DuckDB has fewer types than Fluss, such as no CHAR, and microseconds of times with a zone.
            return pa.table([column.cast(field.type) for column, field in zip(rows.columns, schema)], schema.names)
        except (duckdb.ConversionException, duckdb.OutOfRangeException, pa.ArrowInvalid) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidRowError(f"{self.verb} {path}, columns {', '.join(columns)}: {reason}") from None

    async def write(self, database: SqlCatalog, rows: pa.Table) -> int:
        """Write or delete the rows; the number of them."""
        table = await database.table(self.info.table_path)
        if self.verb.startswith("DELETE"):
            return (await BulkWrite(table._sink("delete"), False).run(rows)).rows
        if self.info.has_primary_key():
            return (await table.upsert(rows, missing="keep")).rows
        return (await table.append(rows)).rows


def explained_at(tokens: Sequence[Token]) -> int:
    """The position of the statement that an EXPLAIN is about, after its options."""
    at = 1 + (tokens[1].word == "analyze")
    if tokens[at].text == "(" and tokens[at + 1].text != "(" and tokens[at + 1].word not in READS:
        at = closing(tokens, at) + 1
    return at


def change_of(kind: str, text: str, tokens: Sequence[Token], tables: Tables) -> SqlChange | None:
    """The rows that an INSERT, UPDATE or DELETE of a table writes or deletes."""
    make = {"INSERT": _insert, "UPDATE": _update, "DELETE": _delete}.get(kind)
    return None if make is None else make(_Statement(text, tokens, tables))


def _insert(statement: _Statement) -> SqlChange | None:
    text, tokens, _ = statement
    start = find_word(tokens, {"insert"})
    into = find_word(tokens, {"into"}, start)
    info, _, at = statement.table_at(into + 1)
    if info is None:
        return None
    path = info.table_path
    if into > start + 1 and statement.words(start + 1, 2) != ["or", "replace"]:
        raise InvalidArgumentError(
            f"write INSERT INTO {path}: rows of a primary-key table replace those with the same key"
        )
    words = [token.word for token in tokens]
    for index, word in enumerate(words):
        conflict = word == "on" and words[index + 1 : index + 2] == ["conflict"]
        if conflict or word == "returning":
            raise InvalidArgumentError(
                f"INSERT INTO {path} has no {'ON CONFLICT' if conflict else 'RETURNING'}: rows of a primary-key "
                "table replace those with the same key"
            )
    columns = list(info.schema.column_names)
    if at < len(tokens) and tokens[at].text == "(" and tokens[at + 1].word not in READS:
        end = closing(tokens, at)
        columns = [_column(part[0].name or part[0].text, info) for part in split_commas(tokens[at + 1 : end])]
        at = end + 1
    by = statement.words(at, 2)
    if by in (["by", "name"], ["by", "position"]):
        at += 2
    if at >= len(tokens) or (tokens[at].word not in READS and tokens[at].text != "("):
        raise InvalidArgumentError(f"INSERT INTO {path} takes VALUES or a query, such as a SELECT")
    query = statement.part(at, len(tokens))
    if start:
        query = f"{text[: tokens[start].at]} from (\n{query}\n)"  # after WITH
    return SqlChange("INSERT INTO", info, columns, query, by == ["by", "name"])


def _update(statement: _Statement) -> SqlChange | None:
    text, tokens, _ = statement
    start = find_word(tokens, {"update"})
    info, chain, after_name = statement.table_at(start + 1)
    if info is None:
        return None
    _check_changeable(statement, start, info, chain, "UPDATE")
    at_set = find_word(tokens, {"set"}, after_name)
    at_from = find_word(tokens, {"from", "where"}, at_set)
    given: dict[str, str] = {}
    for part in split_commas(tokens[at_set + 1 : at_from]):
        name, end = chain_at(part, 0)
        if not name or part[end].text != "=":
            raise InvalidArgumentError(f"UPDATE {info.table_path} sets one column after the other: set a = 1, b = 2")
        column = _column(name[-1], info)
        if column in given:
            raise InvalidArgumentError(f"UPDATE {info.table_path} sets {column!r} twice")
        given[column] = text_of(text, part[end + 1 :])
    moved = [name for name in given if name in info.primary_keys]
    if moved:
        raise InvalidArgumentError(
            f"UPDATE {info.table_path} cannot change {moved[0]!r}: it is part of the primary key. Insert the row under "
            "its new key, and delete the old one"
        )
    # A write of some columns needs the others to be nullable: the row may be deleted before it arrives.
    whole = any(not column.data_type.nullable and column.name not in given for column in _values(info))
    rest = [*info.primary_keys, *(c.name for c in _values(info) if whole and c.name not in given)]
    alias = quoted((tokens[at_set - 1].name or "") if at_set > after_name else chain[-1])
    keys = ", ".join(f"{alias}.{quoted(name)}" for name in info.primary_keys)
    # Of several rows that FROM finds for a key, one is taken.
    distinct = f"distinct on ({keys}) " if statement.words(at_from, 1) == ["from"] else ""
    values = [*(f"{alias}.{quoted(name)}" for name in rest), *(f"(\n{value}\n)" for value in given.values())]
    shown = ", ".join(f"{value} as {quoted(f'fluss {at}')}" for at, value in enumerate(values))
    source = f"{statement.part(start + 1, at_set)}{_and_others(statement, at_from)}"
    return SqlChange(
        "UPDATE", info, [*rest, *given], f"{text[: tokens[start].at]} select {distinct}{shown} from {source}"
    )


def _delete(statement: _Statement) -> SqlChange | None:
    text, tokens, _ = statement
    start = find_word(tokens, {"delete", "truncate"})
    at_name = start + 1 + (statement.words(start + 1, 1) in (["from"], ["table"]))
    info, chain, after_name = statement.table_at(at_name)
    if info is None:
        return None
    _check_changeable(statement, start, info, chain, "DELETE FROM")
    end = find_word(tokens, {"using", "where"}, after_name)
    alias = quoted((tokens[end - 1].name or "") if end > after_name else chain[-1])
    keys = ", ".join(f"{alias}.{quoted(name)}" for name in info.primary_keys)
    source = f"{statement.part(at_name, end)}{_and_others(statement, end)}"
    query = f"{text[: tokens[start].at]} select distinct {keys} from {source}"
    return SqlChange("DELETE FROM", info, list(info.primary_keys), query)


def _and_others(statement: _Statement, at: int) -> str:
    """The tables of FROM or USING that begins at a token, and the condition."""
    if statement.words(at, 1) == ["where"] or at >= len(statement.tokens):
        return f" {statement.part(at, len(statement.tokens))}"
    return f", {statement.part(at + 1, len(statement.tokens))}"


def _values(info: TableInfo) -> list[Any]:
    return [column for column in info.schema.columns if column.name not in info.primary_keys]


def _column(name: str, info: TableInfo) -> str:
    """A column by its name without case."""
    columns = info.schema.column_names
    found = name if name in columns else {known.lower(): known for known in reversed(columns)}.get(name.lower())
    if found is None:
        raise InvalidArgumentError(f"table {info.table_path} has no column {name!r}{did_you_mean(name, columns)}")
    return found


def _check_changeable(statement: _Statement, start: int, info: TableInfo, chain: Chain, verb: str) -> None:
    """Refuse tables whose rows stay as they are or have rules, RETURNING, and a WITH that hides the table."""
    path = info.table_path
    if "$" in path.table_name:
        raise InvalidArgumentError(f"{verb} {path} cannot be done: it can only be read")
    if not info.has_primary_key():
        raise InvalidArgumentError(
            f"{verb} {path} cannot be done: it is a log table, and rows of a log never change. Rows of tables with a "
            "primary key do: CREATE TABLE … (…, PRIMARY KEY (…))"
        )
    check_rules(info, f"{verb} {path}", deletes=verb != "UPDATE")
    if find_word(statement.tokens, {"returning"}) < len(statement.tokens):
        raise InvalidArgumentError(f"{verb} {path} has no RETURNING: SELECT the rows before or after it")
    # The rows of a query that WITH gives the name of the table to would be changed instead of those of the table.
    names = {(token.name or "").lower() for part in split_commas(statement.tokens[:start]) for token in part[:3]}
    if len(chain) == 1 and chain[0].lower() in names:
        raise InvalidArgumentError(f"{verb} {chain[0]}: WITH gives this name to a query. Choose another name for it")


# -- tables ------------------------------------------------------------------------------------------------------------


def definition_of(
    kind: str, text: str, tokens: Sequence[Token], tables: Tables, default_database: str, run_query: RunQuery
) -> Work | None:
    """What a CREATE, ALTER or DROP of tables or databases does.

    Args:
        kind: The kind of the statement, as DuckDB calls it.
        text: The statement.
        tokens: Its tokens, without a semicolon.
        tables: The tables that its names can mean.
        default_database: The database of names without a dot.
        run_query: Gives the rows of the query of CREATE TABLE AS.
    """
    if kind in _REFUSED:
        raise InvalidArgumentError(_REFUSED[kind])
    statement = _Statement(text, tokens, tables)
    if kind == "CREATE":
        return _create(statement, default_database, run_query)
    if kind == "DROP":
        return _drop(statement)
    if kind in ("ALTER", "MULTI"):  # ADD COLUMN … NOT NULL is several statements of DuckDB
        return _alter(statement)
    if kind in _INSTEAD:
        _refuse(kind, statement)
    return None


def _create(statement: _Statement, default_database: str, run_query: RunQuery) -> Work | None:
    _, tokens, _ = statement
    at = 3 if statement.words(1, 2) == ["or", "replace"] else 1
    what, replace = tokens[at].word, at == 3
    exist_ok = statement.words(at + 1, 3) == ["if", "not", "exists"]
    chain, end = chain_at(tokens, at + 1 + 3 * exist_ok)
    if what == "schema":

        async def create_schema(database: SqlCatalog) -> None:
            await database.create_database(await database_meant(database, chain[-1]), exist_ok=exist_ok)

        return create_schema
    if what != "table":
        _check_view(statement)
        return None  # a temporary table, a view, a macro: DuckDB's own
    if not 1 <= len(chain) <= 2:
        raise InvalidArgumentError("CREATE TABLE needs a name such as orders or shop.orders")
    database = statement.tables.databases.get(chain[0].lower(), chain[0]) if len(chain) == 2 else default_database
    path = TablePath(database, chain[-1])
    existing = statement.tables.found.get(tuple(part.lower() for part in chain))
    if existing is not None and exist_ok:
        return _nothing
    if existing is not None:
        path = existing.table_path
    if existing is not None and not replace:
        raise TableAlreadyExistError(f"table {path} exists already; write CREATE OR REPLACE TABLE to replace it")
    at_as = find_word(tokens, {"as"}, end)
    clauses = _Clauses(statement, end, at_as, path)
    if at_as < len(tokens):
        query = statement.part(at_as + 1, len(tokens))
        if clauses.columns:
            query = f"select * from (\n{query}\n) as rows{clauses.columns}"
        source: Any = run_query(query)
        arguments = clauses.arguments
    else:
        source, key = _columns_of(clauses.columns, f"CREATE TABLE {path}")
        arguments = {"primary_key": key or None, **clauses.arguments}

    async def create(database: SqlCatalog) -> int | None:
        await database.create_table(path, source, replace=replace, **arguments)
        return int(source.num_rows) if isinstance(source, pa.Table) else None

    return create


def _check_view(statement: _Statement) -> None:
    """Refuse a view with the name of a table: one of the two would be read for the other."""
    at = 1
    while statement.tokens[at].word in _BEFORE_VIEW:
        at += 1
    if statement.tokens[at].word != "view":
        return
    at += 1 + 3 * (statement.words(at + 1, 3) == ["if", "not", "exists"])
    info, chain, _ = statement.table_at(at)
    if info is not None:
        raise TableAlreadyExistError(
            f"the view {'.'.join(chain)} would have the name of table {info.table_path}; give it another"
        )


class _Clauses:
    """What CREATE TABLE says between the name and AS: ``(columns) PARTITIONED BY (…) WITH (…)``."""

    def __init__(self, statement: _Statement, at: int, end: int, path: TablePath) -> None:
        tokens = statement.tokens
        self.columns = ""
        self.arguments: dict[str, Any] = {}
        while at < end:
            opening = next((index for index in range(at, end) if tokens[index].text == "("), end)
            if opening >= end:
                raise InvalidArgumentError(f"CREATE TABLE {path}: {statement.part(at, end)!r:.60} is not supported")
            close = closing(tokens, opening)
            words = statement.words(at, opening - at)
            inner = tokens[opening + 1 : close]
            if not words:
                self.columns = statement.part(opening, close + 1)
            elif words == ["partitioned", "by"]:
                self.arguments["partition_by"] = [part[0].name or part[0].text for part in split_commas(inner)]
            elif words == ["with"]:
                options = _options(inner)
                for name, argument in _LAYOUT.items():
                    if name in options:
                        value = options.pop(name)
                        names = [part.strip() for part in value.split(",")]
                        if argument == "buckets" and not value.isdecimal():
                            raise InvalidArgumentError(f"CREATE TABLE {path}: {name} is a number, not {value!r:.60}")
                        self.arguments[argument] = int(value) if argument == "buckets" else names
                self.arguments["properties"] = options
            else:
                raise InvalidArgumentError(
                    f"CREATE TABLE {path} takes columns, PARTITIONED BY (…) and WITH (…), not "
                    f"{statement.part(at, opening)!r:.60}"
                )
            at = close + 1


def _options(tokens: Sequence[Token]) -> dict[str, str]:
    """Options such as ``'table.log.ttl' = '7d', n = 3``; those without a value are empty."""
    found = {}
    for part in split_commas(tokens):
        equals = next((at for at, token in enumerate(part) if token.text == "="), len(part))
        name, value = ("".join(map(_plain, side)) for side in (part[:equals], part[equals + 1 :]))
        found[name] = value
    return found


def _plain(token: Token) -> str:
    """A name or a value as it is meant: without quotes."""
    return token.text[1:-1].replace("''", "'") if token.kind == "text" else token.name or token.text


def _columns_of(definition: str, what: str) -> tuple[pa.Schema, list[str]]:
    """The columns and the primary key of the column definitions of SQL, with the types as DuckDB reads them."""
    with scratch_duckdb() as scratch:
        scratch.execute(f"create table made {definition}")
        schema = scratch.sql("from made").to_arrow_table().schema
        rules = scratch.sql("select constraint_type, constraint_column_names from duckdb_constraints()").fetchall()
        defaults = scratch.sql("select column_name from duckdb_columns() where column_default is not null").fetchall()
    for kind, names in [*rules, *(("DEFAULT", name) for name in defaults)]:
        if kind not in ("PRIMARY KEY", "NOT NULL"):
            raise InvalidArgumentError(f"{what}: Fluss has no {kind} (of {', '.join(names)}). Leave it out")
    key = next((list(names) for kind, names in rules if kind == "PRIMARY KEY"), [])
    required = {*key, *(name for kind, names in rules if kind == "NOT NULL" for name in names)}
    return pa.schema([field.with_nullable(field.name not in required) for field in schema]), key


def _drop(statement: _Statement) -> Work | None:
    what = statement.words(1, 1)[0]
    missing_ok = statement.words(2, 2) == ["if", "exists"]
    info, chain, end = statement.table_at(2 + 2 * missing_ok)
    if what == "schema":
        cascade = "cascade" in statement.words(end, 1)

        async def drop_schema(database: SqlCatalog) -> None:
            name = await database_meant(database, chain[-1])
            await database.drop_database(name, missing_ok=missing_ok, cascade=cascade)

        return drop_schema
    if info is None:
        return None
    path = info.table_path
    if what != "table" or "$" in path.table_name:
        raise InvalidArgumentError(f"DROP {what.upper()} {path}: it is a table; write DROP TABLE {path}")
    return lambda database: database.drop_table(path)


def _alter(statement: _Statement) -> Work | None:
    _, tokens, _ = statement
    start = find_word(tokens, {"table"}) + 1
    start += 2 * (statement.words(start, 2) == ["if", "exists"])
    info, _, at = statement.table_at(start)
    if info is None:
        return None
    path, action = info.table_path, statement.words(at, 1)
    if statement.words(0, 1) == ["alter"] and action == ["add"]:
        at += 1 + (statement.words(at + 1, 1) == ["column"])
        exist_ok = statement.words(at, 3) == ["if", "not", "exists"]
        at += 3 * exist_ok
        if exist_ok and (tokens[at].name or "").lower() in map(str.lower, info.schema.column_names):
            return _nothing
        schema, _ = _columns_of(f"({statement.part(at, len(tokens))})", f"ALTER TABLE {path}")
        [field] = schema
        if not field.nullable:
            raise InvalidArgumentError(
                f"ALTER TABLE {path}: the new column {field.name!r} cannot be NOT NULL, because rows that exist have "
                "null in it. Leave NOT NULL out"
            )

        async def add(database: SqlCatalog) -> None:
            await (await database.table(path)).add_column(field.name, field.type)

        return add
    if action in (["set"], ["reset"]) and at + 1 < len(tokens) and tokens[at + 1].text == "(":
        options = _options(tokens[at + 2 : closing(tokens, at + 1)])
        properties = {name: value if action == ["set"] else None for name, value in options.items()}

        async def change(database: SqlCatalog) -> None:
            await (await database.table(path)).set_properties(properties)

        return change
    raise InvalidArgumentError(
        f"ALTER TABLE {path} takes ADD COLUMN name type, SET ('property' = value) and RESET ('property'). Columns "
        "cannot be renamed, dropped or given another type: create a new table, and INSERT INTO it from this one"
    )


async def _nothing(_: SqlCatalog) -> int:
    return 0


def _refuse(kind: str, statement: _Statement) -> None:
    """Fail if a statement would change a table in a way that SQL cannot do here."""
    tokens = statement.tokens
    at = find_word(tokens, {kind.split("_")[0].lower()})
    while at < len(tokens) and tokens[at].word in _BEFORE_TARGET:
        at += 1
    info, _, end = statement.table_at(at)
    if info is None or (kind == "COPY" and statement.words(end, 1) != ["from"]):
        return  # a table that is copied to a file
    path = str(info.table_path)
    raise InvalidArgumentError(
        f"{kind.split('_')[0]} of table {path} is not supported in SQL: use {_INSTEAD[kind].format(path)}"
    )
