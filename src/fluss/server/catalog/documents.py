# SPDX-License-Identifier: Apache-2.0
"""One CRC-protected document per object of the catalog.

A document is a text file of two lines. The first says what the document is about, the second holds its content:

    fluss-document 1 <crc32c of the JSON> {"kind": "table", "id": 7, ...}
    <crc32c of the JSON> {...}

Each line has a checksum of its own, so that a document whose content is damaged still names its object: the
damage can then be confined to that object. Files are replaced as a whole (temporary file, fsync, rename, fsync of the
folder), and the version before stays beside it as ``<name>.prev`` for a person to restore.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluss._checksum import crc32c
from fluss.errors import FormatError, UnknownServerError
from fluss.server import disk

_log = logging.getLogger("fluss.server.catalog")

_MAGIC = b"fluss-document 1"
_BEGIN = re.compile(rb"fluss-document (\d{1,3}) ")
# Far above any real document (a table of 10,000 columns is about 1 MB); bounds what a broken file can make us read.
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class Damage:
    """A document that cannot be trusted, and what is known about the object it described."""

    path: Path
    reason: str
    identity: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class DamagedDocumentError(FormatError):
    """The document's bytes are not what was written."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"damaged catalog document {damage}")
        self.damage = damage


class UnconfirmedError(OSError):
    """A change was made, but the disk did not confirm it: a power failure may take it back."""


def not_confirmed(what: str, error: UnconfirmedError) -> UnknownServerError:
    """Make the error for a drop that may come undone with a power failure."""
    return UnknownServerError(
        f"{what}, but the disk did not confirm it ({error.strerror}). It is gone now; after a power failure it may be "
        "there again, without its data: drop it again then."
    )


_LIST_PIECE = 500
_dumps = json.JSONEncoder(separators=(",", ":")).encode


def json_text(value: object) -> str:
    """Encode JSON without spaces, long lists and objects in pieces: the encoder lets no other thread run meanwhile."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_dumps(str(key))}:{json_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list) and len(value) > _LIST_PIECE:
        pieces = (_dumps(value[at : at + _LIST_PIECE])[1:-1] for at in range(0, len(value), _LIST_PIECE))
        return "[" + ",".join(pieces) + "]"
    return _dumps(value)


def encode_document(identity: Mapping[str, Any], content: Mapping[str, Any]) -> bytes:
    first, second = json_text(identity).encode("ascii"), json_text(content).encode("ascii")
    return b"%s %08x %s\n%08x %s\n" % (_MAGIC, crc32c(first), first, crc32c(second), second)


def _checked_json(line: bytes, what: str, path: Path, identity: Mapping[str, Any] | None) -> dict[str, Any]:
    crc, _, payload = line.partition(b" ")
    # Compared as text: parsing would let a flipped bit turn "a" into "A" unnoticed.
    if crc != b"%08x" % crc32c(payload):
        raise DamagedDocumentError(Damage(path, f"checksum of the {what} does not match", identity))
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise DamagedDocumentError(Damage(path, f"{what} is not JSON: {error}", identity)) from error
    if not isinstance(value, dict):
        raise DamagedDocumentError(Damage(path, f"{what} is not a JSON object", identity))
    return value


def decode_document(data: bytes, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (identity, content); a :class:`DamagedDocumentError` keeps the identity when at least that is readable."""
    first, separator, rest = data.partition(b"\n")
    begin = _BEGIN.match(first)
    if begin is None:
        raise DamagedDocumentError(Damage(path, "does not begin like a catalog document"))
    identity = _checked_json(first[begin.end() :], "identity line", path, None)
    if begin.group() != _MAGIC + b" ":
        version = begin[1].decode()
        raise DamagedDocumentError(
            Damage(path, f"is a document of version {version}, written by a newer release: upgrade this one", identity)
        )
    if not separator or not rest.endswith(b"\n"):
        raise DamagedDocumentError(Damage(path, "is cut short", identity))
    return identity, _checked_json(rest[:-1], "content line", path, identity)


class DocumentStore:
    """Reads and atomically replaces documents below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._failure = ""
        self._steps_back: list[Callable[[], None]] = []
        self._unsynced: set[Path] = set()

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            size_bytes = disk.size_of(path)
            if size_bytes > DOCUMENT_BYTES_MAX:
                raise DamagedDocumentError(Damage(path, f"has {size_bytes} bytes, more than any document may have"))
            data = disk.read_file(path)
        except FileNotFoundError as error:
            raise DamagedDocumentError(Damage(path, "is missing")) from error
        except OSError as error:
            raise DamagedDocumentError(Damage(path, f"cannot be read: {error.strerror}")) from error
        return decode_document(data, path)

    @property
    def failed(self) -> str | None:
        """Why changes cannot be confirmed now: the disk failed after a rename, and has not recovered yet."""
        return self._failure if self._steps_back or self._unsynced else None

    def recover(self) -> None:
        """Take back what a failing disk left half done, and flush what it did not confirm. Raises OSError."""
        while self._steps_back:
            self._steps_back[-1]()
            self._steps_back.pop()
        while self._unsynced:
            folder = next(iter(self._unsynced))
            disk.sync_folder(folder)
            self._unsynced.discard(folder)

    def write(self, path: Path, identity: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        """Replace a document. After an error nothing has changed."""
        temporary, previous = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".prev")
        data = encode_document(identity, content)
        if len(data) > DOCUMENT_BYTES_MAX:
            # Better refused now than found unreadable at the next start.
            raise FormatError(
                f"the description has {len(data)} bytes, the catalog keeps at most {DOCUMENT_BYTES_MAX} per object"
            )
        self.recover()
        is_new = not disk.exists(path)
        disk.write_file(temporary, data)
        _keep_previous(path, previous)
        disk.rename(temporary, path)
        try:
            disk.sync_folder(path.parent)
        except OSError as error:
            step = (lambda: disk.unlink_if_there(path)) if is_new else (lambda: _keep_previous(previous, path))
            self._take_back(step, error, path.parent)
            raise

    def publish_dir(self, source: Path, target: Path) -> None:
        """Move a prepared folder to its final place. After an error nothing has changed."""
        self.recover()
        disk.rename(source, target)
        try:
            disk.sync_folder(target.parent)
            disk.sync_folder(source.parent)
        except OSError as error:
            self._take_back(lambda: disk.rename(target, source), error, target.parent, source.parent)
            raise

    def retire_dir(self, source: Path, target: Path) -> None:
        """Move a folder out of the way for good. After an `UnconfirmedError` it is gone all the same."""
        self.recover()
        disk.rename(source, target)
        self._confirm(source.parent, target.parent)

    def delete(self, path: Path) -> None:
        """Delete a document. After an `UnconfirmedError` it is gone all the same."""
        self.recover()
        # The version before goes first: it must not outlive the object.
        disk.unlink_if_there(path.with_name(path.name + ".prev"))
        disk.unlink_if_there(path)
        self._confirm(path.parent)

    def _confirm(self, *folders: Path) -> None:
        try:
            for folder in folders:
                disk.sync_folder(folder)
        except OSError as error:
            self._unsynced.update(folders)
            self._failure = str(error)
            raise UnconfirmedError(error.errno, error.strerror) from error

    def _take_back(self, step: Callable[[], None], error: OSError, *folders: Path) -> None:
        """Return to the state before a rename that the disk did not confirm, now or as soon as it can be done."""
        self._unsynced.update(folders)
        self._failure = str(error)
        try:
            step()
        except OSError:
            self._steps_back.append(step)


def _keep_previous(path: Path, previous: Path) -> None:
    """Keep what ``path`` holds now under another name (a second link where the file system has them)."""
    spare = previous.with_name(previous.name + ".tmp")
    disk.unlink_if_there(spare)
    try:
        disk.link(path, spare)
    except FileNotFoundError:
        return
    except OSError:
        disk.write_file(spare, disk.read_file(path))
    disk.rename(spare, previous)


# A block is reserved on disk before its first number is used; a crash wastes at most the rest of the block.
BLOCK_SIZES = {"database_id": 16, "table_id": 32, "partition_id": 256, "writer_id": 1024, "coordinator_epoch": 1}


class Counters:
    """All id counters of the server in one document."""

    def __init__(self, store: DocumentStore, path: Path, *, fresh: bool) -> None:
        """``fresh``: nothing else is in the catalog, so a missing document means a new server, not a lost one."""
        self._store = store
        self._path = path
        self._lock = threading.Lock()
        self._limit = dict.fromkeys(BLOCK_SIZES, 0)
        self.damage: str | None = None
        self._load(fresh)
        self._next = dict(self._limit)

    def _load(self, fresh: bool) -> None:
        if fresh and not disk.exists(self._path) and not disk.exists(self._previous):
            return
        try:
            self._adopt(self._store.read(self._path)[1], blocks_extra=0)
        except DamagedDocumentError as error:
            self.damage = str(error)
            _log.error("%s; ids are skipped to keep them unique", error)
            try:
                # The version before is at most one reservation behind, so two blocks on top are certainly unused.
                self._adopt(self._store.read(self._previous)[1], blocks_extra=2)
            except DamagedDocumentError:
                # Nothing is known about ids of dropped objects. Seconds since 1970 are far above any counter that
                # started from 0, and a second loss of the same file gets a later, larger start.
                self._limit = dict.fromkeys(BLOCK_SIZES, int(time.time()))

    def _adopt(self, content: dict[str, object], blocks_extra: int) -> None:
        for name, block in BLOCK_SIZES.items():
            value = content.get(name, 0)
            limit = value if isinstance(value, int) and value >= 0 else 0
            self._limit[name] = limit + blocks_extra * block

    @property
    def _previous(self) -> Path:
        return self._path.with_name(self._path.name + ".prev")

    def at_least(self, name: str, value: int) -> None:
        """Never hand out a number below ``value`` (ids found on disk while loading)."""
        with self._lock:
            if self._next[name] < value:
                self._next[name] = value
                self._limit[name] = max(self._limit[name], value)

    def take(self, name: str) -> int:
        """The next number; may write to disk (once per block)."""
        with self._lock:
            number = self._next[name]
            if number >= self._limit[name]:
                wanted = dict(self._limit)
                wanted[name] = number + BLOCK_SIZES[name]
                self._store.write(self._path, {"kind": "counters"}, wanted)
                self._limit = wanted
            self._next[name] = number + 1
            return number

    def close(self) -> None:
        """Give the unused rest of every block back, so that a clean restart continues without a gap."""
        with self._lock:
            if self._next != self._limit and self._store.failed is None:
                self._store.write(self._path, {"kind": "counters"}, self._next)
                self._limit = dict(self._next)
