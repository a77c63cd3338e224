# SPDX-License-Identifier: Apache-2.0
"""The rows that earlier attempts of a batch appended, in bounded memory.

Of each row a digest of 16 bytes is kept, in sorted runs on disk: what an attempt of a large micro-batch wrote need not
fit into the memory of the next one.

An attempt of a task leaves out the rows that earlier attempts of that task in the same run wrote, and those that
earlier runs of the batch wrote, of whichever task: another run may have divided the batch differently. Of rows that are
alike, several tasks may each leave out what was written once. So they report what they left out, and the driver, before
it commits, appends the rows that were left out too often.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss import aio
from fluss.client.blocking_client import BlockingClient
from fluss.errors import FlussError
from fluss.metadata import EARLIEST_OFFSET, TableInfo
from fluss.rows import encode_compacted
from fluss.spark.layout import Layout
from fluss.spark.ledger import Attempt

RUN_ROWS = 1_000_000
"""Digests that are sorted in memory before they go to disk: about 50 MB while they are sorted."""

_IN_FLIGHT_S = 0.5
"""How long an attempt waits before it reads back: the last requests of a killed attempt may still be in flight."""

_DIGEST = np.dtype("S16")
Digests = npt.NDArray[np.bytes_]
NO_DIGESTS: Digests = np.zeros(0, _DIGEST)


class DigestCounts:
    """How often each of many digests was added and not yet taken. Memory does not grow with their number."""

    def __init__(self, run_rows: int = RUN_ROWS) -> None:
        self._run_rows = run_rows
        self._waiting: list[Digests] = []
        self._waiting_rows = 0
        self._runs: list[_DigestRun] = []

    @property
    def left(self) -> int:
        return self._waiting_rows + sum(run.left for run in self._runs)

    def add(self, digests: Digests) -> None:
        self._waiting.append(digests)
        self._waiting_rows += len(digests)
        if self._waiting_rows >= self._run_rows:
            self._close_run()

    def _close_run(self) -> None:
        if self._waiting_rows:
            self._runs.append(_DigestRun(np.concatenate(self._waiting)))
            self._waiting, self._waiting_rows = [], 0

    def take(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Return for each digest whether it was there, and remove it once."""
        self._close_run()
        taken = np.zeros(len(digests), np.bool_)
        for run in self._runs:
            rest = np.flatnonzero(~taken)
            if not len(rest):
                break
            taken[rest] = run.take(digests[rest])
        self._runs = [run for run in self._runs if run.left]
        return taken


class _DigestRun:
    """Sorted digests, each once, and how often it is left; in files without a name."""

    def __init__(self, digests: Digests) -> None:
        keys, counts = np.unique(digests, return_counts=True)
        self._keys: Digests = _on_disk(keys)
        self._counts: npt.NDArray[np.int64] = _on_disk(counts.astype(np.int64))
        self.left = len(digests)

    def take(self, digests: Digests) -> npt.NDArray[np.bool_]:
        at = np.searchsorted(self._keys, digests)
        found = at < len(self._keys)
        found[found] = self._keys[at[found]] == digests[found]
        rows = np.flatnonzero(found)
        if not len(rows):
            return found
        # Of equal digests in one call, only as many are taken as are left: the first ones.
        order = rows[np.argsort(at[rows], kind="stable")]
        places, first, counts = np.unique(at[order], return_index=True, return_counts=True)
        number = np.arange(len(order)) - np.repeat(first, counts)
        enough = number < np.repeat(self._counts[places], counts)
        found[order] = enough
        used = np.minimum(counts, self._counts[places])
        self._counts[places] -= used
        self.left -= int(used.sum())
        return found


def _on_disk(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with tempfile.TemporaryFile(prefix="fluss-spark-") as file:
        file.write(array.tobytes())
        file.flush()
        # The mapping keeps the file alive, which has no name any more.
        return np.memmap(file, array.dtype, "r+", shape=array.shape)


def digests_of(rows: Iterable[bytes]) -> Digests:
    return np.frombuffer(b"".join(blake2b(row, digest_size=16).digest() for row in rows), _DIGEST)


class RowsWritten:
    """The rows that earlier attempts of a batch appended, to be left out of what a task appends now."""

    def __init__(self, log: WrittenLog, own: Sequence[Attempt], earlier: Sequence[Attempt]) -> None:
        """Read the log back.

        Args:
            log: The table that is written.
            own: Earlier attempts of the same task in the same run.
            earlier: All attempts of earlier runs.
        """
        self._log = log
        self._own, self._earlier = DigestCounts(), DigestCounts()
        if own or earlier:
            time.sleep(_IN_FLIGHT_S)
        own_writers = {attempt.writer for attempt in own}
        for found in log.rows([*own, *earlier]):
            (self._own if found.writer_id in own_writers else self._earlier).add(log.digests(found.batch))
        self.earlier_rows = self._earlier.left
        """How many rows earlier runs wrote."""
        self.skipped = 0
        self._left_out: list[Digests] = []

    def strip(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that were not written before."""
        if not self._own.left and not self._earlier.left:
            return batch
        digests = self._log.digests(batch)
        written = self._own.take(digests)
        others = np.flatnonzero(~written)
        taken = self._earlier.take(digests[others])
        self._left_out.append(digests[others[taken]])
        written[others[taken]] = True
        self.skipped += int(written.sum())
        return batch.filter(pa.array(~written)) if written.any() else batch

    @property
    def left_out(self) -> Digests:
        """The digests of the rows that were left out because an earlier run wrote them."""
        return np.concatenate(self._left_out) if self._left_out else NO_DIGESTS


class WrittenLog:
    """The log of a table as far as attempts of one batch wrote it."""

    def __init__(self, client: BlockingClient, table: aio.FlussTable) -> None:
        self._client = client
        self._table = table
        self._info: TableInfo = table.get_table_info()
        self._types = [column.data_type for column in self._info.schema.columns]

    def digests(self, batch: pa.RecordBatch) -> Digests:
        return digests_of(encode_compacted(self._types, batch.columns).to_list())

    def rows(self, attempts: Sequence[Attempt]) -> Iterator[aio.RecordBatch]:
        """The batches that these attempts wrote."""
        if not attempts:
            return
        start, stop = {}, {}
        for bucket, end in Layout.load(self._client, self._info).latest().items():
            # A bucket that an attempt did not know is of a partition made since: all of it counts.
            first = min(attempt.ends.get(bucket.key, EARLIEST_OFFSET) for attempt in attempts)
            if end > max(first, 0):
                start[bucket.of(self._info.table_id)] = first
                stop[bucket.of(self._info.table_id)] = end
        if not start:
            return
        writers = {attempt.writer for attempt in attempts}
        scan = self._client.call(self._table.new_scan)
        for found in self._client.iterate(scan.read_batches(start, stop)):
            if found.writer_id in writers:
                yield found

    def restore(
        self,
        earlier: Sequence[Attempt],
        left_out: Digests,
        earlier_rows: Set[int],
        write: Callable[[pa.RecordBatch], object],
    ) -> int:
        """Append the rows that several tasks left out although earlier runs wrote fewer of them; return how many.

        Args:
            earlier: All attempts of earlier runs.
            left_out: What all tasks left out.
            earlier_rows: How many rows the earlier runs wrote, as each of the tasks saw it.
            write: Appends a batch.
        """
        written = DigestCounts()
        for found in self.rows(earlier):
            written.add(self.digests(found.batch))
        if {written.left} != earlier_rows:
            raise FlussError(
                f"table {self._info.table_path}: an earlier run of this batch is still writing to it; stop that run, "
                "then run the batch again"
            )
        missing = DigestCounts()
        missing.add(left_out[~written.take(left_out)])
        rows = missing.left
        while missing.left:  # a row may be missing more often than the log has it
            before = missing.left
            for found in self.rows(earlier):
                again = missing.take(self.digests(found.batch))
                if again.any():
                    write(found.batch.filter(pa.array(again)))
            if missing.left == before:
                raise FlussError(f"table {self._info.table_path}: rows of an earlier run expired while it was repeated")
        return rows
