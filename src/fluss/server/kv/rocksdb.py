# SPDX-License-Identifier: Apache-2.0
"""RocksDB as this server uses it: rows of one bucket by key, in files that every RocksDB from 6.6 on can open.

Apache Fluss's Java client opens the files of a snapshot with RocksDB 6.20.3. So blocks have format version 5 and CRC32C
checksums, which that release knows, and are not compressed. Rows are written without a log of their own.

rocksdict holds Python's lock while it opens, writes, iterates and checkpoints, for as long as the disk takes. So the
server writes in a process of its own, which is this module run as a program (see `WriterProcess`), and reads from
views: a folder that is opened only to read is never flushed. The module imports little, so the process is small.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

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

T = TypeVar("T")

Row = tuple[bytes, "bytes | None"]
"""A key and its new value; None removes it."""

_BLOCK_BYTES = 2048
_FORMAT_VERSION = 5
_OPEN_FILES_MAX = 64
_DATABASES_MAX = 128
"""So many databases stay open between writes: each takes seven file handles, and opening one again 4 ms."""
_VIEW_ATTEMPTS = 5
_FIGURES = (
    "rocksdb.mem-table-flush-pending",
    "rocksdb.compaction-pending",
    "rocksdb.size-all-mem-tables",
    "rocksdb.cur-size-all-mem-tables",
)
"""Properties that only the process that writes knows."""


def _options(blocks: Cache | None, open_files_max: int) -> Options:
    table = BlockBasedOptions()
    if blocks is None:
        table.disable_cache()
    else:
        table.set_block_cache(blocks)
        # Otherwise opening a view would read the indexes and filters of all files.
        table.set_cache_index_and_filter_blocks(True)
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
    options.set_max_open_files(open_files_max)
    options.set_compression_type(DBCompressionType.none())
    return options


def open_db(folder: str) -> Rdict:
    """Open the database in a folder for writing, and create it if there is none."""
    options = _options(None, _OPEN_FILES_MAX)
    # Without naming the column family, a store that is there already would be opened as it once was, and without its
    # filter and cache, which are not written down.
    return Rdict(folder, options, column_families={"default": options})


def open_view(folder: str, blocks: Cache | None = None) -> Rdict:
    """Open the database in a folder as it is now, to read it; what is written later does not change the view.

    Blocks that are read stay in `blocks`. All files are opened at once, so they can be read after they are deleted.
    """
    options = _options(blocks, -1)
    for attempt in range(_VIEW_ATTEMPTS):
        try:
            access = AccessType.read_only(False)
            return Rdict(folder, options, column_families={"default": options}, access_type=access)
        except Exception:  # RocksDB raises plain exceptions
            # A compaction may have deleted a file between the manifest, which names it, and the file.
            if attempt == _VIEW_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


class Writer:
    """Databases that are written to, by folder. A database that fails is closed: only opening it again helps."""

    def __init__(self) -> None:
        self._databases: dict[str, Rdict] = {}
        """By folder, the one that was used last at the end."""
        self._unflushed: set[str] = set()

    def put(self, folder: str, rows: Sequence[Row]) -> None:
        """Write rows to memory; `flush` makes them durable."""
        options = WriteOptions()
        options.disable_wal = True
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._unflushed.add(folder)
        self._use(folder, lambda db: db.write(batch, options))

    def flush(self, folder: str) -> tuple[int, dict[str, int]]:
        """Make all rows durable; returns the sequence number of the last change, and figures."""

        def work(db: Rdict) -> tuple[int, dict[str, int]]:
            db.flush(True)
            return db.latest_sequence_number(), {name: db.property_int_value(name) or 0 for name in _FIGURES}

        found = self._use(folder, work)
        self._unflushed.discard(folder)
        return found

    def checkpoint(self, folder: str, target: str) -> None:
        """Put the files of a database as they are now into a new folder, as links where they never change again."""
        self._use(folder, lambda db: Checkpoint(db).create_checkpoint(target))

    def close(self, folder: str) -> None:
        """Close the database in a folder, if it is open."""
        self._unflushed.discard(folder)
        db = self._databases.pop(folder, None)
        if db is not None:
            db.close()

    def stop(self) -> None:
        """Close all databases."""
        for folder in tuple(self._databases):
            with contextlib.suppress(Exception):  # of rows that it could not write; the log has them
                self.close(folder)

    def stop_within(self, seconds: float) -> None:
        """Give up writing when it takes longer than this; only a process can be ended."""

    def _use(self, folder: str, work: Callable[[Rdict], T]) -> T:
        try:
            db = self._databases.pop(folder, None)
            if db is None:
                self._make_room()
                db = open_db(folder)
            self._databases[folder] = db
            return work(db)
        except Exception:  # RocksDB raises plain exceptions
            with contextlib.suppress(Exception):
                self.close(folder)
            raise

    def _make_room(self) -> None:
        # Closing would write rows that are not flushed too, but who gave them would not learn of an error.
        idle = [folder for folder in self._databases if folder not in self._unflushed]
        if len(self._databases) >= _DATABASES_MAX and idle:
            self.close(idle[0])


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Run calls of a `Writer` that are read from one stream, and write what comes of them to another."""
    writer = Writer()
    for name, arguments in _received(requests):
        try:
            answer = (True, getattr(writer, name)(*arguments))
        except Exception as error:  # RocksDB raises plain exceptions
            answer = (False, str(error))
        pickle.dump(answer, answers)
        answers.flush()


def _received(requests: BinaryIO) -> Iterator[tuple[str, tuple[object, ...]]]:
    with contextlib.suppress(EOFError):
        while True:
            yield pickle.load(requests)


def _end_with(server_pid: int, lifeline: int) -> None:
    """End this process as soon as the server closes its end of a pipe, also in the middle of a call of RocksDB.

    A server that was killed may be started again at once, and must find nothing that still writes to its folder. The
    system sends SIGIO when the pipe is closed, and the default action of that signal ends the process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != server_pid:  # it ended before that
        sys.exit()


if __name__ == "__main__":
    # A signal that is sent to the whole group is for the server, which ends this process when all is written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.umask(0o077)  # RocksDB creates its files readable for everyone otherwise
    _end_with(*map(int, sys.argv[1:]))
    serve(sys.stdin.buffer, sys.stdout.buffer)


_STOP_SECONDS = 10.0


class WriterProcess(Writer):
    """Calls a `Writer` in another process, which starts with the first call. One call at a time; any thread may call.

    The process ends with this one, whatever ends it. Calls fail with an OSError when it ended, and start it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._stopped = False
        self._deadline: threading.Timer | None = None

    def put(self, folder: str, rows: Sequence[Row]) -> None:
        self._call("put", folder, rows)

    def flush(self, folder: str) -> tuple[int, dict[str, int]]:
        flushed: tuple[int, dict[str, int]] = self._call("flush", folder)
        return flushed

    def checkpoint(self, folder: str, target: str) -> None:
        self._call("checkpoint", folder, target)

    def close(self, folder: str) -> None:
        if self._process is not None:
            self._call("close", folder)

    def stop(self) -> None:
        """Close all databases, and end the process."""
        with contextlib.suppress(OSError):
            if self._process is not None:
                self._call("stop")
        with self._lock:
            self._stopped = True
            self._end()
        if self._deadline is not None:
            self._deadline.cancel()

    def stop_within(self, seconds: float) -> None:
        """End the process after this time even if it is at work: the log has what was not written."""
        self._deadline = threading.Timer(seconds, self._kill)
        self._deadline.daemon = True
        self._deadline.start()

    def _kill(self) -> None:
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def _call(self, name: str, *arguments: object) -> Any:
        with self._lock:
            process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                pickle.dump((name, arguments), process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
                process.stdin.flush()
                is_done, result = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                code = self._end()
                raise OSError(f"the process that writes RocksDB ended with status {code}") from None
        if not is_done:
            raise OSError(result)
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise OSError("the process that writes RocksDB was ended: the server stops")
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(os.getpid()), str(lifeline)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[lifeline],
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        return self._process

    def _end(self) -> int | None:
        """End the process; returns its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(self._lifeline)
        return process.returncode
