# SPDX-License-Identifier: Apache-2.0
"""Tags of tablet servers. This server is alone, so a tag moves nothing; it is kept because operators ask for it."""

from __future__ import annotations

from collections.abc import Iterable

from fluss.errors import InvalidArgumentError, ServerNotExistError, SeverTagAlreadyExistError, SeverTagNotExistError
from fluss.server import disk
from fluss.server.catalog.documents import Damage, DamagedDocumentError
from fluss.server.catalog.storage import CatalogStorage

TAG_NAMES = {0: "PERMANENT_OFFLINE", 1: "TEMPORARY_OFFLINE"}


class ServerTags:
    def __init__(self, storage: CatalogStorage, server_id: int) -> None:
        self._storage = storage
        self._server_id = server_id
        self.damage: Damage | None = None
        self.tags: dict[int, int] = {}
        path = storage.root / "server-tags.doc"
        if disk.exists(path):
            try:
                stored = storage.store.read(path)[1]["tags"]
                self.tags = {int(server): int(tag) for server, tag in stored.items()}
            except DamagedDocumentError as error:
                self.damage = error.damage
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self.damage = Damage(path, f"cannot be understood: {error}")

    def _check(self, server_ids: Iterable[int], tag: int) -> None:
        if tag not in TAG_NAMES:
            raise InvalidArgumentError(f"Unknown server tag {tag}; known are 0 (permanent) and 1 (temporary).")
        for server_id in server_ids:
            if server_id != self._server_id:
                raise ServerNotExistError(f"Server {server_id} does not exist; the only one is {self._server_id}.")

    def plan_add(self, server_ids: list[int], tag: int) -> dict[int, int]:
        self._check(server_ids, tag)
        for server_id in server_ids:
            old = self.tags.get(server_id, tag)
            if old != tag:
                raise SeverTagAlreadyExistError(f"Server {server_id} has the tag {TAG_NAMES.get(old, old)} already.")
        return {**self.tags, **dict.fromkeys(server_ids, tag)}

    def plan_remove(self, server_ids: list[int], tag: int) -> dict[int, int]:
        self._check(server_ids, tag)
        for server_id in server_ids:
            old = self.tags.get(server_id, tag)
            if old != tag:
                raise SeverTagNotExistError(
                    f"Server {server_id} has not the tag {TAG_NAMES[tag]} but {TAG_NAMES.get(old, old)}."
                )
        return {server_id: old for server_id, old in self.tags.items() if server_id not in server_ids}

    def write(self, tags: dict[int, int]) -> None:
        self._storage.write("server-tags", {"tags": {str(server): tag for server, tag in tags.items()}})
