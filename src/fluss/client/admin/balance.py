# SPDX-License-Identifier: Apache-2.0
"""Server tags and rebalancing. A single server answers as a cluster of one node: there is nothing to move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from fluss.client.admin.base import AdminBase
from fluss.client.requests import bucket_from
from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket
from fluss.metadata.checks import check_optional_string
from fluss.protocol import apis
from fluss.protocol import messages as pb


class ServerTag(IntEnum):
    """What is planned for a tablet server. The numbers are those of the protocol."""

    PERMANENT_OFFLINE = 0
    """It will be taken away: a rebalance moves everything off it."""
    TEMPORARY_OFFLINE = 1
    """It will be back, for instance after an upgrade: a rebalance moves its leaders."""


class GoalType(IntEnum):
    """What a rebalance aims at."""

    REPLICA_DISTRIBUTION = 0
    """As many replicas on every server."""
    LEADER_DISTRIBUTION = 1
    """As many leaders on every server."""
    RACK_AWARE = 2
    """As many replicas on every server, and those of a bucket in different racks."""


class RebalanceStatus(IntEnum):
    """The state of a rebalance, or of one bucket of it."""

    NOT_STARTED = 0
    REBALANCING = 1
    FAILED = 2
    COMPLETED = 3
    CANCELED = 4
    TIMEOUT = 5

    @property
    def is_final(self) -> bool:
        """Whether it will not change any more."""
        return self not in (RebalanceStatus.NOT_STARTED, RebalanceStatus.REBALANCING)


@dataclass(frozen=True)
class BucketMove:
    """What a rebalance does with one bucket."""

    original_leader: int | None
    new_leader: int | None
    original_replicas: tuple[int, ...]
    new_replicas: tuple[int, ...]
    status: RebalanceStatus


@dataclass(frozen=True)
class RebalanceProgress:
    """How far a rebalance is."""

    rebalance_id: str
    status: RebalanceStatus
    buckets: dict[TableBucket, BucketMove] = field(default_factory=dict)

    @property
    def progress(self) -> float | None:
        """The share of buckets that are done, 0.0 to 1.0; None when there is nothing to move."""
        if not self.buckets:
            return None
        return sum(move.status.is_final for move in self.buckets.values()) / len(self.buckets)


EnumT = TypeVar("EnumT", bound=IntEnum)


class BalanceAdmin(AdminBase):
    """Tags of tablet servers, and moving buckets between them."""

    async def add_server_tag(
        self, tablet_servers: Sequence[int], server_tag: ServerTag | str, *, timeout: float | None = None
    ) -> None:
        """Tag tablet servers (by their ids), all of them or none. A server has one tag at most.

        Example:
            await admin.add_server_tag([2], fluss.ServerTag.PERMANENT_OFFLINE)
        """
        tag = _member(ServerTag, server_tag)
        request = pb.AddServerTagRequest(server_ids=_ids(tablet_servers), server_tag=int(tag))
        await self._change(apis.ADD_SERVER_TAG, request, timeout=timeout, idempotent=True)

    async def remove_server_tag(
        self, tablet_servers: Sequence[int], server_tag: ServerTag | str, *, timeout: float | None = None
    ) -> None:
        """Take a tag off tablet servers, all of them or none. A server without any tag is no error.

        Example:
            await admin.remove_server_tag([2], fluss.ServerTag.PERMANENT_OFFLINE)
        """
        tag = _member(ServerTag, server_tag)
        request = pb.RemoveServerTagRequest(server_ids=_ids(tablet_servers), server_tag=int(tag))
        await self._change(apis.REMOVE_SERVER_TAG, request, timeout=timeout, idempotent=True)

    async def add_server_tag_by_rack(
        self, racks: Sequence[str], server_tag: ServerTag | str, *, timeout: float | None = None
    ) -> None:
        """Tag all tablet servers of some racks, all of them or none (Apache Fluss 1.0 and later).

        Example:
            await admin.add_server_tag_by_rack(["rack-1"], fluss.ServerTag.TEMPORARY_OFFLINE)
        """
        request = pb.AddServerTagByRackRequest(racks=_racks(racks), server_tag=int(_member(ServerTag, server_tag)))
        await self._change(apis.ADD_SERVER_TAG_BY_RACK, request, timeout=timeout, idempotent=True)

    async def remove_server_tag_by_rack(
        self, racks: Sequence[str], server_tag: ServerTag | str, *, timeout: float | None = None
    ) -> None:
        """Take a tag off all tablet servers of some racks (Apache Fluss 1.0 and later).

        Example:
            await admin.remove_server_tag_by_rack(["rack-1"], fluss.ServerTag.TEMPORARY_OFFLINE)
        """
        request = pb.RemoveServerTagByRackRequest(racks=_racks(racks), server_tag=int(_member(ServerTag, server_tag)))
        await self._change(apis.REMOVE_SERVER_TAG_BY_RACK, request, timeout=timeout, idempotent=True)

    async def rebalance(self, priority_goals: Sequence[GoalType | str], *, timeout: float | None = None) -> str:
        """Start to balance the cluster towards the goals, the most important first; return the id of the rebalance.

        Example:
            rebalance_id = await admin.rebalance([fluss.GoalType.REPLICA_DISTRIBUTION])
        """
        goals = [int(_member(GoalType, goal)) for goal in priority_goals]
        if not goals:
            raise InvalidArgumentError(
                "a rebalance needs at least one goal, for instance GoalType.REPLICA_DISTRIBUTION"
            )
        response = await self._change(apis.REBALANCE, pb.RebalanceRequest(goals=goals), timeout=timeout)
        return response.rebalance_id

    async def list_rebalance_progress(
        self, rebalance_id: str | None = None, *, timeout: float | None = None
    ) -> RebalanceProgress | None:
        """How far a rebalance is; without an id the last one. None if the cluster knows of none.

        Example:
            progress = await admin.list_rebalance_progress(rebalance_id)
            done = progress is None or progress.status.is_final
        """
        check_optional_string("rebalance_id", rebalance_id)
        request = pb.ListRebalanceProgressRequest(rebalance_id=rebalance_id)
        response = await self._ask(apis.LIST_REBALANCE_PROGRESS, request, timeout=timeout)
        if not response.HasField("rebalance_id"):
            return None
        moves: dict[TableBucket, BucketMove] = {}
        for table in response.table_progress:
            for part in table.buckets_progress:
                plan = part.rebalance_plan
                moves[bucket_from(table.table_id, plan)] = BucketMove(
                    plan.original_leader if plan.HasField("original_leader") else None,
                    plan.new_leader if plan.HasField("new_leader") else None,
                    tuple(plan.original_replicas),
                    tuple(plan.new_replicas),
                    RebalanceStatus(part.rebalance_status),
                )
        return RebalanceProgress(response.rebalance_id, RebalanceStatus(response.rebalance_status), moves)

    async def cancel_rebalance(self, rebalance_id: str | None = None, *, timeout: float | None = None) -> None:
        """Stop a rebalance; without an id the one in progress. Nothing happens if there is none.

        Example:
            await admin.cancel_rebalance(rebalance_id)
        """
        check_optional_string("rebalance_id", rebalance_id)
        await self._change(apis.CANCEL_REBALANCE, pb.CancelRebalanceRequest(rebalance_id=rebalance_id), timeout=timeout)


def _ids(tablet_servers: Sequence[int]) -> list[int]:
    if isinstance(tablet_servers, int) or not tablet_servers:
        raise InvalidArgumentError(f"expected a list of ids of tablet servers, such as [0], got {tablet_servers!r}")
    return list(tablet_servers)


def _racks(racks: Sequence[str]) -> list[str]:
    if isinstance(racks, str) or not racks or not all(racks):
        raise InvalidArgumentError(f"expected a list of names of racks, such as ['rack-1'], got {racks!r}")
    return list(racks)


def _member(kind: type[EnumT], value: EnumT | str) -> EnumT:
    if isinstance(value, kind):
        return value
    found = kind.__members__.get(value.upper()) if isinstance(value, str) else None
    if found is None:
        raise InvalidArgumentError(f"{value!r} is no {kind.__name__}: expected one of {', '.join(kind.__members__)}")
    return found
