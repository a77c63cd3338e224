# SPDX-License-Identifier: Apache-2.0
"""Every file operation of the server, in one place.

No other module of the server opens, writes, flushes, renames or deletes a file. So a test can make any single operation
fail, and a simulation can put a virtual disk in place of the real one, by replacing functions of this module: callers
say ``disk.rename(...)`` and never import a function by name. The primitives come first; what follows them is composed
of them. RocksDB writes its own files, in a process of its own, and is the one exception.

Everything is private to the user of the server: files have the mode 0600, folders 0700.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

Buffer = bytes | bytearray | memoryview
StrPath = str | Path

READ = os.O_RDONLY
READ_WRITE = os.O_RDWR
CREATE = os.O_CREAT
REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_NOT_FLUSHABLE = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP})
"""Errors of a folder that cannot be flushed at all. A disk that fails says something else."""

_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_SAMPLE_BYTES = 128 * 1024
"""As much as the system reads ahead."""

OPERATIONS: dict[str, tuple[str, ...]] = {
    "open": ("open_file",),
    "write": ("write", "write_at", "write_parts_at"),
    "fsync": ("sync", "sync_data"),
    "rename": ("rename", "link"),
    "unlink": ("unlink", "remove_folder"),
    "read": ("read_into_at",),
    "mkdir": ("make_folder",),
    "truncate": ("truncate",),
}
"""The primitives that can fail, by kind. All that changes the disk is among them.

Files are read, never mapped: a page of a mapping that the disk cannot give ends or hangs the process, a read fails.
"""


# Primitives: open files -----------------------------------------------------------------------------------------------


def open_file(path: StrPath, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)


def close(fd: int) -> None:
    os.close(fd)


# The operating system's own functions where nothing is added: they are called with every append.
write: Callable[[int, Buffer], int] = os.write
write_at: Callable[[int, Buffer, int], int] = os.pwrite
write_parts_at: Callable[[int, Sequence[Buffer], int], int] = os.pwritev
read_into_at: Callable[[int, Sequence[memoryview], int], int] = os.preadv
send_file: Callable[[int, int, int, int], int] = os.sendfile
truncate: Callable[[int, int], None] = os.ftruncate
sync: Callable[[int], None] = os.fsync
sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def is_cached(fd: int, position: int, size_bytes: int) -> bool:
    """Whether bytes of a file can be read without a wait for the disk, judged by samples.

    True where the system cannot tell.
    """
    if not _NO_WAIT:
        return True
    byte = [bytearray(1)]
    try:
        for sample in (*range(position, position + size_bytes, _SAMPLE_BYTES), position + size_bytes - 1):
            os.preadv(fd, byte, sample, _NO_WAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # not supported; or it cannot be read, as the one who reads it finds out
    return True


def file_size(fd: int) -> int:
    return os.fstat(fd).st_size


def inode(fd: int) -> int:
    """The number that identifies an open file on its disk."""
    return os.fstat(fd).st_ino


def inode_of(path: StrPath) -> int:
    """The same of what has a name now."""
    return os.stat(path).st_ino


def lock(fd: int) -> None:
    """Take the exclusive lock of an open file, which ends with the process. Raises BlockingIOError when it is held."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: StrPath) -> bool:
    """Whether a process holds the exclusive lock of a file or folder."""
    try:
        fd = open_file(path, READ)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        close(fd)
    return False


# Primitives: names ----------------------------------------------------------------------------------------------------


def rename(source: StrPath, target: StrPath) -> None:
    """Rename a file or folder; a file replaces what has the name."""
    os.replace(source, target)


def link(source: StrPath, target: StrPath) -> None:
    os.link(source, target)


def unlink(path: StrPath) -> None:
    os.unlink(path)


def make_folder(path: StrPath) -> None:
    """Create one folder; its parent exists."""
    os.mkdir(path, _FOLDER_MODE)


def remove_folder(path: StrPath) -> None:
    """Delete an empty folder."""
    os.rmdir(path)


def names(folder: StrPath) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(os.listdir(folder))


def exists(path: StrPath) -> bool:
    return os.path.exists(path)


def is_folder(path: StrPath) -> bool:
    return os.path.isdir(path)


def size_of(path: StrPath) -> int:
    return os.stat(path).st_size


def version_of(path: StrPath) -> tuple[int, int, int]:
    """What changes whenever a file is replaced or written."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


def usage(folder: StrPath) -> float:
    """How full the disk of a folder is, from 0 to 1."""
    used, free = space(folder)
    return used / max(used + free, 1)


def space(folder: StrPath) -> tuple[int, int]:
    """The bytes used and free on the disk of a folder."""
    found = shutil.disk_usage(folder)
    return found.used, found.free


def make_private(path: StrPath) -> None:
    """Take all rights on a file or folder from other users. Does nothing where that is not permitted."""
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        wanted = _FOLDER_MODE if stat.S_ISDIR(mode) else _FILE_MODE
        if stat.S_IMODE(mode) & 0o077:
            os.chmod(path, wanted)


def share_like(path: StrPath, folder: StrPath) -> None:
    """Let other users read a file or folder if they can read `folder`. Does nothing where that is not permitted."""
    with contextlib.suppress(OSError):
        readable = stat.S_IMODE(os.stat(folder).st_mode) & 0o055
        mode = os.stat(path).st_mode
        wanted = stat.S_IMODE(mode) | (readable if stat.S_ISDIR(mode) else readable & 0o044)
        if wanted != stat.S_IMODE(mode):
            os.chmod(path, wanted)


# Composed -------------------------------------------------------------------------------------------------------------


def read_file(path: StrPath) -> bytes:
    fd = open_file(path, READ)
    try:
        data = bytearray(file_size(fd))
        filled = 0
        while filled < len(data):
            count = read_into_at(fd, [memoryview(data)[filled:]], filled)
            if count == 0:
                break
            filled += count
        return bytes(data[:filled])
    finally:
        close(fd)


def write_file(path: StrPath, data: Buffer, *, durable: bool = True) -> None:
    """Write a whole file. What it held before is lost, also when this fails."""
    fd = open_file(path, REPLACE)
    try:
        view = memoryview(data)
        while view:
            view = view[write(fd, view) :]
        if durable:
            sync(fd)
    finally:
        close(fd)


def write_atomically(path: Path, data: Buffer) -> None:
    """Replace a whole file: after a crash the old content is there, or the new one."""
    spare = path.with_name(path.name + ".tmp")
    write_file(spare, data)
    rename(spare, path)


def seal(body: bytes) -> bytes:
    """A line of text with its checksum behind it."""
    return body + f"\n{zlib.crc32(body):08x}\n".encode()


def unseal(data: bytes) -> bytes:
    """The line that was sealed; raises ValueError if it is not what was written."""
    body, _, check = data.partition(b"\n")
    if check.strip() != f"{zlib.crc32(body):08x}".encode():
        raise ValueError("the checksum does not fit")
    return body


def append_durably(path: StrPath, data: Buffer, position: int) -> None:
    """Write at the known end of a file, and flush it."""
    fd = open_file(path, READ_WRITE | CREATE)
    try:
        view = memoryview(data)
        while view:
            count = write_at(fd, view, position)
            view, position = view[count:], position + count
        sync(fd)
    finally:
        close(fd)


def sync_file(path: StrPath) -> None:
    fd = open_file(path, READ)
    try:
        sync(fd)
    finally:
        close(fd)


def sync_folder(path: StrPath) -> None:
    """Make new names and renames in a folder survive a power cut."""
    sync_file(path)


def unlink_if_there(path: StrPath) -> None:
    with contextlib.suppress(FileNotFoundError):
        unlink(path)


def make_folders(path: Path) -> None:
    """Create a folder and the parents it lacks. Their names are not durable until the folders above are flushed."""
    missing: list[Path] = []
    while not is_folder(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            make_folder(folder)
        except FileExistsError:
            if not is_folder(folder):
                raise


def make_folders_durably(path: Path, root: Path = Path("/")) -> None:
    """Create a folder and the parents it lacks, and flush the names on the way to it.

    Below `root` also those of folders that are there: the process that made them may have been killed, or its disk may
    have failed, before the flush.
    """
    is_there = is_folder(path)
    if is_there and root not in path.parents:
        return
    make_folders_durably(path.parent, root)
    if not is_there:
        make_folders(path)
    try:
        sync_folder(path.parent)
    except OSError as error:
        # One far above the data may be of another user, or of a file system that flushes no folders: this server puts
        # no names into it.
        if not is_there or error.errno not in _NOT_FLUSHABLE:
            raise


def sync_folders(path: Path) -> None:
    """Flush the names in a folder and in all folders below it."""
    for name in names(path):
        if is_folder(path / name):
            sync_folders(path / name)
    sync_folder(path)


def remove_tree(path: StrPath) -> bool:
    """Delete a folder and all that is in it, as far as possible; returns whether nothing is left."""
    left = False
    try:
        entries = names(path)
    except NotADirectoryError:
        entries = []
    except FileNotFoundError:
        return True
    except OSError:
        return False
    for name in entries:
        inner = os.path.join(path, name)
        if is_folder(inner) and not os.path.islink(inner):
            left = not remove_tree(inner) or left
            continue
        try:
            unlink_if_there(inner)
        except OSError:
            left = True
    try:
        remove_folder(path)
    except FileNotFoundError:
        pass
    except OSError:
        left = True
    return not left
