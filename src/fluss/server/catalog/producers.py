# SPDX-License-Identifier: Apache-2.0
"""Offsets a producer noted before it began to write, so that it can undo after a failure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluss.errors import UnknownServerError
from fluss.server.catalog.documents import Damage, DamagedDocumentError
from fluss.server.catalog.lake_snapshots import Offsets
from fluss.server.catalog.storage import CatalogStorage, documents

CREATED, ALREADY_EXISTS = 0, 1
PRODUCERS_MAX = 100_000
PRODUCERS_PER_OWNER_MAX = 10_000
OFFSETS_PER_OWNER_MAX = 200_000
"""Of all its registrations together: they are in memory, and are read at every start."""
PRODUCER_TTL_MS_MAX = 7 * 24 * 3600 * 1000
"""What a client may ask for at most, unless the server's own default is longer."""


@dataclass(frozen=True)
class ProducerEntry:
    producer_id: str
    expires_ms: int
    offsets: Mapping[int, Offsets]
    """End offset per table id and bucket."""
    owner: str = ""
    """The principal that registered, such as ``User:alice``; empty in documents of older releases."""

    @property
    def key(self) -> tuple[str, str]:
        return self.owner, self.producer_id


class ProducerOffsetStore:
    """One document per registration. Producer ids belong to the principal: others can neither take nor see them."""

    def __init__(self, storage: CatalogStorage, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._clock_ms = clock_ms
        self.damages: list[Damage] = []
        self._entries: dict[tuple[str, str], ProducerEntry] = {}
        for path in documents(storage.producers):
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            identity, content = self._storage.store.read(path)
            offsets = {
                int(table_id): {(partition_id, bucket): offset for partition_id, bucket, offset in items}
                for table_id, items in content["offsets"].items()
            }
            owner = str(identity.get("owner", ""))
            entry = ProducerEntry(str(identity["producer_id"]), int(content["expires_ms"]), offsets, owner)
        except DamagedDocumentError as error:
            self.damages.append(error.damage)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.damages.append(Damage(path, f"cannot be understood: {error}"))
        else:
            self._entries[entry.key] = entry

    def _path(self, entry: ProducerEntry) -> Path:
        # NUL cannot be part of a producer id, so no two registrations share a name.
        name = f"{entry.owner}\0{entry.producer_id}" if entry.owner else entry.producer_id
        return self._storage.producers / f"{hashlib.sha256(name.encode()).hexdigest()[:40]}.doc"

    def known(self, owner: str, producer_id: str) -> ProducerEntry | None:
        """Return the registration of a principal, also one that has expired but is still on disk."""
        return self._entries.get((owner, producer_id)) or self._entries.get(("", producer_id))

    def get(self, owner: str, producer_id: str) -> ProducerEntry | None:
        """Return the live registration of a principal."""
        entry = self.known(owner, producer_id)
        return entry if entry is not None and entry.expires_ms > self._clock_ms() else None

    def check_room(self, new: ProducerEntry) -> None:
        """Refuse one registration too many, of this principal or of all, or too many offsets."""
        own = [entry for entry in self._entries.values() if entry.owner == new.owner]
        offsets = sum(len(items) for entry in (*own, new) for items in entry.offsets.values())
        for count, limit, what in (
            (len(self._entries) + 1, PRODUCERS_MAX, "producers have registered offsets"),
            (len(own) + 1, PRODUCERS_PER_OWNER_MAX, f"producers of {new.owner} have registered offsets"),
            (offsets, OFFSETS_PER_OWNER_MAX, f"offsets of buckets are registered by producers of {new.owner}"),
        ):
            if count > limit:
                raise UnknownServerError(
                    f"With this producer more than {limit} {what}, the most this server keeps. Delete some or wait "
                    "until they expire."
                )

    def write(self, entry: ProducerEntry) -> None:
        offsets: dict[str, Any] = {
            str(table_id): [[partition_id, bucket, offset] for (partition_id, bucket), offset in items.items()]
            for table_id, items in entry.offsets.items()
        }
        self._storage.store.write(
            self._path(entry),
            {"kind": "producer", "producer_id": entry.producer_id, "owner": entry.owner},
            {"expires_ms": entry.expires_ms, "offsets": offsets},
        )

    def erase(self, entry: ProducerEntry) -> None:
        self._storage.store.delete(self._path(entry))

    def apply(self, entry: ProducerEntry) -> None:
        self._entries[entry.key] = entry

    def remove(self, entry: ProducerEntry) -> None:
        self._entries.pop(entry.key, None)

    def expired(self) -> list[ProducerEntry]:
        now_ms = self._clock_ms()
        return [entry for entry in self._entries.values() if entry.expires_ms <= now_ms]
