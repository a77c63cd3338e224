# SPDX-License-Identifier: Apache-2.0
"""The files of a backup: what is committed of each log, the snapshots, and the documents of the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fluss.server import disk
from fluss.server.catalog import Catalog, TableEntry
from fluss.server.catalog.storage import LAKE_DOCUMENT
from fluss.server.kv.sequence import FILE_NAME as AUTO_INCREMENT_NAME
from fluss.server.kv.snapshots import CHECKSUMS_NAME, METADATA_NAME
from fluss.server.kv.snapshotter import Snapshotter
from fluss.server.log.segment import LOG_SUFFIX, segment_name
from fluss.server.log.tablet import LogTablet
from fluss.server.remote_files import RemoteFiles
from fluss.server.tablets import REGISTER_NAME, Tablets
from fluss.server.users import USERS_FILE

REMOTE_FOLDER = "remote"
"""Where a backup has the files of the remote data directory, wherever that is."""
_CHUNK_BYTES = 1024 * 1024
_LOGS_AT_ONCE = 64
"""Logs that are looked at before requests have the event loop again."""
_SKIPPED = frozenset({"staging", "dropped", REGISTER_NAME})
"""What a start makes anew. A register read after the logs may name buckets that the backup does not have yet."""


@dataclass(frozen=True)
class Source:
    """A file that only grows, up to the size it had, or the content of a small one."""

    path: str = ""
    size_bytes: int = 0
    store: RemoteFiles | None = None
    """None for a file of the local disk."""
    content: bytes | None = None

    def chunks(self, start: int, stop: int) -> Iterator[memoryview]:
        """Bytes of the file; raises OSError if it has fewer."""
        if self.content is not None:
            yield memoryview(self.content)[start:stop]
            return
        with self._opened() as read:
            while start < stop:
                chunk = read(start, min(_CHUNK_BYTES, stop - start))
                if not chunk:
                    raise OSError(f"'{self.path}' ends at byte {start}, {stop} were expected")
                start += len(chunk)
                yield chunk

    @contextmanager
    def _opened(self) -> Iterator[Callable[[int, int], memoryview]]:
        """Open the file, to be read at a position."""
        if self.store is not None:
            with closing(self.store.open(self.path)) as file:
                yield file.read
            return
        fd = disk.open_file(self.path, disk.READ)

        def read(position: int, size_bytes: int) -> memoryview:
            buffer = memoryview(bytearray(size_bytes))
            return buffer[: disk.read_into_at(fd, [buffer], position)]

        try:
            yield read
        finally:
            disk.close(fd)


@dataclass
class Captured:
    """What the server had at one time."""

    files: dict[str, Source] = field(default_factory=dict)
    buckets: list[tuple[str, ...]] = field(default_factory=list)
    """The folders of each bucket."""
    unreadable: list[str] = field(default_factory=list)
    """Files, and folders of buckets, that are out of service or cannot be read: what the backup has of them stays."""
    errors: list[str] = field(default_factory=list)

    def leave_out(self, path: str, error: OSError) -> None:
        """Leave a file and its bucket out, because the file cannot be read."""
        folders = next((folders for folders in self.buckets if path.startswith(folders)), (path,))
        self.unreadable += folders
        self.files = {path: source for path, source in self.files.items() if not path.startswith(folders)}
        self.errors.append(f"'{path}' cannot be read, so the backup keeps what it has of it: {error}")


class Sources:
    """Finds the files of a running server."""

    def __init__(self, catalog: Catalog, tablets: Tablets, snapshotter: Snapshotter) -> None:
        self._catalog = catalog
        self._tablets = tablets
        self._snapshotter = snapshotter
        self._root = catalog.data_dir
        self._remote = RemoteFiles(catalog.remote_data_dir, catalog.configs.initial.store_options)
        self._documents: dict[str, tuple[tuple[int, ...], Source]] = {}

    async def capture(self) -> Captured:
        """Look at the ends of the lake, at all logs, then at the catalog.

        The lake has no offset that the logs do not reach, the catalog every schema and partition that they need.
        """
        captured = Captured()
        lakes = await self._catalog.in_storage_thread(lambda: self._read_lakes(captured))
        for number, log in enumerate(self._tablets):
            if number % _LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)
            entry = self._catalog.table_by_id(log.bucket.table_id)
            if entry is not None and not log.deleted:
                await self._add(captured, log, entry)
        documents = await self._catalog.in_storage_thread(lambda: self._read_catalog(captured, lakes))
        captured.files.update(documents)
        return captured

    async def _add(self, captured: Captured, log: LogTablet, entry: TableEntry) -> None:
        folder = log.folder.relative_to(self._root).as_posix()
        folders: tuple[str, ...] = (f"{folder}/",)
        snapshots = None
        if entry.table_info.has_primary_key():
            snapshots = self._snapshotter.of(entry, log.bucket)
            folders += (f"{self._below_remote(snapshots.folder)}/",)
        captured.buckets.append(folders)
        try:
            if snapshots is not None:
                await self._snapshotter.loaded(entry, log.bucket)
        except OSError as error:
            captured.leave_out(folders[-1], error)
            return
        problem = log.damage or log.failure
        if problem is not None:
            captured.unreadable += folders
            captured.errors.append(f"the backup keeps what it has of {log.bucket}: {problem.message}")
            return
        # No await from here on: snapshot and log are of one moment.
        local_start = log.segments[0].base_offset if log.segments else 0
        if log.remote is not None:
            for copied in log.remote.segments:
                if copied.start_offset < local_start:
                    name = segment_name(copied.start_offset, LOG_SUFFIX)
                    path = f"{log.remote.folder}/{copied.segment_id}/{name}"
                    captured.files[f"{folder}/{name}"] = Source(path, copied.size_in_bytes, self._remote)
        for segment in log.segments:
            if segment.base_offset <= log.high_watermark:
                name = segment_name(segment.base_offset, LOG_SUFFIX)
                captured.files[f"{folder}/{name}"] = Source(str(segment.path), log.readable_end(segment))
        newest = None if snapshots is None else snapshots.newest_up_to(log.high_watermark)
        if newest is not None:
            location = self._below_remote(newest.location)
            captured.files[f"{location}/{METADATA_NAME}"] = Source(content=newest.to_json())
            captured.files[f"{location}/{CHECKSUMS_NAME}"] = Source(content=newest.checksums())
            for file in newest.files:
                captured.files[self._below_remote(file.path)] = Source(file.path, file.size_bytes, self._remote)

    def _below_remote(self, path: str) -> str:
        return f"{REMOTE_FOLDER}/{path[len(self._remote.root) :].lstrip('/')}"

    # Documents, read in the thread that writes the catalog -------------------------------------------------------

    def _read_lakes(self, captured: Captured) -> dict[str, Source]:
        folder = self._catalog.storage.table_dir
        return self._read(
            captured, [folder(entry.table_id) / LAKE_DOCUMENT for entry in self._catalog.tables() if entry.lake]
        )

    def _read_catalog(self, captured: Captured, lakes: dict[str, Source]) -> dict[str, Source]:
        paths = [path for path in _files_below(self._root / "catalog") if not path.name.startswith(LAKE_DOCUMENT)]
        paths.append(self._root / USERS_FILE)
        paths += [
            self._tablets.folder(entry) / AUTO_INCREMENT_NAME
            for entry in self._catalog.tables()
            if entry.table_info.schema.auto_increment_columns
        ]
        found = self._read(captured, paths)
        found |= {name: source for name, source in lakes.items() if disk.exists(self._root / name)}
        self._documents = {name: self._documents[name] for name in found}
        return found

    def _read(self, captured: Captured, paths: Iterable[Path]) -> dict[str, Source]:
        """Read the small files that changed."""
        found: dict[str, Source] = {}
        for path in paths:
            name = path.relative_to(self._root).as_posix()
            try:
                version = disk.version_of(path)
                if name not in self._documents or self._documents[name][0] != version:
                    self._documents[name] = version, Source(content=disk.read_file(path))
                found[name] = self._documents[name][1]
            except FileNotFoundError:
                continue
            except OSError as error:
                captured.leave_out(name, error)
        return found


def _files_below(folder: Path) -> Iterator[Path]:
    for name in disk.names(folder):
        if name in _SKIPPED or name.endswith(".tmp"):
            continue
        path = folder / name
        if disk.is_folder(path):
            yield from _files_below(path)
        else:
            yield path
