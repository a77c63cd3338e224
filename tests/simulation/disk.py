# SPDX-License-Identifier: Apache-2.0
"""A disk that fails on demand, and that forgets what was not synced when the power goes.

The files are real ones in a folder of the simulation. Beside them this keeps, for each file with unsynced changes, its
last synced contents, and for each folder the changes of names since its last sync, also those of processes that were
killed since. `lose_power` goes back to a state that POSIX allows: of the changes to a file any subset, torn at sectors;
of the changes to a folder any subset that has, with a change of a name, all earlier ones of that name.

A sync that fails leaves what it was for in doubt for good, as it does on Linux: a later sync reports success and has
not written it.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fluss.server import disk

_SECTOR_BYTES = 512
_KINDS = {name: kind for kind, names in disk.OPERATIONS.items() for name in names}


class _Change:
    """One change of a file's contents: bytes at a position, or a new length."""

    __slots__ = ("data", "doubtful", "position")

    def __init__(self, position: int, data: bytes | None) -> None:
        self.position = position
        self.data = data
        """None cuts the file at the position."""
        self.doubtful = False

    def apply(self, contents: bytearray) -> None:
        position = self.position
        if self.data is None:
            del contents[position:]
            contents.extend(bytes(position - len(contents)))
        elif self.data:
            contents.extend(bytes(max(position - len(contents), 0)))
            contents[position : position + len(self.data)] = self.data


class _File:
    """A file with changes that are not synced."""

    def __init__(self, synced: bytes) -> None:
        self.synced = bytearray(synced)
        self.changes: list[_Change] = []


class SimDisk:
    """The primitives of `fluss.server.disk` for the files below one folder."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self._rng = rng
        self._graveyard = root.with_name(root.name + ".graveyard")
        self._graveyard.mkdir(parents=True, exist_ok=True)
        self._kept = 0
        self._open_folders: dict[int, str] = {}
        self._files: dict[int, _File] = {}
        self._links: dict[int, set[str]] = {}
        self._folders: dict[str, list[tuple[set[str], Callable[[], None]]]] = {}
        """The unsynced changes of names by folder: the names that change, and how to take that back."""
        self.operations = 0
        self.failing: Callable[[str], int | None] = lambda kind: None
        """The error number with which the next operation of a kind fails; None lets it succeed."""

    @classmethod
    @contextmanager
    def of_seed(cls, folder: Path, seed: int) -> Iterator[tuple[Path, SimDisk]]:
        """A disk that is installed, and a folder of its own below another one."""
        root = folder / str(seed)
        root.mkdir()
        sim = cls(root, random.Random(seed))
        with sim.installed():
            yield root, sim

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the server use this disk."""
        names = [*_KINDS, "close"]
        before = {name: getattr(disk, name) for name in names}
        self._real = before
        for name in names:
            setattr(disk, name, getattr(self, name))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(disk, name, function)

    def _check(self, kind: str) -> None:
        self.operations += 1
        number = self.failing(kind)
        if number is not None:
            raise OSError(number, os.strerror(number))

    # Open files --------------------------------------------------------------------------------------------------

    def open_file(self, path: Any, flags: int) -> int:
        self._check("open")
        path = os.fspath(path)
        new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        fd: int = self._real["open_file"](path, flags & ~os.O_TRUNC)
        status = os.fstat(fd)
        if new:
            self._named(path, lambda: _remove(path))
        if stat.S_ISDIR(status.st_mode):
            self._open_folders[fd] = path
        else:
            self._links.setdefault(status.st_ino, set()).add(path)
        if flags & os.O_TRUNC and not new:
            self._change(fd, _Change(0, None))
            os.ftruncate(fd, 0)
        return fd

    def close(self, fd: int) -> None:
        self._open_folders.pop(fd, None)
        self._real["close"](fd)

    def write(self, fd: int, data: Any) -> int:
        return self._write(fd, bytes(data), os.lseek(fd, 0, os.SEEK_CUR), seek=True)

    def write_at(self, fd: int, data: Any, position: int) -> int:
        return self._write(fd, bytes(data), position)

    def write_parts_at(self, fd: int, parts: Sequence[Any], position: int) -> int:
        return self._write(fd, b"".join(parts), position)

    def _write(self, fd: int, data: bytes, position: int, *, seek: bool = False) -> int:
        try:
            self._check("write")
        except OSError:
            # A write that fails may have written some of its bytes.
            torn = data[: self._rng.randint(0, len(data))]
            if torn:
                self._change(fd, _Change(position, torn))
                os.pwrite(fd, torn, position)
            raise
        self._change(fd, _Change(position, data))
        os.pwrite(fd, data, position)
        if seek:
            os.lseek(fd, position + len(data), os.SEEK_SET)
        return len(data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check("truncate")
        self._change(fd, _Change(size_bytes, None))
        os.ftruncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        folder = self._open_folders.get(fd)
        if folder is not None:
            self._check("fsync")
            self._folders.pop(folder, None)
            return
        inode = os.fstat(fd).st_ino
        file = self._files.get(inode)
        try:
            self._check("fsync")
        except OSError:
            for change in file.changes if file is not None else ():
                change.doubtful = True
            raise
        if file is None:
            return
        for change in file.changes:
            if not change.doubtful:
                change.apply(file.synced)
        file.changes = [change for change in file.changes if change.doubtful]
        if not file.changes:
            del self._files[inode]

    def sync_data(self, fd: int) -> None:
        self.sync(fd)

    def read_into_at(self, fd: int, buffers: Sequence[memoryview], position: int) -> int:
        self._check("read")
        count: int = self._real["read_into_at"](fd, buffers, position)
        return count

    def _change(self, fd: int, change: _Change) -> None:
        status = os.fstat(fd)
        file = self._files.get(status.st_ino)
        if file is None:
            contents = Path(f"/proc/self/fd/{fd}").read_bytes() if status.st_size else b""
            file = self._files[status.st_ino] = _File(contents)
        # What is written again is no longer in doubt.
        file.changes = [old for old in file.changes if not (old.doubtful and _covers(change, old))]
        file.changes.append(change)

    # Names -------------------------------------------------------------------------------------------------------

    def rename(self, source: Any, target: Any) -> None:
        self._check("rename")
        source, target = os.fspath(source), os.fspath(target)
        replaced = self._keep(target)
        self._real["rename"](source, target)
        paths = self._links.get(os.stat(target).st_ino, set())
        if source in paths:
            paths.discard(source)
            paths.add(target)

        def undo() -> None:
            if os.path.exists(target):
                os.rename(target, source)
                _remove(target)  # a rename between two names of one file leaves both
            if replaced is not None:
                os.link(replaced, target)

        self._named(target, undo, source)

    def link(self, source: Any, target: Any) -> None:
        self._check("rename")
        self._real["link"](source, target)
        target = os.fspath(target)
        self._links.setdefault(os.stat(target).st_ino, set()).add(target)
        self._named(target, lambda: _remove(target))

    def unlink(self, path: Any) -> None:
        self._check("unlink")
        path = os.fspath(path)
        kept = self._keep(path)
        self._real["unlink"](path)
        self._named(path, lambda: _restore(kept, path))

    def make_folder(self, path: Any) -> None:
        self._check("mkdir")
        self._real["make_folder"](path)
        self._named(os.fspath(path), lambda: _remove(path))

    def remove_folder(self, path: Any) -> None:
        self._check("unlink")
        self._real["remove_folder"](path)
        self._named(os.fspath(path), lambda: Path(path).mkdir(exist_ok=True))

    def _named(self, path: str, undo: Callable[[], None], *others: str) -> None:
        self._folders.setdefault(os.path.dirname(path), []).append(({path, *others}, undo))

    def _keep(self, path: str) -> str | None:
        """Keep a file whose name is about to go, in case that change is lost."""
        if not os.path.isfile(path):
            return None
        self._kept += 1
        kept = f"{self._graveyard}/{self._kept}"
        os.link(path, kept)
        self._links.setdefault(os.stat(kept).st_ino, set()).add(kept)
        return kept

    # Power loss --------------------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """Leave what was synced, and of the rest whatever chance wants. No file may be open."""
        for inode, file in self._files.items():
            contents = self._torn(file)
            for path in sorted(self._links.get(inode, ())):
                if os.path.isfile(path) and os.stat(path).st_ino == inode:
                    Path(path).write_bytes(contents)
                    break
        self._files.clear()
        for _, changes in sorted(self._folders.items(), key=lambda entry: entry[0].count("/"), reverse=True):
            in_order = self._rng.random() < 0.5  # as journals keep them
            for undos in [[undo for _, undo in changes]] if in_order else _apart(changes):
                for undo in reversed(undos[self._rng.randint(0, len(undos)) :]):
                    undo()
        self._folders.clear()
        self._links.clear()
        self._open_folders.clear()
        for kept in self._graveyard.iterdir():
            kept.unlink()

    def _torn(self, file: _File) -> bytes:
        contents = bytearray(file.synced)
        mode = self._rng.choice(("nothing", "all", "some", "torn"))
        for change in file.changes:
            if mode == "nothing" or (mode != "all" and self._rng.random() < 0.5):
                continue
            if mode == "torn" and change.data:
                for part in _sectors(change.position, change.data):
                    if self._rng.random() < 0.5:
                        part.apply(contents)
            else:
                change.apply(contents)
        return bytes(contents)


def _sectors(position: int, data: bytes) -> Iterator[_Change]:
    """The parts of a write that reach the disk one by one."""
    end = position + len(data)
    while position < end:
        following = min((position // _SECTOR_BYTES + 1) * _SECTOR_BYTES, end)
        yield _Change(position, data[position - end : following - end or None])
        position = following


def _apart(changes: list[tuple[set[str], Callable[[], None]]]) -> list[list[Callable[[], None]]]:
    """Group changes that concern the same names; the groups may reach the disk in any order."""
    groups: list[tuple[set[str], list[Callable[[], None]]]] = []
    for names, undo in changes:
        touched = [group for group in groups if group[0] & names]
        joined = (set(names).union(*(group[0] for group in touched)), [one for group in touched for one in group[1]])
        joined[1].append(undo)
        groups = [group for group in groups if group not in touched] + [joined]
    return [undos for _, undos in groups]


def some_error(rng: random.Random, kind: str) -> int:
    """An error that an operation of this kind may report."""
    full = kind in ("open", "write", "mkdir", "rename")
    return rng.choice((errno.ENOSPC, errno.EIO)) if full else errno.EIO


def _covers(change: _Change, old: _Change) -> bool:
    if change.data is None:
        return old.position >= change.position
    if old.data is None:
        return False
    return change.position <= old.position and old.position + len(old.data) <= change.position + len(change.data)


def _remove(path: Any) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        Path(path).unlink(missing_ok=True)


def _restore(kept: str | None, path: str) -> None:
    if kept is not None and os.path.isdir(os.path.dirname(path)) and not os.path.exists(path):
        os.link(kept, path)
