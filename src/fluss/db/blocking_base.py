# SPDX-License-Identifier: Apache-2.0
"""What only the synchronous API has: `len`, `in`, iteration, attributes. The rest of it is generated."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

import pyarrow as pa

from fluss._lazy import import_extra
from fluss.client import connection as core
from fluss.client.blocking import FlussConnection
from fluss.client.cluster import Cluster
from fluss.client.runner import Background
from fluss.db.bridge import DatabaseBridge
from fluss.db.read_ahead import read_ahead
from fluss.db.targets import Target, reach
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata.where import Params
from fluss.net.background import LoopThread

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from fluss.db import database as _database
    from fluss.db import follow as _follow
    from fluss.db import table as _table
    from fluss.db.dataset import FlussDataset
    from fluss.db.sql import Engine
    from fluss.db.table_reads import Where
    from fluss.metadata import TablePath

T = TypeVar("T")
ItemT = TypeVar("ItemT")
TableT = TypeVar("TableT")
_TABLES_SHOWN = 50


class TableBase(Generic[T]):
    """The part of `Table` that is written by hand."""

    def __init__(self, core: _table.Table[T], bridge: DatabaseBridge) -> None:
        self._core = core
        self._bridge = bridge

    def to_reader(
        self,
        columns: Sequence[str] | str | None = None,
        where: Where | None = None,
        limit: int | None = None,
        snapshot: int | None = None,
        *,
        params: Params | None = None,
    ) -> pa.RecordBatchReader:
        """The whole table as an Arrow reader, batch by batch in bounded memory; see `to_arrow`.

        Example:
            for batch in orders.to_reader(columns=["id"]):
                print(batch.num_rows)
        """
        read = self._bridge.run(self._core._plan(columns, where, limit, snapshot, params))
        batches = read_ahead(self._bridge.submit, read.batches, self._core)
        return pa.RecordBatchReader.from_batches(read.schema, batches)

    def dataset(self) -> FlussDataset:
        """The table as an Arrow dataset, from which DuckDB and polars read only what a query needs.

        Example:
            data = orders.dataset()
            duckdb.sql("select item, sum(price) from data where id > 5 group by item").df()
        """
        return self._dataset(as_sql=False)

    def lazy(self) -> pl.LazyFrame:
        """The table as a polars LazyFrame, whose columns and filters are read from the table when it is collected.

        Example:
            orders.lazy().filter(pl.col("price") > 10).select("id", "price").collect()
        """
        polars = import_extra("polars", "lazy() needs polars", "polars")
        frame: pl.LazyFrame = polars.scan_pyarrow_dataset(self._dataset(as_sql=True))
        return frame

    def to_duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """The table as a relation of DuckDB, whose columns and filters are read from the table when it is used.

        Args:
            connection: A connection of DuckDB, to join the relation with tables of it; DuckDB's default one if None.

        Example:
            orders.to_duckdb().filter("price > 10").aggregate("item, sum(price)").df()
        """
        duckdb = import_extra("duckdb", "to_duckdb() needs DuckDB", "sql")
        chosen: DuckDBPyConnection = duckdb.default_connection() if connection is None else connection
        return chosen.from_arrow(self.dataset())

    def _dataset(self, *, as_sql: bool) -> FlussDataset:
        from fluss.db.dataset import DatasetSource, FlussDataset

        submit = self._bridge.submit
        core, run = self._core, self._bridge.run
        source = DatasetSource(core._database._connection, core.info, submit, core.count, run, at=core._at)
        return FlussDataset(source, as_sql=as_sql)

    @overload
    def get(self, key: Any = None, default: None = None, **columns: Any) -> T | None: ...
    @overload
    def get(self, key: Any = None, *, default: T, **columns: Any) -> T: ...
    @overload
    def get(self, key: Any, default: T) -> T: ...
    def get(self, key: Any = None, default: Any = None, **columns: Any) -> Any:
        """The row with this primary key, or `default` if there is none.

        Args:
            key: A value, or a tuple or dict if the key has several columns.
            columns: The key by its columns, instead.

        Example:
            orders.get(7)  # {'id': 7, 'item': 'tea'}
            orders.get(id=7)
        """
        core = self._core
        row = self._bridge.lookup(core._lookuper or core._new_lookuper(), core._key(key, columns))
        return default if row is None else core._model.one(row)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._core.schema.arrow_schema.__arrow_c_schema__()

    def __len__(self) -> int:
        return self._bridge.run(self._core.count())

    def __bool__(self) -> bool:
        # A table is there, whether it has rows or not; to count them for `if table:` would be a surprise.
        return True

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> NoReturn:
        self._core.__iter__()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Table belongs to the connection of its process: in another one, open it with "
            f"fluss.connect({self._core._database.address!r}).table({str(self._core.path)!r})"
        )

    def _ipython_key_completions_(self) -> list[str]:
        return self._core.columns


class DatabaseBase(Generic[TableT]):
    """The part of `Database` that is written by hand."""

    def __init__(self, core: _database.Database, bridge: DatabaseBridge) -> None:
        self._core = core
        self._bridge = bridge
        self._connection = FlussConnection(bridge.background)
        self._sql_engine: Engine | None = None
        self._sql_lock = threading.Lock()

    if TYPE_CHECKING:

        def table(self, name: str | TablePath) -> TableT: ...

        def tables(self, database: str | None = None) -> list[str]: ...

    @property
    def connection(self) -> FlussConnection:
        """The connection of the full client, for everything that is not here.

        Example:
            admin = db.connection.get_admin()
        """
        return self._connection

    def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> DuckDBPyRelation:
        """Run SQL over the tables, with DuckDB.

        Tables are named as everywhere: ``orders``, or ``shop.orders``. Data frames of the caller can be named as well.
        The result is a relation of DuckDB, which reads the tables when it is asked for rows: `.df()`, `.pl()`,
        `.arrow()`, `.fetchall()`. INSERT, UPDATE, DELETE, CREATE TABLE, ALTER TABLE and DROP TABLE are done on return.

        Args:
            query: One or more statements.
            parameters: Values for ``?`` (a list) or ``$name`` (a dict).

        Example:
            db.sql("select item, sum(price) as total from orders where id > ? group by item", [5]).df()
        """
        return self._engine().run(query, parameters)

    def _engine(self) -> Engine:
        with self._sql_lock:
            if self._sql_engine is None:
                from fluss.db.sql import Engine

                self._sql_engine = Engine(self._core, self._bridge.submit, self._bridge.run)
            return self._sql_engine

    def close(self) -> None:
        """Close the connection, and stop the embedded server if it was started by `connect`. Closing twice is fine.

        Example:
            db.close()
        """
        try:
            if self._sql_engine is not None:
                self._sql_engine.close()
            if not self._bridge.closed:
                self._bridge.run(self._core.close())
        finally:
            self._bridge.close()
            self._core._target.stop()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._bridge.run(self._core.has_table(name))

    def __getitem__(self, name: str) -> TableT:
        return self.table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Database belongs to its process: in another one, use fluss.connect({self._core.address!r})")

    def __getattr__(self, name: str) -> TableT:
        # Names with an underscore are asked for by tools that look what an object can do.
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.table(name)
        except FlussError as error:
            raise AttributeError(f"Database has no attribute {name!r}, and {error.message}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._table_names()]

    def _ipython_key_completions_(self) -> list[str]:
        return self._table_names()

    def _table_names(self) -> list[str]:
        with contextlib.suppress(FlussError):
            return [name for name in self.tables() if name.isidentifier()]
        return []

    def _repr_html_(self) -> str:
        return _database_html(self._core.name, self._core.address, self._table_names())


class FollowBase(Generic[ItemT]):
    """The part of `Follow` that is written by hand."""

    def __init__(self, core: _follow.Follow[ItemT], bridge: DatabaseBridge) -> None:
        self._core = core
        self._bridge = bridge

    def __iter__(self) -> Iterator[ItemT]:
        return _changes(self._core, self._bridge)

    def __next__(self) -> ItemT:
        return next(iter(self))

    def __length_hint__(self) -> int:
        # list(), tuple() and extend() ask for it before they begin, and would never end.
        if self._core._feed.endless:
            raise InvalidArgumentError(
                f"{self._core!r} never ends, so it cannot become a list. Add stop_at_end=True, or a timeout"
            )
        return 0


def _changes(core: _follow.Follow[ItemT], bridge: DatabaseBridge) -> Iterator[ItemT]:
    """What iterating over a `Follow` gives. Apart from it, so that one that is dropped ends at once.

    The items of a batch are kept by `core`: an iteration that an error or a `break` ended is taken up by the next one.
    """
    feed, expand = core._feed, core._expand
    while True:
        for item in core._items:  # noqa: UP028 -- with `yield from`, the end of this generator would close them
            yield item
        try:
            found = feed.take_waiting() or bridge.run(feed.next())
        except KeyboardInterrupt:
            with contextlib.suppress(FlussError):
                bridge.run(feed.close())
            raise
        if found is None:
            return
        # Expanded here and not on the loop: there the next batch is fetched meanwhile.
        core._items = feed.items(found, expand)


def open_database(
    make: Callable[[core.FlussConnection, Background, Target, str], _database.Database],
    found: Target,
    name: str,
    timeout: float,
    options: Mapping[str, Any] | None,
) -> tuple[_database.Database, DatabaseBridge]:
    """Connect on a loop in a thread of its own."""
    thread = LoopThread()
    try:
        config = found.config(timeout, options or {})
        cluster = thread.run(reach(found, timeout, lambda: Cluster.connect(config)))
    except BaseException:
        thread.close()
        found.stop()
        raise
    background = Background(thread, cluster)
    database = make(core.FlussConnection(cluster), background, found, name)
    # A database that is dropped without close() takes its server with it. Its tables hold on to it.
    weakref.finalize(database, _drop, background, found)
    return database, DatabaseBridge(background)


def _drop(background: Background, target: Target) -> None:
    background.close()
    with contextlib.suppress(FlussError):
        target.stop()


def _database_html(name: str, address: str, tables: Sequence[str]) -> str:
    """A database: where it is, and its tables."""
    shown = ", ".join(escape(table) for table in tables[:_TABLES_SHOWN]) or "<i>no tables</i>"
    more = f" and {len(tables) - _TABLES_SHOWN} more" if len(tables) > _TABLES_SHOWN else ""
    return f"<div><b>{escape(name)}</b> <small>at {escape(address)}</small><br>{shown}{more}</div>"
