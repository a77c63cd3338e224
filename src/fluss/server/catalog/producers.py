# SPDX-License-Identifier: Apache-2.0
"""Offsets a producer noted before it began to write, so that it can undo after a failure."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluss.errors import UnknownServerError
from fluss.server.catalog.documents import Damage, DamagedDocumentError
from fluss.server.catalog.lake_snapshots import Offsets
from fluss.server.catalog.storage import CatalogStorage, documents

_log = logging.getLogger("fluss.server.catalog")

CREATED, ALREADY_EXISTS = 0, 1
PRODUCERS_MAX = 100_000


@dataclass(frozen=True)
class ProducerEntry:
    producer_id: str
    expires_ms: int
    offsets: Mapping[int, Offsets]
    """End offset per table id and bucket."""


class ProducerOffsets:
    """One document per producer."""

    def __init__(self, storage: CatalogStorage, clock_ms: Callable[[], int]) -> None:
        self._storage = storage
        self._clock_ms = clock_ms
        self.damages: list[Damage] = []
        self._entries: dict[str, ProducerEntry] = {}
        for path in documents(storage.producers):
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            identity, content = self._storage.store.read(path)
            offsets = {
                int(table_id): {(partition_id, bucket): offset for partition_id, bucket, offset in items}
                for table_id, items in content["offsets"].items()
            }
            entry = ProducerEntry(str(identity["producer_id"]), int(content["expires_ms"]), offsets)
        except DamagedDocumentError as error:
            self.damages.append(error.damage)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.damages.append(Damage(path, f"cannot be understood: {error}"))
        else:
            self._entries[entry.producer_id] = entry

    def _path(self, producer_id: str) -> Path:
        return self._storage.producers / f"{hashlib.sha256(producer_id.encode()).hexdigest()[:40]}.doc"

    def get(self, producer_id: str) -> ProducerEntry | None:
        entry = self._entries.get(producer_id)
        return entry if entry is not None and entry.expires_ms > self._clock_ms() else None

    def check_room(self) -> None:
        if len(self._entries) >= PRODUCERS_MAX:
            raise UnknownServerError(
                f"{PRODUCERS_MAX} producers have registered offsets, the most this server keeps. Delete some or wait "
                "until they expire."
            )

    def write(self, entry: ProducerEntry) -> None:
        offsets: dict[str, Any] = {
            str(table_id): [[partition_id, bucket, offset] for (partition_id, bucket), offset in items.items()]
            for table_id, items in entry.offsets.items()
        }
        self._storage.store.write(
            self._path(entry.producer_id),
            {"kind": "producer", "producer_id": entry.producer_id},
            {"expires_ms": entry.expires_ms, "offsets": offsets},
        )

    def erase(self, producer_id: str) -> None:
        self._storage.store.delete(self._path(producer_id))

    def apply(self, entry: ProducerEntry) -> None:
        self._entries[entry.producer_id] = entry

    def forget(self, producer_id: str) -> None:
        self._entries.pop(producer_id, None)

    def known(self, producer_id: str) -> ProducerEntry | None:
        """Also one that has expired but is still on disk."""
        return self._entries.get(producer_id)

    def expired(self) -> list[str]:
        now_ms = self._clock_ms()
        return [entry.producer_id for entry in self._entries.values() if entry.expires_ms <= now_ms]
