# SPDX-License-Identifier: Apache-2.0
"""RocksDB as this server uses it: rows of one bucket by key, in files that every RocksDB from 6.6 on can open.

Apache Fluss's Java client opens the files of a snapshot with RocksDB 6.20.3. So blocks have format version 5 and CRC32C
checksums, which that release knows, and are not compressed. Rows are written without a log of their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ChecksumType,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from fluss.rows.slices import WORD_BYTES, starts_of, words_at
from fluss.server import disk

_WRITE_ROWS = 1_000
"""Rows per write to RocksDB. A write keeps every other thread waiting, so it must be short."""
_WRITE_PAUSE_SECONDS = 0.0003
"""Lets the threads that waited go first."""
_GET_KEYS = 512
"""Keys per read from RocksDB. More of them do not stay in the cache of the processor until their values are taken."""
_CACHE_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 2048
_FORMAT_VERSION = 5
_cache: Cache | None = None


class DamagedStoreError(Exception):
    """The files of a store cannot be read, or were replaced meanwhile; its contents are rebuilt from the log."""


def open_db(folder: Path) -> Rdict:
    """Open the database in a folder, and create it if there is none."""
    global _cache
    if _cache is None:
        _cache = Cache(_CACHE_BYTES)
    table = BlockBasedOptions()
    table.set_block_cache(_cache)
    # Most keys of an insert are not there yet: a bloom filter answers that without reading a block.
    table.set_bloom_filter(10, False)
    # Rows are asked for one by one: found by hash in a small block, which need not be decompressed for one row.
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_block_size(_BLOCK_BYTES)
    table.set_format_version(_FORMAT_VERSION)
    table.set_checksum_type(ChecksumType.crc32c())
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_keep_log_file_num(1)
    options.set_max_open_files(64)
    options.set_compression_type(DBCompressionType.none())
    # Without naming the column family, a store that is there already would be opened as it once was, and without its
    # filter and cache, which are not written down.
    return Rdict(str(folder), options, column_families={"default": options})


def get_many(db: Rdict, keys: list[bytes]) -> list[bytes | None]:
    """The values of keys in their order; None where a key is absent.

    Many keys are read in the order in which they lie on disk, some at a time: rows that share a block then find it in
    the cache of the processor. That takes two thirds of the time.
    """
    if len(keys) <= _GET_KEYS:
        return db.get(keys)  # type: ignore[no-any-return]
    data = np.frombuffer(b"".join((*keys, bytes(WORD_BYTES))), np.uint8)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    # By their first bytes; where a key is shorter than that, the next one's follow, and the order is nearly right.
    order = np.argsort(words_at(data)[starts_of(lengths)].byteswap()).tolist()
    found: list[bytes | None] = [None] * len(keys)
    for start in range(0, len(keys), _GET_KEYS):
        places = order[start : start + _GET_KEYS]
        for place, value in zip(places, db.get([keys[place] for place in places])):
            found[place] = value
    return found


def write_rows(db: Rdict, changes: Mapping[bytes, bytes | None]) -> None:
    """Write changes and flush them: when this returns they are durable."""
    options = WriteOptions()
    options.disable_wal = True
    items = iter(changes.items())
    while part := list(islice(items, _WRITE_ROWS)):
        batch = WriteBatch(raw_mode=True)
        for key, value in part:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        db.write(batch, options)
        time.sleep(_WRITE_PAUSE_SECONDS)
    db.flush(True)


def checkpoint(db: Rdict, folder: Path) -> None:
    """Put the files of a database as they are now into a new folder, as links where they never change again."""
    disk.remove_tree(folder)
    Checkpoint(db).create_checkpoint(str(folder))


def export(rows: Mapping[bytes, bytes | None], folder: Path) -> None:
    """Write rows into a database of their own in a new folder, and close it. Removed keys are left out."""
    disk.remove_tree(folder)
    disk.make_folders(folder)
    db = open_db(folder)
    try:
        write_rows(db, {key: value for key, value in rows.items() if value is not None})
    finally:
        db.close()


def read_rows(folder: Path) -> dict[bytes, bytes | None]:
    """All rows of a database that is not open. Raises an exception of RocksDB when a checksum does not fit."""
    db = Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        rows = db.iter()
        rows.seek_to_first()
        found: dict[bytes, bytes | None] = {}
        while rows.valid():
            found[rows.key()] = rows.value()
            rows.next()
        rows.status()
        del rows  # an open iterator keeps the database open
        return found
    finally:
        db.close()
