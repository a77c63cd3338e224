# SPDX-License-Identifier: Apache-2.0
"""The data folder: it belongs to one process at a time, and a file in it says how that process can be reached."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from fluss.errors import ConfigError
from fluss.server import disk

logger = logging.getLogger("fluss.server")

LOCK_NAME = ".lock"
CLEAN_NAME = ".clean-shutdown"
ADDRESS_NAME = ".address"
CLOCK_NAME = ".clock"
"""The time that counted while a server last ran, for `Clock.resume`."""
RESTORING_NAME = ".restoring"
"""Is there while a backup is restored into the folder."""
_REPLACEABLE = "# replaceable"
_PARTS = ("catalog", "tables")
_BEFORE_START = frozenset({"tables", "remote", "tls", "users.json", "lost+found"})
"""What a data folder may have before its first start: certificates and users, and what a new disk brings."""


def is_data_folder(path: str | Path) -> bool:
    """Whether a folder has the catalog of a server."""
    return disk.is_folder(Path(path) / "catalog")


def check_new_folder(path: str | Path) -> None:
    """Refuse a folder that is no data folder yet and has other files, which may be named by mistake."""
    if is_data_folder(path) or not disk.is_folder(path):
        return
    other = sorted(name for name in disk.names(path) if name not in _BEFORE_START and not name.startswith("."))
    if other:
        raise ConfigError(
            f"the folder '{path}' has other files, such as '{other[0]}', and no data of Fluss. Name an empty folder, "
            f"such as '{Path(path) / 'fluss-data'}'"
        )


class DataDir:
    """A locked data folder. The operating system frees the lock when the process ends, however it ends.

    The folder itself is locked: no file in it can be deleted to let a second server in. The lock file has the process
    id, and keeps out servers of earlier releases, which lock nothing else.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._fds: list[int] = []
        try:
            # Its own name must be durable before the first row in it is.
            disk.make_folders_durably(self.path)
            self._fds.append(disk.open_file(self.path, disk.READ))
            self._fds.append(disk.open_file(self.path / LOCK_NAME, disk.READ_WRITE | disk.CREATE))
        except OSError as error:
            self.abandon()
            raise ConfigError(f"cannot use the data folder '{self.path}': {error.strerror}.") from None
        self._inode = disk.inode(self._fds[0])
        try:
            self._lock()
            self._begin()
        except OSError as error:
            self.abandon()
            raise ConfigError(f"cannot write to the data folder '{self.path}': {error.strerror}.") from None
        except ConfigError:
            self.abandon()
            raise

    def _lock(self) -> None:
        for fd in self._fds:
            try:
                disk.lock(fd)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise ConfigError(
                        f"the data folder '{self.path}' is in use by the server with process id "
                        f"{_holder(self._fds[-1])}. Stop that server or choose another folder with --data-dir."
                    ) from None
                if fd == self._fds[0]:
                    continue  # some network file systems lock files only
                raise ConfigError(f"cannot lock the data folder '{self.path}': {error.strerror}.") from None

    def check(self) -> None:
        """Raise OSError when the path leads to another folder than the one that is locked. May run in a thread."""
        if disk.inode_of(self.path) != self._inode:
            raise FileNotFoundError(
                errno.ENOENT,
                f"the data folder '{self.path}' was replaced; put it back or restart the server",
            )

    def _begin(self) -> None:
        if disk.exists(self.path / RESTORING_NAME):
            raise ConfigError(f"the restore into '{self.path}' was interrupted. Run 'fluss restore' again.")
        disk.truncate(self._fds[-1], 0)
        disk.write_at(self._fds[-1], f"{os.getpid()}\n".encode(), 0)
        clean = self.path / CLEAN_NAME
        self.was_clean = disk.exists(clean) or not any(disk.exists(self.path / part) for part in _PARTS)
        """Whether there is nothing to recover: the last server ended cleanly, or there was none."""
        for part in _PARTS:
            # Folders of earlier releases could be read by every user of the machine.
            disk.make_private(self.path / part)
        catalog = self.path / "catalog"
        if not self.was_clean and disk.is_folder(catalog):
            # What a crash left unflushed would be taken for durable from now on. Logs flush their own names.
            disk.sync_folders(catalog)
        # From now on a crash must not look like a clean stop.
        disk.unlink_if_there(clean)
        disk.sync_folder(self.path)

    def clock_state(self) -> tuple[int, int, int] | None:
        """What was recorded of the clock; None if nothing was, or if it cannot be read."""
        try:
            counted, seen, ran = disk.unseal(disk.read_file(self.path / CLOCK_NAME)).split()
            return int(counted), int(seen), int(ran)
        except (OSError, ValueError):
            return None

    def record_clock(self, state: tuple[int, int, int]) -> None:
        disk.write_atomically(self.path / CLOCK_NAME, disk.seal(b"%d %d %d" % state))

    def release(self, *, clean: bool) -> None:
        """Give the folder free; ``clean`` says that everything was flushed."""
        if not self._fds:
            return
        try:
            self.check()
            if clean:
                disk.write_file(self.path / CLEAN_NAME, b"")
            disk.truncate(self._fds[-1], 0)
        except OSError as error:
            logger.error("the data folder '%s' cannot be marked as closed cleanly: %s", self.path, error)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Free the lock, as the end of the process does."""
        fds, self._fds = self._fds, []
        for fd in fds:
            disk.close(fd)


def _holder(fd: int) -> str:
    data = bytearray(32)
    count = disk.read_into_at(fd, [memoryview(data)], 0)
    text = bytes(data[:count]).decode("ascii", "replace").strip()
    return text if text.isdigit() else "unknown"


def record_addresses(data_dir: str | Path, addresses: Sequence[str], *, replaceable: bool = False) -> None:
    """Write the addresses of a server that is ready, one a line; complete or not at all.

    Args:
        data_dir: The data folder of the server.
        addresses: Where it listens.
        replaceable: Whether it ends with the program that started it, and has no options that another could not know.
    """
    lines = [*addresses, _REPLACEABLE] if replaceable else addresses
    disk.write_atomically(Path(data_dir) / ADDRESS_NAME, "".join(f"{line}\n" for line in lines).encode())


def remove_addresses(data_dir: str | Path) -> None:
    """Remove the file of a server that stops."""
    with contextlib.suppress(OSError):
        disk.unlink_if_there(Path(data_dir) / ADDRESS_NAME)


def live_addresses(data_dir: str | Path) -> list[str]:
    """The addresses of the server that runs on a folder; empty if none does, or if it is still starting.

    The file may be left over from a server that was killed, so the lock of the folder decides whether it counts.

    Example:
        addresses = live_addresses("./fluss-data")
    """
    if not is_in_use(data_dir):
        return []
    return [line for line in _lines(data_dir) if not line.startswith("#")]


def is_replaceable(data_dir: str | Path) -> bool:
    """Whether programs that joined the server of a folder may start another one when it has ended."""
    return _REPLACEABLE in _lines(data_dir)


def _lines(data_dir: str | Path) -> list[str]:
    try:
        return disk.read_file(Path(data_dir) / ADDRESS_NAME).decode("utf-8").splitlines()
    except OSError:
        return []


def is_in_use(data_dir: str | Path) -> bool:
    """Whether a server holds the lock of a folder, or one of an earlier release that of its lock file."""
    return any(disk.is_locked(path) for path in (Path(data_dir), Path(data_dir) / LOCK_NAME))
