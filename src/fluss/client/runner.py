# SPDX-License-Identifier: Apache-2.0
"""The seam between the two faces: where an operation of the client runs.

Classes whose waiting calls are all awaited (the admin, lookups) are the same in `fluss` and `fluss.aio`; they hold a
`Runner` and never ask which. `Direct` runs on the caller's own loop; `Background` is in `background.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from fluss.client.cluster import Cluster

T = TypeVar("T")


class Runner(Protocol):
    """Runs operations on the loop that a cluster lives on."""

    @property
    def cluster(self) -> Cluster: ...

    async def run(self, op: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Run `op(cluster)` on the cluster's loop and give its result."""
        ...


class Direct:
    """For `fluss.aio`: the caller is already on the cluster's loop."""

    __slots__ = ("cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def run(self, op: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        return await op(self.cluster)
