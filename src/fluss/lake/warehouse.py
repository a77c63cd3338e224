# SPDX-License-Identifier: Apache-2.0
"""Lakes without a catalog: every table is a folder of a warehouse with numbered versions. Delta and Lance are such."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import pyarrow.fs as pafs

from fluss.errors import ConfigError
from fluss.lake.api import Lake, OpenLakeTable, Options
from fluss.metadata import TablePath
from fluss.net.filesystems import open_filesystem

_STORE_OPTIONS = {
    "s3.endpoint": ("endpoint", "aws_endpoint", "endpoint_url", "aws_endpoint_url"),
    "s3.region": ("region", "aws_region"),
    "s3.access-key": ("access_key_id", "aws_access_key_id"),
    "s3.secret-key": ("secret_access_key", "aws_secret_access_key"),
    "s3.session-token": ("session_token", "aws_session_token", "aws_token"),
}
"""Options of `open_filesystem`, and the names under which Delta and Lance know them."""


class WarehouseLake(Lake):
    """A folder of tables, local or in an object store."""

    lake_format: ClassVar[str]
    suffix: ClassVar[str] = ""
    """What the folder of a table is called after its name."""

    def __init__(self, options: Options) -> None:
        self._warehouse = options.get("warehouse", "").rstrip("/")
        if not self._warehouse:
            name = self.lake_format
            raise ConfigError(
                f"the lake of format {name} has no warehouse: set datalake.{name}.warehouse on the server"
            )
        self.storage = {name: value for name, value in options.items() if name != "warehouse"}

    def uri(self, path: TablePath) -> str:
        """Where a table lies."""
        return f"{self._warehouse}/{path.database_name}/{path.table_name}{self.suffix}"


class FolderTable(OpenLakeTable):
    """One table of such a lake: its folder, whose files are named below it."""

    def __init__(self, path: TablePath, uri: str, storage: Mapping[str, str]) -> None:
        self.path = path
        self.uri = uri.removeprefix("file://")
        self.storage = dict(storage)

    @cached_property
    def _opened(self) -> tuple[pafs.FileSystem, str]:
        options = {
            name: self.storage[one]
            for name, spellings in _STORE_OPTIONS.items()
            for one in reversed(spellings)
            if one in self.storage
        }
        return open_filesystem(self.uri, options)

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The file system of the folder."""
        return self._opened[0]

    @property
    def root(self) -> str:
        """The folder, as its file system names it."""
        return self._opened[1].rstrip("/")

    def delete_file(self, file: str) -> None:
        self.filesystem.delete_file(f"{self.root}/{file}")

    def list_files(self, older_than_ms: int, folder: str = "") -> list[str]:
        """List the files that were last touched before a time, named below the folder."""
        paths = list_old_files(self.filesystem, f"{self.root}/{folder}".rstrip("/"), older_than_ms)
        return [path.removeprefix(f"{self.root}/") for path in paths]


def list_old_files(filesystem: pafs.FileSystem, root: str, older_than_ms: int) -> list[str]:
    """List the files below a folder that were last touched before a time; where that is not known, they are not old."""
    return [
        info.path
        for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        if info.type == pafs.FileType.File and info.mtime is not None and info.mtime.timestamp() * 1000 < older_than_ms
    ]
