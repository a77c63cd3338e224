# SPDX-License-Identifier: Apache-2.0
"""The rows that earlier attempts of a task appended, in bounded memory.

Of each row a digest of 16 bytes is kept, in sorted runs on disk: what an attempt of a large micro-batch wrote need not
fit into the memory of the next one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss import aio
from fluss.client.blocking_client import BlockingClient
from fluss.metadata import EARLIEST_OFFSET, TableInfo
from fluss.rows import encode_compacted
from fluss.spark.layout import Layout

RUN_ROWS = 1_000_000
"""Digests that are sorted in memory before they go to disk: about 50 MB while they are sorted."""

_SETTLE_S = 0.5
"""How long an attempt waits before it reads back: the last requests of a killed attempt may still be in flight."""

_DIGEST = np.dtype("S16")
Digests = npt.NDArray[np.bytes_]


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
        """Tell of each digest whether it was there, and remove it once."""
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
    """The rows that earlier attempts of a task appended, to be left out of what it appends now."""

    def __init__(
        self, client: BlockingClient, table: aio.FlussTable, attempts: Mapping[int, Mapping[str, int]]
    ) -> None:
        self._types = [column.data_type for column in table.get_table_info().schema.columns]
        self._rows = DigestCounts()
        if attempts:
            time.sleep(_SETTLE_S)
            self._read_back(client, table, attempts)
        self.left = self._rows.left
        """How many rows of earlier attempts were not met again yet."""

    def _read_back(
        self, client: BlockingClient, table: aio.FlussTable, attempts: Mapping[int, Mapping[str, int]]
    ) -> None:
        info: TableInfo = table.get_table_info()
        layout = Layout.load(client, info)
        start, stop = {}, {}
        for bucket, end in layout.latest().items():
            # A bucket that an attempt did not know is of a partition made since: all of it counts.
            first = min((ends.get(bucket.key, EARLIEST_OFFSET) for ends in attempts.values()), default=EARLIEST_OFFSET)
            if end > max(first, 0):
                start[bucket.of(info.table_id)] = first
                stop[bucket.of(info.table_id)] = end
        if not start:
            return
        scan = client.call(table.new_scan)
        for found in client.iterate(scan.read_batches(start, stop)):
            if found.writer_id in attempts:
                self._rows.add(self._digests(found.batch))

    def strip(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that were not written before."""
        if not self.left:
            return batch
        taken = self._rows.take(self._digests(batch))
        self.left -= int(taken.sum())
        return batch.filter(pa.array(~taken)) if taken.any() else batch

    def _digests(self, batch: pa.RecordBatch) -> Digests:
        return digests_of(encode_compacted(self._types, batch.columns).to_list())
