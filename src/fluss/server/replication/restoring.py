# SPDX-License-Identifier: Apache-2.0
"""From a backup to a data folder, and the check that every byte of a backup can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns

from fluss.errors import ConfigError
from fluss.server import disk
from fluss.server.catalog.storage import DATA_FOLDER
from fluss.server.datadir import RESTORING_NAME, check_new_folder
from fluss.server.log.segment import LOG_SUFFIX
from fluss.server.remote_files import RemoteFiles
from fluss.server.replication.layout import (
    Backup,
    BackupState,
    DamagedBackupError,
    Extent,
    Manifest,
    time_of,
    time_text,
)
from fluss.server.replication.sources import REMOTE_FOLDER

_THREADS = 8

Progress = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


@dataclass
class Restored:
    """What was read from a backup."""

    manifest: str
    time_ms: int
    """Everything that was acknowledged before it is there."""
    seconds_since: float
    """From then until now, or until the wanted time: what was acknowledged in between, if anything, is missing."""
    files: int = 0
    size_bytes: int = 0
    damages: list[str] = field(default_factory=list)


def restore(
    url: str,
    data_dir: str | Path,
    *,
    at_ms: int | None = None,
    store_options: Mapping[str, str] | None = None,
    remote_dir: str | None = None,
    progress: Progress = lambda _: None,
) -> Restored:
    """Write the newest state of a backup, or the one at a time, into an empty folder.

    What is damaged is named in the result, and the rest is restored. A log is restored up to its first damaged byte.

    Args:
        url: The backup.
        data_dir: The folder; it is created if it is not there.
        at_ms: The time, in milliseconds since 1970.
        store_options: Options of the object store, such as ``s3.endpoint``.
        remote_dir: The remote data directory of the new server, if it is not in the data folder.
        progress: Called while bytes arrive.

    Example:
        restore("s3://bucket/shop", "./data2")
    """
    target = Path(data_dir).absolute()
    backup = Backup(url, dict(store_options or {}))
    manifest, found = _find(backup, at_ms)
    _prepare(target)
    local = RemoteFiles(str(target), private=True)
    remote = RemoteFiles(remote_dir or str(target / REMOTE_FOLDER), store_options)

    def write(path: str) -> str | None:
        store, inner = local, path
        if path.startswith(f"{REMOTE_FOLDER}/"):
            store, inner = remote, path.partition("/")[2]
        folder = f"{store.root}/{inner}".rpartition("/")[0]
        reader = _FileReader(backup, manifest.files[path], progress)
        store.make_folder(folder)
        store.put_chunks(reader, f"{store.root}/{inner}")
        store.sync_folder(folder)
        if reader.damage is None:
            return None
        if path.endswith(LOG_SUFFIX):
            return f"'{path}' is restored up to byte {reader.size_bytes}: {reader.damage}"
        store.remove_file(f"{store.root}/{inner}")
        return f"'{path}' is left out: {reader.damage}"

    damaged = _for_each_file(manifest, write, found)
    for path in _behind_gaps(manifest, damaged):
        local.remove_file(f"{target}/{path}")
        found.damages.append(f"'{path}' is left out: the log before it is damaged")
    owner = max(backup.owners(), default=None)
    BackupState(writer=owner, base=found.manifest, uploaded_ms=found.time_ms).save(target)
    disk.unlink_if_there(target / RESTORING_NAME)
    disk.sync_folder(target)
    return found


def is_half_restored(folder: Path) -> bool:
    """Whether a restore into a folder was interrupted."""
    return disk.exists(folder / RESTORING_NAME)


def _prepare(target: Path) -> None:
    """Begin a restore, or begin one again that was interrupted."""
    parts = ("catalog", DATA_FOLDER, REMOTE_FOLDER)
    if is_half_restored(target):
        for part in parts:
            disk.remove_tree(target / part)
    if any(disk.is_folder(target / part) for part in parts):
        raise ConfigError(f"the folder '{target}' has data already. Name an empty folder to restore into.")
    check_new_folder(target)
    disk.make_folders_durably(target.absolute())
    disk.write_file(target / RESTORING_NAME, b"")
    disk.sync_folder(target)


def verify(
    url: str,
    *,
    at_ms: int | None = None,
    store_options: Mapping[str, str] | None = None,
    progress: Progress = lambda _: None,
) -> Restored:
    """Read every byte that a restore would read, and compare it with its checksum.

    Example:
        verify("s3://bucket/shop").damages
    """
    backup = Backup(url, dict(store_options or {}))
    manifest, found = _find(backup, at_ms)

    def read(path: str) -> str | None:
        reader = _FileReader(backup, manifest.files[path], progress)
        for _ in reader:
            pass
        return None if reader.damage is None else f"'{path}' is damaged at byte {reader.size_bytes}: {reader.damage}"

    _for_each_file(manifest, read, found)
    return found


class _FileReader:
    """The bytes of a file, up to the first that cannot be read."""

    def __init__(self, backup: Backup, extents: tuple[Extent, ...], progress: Progress) -> None:
        self._backup = backup
        self._extents = extents
        self._progress = progress
        self.size_bytes = 0
        self.damage: str | None = None

    def __iter__(self) -> Iterator[memoryview]:
        for extent in self._extents:
            try:
                data = self._backup.read_extent(extent)
            except DamagedBackupError as error:
                self.damage = error.message
                return
            self.size_bytes += len(data)
            self._progress(len(data))
            yield data


def _for_each_file(manifest: Manifest, work: Callable[[str], str | None], found: Restored) -> list[str]:
    """Do something with all files, some at a time; returns the damaged ones."""
    damaged = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="fluss-restore") as pool:
        for path, damage in zip(manifest.files, pool.map(work, manifest.files), strict=True):
            found.files += 1
            if damage is not None:
                found.damages.append(damage)
                damaged.append(path)
    found.size_bytes = manifest.size_bytes
    return damaged


def _behind_gaps(manifest: Manifest, damaged: list[str]) -> list[str]:
    """The segments that follow a damaged one of the same log."""
    first = {}
    for path in sorted(damaged, reverse=True):
        if path.endswith(LOG_SUFFIX):
            first[path.rpartition("/")[0]] = path
    return [
        path for path in manifest.files if path.endswith(LOG_SUFFIX) and path > first.get(path.rpartition("/")[0], path)
    ]


def _find(backup: Backup, at_ms: int | None) -> tuple[Manifest, Restored]:
    """The newest readable manifest, or the newest up to a time; damaged ones are named."""
    try:
        names = backup.manifest_names()
        owner = max(backup.owners(), default=None)
    except OSError as error:
        raise ConfigError(f"the backup '{backup.url}' cannot be read: {backup.files.explain(error)}") from None
    if not names:
        raise ConfigError(f"there is no backup in '{backup.url}'. Name the URL that 'fluss server --replicate' has.")
    wanted = [name for name in names if at_ms is None or time_of(name) <= at_ms]
    if not wanted:
        oldest = time_text(min(time_of(name) for name in names))
        raise ConfigError(f"the backup '{backup.url}' begins at {oldest}. Name a later time.")
    damages: list[str] = []
    for name in reversed(wanted):
        try:
            manifest = backup.read_manifest(name)
        except DamagedBackupError as error:
            damages.append(error.message)
            continue
        # A server that had nothing to upload since has noted when it looked last.
        looked_ms = backup.looked_ms(owner) if owner is not None and name == names[-1] else 0
        wanted_ms = time_ns() // 1_000_000 if at_ms is None else at_ms
        time_ms = max(manifest.time_ms, min(looked_ms, wanted_ms))
        return manifest, Restored(name, time_ms, max(0.0, (wanted_ms - time_ms) / 1000), damages=damages)
    raise DamagedBackupError(f"no manifest of the backup '{backup.url}' can be read: {damages[0]}")
