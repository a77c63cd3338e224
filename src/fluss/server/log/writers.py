# SPDX-License-Identifier: Apache-2.0
"""Idempotent writers: which batches of whom are already in the log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from fluss.errors import FormatError, OutOfOrderSequenceError
from fluss.records.log_batch import BatchSpan
from fluss.server import disk

BATCHES_REMEMBERED = 5
WRITERS_MAX = 5_000
"""Of one bucket; those that wrote last are remembered. Every connection has a new id: a program that connects once a
second would leave 600,000 until they expire after a week, and to write those down takes seconds. A writer that was
evicted gets an error with its next batch, and goes on under a new id."""
SEQUENCE_MAX = 2**31 - 1
NO_WRITER_ID = -1
_SNAPSHOT_VERSION = 1


class WrittenBatch(NamedTuple):
    """One batch of a writer in the log."""

    sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


def next_sequence(sequence: int) -> int:
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


class WriterStates:
    """The last batches of every writer of one bucket."""

    __slots__ = ("_batches", "_evicted_max")

    def __init__(self) -> None:
        # The writer that wrote last comes last, and so does its newest batch. Tuples, so that a snapshot taken in
        # passing cannot change while it is written.
        self._batches: dict[int, tuple[WrittenBatch, ...]] = {}
        self._evicted_max = NO_WRITER_ID
        """The highest id of a writer that the limit evicted. Ids ascend, so no new writer has a lower one."""

    def __len__(self) -> int:
        return len(self._batches)

    def is_next(self, writer_id: int, sequence: int) -> bool:
        """Whether this batch follows the writer's last one. False leaves open what it is otherwise."""
        batches = self._batches.get(writer_id)
        return batches is not None and sequence == batches[-1].sequence + 1

    def duplicate_of(self, writer_id: int, sequence: int) -> WrittenBatch | None:
        """The remembered batch with this sequence, if it was written before."""
        for batch in reversed(self._batches.get(writer_id, ())):
            if batch.sequence == sequence:
                return batch
        return None

    def last_sequence(self, writer_id: int) -> int | None:
        batches = self._batches.get(writer_id)
        return batches[-1].sequence if batches else None

    def check_follows(self, writer_id: int, sequence: int, last: int | None) -> None:
        """Refuse a batch that leaves a gap; ``last`` is the writer's sequence before it (None: never seen here)."""
        expected = 0 if last is None else next_sequence(last)
        if last is None and writer_id <= self._evicted_max:
            raise OutOfOrderSequenceError(
                f"what writer {writer_id} wrote to this bucket is no longer known, so batch sequence {sequence} may be "
                "a repeated one. Write under a new writer id."
            )
        if sequence != expected:
            known = "has written nothing to this bucket" if last is None else f"is at sequence {last}"
            raise OutOfOrderSequenceError(
                f"writer {writer_id} sent batch sequence {sequence} but {known}; expected {expected}"
            )

    def record(self, writer_id: int, batch: WrittenBatch) -> None:
        batches = (*self._batches.pop(writer_id, ()), batch)
        self._batches[writer_id] = batches[-BATCHES_REMEMBERED:]
        if len(self._batches) > WRITERS_MAX:
            self._evict(next(iter(self._batches)))

    def record_span(self, span: BatchSpan) -> None:
        """Record a batch as it lies in the log, if a writer sent it."""
        if span.writer_id != NO_WRITER_ID:
            delta = span.last_offset - span.base_offset
            self.record(span.writer_id, WrittenBatch(span.sequence, span.last_offset, delta, span.timestamp))

    def _evict(self, writer_id: int) -> None:
        del self._batches[writer_id]
        self._evicted_max = max(self._evicted_max, writer_id)

    def expire(self, before_timestamp: int) -> int:
        """Evict writers whose last batch is older; returns how many."""
        gone = [writer for writer, batches in self._batches.items() if batches[-1].timestamp < before_timestamp]
        for writer in gone:
            del self._batches[writer]
        return len(gone)

    # Snapshots: a line of JSON and its checksum. --------------------------------------------------------------------

    def to_snapshot(self) -> bytes:
        entries = [
            {"writer_id": writer, "batches": [list(batch) for batch in batches]}
            for writer, batches in self._batches.items()
        ]
        document = {"version": _SNAPSHOT_VERSION, "evicted_max": self._evicted_max, "writers": entries}
        return disk.seal(json.dumps(document, separators=(",", ":")).encode())

    @classmethod
    def from_snapshot(cls, data: bytes) -> WriterStates:
        try:
            document = json.loads(disk.unseal(data))
            if document["version"] != _SNAPSHOT_VERSION:
                raise ValueError("unknown version")
            states = cls()
            found = {int(entry["writer_id"]): _batches(entry["batches"]) for entry in document["writers"]}
            states._batches, states._evicted_max = found, int(document.get("evicted_max", NO_WRITER_ID))
            if len(found) > WRITERS_MAX:
                # An earlier release wrote all of them, in another order.
                for writer_id in sorted(found, key=lambda writer: found[writer][-1].last_offset)[:-WRITERS_MAX]:
                    states._evict(writer_id)
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"writer snapshot: {error}") from None
        return states


def _batches(rows: Iterable[Iterable[int]]) -> tuple[WrittenBatch, ...]:
    batches = tuple(WrittenBatch(*(int(value) for value in row)) for row in rows)
    if not batches:
        raise ValueError("a writer without batches")
    return batches[-BATCHES_REMEMBERED:]
