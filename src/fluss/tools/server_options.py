# SPDX-License-Identifier: Apache-2.0
"""Options of the running server: list them, change them, and find the data folder that they name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fluss.db.internals import admin_call
from fluss.errors import FlussError
from fluss.metadata.cluster_config import ConfigEntry

if TYPE_CHECKING:
    from fluss.db.blocking import Database


def server_options(db: Database) -> list[ConfigEntry]:
    """The options that are set, by name, and where each comes from.

    Example:
        values = {entry.key: entry.value for entry in server_options(db)}
    """
    return sorted(admin_call(db, lambda admin: admin.describe_cluster_configs()), key=lambda entry: entry.key)


def change_server_options(db: Database, changes: Mapping[str, str | None]) -> None:
    """Set options while the server runs; None resets one to what the server was started with.

    Example:
        change_server_options(db, {"kv.snapshot.interval": "5min"})
    """
    admin_call(db, lambda admin: admin.alter_cluster_configs(changes))


def data_folder(db: Database) -> Path | None:
    """The data folder of the server if it is on this machine and can be read; None otherwise.

    Example:
        folder = data_folder(db)
    """
    with contextlib.suppress(FlussError, OSError):
        for entry in server_options(db):
            if entry.key == "data.dir" and entry.value:
                folder = Path(entry.value)
                # Another machine may have a folder of this name: the server writes its address there.
                if folder.is_absolute() and (folder / ".address").exists():
                    return folder
    return None


def folder_size(folder: Path) -> int:
    """The bytes of all files of a folder; files that vanish meanwhile do not count.

    Example:
        folder_size(Path("fluss-data"))
    """
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
