# SPDX-License-Identifier: Apache-2.0
"""Leases on snapshots: while a reader has one, the snapshot and the changelog after it stay."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket
from fluss.server import disk

logger = logging.getLogger("fluss.server.kv")

LEASES_NAME = "kv-snapshot-leases"
_LEASES_MAX = 10_000
_ID_LENGTH_MAX = 256
_DURATION_MS_MAX = 366 * 24 * 3600 * 1000


@dataclass
class Lease:
    """What one reader holds."""

    expires_ms: int
    snapshots: dict[TableBucket, int] = field(default_factory=dict)


class SnapshotLeases:
    """All leases of a server. They survive a restart.

    Methods belong to the event loop, but for `save`, which runs in a thread with what `document` returned.
    """

    def __init__(self, folder: Path, now_ms: Callable[[], int]) -> None:
        self._path = folder / LEASES_NAME
        self._now_ms = now_ms
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def snapshot_count(self) -> int:
        """The snapshots that are held, each of them once."""
        return len({held for lease in self._leases.values() for held in lease.snapshots.items()})

    def load(self) -> None:
        """Read what was saved. What is damaged is left out: readers whose snapshot is gone start over."""
        try:
            body, _, check = disk.read_file(self._path).partition(b"\n")
            if check.strip() != f"{zlib.crc32(body):08x}".encode():
                raise ValueError("the checksum does not fit")
            for lease_id, found in json.loads(body).items():
                snapshots = {TableBucket(t, b, p): snapshot_id for t, p, b, snapshot_id in found["snapshots"]}
                self._leases[lease_id] = Lease(found["expires_ms"], snapshots)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.error("the leases of snapshots in '%s' cannot be read: %s", self._path, error)

    def document(self) -> bytes:
        """What `save` writes."""
        found = {
            lease_id: {
                "expires_ms": lease.expires_ms,
                "snapshots": [[b.table_id, b.partition_id, b.bucket_id, n] for b, n in lease.snapshots.items()],
            }
            for lease_id, lease in self._leases.items()
        }
        body = json.dumps(found).encode()
        return body + b"\n" + f"{zlib.crc32(body):08x}".encode() + b"\n"

    def save(self, document: bytes) -> None:
        disk.write_atomically(self._path, document)
        disk.sync_folder(self._path.parent)

    def is_leased(self, bucket: TableBucket, snapshot_id: int) -> bool:
        """Whether a reader holds a snapshot now."""
        now_ms = self._now_ms()
        return any(
            lease.expires_ms >= now_ms and lease.snapshots.get(bucket) == snapshot_id for lease in self._leases.values()
        )

    def acquire(self, lease_id: str, duration_ms: int, snapshots: Mapping[TableBucket, int]) -> None:
        """Begin or prolong a lease. It holds one snapshot per bucket: the one that was named last."""
        if not lease_id or len(lease_id) > _ID_LENGTH_MAX:
            raise InvalidArgumentError(f"the id of a lease has 1 to {_ID_LENGTH_MAX} characters, not {len(lease_id)}")
        if not 0 < duration_ms <= _DURATION_MS_MAX:
            raise InvalidArgumentError(f"a lease lasts 1 to {_DURATION_MS_MAX} ms, not {duration_ms}")
        self.expire()
        if lease_id not in self._leases and len(self._leases) >= _LEASES_MAX:
            raise InvalidArgumentError(f"the server has {_LEASES_MAX} leases of snapshots, its limit. Drop some first.")
        lease = self._leases.setdefault(lease_id, Lease(0))
        lease.expires_ms = self._now_ms() + duration_ms
        lease.snapshots.update(snapshots)

    def release(self, lease_id: str, buckets: Iterable[TableBucket]) -> None:
        """Give back the snapshots of some buckets. A lease that holds nothing ends."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            for bucket in buckets:
                lease.snapshots.pop(bucket, None)
            if not lease.snapshots:
                del self._leases[lease_id]

    def drop(self, lease_id: str) -> None:
        self._leases.pop(lease_id, None)

    def expire(self) -> None:
        now_ms = self._now_ms()
        self._leases = {lease_id: lease for lease_id, lease in self._leases.items() if lease.expires_ms >= now_ms}

    def forget(self, matches: Callable[[TableBucket], bool]) -> None:
        """Forget buckets that were dropped."""
        for lease in self._leases.values():
            for bucket in [bucket for bucket in lease.snapshots if matches(bucket)]:
                del lease.snapshots[bucket]
