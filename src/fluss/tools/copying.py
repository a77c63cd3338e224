# SPDX-License-Identifier: Apache-2.0
"""Copying a table between servers: description and rows, resumable, and kept in sync if wanted.

A primary-key table is copied as its current rows, then as the changes since the copy began; with `history`, as all of
its changes, if the changelog still has them. Rows are stored as they are, past a merge engine. So both can be applied
twice without harm, and a copy that was killed just goes on. A log table is copied batch by batch. Its checkpoint has
the position in the source together with the ends of the target's buckets: after a kill, the rows that the target has
behind those ends are the ones that need not be written again. So a restart neither loses nor repeats a row, whatever
buckets the two tables have.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.client.write import UpsertWriter
from fluss.db.changes import Position
from fluss.db.internals import open_sink, wait_for_writes
from fluss.errors import InvalidArgumentError
from fluss.metadata import OffsetSpec, Schema, TableBucket, TableDescriptor
from fluss.rows import encode_compacted
from fluss.tools.drafts import TableDraft, check_numbers, check_partitions, descriptor_of, differences, identity_of
from fluss.tools.files import write_json
from fluss.tools.status import bucket_offsets

if TYPE_CHECKING:
    from fluss.client.write import WriteResultHandle
    from fluss.db.blocking import Database, Table
    from fluss.db.changes import ChangeBatch, Kind

_SUM_BITS = 128
_LAKES = ("paimon", "iceberg", "lance", "delta", "hudi")
_SAVE_S = 1.0
"""How long is written before the checkpoint is renewed."""
_GROUP_BYTES = 1024 * 1024
"""Of changes that are written together."""
_HASHED_ROWS_MAX = 4_096
_POINTS_MAX = 128
"""Of a table. Above that, every second one is dropped."""


@dataclass
class CopyState:
    """How far a copy came, as it is stored between two runs."""

    source: str
    target: str
    position: str
    """Where in the log of the source the changes begin that the target may lack."""
    snapshot_done: bool = False
    target_ends: dict[str, int] = field(default_factory=dict)
    """By bucket of the target (``partition/number``): where it ended when the rows before the position were written."""
    points: list[list[dict[str, int]]] = field(default_factory=list)
    """Pairs of offsets by bucket: a reader of the source up to the first goes on with the target from the second."""


@dataclass
class CopyReport:
    """What a copy has done so far."""

    rows: int = 0
    changes: int = 0
    resumed: bool = False


@dataclass(frozen=True)
class Fingerprint:
    """The number of rows and a checksum that does not depend on their order."""

    rows: int
    checksum: int

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.rows + other.rows, (self.checksum + other.checksum) % (1 << _SUM_BITS))


def fingerprint(table: Table[Any]) -> Fingerprint:
    """Read a table and sum the hashes of its rows, without the numbers that a server gave to them."""
    return fingerprint_of(table, table.to_reader())


def fingerprint_of(table: Table[Any], batches: Iterable[pa.RecordBatch]) -> Fingerprint:
    """Sum the hashes of rows of a table."""
    found = Fingerprint(0, 0)
    names = [name for name in table.columns if name not in table.schema.auto_increment_columns]
    for batch in batches:
        # A server that cannot list rows gives all of a bucket as one batch.
        for part in pa.Table.from_batches([batch.select(names)]).to_batches(max_chunksize=_HASHED_ROWS_MAX):
            sums = sum(int.from_bytes(row, "big") for row in row_hashes(table, part))
            found += Fingerprint(part.num_rows, sums)
    return found


class TableCopy:
    """Copies one table.

    Example:
        TableCopy(here, "orders", there, "orders").run()
    """

    def __init__(
        self,
        source: Database,
        name: str,
        target: Database,
        target_name: str,
        *,
        checkpoint: str | None = None,
        renumber: bool = False,
        history: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._source, self._target = source, target
        self._history = history
        self.source = source.table(name)
        existed = target_name in target
        wanted = check_target(self.source, target, target_name, renumber=renumber)
        self.target = TableDraft(target_name, wanted).create(target, exist_ok=True)
        self._sink = open_sink(target, self.target, "upsert" if self.target.primary_key else "append", exact=True)
        self._checkpoint = checkpoint
        self._progress = progress or (lambda rows: None)
        self.report = CopyReport()
        self._in_step = False
        """Whether the target has what the source had at the position, and nothing later."""
        self.state = self._load(existed)

    def run(self, *, follow: bool = False) -> CopyReport:
        """Copy everything there is now; with `follow`, go on until the caller is interrupted.

        It can be called again, and copies what is new.
        """
        partitions = self._add_partitions()
        if self.source.primary_key and not self.state.snapshot_done:
            handles: list[WriteResultHandle] = []
            for batch in self.source.to_reader():
                handles += self._write(batch)
                self._progress(batch.num_rows)
            wait_for_writes(self._target, handles)
            self.state.snapshot_done = True
            self._save(exact=False)
        ends = self._source_ends()
        if not self._in_step or ends != self.state.position:
            self._apply(ends)
        if follow:
            self._apply(None)
        check_partitions(self.target, partitions)
        return self.report

    def behind(self) -> int:
        """Count the changes of the source that were not copied yet."""
        read = Position.parse(self.state.position).offsets
        return sum(end - read.get(bucket, 0) for bucket, end in Position.parse(self._source_ends()).offsets.items())

    def _add_partitions(self) -> list[dict[str, str]]:
        known = {one.partition_name for one in self.target.partitions()}
        found = {one.partition_name: one.partition_spec.spec_map for one in self.source.partitions()}
        for name in found.keys() - known:  # a request each
            self.target.add_partition(found[name], exist_ok=True)
        return list(found.values())

    def _source_ends(self, at: str = "latest") -> str:
        found = bucket_offsets(self._source, self.source, OffsetSpec(at))
        return str(Position(self.source.info.table_id, {bucket: offset for (_, bucket), offset in found.items()}))

    def _write(self, batch: pa.RecordBatch) -> list[WriteResultHandle]:
        if not batch.num_rows:
            return []
        self.report.rows += batch.num_rows
        return [self._sink.write(self._storable(batch))]

    def _storable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        generated = self.target.schema.auto_increment_columns
        return batch.drop_columns(list(generated)) if generated else batch

    def _apply(self, ends: str | None) -> None:
        """Write the changes after the position, up to these ends or for ever."""
        is_log = not self.source.primary_key
        ahead = self._written_after_checkpoint() if is_log and not self._in_step else Counter()
        # What was listed, or written before a kill, may be newer than the position: then changes that are applied
        # again are none on the target, and only where all of them are applied can a reader go on.
        exact = is_log or self._in_step
        self._in_step = False
        handles: list[WriteResultHandle] = []
        position = Position.parse(self.state.position)
        saved_at = time.monotonic()
        try:
            with self.source.follow(position, batches=True, stop_at_end=ends is not None) as found:
                for group in _groups(found, 0 if ends is None else _GROUP_BYTES):
                    batch = pa.Table.from_batches([one.batch for one in group]).combine_chunks().to_batches()[0]
                    if is_log:
                        handles += self._write(self._without(batch, ahead))
                    else:
                        handles += self._change(batch, [kind for changes in group for kind in changes.kinds])
                    position = group[-1].position
                    self._progress(batch.num_rows)
                    # Until all rows that are ahead of the old checkpoint are known, it says which these are.
                    if not ahead and (ends is None or time.monotonic() > saved_at + _SAVE_S):
                        self._complete(handles, position, exact)
                        saved_at = time.monotonic()
        finally:
            wait_for_writes(self._target, handles)
        if ahead:
            raise InvalidArgumentError(
                f"table {self.target.name} has {ahead.total()} rows that were not copied from {self.source.name}: was "
                "something else written to it? Drop it and its checkpoint, and copy again"
            )
        if ends is not None:
            # The last offsets before an end may have no changes.
            reached = dict(position.offsets)  # with partitions that appeared since
            for bucket, end in Position.parse(ends).offsets.items():
                reached[bucket] = max(end, reached.get(bucket, 0))
            self._complete(handles, Position(position.table_id, reached), True)
            self._in_step = True

    def _without(self, batch: pa.RecordBatch, hashes: Counter[bytes]) -> pa.RecordBatch:
        """The rows that are not among these; those that are, are taken off."""
        if not hashes:
            return batch
        kept = []
        for index, row in enumerate(row_hashes(self.source, batch)):
            if row not in hashes:
                kept.append(index)
            elif hashes[row] > 1:
                hashes[row] -= 1
            else:
                del hashes[row]
        return batch.take(pa.array(kept, pa.int64()))

    def _complete(self, handles: list[WriteResultHandle], position: Position, exact: bool) -> None:
        wait_for_writes(self._target, handles)
        handles.clear()
        self.state.position = str(position)
        self._save(exact=exact)

    def _change(self, batch: pa.RecordBatch, kinds: list[Kind]) -> list[WriteResultHandle]:
        """Write changes in their order: those that follow each other and do the same go together."""
        handles: list[WriteResultHandle] = []
        writer = self._sink.writer
        assert isinstance(writer, UpsertWriter)
        for delete, run in itertools.groupby(range(len(kinds)), lambda index: kinds[index] == "delete"):
            kept = [index for index in run if kinds[index] != "update_before"]
            rows = batch if len(kept) == len(kinds) else batch.take(pa.array(kept, pa.int64()))
            if rows.num_rows:
                # The same writer for both: it keeps their order.
                handles.append(writer.delete_arrow_batch(rows) if delete else self._sink.write(self._storable(rows)))
                self.report.changes += rows.num_rows
        return handles

    # -- where to go on -------------------------------------------------------------------------------------------

    def _written_after_checkpoint(self) -> Counter[bytes]:
        """The hashes of the rows that the target has although the checkpoint does not know of them."""
        ends = self.state.target_ends
        offsets = {bucket: ends.get(key, first) for key, (bucket, first) in self._buckets("earliest").items()}
        start = Position(self.target.info.table_id, offsets)
        found: Counter[bytes] = Counter()
        with self.target.follow(start, batches=True, stop_at_end=True) as rows:
            for changes in rows:
                found.update(row_hashes(self.target, changes.batch))
        return found

    def _buckets(self, at: str) -> dict[str, tuple[TableBucket, int]]:
        """The buckets of the target, as a checkpoint names them, with their first or last offsets."""
        found = bucket_offsets(self._target, self.target, OffsetSpec(at))
        return {bucket_name(name, bucket): (bucket, offset) for (name, bucket), offset in found.items()}

    def _load(self, existed: bool) -> CopyState:
        tables = identity_of(self.source.info), identity_of(self.target.info)
        if self._checkpoint is not None and os.path.exists(self._checkpoint):
            try:
                with open(self._checkpoint, encoding="utf-8") as file:
                    state = CopyState(**json.load(file))
            except (ValueError, TypeError):
                raise InvalidArgumentError(f"'{self._checkpoint}' is not a checkpoint of a copy") from None
            if (state.source, state.target) != tables:
                raise InvalidArgumentError(
                    f"the checkpoint '{self._checkpoint}' belongs to other tables; remove it to start anew"
                )
            self.report.resumed = True
            return state
        if existed and self.target.count():
            raise InvalidArgumentError(
                f"table {self.target.name} has rows already; drop it, choose another name, or go on with its checkpoint"
            )
        position = self._source_ends("earliest")
        # A changelog that begins with the first change makes the same rows, and the same changes on the target.
        whole = self._history and not any(Position.parse(position).offsets.values())
        self._in_step = whole or not self.source.primary_key
        self.state = CopyState(*tables, position if self._in_step else self._source_ends(), snapshot_done=self._in_step)
        self._save(exact=self._in_step)
        return self.state

    def _save(self, *, exact: bool) -> None:
        self.state.target_ends = {key: end for key, (_, end) in self._buckets("latest").items()}
        if self._checkpoint is None:
            return
        if exact:
            names: dict[int | None, str] = {one.partition_id: one.partition_name for one in self.source.partitions()}
            offsets = Position.parse(self.state.position).offsets
            read = {bucket_name(names.get(bucket.partition_id), bucket): offset for bucket, offset in offsets.items()}
            self.state.points.append([read, self.state.target_ends])
            if len(self.state.points) > _POINTS_MAX:
                del self.state.points[1:-1:2]
        write_json(self._checkpoint, self.state.__dict__)


def check_target(source: Table[Any], target: Database, name: str, *, renumber: bool = False) -> TableDescriptor:
    """Return the descriptor of a copy. Refuse a table that is there and means something else, or numbers its rows."""
    wanted = _without_lake(descriptor_of(source.info))
    if not renumber:
        check_numbers(name, wanted)
    if name in target:
        # Its buckets and comments are its own.
        found = _without_lake(descriptor_of(target.table(name).info))
        if wrong := differences(_meaning(wanted), _meaning(found)):
            raise InvalidArgumentError(
                f"table {name} exists with other {wrong[0]} than {source.name}; drop it, or choose another name"
            )
    return wanted


def bucket_name(partition: str | None, bucket: TableBucket) -> str:
    """How checkpoints name a bucket: the ids of partitions differ from server to server."""
    return f"{partition or ''}/{bucket.bucket_id}"


def _meaning(made: TableDescriptor) -> TableDescriptor:
    """A descriptor with only what decides which rows a table has after a write."""
    columns = [replace(column, comment=None) for column in made.schema.columns]
    return TableDescriptor(
        Schema.of(columns, made.schema.primary_key, made.schema.auto_increment_columns),
        partition_keys=made.partition_keys,
        properties={
            key: value
            for key, value in made.properties.items()
            if key.startswith("table.merge-engine") or key == "table.delete.behavior"
        },
    )


def row_hashes(table: Table[Any], batch: pa.RecordBatch) -> list[bytes]:
    """A hash of each row, over its bytes as a primary-key table stores them."""
    types = {column.name: column.data_type for column in table.schema.columns}
    rows = encode_compacted([types[name] for name in batch.schema.names], batch.columns)
    return [hashlib.blake2b(row, digest_size=_SUM_BITS // 8).digest() for row in rows]


def _without_lake(made: TableDescriptor) -> TableDescriptor:
    """Leave out the settings of a lake, which belongs to its cluster: two tables that write to one would damage it."""
    return made.replace(
        properties={key: value for key, value in made.properties.items() if not key.startswith("table.datalake.")},
        custom_properties={
            key: value for key, value in made.custom_properties.items() if key.partition(".")[0] not in _LAKES
        },
    )


def _groups(changes: Iterable[ChangeBatch], size_bytes: int) -> Iterator[list[ChangeBatch]]:
    """Changes that are written together: small batches cost as much as large ones."""
    group: list[ChangeBatch] = []
    room = size_bytes
    for one in changes:
        group.append(one)
        room -= one.batch.nbytes
        if room <= 0:
            yield group
            group, room = [], size_bytes
    if group:
        yield group
