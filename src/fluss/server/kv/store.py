# SPDX-License-Identifier: Apache-2.0
"""Where rows of a bucket are kept by key: in memory, and what does not fit in a RocksDB on disk.

The log is the truth, from the newest snapshot on, and this is a cache of it. So the disk part is written without a log
of its own: with every spill it stores up to which offset of the changelog it holds everything, and the rest is replayed
from the log. RocksDB was chosen over lmdb because it checks what it reads: a flipped byte becomes an error (and a
rebuild), never a wrong row. It holds rows and nothing else, in files that the RocksDB of Apache Fluss's Java client can
open: they are what snapshots are made of. Another process writes them; this one reads a view, and opens a new one after
each spill. All stores of a server share a budget of memory.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

from rocksdict import Rdict

from fluss.server import disk
from fluss.server.kv import ordered
from fluss.server.kv.budget import StoreBudget
from fluss.server.kv.ordered import Changes, DamagedStoreError, DiskRows, DiskValues, Layer, OrderedValues, Values
from fluss.server.kv.rocksdb import open_view

logger = logging.getLogger("fluss.server.kv")

META_NAME = "fluss-state"
"""The file beside those of RocksDB that says what is in them."""
_ENTRY_OVERHEAD_BYTES = 180
"""What a dict entry and its two byte strings cost beside their contents."""
_SAMPLE_ROWS = 32
_REPLAY_OFFSETS_MAX = 4_000_000
"""After so many changes a store goes to disk even if it fits in memory: a restart would have to replay them."""

_DAMAGES = ("Corruption", "No such file or directory")
"""What errors of RocksDB about damaged or removed files say."""

_SIZE_NAME = "rocksdb.live-sst-files-size"

_MISSING: Any = object()


class StoreMeta(NamedTuple):
    """What the disk part says about itself."""

    offset: int = 0
    """Every change below this offset of the changelog is in it."""
    reaches: int = 0
    """It may also hold changes up to this offset; so the log must reach at least as far."""
    rows: int = 0
    number: int = 0
    """The largest auto-increment number among them."""
    store: str = ""
    """Identifies this disk part among all that the bucket ever had. RocksDB numbers the files of each from the start:
    only files of one disk part with the same name can have the same content."""
    sequence: int = 0
    """How many changes RocksDB counted. A manifest that lost its end is no error to it: it opens an earlier state."""

    def write(self, folder: Path) -> None:
        """Put it into force, in place of what the folder said before."""
        disk.write_atomically(folder / META_NAME, disk.seal(json.dumps(self._asdict()).encode()))
        disk.sync_folder(folder)

    @classmethod
    def read(cls, folder: Path) -> StoreMeta:
        """Raises OSError or ValueError when the folder says nothing that can be trusted."""
        return cls(**json.loads(disk.unseal(disk.read_file(folder / META_NAME))))


class Checkpointed(NamedTuple):
    """What was put into the folder of a checkpoint."""

    folder: Path
    meta: StoreMeta


def entry_bytes(changes: Mapping[bytes, bytes | None]) -> float:
    """Return what one of these changes takes in memory, by a sample.

    Counting every byte would cost as much as storing it; rows of one table are much alike.
    """
    sample = list(islice(changes.items(), _SAMPLE_ROWS))
    return sum(len(key) + len(value or b"") for key, value in sample) / len(sample) + _ENTRY_OVERHEAD_BYTES


class Store:
    """Rows of one bucket by key, in unsigned byte order where order matters.

    Changes (`apply`, `start_spill`, `finish_spill`, ordered reads) belong to the event loop; `get_many` may come from
    any thread.
    """

    def __init__(self, folder: Path, budget: StoreBudget) -> None:
        self._folder = folder
        self.budget = budget
        self._memory = Layer()
        self._spilling = Layer()
        self._spill: Future[Checkpointed | Exception | None] | None = None
        self._identity = uuid.uuid4().hex
        self._db: Rdict | None = None
        """A view of what is on disk. It may lack the newest rows of `_spilling`, and nothing else. None as long as
        nothing is on disk, and while the view is closed."""
        self._is_on_disk = False
        self._view_lock = threading.Lock()
        """Held while a view is opened: an older one must not take the place of a newer one."""
        self._is_written = False
        """Whether the writer may have the folder open."""
        self._figures: dict[str, int] = {}
        """Properties of RocksDB that the writer reported after the last spill."""
        self._view: weakref.ref[Layer] | None = None
        self._view_of: tuple[int, int, int, int] | None = None
        self._entry_bytes = float(_ENTRY_OVERHEAD_BYTES)
        self._spilled_offset = 0
        self._reached = StoreMeta()
        """What the disk part says about itself once the present spill is written."""
        self._written = StoreMeta()
        """What it says now."""
        self._unspilled_bytes = 0
        """Of a spill that failed and has to be repeated."""
        self.generation = 0
        """Grows whenever everything is wiped: what was read before that does not fit what is read after."""
        self.memory_bytes = 0
        self.spilling_bytes = 0
        self.applied_offset = 0
        """Every change of the changelog below this offset is in here."""
        self.reaches_offset = 0
        """No change at or beyond this offset is in here."""
        self.row_count = 0
        self.highest_number = 0
        self.closed = False
        self.on_damaged: Callable[[DamagedStoreError], None] = lambda error: None
        """Called on the event loop when a spill finds the files damaged: no spill would succeed any more."""
        budget.join(self)

    # -- opening and closing ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find what is on disk. Raises `DamagedStoreError` when it cannot be trusted."""
        if not disk.exists(self._folder / "CURRENT") or not disk.exists(self._folder / META_NAME):
            # Without its head it was not finished, or is of an earlier release.
            self.wipe()
            return
        try:
            meta = StoreMeta.read(self._folder)
            self._open_view(meta.sequence)
        except Exception as error:  # RocksDB raises plain exceptions
            raise ordered.reading_error(self._folder, "opened", error) from None
        self._reached = self._written = meta
        self._identity = meta.store
        self.applied_offset = self._spilled_offset = meta.offset
        self.reaches_offset, self.row_count, self.highest_number = meta.reaches, meta.rows, meta.number

    def clear_memory(self) -> None:
        """Drop what is in memory.

        On the event loop before a thread opens the store anew: rows that are moved to disk while the thread removes
        the others would pass for all that the changelog says.
        """
        self._memory, self._spilling = Layer(), Layer()
        self._unspilled_bytes = 0
        self._count(0, 0)

    def wipe(self) -> None:
        """Remove everything, on disk too."""
        self.generation += 1
        if self._spill is not None:
            # One that has not begun may stand behind the caller in the queue of the threads.
            self._spill.cancel()
        self._wait_for_spill()
        self._close_db()
        disk.remove_tree(self._folder)
        self.clear_memory()
        self._written, self._identity = StoreMeta(), uuid.uuid4().hex
        self._figures = {}
        self.applied_offset = self.reaches_offset = self.row_count = self.highest_number = self._spilled_offset = 0

    def close(self, *, keep: bool, replayed_max: int = 0, dropped: bool = False) -> None:
        """Put what is in memory on disk (`keep`), and close the files. The last few offsets can be left to a replay.

        The folder of the table or partition of a `dropped` bucket is gone; a spill may be making it anew.
        """
        if self.closed:
            return
        self.closed = True
        if keep:
            self._wait_for_spill()
            is_far = self.applied_offset - self._spilled_offset > replayed_max
            while is_far and (len(self._memory) or len(self._spilling)):
                self.start_spill()
                if not self._wait_for_spill():
                    break  # the log has it all
        self.budget.leave(self)
        if keep:
            self._close_db()
        elif self._spill is not None and not self._spill.cancel():
            # The rows are not wanted any more, so no caller should wait for them to be written.
            self._spill.add_done_callback(lambda _: self._close_in_thread(dropped))
        elif self._db is not None or self._is_written:
            self._close_in_thread(False)
        else:
            self._is_on_disk = False

    def _close_in_thread(self, remove: bool) -> None:
        def close() -> None:
            self._close_db()
            if remove:
                disk.remove_tree(self._folder.parent)

        try:
            self.budget.executor.submit(close)
        except RuntimeError:  # the threads have ended
            close()

    def _open_view(self, sequence: int) -> None:
        """Open a view of what is on disk, which must reach this sequence number."""
        with self._view_lock:
            db = open_view(str(self._folder), self.budget.blocks)
            if db.latest_sequence_number() < sequence:
                raise ValueError("its manifest has lost its end")
            self._db, self._is_on_disk = db, True
        self.budget.view_opened(self)

    def _view_on_disk(self) -> Rdict | None:
        """The view of what is on disk, opened again if it was closed; None as long as nothing is there."""
        db = self._db
        if db is not None or not self._is_on_disk:
            return db
        with self._view_lock:
            if self._db is None and self._is_on_disk:
                try:
                    self._db = open_view(str(self._folder), self.budget.blocks)
                except Exception as error:  # RocksDB raises plain exceptions
                    raise ordered.reading_error(self._folder, "opened", error) from None
                self.budget.views_reopened += 1
            db = self._db
        self.budget.view_opened(self)
        return db

    def close_view(self) -> None:
        """Close the view until it is wanted again. Reads of it that have begun go on."""
        with self._view_lock:
            if self._db is not None:
                self._figures = {**self._figures, _SIZE_NAME: self._db.property_int_value(_SIZE_NAME) or 0}
                self._db = None

    def _close_db(self) -> None:
        with self._view_lock:
            self._db, self._is_on_disk = None, False
        if self._is_written:
            self._is_written = False
            try:
                self.budget.writer.close(str(self._folder))
            except Exception as error:  # of rows that it could not write; the log has them
                logger.warning("the store in '%s' was not closed cleanly: %s", self._folder, error)

    # -- snapshots --------------------------------------------------------------------------------------------------

    @property
    def is_in_memory(self) -> bool:
        """Whether all rows are in memory, so that a copy of it is a copy of everything."""
        return not self._is_on_disk and self._spill is None and not len(self._spilling)

    def copy(self) -> tuple[Changes, StoreMeta]:
        """All rows of a store that `is_in_memory`, and what they are."""
        assert self.is_in_memory
        # Of a disk part that nothing follows on: its files have nothing in common with those of any other.
        return self._memory.rows.copy(), self._meta()._replace(store=uuid.uuid4().hex)

    def load(self, rows: Changes, meta: StoreMeta) -> None:
        """Begin with these rows, in memory, in place of everything that was there. Runs in a thread, as `open` does."""
        self.wipe()
        self.apply(rows, meta.offset, meta.rows, meta.number)

    def restore(self, fill: Callable[[Path], None], meta: StoreMeta) -> None:
        """Begin with the files that `fill` puts into the folder, in place of everything that was there.

        Runs in a thread, as `open` does, and raises what `open` and `fill` do.
        """
        self.wipe()
        disk.make_folders(self._folder)
        fill(self._folder)
        for name in disk.names(self._folder):
            # A power cut must not leave the head without them: RocksDB opens what is left of a manifest.
            disk.sync_file(self._folder / name)
        # What follows on these files is not what followed on them before, so this is another disk part.
        meta._replace(reaches=meta.offset, store=self._identity, sequence=0).write(self._folder)
        self.open()

    # -- reading ----------------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys in their order; None where a key is absent."""
        # Rows move from left to right, so looking in this order finds every row in at least one place.
        generation = self.generation
        memory, spilling = self._memory.rows, self._spilling.rows
        if not spilling and not self._is_on_disk:
            found: list[Any] = list(map(memory.get, keys))
        else:
            found = list(map(memory.get, keys, repeat(_MISSING)))
            if spilling:
                for i, value in enumerate(found):
                    if value is _MISSING:
                        found[i] = spilling.get(keys[i], _MISSING)
            at = [i for i, value in enumerate(found) if value is _MISSING]
            if at:
                for i, value in zip(at, self._from_disk([keys[i] for i in at])):
                    found[i] = value
        if generation != self.generation:
            raise DamagedStoreError(f"the store in '{self._folder}' was rebuilt meanwhile")
        return found

    def _from_disk(self, keys: list[bytes]) -> list[bytes | None]:
        db = self._view_on_disk()
        if db is None:
            return [None] * len(keys)
        try:
            return ordered.get_many(db, keys)
        except Exception as error:  # RocksDB raises plain exceptions
            raise ordered.reading_error(self._folder, "read", error) from None

    @property
    def layers(self) -> tuple[Layer, Layer]:
        """What is in memory, newest first."""
        return self._memory, self._spilling

    def values(self, prefix: bytes = b"") -> Values:
        """Values in key order, as of the moment they are read: to be used up before anything changes."""
        return self._ordered(self._memory, self._spilling, prefix, many=False)

    def snapshot(self, prefix: bytes = b"") -> Values:
        """Values in key order, from a view that later changes do not touch.

        Views of the same state share their memory.
        """
        memory = self._memory
        memory.sort()
        state = (id(memory), len(memory), self.applied_offset, self.generation)
        view = self._view() if self._view is not None and self._view_of == state else None
        if view is None:
            view = memory.snapshot()
            self._view, self._view_of = weakref.ref(view), state
        return self._ordered(view, self._spilling, prefix, many=not prefix)

    def _ordered(self, memory: Layer, spilling: Layer, prefix: bytes, *, many: bool) -> Values:
        # From left to right as in `get_many`. The layer that is being spilled does not change any more, and a spill
        # that ends meanwhile only adds rows to the disk that the layer has as well.
        layers = [layer for layer in (memory, spilling) if len(layer)]
        for layer in layers:
            layer.sort()
        db = self._view_on_disk()
        if db is None:
            return OrderedValues(layers, None, prefix)
        if not layers and not prefix:
            return DiskValues(db, self._folder, many=many)
        return OrderedValues(layers, DiskRows(db, self._folder, prefix, many=many), prefix)

    # -- figures ----------------------------------------------------------------------------------------------------

    def engine_property(self, name: str) -> int:
        """What RocksDB says of the disk part; 0 as long as there is none."""
        db = self._db
        return self._figures.get(name) or (0 if db is None else db.property_int_value(name) or 0)

    @property
    def size_bytes(self) -> int:
        """What the rows take in memory and on disk."""
        return self.memory_bytes + self.spilling_bytes + self.engine_property(_SIZE_NAME)

    # -- writing ----------------------------------------------------------------------------------------------------

    def apply(
        self, changes: Mapping[bytes, bytes | None], end_offset: int, rows_added: int, highest_number: int = 0
    ) -> None:
        """Take in the changes of the changelog up to `end_offset`."""
        rows = self._memory.rows
        rows.update(changes)
        self.applied_offset = self.reaches_offset = end_offset
        # Blind writes count what they delete, but not what they insert.
        self.row_count = max(0, self.row_count + rows_added)
        self.highest_number = max(self.highest_number, highest_number)
        if changes:
            weight = min(len(changes) / len(rows), 1.0)
            self._entry_bytes += (entry_bytes(changes) - self._entry_bytes) * weight
            self._count(int(self._entry_bytes * len(rows)) + self._unspilled_bytes, self.spilling_bytes)

    def _count(self, memory_bytes: int, spilling_bytes: int) -> None:
        if self in self.budget:
            self.budget.count(memory_bytes - self.memory_bytes, spilling_bytes - self.spilling_bytes)
        self.memory_bytes, self.spilling_bytes = memory_bytes, spilling_bytes

    @property
    def spill_due(self) -> bool:
        """Whether a restart would have to replay too much."""
        return self.applied_offset - self._spilled_offset > _REPLAY_OFFSETS_MAX

    @property
    def spill_failed(self) -> bool:
        """Whether rows of a spill that failed wait for the next attempt."""
        return self._spill is None and len(self._spilling) > 0

    @property
    def is_spilling(self) -> bool:
        return self._spill is not None

    def start_spill(self, checkpoint: Path | None = None) -> Future[Checkpointed | Exception | None]:
        """Begin to move memory to disk in a thread; `finish_spill` ends it.

        With `checkpoint`, the disk part as it is then is put into that folder too, and is the result of the future.
        """
        assert self._spill is None
        if len(self._spilling):
            # The last attempt failed, and is repeated as it was. What came since follows in a spill of its own.
            self._count(self.memory_bytes - self._unspilled_bytes, self._unspilled_bytes)
            self._unspilled_bytes = 0
        else:
            self._spilling, self._memory = self._memory, Layer()
            self._count(0, self.memory_bytes)
            self._reached = self._meta()
        self._spill = self.budget.executor.submit(self._write, self._spilling.rows, self._reached, checkpoint)
        return self._spill

    def _meta(self) -> StoreMeta:
        return StoreMeta(self.applied_offset, self.applied_offset, self.row_count, self.highest_number, self._identity)

    def _write(self, changes: Changes, reached: StoreMeta, checkpoint: Path | None) -> Checkpointed | Exception | None:
        self._write_rows(changes, reached)
        return None if checkpoint is None else self._take_checkpoint(checkpoint, reached)

    def _write_rows(self, changes: Changes, reached: StoreMeta) -> None:
        # Parts of a spill may become durable without the rest. That does no harm, because what is replayed then says
        # the same again; but if the log should have lost its end, they must be known to be too new.
        begun = self._written._replace(reaches=reached.reaches, store=reached.store)
        disk.make_folders(self._folder)
        begun.write(self._folder)
        self._is_written = True
        sequence, self._figures = ordered.write_rows(self.budget.writer, self._folder, changes)
        if sequence < self._written.sequence + len(changes):
            # RocksDB began anew, so what was there before these changes is gone.
            raise OSError(f"Corruption: the files in '{self._folder}' were removed")
        self._written = reached._replace(sequence=sequence)
        self._written.write(self._folder)
        self._open_view(sequence)

    def _take_checkpoint(self, folder: Path, reached: StoreMeta) -> Checkpointed | Exception:
        """The disk part as the spill left it: no other spill begins before this one has ended."""
        disk.remove_tree(folder)
        try:
            self.budget.writer.checkpoint(str(self._folder), str(folder))
        except Exception as error:
            disk.remove_tree(folder)
            return error
        return Checkpointed(folder, reached)

    def finish_spill(self) -> bool:
        """Record that a spill has ended; False when it failed and its rows stay in memory."""
        spill, self._spill = self._spill, None
        if spill is None:
            return True
        error = None if spill.cancelled() else spill.exception()
        if error is not None and self in self.budget:
            logger.error("the store in '%s' could not be written: %s", self._folder, error)
        if error is not None or spill.cancelled():
            # They are memory that can be freed by writing it, and count as such.
            self._unspilled_bytes = self.spilling_bytes
            self._count(self.memory_bytes + self.spilling_bytes, 0)
            if any(text in str(error) for text in _DAMAGES) and not self.closed:
                self.on_damaged(DamagedStoreError(f"the store in '{self._folder}' cannot be written: {error}"))
            return False
        self._spilled_offset = self._reached.offset
        # Readers look here first, so it may go only when the rows can be found on disk.
        self._spilling = Layer()
        self._count(self.memory_bytes, 0)
        return True

    def _wait_for_spill(self) -> bool:
        """Wait for the spill that is in progress; False when it failed."""
        if self._spill is not None and not self._spill.cancelled():
            self._spill.exception()  # waits
        return self.finish_spill()
