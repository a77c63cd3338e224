# SPDX-License-Identifier: Apache-2.0
"""The servers of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

COORDINATOR_SERVER = "CoordinatorServer"
TABLET_SERVER = "TabletServer"


@dataclass(frozen=True)
class ServerNode:
    """One server of the cluster."""

    id: int
    host: str
    port: int
    server_type: str
    """``CoordinatorServer`` or ``TabletServer``."""

    @property
    def uid(self) -> str:
        """A name that is unique in the cluster: ``cs-0``, ``ts-1``."""
        return f"{'cs' if self.server_type == COORDINATOR_SERVER else 'ts'}-{self.id}"

    def __str__(self) -> str:
        return f"{self.uid} at {self.host}:{self.port}"
