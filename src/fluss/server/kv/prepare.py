# SPDX-License-Identifier: Apache-2.0
"""Preparing writes: from the KV batches of clients to changes of the state, and the changelog that records them.

Writes that arrive together are prepared together, in one job of a thread: the way there and back, and the steps that a
batch of many rows takes as quickly as one of few, are then paid once for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fluss.errors import FormatError, InvalidTargetColumnError, SchemaNotExistError
from fluss.metadata import TableInfo
from fluss.metadata.validation import check_target_columns
from fluss.net.eager import complete
from fluss.records import NO_WRITER_ID, KvBatch, encode_arrow_body, encode_row_body, seal_log_batch
from fluss.rows import KeyEncoder
from fluss.server.kv.changes import Outcome, ReadOld, apply_delete_behavior, is_distinct, replace_rows
from fluss.server.kv.merge import (
    Generate,
    MergeRules,
    aggregation_rules,
    merge_batch,
    partial_rules,
    refuse_partial,
    version_wins,
    versioned_rules,
)
from fluss.server.kv.values import ValueCodec, narrowed_key_encoder
from fluss.server.log.appends import AppendResult
from fluss.server.log.writers import WriterStates
from fluss.server.scheduler import Share, timed

T = TypeVar("T")

AGG_MODE_OVERWRITE = 1
_INLINE_BYTES_MAX = 4096
"""Fewer bytes are cheaper on the event loop than the way to a thread and back."""
_TOGETHER_BYTES_MAX = 256 * 1024
_TOGETHER_MAX = 256
"""More in one job would keep the event loop waiting, which goes on with all of its writes at once, and gain nothing."""
_DISK_JOBS_MAX = 4
"""While a job waits for the disk, others can work."""


class Write(NamedTuple):
    """One KV batch on its way into a bucket."""

    info: TableInfo
    codec: ValueCodec
    """Of the same moment as `info`: columns may be added before the write is prepared."""
    read_old: ReadOld
    generate: Generate | None
    writers: WriterStates
    records: memoryview
    target_columns: tuple[int, ...]
    agg_mode: int
    share: Share | None = None
    """Of the user who writes; charged with the time that preparing takes."""

    @property
    def rules_key(self) -> tuple[int, int, tuple[int, ...], int]:
        """Writes with the same key follow the same rules."""
        return id(self.info), self.codec.schema_id, self.target_columns, self.agg_mode


class Prepared(NamedTuple):
    """What a write changes, and the batch of the changelog that says so."""

    outcome: Outcome
    changelog: memoryview


Preparation = Prepared | AppendResult
"""An `AppendResult` is that of the first copy of a batch that a client sends again."""

_Waiting = tuple[Write, "asyncio.Future[Preparation]"]


class Preparers:
    """Prepare the writes of all buckets: those whose rows are in memory never wait for those that need the disk."""

    def __init__(self, executor: Executor) -> None:
        self.memory = Preparer(executor, jobs_max=1)
        self.disk = Preparer(executor, jobs_max=_DISK_JOBS_MAX)


class Preparer:
    """Prepares writes, in few threads at a time.

    More threads would only take Python's lock from each other: a write that finds them busy waits, and is prepared
    together with those that arrive meanwhile.
    """

    def __init__(self, executor: Executor, jobs_max: int) -> None:
        self._executor = executor
        self._jobs_max = jobs_max
        self._jobs = 0
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._scheduled = False

    def prepare(self, write: Write) -> asyncio.Future[Preparation]:
        """Prepare a write, with the others that arrive in this iteration of the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Preparation] = loop.create_future()
        self._waiting.append((write, future))
        self._waiting_bytes += len(write.records)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._start)
        return future

    def _start(self) -> None:
        self._scheduled = False
        while self._waiting:
            # Numbers may have to be reserved, which waits for the disk.
            if self._waiting_bytes < _INLINE_BYTES_MAX and all(write.generate is None for write, _ in self._waiting):
                writes, futures = self._take()
                _complete(futures, _charged(writes, *timed(prepare, writes)))
            elif self._jobs < self._jobs_max:
                self._submit(*self._take())
            else:
                return

    def _submit(self, writes: list[Write], futures: list[asyncio.Future[Preparation]]) -> None:
        try:
            work = asyncio.get_running_loop().run_in_executor(self._executor, timed, prepare, writes)
        except RuntimeError as error:  # there cannot be another thread now
            _complete(futures, [error] * len(futures))
            return
        self._jobs += 1
        work.add_done_callback(partial(self._ended, writes, futures))

    def _take(self) -> tuple[list[Write], list[asyncio.Future[Preparation]]]:
        """The writes of the next job, which has a bounded size."""
        writes: list[Write] = []
        futures: list[asyncio.Future[Preparation]] = []
        size_bytes = 0
        while self._waiting:
            write, future = self._waiting[0]
            size_bytes += len(write.records)
            if writes and (size_bytes > _TOGETHER_BYTES_MAX or len(writes) >= _TOGETHER_MAX):
                break
            self._waiting.popleft()
            self._waiting_bytes -= len(write.records)
            writes.append(write)
            futures.append(future)
        return writes, futures

    def _ended(
        self,
        writes: list[Write],
        futures: list[asyncio.Future[Preparation]],
        work: asyncio.Future[tuple[list[Preparation | Exception], float]],
    ) -> None:
        self._jobs -= 1
        results: Sequence[Preparation | Exception]
        try:
            results = _charged(writes, *work.result())
        except (Exception, asyncio.CancelledError) as error:
            stopped = RuntimeError("the write was given up: the server stops")
            results = [error if isinstance(error, Exception) else stopped] * len(futures)
        _complete(futures, results)
        self._start()


def _charged(
    writes: Sequence[Write], results: list[Preparation | Exception], seconds: float
) -> list[Preparation | Exception]:
    """Charge the time that preparing took to the users who write, by the bytes that they write."""
    size_bytes = sum(len(write.records) for write in writes)
    for write in writes:
        if write.share is not None and size_bytes:
            write.share.charge(seconds * len(write.records) / size_bytes)
    return results


def _complete(futures: list[asyncio.Future[Preparation]], results: Sequence[Preparation | Exception]) -> None:
    for future, result in zip(futures, results):
        complete(future, result)


def prepare(writes: Sequence[Write]) -> list[Preparation | Exception]:
    """Prepare writes to different buckets. An error concerns its own write only. May run in a thread."""
    results: list[Any] = [_attempt(_checked, write) for write in writes]
    groups: dict[object, list[int]] = {}
    for i, checked in enumerate(results):
        if isinstance(checked, KvBatch):
            groups.setdefault(writes[i].rules_key, []).append(i)
    for members in groups.values():
        for i, result in zip(members, _prepare_group([(writes[i], results[i]) for i in members])):
            results[i] = result
    return results


def _attempt(work: Callable[..., T], *args: object) -> T | Exception:
    try:
        return work(*args)
    except Exception as error:
        return error


def _checked(write: Write) -> KvBatch | AppendResult:
    """The batch of a write, or what came of it if it was written before."""
    batch = KvBatch.parse(write.records)
    if batch.schema_id not in write.codec.schemas:
        raise SchemaNotExistError(
            f"schema id {batch.schema_id} is not known; the latest of {write.info.table_path} is {write.info.schema_id}"
        )
    return _duplicate_of(batch, write.writers) or batch


def _duplicate_of(batch: KvBatch, writers: WriterStates) -> AppendResult | None:
    """The outcome of the first copy of a repeated batch. The log checks again; this saves the work."""
    writer, sequence = batch.writer_id, batch.batch_sequence
    if writer == NO_WRITER_ID:
        return None
    if sequence < 0:
        raise FormatError(f"writer {writer} sent the batch sequence {sequence}")
    written = writers.duplicate_of(writer, sequence)
    if written is not None:
        return AppendResult(written.base_offset, written.last_offset + 1, written.timestamp, duplicate=True)
    writers.check_follows(writer, sequence, writers.last_sequence(writer))
    return None


def _prepare_group(writes: Sequence[tuple[Write, KvBatch]]) -> list[Prepared | Exception]:
    """Prepare writes that follow the same rules."""
    rules = _attempt(WriteRules.of, writes[0][0])
    if isinstance(rules, Exception):
        return [rules] * len(writes)
    if len(writes) > 1 and rules.replaces_rows:
        with contextlib.suppress(Exception):  # which write the error concerns shows when each is prepared alone
            return [*rules.prepare(writes)]
    alone = (_attempt(rules.prepare, [write]) for write in writes)
    return [result if isinstance(result, Exception) else result[0] for result in alone]


@dataclass(frozen=True)
class WriteRules:
    """How writes to a table take effect."""

    info: TableInfo
    codec: ValueCodec
    engine: str | None
    delete_behavior: str
    merge: MergeRules | None
    """How rows are merged; None when whole rows replace each other."""
    generated_column: int | None
    checked: KeyEncoder | None
    """Encodes keys that have to be those of their rows."""

    @classmethod
    def of(cls, write: Write) -> WriteRules:
        info = write.info
        overwrite = write.agg_mode == AGG_MODE_OVERWRITE
        engine = None if overwrite else info.config.merge_engine
        return cls(
            info,
            write.codec,
            engine,
            "ALLOW" if overwrite else info.config.delete_behavior,
            _merge_rules(info, engine, write.target_columns),
            _generated_column(info, write.target_columns),
            narrowed_key_encoder(info),
        )

    @property
    def replaces_rows(self) -> bool:
        """Whether writes never look into the rows they meet."""
        return self.merge is None

    def prepare(self, writes: Sequence[tuple[Write, KvBatch]]) -> list[Prepared]:
        """Prepare writes to different buckets; more than one only if they replace rows."""
        where = f"table {self.info.table_path}"
        read = [(apply_delete_behavior(batch, self.delete_behavior, where), write.read_old) for write, batch in writes]
        with_before = self.info.config.changelog_image == "FULL"
        if self.engine == "first_row":
            outcomes = replace_rows(self.codec, read, with_before=with_before, keep_first=True, checked=self.checked)
        elif self.merge is None:
            outcomes = replace_rows(
                self.codec, read, with_before=with_before, blind=not with_before, checked=self.checked
            )
        else:
            ((write, _),), ((batch, _),) = writes, read
            outcomes = [self._merged(write, batch, self.merge, with_before)]
        return [Prepared(outcome, self._changelog(outcome, batch)) for outcome, (_, batch) in zip(outcomes, writes)]

    def _merged(self, write: Write, batch: KvBatch, merge: MergeRules, with_before: bool) -> Outcome:
        if self.engine == "versioned" and not bool(batch.deletes.any()) and is_distinct(batch.keys.to_list()):
            assert self.info.config.version_column is not None
            wins = version_wins(self.codec, batch, self.info.config.version_column)
            return replace_rows(
                self.codec, [(batch, write.read_old)], with_before=with_before, wins=wins, checked=self.checked
            )[0]
        return merge_batch(
            self.codec,
            batch,
            write.read_old,
            merge,
            with_before=with_before,
            generate=write.generate,
            generated_column=self.generated_column,
            checked=self.checked,
        )

    def _changelog(self, outcome: Outcome, batch: KvBatch) -> memoryview:
        """The changelog batch, in the table's log format; one without records if nothing changed."""
        info, codec = self.info, self.codec
        rows = outcome.records if outcome.records is not None else codec.to_batch([])
        types = outcome.change_types
        if info.log_format == "ARROW":
            compression, level = info.arrow_compression
            body = encode_arrow_body(rows, compression=compression, level=level, change_types=types)
        else:
            body = encode_row_body(info.log_format, codec.types, rows, types)
        parts = seal_log_batch(
            body, schema_id=codec.schema_id, writer_id=batch.writer_id, batch_sequence=batch.batch_sequence
        )
        # The log writes its offsets into the batch, so it needs bytes of its own.
        changelog = bytearray()
        for part in parts:
            changelog += part
        return memoryview(changelog)


def _merge_rules(info: TableInfo, engine: str | None, target_columns: tuple[int, ...]) -> MergeRules | None:
    schema = info.schema
    targets = list(target_columns)
    if engine is None and set(targets) == set(range(len(schema.columns))):
        targets = []  # whole rows
    if targets and engine in ("first_row", "versioned"):
        raise refuse_partial(engine)
    if targets:
        check_target_columns(schema, targets)
    if engine == "aggregation":
        return aggregation_rules(schema, targets)
    if engine == "versioned":
        assert info.config.version_column is not None
        return versioned_rules(schema, info.config.version_column)
    return partial_rules(schema, targets) if targets else None


def _generated_column(info: TableInfo, target_columns: tuple[int, ...]) -> int | None:
    schema = info.schema
    if not schema.auto_increment_columns:
        return None
    column = schema.column_index(schema.auto_increment_columns[0])
    if not target_columns or column in target_columns:
        raise InvalidTargetColumnError(
            f"column '{schema.auto_increment_columns[0]}' is filled by the server: "
            "name the other columns as target columns and leave it out"
        )
    return column
