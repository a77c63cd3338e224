# SPDX-License-Identifier: Apache-2.0
"""What all parts of the admin share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from fluss.client.runner import Runner
from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket, TablePath
from fluss.net.deadline import Deadline
from fluss.protocol import Api
from fluss.protocol import messages as pb

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class AdminBase:
    """Sends requests to the coordinator, on whatever loop the cluster lives."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def _deadline(self, timeout: float | Deadline | None) -> Deadline:
        """Make the one deadline of a call: `timeout` in seconds, or the configured default."""
        return self._runner.cluster.deadline(timeout)

    async def _ask(
        self, api: Api[RequestT, ResponseT], request: RequestT, *, timeout: float | Deadline | None
    ) -> ResponseT:
        """Send a question, or a change that may safely be made twice."""
        deadline = self._deadline(timeout)
        return await self._runner.ask(lambda cluster: cluster.call_coordinator(api, request, deadline=deadline))

    async def _change(
        self,
        api: Api[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout: float | Deadline | None,
        idempotent: bool = False,
    ) -> ResponseT:
        """Send a change; it is sent again after a lost connection only if making it twice does no harm."""
        deadline = self._deadline(timeout)

        async def change(cluster: Cluster) -> ResponseT:
            try:
                return await cluster.call_coordinator(api, request, idempotent=idempotent, deadline=deadline)
            finally:
                cluster.changed()  # it may have been made even if the answer was lost

        return await self._runner.ask(change)

    async def _invalidate(self, table_path: TablePath) -> None:
        """Invalidate what the client knows of a table that was changed."""

        async def invalidate(cluster: Cluster) -> None:
            cluster.metadata.invalidate_table(table_path)

        await self._runner.ask(invalidate)


def check_name(name: object, what: str) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"The {what} must be a non-empty string, got {name!r}")
    return name


def bucket_message(bucket: TableBucket) -> pb.PbTableBucket:
    return pb.PbTableBucket(table_id=bucket.table_id, partition_id=bucket.partition_id, bucket_id=bucket.bucket_id)
