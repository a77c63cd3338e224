# SPDX-License-Identifier: Apache-2.0
"""The plan of a scan: which columns and rows of which table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from fluss import _plugins
from fluss.client.cluster import Cluster
from fluss.client.fanout import list_bucket_offsets
from fluss.client.retry import CHECK_SERVERS, gave_up_text, within
from fluss.client.scan.decode import BatchDecoder, read_columns
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.records import RecordBatch
from fluss.client.scan.subscription import FetchOptions, Subscription
from fluss.client.table import check_indexes, column_indexes
from fluss.config import Config
from fluss.errors import DeadlineExceededError, FlussError, InvalidArgumentError
from fluss.metadata import EARLIEST_OFFSET, OffsetSpec, Schema, TableBucket, TableInfo, TablePath
from fluss.metadata.path import LAKE
from fluss.net.deadline import Deadline
from fluss.protocol import messages as pb

if TYPE_CHECKING:
    from fluss.metadata import Predicate

_BOUNDED_FETCH_BYTES = 8 * 1024 * 1024
_GROUP_BATCHES_MAX = 16
_GROUP_ROWS_MAX = 50_000
"""Of large batches each goes alone: the first rows should not wait for the last."""


@dataclass(frozen=True)
class ScanPlan:
    """What to read of a table. Immutable, so that one builder can make many scanners."""

    cluster: Cluster
    info: TableInfo
    projection: tuple[int, ...] | None = None
    predicate: Predicate | None = None
    limit: int | None = None
    fixed_schema: bool = True
    view: str | None = None
    """The virtual table that is read: `changelog`, `binlog`, `lake`, or None for the table itself."""

    @property
    def config(self) -> Config:
        return self.cluster.config

    def check_bucket(self, bucket_id: int, partition_id: int | None = None) -> None:
        """Refuse a bucket that does not exist. The server refuses one of a partition that is not known yet."""
        count: int | None = self.info.num_buckets
        if partition_id is not None and self.info.bucket_count_epoch is not None:
            count = self.cluster.metadata.routing_count(TableBucket(self.info.table_id, 0, partition_id))
        if bucket_id < 0 or (count is not None and bucket_id >= count):
            where = f"table {self.info.table_path}"
            where = where if partition_id is None else f"partition {partition_id} of {where}"
            text = "" if count is None else f": {where} has buckets 0 to {count - 1}"
            raise InvalidArgumentError(f"bucket {bucket_id} does not exist{text}")

    def fetch_options(self) -> FetchOptions:
        """Limits for a scan that goes on: what the configuration says."""
        step = self.config.scanner_log_fetch_max_bytes_for_bucket
        return FetchOptions(max_bytes_for_bucket=step, buffered_bytes_for_bucket=2 * step)

    def bounded_options(self) -> FetchOptions:
        """Limits for reading everything: larger steps, since it is known that all of it is wanted.

        What has to be decompressed takes longer to take apart than to get: larger steps would only take memory. Columns
        that a server has to cut out take it longer than to send them: it can cut while what it sent is taken apart.
        """
        options = self.fetch_options()
        options = replace(options, patience_ms=min(options.patience_ms, self.cluster.call_timeout_ms))
        if self.info.log_format == "ARROW" and self.info.arrow_compression[0] != "NONE":
            return replace(options, buffered_bytes_for_bucket=options.max_bytes_for_bucket)
        if self.server_projection is not None:
            return options
        step = max(options.max_bytes_for_bucket, min(self.config.scanner_log_fetch_max_bytes, _BOUNDED_FETCH_BYTES))
        return replace(options, max_bytes_for_bucket=step, buffered_bytes_for_bucket=2 * step)

    @property
    def server_projection(self) -> list[int] | None:
        """The columns the server is asked for, with those that rows are filtered by here."""
        return read_columns(self.info, self.projection, self.predicate) if self.info.log_format == "ARROW" else None

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the Arrow batches that the scan gives."""
        whole = self.info.schema.arrow_schema
        return whole if self.projection is None else pa.schema([whole.field(i) for i in self.projection])

    def to_table(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """Batches of the scan as one table; without a fixed schema, columns that some batches lack are null there."""
        if self.fixed_schema or not batches:
            return pa.Table.from_batches(batches, schema)
        return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")

    def decoder(self, schema_of: Callable[[int], Schema]) -> BatchDecoder:
        return BatchDecoder(self.info, schema_of, self.projection, self.predicate, fixed_schema=self.fixed_schema)

    def fetcher(self, options: FetchOptions, *, eager: bool = True) -> Fetcher:
        return Fetcher(
            self.cluster,
            self.info,
            self.decoder,
            options,
            projection=self.server_projection,
            predicate=self._server_filter(),
            eager=eager,
        )

    def _server_filter(self) -> pb.PbPredicate | None:
        """The filter the server is sent: only log batches in the ARROW format carry statistics that it can prune by."""
        if self.predicate is None or self.info.log_format != "ARROW" or self.info.has_primary_key():
            return None
        from fluss.protocol.predicates import encode_server_filter  # most scans read everything

        return encode_server_filter(self.predicate, self.info.schema)

    async def offsets(
        self, buckets: Sequence[TableBucket], spec: OffsetSpec, deadline: Deadline | None = None
    ) -> dict[TableBucket, int]:
        """Ask for the offsets of many buckets at once, retried where a leader moved or the network failed."""
        if not buckets:
            return {}
        return await list_bucket_offsets(self.cluster, self.info.table_path, buckets, spec, deadline)

    async def read(
        self,
        start_offsets: dict[TableBucket, int],
        stop_offsets: dict[TableBucket, int] | None = None,
        deadline: Deadline | None = None,
    ) -> AsyncGenerator[RecordBatch, None]:
        """Read all rows of the buckets from their start offsets up to the end of the log now (or the given ends).

        Without a deadline the read may take as long as it makes progress: a bucket that fails, or has no
        further row before its end, for as long as a call may take ends it.
        """
        async with contextlib.aclosing(self.read_groups(start_offsets, stop_offsets, deadline)) as groups:
            async for group in groups:
                for batch in group:
                    yield batch

    async def read_groups(
        self,
        start_offsets: dict[TableBucket, int],
        stop_offsets: dict[TableBucket, int] | None = None,
        deadline: Deadline | None = None,
    ) -> AsyncGenerator[list[RecordBatch], None]:
        """Read as `read` does, and give batches that are there at the same moment together.

        For readers in other threads, who would otherwise wait for the event loop before each small batch.
        """
        # A log whose beginning was removed may have nothing before its end: where "earliest" is must be known.
        earliest = [bucket for bucket, start in start_offsets.items() if start == EARLIEST_OFFSET]
        unknown = list(start_offsets) if stop_offsets is None else []
        ends, starts = await asyncio.gather(
            self.offsets(unknown, OffsetSpec.latest(), deadline),
            self.offsets(earliest, OffsetSpec.earliest(), deadline),
        )
        start_offsets = {**start_offsets, **starts}
        stop_offsets = ends if stop_offsets is None else stop_offsets
        fetcher = self.fetcher(self.bounded_options())
        try:
            parts = [Subscription(bucket, start, stop_offsets[bucket]) for bucket, start in start_offsets.items()]
            fetcher.add(*(part for part in parts if not part.fetched_all))
            size = 1
            while True:
                found = await fetcher.next(None if deadline is None else deadline.remaining_ms / 1000)
                if found is None:
                    if deadline is not None and not fetcher.done:
                        raise _late_error(fetcher, deadline)
                    return
                group, error = await _ready_group(fetcher, found, size)
                yield group
                if error is not None:
                    raise error
                size = min(2 * size, _GROUP_BATCHES_MAX)
        finally:
            await fetcher.close()

    def read_deadline(self, timeout: float | None) -> Deadline | None:
        """Make the deadline of a whole read; None if it may take as long as it makes progress."""
        return None if timeout is None else self.cluster.deadline(timeout)

    async def read_with_lake(self, timeout: float | None = None) -> pa.Table:
        """Read the wanted rows and columns of the whole table, from the lake and (but for `$lake`) the log after it."""
        read = lake_reader().union_read_once
        names = self.info.schema.column_names
        wanted = names if self.projection is None else [names[i] for i in self.projection]
        needed = read_columns(self.info, self.projection, self.predicate)
        columns = names if needed is None else [names[i] for i in needed]
        work = partial(
            asyncio.to_thread,
            read,
            self.config.to_dict(),
            self.info.table_path,
            self.info.table_id,
            list(dict.fromkeys([*wanted, *columns])),
            self.view == LAKE,
        )
        table: pa.Table = await within(work, timeout, f"Reading table '{self.info.table_path}' with its lake")
        if self.predicate is not None:
            table = table.filter(self.predicate.to_arrow_expression(self.info.schema))
        return table.select(list(wanted))

    def without_projection(self) -> ScanPlan:
        return replace(self, projection=None)

    def project(self, indices: Sequence[int]) -> ScanPlan:
        self._check_no_view("columns cannot be chosen")
        wanted = check_indexes(self.info, indices)
        if not wanted:
            raise InvalidArgumentError("a projection needs at least one column")
        if len(set(wanted)) != len(wanted):
            raise InvalidArgumentError(f"a projection names each column once; got {wanted}")
        return replace(self, projection=tuple(wanted))

    def project_by_name(self, names: Sequence[str]) -> ScanPlan:
        return self.project(column_indexes(self.info, names))

    def with_limit(self, n: int) -> ScanPlan:
        if not isinstance(n, int) or isinstance(n, bool) or n <= 0:
            raise InvalidArgumentError(f"a limit is a positive number of rows; got {n!r}")
        return replace(self, limit=n)

    def _check_no_view(self, what: str) -> None:
        if self.view is not None and self.view != LAKE:
            raise InvalidArgumentError(
                f"{what} for the virtual table '{self.info.table_path}${self.view}': choose from what it gives"
            )

    def check_has_log(self) -> None:
        """Refuse to read the lake of a table bucket by bucket or from an offset on."""
        if self.view == LAKE:
            raise InvalidArgumentError(
                f"'{self.info.table_path}$lake' is read as a whole, with create_table_batch_scanner(); open "
                f"'{self.info.table_path}' to read its log or a bucket"
            )

    def with_filter(self, predicate: Predicate) -> ScanPlan:
        self._check_no_view("rows cannot be filtered")
        predicate.to_arrow_expression(self.info.schema)  # names and types are checked now, not at the first row
        return replace(self, predicate=predicate)


async def _ready_group(
    fetcher: Fetcher, first: tuple[Subscription, RecordBatch], size: int
) -> tuple[list[RecordBatch], Exception | None]:
    """Up to `size` batches that can be had without waiting, and what kept the next one from being had."""
    group, rows = [first[1]], first[1].num_records
    while len(group) < size and rows < _GROUP_ROWS_MAX and fetcher.is_ready:
        try:
            found = await fetcher.next(0)
        except Exception as error:
            return group, error
        if found is None:
            break
        group.append(found[1])
        rows += found[1].num_records
    return group, None


def _late_error(fetcher: Fetcher, deadline: Deadline) -> FlussError:
    """Describe a bounded read that did not finish by its deadline."""
    open_ones = [subscription for subscription in fetcher.subscriptions.values() if not subscription.done]
    causes = [s.last_error for s in open_ones if s.failures and s.last_error is not None]
    what = f"Reading table '{fetcher.info.table_path}'"
    if causes:
        attempts = max(subscription.failures for subscription in open_ones)
        return type(causes[0])(gave_up_text(what, attempts, deadline.total_ms, causes[0]), causes[0].error_code)
    counted = "1 bucket was" if len(open_ones) == 1 else f"{len(open_ones)} buckets were"
    return DeadlineExceededError(
        f"{what} did not finish within {deadline.total_ms:.0f} ms: {counted} not read to the end. {CHECK_SERVERS}"
    )


class LakeReader(Protocol):
    """Reads tables from their lake and from the log after it.

    The lake package, which is built on the client, implements it as `client.lake`.
    """

    def union_read_once(
        self,
        options: Mapping[str, Any],
        path: TablePath,
        table_id: int,
        columns: Sequence[str],
        lake_only: bool = False,
        /,
    ) -> pa.Table:
        """Read these columns of a table, with these client options. Blocks the calling thread.

        A table of this name with another id is refused.
        """
        ...


def lake_reader() -> LakeReader:
    """Return the reader; its package is imported with the first call."""
    return cast("LakeReader", _plugins.implementation("client.lake"))
