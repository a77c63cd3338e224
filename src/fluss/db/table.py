# SPDX-License-Identifier: Apache-2.0
"""`Table`: write, read, look up and follow one table. The asynchronous original; `blocking.py` is made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn, TypeVar, overload

import pyarrow as pa

from fluss.client.lookup import Lookuper, PrefixLookuper
from fluss.db.changes import Change, ChangeBatch, ChangePair, Pairing
from fluss.db.follow import Feed, Follow, Start
from fluss.db.group_feed import GroupFeed, check_group
from fluss.db.keys import key_of, keys_of_many, require_key
from fluss.db.models import row_model
from fluss.db.read_plan import Moment, moment_of, python_rows
from fluss.db.suggest import check_columns
from fluss.db.table_writes import TableWrites
from fluss.errors import InvalidArgumentError

T = TypeVar("T")


class Table(TableWrites[T]):
    """A table. Obtain it with `db.table(name)` or `db.create_table(…)`.

    Rows are dicts, or instances of the dataclass or pydantic model that was given to `db.table`.

    Example:
        orders = await db.table("orders")
        await orders.upsert({"id": 7, "item": "tea"})
        print(await orders.get(7))
    """

    def as_of(self, time: Moment) -> Table[T]:
        """The table as it was before a time, to be read in every way that reads the whole of it, and never written.

        Its rows are those of then, its columns those of now: a column that was added since is null in them.

        Args:
            time: A datetime, ISO text such as ``"2026-07-01T12:00"``, or ``"10m"`` for ten minutes ago. It goes as far
                back as the log of the table: rows of a log table that have expired since are not there, and a
                primary-key table needs its changelog from then on. What is older is in a backup:
                ``fluss restore URL FOLDER --at TIME``.

        Example:
            yesterday = orders.as_of("2026-07-01T12:00")
            frame = await yesterday.to_pandas(where="price > 10")
        """
        return Table(self._database, self._handle, self._cls, moment_of(time))

    # -- lookup ---------------------------------------------------------------------------------------------------

    @overload
    async def get(self, key: Any = None, default: None = None, **columns: Any) -> T | None: ...
    @overload
    async def get(self, key: Any = None, *, default: T, **columns: Any) -> T: ...
    @overload
    async def get(self, key: Any, default: T) -> T: ...
    async def get(self, key: Any = None, default: Any = None, **columns: Any) -> Any:
        """The row with this primary key, or `default` if there is none.

        Args:
            key: A value, or a tuple or dict if the key has several columns.
            columns: The key by its columns, instead.

        Example:
            await orders.get(7)  # {'id': 7, 'item': 'tea'}
            await orders.get(id=7)
        """
        row = await (self._lookuper or self._new_lookuper()).lookup(self._key(key, columns))
        return default if row is None else self._model.one(row)

    def _key(self, key: Any, columns: dict[str, Any]) -> Any:
        if columns:
            if key is not None:
                raise InvalidArgumentError("get() takes a key, or its columns: get(7) or get(id=7)")
            key = columns
        return key_of(key, self._info.primary_keys, self._info.schema.column_names)

    def _new_lookuper(self) -> Lookuper:
        self._check_present("a lookup")
        require_key(self._info, "get()", "read it with to_arrow() or follow()")
        self._lookuper = Lookuper(self._database._runner, self._handle._state)
        return self._lookuper

    @overload
    async def get_many(self, keys: Any, *, arrow: Literal[False] = False) -> list[T | None]: ...
    @overload
    async def get_many(self, keys: Any, *, arrow: Literal[True]) -> pa.Table: ...
    async def get_many(self, keys: Any, *, arrow: bool = False) -> Any:
        """The rows of many keys, in the order of the keys; None where there is no such row.

        Args:
            keys: Keys as for `get`, or a frame that has the key columns.
            arrow: Give an Arrow table instead, with a row of nulls for every key that is not there.

        Example:
            await orders.get_many([7, 8, 9])
        """
        info = self._info
        lookuper = self._lookuper or self._new_lookuper()
        chosen = keys_of_many(keys, info.primary_keys, info.schema.column_names)
        table: pa.Table = await lookuper.lookup_many(chosen, missing="null")
        if arrow:
            return table
        first = table.column(info.schema.column_index(info.primary_keys[0]))
        rows = python_rows(table, info)
        return [None if gone else self._model.one(row) for row, gone in zip(rows, first.is_null().to_pylist())]

    async def prefix(self, *values: Any, **columns: Any) -> list[T]:
        """All rows whose primary key begins with these values: the bucket key (and partition) of the table.

        Example:
            await lines.prefix(4711)  # bucket_key="order_id", primary_key=["order_id", "line"]
        """
        self._check_present("prefix()")
        require_key(self._info, "prefix()", "read it with to_arrow(where=…)")
        wanted = [*self._info.partition_keys, *self._info.bucket_keys]
        key: Any = values[0] if len(values) == 1 else values
        if columns:
            check_columns(list(columns), self._info)
            rest = [name for name in wanted if name not in columns]
            if len(values) > len(rest) or not columns.keys() <= set(wanted):
                raise InvalidArgumentError(f"prefix() of table {self.path} takes the values of {', '.join(wanted)}")
            key = {**dict(zip(rest, values)), **columns}
        key = key_of(key, wanted, self.columns)
        if self._prefix_lookuper is None:
            self._prefix_lookuper = PrefixLookuper(self._database._runner, self._handle._state, wanted)
        return self._model.make(await self._prefix_lookuper.lookup(key))

    def __contains__(self, key: object) -> NoReturn:
        raise TypeError("operators cannot be awaited: write await table.contains(key)")

    async def contains(self, key: Any) -> bool:
        """Whether there is a row with this primary key; `key in table` in synchronous code.

        Example:
            await orders.contains(7)
        """
        return await self.get(key) is not None

    # -- follow ---------------------------------------------------------------------------------------------------

    @overload
    def follow(
        self,
        start: Start | None = None,
        *,
        batches: Literal[False] = False,
        columns: Sequence[str] | str | None = None,
        stop_at_end: bool = False,
        timeout: float | None = None,
        group: str | None = None,
        commit: bool = True,
        session_timeout: float = 2.5,
    ) -> Follow[Change[T]]: ...
    @overload
    def follow(
        self,
        start: Start | None = None,
        *,
        batches: Literal[True],
        columns: Sequence[str] | str | None = None,
        stop_at_end: bool = False,
        timeout: float | None = None,
        group: str | None = None,
        commit: bool = True,
        session_timeout: float = 2.5,
    ) -> Follow[ChangeBatch]: ...
    def follow(
        self,
        start: Start | None = None,
        *,
        batches: bool = False,
        columns: Sequence[str] | str | None = None,
        stop_at_end: bool = False,
        timeout: float | None = None,
        group: str | None = None,
        commit: bool = True,
        session_timeout: float = 2.5,
    ) -> Any:
        """Follow the changes of all buckets and partitions, including partitions that are created meanwhile.

        Args:
            start: ``"full"``: the current rows of one moment as inserts, then every change after it (of a log table:
                everything); the default for primary-key tables. ``"earliest"``: the oldest change that is kept.
                ``"latest"``, a time (a datetime, or a text such as ``"2026-07-01T12:00"``), or the `position` of a
                change: goes on right after it.
            batches: Give Arrow batches instead of single changes.
            columns: Only these columns.
            stop_at_end: End where the log ends when it begins, instead of waiting for more.
            timeout: End when nothing came for so many seconds.
            group: Share the work with all processes that follow the table with this name: each change is handled by
                one of them. Goes on where the group was; `start` counts for a group that never was.
            commit: Take a change for handled when the next one is asked for. False: only `commit()` does it.
            session_timeout: After how many seconds without a sign of life the others take over. Longer in a
                group of more than 25 members.

        Without `stop_at_end` and `timeout` it never ends; Ctrl-C raises KeyboardInterrupt, as everywhere.

        Example:
            async for change in orders.follow(start="earliest", stop_at_end=True):
                print(change.kind, change.row, change.position)
        """
        if start is None:
            start = "full" if self._info.has_primary_key() else "earliest"
        feed = self._feed(start, columns, stop_at_end, timeout, group, commit, session_timeout)
        if batches:
            return Follow[ChangeBatch](feed, lambda found: [[found]])
        return Follow[Change[T]](feed, lambda found: found._expand(feed.types, feed.model))

    def changes(
        self,
        start: Start = "earliest",
        *,
        live: bool = False,
        timeout: float | None = None,
        group: str | None = None,
        commit: bool = True,
        session_timeout: float = 2.5,
    ) -> Follow[ChangePair[T]]:
        """The changes so far, with the old and the new row of an update in one.

        They begin with the oldest change that is kept (changes expire with `table.log.ttl`) and end with the newest.

        Args:
            start: Where to begin; see `follow`.
            live: Go on with changes as they come, and never end.
            timeout: Go on with them, and end when nothing came for so many seconds.
            group: Go on with them, and share them with all processes that give this name; see `follow`.
            commit: See `follow`.
            session_timeout: See `follow`.

        Example:
            async for change in orders.changes():
                print(change.kind, change.old, change.new)
        """
        stop_at_end = not live and timeout is None and group is None
        feed = self._feed(start, None, stop_at_end, timeout, group, commit, session_timeout)
        feed.pairs = True
        pairing: Pairing[T] = Pairing()
        return Follow[ChangePair[T]](feed, lambda found: map(pairing.pairs, found._expand(feed.types, feed.model)))

    def _feed(
        self,
        start: Start,
        columns: Sequence[str] | str | None,
        stop_at_end: bool,
        timeout: float | None,
        group: str | None,
        commit: bool,
        session_timeout: float,
    ) -> Feed[T]:
        self._check_present("following its changes")
        if self._handle._view is not None:
            base = self._handle.get_table_path()
            raise InvalidArgumentError(f"'{self.path}' can only be read as a whole: follow '{base}' instead")
        model = self._model if columns is None else row_model(None, self._info)
        check_group(group, commit, session_timeout)
        connection = self._database._connection
        if group is None:
            return Feed(connection, self._info, model, start, columns, stop_at_end, timeout)
        if stop_at_end:
            raise InvalidArgumentError("a group has no end to stop at: its members share what comes. Use timeout=")
        return GroupFeed(connection, self._info, model, start, columns, timeout, group, commit, session_timeout)
