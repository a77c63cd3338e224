# SPDX-License-Identifier: Apache-2.0
"""The connection of tiering and union reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluss.client.blocking_client import BlockingClient, shared_client
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


def session_of(options: Mapping[str, Any]) -> LakeSession:
    """The connection of this process for these client options, which many tasks share."""
    return shared_client(LakeSession, options)
