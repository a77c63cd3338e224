# SPDX-License-Identifier: Apache-2.0
"""The remote log of a bucket: closed segments copied to a folder or to any file system that pyarrow knows.

The layout is that of Apache Fluss, so that its clients can read it: a folder per segment, named by a UUID, and a
manifest that lists them. A copy of the manifest beside the local log says which one is in force.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import threading
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

from fluss.errors import FormatError, LogStorageError
from fluss.metadata.documents import RemoteLogManifestFile, RemoteLogSegment
from fluss.records.log_batch import crc_fits
from fluss.server import disk
from fluss.server.log.files import BadBatch, DamagedLogError, walk_file
from fluss.server.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SCAN_WINDOW_BYTES,
    TIME_INDEX_SUFFIX,
    WRITER_SNAPSHOT_SUFFIX,
    Segment,
    SegmentIndex,
    segment_path,
)
from fluss.server.remote_files import RemoteFiles

logger = logging.getLogger("fluss.server.remote")

MANIFEST_NAME = "remote-log"
_INDEXES_MAX = 16
"""Indexes in memory of one bucket. Its remote log may be much larger than the disk, and they take up to 0.5 % of it."""


class RemoteLog:
    """What is remote of one bucket. Methods that touch files run in threads; those that change it one at a time."""

    def __init__(self, store: RemoteFiles, folder: str, local_folder: Path, empty: RemoteLogManifestFile) -> None:
        self._store = store
        self.folder = folder
        self._local_folder = local_folder
        self.manifest = empty
        self.manifest_path: str | None = None
        self._expired_end = -1
        self._indexes: dict[str, SegmentIndex] = {}
        self._indexes_lock = threading.Lock()
        self._swept = False
        """Whether there are no copies but those of the manifest."""
        self._undeleted = False
        """Whether the store did not delete a copy that it was asked to."""
        self._in_doubt = False
        """Whether the manifest beside the local log may be a later one, which was not confirmed."""

    @property
    def segments(self) -> tuple[RemoteLogSegment, ...]:
        return self.manifest.segments

    @property
    def start_offset(self) -> int | None:
        return self.segments[0].start_offset if self.segments else None

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else -1

    @property
    def copied_end(self) -> int:
        """Up to where segments were copied, whether their copies are still there or have expired."""
        return max(self._expired_end, self.end_offset)

    def covering(self, offset: int) -> tuple[RemoteLogSegment, ...]:
        """The segments from the one that holds ``offset`` on."""
        for number, segment in enumerate(self.segments):
            if segment.start_offset <= offset < segment.end_offset:
                return self.segments[number:]
        return ()

    def load(self) -> None:
        """Read the manifest in force. Raises DamagedLogError or OSError when it is not known which copies there are."""
        path = self._local_folder / MANIFEST_NAME
        if not disk.exists(path):
            return
        body, _, tail = disk.read_file(path).partition(b"\n")
        check, _, name = tail.strip().partition(b" ")
        try:
            if check != _check(body, name):
                raise FormatError("the checksum does not fit")
            self.manifest = RemoteLogManifestFile.from_json_bytes(body)
            self.manifest_path = name.decode("utf-8")
        except (FormatError, UnicodeDecodeError) as error:
            logger.warning("'%s' is unusable (%s); looking for the manifest in '%s'", path, error, self.folder)
            self._find_manifest()

    def _find_manifest(self) -> None:
        for name in self._store.names(f"{self.folder}/metadata"):
            path = f"{self.folder}/metadata/{name}"
            try:
                manifest = RemoteLogManifestFile.from_json_bytes(self._store.read(path))
            except FormatError as error:
                logger.warning("the manifest '%s' is unusable: %s", path, error)
                continue
            if self.manifest_path is None or manifest.end_offset > self.manifest.end_offset:
                self.manifest, self.manifest_path = manifest, path
        if self.manifest_path is None:
            raise DamagedLogError(f"there is no usable manifest in '{self.folder}/metadata'")

    # Changes -----------------------------------------------------------------------------------------------------

    def upload(self, segments: list[Segment], is_dropped: Callable[[], bool] = lambda: False) -> RemoteLogManifestFile:
        """Copy closed segments and return the manifest that has them; nothing changes until ``commit``.

        Ends early once the log is dropped.
        """
        if not self._swept or self._undeleted:
            self._sweep()
        self._swept = False  # until the copies are in the manifest: those of an upload that fails would stay for ever
        added: list[RemoteLogSegment] = []
        for segment in segments:
            if is_dropped():
                break
            size, newest = _check_segment(segment)
            segment_id = str(uuid.uuid4())
            base = f"{self.folder}/{segment_id}"
            index = segment.index
            self._store.make_folder(base)
            self._store.put(segment.path, f"{base}/{segment.base_offset:020d}{LOG_SUFFIX}")
            self._store.write(f"{base}/{segment.base_offset:020d}{INDEX_SUFFIX}", index.offset_file())
            self._store.write(f"{base}/{segment.base_offset:020d}{TIME_INDEX_SUFFIX}", index.time_file())
            writers = segment_path(segment.folder, segment.end_offset, WRITER_SNAPSHOT_SUFFIX)
            if disk.exists(writers):
                self._store.put(writers, f"{base}/{writers.name}")
            self._store.sync_folder(base)  # the local segments are deleted on the strength of this copy
            added.append(RemoteLogSegment(segment_id, segment.base_offset, segment.end_offset, newest, size))
        return self._with_segments((*self.segments, *added))

    def without(self, count: int) -> RemoteLogManifestFile:
        """The manifest without its oldest segments."""
        return self._with_segments(self.segments[count:])

    def _with_segments(self, segments: tuple[RemoteLogSegment, ...]) -> RemoteLogManifestFile:
        old = self.manifest
        return RemoteLogManifestFile(old.database, old.table, old.bucket, old.partition_name, segments)

    def write_manifest(self, manifest: RemoteLogManifestFile) -> str:
        """Write the manifest remotely, then beside the local log, which puts it in force; returns its path."""
        body = manifest.to_json_bytes()
        folder = f"{self.folder}/metadata"
        path = f"{folder}/{uuid.uuid4()}.manifest"
        self._store.make_folder(folder)
        self._store.write(path, body)
        self._store.sync_folder(folder)
        self._in_doubt = True
        self._write_local(body, path)
        return path

    def _write_local(self, body: bytes, path: str) -> None:
        name = path.encode()
        disk.write_atomically(
            self._local_folder / MANIFEST_NAME, body + b"\n" + _check(body, name) + b" " + name + b"\n"
        )
        disk.sync_folder(self._local_folder)
        self._in_doubt = False

    def _resolve_doubt(self) -> None:
        """Put the manifest that readers know back in force."""
        if self.manifest_path is not None:
            self._write_local(self.manifest.to_json_bytes(), self.manifest_path)
        else:
            disk.unlink_if_there(self._local_folder / MANIFEST_NAME)
            disk.sync_folder(self._local_folder)
            self._in_doubt = False

    def commit(self, manifest: RemoteLogManifestFile, path: str) -> tuple[str | None, tuple[RemoteLogSegment, ...]]:
        """Show the manifest to readers (on the event loop); returns what it made superfluous."""
        kept = {segment.segment_id for segment in manifest.segments}
        gone = tuple(segment for segment in self.segments if segment.segment_id not in kept)
        old_path, self.manifest_path = self.manifest_path, path
        self._expired_end = self.copied_end
        self.manifest, self._swept = manifest, True
        with self._indexes_lock:
            for segment in gone:
                self._indexes.pop(segment.segment_id, None)
        return old_path, gone

    def clean_up(self, old_path: str | None, gone: tuple[RemoteLogSegment, ...]) -> None:
        for segment in gone:
            self._remove_folder(segment.segment_id)
        if old_path is not None:
            self._remove_file(old_path)

    def _remove_folder(self, name: str) -> None:
        if not self._store.remove_folder(f"{self.folder}/{name}"):
            self._undeleted = True
            logger.warning("'%s/%s' cannot be deleted; the next upload tries again", self.folder, name)

    def _remove_file(self, path: str) -> None:
        """Delete a file that is not needed; one that stays does no harm."""
        with contextlib.suppress(OSError):
            self._store.remove_file(path)

    def _sweep(self) -> None:
        """Remove copies that a crash or a failure left outside the manifest."""
        if self._in_doubt:
            self._resolve_doubt()
        self._undeleted = False
        known = {segment.segment_id for segment in self.segments} | {"metadata"}
        for name in self._store.names(self.folder):
            if name not in known:
                self._remove_folder(name)
        current = posixpath.basename(self.manifest_path or "")
        for name in self._store.names(f"{self.folder}/metadata"):
            if name != current:
                self._remove_file(f"{self.folder}/metadata/{name}")

    # Reading -----------------------------------------------------------------------------------------------------

    def start_position(self, segment: RemoteLogSegment, offset: int) -> int:
        """Where in a segment's file to start reading for an offset; 0 is always right, only slower."""
        entry = self._index(segment).floor(offset - segment.start_offset)
        return 0 if entry is None else entry[1]

    def offset_for_timestamp(self, segment: RemoteLogSegment, timestamp: int) -> int | None:
        """The base offset of the first batch of a segment that is at least as new; None when all are older."""
        entry = self._index(segment).before_timestamp(timestamp)
        start = entry[1] if entry else 0
        path = f"{self.folder}/{segment.segment_id}/{segment.start_offset:020d}{LOG_SUFFIX}"
        try:
            with contextlib.closing(self._store.open(path)) as file:
                for _, span, _ in walk_file(file, start, file.size_bytes, SCAN_WINDOW_BYTES):
                    if span.timestamp >= timestamp:
                        return span.base_offset
        except BadBatch as bad:
            raise DamagedLogError(f"the remote log file '{path}' is damaged at byte {bad.position}") from None
        except OSError as error:
            reason = self._store.explain(error)
            raise LogStorageError(f"the remote log file '{path}' cannot be read: {reason}") from None
        return None

    def _index(self, segment: RemoteLogSegment) -> SegmentIndex:
        index = self._indexes.get(segment.segment_id)
        if index is None:
            base = f"{self.folder}/{segment.segment_id}/{segment.start_offset:020d}"
            try:
                offsets, times = self._store.read(base + INDEX_SUFFIX), self._store.read(base + TIME_INDEX_SUFFIX)
            except OSError:
                return SegmentIndex()  # not kept: the store may answer the next time
            index = SegmentIndex.parse(offsets, times, segment.size_in_bytes) or SegmentIndex()
            with self._indexes_lock:
                if len(self._indexes) >= _INDEXES_MAX:
                    self._indexes.pop(next(iter(self._indexes)), None)
                self._indexes[segment.segment_id] = index
        return index


def _check_segment(segment: Segment) -> tuple[int, int]:
    """Size and newest time of a closed segment. A damaged one is not copied: the copy would hide the damage."""
    expected, newest = segment.base_offset, -1
    try:
        for view, span, position in walk_file(segment.file, 0, segment.size_bytes, SCAN_WINDOW_BYTES):
            if span.base_offset != expected or not crc_fits(view, span):
                raise BadBatch(position, "the checksum or the offset does not fit")
            expected, newest = span.last_offset + 1, span.timestamp
    except BadBatch as bad:
        segment.doubt()
        raise DamagedLogError(
            f"the log file '{segment.path}' is damaged at byte {bad.position}: {bad.reason}; it is not copied"
        ) from None
    if expected != segment.end_offset:
        raise DamagedLogError(f"the log file '{segment.path}' ends at offset {expected}, expected {segment.end_offset}")
    return segment.size_bytes, newest


def _check(body: bytes, name: bytes) -> bytes:
    return f"{zlib.crc32(body + name):08x}".encode()
