# SPDX-License-Identifier: Apache-2.0
"""The options that shape a log on disk."""

from __future__ import annotations

from dataclasses import dataclass

from fluss.server.config import ServerConfig


@dataclass(frozen=True)
class LogSettings:
    segment_bytes_max: int = 1024 * 1024 * 1024
    index_bytes_max: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    recovery_point_interval_bytes: int = 64 * 1024 * 1024
    synced: bool = True
    """Whether what is written will be flushed at once, so that the disk may as well begin."""

    @classmethod
    def from_config(cls, config: ServerConfig) -> LogSettings:
        return cls(
            # A position in an index entry is an int32.
            segment_bytes_max=min(config.integer("log.segment.file-size"), 2**31 - 1),
            index_bytes_max=config.integer("log.index.file-size"),
            index_interval_bytes=config.integer("log.index.interval-size"),
            recovery_point_interval_bytes=config.integer("log.recovery-point.interval-size"),
            synced=config.text("log.commit.sync") == "group",
        )
