# SPDX-License-Identifier: Apache-2.0
"""Options of the running server: list them, change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.metadata.cluster_config import ConfigEntry

if TYPE_CHECKING:
    from fluss.db.blocking import Database


def server_options(db: Database) -> list[ConfigEntry]:
    """The options that are set, by name, and where each comes from.

    Example:
        values = {entry.key: entry.value for entry in server_options(db)}
    """
    return sorted(db._bridge.run(db._core._admin.describe_cluster_configs()), key=lambda entry: entry.key)


def change_server_options(db: Database, changes: Mapping[str, str | None]) -> None:
    """Set options while the server runs; None resets one to what the server was started with.

    Example:
        change_server_options(db, {"kv.snapshot.interval": "5min"})
    """
    db._bridge.run(db._core._admin.alter_cluster_configs(changes))
