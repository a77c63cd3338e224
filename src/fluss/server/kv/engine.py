# SPDX-License-Identifier: Apache-2.0
"""RocksDB as this server uses it: rows of one bucket by key, in files that every RocksDB from 6.6 on can open.

Apache Fluss's Java client opens the files of a snapshot with RocksDB 6.20.3. So blocks have format version 5 and CRC32C
checksums, which that release knows, and are not compressed. Rows are written without a log of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
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

_WRITE_ROWS = 500
"""Rows per write to RocksDB. A write keeps every other thread waiting, so it must be short."""
_ORDER_KEYS = 1 << 15
"""Keys that are looked at in one go, for the same reason."""
_SAMPLE_KEYS = 256
_WRITE_PAUSE_SECONDS = 0.0003
"""Lets the threads that waited go first."""
_GET_KEYS = 4_096
"""Keys per read from RocksDB. Many more do not stay in the cache of the processor until their values are taken; with
fewer, a thread would wait for the others more often, because it lets them run while RocksDB reads."""
_PAUSE_TIMES_MAX = 4.0
"""How many times as long as it writes, a thread pauses at most."""
_BLOCK_BYTES = 2048
_FORMAT_VERSION = 5


class DamagedStoreError(Exception):
    """The files of a store cannot be read, or were replaced meanwhile; its contents are rebuilt from the log."""


def open_db(folder: Path, blocks: Cache | None = None) -> Rdict:
    """Open the database in a folder, and create it if there is none. Blocks that are read stay in `blocks`."""
    table = BlockBasedOptions()
    if blocks is None:
        table.disable_cache()
    else:
        table.set_block_cache(blocks)
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
    order = _disk_order(keys).tolist()
    found: list[bytes | None] = [None] * len(keys)
    for start in range(0, len(keys), _GET_KEYS):
        places = order[start : start + _GET_KEYS]
        for place, value in zip(places, db.get([keys[place] for place in places])):
            found[place] = value
    return found


def _disk_order(keys: list[bytes]) -> npt.NDArray[np.intp]:
    """The places of keys in the order in which RocksDB keeps them, or nearly so.

    They are sorted by the eight bytes behind what they have in common, as far as some of them tell.
    """
    if not keys:
        return np.empty(0, np.intp)
    sample = keys[:: len(keys) // _SAMPLE_KEYS + 1]
    least, greatest = min(sample), max(sample)
    common = next((i for i, pair in enumerate(zip(least, greatest)) if pair[0] != pair[1]), len(least))
    padding = bytes(common + WORD_BYTES)
    words: list[npt.NDArray[np.uint64]] = []
    for start in range(0, len(keys), _ORDER_KEYS):
        part = keys[start : start + _ORDER_KEYS]
        data = np.frombuffer(b"".join((*part, padding)), np.uint8)
        lengths = np.fromiter(map(len, part), np.int64, len(part))
        # Where a key ends sooner, bytes of the next one follow. They only count between keys that are alike so far.
        words.append(words_at(data)[starts_of(lengths) + common].byteswap())
    return np.argsort(np.concatenate(words))


def write_rows(db: Rdict, changes: Mapping[bytes, bytes | None], urgency: Callable[[], float] = lambda: 1.0) -> None:
    """Write changes and flush them: when this returns they are durable.

    In the order in which RocksDB keeps them, which takes a sixth of the time: where the last row was inserted, the
    place of the next one is found at once. The less urgent it is (0 to 1), the more time is left to other threads.
    """
    options = WriteOptions()
    options.disable_wal = True
    keys, values = list(changes), list(changes.values())
    order = _disk_order(keys)
    for start in range(0, len(keys), _WRITE_ROWS):
        used = time.thread_time()
        batch = WriteBatch(raw_mode=True)
        for place in order[start : start + _WRITE_ROWS].tolist():
            value = values[place]
            if value is None:
                batch.delete(keys[place])
            else:
                batch.put(keys[place], value)
        db.write(batch, options)
        used = time.thread_time() - used
        time.sleep(max(_WRITE_PAUSE_SECONDS, used * _PAUSE_TIMES_MAX * (1.0 - urgency())))
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
