# SPDX-License-Identifier: Apache-2.0
"""`Database`: the tables of a cluster. The asynchronous original; `blocking.py` is made from it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from fluss._text import did_you_mean
from fluss.client.arguments import wrong_argument
from fluss.client.connection import FlussConnection, open_connection
from fluss.client.runner import Direct, Runner
from fluss.config import Login
from fluss.db.bridge import offload
from fluss.db.bulk_write import checked_table
from fluss.db.models import is_model
from fluss.db.schemas import TableSource, check_existing, names, source_of, split_properties, with_column_properties
from fluss.db.session import DatabaseSession
from fluss.db.suggest import CREATE_HINT
from fluss.db.table import Table
from fluss.db.targets import (
    DEFAULT_DATABASE,
    DEFAULT_TIMEOUT_S,
    Target,
    check_arguments,
    find_target,
    reach,
    read_only_options,
)
from fluss.db.write_results import RowRejectedError
from fluss.errors import (
    ConnectionClosedError,
    DatabaseNotExistError,
    FlussError,
    InvalidArgumentError,
    LakeTableAlreadyExistError,
    TableAlreadyExistError,
    TableNotExistError,
)
from fluss.metadata import TableDescriptor, TableInfo, TablePath

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

    from fluss.db.sql import Engine

M = TypeVar("M")
P = ParamSpec("P")


class Database(DatabaseSession):
    """The tables of a server or cluster. Obtain it with `connect`.

    Names without a dot are tables of the database it was connected with (``fluss`` unless another was chosen);
    ``"other.orders"`` names a table of another one.

    Example:
        async with await fluss.aio.connect("./shop") as db:
            orders = await db.create_table("orders", "id bigint, item string", primary_key="id")
    """

    def __init__(self, connection: FlussConnection, runner: Runner, target: Target, name: str) -> None:
        super().__init__(connection, runner, target, name)
        self._closed = False
        self._sql_engine: Engine | None = None

    # -- tables ---------------------------------------------------------------------------------------------------

    @overload
    async def create_table(
        self,
        name: str | TablePath,
        source: type[M],
        *,
        primary_key: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] | None = None,
        buckets: int | None = None,
        bucket_key: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        comment: str | None = None,
        exist_ok: bool = False,
        replace: bool = False,
        progress: bool = False,
    ) -> Table[M]: ...
    @overload
    async def create_table(
        self,
        name: str | TablePath,
        source: Any,
        *,
        primary_key: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] | None = None,
        buckets: int | None = None,
        bucket_key: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        comment: str | None = None,
        exist_ok: bool = False,
        replace: bool = False,
        progress: bool = False,
    ) -> Table[dict[str, Any]]: ...
    async def create_table(
        self,
        name: str | TablePath,
        source: Any,
        *,
        primary_key: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] | None = None,
        buckets: int | None = None,
        bucket_key: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        comment: str | None = None,
        exist_ok: bool = False,
        replace: bool = False,
        progress: bool = False,
    ) -> Any:
        """Create a table, and load it if the source is data.

        Args:
            name: ``"orders"``, or ``"shop.orders"`` (the database ``shop`` is created if need be).
            source: A text such as ``"id bigint not null, tags array<string>"``; an Arrow or Fluss schema; a dataclass
                or pydantic model, of which rows are instances then; data, which is loaded too: Arrow, pandas, polars,
                a list of dicts; or a `TableDescriptor`, which says everything.
            primary_key: The column or columns of the primary key. Without one, rows are appended to a log.
            partition_by: The column or columns that partition the table.
            buckets: In how many parts the table (or each partition) is stored and can be read in parallel.
            bucket_key: The columns that decide the bucket; the primary key by default.
            properties: Table properties, such as ``{"table.log.ttl": "7d"}``.
            comment: What the table is for.
            exist_ok: Give the table that exists, if one does and has these columns (maybe more, and other types than
                data has); nothing is loaded then.
            replace: Drop the table that exists, if one does. What the server refuses, and data that does not fit its
                columns or partitions or has a row too large to send, leave the table as it was.
            progress: Show a progress bar while loading.

        Example:
            orders = await db.create_table("orders", "id bigint, item string", primary_key="id", buckets=4)
        """
        path = self._path(name)
        if exist_ok and replace:
            raise InvalidArgumentError("create_table takes exist_ok or replace, not both")
        if properties is not None and not isinstance(properties, Mapping):
            raise wrong_argument("create_table", "properties", "a dict", properties)
        if isinstance(source, TableDescriptor):
            if any((primary_key, partition_by, buckets, bucket_key, properties, comment)):
                raise InvalidArgumentError("a TableDescriptor says everything about the table: give nothing else")
            made, descriptor = TableSource(source.schema), source
        else:
            made = await offload(lambda: source_of(source, primary_key))
            made.schema, others = with_column_properties(made.schema, properties or {})
            own, custom = split_properties(others)
            descriptor = TableDescriptor(
                made.schema,
                partition_keys=names("partition_by", partition_by),
                bucket_count=buckets,
                bucket_keys=names("bucket_key", bucket_key),
                comment=comment,
                properties=own,
                custom_properties=custom,
            )
        if made.data is not None:
            # Before anything is dropped or created: data that does not fit must not cost the table that it replaces.
            info = TableInfo(path, -1, -1, descriptor.replace(bucket_count=buckets or 1), 0, 0)
            config = self._connection.config
            made.data = await offload(lambda: checked_table(made.data, info, config))
        if path.database_name != self._name:
            await self._admin.create_database(path.database_name, ignore_if_exists=True)
        try:
            await self._admin.create_table(path, descriptor, ignore_if_exists=False)
        except (TableAlreadyExistError, LakeTableAlreadyExistError) as error:
            if isinstance(error, LakeTableAlreadyExistError) and (replace or not await self._admin.table_exists(path)):
                raise
            if exist_ok:
                table = await self._open(path, source)
                check_existing(path, made.schema, table.info.schema, names_only=made.data is not None)
                return table
            if not replace:
                hint = f"open it with db.table({str(name)!r}), or create it with exist_ok=True or replace=True"
                raise TableAlreadyExistError(f"table {path} exists already", hint=hint) from None
            # Only now: servers refuse a table that they cannot create before they look whether one exists.
            await self._admin.drop_table(path, ignore_if_not_exists=True)
            await self._admin.create_table(path, descriptor, ignore_if_exists=False)
        table = await self._open(path, source)
        if made.data is not None and len(made.data):
            try:
                await (table.upsert if made.schema.primary_key else table.append)(made.data, progress=progress)
            except RowRejectedError as error:  # found by the writer only, such as a row larger than its buffer
                if not error.written:
                    await self._admin.drop_table(path, ignore_if_not_exists=True)
                raise
        return table

    async def _open(self, path: TablePath, source: Any) -> Table[Any]:
        """Open a table that was made from a source: with its model, if that is one."""
        return await (self.table(path, source) if is_model(source) else self.table(path))

    @overload
    async def table(self, name: str | TablePath) -> Table[dict[str, Any]]: ...
    @overload
    async def table(self, name: str | TablePath, model: type[M]) -> Table[M]: ...
    async def table(self, name: str | TablePath, model: type[M] | None = None) -> Any:
        """Open a table.

        Args:
            name: ``"orders"`` or ``"shop.orders"``. ``"orders$changelog"`` and ``"orders$binlog"`` (the changes) and
                ``"orders$lake"`` (the newest snapshot of the lake) can be read like tables.
            model: A dataclass or pydantic model: rows are instances of it everywhere.

        Example:
            orders = await db.table("orders")
        """
        path = self._path(name)
        try:
            handle = await self._connection.get_table(path)
        except (TableNotExistError, DatabaseNotExistError):
            raise await self._unknown(path) from None
        return Table(self, handle, model)

    async def tables(self, database: str | None = None) -> list[str]:
        """The names of the tables of this database, or of another.

        Example:
            await db.tables()  # ['orders']
        """
        return sorted(await self._admin.list_tables(self._name if database is None else database))

    async def drop_table(self, name: str | TablePath, *, missing_ok: bool = False) -> None:
        """Drop a table with all its rows.

        Example:
            await db.drop_table("orders", missing_ok=True)
        """
        path = self._path(name)
        try:
            await self._admin.drop_table(path, ignore_if_not_exists=missing_ok)
        except (TableNotExistError, DatabaseNotExistError):
            if not missing_ok:
                raise await self._unknown(path) from None

    async def has_table(self, name: str | TablePath) -> bool:
        """Whether a table exists; `name in db` in synchronous code.

        Example:
            await db.has_table("orders")
        """
        try:
            return await self._admin.table_exists(self._path(name))
        except DatabaseNotExistError:
            return False

    async def databases(self) -> list[str]:
        """The names of all databases.

        Example:
            await db.databases()  # ['fluss']
        """
        return sorted(await self._admin.list_databases())

    async def create_database(self, name: str, *, exist_ok: bool = False) -> None:
        """Create a database.

        Example:
            await db.create_database("shop", exist_ok=True)
        """
        await self._admin.create_database(name, ignore_if_exists=exist_ok)

    async def drop_database(self, name: str, *, missing_ok: bool = False, cascade: bool = False) -> None:
        """Drop a database; with `cascade` its tables too.

        Example:
            await db.drop_database("shop", missing_ok=True, cascade=True)
        """
        await self._admin.drop_database(name, ignore_if_not_exists=missing_ok, cascade=cascade)

    async def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> DuckDBPyRelation:
        """Run SQL over the tables, with DuckDB, in another thread.

        Tables are named as everywhere: ``orders``, or ``shop.orders``. The result is a relation of DuckDB that has its
        rows already: `.df()`, `.pl()`, `.arrow()`, `.fetchall()`. INSERT, UPDATE, DELETE, CREATE TABLE, ALTER TABLE and
        DROP TABLE are done by Fluss.

        Args:
            query: One or more statements.
            parameters: Values for ``?`` (a list) or ``$name`` (a dict).

        Example:
            found = await db.sql("select item, sum(price) from orders where id > ? group by item", [5])
        """
        from fluss.db.sql import Engine

        if self._sql_engine is None:
            submit = functools.partial(asyncio.run_coroutine_threadsafe, loop=asyncio.get_running_loop())
            self._sql_engine = Engine(self, submit, lambda coro: submit(coro).result())
        return await asyncio.to_thread(self._sql_engine.run_to_end, query, parameters)

    def _path(self, name: str | TablePath) -> TablePath:
        if isinstance(name, TablePath):
            return name
        if not isinstance(name, str) or not name.strip("."):
            raise InvalidArgumentError(f"a table is named 'orders' or 'database.orders', not {name!r:.80}")
        database, dot, table = name.rpartition(".")
        return TablePath(database if dot else self._name, table)

    async def _unknown(self, path: TablePath) -> FlussError:
        """The error about a table that does not exist, with the nearest name that does."""
        known: list[str] = []
        with contextlib.suppress(FlussError):
            databases = await self._admin.list_databases()
            if path.database_name not in databases:
                hint = did_you_mean(path.database_name, databases)
                return DatabaseNotExistError(f"there is no database {path.database_name!r}{hint}")
            known = await self._admin.list_tables(path.database_name)
        near = did_you_mean(path.table_name, known)
        return TableNotExistError(
            f"there is no table {path.table_name!r} in {path.database_name!r}{near}",
            hint=None if near else CREATE_HINT,
        )

    # -- the end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connection, and stop the embedded server if it was started by `connect`. Closing twice is fine.

        Example:
            await db.close()
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._sql_engine is not None:
                await offload(self._sql_engine.close)
            if not self._connection.closed:
                try:
                    with contextlib.suppress(ConnectionClosedError):
                        await self._connection.flush()
                finally:  # also if rows that were never flushed fail now
                    await self._connection.close()
        finally:
            await offload(self._target.stop)

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Database({self._name!r} at {self.address}{', closed' if self._closed else ''})"


class Connecting(Coroutine[Any, Any, Database]):
    """What `connect` returns: it can be awaited, and entered without being awaited first.

    Example:
        async with fluss.aio.connect("./shop") as db:
            print(await db.tables())
    """

    def __init__(self, coro: Coroutine[Any, Any, Database]) -> None:
        self._coro = coro
        self._opened: Database | None = None

    def send(self, value: Any) -> Any:
        return self._coro.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coro.throw(*error)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Database]:
        return self._coro.__await__()

    async def __aenter__(self) -> Database:
        self._opened = await self._coro
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        assert self._opened is not None
        await self._opened.close()


def _entered(call: Callable[P, Coroutine[Any, Any, Database]]) -> Callable[P, Connecting]:
    @functools.wraps(call)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Connecting:
        return Connecting(call(*args, **kwargs))

    return begin


@_entered
async def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    user: str | None = None,
    password: str | None = None,
    tls: bool = False,
    ca: str | None = None,
    fingerprint: str | None = None,
    database: str = DEFAULT_DATABASE,
    timeout: float = DEFAULT_TIMEOUT_S,
    options: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
    read_only: bool = False,
) -> Database:
    """Connect to a folder, to a server or cluster, or to what the environment says.

    Args:
        target: A folder such as ``"./shop"``: the server that runs on it is joined, else the embedded server is
            started, which ends with the program. An address such as ``"host:9123"``. None:
            ``FLUSS_BOOTSTRAP_SERVERS``, or the active profile, else a temporary folder.
        user: The user name, for servers that ask for one.
        password: The password.
        tls: Encrypt connections, and accept servers whose certificates the system trusts.
        ca: The PEM file of the authority that signs the certificates of the servers; with it connections are encrypted.
        fingerprint: The SHA-256 of the one certificate to accept, as ``fluss server --tls-self-signed`` prints it.
        database: The database that names without a dot belong to.
        timeout: How long connecting to an address may take, in seconds.
        options: Options of the full client, such as ``{"writer.batch-size": "4mb"}``.
        server: Options of the embedded server, if one is started, such as ``{"datalake.format": "paimon"}``.
        read_only: Refuse everything that changes tables, and a folder without a database.

    Example:
        async with fluss.aio.connect("./shop") as db:
            print(await db.tables())
    """
    login = Login(user, password, tls, ca, fingerprint)
    check_arguments(login, database, timeout, options, server)
    found = await offload(lambda: find_target(target, login, server, read_only))
    try:
        config = found.config(timeout, read_only_options(options, read_only))
        connection = await reach(found, timeout, lambda: open_connection(config))
    except BaseException:
        await offload(found.stop)
        raise
    return Database(connection, Direct(connection._cluster), found, database)
