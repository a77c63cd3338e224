# SPDX-License-Identifier: Apache-2.0
"""Writing a log and asking about it: PRODUCE_LOG, LIST_OFFSETS, LIMIT_SCAN, INIT_WRITER, GET_TABLE_STATS.

FETCH_LOG has a module of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from fluss.errors import (
    CorruptRecordError,
    DiskWriteLockedError,
    FlussError,
    FormatError,
    InvalidRequiredAcksError,
    InvalidTableError,
    InvalidTimestampError,
    RecordTooLargeError,
    SchemaNotExistError,
    UnknownServerError,
)
from fluss.metadata import TableBucket
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import LIMIT_SCAN
from fluss.protocol.record_messages import (
    BucketRecords,
    LimitScanResponse,
    ProducedBucket,
    TooManyBucketsError,
    WriteRequest,
    decode_produce_log,
    encode_limit_scan_response,
    encode_produce_log_response,
)
from fluss.records import LogBatch, check_log_batch, iter_log_batches
from fluss.server.catalog import TableEntry
from fluss.server.handlers import fetch as fetch_handlers
from fluss.server.handlers.answers import (
    ANSWER_BYTES_MAX,
    count_expired,
    set_error,
    wire_error,
)
from fluss.server.handlers.request import (
    Buffer,
    Reply,
    RequestContext,
    bucket_of,
    in_codec_thread,
    parse_message,
)
from fluss.server.handlers.rights import permitted_table, require_any_table
from fluss.server.log import reader
from fluss.server.log.appends import AppendResult
from fluss.server.log.tablet import LogTablet
from fluss.server.scheduler import TimeSlice

ACKS_ALL = -1
EARLIEST, LATEST, TIMESTAMP, LEADER_END = 0, 1, 2, 3
INLINE_BUCKETS_MAX = 500
"""Writes to more buckets are decoded in a thread."""
BATCHES_MAX = 1_000
"""Batches of a write to one bucket. Clients send one or a few; each takes some 20 microseconds, however small."""
_CHECK_BYTES_MAX = 24 * 1024 * 1024
"""How many bytes of null bits and offsets a write may make the server decompress: what takes less than 50 ms."""


def check_acks(acks: int) -> None:
    """The one check whose error goes to the whole write request."""
    if acks not in (ACKS_ALL, 0, 1):
        raise InvalidRequiredAcksError(f"acks is {acks}, but must be -1 (all), 0 or 1")


def check_disk(context: RequestContext) -> None:
    """Whether there is room for writes.

    The error goes to each bucket and never to the whole request: some clients repeat such a request for ever.
    """
    if context.server.disk_full:
        raise DiskWriteLockedError(
            "the disk of the server is nearly full; writes are refused until there is room. Free space on it, drop "
            "tables or partitions, or shorten table.log.ttl"
        )


def check_records(entry: TableEntry, bucket: TableBucket, records: memoryview, bytes_max: int) -> int:
    """Refuse batches that would break their readers, before anything of them is written.

    What the log itself checks is left to it: whole batches, headers, sequences and checksums. Not more than `bytes_max`
    are decompressed for it; returns what is left of them.
    """
    info = entry.table_info
    for number, batch in enumerate(iter_log_batches(records)):
        if number >= BATCHES_MAX:
            raise RecordTooLargeError(
                f"a write to {bucket} of '{info.table_path}' has more than {BATCHES_MAX} batches, nothing of it was "
                "written. Put more rows into a batch, or send several requests."
            )
        schema = entry.schemas.get(batch.header.schema_id)
        try:
            if schema is None:
                raise SchemaNotExistError(
                    f"a batch for {bucket} of '{info.table_path}' was written with schema {batch.header.schema_id}, "
                    f"which the table does not have; its latest is {info.schema_id}"
                )
            bytes_max -= check_log_batch(batch, schema.arrow_schema, info.log_format, check_bytes_max=bytes_max)
        except (FormatError, SchemaNotExistError) as error:
            if not batch.crc_is_valid:
                break  # damaged in transit: the log says so, and the sender repeats it
            if isinstance(error, SchemaNotExistError):
                raise
            raise _invalid_batch(entry, bucket, batch, error) from None
    return bytes_max


def _invalid_batch(entry: TableEntry, bucket: TableBucket, batch: LogBatch, error: FormatError) -> CorruptRecordError:
    return CorruptRecordError(
        f"a batch of {batch.header.record_count} records for {bucket} of '{entry.table_info.table_path}' is not valid, "
        f"nothing of it was written: {error.message}. Its checksum fits, so its writer made it like this: check the "
        "program that encoded it"
    )


# PRODUCE_LOG ---------------------------------------------------------------------------------------------------------


def produce_log(context: RequestContext, body: memoryview, reply: Reply) -> None:
    # Nothing may wait before every bucket has its place in the queue of its log: requests of one connection start in
    # the order in which they came, and idempotent writers send several at a time.
    try:
        request = decode_produce_log(body, INLINE_BUCKETS_MAX)
    except TooManyBucketsError:
        context.session.hold()
        context.spawn(_produce_to_many(context, body, reply))
        return
    check_acks(request.acks)
    _Produce(context, reply, request).start(request.buckets)


async def _produce_to_many(context: RequestContext, body: memoryview, reply: Reply) -> None:
    """Decode in a thread. The requests that came after this one are held until it has started completely."""
    try:
        request = await in_codec_thread(context, decode_produce_log, body)
        check_acks(request.acks)
        _Produce(context, reply, request).start(request.buckets)
    except Exception as error:
        reply.fail(error)
    finally:
        context.session.release()


class _Produce:
    """One PRODUCE_LOG: its buckets are written at once, and it is answered when the last of them is durable."""

    def __init__(self, context: RequestContext, reply: Reply, request: WriteRequest) -> None:
        self._context = context
        self._reply = reply
        self._table_id = request.table_id
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._entry: TableEntry | None = None
        self._answers = [ProducedBucket(part.bucket_id, part.partition_id) for part in request.buckets]
        self._left = 1
        self._check_bytes_left = _CHECK_BYTES_MAX
        self._failure: Exception | None = None
        self._refused = False
        self._messages = 0
        self._size_bytes = 0

    def start(self, parts: list[BucketRecords]) -> None:
        """Begin to write all buckets, in slices: the first write to a bucket makes its files, each batch is checked."""
        time_slice = self._context.begin_slice()
        for at, part in enumerate(parts):
            if time_slice.is_over:
                self._context.session.hold()
                self._context.spawn(self._add_rest(parts[at:], self._answers[at:], time_slice))
                return
            self._add(part, self._answers[at])
        self._decrement()

    async def _add_rest(self, parts: list[BucketRecords], answers: list[ProducedBucket], time_slice: TimeSlice) -> None:
        try:
            async for part, answer in time_slice.each(zip(parts, answers)):
                self._add(part, answer)
        except Exception as error:
            self._failure = error
        finally:
            self._context.session.release()
            self._decrement()

    def _add(self, part: BucketRecords, answer: ProducedBucket) -> None:
        self._left += 1
        self._size_bytes += len(part.records)
        try:
            tablet = self._tablet(part)
        except Exception as error:
            self._ended(answer, error)
        else:
            tablet.append_then(part.records, partial(self._appended, answer, tablet))

    def _tablet(self, part: BucketRecords) -> LogTablet:
        self._entry = entry = permitted_table(self._context, self._table_id)
        check_disk(self._context)
        if entry.has_primary_key:
            raise InvalidTableError(f"table '{entry.table_path}' has a primary key; write to it with PUT_KV")
        bucket = bucket_of(self._context, self._table_id, part.partition_id, part.bucket_id, part.routing_bucket_count)
        tablet = self._context.server.tablets.tablet(bucket)
        try:
            self._check_bytes_left = check_records(entry, bucket, part.records, self._check_bytes_left)
        except FormatError as error:  # a header that cannot be
            raise CorruptRecordError(error.message) from None
        return tablet

    def _count(self) -> None:
        if self._entry is not None:
            self._context.count_bytes_in(self._entry, self._size_bytes)
            self._context.count_messages_in(self._entry, self._messages)
            counters = self._entry.counters
            counters.produce_log += 1
            counters.produce_log_failed += self._refused

    def _appended(self, answer: ProducedBucket, tablet: LogTablet, outcome: AppendResult | Exception) -> None:
        if isinstance(outcome, Exception):
            self._ended(answer, outcome)
            return
        answer.base_offset = outcome.base_offset
        if outcome.base_offset >= 0 and not outcome.duplicate:
            self._messages += outcome.end_offset - outcome.base_offset
        if self._acks == ACKS_ALL:
            tablet.when_committed(outcome.end_offset, partial(self._ended, answer), self._timeout_ms)
        else:
            self._decrement()

    def _ended(self, answer: ProducedBucket, error: Exception | None) -> None:
        if error is not None:
            self._refused = True
            count_expired(self._context, error)
        if isinstance(error, FlussError):
            answer.base_offset = None
            answer.error_code, answer.error_message = wire_error(error)
        elif error is not None:
            self._failure = error
        self._decrement()

    def _decrement(self) -> None:
        self._left -= 1
        if self._left:
            return
        self._count()
        if self._failure is None and len(self._answers) > INLINE_BUCKETS_MAX:
            self._reply.send_later(self._encode_many())
        elif self._failure is None:
            self._reply.send((encode_produce_log_response(self._answers),))
        else:
            self._reply.fail(self._failure)

    async def _encode_many(self) -> Sequence[Buffer]:
        return (await in_codec_thread(self._context, encode_produce_log_response, self._answers),)


# LIST_OFFSETS --------------------------------------------------------------------------------------------------------


async def list_offsets(context: RequestContext, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
    if context.server.authorizer.enabled:
        permitted_table(context, request.table_id)
    partition_id = request.partition_id if request.HasField("partition_id") else None
    response = pb.ListOffsetsResponse()
    async for bucket_id in context.each(request.bucket_id):
        answer = response.buckets_resp.add(bucket_id=bucket_id)
        try:
            bucket = bucket_of(context, request.table_id, partition_id, bucket_id, request.routing_bucket_count)
            tablet = context.server.tablets.tablet(bucket)
            tablet.check_usable()
            answer.offset = await _offset(context, tablet, request)
        except FlussError as error:
            set_error(answer, error)
    return response


async def _offset(context: RequestContext, tablet: LogTablet, request: pb.ListOffsetsRequest) -> int:
    kind = request.offset_type
    if kind == EARLIEST:
        return tablet.earliest_offset
    if kind in (LATEST, LEADER_END):
        return tablet.high_watermark
    if kind != TIMESTAMP:
        raise UnknownServerError(f"offset type {kind} is not known; 0 is earliest, 1 latest, 2 by timestamp")
    if not request.HasField("startTimestamp"):
        raise InvalidTimestampError("a timestamp is needed for offset type 2")
    timestamp, now_ms = request.startTimestamp, context.server.clock.now_ms()
    if timestamp > now_ms:
        raise InvalidTimestampError(f"the timestamp {timestamp} lies in the future; the server's clock says {now_ms}")
    if timestamp > tablet.max_timestamp:
        return tablet.high_watermark
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(context.server.executor, reader.offset_for_timestamp, tablet, timestamp)
    except OSError as error:
        raise UnknownServerError(f"the log of {tablet.bucket} cannot be read: {error.strerror or error}") from error


# LIMIT_SCAN ----------------------------------------------------------------------------------------------------------


async def limit_scan(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    request = parse_message(LIMIT_SCAN, body)
    entry = permitted_table(context, request.table_id)
    partition_id = request.partition_id if request.HasField("partition_id") else None
    entry.counters.limit_scan += 1
    try:
        bucket = bucket_of(context, request.table_id, partition_id, request.bucket_id, request.routing_bucket_count)
        if request.limit <= 0:
            raise UnknownServerError(f"the limit is {request.limit}, but must be at least 1")
        if entry.table_info.has_primary_key():
            async with context.session.making_answer(ANSWER_BYTES_MAX):
                time_slice = context.begin_slice()
                rows = await context.server.kv.limit_scan(entry, bucket, request.limit, time_slice)
            return encode_limit_scan_response(LimitScanResponse(is_log_table=False, records=rows))
        tablet = context.server.tablets.tablet(bucket)
        tablet.check_usable()
        offset = max(tablet.start_offset, tablet.high_watermark - request.limit)
        result = reader.ReadResult()
        while offset < tablet.high_watermark:
            # The wanted rows may reach over the border of two segments.
            left_bytes = fetch_handlers.RESPONSE_BYTES_MAX - result.size_bytes
            plan = reader.plan_read(tablet, offset, left_bytes, first_batch_always=not result.parts)
            _check_size(plan, left_bytes)
            read = await fetch_handlers.run_read(context, plan)
            if not read.parts:
                break
            result.parts += read.parts
            result.size_bytes += read.size_bytes
            offset = plan.segments[-1][2]
        answer = LimitScanResponse(is_log_table=True, records=result.parts)
    except FlussError as error:
        entry.counters.limit_scan_failed += 1
        code, message = wire_error(error)
        answer = LimitScanResponse(error_code=code, error_message=message)
    return encode_limit_scan_response(answer)


def _check_size(plan: reader.ReadPlan, bytes_max: int) -> None:
    """Refuse a scan whose rows do not fit into one answer: fewer rows would look like all there are."""
    for segment, end, _ in plan.segments:
        start, _ = segment.position_at_or_before(max(plan.offset, segment.base_offset))
        if end - start > bytes_max:
            raise UnknownServerError(
                f"the rows asked for of {plan.tablet.bucket} take more than {fetch_handlers.RESPONSE_BYTES_MAX} bytes. "
                "Use a lower limit, or read the log from an offset on."
            )


# INIT_WRITER, GET_TABLE_STATS ----------------------------------------------------------------------------------------


async def init_writer(context: RequestContext, request: pb.InitWriterRequest) -> pb.InitWriterResponse:
    await require_any_table(context, request.table_path)
    return pb.InitWriterResponse(writer_id=await context.server.catalog.next_writer_id())


async def get_table_stats(context: RequestContext, request: pb.GetTableStatsRequest) -> pb.GetTableStatsResponse:
    entry = permitted_table(context, request.table_id)
    response = pb.GetTableStatsResponse()
    async for part in context.each(request.buckets_req):
        partition_id = part.partition_id if part.HasField("partition_id") else None
        answer = response.buckets_resp.add(bucket_id=part.bucket_id, partition_id=partition_id)
        try:
            bucket = bucket_of(context, request.table_id, partition_id, part.bucket_id, part.routing_bucket_count)
            tablet = context.server.tablets.tablet(bucket)
            tablet.check_usable()
            if entry.table_info.has_primary_key():
                answer.row_count = await context.server.kv.row_count(entry, bucket)
            else:
                answer.row_count = tablet.high_watermark - tablet.earliest_offset
        except FlussError as error:
            set_error(answer, error)
    return response
