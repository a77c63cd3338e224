# SPDX-License-Identifier: Apache-2.0
"""Where a running server tells programs on the same machine how to reach it: a file in its data folder.

The file may be left over from a server that was killed, so the lock of the folder decides whether it counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from fluss.server.datadir import LOCK_NAME

ADDRESS_NAME = ".address"


def record_addresses(data_dir: str | Path, addresses: Sequence[str]) -> None:
    """Write the addresses of a server that is ready, one a line; complete or not at all."""
    path = Path(data_dir) / ADDRESS_NAME
    written = path.with_name(f"{ADDRESS_NAME}.{os.getpid()}")
    written.write_text("".join(f"{address}\n" for address in addresses), encoding="utf-8")
    written.replace(path)


def forget_addresses(data_dir: str | Path) -> None:
    """Remove the file of a server that stops."""
    with contextlib.suppress(OSError):
        (Path(data_dir) / ADDRESS_NAME).unlink(missing_ok=True)


def live_addresses(data_dir: str | Path) -> list[str]:
    """The addresses of the server that runs on a folder; empty if none does, or if it is still starting.

    Example:
        addresses = live_addresses("./fluss-data")
    """
    if not is_in_use(data_dir):
        return []
    try:
        return (Path(data_dir) / ADDRESS_NAME).read_text(encoding="utf-8").split()
    except OSError:
        return []


def is_in_use(data_dir: str | Path) -> bool:
    """Whether a server holds the lock of a folder, or one of an earlier release that of its lock file."""
    return any(_is_locked(path) for path in (Path(data_dir), Path(data_dir) / LOCK_NAME))


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
