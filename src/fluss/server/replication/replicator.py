# SPDX-License-Identifier: Apache-2.0
"""Copies what is new in the files of a server to its backup, round after round."""

from __future__ import annotations

import asyncio
import logging
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import NamedTuple, TypeVar

from fluss.net.deadline import wait_for
from fluss.options import DAY_MS, HOUR_MS, MINUTE_MS
from fluss.server.catalog import Catalog
from fluss.server.clock import Clock
from fluss.server.config import ServerConfig
from fluss.server.log.segment import LOG_SUFFIX
from fluss.server.replication.layout import Backup, BackupState, Extent, FencedError, Manifest, time_of, writer_of
from fluss.server.replication.sources import Captured, Source, Sources

logger = logging.getLogger("fluss.server.replication")

T = TypeVar("T")

OBJECT_BYTES_MAX = 32 * 1024 * 1024
"""Of one object: a store may hold it in memory until it is complete."""
_MERGED_BYTES_MAX = 8 * 1024 * 1024
_MERGED_EXTENTS = 16
"""So many extents of a file become one, which is uploaded again. A file that grows by little in every round so has some
dozens of extents, and each of its bytes is uploaded three or four times."""
_ATTEMPTS_MAX = 3
_UNREADABLE_MAX = 16
"""So many buckets are left out of a round because a file cannot be read. With more, the store or disk has failed."""
_LOOK_MS = MINUTE_MS
"""How often a server with nothing to upload notes that the backup has everything."""
_EXPIRY_MS = 10 * MINUTE_MS
_LAST_ROUND_S_MAX = 10.0
_CLAIM_S_MAX = 10.0


class _Range(NamedTuple):
    """Bytes of a file to upload."""

    path: str
    source: Source
    start: int
    stop: int
    level: int
    end: int
    """Where the last one of the file stops."""


class UnreadableError(Exception):
    """A file of the server cannot be read."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(path, error)
        self.path = path
        self.error = error


class StoppedError(Exception):
    """The server stops; the rest of a round is left to its next run."""


class Replicator:
    """The backup of one server. What uses the store runs in a thread of its own, the rest on the event loop.

    A store that fails stops nothing but the backup: the next round goes on from what is there.
    """

    def __init__(
        self, config: ServerConfig, catalog: Catalog, sources: Sources, executor: Executor, clock: Clock
    ) -> None:
        self._backup = Backup(str(config.text("replication.url")), dict(config.store_options))
        self._retention_ms = config.integer("replication.retention")
        self._bandwidth = config.integer("replication.bandwidth")
        self._data_dir = catalog.data_dir
        self._sources = sources
        self._executor = executor
        self._clock = clock
        self._state = BackupState.load(catalog.data_dir)
        self._writer: str | None = None
        self._manifest = Manifest()
        """The newest one that is in the backup."""
        self._manifest_name: str | None = None
        self._files: dict[str, tuple[Extent, ...]] = {}
        """What was uploaded, whether a manifest names it yet or not."""
        self._begun: dict[str, tuple[Extent, ...]] = {}
        """Of the files that are uploaded now, what a manifest will name."""
        self._written: set[str] = set()
        """Objects since the last manifest. It may name none of them: files grow, are merged and deleted."""
        self._checked: set[str] = set()
        """Files of which the backup is known to have a beginning."""
        self._objects = self._manifests = 0
        self._looked_ms = self._expired_ms = 0
        self._stopping = threading.Event()
        self._fenced = False
        self._running = asyncio.Lock()
        self.caught_up_ms = self._state.uploaded_ms or clock.now_ms()
        """The backup has everything that was acknowledged before this time."""
        self.behind_bytes = 0
        self.uploaded_bytes = 0

    @property
    def behind_seconds(self) -> float:
        return max(0.0, (self._clock.now_ms() - self.caught_up_ms) / 1000)

    # Rounds ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over the backup, now or once its store is up; raises `FencedError` if it is not this server's."""
        try:
            await wait_for(self._in_thread(self._claim), _CLAIM_S_MAX)
        except FencedError:
            raise
        except Exception as error:
            logger.error("the backup '%s' cannot be reached: %s", self._backup.url, self._explain(error))

    async def run_round(self) -> None:
        """Upload what is new; what fails is tried again in the next round."""
        async with self._running:
            if self._fenced or self._stopping.is_set():
                return
            error: Exception | None = None
            try:
                self.caught_up_ms = await self._copy()
                self.behind_bytes = 0
            except StoppedError:
                return
            except Exception as found:  # stores raise errors of many libraries
                error = found
                self._fenced = isinstance(found, FencedError)
            self._report(error)

    async def _copy(self) -> int:
        """Bring the backup up to date; returns with which time."""
        for attempts_left in reversed(range(_ATTEMPTS_MAX)):
            time_ms = max(self._clock.now_ms(), self._manifest.time_ms + 1)
            captured = await self._sources.capture()
            try:
                await self._in_thread(self._upload, captured, time_ms, attempts_left)
                break
            except FileNotFoundError:  # of a table that was dropped, or a segment that expired
                if not attempts_left:
                    raise
        return time_ms

    def _report(self, error: Exception | None) -> None:
        text = None if error is None else self._explain(error)
        if text is not None and text != self._state.error:
            logger.error("the backup '%s' is %.0f s behind: %s", self._backup.url, self.behind_seconds, text)
        elif text is None and self._state.error is not None:
            logger.warning("the backup '%s' is up to date again", self._backup.url)
        self._state.error = text
        self._state.uploaded_ms, self._state.behind_bytes = self.caught_up_ms, self.behind_bytes
        try:
            self._state.save(self._data_dir)
        except OSError as failed:
            logger.warning("the state of the backup cannot be written: %s", failed)

    def _explain(self, error: Exception) -> str:
        return self._backup.files.explain(error) or type(error).__name__

    async def stop(self) -> None:
        """Upload what is left, if that takes some seconds only."""
        try:
            await wait_for(self.run_round(), _LAST_ROUND_S_MAX)
        except asyncio.TimeoutError:
            logger.warning("the backup '%s' is %.0f s behind at the stop", self._backup.url, self.behind_seconds)
        self._stopping.set()
        self._executor.shutdown(wait=False)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    # The owner ---------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Become the writer of the backup, and learn what it has."""
        if self._writer is not None:
            return
        self._backup.prepare()
        state = self._state
        state.base = self._base()
        # In the folder first: a run that is killed now finds its own name in the backup, not that of another server.
        state.claim = state.next_writer()
        state.save(self._data_dir)
        if state.base is not None:
            self._manifest = self._backup.read_manifest(state.base)
        self._backup.write_owner(state.claim, state.base, self.caught_up_ms)
        winner = max(self._backup.owners(), default=state.claim)
        if winner > state.claim:
            raise self._fence(winner)
        self._files = dict(self._manifest.files)
        self._manifest_name = state.base
        needed = self._manifest.objects
        for name in self._backup.object_names():
            if name not in needed and writer_of(name) < state.claim:
                # Other manifests may name it, or a run that was killed left it.
                self._manifest.dropped.setdefault(name, self._clock.now_ms())
        self._writer, state.writer = state.claim, state.claim
        state.save(self._data_dir)
        self._backup.remove("owners", [name for name in self._backup.owners() if name < self._writer])

    def _base(self) -> str | None:
        """The manifest that this run continues; raises `FencedError` if the backup has another owner."""
        state = self._state
        owners = set(self._backup.owners())
        # A list of the store may be old; what is asked for by name is not.
        owners.update(own for own in (state.writer, state.claim) if own is not None and self._backup.has_owner(own))
        owner = max(owners, default=None)
        if owner is None:
            return None  # another backup, or one that was removed: begin anew
        if owner not in (state.writer, state.claim):
            raise self._fence(owner)
        base = state.base
        if base is None and owner == state.writer:
            base = self._backup.newest_of(owner)
        state.writer = owner
        return base

    def _fence(self, owner: str) -> FencedError:
        return FencedError(
            f"the backup '{self._backup.url}' is continued by another server ({owner}), or was not made from the data "
            f"folder '{self._data_dir}'. Restore it into an empty folder with 'fluss restore', or name another URL."
        )

    def _check_owner(self) -> None:
        owner = max(self._backup.owners(), default="")
        if self._writer is not None and owner > self._writer:
            raise self._fence(owner)

    # Uploading ---------------------------------------------------------------------------------------------------

    def _upload(self, captured: Captured, time_ms: int, attempts_left: int) -> None:
        self._claim()
        known = len(captured.errors)
        while True:
            try:
                self._upload_files(captured.files)
                break
            except UnreadableError as found:
                if attempts_left and isinstance(found.error, FileNotFoundError):
                    raise found.error from None
                captured.leave_out(found.path, found.error)
                if len(captured.errors) - known > _UNREADABLE_MAX:
                    raise OSError(captured.errors[known]) from None
        kept = tuple(captured.unreadable)
        gone = [path for path in self._files if path not in captured.files and not (kept and path.startswith(kept))]
        for path in gone:
            del self._files[path]
            self._checked.discard(path)
        if self._files != self._manifest.files:
            self._check_owner()
            self._write_manifest(time_ms)
            self._note_look(time_ms)
        elif time_ms - self._looked_ms >= _LOOK_MS:
            self._check_owner()
            if captured.errors:
                self._looked_ms = time_ms  # the backup does not have everything up to now
            else:
                self._note_look(time_ms)
        if time_ms - self._expired_ms >= min(_EXPIRY_MS, self._retention_ms):
            self._expire(self._clock.expiry_ms())
            self._expired_ms = time_ms
        if captured.errors:
            raise OSError(captured.errors[0])

    def _upload_files(self, sources: dict[str, Source]) -> None:
        self._begun = {}
        ranges = list(self._ranges(sources))
        self.behind_bytes = sum(one.stop - one.start for one in ranges)
        # Apart: the newest snapshot is soon replaced, and would be kept as long as rows that share its object.
        for is_log in (True, False):
            for batch in _objects([one for one in ranges if one.path.endswith(LOG_SUFFIX) == is_log]):
                self._write_object(batch)

    def _ranges(self, sources: dict[str, Source]) -> Iterator[_Range]:
        """What the backup lacks of the files."""
        for path, source in sources.items():
            found = self._new_bytes(path, source) if source.content is None else self._new_content(path, source)
            if found is not None:
                yield found

    def _new_content(self, path: str, source: Source) -> _Range | None:
        """All of a small file, if it is not what the backup has."""
        content = source.content or b""
        uploaded = [(one.size_bytes, one.checksum) for one in self._files.get(path, ())]
        if uploaded == [(len(content), zlib.crc32(content))]:
            return None
        return self._begin(path, source, (), len(content), 0)

    def _new_bytes(self, path: str, source: Source) -> _Range | None:
        """What a file has grown by. Small extents at its end are merged with it, and uploaded again."""
        extents = self._files.get(path, ())
        have = sum(one.size_bytes for one in extents)
        if path not in self._checked or have > source.size_bytes:
            # After a start, and when an operator put an older file in the place of a lost one.
            if _has(path, source, extents):
                self._checked.add(path)
            else:
                extents, have = (), 0
        level = 0
        if have < source.size_bytes and source.store is None:
            while run := _run_of(extents, level, source.size_bytes - have):
                have -= sum(one.size_bytes for one in run)
                extents, level = extents[: -len(run)], level + 1
        return self._begin(path, source, extents, source.size_bytes, level)

    def _begin(self, path: str, source: Source, kept: tuple[Extent, ...], end: int, level: int) -> _Range | None:
        """What of a file follows on the extents that are kept."""
        start = sum(one.size_bytes for one in kept)
        if start == end:
            self._files[path] = kept
            return None
        self._begun[path] = kept
        return _Range(path, source, start, end, level, end)

    def _write_object(self, ranges: list[_Range]) -> None:
        """Write one object, and note which extents of which files it has."""
        self._objects += 1
        name = f"{self._writer}-{self._objects:08d}"
        self._written.add(name)
        checksums = [0] * len(ranges)

        def chunks() -> Iterator[memoryview]:
            started, sent = self._clock.monotonic(), 0
            for number, one in enumerate(ranges):
                for chunk in _chunks(one.path, one.source, one.start, one.stop):
                    checksums[number] = zlib.crc32(chunk, checksums[number])
                    sent += len(chunk)
                    wait_s = sent / self._bandwidth - (self._clock.monotonic() - started) if self._bandwidth else 0
                    if self._stopping.wait(max(0.0, wait_s)):
                        raise StoppedError
                    yield chunk

        try:
            self._backup.files.put_chunks(chunks(), self._backup.path("objects", name))
        except UnreadableError:
            self._backup.remove("objects", [name])
            raise
        position = 0
        for one, checksum in zip(ranges, checksums, strict=True):
            size_bytes = one.stop - one.start
            self._begun[one.path] += (Extent(name, position, size_bytes, checksum, one.level),)
            extents = self._begun[one.path]
            # What replaces extents does so when it is complete: a manifest may have to name the file before.
            if one.stop == one.end or extents[:-1] == self._files.get(one.path, ()):
                self._files[one.path] = extents
                self._checked.add(one.path)
            position += size_bytes
        self.behind_bytes -= position
        self.uploaded_bytes += position

    def _write_manifest(self, time_ms: int) -> None:
        objects = {extent.object_name for extents in self._files.values() for extent in extents}
        dropped = {name: since for name, since in self._manifest.dropped.items() if name not in objects}
        dropped |= dict.fromkeys((self._manifest.objects | self._written) - objects, time_ms)
        manifest = Manifest(time_ms, dict(self._files), dropped)
        self._manifests += 1
        name = f"{self._writer}-{self._manifests:08d}-{time_ms}"
        self._backup.write_manifest(name, manifest)
        self._manifest, self._manifest_name = manifest, name
        self._written.clear()
        self._state.base = None

    def _note_look(self, time_ms: int) -> None:
        if self._writer is not None:
            self._backup.write_owner(self._writer, self._manifest_name, time_ms)
        self._looked_ms = time_ms

    # Retention ---------------------------------------------------------------------------------------------------

    def _expire(self, now_ms: int) -> None:
        """Delete manifests that are too old or too close to each other, then objects that no manifest names."""
        names = sorted(self._backup.manifest_names())
        if not names:
            return
        kept = kept_manifests(names, now_ms, self._retention_ms)
        self._backup.remove("manifests", [name for name in names if name not in kept])
        oldest_ms = min(time_of(name) for name in kept)
        expired = [name for name, since_ms in self._manifest.dropped.items() if since_ms <= oldest_ms]
        self._backup.remove("objects", expired)
        for name in expired:
            del self._manifest.dropped[name]


def kept_manifests(names: list[str], now_ms: int, retention_ms: int) -> set[str]:
    """Those to keep: all of the last hour, one per minute of the last day, one per hour before, and the newest."""
    kept: dict[tuple[int, int], str] = {}
    for name in sorted(names, key=time_of):
        age_ms = now_ms - time_of(name)
        step_ms = 1 if age_ms < HOUR_MS else MINUTE_MS if age_ms < DAY_MS else HOUR_MS
        if age_ms <= retention_ms:
            kept[step_ms, time_of(name) // step_ms] = name
    return {*kept.values(), max(names)}


def _chunks(path: str, source: Source, start: int, stop: int) -> Iterator[memoryview]:
    """Bytes of a file; raises `UnreadableError` when it is gone or cannot be read."""
    try:
        yield from source.chunks(start, stop)
    except OSError as error:
        raise UnreadableError(path, error) from None


def _has(path: str, source: Source, extents: tuple[Extent, ...]) -> bool:
    """Whether the extents are the beginning of a file: their last one is, and it is at least as long.

    A whole file that cannot be read is taken for what was uploaded: nothing of it is missing.
    """
    if not extents:
        return True
    end = sum(one.size_bytes for one in extents)
    if end > source.size_bytes:
        return False
    checksum = 0
    try:
        for chunk in _chunks(path, source, end - extents[-1].size_bytes, end):
            checksum = zlib.crc32(chunk, checksum)
    except UnreadableError:
        if end == source.size_bytes:
            return True
        raise
    return checksum == extents[-1].checksum


def _run_of(extents: tuple[Extent, ...], level: int, more_bytes: int) -> tuple[Extent, ...]:
    """The last extents of a level, if there are enough of them to be merged with what follows."""
    run = extents[-(_MERGED_EXTENTS - 1) :]
    if len(run) < _MERGED_EXTENTS - 1 or any(one.level != level for one in run):
        return ()
    return run if sum(one.size_bytes for one in run) + more_bytes <= _MERGED_BYTES_MAX else ()


def _objects(ranges: list[_Range]) -> Iterator[list[_Range]]:
    """Divide what is to be uploaded into objects."""
    batch: list[_Range] = []
    room = OBJECT_BYTES_MAX
    for one in ranges:
        start = one.start
        while start < one.stop:
            stop = min(one.stop, start + room)
            batch.append(one._replace(start=start, stop=stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield batch
                batch, room = [], OBJECT_BYTES_MAX
    if batch:
        yield batch
