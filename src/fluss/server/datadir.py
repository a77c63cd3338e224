# SPDX-License-Identifier: Apache-2.0
"""The data folder belongs to one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from fluss.errors import ConfigError

LOCK_NAME = ".lock"
CLEAN_NAME = ".clean-shutdown"


class DataDir:
    """A locked data folder. The operating system frees the lock when the process ends, however it ends."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot use the data folder '{self.path}': {error.strerror}.") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(self._fd)
            os.close(self._fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise ConfigError(f"cannot lock the data folder '{self.path}': {error.strerror}.") from None
            raise ConfigError(
                f"the data folder '{self.path}' is in use by the server with process id {holder}. "
                "Stop that server or choose another folder with --data-dir."
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        clean = self.path / CLEAN_NAME
        self.was_clean = clean.exists()
        # From now on a crash must not look like a clean stop.
        clean.unlink(missing_ok=True)

    def release(self, *, clean: bool) -> None:
        """Give the folder free; ``clean`` says that everything was flushed."""
        if self._fd < 0:
            return
        if clean:
            fd = os.open(self.path / CLEAN_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    return text if text.isdigit() else "unknown"
