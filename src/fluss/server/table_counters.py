# SPDX-License-Identifier: Apache-2.0
"""What happened to one table since the server started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TableCounters:
    """Counts of one table; they live and go with it.

    Plain attributes and not entries of a dict by labels: every request counts here, and a dict would cost it five
    times as much.
    """

    messages_in: int = 0
    produce_log: int = 0
    produce_log_failed: int = 0
    fetch_log: int = 0
    fetch_log_failed: int = 0
    put_kv: int = 0
    put_kv_failed: int = 0
    lookup: int = 0
    lookup_failed: int = 0
    prefix_lookup: int = 0
    prefix_lookup_failed: int = 0
    limit_scan: int = 0
    limit_scan_failed: int = 0
    remote_copy: int = 0
    """Segments copied to the remote log, or tried to."""
    remote_copy_failed: int = 0
    remote_copy_bytes: int = 0
    remote_delete: int = 0
    """Rounds in which expired segments of the remote log were deleted, or tried to."""
    remote_delete_failed: int = 0
    backpressure_rejections: int = 0
