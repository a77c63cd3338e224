# SPDX-License-Identifier: Apache-2.0
"""Primary-key tables: PUT_KV, LOOKUP, PREFIX_LOOKUP, SCAN_KV."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from fluss.errors import (
    CorruptRecordError,
    FlussError,
    FormatError,
    InvalidScanRequestError,
    InvalidTableError,
    KvStorageError,
    NonPrimaryKeyTableError,
    PartitionSpecInvalidError,
    StorageBackpressureError,
    UnknownScannerIdError,
    UnknownServerError,
    UnknownTableOrBucketError,
    UnsupportedVersionError,
)
from fluss.metadata import HISTORICAL_PARTITION, parse_partition_value, split_partition_name
from fluss.metadata.validation import check_target_columns
from fluss.net.deadline import Deadline
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import PREFIX_LOOKUP, SCAN_KV
from fluss.protocol.fast_paths import decode_lookup_of_one_key, encode_lookup_of_one_value
from fluss.protocol.frames import join_small_parts
from fluss.protocol.lookup_messages import (
    LookedUpBucket,
    LookupBucket,
    LookupRequest,
    decode_lookup,
    encode_long_value_list,
    encode_lookup_response,
    encode_lookup_response_parts,
    encode_prefix_lookup_bucket,
    encode_value_list,
)
from fluss.protocol.record_messages import (
    ScanKvResponse,
    TooManyBucketsError,
    WriteRequest,
    decode_put_kv,
    encode_scan_kv_response,
)
from fluss.records import encode_kv_body, kv_record_count, seal_kv_batch
from fluss.rows import Slices
from fluss.server.catalog import PartitionEntry, TableEntry
from fluss.server.garbage import clear_tracebacks
from fluss.server.handlers.answers import (
    ANSWER_BYTES_MAX,
    check_answer_size,
    count_expired,
    set_error,
    wire_error,
)
from fluss.server.handlers.log import ACKS_ALL, INLINE_BUCKETS_MAX, check_acks, check_disk
from fluss.server.handlers.request import (
    INLINE_MESSAGE_BYTES_MAX,
    Buffer,
    Reply,
    RequestContext,
    bucket_of,
    in_codec_thread,
    parse_message,
    receive_message,
)
from fluss.server.handlers.rights import permits, permitted_table
from fluss.server.historical import SECONDS_MAX as HISTORICAL_SECONDS_MAX
from fluss.server.kv.cursors import Cursor
from fluss.server.kv.ordered import DamagedStoreError
from fluss.server.kv.tablet import KvTablet
from fluss.server.kv.values import rows_of_keys
from fluss.server.log.appends import AppendResult
from fluss.server.scheduler import TimeSlice

logger = logging.getLogger("fluss.server.kv")

_VALUES_PER_STEP = 5_000
_BUCKETS_PER_LOOK = 8
_ANSWER_AT_ONCE_BYTES_MAX = 64 * 1024
"""Answers up to this size are sent also while clients leave theirs in memory."""
_INLINE_LOOKUPS_MAX = 256
"""So many buckets and keys are looked up before requests have the event loop again."""
_INLINE_VALUES_MAX = 5_000
_BACKPRESSURE_VERSION = 2
"""Clients from this version of PUT_KV on know the code for back-pressure."""
_INSERT_TIMEOUT_MS = 30_000


def _check_key_encoding(context: RequestContext, entry: TableEntry) -> None:
    """Clients that speak version 0 encode keys with the lake's encoder, which such a table does not use."""
    info = entry.table_info
    if context.version == 0 and info.lake_format and info.kv_format_version >= 2 and not info.has_default_bucket_key:
        raise UnsupportedVersionError(
            f"table '{info.table_path}' needs a newer client: its keys are not encoded with the lake's encoder"
        )


def _partition_of(context: RequestContext, partition_id: int | None) -> PartitionEntry | None:
    found = context.server.catalog.partition_by_id(partition_id)
    return None if found is None else found[1]


# PUT_KV --------------------------------------------------------------------------------------------------------------


async def put_kv(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    # Nothing may wait before every bucket has its place in the queue of its state: see PRODUCE_LOG. A write that takes
    # longer than a slice to start therefore holds the requests after it.
    with contextlib.ExitStack() as hold:
        try:
            request = decode_put_kv(body, INLINE_BUCKETS_MAX)
        except TooManyBucketsError:
            _hold_requests(context, hold)
            request = await in_codec_thread(context, decode_put_kv, body)
        check_acks(request.acks)
        response = pb.PutKvResponse()
        waiting = await _start_puts(context, request, response, hold)
    time_slice = context.begin_slice()
    while waiting:
        if time_slice.is_over:
            await time_slice.next()
        answer, tablet, task = waiting.popleft()  # freeing thousands of tasks at once would take long
        try:
            # Shielded: a client that goes away must not part the changelog from the state.
            answer.log_end_offset = (await asyncio.shield(task)).end_offset
        except Exception as error:
            set_error(answer, _write_error(context, tablet, error))
            clear_tracebacks(error)
    entry = context.server.catalog.table_by_id(request.table_id)
    if entry is not None:
        await _count_put(context, entry, request, response)
    return (response.SerializeToString(),)


async def _count_put(
    context: RequestContext, entry: TableEntry, request: WriteRequest, response: pb.PutKvResponse
) -> None:
    size_bytes = written = messages = 0
    async for part, answer in context.each(zip(request.buckets, response.buckets_resp)):
        size_bytes += len(part.records)
        if not answer.HasField("error_code"):
            written += 1
            messages += kv_record_count(part.records)
    context.count_bytes_in(entry, size_bytes)
    context.count_messages_in(entry, messages)
    entry.counters.put_kv += 1
    entry.counters.put_kv_failed += written < len(request.buckets)


def _write_error(context: RequestContext, tablet: KvTablet, error: Exception) -> FlussError:
    """Return the error that the client gets for a write that failed."""
    if isinstance(error, StorageBackpressureError):
        tablet.entry.counters.backpressure_rejections += 1
        return error if context.version >= _BACKPRESSURE_VERSION else KvStorageError(error.message)
    if isinstance(error, FormatError):
        return _invalid_write(tablet, error)
    if isinstance(error, FlussError):
        count_expired(context, error)
        return error
    logger.error("a write to %s failed", tablet.log.bucket, exc_info=error)
    return UnknownServerError(f"the write failed in the server: {type(error).__name__}: {error}")


def _invalid_write(tablet: KvTablet, error: FormatError) -> CorruptRecordError:
    return CorruptRecordError(
        f"a write to {tablet.log.bucket} of '{tablet.entry.table_path}' is not valid, nothing of it was written: "
        f"{error.message}"
    )


_Puts = deque[tuple[pb.PbPutKvRespForBucket, KvTablet, "asyncio.Task[AppendResult]"]]


async def _start_puts(
    context: RequestContext, request: WriteRequest, response: pb.PutKvResponse, hold: contextlib.ExitStack
) -> _Puts:
    waiting: _Puts = deque()
    commit_ms_max = request.timeout_ms if request.acks == ACKS_ALL else None
    time_slice = context.begin_slice()
    for number, part in enumerate(request.buckets):
        if number % _BUCKETS_PER_LOOK == _BUCKETS_PER_LOOK - 1 and time_slice.is_over:
            _hold_requests(context, hold)
            await time_slice.next()
        answer = response.buckets_resp.add(bucket_id=part.bucket_id, partition_id=part.partition_id)
        try:
            entry = permitted_table(context, request.table_id)
            check_disk(context)
            if not entry.table_info.has_primary_key():
                # Not code 20, which is for reads: a table without keys has no state to write to.
                raise UnknownServerError(f"table '{entry.table_path}' has no primary key; write to it with PRODUCE_LOG")
            _check_key_encoding(context, entry)
            bucket = bucket_of(context, request.table_id, part.partition_id, part.bucket_id, part.routing_bucket_count)
            if (partition := _partition_of(context, part.partition_id)) is not None:
                partition.check_writable()
            tablet = context.server.kv.tablet(entry, bucket)
            share = context.session.share
            put = tablet.put(
                part.records, request.target_columns, request.agg_mode or 0, share, commit_ms_max=commit_ms_max
            )
            waiting.append((answer, tablet, context.server.kv.start(share.run(put))))
        except FlussError as error:
            set_error(answer, error)
    return waiting


def _hold_requests(context: RequestContext, hold: contextlib.ExitStack) -> None:
    """Start no request that came after this one until it has started completely."""
    context.session.hold()
    hold.callback(context.session.release)


# LOOKUP --------------------------------------------------------------------------------------------------------------


def lookup(context: RequestContext, body: memoryview, reply: Reply) -> None:
    lone = _look_up_lone_key(context, body)
    if lone is not None:
        reply.send((lone,))
        return
    if len(body) > INLINE_MESSAGE_BYTES_MAX:
        reply.send_later(_look_up_many(context, body))
        return
    request = decode_lookup(body)
    if _is_historical(request):
        reply.send_later(_look_up_historical(context, request))
        return
    answers = None if request.insert_if_not_exists else _look_up_at_once(context, request)
    if answers is not None:
        _count_lookup(context, request, answers)
        reply.send((encode_lookup_response(answers),))
    else:
        reply.send_later(_look_up_when_there_is_room(context, request))


async def _look_up_when_there_is_room(context: RequestContext, request: LookupRequest) -> Sequence[Buffer]:
    failures = await _prepare_lookup(context, request)
    async with context.session.making_answer(ANSWER_BYTES_MAX):
        return await _look_up(context, request, failures)


async def _look_up_many(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    """A request with so many keys that decoding it takes longer than a slice."""
    async with context.session.making_answer(ANSWER_BYTES_MAX):
        request = await in_codec_thread(context, decode_lookup, body)
        if not _is_historical(request):
            return await _look_up(context, request, await _prepare_lookup(context, request))
    return await _look_up_historical(context, request)


def _is_historical(request: LookupRequest) -> bool:
    return any(part.original_partition_name is not None for part in request.buckets)


async def _look_up_historical(context: RequestContext, request: LookupRequest) -> Sequence[Buffer]:
    """Look keys of expired partitions up in the lake, some buckets at the same time."""
    if request.insert_if_not_exists:
        raise InvalidTableError("Lookup with insertIfNotExists is not supported for historical partition lookup.")
    deadline = Deadline(HISTORICAL_SECONDS_MAX * 1000)
    answers = [
        LookedUpBucket(part.bucket_id, part.partition_id, original_partition_name=part.original_partition_name)
        for part in request.buckets
    ]
    buckets = context.each(zip(request.buckets, answers))

    async def work() -> None:
        async for part, answer in buckets:
            await _look_up_expired(context, request, part, answer, deadline)

    at_once = min(len(answers), context.server.historical.per_request_max)
    await asyncio.gather(*(context.session.share.run(work()) for _ in range(at_once)))
    return await _encode_lookup(context, request, answers)


async def _look_up_expired(
    context: RequestContext, request: LookupRequest, part: LookupBucket, answer: LookedUpBucket, deadline: Deadline
) -> None:
    name = part.original_partition_name
    try:
        if name is None:
            raise UnknownServerError("Normal and historical lookups cannot be mixed in the same request.")
        entry = _readable_tablet(context, request, part).entry
        partition = _partition_of(context, part.partition_id)
        if partition is None or not partition.is_historical:
            raise PartitionSpecInvalidError(
                f"A lookup of the expired partition {name!r:.300} of table '{entry.table_path}' must be sent to the "
                f"partition '{HISTORICAL_PARTITION}'."
            )
        [(key, text)] = split_partition_name(name, entry.table_info.partition_keys).items()
        if parse_partition_value(data_type := entry.table_info.schema.column(key).data_type, text) is None:
            raise PartitionSpecInvalidError(f"{text!r:.300} is no {data_type} for the partition column '{key}'.")
        answer.values = await context.server.historical.look_up(entry, (text,), part.bucket_id, part.keys, deadline)
    except FlussError as error:
        answer.error_code, answer.error_message = wire_error(error)


async def _prepare_lookup(context: RequestContext, request: LookupRequest) -> dict[int, FlussError]:
    """Open the states and insert the rows that are asked for; returns the errors, by the position of their bucket.

    It may take long, and other answers need not wait meanwhile.
    """
    insert = bool(request.insert_if_not_exists)
    failures: dict[int, FlussError] = {}
    async for number, part in context.each(enumerate(request.buckets)):
        try:
            tablet = _readable_tablet(context, request, part)
            await tablet.ready()
            if insert:
                missing = [key for key, value in zip(part.keys, await tablet.lookup(part.keys)) if value is None]
                if missing:
                    await _insert(context, tablet, missing, request.acks, request.timeout_ms)
        except FlussError as error:
            failures[number] = error
    return failures


def _look_up_lone_key(context: RequestContext, body: memoryview) -> bytes | None:
    """The whole answer, if it is about one key of a bucket in use and there is nothing to refuse; else None."""
    lone = decode_lookup_of_one_key(body)
    if lone is None:
        return None
    table_id, bucket_id, key = lone
    server = context.server
    tablet = server.kv.open_tablet(table_id, None, bucket_id)
    if tablet is None or not permits(context, tablet.entry.table_path):
        return None
    if context.version == 0 and tablet.info.lake_format is not None:
        return None
    found = tablet.lookup_at_once((key,))
    if found is None or _must_wait(context, len(found[0] or b"")):
        return None
    tablet.entry.counters.lookup += 1
    return encode_lookup_of_one_value(bucket_id, found[0])


def _look_up_at_once(context: RequestContext, request: LookupRequest) -> list[LookedUpBucket] | None:
    """The answer if there is nothing to wait for, as is nearly always so; else None."""
    if sum(1 + len(part.keys) for part in request.buckets) > _INLINE_LOOKUPS_MAX:
        return None
    answers: list[LookedUpBucket] = []
    size_bytes = 0
    for part in request.buckets:
        answer = LookedUpBucket(part.bucket_id, part.partition_id)
        try:
            values = _readable_tablet(context, request, part).lookup_at_once(part.keys)
            if values is None:
                return None
            answer.values = values
            size_bytes = _checked_size(size_bytes, values)
        except FlussError as error:
            answer.values = ()
            answer.error_code, answer.error_message = wire_error(error)
        answers.append(answer)
    return None if _must_wait(context, size_bytes) else answers


def _must_wait(context: RequestContext, size_bytes: int) -> bool:
    """Whether an answer of this size has to wait until clients take theirs."""
    return size_bytes > _ANSWER_AT_ONCE_BYTES_MAX and context.server.answers.exhausted


async def _look_up(
    context: RequestContext, request: LookupRequest, failures: Mapping[int, FlussError]
) -> Sequence[Buffer]:
    answers: list[LookedUpBucket] = []
    size_bytes = 0
    async for number, part in context.each(enumerate(request.buckets)):
        answer = LookedUpBucket(part.bucket_id, part.partition_id)
        try:
            if number in failures:
                raise failures[number]
            answer.values = await _readable_tablet(context, request, part).lookup(part.keys)
            size_bytes = _checked_size(size_bytes, answer.values)
        except FlussError as error:
            answer.values = ()
            answer.error_code, answer.error_message = wire_error(error)
        answers.append(answer)
    return await _encode_lookup(context, request, answers)


async def _encode_lookup(
    context: RequestContext, request: LookupRequest, answers: Sequence[LookedUpBucket]
) -> Sequence[Buffer]:
    _count_lookup(context, request, answers)
    if sum(1 + len(part.keys) for part in request.buckets) > _INLINE_VALUES_MAX:
        return await in_codec_thread(context, encode_lookup_response_parts, answers)
    return (encode_lookup_response(answers),)


def _count_lookup(context: RequestContext, request: LookupRequest, answers: Sequence[LookedUpBucket]) -> None:
    entry = context.server.catalog.table_by_id(request.table_id)
    if entry is not None:
        entry.counters.lookup += 1
        entry.counters.lookup_failed += any(answer.error_code is not None for answer in answers)


def _readable_tablet(context: RequestContext, request: LookupRequest, part: LookupBucket) -> KvTablet:
    entry = permitted_table(context, request.table_id, writing=bool(request.insert_if_not_exists))
    if not entry.table_info.has_primary_key():
        raise NonPrimaryKeyTableError(f"table '{entry.table_path}' has no primary key to look up")
    _check_key_encoding(context, entry)
    bucket = bucket_of(context, request.table_id, part.partition_id, part.bucket_id, part.routing_bucket_count)
    return context.server.kv.tablet(entry, bucket)


def _checked_size(size_bytes: int, values: Iterable[bytes | None]) -> int:
    return check_answer_size(size_bytes + sum(map(len, filter(None, values))))


async def _insert(
    context: RequestContext, tablet: KvTablet, keys: Sequence[bytes], acks: int | None, timeout_ms: int | None
) -> None:
    """Insert rows that have nothing but their key. Rows that came meanwhile stay as they are."""
    check_acks(ACKS_ALL if acks is None else acks)
    check_disk(context)
    info, codec = tablet.info, tablet.codec
    targets = [info.schema.column_index(name) for name in info.schema.primary_key]
    if len(targets) < len(info.schema.columns):
        check_target_columns(info.schema, targets)
    distinct = list(dict.fromkeys(keys))
    spec = None
    if tablet.log.bucket.partition_id is not None:
        partition = _partition_of(context, tablet.log.bucket.partition_id)
        if partition is None:
            raise UnknownTableOrBucketError(f"the partition of {tablet.log.bucket} is not known to this server")
        partition.check_writable()
        spec = partition.spec
    body = encode_kv_body(Slices.from_list(distinct), rows_of_keys(info, codec, distinct, spec), None)
    records = memoryview(b"".join(seal_kv_batch(body, codec.schema_id)))
    share, rate = context.session.share, context.server.quotas.producer_byte_rate
    if rate is not None:
        share.usage.charge_bytes("produce", len(records), rate)
    commit_ms_max = None
    if acks is None or acks == ACKS_ALL:
        commit_ms_max = _INSERT_TIMEOUT_MS if timeout_ms is None else timeout_ms
    put = tablet.put(records, targets, 0, share, commit_ms_max=commit_ms_max)
    await asyncio.shield(context.server.kv.start(share.run(put)))
    context.count_bytes_in(tablet.entry, len(records))
    context.count_messages_in(tablet.entry, len(distinct))


async def prefix_lookup(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    request = await receive_message(context, PREFIX_LOOKUP, body)
    async with context.session.making_answer(ANSWER_BYTES_MAX):
        return await _look_up_prefixes(context, request)


async def _look_up_prefixes(context: RequestContext, request: pb.PrefixLookupRequest) -> Sequence[Buffer]:
    time_slice = context.begin_slice()
    parts: list[Buffer] = []
    left_bytes = ANSWER_BYTES_MAX
    failed = False
    async for part in time_slice.each(request.buckets_req):
        partition_id = part.partition_id if part.HasField("partition_id") else None
        answer = pb.PbPrefixLookupRespForBucket(bucket_id=part.bucket_id, partition_id=partition_id)
        lists: list[Buffer] = []
        try:
            entry = permitted_table(context, request.table_id)
            if not entry.table_info.has_primary_key():
                raise NonPrimaryKeyTableError(f"table '{entry.table_path}' has no primary key to look up")
            _check_key_encoding(context, entry)
            bucket = bucket_of(context, request.table_id, partition_id, part.bucket_id, part.routing_bucket_count)
            tablet = context.server.kv.tablet(entry, bucket)
            for prefix in part.keys:
                if time_slice.is_over:
                    await time_slice.next()
                values = await tablet.prefix_lookup(prefix, time_slice, left_bytes)
                left_bytes -= sum(map(len, values))
                lists += await _value_list(values, time_slice)
        except FlussError as error:
            lists = []
            failed = True
            set_error(answer, error)
        parts += encode_prefix_lookup_bucket(answer, lists)
    known = context.server.catalog.table_by_id(request.table_id)
    if known is not None:
        known.counters.prefix_lookup += 1
        known.counters.prefix_lookup_failed += failed
    return join_small_parts(parts)


async def _value_list(values: Sequence[bytes], time_slice: TimeSlice) -> Sequence[Buffer]:
    """The values found for one prefix, as the parts of a message; many of them in slices."""
    if len(values) <= _VALUES_PER_STEP:
        return (encode_value_list(values),)
    pieces: list[bytes] = []
    for at in range(0, len(values), _VALUES_PER_STEP):
        pieces.append(pb.PbValueList(values=values[at : at + _VALUES_PER_STEP]).SerializeToString())
        if time_slice.is_over:
            await time_slice.next()
    return encode_long_value_list(pieces)


# SCAN_KV -------------------------------------------------------------------------------------------------------------


async def scan_kv(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    request = parse_message(SCAN_KV, body)
    try:
        answer = await _scan(context, request)
    except FlussError as error:
        code, message = wire_error(error)
        answer = ScanKvResponse(error_code=code, error_message=message)
    return encode_scan_kv_response(answer)


async def _scan(context: RequestContext, request: pb.ScanKvRequest) -> ScanKvResponse:
    cursors = context.server.kv.cursors
    opens, resumes = request.HasField("bucket_scan_req"), request.HasField("scanner_id")
    if opens == resumes:
        raise InvalidScanRequestError("a scan request names either a bucket to open or a scan to go on with")
    if request.close_scanner:
        if opens:
            raise InvalidScanRequestError("a scan cannot be opened and closed in one request")
        cursors.end(request.scanner_id)
        return ScanKvResponse(has_more_results=False)
    if not request.HasField("call_seq_id") or request.batch_size_bytes <= 0:
        raise InvalidScanRequestError("a scan request needs a call number and a batch size above 0")
    log_offset: int | None = None
    if opens:
        if request.call_seq_id != 0:
            raise InvalidScanRequestError(f"the first call of a scan has number 0, not {request.call_seq_id}")
        part = request.bucket_scan_req
        entry = permitted_table(context, part.table_id)
        partition_id = part.partition_id if part.HasField("partition_id") else None
        bucket = bucket_of(context, part.table_id, partition_id, part.bucket_id, part.routing_bucket_count)
        if not entry.table_info.has_primary_key():
            raise NonPrimaryKeyTableError(f"table '{entry.table_path}' has no primary key")
        tablet = context.server.kv.tablet(entry, bucket)
        owner = context.session.share.owner
        cursors.check_room(bucket, owner)
        values, log_offset = await tablet.snapshot()
        limit = part.limit if part.HasField("limit") else None
        cursor = cursors.open(tablet, values, limit, log_offset, len(tablet.store.layers[0]), owner)
    else:
        cursor = cursors.resume(request.scanner_id, request.call_seq_id)
        permitted_table(context, cursor.bucket.table_id)  # the right may have been taken away since the scan began
    return await _read_on(context, cursor, request.batch_size_bytes, log_offset)


async def _read_on(context: RequestContext, cursor: Cursor, batch_bytes: int, log_offset: int | None) -> ScanKvResponse:
    """The next rows of a cursor. A cursor whose opening fails or is cancelled ends: its client does not know it."""
    cursors = context.server.kv.cursors
    time_slice = context.begin_slice()
    finished = False
    try:
        bytes_max = min(batch_bytes, cursors.batch_bytes_max)
        async with context.session.making_answer(bytes_max), cursor.reading:
            records = await cursor.read(bytes_max, time_slice)
            if cursor.ended:
                raise UnknownScannerIdError("the scan was ended meanwhile, or its table was dropped")
            answer = ScanKvResponse(has_more_results=cursor.has_more, log_offset=log_offset)
            if records:
                answer.records = records
        finished = True
    except DamagedStoreError as error:
        cursor.tablet.damaged(error)
        raise KvStorageError(f"{error}; begin the scan again") from None
    finally:
        if not finished or not answer.has_more_results:
            cursors.end(cursor.scanner_id)
    if answer.has_more_results:
        cursors.renew(cursor)
        answer.scanner_id = cursor.scanner_id
    return answer
