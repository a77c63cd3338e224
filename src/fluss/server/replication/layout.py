# SPDX-License-Identifier: Apache-2.0
"""What lies in a backup, and how it is named.

    objects/<writer>-<number>              bytes of files, many extents in one object
    manifests/<writer>-<number>-<time>     one state of the server: its files, and the extents that each is made of
    owners/<writer>                        who writes the backup, and its newest manifest

A writer is one run of a server. Its name begins with an epoch that grows with each run, and every object carries it:
two servers never write to the same name, and the greatest name owns the backup. An object is complete before the
manifest that names it is written, and no object is written twice.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fluss.errors import ConfigError
from fluss.server import disk
from fluss.server.remote_files import RemoteFiles

STATE_NAME = ".replication"
"""The file in a data folder that says which backup it continues, and how far that is."""
_FORMAT = 1


class FencedError(ConfigError):
    """Another server writes the backup."""


class DamagedBackupError(ConfigError):
    """What a backup names is missing, or is not what was written."""


class Extent(NamedTuple):
    """Consecutive bytes of a file, and where in the backup they lie."""

    object_name: str
    position: int
    size_bytes: int
    checksum: int
    level: int = 0
    """How often it was merged from smaller ones."""


@dataclass
class Manifest:
    """The files of a server at one time. The extents of a file follow each other from its beginning."""

    time_ms: int = 0
    files: dict[str, tuple[Extent, ...]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Objects that only manifests before a time need."""

    @property
    def objects(self) -> set[str]:
        return {extent.object_name for extents in self.files.values() for extent in extents}

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extents in self.files.values() for extent in extents)

    def to_bytes(self) -> bytes:
        document = {"format": _FORMAT, "time_ms": self.time_ms, "files": self.files, "dropped": self.dropped}
        return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        try:
            document = json.loads(zlib.decompress(data))
            if document["format"] != _FORMAT:
                raise DamagedBackupError(f"it has format {document['format']}, this release reads {_FORMAT}")
            files = {path: tuple(Extent(*extent) for extent in extents) for path, extents in document["files"].items()}
            if outside := [path for path in files if path.startswith("/") or ".." in path.split("/")]:
                raise ValueError(f"it names the file '{outside[0]}', which would lie outside of the folder")
            return cls(document["time_ms"], files, document["dropped"])
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise DamagedBackupError(f"it is not what was written: {error}") from None


def time_of(manifest_name: str) -> int:
    """When the state was recorded that a manifest names, in milliseconds."""
    return int(manifest_name.rpartition("-")[2])


def writer_of(name: str) -> str:
    """The writer of an object or manifest."""
    return "-".join(name.split("-")[:2])


def time_text(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def is_backup(url: str) -> bool:
    """Whether a name that a user gave means a backup of `fluss server --replicate`: a URL, or its folder."""
    return "://" in url or disk.is_folder(Path(url) / "manifests")


class Backup:
    """A backup by its URL. Methods run in threads.

    Example:
        Backup("s3://bucket/shop").manifest_names()
    """

    def __init__(self, url: str, store_options: dict[str, str] | None = None) -> None:
        self.files = RemoteFiles(url, store_options, private=True)
        self.url = self.files.root

    def path(self, folder: str, name: str) -> str:
        return f"{self.url}/{folder}/{name}"

    def prepare(self) -> None:
        for folder in ("objects", "manifests", "owners"):
            self.files.make_folder(f"{self.url}/{folder}")

    def owners(self) -> list[str]:
        return self._names("owners")

    def _names(self, folder: str) -> list[str]:
        return sorted(name for name in self.files.names(f"{self.url}/{folder}") if not name.endswith(".tmp"))

    def object_names(self) -> list[str]:
        return self._names("objects")

    def manifest_names(self) -> list[str]:
        """All manifests, oldest first. The newest is found even when the list of the store is not up to date."""
        found = set(self._names("manifests"))
        for owner in self.owners()[-1:]:
            newest = self.newest_of(owner)
            if newest is not None:
                found.add(newest)
        return sorted(found)

    def newest_of(self, writer: str) -> str | None:
        """The newest manifest that an owner knows."""
        newest = self._owner(writer).get("manifest")
        return None if newest is None else str(newest)

    def has_owner(self, writer: str) -> bool:
        return bool(self._owner(writer))

    def looked_ms(self, writer: str) -> int:
        """When an owner last found that the backup has everything, in milliseconds."""
        return int(self._owner(writer).get("looked_ms", 0))

    def _owner(self, writer: str) -> dict[str, Any]:
        try:
            found = json.loads(disk.unseal(self.files.read(self.path("owners", writer))))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_owner(self, writer: str, manifest: str | None, looked_ms: int) -> None:
        body = json.dumps({"manifest": manifest, "looked_ms": looked_ms}).encode()
        self.files.write(self.path("owners", writer), disk.seal(body))
        self.files.sync_folder(f"{self.url}/owners")

    def read_manifest(self, name: str) -> Manifest:
        try:
            return Manifest.parse(self.files.read(self.path("manifests", name)))
        except FileNotFoundError:
            raise DamagedBackupError(f"the manifest '{name}' of '{self.url}' is missing") from None
        except DamagedBackupError as error:
            raise DamagedBackupError(f"the manifest '{name}' of '{self.url}' is damaged: {error.message}") from None

    def write_manifest(self, name: str, manifest: Manifest) -> None:
        self.files.sync_folder(f"{self.url}/objects")  # what it names is durable before it is
        self.files.write(self.path("manifests", name), manifest.to_bytes())
        self.files.sync_folder(f"{self.url}/manifests")

    def remove(self, folder: str, names: Iterable[str]) -> None:
        for name in names:
            self.files.remove_file(self.path(folder, name))

    def read_extent(self, extent: Extent) -> memoryview:
        """The bytes of an extent; raises `DamagedBackupError` when they are not what was written."""
        path = self.path("objects", extent.object_name)
        try:
            file = self.files.open(path)
        except FileNotFoundError:
            raise DamagedBackupError(f"the object '{path}' is missing") from None
        try:
            data = file.read(extent.position, extent.size_bytes)
        finally:
            file.close()
        if len(data) != extent.size_bytes or zlib.crc32(data) != extent.checksum:
            raise DamagedBackupError(f"the object '{path}' is damaged at byte {extent.position}")
        return data


@dataclass
class BackupState:
    """What a data folder knows of its backup."""

    writer: str | None = None
    claim: str | None = None
    """The writer that this server is about to become."""
    base: str | None = None
    """The manifest that the folder continues while its writer has written none."""
    uploaded_ms: int = 0
    behind_bytes: int = 0
    error: str | None = None

    @classmethod
    def load(cls, data_dir: Path) -> BackupState:
        """Read the state; an empty one if there is none, or if it is damaged."""
        try:
            return cls(**json.loads(disk.unseal(disk.read_file(data_dir / STATE_NAME))))
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self, data_dir: Path) -> None:
        disk.write_atomically(data_dir / STATE_NAME, disk.seal(json.dumps(self.__dict__).encode()))

    def next_writer(self) -> str:
        epochs = [int(name.partition("-")[0]) for name in (self.writer, self.claim) if name is not None]
        return f"{max(epochs, default=0) + 1:08d}-{uuid.uuid4().hex[:12]}"
