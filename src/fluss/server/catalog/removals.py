# SPDX-License-Identifier: Apache-2.0
"""Remote folders of tables and partitions that were dropped, until they are deleted.

A store may be out of reach when a table is dropped, or the server may be killed before it is done. What is to be
deleted is on disk before the first attempt, and is tried again until it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from fluss.errors import FlussError, InvalidArgumentError
from fluss.server.catalog.state import CatalogState
from fluss.server.remote_files import RemoteFiles

_log = logging.getLogger("fluss.server.catalog")

_DOCUMENT = "removals"
_FOLDERS_MAX = 100_000


class RemoteRemovals:
    """The remote folders to delete. Methods belong to the event loop."""

    def __init__(self, catalog: CatalogState) -> None:
        self._catalog = catalog
        self._in_work: set[str] = set()
        found, self.damage = catalog.storage.read(
            _DOCUMENT, lambda content: {str(folder): None for folder in content["folders"]}
        )
        self.folders: dict[str, None] = found or {}

    async def add(self, folder: str) -> None:
        """Make durable that a folder is to be deleted."""
        if len(self.folders) < _FOLDERS_MAX:
            self.folders[folder] = None
            self._in_work.add(folder)
            await self._save()

    async def remove(self, folder: str, files: RemoteFiles, executor: Executor) -> None:
        """Delete a folder in a thread; what fails is tried again with `retry`."""
        self._in_work.add(folder)
        try:
            gone = await asyncio.get_running_loop().run_in_executor(executor, files.remove_folder, folder)
        finally:
            self._in_work.discard(folder)
        if not gone:
            _log.warning("'%s' cannot be deleted, it is tried again later", folder)
        elif folder in self.folders:
            del self.folders[folder]
            await self._save()

    async def retry(self, files: RemoteFiles, executor: Executor) -> None:
        """Delete what is left from earlier attempts."""
        for folder in [folder for folder in self.folders if folder not in self._in_work]:
            try:
                files.check_below(folder)
            except InvalidArgumentError:
                continue  # of another remote data directory, which may be configured again
            await self.remove(folder, files, executor)

    async def _save(self) -> None:
        content = {"folders": list(self.folders)}
        try:
            await self._catalog.in_storage_thread(lambda: self._catalog.storage.write(_DOCUMENT, content))
        except (OSError, FlussError) as error:
            # The folder is deleted all the same, unless that fails and the server stops.
            _log.error("the folders that are to be deleted cannot be written down: %s", error)
