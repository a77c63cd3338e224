# SPDX-License-Identifier: Apache-2.0
"""One connection per process and set of client options, for blocking code; many tasks share it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from fluss.client.blocking_client import BlockingClient
from fluss.client.scan import TableScan
from fluss.errors import LakeSnapshotNotExistError
from fluss.metadata import LakeSnapshot, TablePath


class LakeSession(BlockingClient):
    """A connection with the questions that tiering and union reads ask."""

    def scan(self, path: TablePath) -> TableScan:
        table = self.table(path)
        return self.call(table.new_scan)

    def lake_snapshot(self, path: TablePath, *, readable: bool = False) -> LakeSnapshot | None:
        """The newest snapshot the server knows; None if there is none."""
        ask = self.admin.get_readable_lake_snapshot if readable else self.admin.get_latest_lake_snapshot
        try:
            return self.run(ask(path))
        except LakeSnapshotNotExistError:
            return None


_lock = threading.Lock()
_sessions: dict[tuple[Any, ...], LakeSession] = {}


def session_of(options: Mapping[str, Any]) -> LakeSession:
    """The connection of this process for these client options."""
    key = (os.getpid(), *sorted((name, str(value)) for name, value in options.items()))
    with _lock:
        session = _sessions.get(key)
        if session is None or session.closed:
            session = _sessions[key] = LakeSession(options)
        return session


def close_sessions() -> None:
    """Close every connection of this process."""
    with _lock:
        for session in _sessions.values():
            session.close()
        _sessions.clear()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
