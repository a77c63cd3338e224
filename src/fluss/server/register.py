# SPDX-License-Identifier: Apache-2.0
"""Which buckets have data, so that a bucket whose files are gone is missed.

A file per table, beside its description in the catalog and so apart from the data. A bucket is added once, before its
first row is acknowledged. Records have a fixed size and a checksum each: a torn or damaged one says nothing about the
others. Those of dropped partitions stay until a start finds that they are most of the file.
"""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fluss.metadata import TableBucket
from fluss.server import disk
from fluss.server.catalog.storage import CatalogStorage

logger = logging.getLogger("fluss.server.tablets")

REGISTER_NAME = "buckets"
_RECORD = struct.Struct("<qiI")
_NO_PARTITION = -1
_GONE_MIN = 256


class BucketRegister:
    """The buckets that have data. Methods may be called from any thread."""

    def __init__(self, storage: CatalogStorage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._buckets: dict[int, dict[int | None, set[TableBucket]]] = {}
        """By table and partition."""
        self._ends: dict[int, int] = {}

    def __contains__(self, bucket: TableBucket) -> bool:
        return bucket in self._buckets.get(bucket.table_id, {}).get(bucket.partition_id, ())

    def buckets(self) -> Iterator[TableBucket]:
        for partitions in tuple(self._buckets.values()):
            for buckets in tuple(partitions.values()):
                yield from tuple(buckets)

    def _path(self, table_id: int) -> Path:
        return self._storage.table_dir(table_id) / REGISTER_NAME

    def load(self, table_ids: Iterable[int], is_there: Callable[[TableBucket], bool] = lambda _: True) -> None:
        """Read what is on disk. What is damaged is left out: it is not needed to serve what is there.

        Args:
            is_there: Tells of a bucket whether its partition was not dropped.
        """
        for table_id in table_ids:
            path = f"{self._storage.tables}/{table_id}/{REGISTER_NAME}"
            try:
                data = disk.read_file(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.error("'%s' cannot be read (%s); missing buckets of its table go unnoticed", path, error)
                continue
            whole = len(data) - len(data) % _RECORD.size
            found = [_decode(table_id, data[at : at + _RECORD.size]) for at in range(0, whole, _RECORD.size)]
            if None in found or whole < len(data):
                logger.warning("'%s' is damaged; some buckets of its table may be missing unnoticed", path)
            kept = [bucket for bucket in found if bucket is not None and is_there(bucket)]
            self._keep(kept)
            self._ends[table_id] = whole
            gone = len(found) - len(kept)
            if gone > max(len(kept), _GONE_MIN):
                self._rewrite(table_id, kept)

    def _keep(self, buckets: Iterable[TableBucket]) -> None:
        for bucket in buckets:
            self._buckets.setdefault(bucket.table_id, {}).setdefault(bucket.partition_id, set()).add(bucket)

    def _rewrite(self, table_id: int, kept: Iterable[TableBucket]) -> None:
        path, data = self._path(table_id), b"".join(map(_encode, kept))
        try:
            disk.write_atomically(path, data)
            disk.sync_folder(path.parent)
        except OSError as error:
            logger.warning("'%s' cannot be written anew, the next start tries again: %s", path, error)
            return
        self._ends[table_id] = len(data)

    def add(self, buckets: Sequence[TableBucket]) -> None:
        """Make durable that these buckets of one table have data. Runs in a thread."""
        with self._lock:
            table_id = buckets[0].table_id
            new = [bucket for bucket in buckets if bucket not in self]
            if not new:
                return
            path, end = self._path(table_id), self._ends.get(table_id, 0)
            data = b"".join(map(_encode, new))
            disk.append_durably(path, data, end)
            if end == 0:
                disk.sync_folder(path.parent)
            self._keep(new)
            self._ends[table_id] = end + len(data)

    def forget(self, table_id: int) -> None:
        """The table was dropped; its file went with its description."""
        self._buckets.pop(table_id, None)
        self._ends.pop(table_id, None)

    def forget_partition(self, table_id: int, partition_id: int) -> None:
        """The partition was dropped."""
        self._buckets.get(table_id, {}).pop(partition_id, None)


def _encode(bucket: TableBucket) -> bytes:
    partition_id = _NO_PARTITION if bucket.partition_id is None else bucket.partition_id
    body = struct.pack("<qi", partition_id, bucket.bucket_id)
    return body + zlib.crc32(body).to_bytes(4, "little")


def _decode(table_id: int, record: bytes) -> TableBucket | None:
    partition_id, bucket_id, check = _RECORD.unpack(record)
    if zlib.crc32(record[:12]) != check:
        return None
    return TableBucket(table_id, bucket_id, None if partition_id == _NO_PARTITION else partition_id)
