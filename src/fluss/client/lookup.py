# SPDX-License-Identifier: Apache-2.0
"""Lookups by primary key and by prefix."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from fluss.client.arguments import strings
from fluss.client.convert import KeyMaker, LookupKey
from fluss.client.lookup_queue import LookupQueue
from fluss.client.lookup_wire import LookupTarget, LookupWire, PrefixWire, ValueDecoder, schema_id_of, values_of
from fluss.client.metadata_cache import TableState, require_primary_key
from fluss.client.runner import Runner
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import Schema, TableInfo
from fluss.net.deadline import Deadline
from fluss.protocol import apis

if TYPE_CHECKING:
    from fluss.client.lookup_sockets import BlockingConnections

ACKS_ALL = -1


class _LookupResults:
    """Stored values of one table into dicts, whichever schema wrote them."""

    def __init__(self, runner: Runner, info: TableInfo) -> None:
        self._runner = runner
        self._info = info
        self._decoders: dict[int, ValueDecoder] = {info.schema_id: self._decoder(info.schema)}

    def _decoder(self, written: Schema) -> ValueDecoder:
        info = self._info
        return ValueDecoder(written, info.schema, info.kv_format, map_pairs=self._runner.cluster.map_pairs)

    def known_row(self, value: bytes) -> dict[str, Any] | None:
        """The row, or None if its schema has to be asked for: no waiting."""
        decoder = self._decoders.get(schema_id_of(value))
        return None if decoder is None else decoder.decode(value)

    async def row(self, value: bytes, deadline: Deadline | None = None) -> dict[str, Any]:
        schema_id = schema_id_of(value)
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            written = await self._runner.ask(lambda cluster: cluster.schema(self._info.table_path, schema_id, deadline))
            decoder = self._decoders[schema_id] = self._decoder(written)
        return decoder.decode(value)


class Lookuper:
    """Looks rows up by primary key. Create with `table.new_lookup().create_lookuper()`.

    Keys that are asked for at the same time travel together, from as many tasks as you like. It makes no difference
    whether those share a lookuper or have one each.
    """

    def __init__(self, runner: Runner, state: TableState, *, insert_if_not_exists: bool = False) -> None:
        info = state.table_info
        require_primary_key(info, "lookup")
        self._runner = runner
        self._state = state
        self._wire = _inserting(runner, info) if insert_if_not_exists else LookupWire()
        self._keys = KeyMaker.for_primary_key(info, runner.cluster.config.client_bucketing)
        self._results = _LookupResults(runner, info)
        self._queue: LookupQueue[bytes | None]
        if insert_if_not_exists:
            self._queue = LookupQueue(runner.cluster, state, self._wire, None)
            runner.cluster.attach_soon(self._queue)
        else:
            self._queue = LookupQueue.shared(runner.cluster, state, LookupWire, None)

    async def lookup(self, pk: object, *, timeout: float | None = None) -> dict[str, Any] | None:
        """Return the row with this primary key as a dict, or None if there is none.

        `pk` is a dict (or other mapping, or dataclass) with the key columns, or a list or tuple of their values.
        `timeout` is in seconds; by default a lookup takes at most twice the request timeout.

        Example:
            row = await lookuper.lookup({"id": 1}, timeout=2)
        """
        deadline = None if timeout is None else self._runner.cluster.deadline(timeout)
        return await self._lookup_key(self._keys.make(pk), deadline)

    def lookup_blocking(self, pk: object, connections: BlockingConnections) -> dict[str, Any] | None:
        """Look up in a thread that waits: over a connection of that thread, or through the queue.

        The queue gets what is not simple: no known leader, no free connection, and every error.
        """
        cluster = self._runner.cluster
        deadline = cluster.deadline()
        key = self._keys.make(pk)
        bucket = self._queue.known_bucket(key.partition, key.bucket_hash)
        node_id = None if bucket is None else cluster.metadata.leaders.get(bucket)
        connection = None if node_id is None else connections.take(node_id)
        if bucket is None or node_id is None or connection is None:
            return connections.run(self._lookup_key(key, deadline))
        # The queue keeps time for another attempt.
        limit = Deadline(deadline.limit_ms(cluster.config.request_timeout_ms))
        cluster.metrics.add("requests_total")
        cluster.metrics.add("lookup_batches_total")
        try:
            keys = {LookupTarget(bucket): [key.encoded]}
            request = self._wire.encode(bucket.table_id, keys, cluster.metadata.bucket_counts)
            answer = connection.call(apis.LOOKUP, [request], limit)
            value: bytes | None = values_of(self._wire.decode(bucket.table_id, answer), bucket, 1)[0]
        except FlussError:
            cluster.metrics.add("request_errors_total")
            return connections.run(self._lookup_key(key, deadline))
        finally:
            connections.give_back(node_id, connection)
        cluster.metrics.add("lookups_total")
        if value is None:
            return None
        row = self._results.known_row(value)
        return row if row is not None else connections.run(self._results.row(value, deadline))

    async def _lookup_key(self, key: LookupKey, deadline: Deadline | None) -> dict[str, Any] | None:
        value = await self._queue.get(key, deadline)
        return None if value is None else await self._results.row(value, deadline)

    async def lookup_many(self, keys: Any, *, missing: str = "drop", timeout: float | None = None) -> Any:
        """Look many keys up at once; the rows come back as a `pyarrow.Table`, in the order of the keys.

        `keys` is a list of keys as for `lookup`, or a `pyarrow.Table`, `RecordBatch` or DataFrame that has the key
        columns. Keys without a row are left out; with `missing="null"` each gives a row of nulls instead, so that the
        result lines up with the keys.
        """
        from fluss.client.lookup_many import lookup_many

        return await lookup_many(self._runner, self._state, self._keys, self._queue, keys, missing, timeout)

    def place_of(self, pk: object) -> tuple[str | None, int]:
        """The name of a key's partition, if there are any, and its hash: modulo the number of buckets, its bucket."""
        return self._keys.make(pk)[:2]

    def __repr__(self) -> str:
        return f"Lookuper({self._state.table_path})"


class PrefixLookuper:
    """Finds all rows whose primary key begins with given values. Create with `new_lookup().lookup_by(columns)`."""

    def __init__(self, runner: Runner, state: TableState, columns: Sequence[str]) -> None:
        info = state.table_info
        check_prefix_columns(info, columns)
        self._runner = runner
        self._state = state
        self._keys = KeyMaker.for_prefix(info, columns, runner.cluster.config.client_bucketing)
        self._results = _LookupResults(runner, info)
        self._queue: LookupQueue[list[bytes]] = LookupQueue.shared(runner.cluster, state, PrefixWire, [])

    async def lookup(self, prefix: object, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return all rows under a prefix, as dicts; an empty list if there are none.

        Example:
            rows = await lookuper.lookup({"customer": 7}, timeout=2)
        """
        deadline = None if timeout is None else self._runner.cluster.deadline(timeout)
        values = await self._queue.get(self._keys.make(prefix), deadline)
        return [await self._results.row(value, deadline) for value in values]

    def bucket_of(self, prefix: object) -> int:
        """The number of the bucket that the rows under a prefix lie in, in a table without partitions."""
        return self._keys.make(prefix).bucket_hash % self._state.num_buckets

    def __repr__(self) -> str:
        return f"PrefixLookuper({self._state.table_path}, {list(self._keys.names)})"


class TableLookup:
    """Builder of lookups. `table.new_lookup()` can also be used as the lookuper itself."""

    def __init__(self, runner: Runner, state: TableState, *, insert_if_not_exists: bool = False) -> None:
        require_primary_key(state.table_info, "lookup")
        self._runner = runner
        self._state = state
        self._inserts = insert_if_not_exists
        self._lookuper: Lookuper | None = None

    def enable_insert_if_not_exists(self) -> TableLookup:
        """Insert a row with the key alone where a lookup finds none, and return it.

        The other columns are null, or get their next number where they are auto-increment columns: a table of
        identifiers hands out numbers that way. Columns that may not be null must be one or the other. No partition is
        made: where it does not exist, nothing is found; keys of an expired one that is in the lake are refused. Apache
        Fluss 0.9.1 cannot insert into partitioned tables.

        Example:
            ids = table.new_lookup().enable_insert_if_not_exists().create_lookuper()
            number = (await ids.lookup({"name": "ada"}))["id"]
        """
        return TableLookup(self._runner, self._state, insert_if_not_exists=True)

    def create_lookuper(self) -> Lookuper:
        """A lookuper by primary key."""
        return Lookuper(self._runner, self._state, insert_if_not_exists=self._inserts)

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        """Look up by a prefix of the key: the partition columns (if any) and the bucket keys, in that order."""
        if self._inserts:
            raise InvalidArgumentError(
                f"A lookup by prefix of table '{self._state.table_path}' cannot insert: a prefix is not a whole key. "
                "Use create_lookuper() without lookup_by()"
            )
        return TablePrefixLookup(self._runner, self._state, strings("lookup_by", "column_names", column_names))

    async def lookup(self, pk: object, *, timeout: float | None = None) -> dict[str, Any] | None:
        """Older form: the builder used as the lookuper."""
        if self._lookuper is None:
            self._lookuper = self.create_lookuper()
        return await self._lookuper.lookup(pk, timeout=timeout)

    def __await__(self) -> Generator[Any, None, TableLookup]:
        return self
        yield

    def __repr__(self) -> str:
        return f"TableLookup({self._state.table_path})"


class TablePrefixLookup:
    """Builder of prefix lookups."""

    def __init__(self, runner: Runner, state: TableState, columns: Sequence[str]) -> None:
        self._runner = runner
        self._state = state
        self._columns = columns

    def create_lookuper(self) -> PrefixLookuper:
        """A lookuper by prefix; says what is wrong if the columns do not allow it."""
        return PrefixLookuper(self._runner, self._state, self._columns)

    def __repr__(self) -> str:
        return f"TablePrefixLookup({self._state.table_path}, {list(self._columns)})"


def _inserting(runner: Runner, info: TableInfo) -> LookupWire:
    given = {*info.primary_keys, *info.schema.get_auto_increment_columns()}
    required = [c.name for c in info.schema.columns if not c.data_type.nullable and c.name not in given]
    if required:
        raise InvalidArgumentError(
            f"Lookups of table '{info.table_path}' cannot insert missing rows: they would have no value in the "
            f"non-nullable field {', '.join(map(repr, required))}"
        )
    config = runner.cluster.config
    if config.read_only:
        raise InvalidArgumentError("the connection is read-only, so lookups cannot insert missing rows")
    return LookupWire(
        insert_if_not_exists=True, acks=config.required_acks or ACKS_ALL, timeout_ms=config.request_timeout_ms
    )


def check_prefix_columns(info: TableInfo, columns: Sequence[str]) -> None:
    """Refuse columns that cannot be a prefix, and say why."""
    path = info.table_path
    require_primary_key(info, "prefix lookup")
    names = info.get_column_names()
    for column in columns:
        if column not in names:
            raise InvalidArgumentError(
                f"Unknown column name {column!r} in prefix lookup on table '{path}': it has {names}"
            )
    bucket_keys, partition_keys = list(info.bucket_keys), list(info.partition_keys)
    physical = list(info.physical_primary_key)
    if physical[: len(bucket_keys)] != bucket_keys or len(bucket_keys) >= len(physical):
        raise InvalidArgumentError(
            f"Table '{path}' does not allow prefix lookup: its bucket keys {bucket_keys} must be the first columns, "
            f"and not all, of its primary key without partition fields {physical}"
        )
    if any(key not in columns for key in partition_keys):
        raise InvalidArgumentError(
            f"A prefix lookup on table '{path}' needs all partition fields {partition_keys}, got {list(columns)}"
        )
    rest = [column for column in columns if column not in partition_keys]
    if rest != bucket_keys:
        wanted = partition_keys + bucket_keys
        raise InvalidArgumentError(
            f"A prefix lookup on table '{path}' needs exactly the partition fields and bucket keys {wanted}, got "
            f"{list(columns)}; for the full primary key use create_lookuper() without lookup_by()"
        )
