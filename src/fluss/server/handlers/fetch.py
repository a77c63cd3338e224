# SPDX-License-Identifier: Apache-2.0
"""FETCH_LOG: batches from many buckets at once, waiting for them if asked to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from fluss.errors import (
    ErrorCode,
    FlussError,
    FormatError,
    InvalidColumnProjectionError,
    LogOffsetOutOfRangeError,
    UnknownServerError,
)
from fluss.metadata import Predicate
from fluss.net.eager import complete
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import FETCH_LOG
from fluss.protocol.frames import join_small_parts
from fluss.protocol.predicates import decode_predicate
from fluss.protocol.record_messages import (
    FetchedBucket,
    FetchedTable,
    encode_fetch_log_response,
)
from fluss.records import HEADER_SIZE_MIN, LogBatch, ProjectedBatch, Statistics, cut_batch, may_match
from fluss.records.log_batch import BatchSpan
from fluss.server.catalog import TableEntry
from fluss.server.handlers.answers import wire_error
from fluss.server.handlers.request import Buffer, RequestContext, bucket_of, in_codec_thread, receive_message
from fluss.server.handlers.rights import permitted_table
from fluss.server.log import reader
from fluss.server.log.files import DamagedLogError
from fluss.server.log.projection import Projection
from fluss.server.log.tablet import LogTablet
from fluss.server.scheduler import TimeSlice

RESPONSE_BYTES_MAX = 128 * 1024 * 1024
"""Whatever a client asks for, one answer does not grow beyond this (except for a single larger batch)."""
_BUCKET_BYTES = 480
"""What each bucket of a fetch takes until it is answered: 40 times its bytes in the request."""
WAIT_MS_DEFAULT = 100
WAIT_MS_MAX = 10 * 60 * 1000
INLINE_READ_BYTES_MAX = 128 * 1024
REMOTE_FIRST = 1
REMOTE_SEGMENTS_MAX = 256
_MANY_BUCKETS = 1_000
_RETRY_METADATA = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION})


@dataclass
class _Part:
    """What one fetch request wants from one bucket, and the answer it gets."""

    answer: FetchedBucket[Sequence[Buffer]]
    bytes_max: int
    tablet: LogTablet | None = None
    offset: int = 0
    projection: Projection | None = None
    may_match: reader.Filter | None = None
    remote_first: bool = False

    @property
    def is_remote(self) -> bool:
        """The client has to read from the remote log: the offset is no longer here, or it prefers to."""
        tablet = self.tablet
        if tablet is None or tablet.remote is None or self.failed:
            return False
        return self.offset < tablet.start_offset or (self.remote_first and bool(tablet.remote.covering(self.offset)))

    @property
    def failed(self) -> bool:
        return self.answer.error_code is not None

    def fail(self, error: FlussError) -> None:
        self.answer.error_code, self.answer.error_message = wire_error(error)
        if isinstance(error, DamagedLogError):
            # Scanners of all clients try again for long after any other code; this one they raise at once.
            self.answer.error_code = ErrorCode.CORRUPT_MESSAGE
        self.answer.records = None
        self.answer.high_watermark = None
        self.answer.filtered_end_offset = None


async def fetch_log(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    request = await receive_message(context, FETCH_LOG, body)
    buckets = sum(len(asked.buckets_req) for asked in request.tables_req)
    memory = context.server.memory
    memory.take(buckets * _BUCKET_BYTES)
    try:
        return await _fetch(context, request)
    finally:
        memory.release(buckets * _BUCKET_BYTES)


async def _fetch(context: RequestContext, request: pb.FetchLogRequest) -> Sequence[Buffer]:
    tables: list[FetchedTable[Sequence[Buffer]]] = []
    parts: list[_Part] = []
    time_slice = context.begin_slice()
    for asked in request.tables_req:
        table, table_parts = await _open_table(
            context, asked, time_slice, remote_first=request.read_preference == REMOTE_FIRST
        )
        tables.append(table)
        parts += table_parts
    context.session.last_fetch = [
        (part.tablet.bucket, part.offset) for part in parts[:_MANY_BUCKETS] if part.tablet is not None
    ]
    if request.HasField("min_bytes"):
        wait_ms = request.max_wait_ms if request.HasField("max_wait_ms") else WAIT_MS_DEFAULT
        await _wait_for_bytes(context, parts, request.min_bytes, min(wait_ms, WAIT_MS_MAX), time_slice)
    bytes_max = min(request.max_bytes, RESPONSE_BYTES_MAX)
    # Whole batches are sent from the file; those of which columns are left out are put together in memory.
    held_bytes_max = max(bytes_max, 0) if any(part.projection is not None for part in parts) else 0
    async with context.session.making_answer(held_bytes_max):
        await _read_all(context, parts, bytes_max, time_slice)
    _count_fetches(context, tables)
    if len(parts) > _MANY_BUCKETS:
        return await in_codec_thread(context, _encode_many, tables)
    return encode_fetch_log_response(tables)


def _encode_many(tables: list[FetchedTable[Sequence[Buffer]]]) -> Sequence[Buffer]:
    return join_small_parts(encode_fetch_log_response(tables))


async def _open_table(
    context: RequestContext, asked: pb.PbFetchLogReqForTable, time_slice: TimeSlice, *, remote_first: bool
) -> tuple[FetchedTable[Sequence[Buffer]], list[_Part]]:
    """Resolve buckets and offsets; what fails is answered per bucket."""
    refusal: FlussError | None = None
    projection: Projection | None = None
    pruning: reader.Filter | None = None
    try:
        entry = permitted_table(context, asked.table_id)
        if asked.projection_pushdown_enabled:
            projection = _projection(context, entry, tuple(asked.projected_fields))
        if asked.HasField("filter_predicate") and asked.HasField("filter_schema_id"):
            pruning = _pruning(entry, asked.filter_predicate, asked.filter_schema_id)
    except FlussError as error:
        refusal = error
    table = FetchedTable[Sequence[Buffer]](asked.table_id)
    parts: list[_Part] = []
    async for bucket_asked in time_slice.each(asked.buckets_req):
        partition_id = bucket_asked.partition_id if bucket_asked.HasField("partition_id") else None
        answer = FetchedBucket[Sequence[Buffer]](bucket_asked.bucket_id, partition_id)
        part = _Part(
            answer,
            bucket_asked.max_fetch_bytes,
            projection=projection,
            may_match=pruning,
            remote_first=remote_first,
        )
        table.buckets.append(answer)
        parts.append(part)
        try:
            if refusal is not None:
                raise refusal
            count = bucket_asked.routing_bucket_count
            bucket = bucket_of(context, asked.table_id, partition_id, bucket_asked.bucket_id, count)
            part.tablet = context.server.tablets.tablet(bucket)
            part.offset = reader.resolve_offset(part.tablet, bucket_asked.fetch_offset)
        except FlussError as error:
            part.fail(error)
    return table, parts


def _projection(context: RequestContext, entry: TableEntry, positions: tuple[int, ...]) -> Projection:
    """Check the wanted columns, and return what cuts them out of a batch."""
    if entry.table_info.log_format != "ARROW":
        raise InvalidColumnProjectionError(
            f"columns of '{entry.table_path}' cannot be projected: its log format is {entry.table_info.log_format}, "
            "only ARROW can"
        )
    count = len(entry.table_info.schema.columns)
    ascending = all(left < right for left, right in itertools.pairwise(positions))
    if not positions or not ascending or positions[0] < 0 or positions[-1] >= count:
        raise InvalidColumnProjectionError(
            f"the projected columns {list(positions)} of '{entry.table_path}' are not valid: expected positions below "
            f"{count}, ascending and without duplicates"
        )
    wanted = entry.table_info.schema.arrow_schema
    by_schema: dict[int, tuple[tuple[int, ...], pa.Schema, pa.Schema | None]] = {}

    def cut(view: memoryview, span: BatchSpan) -> ProjectedBatch:
        known = by_schema.get(span.schema_id)
        if known is None:
            schema = entry.schemas.get(span.schema_id)
            if schema is None:
                raise UnknownServerError(
                    f"a batch of '{entry.table_path}' at offset {span.base_offset} has the unknown schema "
                    f"{span.schema_id}"
                )
            there = tuple(position for position in positions if position < len(schema.columns))
            younger = [wanted.field(position) for position in positions[len(there) :]]
            added = pa.schema(younger) if younger else None
            known = by_schema[span.schema_id] = (there, schema.arrow_schema, added)
        columns, arrow_schema, added = known
        return cut_batch(LogBatch(view[span.start : span.end]), columns, arrow_schema, added)

    return Projection(positions, cut, context.server.tablets.intact_cuts)


def _pruning(entry: TableEntry, message: pb.PbPredicate, schema_id: int) -> reader.Filter | None:
    """Return what rules out batches without a wanted row. A filter that cannot be used is ignored: that is legal."""
    schema = entry.schemas.get(schema_id)
    if schema is None or entry.table_info.log_format != "ARROW":
        return None
    try:
        predicate: Predicate = decode_predicate(message, schema)
    except FlussError:
        return None

    def wanted(view: memoryview, span: BatchSpan) -> bool:
        if span.record_count == 0:
            return False
        if span.statistics_length == 0:
            return True
        written = entry.schemas.get(span.schema_id)
        if written is None:
            return True
        try:
            statistics = Statistics.parse(LogBatch(view[span.start : span.end]).statistics_view, written)
        except FormatError:
            return True
        return statistics is None or may_match(predicate, statistics, span.record_count, schema)

    return wanted


# Waiting -------------------------------------------------------------------------------------------------------------


async def _wait_for_bytes(
    context: RequestContext, parts: list[_Part], bytes_min: int, wait_ms: int, time_slice: TimeSlice
) -> None:
    """Wait until enough can be read, for as long as asked."""
    async for part in time_slice.each(parts):
        if (part.failed and part.answer.error_code not in _RETRY_METADATA) or part.is_remote:
            return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    tablets = list(dict.fromkeys(part.tablet for part in parts if part.tablet is not None))
    while not context.server.stopping:
        # Registered before anything is counted: that takes several slices for many buckets, which may change meanwhile.
        changed: asyncio.Future[None] = loop.create_future()
        for tablet in tablets:
            tablet.fetch_waiters.add(changed)
        try:
            readable = 0
            async for part in time_slice.each(parts):
                if part.tablet is not None and not part.failed:
                    readable += min(reader.readable_bytes(part.tablet, part.offset), max(part.bytes_max, 1))
            left = deadline - loop.time()
            if left <= 0:
                context.server.metrics.add("tabletserver_delayedFetchFromClientExpires_total")
            if readable >= bytes_min or left <= 0:
                return
            timer = loop.call_later(left, complete, changed)
            try:
                await changed
            finally:
                timer.cancel()
        finally:
            for tablet in tablets:
                tablet.fetch_waiters.discard(changed)
        if any(tablet.deleted for tablet in tablets):
            return


# Reading -------------------------------------------------------------------------------------------------------------


async def _read_all(context: RequestContext, parts: list[_Part], bytes_max: int, time_slice: TimeSlice) -> None:
    """Read bucket after bucket until the request's limit; the first bucket with data gets a batch whatever its size."""
    left = bytes_max
    sent = 0
    by_table: dict[int, int] = {}
    many = len(parts) > 1
    for part in parts:
        if many and time_slice.is_over:
            await time_slice.next()
        if part.tablet is None or part.failed:
            continue
        part_bytes_max = min(left, part.bytes_max)
        try:
            part.tablet.check_usable()
            part.answer.high_watermark = part.tablet.high_watermark
            if part.is_remote:
                part.answer.remote_log_fetch_info = await _remote_info(context, part.tablet, part.offset)
                continue
            if sent and part_bytes_max < HEADER_SIZE_MIN:
                continue  # no batch fits; looking for one would take long for many buckets
            plan = reader.plan_read(
                part.tablet,
                part.offset,
                part_bytes_max,
                first_batch_always=sent == 0,
                projection=part.projection,
                may_match=part.may_match,
            )
            result = await run_read(context, plan)
        except FlussError as error:
            part.fail(error)
            continue
        part.answer.records = result.parts
        part.answer.filtered_end_offset = result.filtered_end_offset
        left -= result.size_bytes
        if result.size_bytes:
            sent += result.size_bytes
            table_id = part.tablet.bucket.table_id
            by_table[table_id] = by_table.get(table_id, 0) + result.size_bytes
    _count_sent(context, sent, by_table)


def _count_sent(context: RequestContext, sent: int, by_table: Mapping[int, int]) -> None:
    context.server.metrics.add("tabletserver_bytesOut_total", sent)
    for table_id, size_bytes in by_table.items():
        entry = context.server.catalog.table_by_id(table_id)
        if entry is not None:
            context.count_bytes_out(entry, size_bytes)


def _count_fetches(context: RequestContext, tables: Sequence[FetchedTable[Sequence[Buffer]]]) -> None:
    for table in tables:
        entry = context.server.catalog.table_by_id(table.table_id)
        if entry is not None:
            entry.counters.fetch_log += 1
            entry.counters.fetch_log_failed += any(bucket.error_code is not None for bucket in table.buckets)


async def _remote_info(context: RequestContext, tablet: LogTablet, offset: int) -> pb.PbRemoteLogFetchInfo:
    """Where the client finds the segments from ``offset`` on."""
    remote = tablet.remote
    segments = remote.covering(offset) if remote is not None else ()
    if remote is None or not segments:
        raise LogOffsetOutOfRangeError(
            f"offset {offset} of {tablet.bucket} is neither in the log nor in the remote log, which has the offsets "
            f"{tablet.earliest_offset} to {tablet.end_offset}"
        )
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir=remote.folder, partition_name=remote.manifest.partition_name)
    info.first_start_pos = await asyncio.get_running_loop().run_in_executor(
        context.server.executor, remote.start_position, segments[0], offset
    )
    for segment in segments[:REMOTE_SEGMENTS_MAX]:
        info.remote_log_segments.add(
            remote_log_segment_id=segment.segment_id,
            remote_log_start_offset=segment.start_offset,
            remote_log_end_offset=segment.end_offset,
            segment_size_in_bytes=segment.size_in_bytes,
            max_timestamp=segment.max_timestamp,
        )
    return info


async def run_read(context: RequestContext, plan: reader.ReadPlan) -> reader.ReadResult:
    """Read here when it is little, in a thread when it is much."""
    if not plan.segments:
        return reader.ReadResult()
    work: Callable[[reader.ReadPlan], reader.ReadResult] = reader.read
    try:
        few_bytes = min(plan.bytes_max, reader.readable_bytes(plan.tablet, plan.offset)) <= INLINE_READ_BYTES_MAX
        if (few_bytes or plan.is_quick) and plan.is_cached:
            return work(plan)
        return await context.session.share.in_thread(context.server.executor, work, plan)
    except OSError as error:
        raise UnknownServerError(
            f"the log of {plan.tablet.bucket} cannot be read: {error.strerror or error}"
        ) from error
