# SPDX-License-Identifier: Apache-2.0
"""Leases on snapshots: while a reader has one, the snapshot and the changelog after it stay."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket
from fluss.server import disk
from fluss.server.catalog.documents import json_text

logger = logging.getLogger("fluss.server.kv")

LEASES_NAME = "kv-snapshot-leases"
_LEASES_MAX = 10_000
_LEASES_PER_OWNER_MAX = 1_000
_SNAPSHOTS_PER_OWNER_MAX = 100_000
"""All of them are written with every change."""
_ID_LENGTH_MAX = 256
_DURATION_MS_MAX = 366 * 24 * 3600 * 1000


@dataclass
class Lease:
    """What one reader holds."""

    expires_ms: int
    snapshots: dict[TableBucket, int] = field(default_factory=dict)


def lease_key(owner: str, name: str) -> str:
    """Name a lease of an owner, so that no other owner has one with the same id."""
    return f"{quote(owner, safe=':')}/{name}"


class SnapshotLeases:
    """All leases of a server. They survive a restart.

    The id of a lease is that of its owner, `/`, and a name, as `lease_key` makes it.

    Methods belong to the event loop, but for `save`, which runs in a thread with what `copy` returned.
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

    def copy(self) -> dict[str, Lease]:
        """What `save` writes."""
        return {lease_id: Lease(one.expires_ms, dict(one.snapshots)) for lease_id, one in self._leases.items()}

    def save(self, leases: Mapping[str, Lease]) -> None:
        found = {
            lease_id: {
                "expires_ms": lease.expires_ms,
                "snapshots": [[b.table_id, b.partition_id, b.bucket_id, n] for b, n in lease.snapshots.items()],
            }
            for lease_id, lease in leases.items()
        }
        body = json_text(found).encode()
        disk.write_atomically(self._path, body + b"\n" + f"{zlib.crc32(body):08x}".encode() + b"\n")
        disk.sync_folder(self._path.parent)

    def is_leased(self, bucket: TableBucket, snapshot_id: int) -> bool:
        """Whether a reader holds a snapshot now."""
        now_ms = self._now_ms()
        return any(
            lease.expires_ms >= now_ms and lease.snapshots.get(bucket) == snapshot_id for lease in self._leases.values()
        )

    def acquire(self, lease_id: str, duration_ms: int, snapshots: Mapping[TableBucket, int]) -> None:
        """Begin or prolong a lease. It holds one snapshot per bucket: the one that was named last.

        One that would hold nothing is not begun.
        """
        if not lease_id or len(lease_id) > _ID_LENGTH_MAX:
            raise InvalidArgumentError(f"the id of a lease has 1 to {_ID_LENGTH_MAX} characters, not {len(lease_id)}")
        if not 0 < duration_ms <= _DURATION_MS_MAX:
            raise InvalidArgumentError(f"a lease lasts 1 to {_DURATION_MS_MAX} ms, not {duration_ms}")
        self.expire()
        if lease_id not in self._leases and not snapshots:
            return
        self._check_room(lease_id, snapshots)
        lease = self._leases.setdefault(lease_id, Lease(0))
        lease.expires_ms = self._now_ms() + duration_ms
        lease.snapshots.update(snapshots)

    def _check_room(self, lease_id: str, snapshots: Mapping[TableBucket, int]) -> None:
        """Refuse a lease too many, of this owner or of all."""
        owner = lease_id.partition("/")[0]
        own = [lease for other, lease in self._leases.items() if other.partition("/")[0] == owner]
        known = self._leases.get(lease_id)
        if known is None:
            for count, limit, who in (
                (len(self._leases), _LEASES_MAX, "the server has"),
                (len(own), _LEASES_PER_OWNER_MAX, f"{owner} has"),
            ):
                if count >= limit:
                    raise InvalidArgumentError(f"{who} {limit} leases of snapshots, its limit. Drop some first.")
        added = len(snapshots) if known is None else len(snapshots.keys() - known.snapshots.keys())
        if added and sum(len(lease.snapshots) for lease in own) + added > _SNAPSHOTS_PER_OWNER_MAX:
            raise InvalidArgumentError(
                f"the leases of {owner} would hold more than {_SNAPSHOTS_PER_OWNER_MAX} snapshots of buckets. "
                "Release some first."
            )

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

    def drop_buckets(self, matches: Callable[[TableBucket], bool]) -> None:
        """Remove buckets that were dropped from all leases."""
        for lease in self._leases.values():
            for bucket in [bucket for bucket in lease.snapshots if matches(bucket)]:
                del lease.snapshots[bucket]
