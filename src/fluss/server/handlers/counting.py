# SPDX-License-Identifier: Apache-2.0
"""What requests move, by table and by user."""

from __future__ import annotations

from fluss.errors import RequestTimeOutError
from fluss.server.auth import ANONYMOUS
from fluss.server.catalog import TableEntry
from fluss.server.handlers.request import RequestContext


def count_bytes_in(context: RequestContext, entry: TableEntry, size_bytes: int) -> None:
    """Count bytes that a request writes to a table."""
    metrics = context.server.metrics
    metrics.add("tabletserver_table_bytesIn_total", size_bytes, entry.labels)
    metrics.add("tabletserver_bytesIn_total", size_bytes)
    principal = context.session.principal
    if principal is not ANONYMOUS:
        metrics.add("tabletserver_user_bytesIn", size_bytes, (("user", principal.name), *entry.labels))


def count_bytes_out(context: RequestContext, entry: TableEntry, size_bytes: int) -> None:
    """Count bytes that a request reads from a table."""
    metrics = context.server.metrics
    metrics.add("tabletserver_table_bytesOut_total", size_bytes, entry.labels)
    principal = context.session.principal
    if principal is not ANONYMOUS:
        metrics.add("tabletserver_user_bytesOut", size_bytes, (("user", principal.name), *entry.labels))


def count_messages_in(context: RequestContext, entry: TableEntry, messages: int) -> None:
    """Count records that a request has written to a table."""
    entry.counters.messages_in += messages
    context.server.metrics.add("tabletserver_messagesIn_total", messages)


def count_expired(context: RequestContext, error: Exception) -> None:
    """Count a write that was not committed in time."""
    if isinstance(error, RequestTimeOutError):
        context.server.metrics.add("tabletserver_delayedWriteExpires_total")
