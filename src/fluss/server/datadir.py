# SPDX-License-Identifier: Apache-2.0
"""The data folder belongs to one process at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from fluss.errors import ConfigError
from fluss.server import disk

LOCK_NAME = ".lock"
CLEAN_NAME = ".clean-shutdown"
_PARTS = ("catalog", "tables")


class DataDir:
    """A locked data folder. The operating system frees the lock when the process ends, however it ends."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        try:
            # Its own name must be durable before the first row in it is.
            disk.make_folders_durably(self.path)
            self._fd = disk.open_file(self.path / LOCK_NAME, disk.READ_WRITE | disk.CREATE)
        except OSError as error:
            raise ConfigError(f"cannot use the data folder '{self.path}': {error.strerror}.") from None
        try:
            disk.lock(self._fd)
        except OSError as error:
            holder = _holder(self._fd)
            disk.close(self._fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise ConfigError(f"cannot lock the data folder '{self.path}': {error.strerror}.") from None
            raise ConfigError(
                f"the data folder '{self.path}' is in use by the server with process id {holder}. "
                "Stop that server or choose another folder with --data-dir."
            ) from None
        try:
            self._begin()
        except OSError as error:
            disk.close(self._fd)
            raise ConfigError(f"cannot write to the data folder '{self.path}': {error.strerror}.") from None

    def _begin(self) -> None:
        disk.truncate(self._fd, 0)
        disk.write_at(self._fd, f"{os.getpid()}\n".encode(), 0)
        clean = self.path / CLEAN_NAME
        self.was_clean = disk.exists(clean) or not any(disk.exists(self.path / part) for part in _PARTS)
        """Whether there is nothing to recover: the last server ended cleanly, or there was none."""
        for part in _PARTS:
            # Folders of earlier releases could be read by every user of the machine.
            disk.make_private(self.path / part)
        # From now on a crash must not look like a clean stop.
        disk.unlink_if_there(clean)
        disk.sync_folder(self.path)

    def release(self, *, clean: bool) -> None:
        """Give the folder free; ``clean`` says that everything was flushed."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            if clean:
                disk.write_file(self.path / CLEAN_NAME, b"")
            disk.truncate(fd, 0)
        finally:
            disk.close(fd)


def _holder(fd: int) -> str:
    data = bytearray(32)
    count = disk.read_into_at(fd, [memoryview(data)], 0)
    text = bytes(data[:count]).decode("ascii", "replace").strip()
    return text if text.isdigit() else "unknown"
