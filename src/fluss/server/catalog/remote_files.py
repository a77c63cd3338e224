# SPDX-License-Identifier: Apache-2.0
"""Small files below the remote data directory, a local folder, an object store or any URI that Arrow knows."""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyarrow import fs

from fluss.errors import InvalidArgumentError
from fluss.net.filesystems import open_filesystem
from fluss.server.catalog.files import FileLayer

SMALL_FILE_BYTES_MAX = 256 * 1024 * 1024


class RemoteFiles:
    """Names are full paths as told to clients: the configured root and what follows it."""

    def __init__(
        self, root: str, files: FileLayer | None = None, store_options: Mapping[str, str] | None = None
    ) -> None:
        self.root = root.rstrip("/") or "/"
        self._files = files or FileLayer()
        self._filesystem, self._base = open_filesystem(self.root, store_options)
        self._local = isinstance(self._filesystem, fs.LocalFileSystem)

    def _inner(self, name: str) -> str:
        tail = name[len(self.root) :] if name.startswith(self.root.rstrip("/") + "/") else None
        # A path from the wire may only reach what this server wrote below its own root.
        if tail is None or ".." in tail.split("/"):
            raise InvalidArgumentError(f"the path '{name}' is not below the remote data directory")
        return posixpath.join(self._base, tail.lstrip("/"))

    def write(self, folder: str, suffix: str, data: bytes) -> str:
        """Write a new file with a name of its own; returns the name."""
        name = f"{self.root.rstrip('/')}/{folder}/{uuid.uuid4()}{suffix}"
        inner = self._inner(name)
        if self._local:
            path = Path(inner)
            self._files.make_dir(path.parent)
            temporary = path.with_name(path.name + ".tmp")
            self._files.write_new(temporary, data)
            self._files.rename(temporary, path)
            self._files.sync_dir(path.parent)
        else:
            with self._filesystem.open_output_stream(inner) as stream:
                stream.write(data)
        return name

    def read(self, name: str) -> bytes:
        inner = self._inner(name)
        info = self._filesystem.get_file_info(inner)
        if info.type != fs.FileType.File:
            raise InvalidArgumentError(f"the file '{name}' does not exist")
        if info.size is not None and info.size > SMALL_FILE_BYTES_MAX:
            raise InvalidArgumentError(f"the file '{name}' has {info.size} bytes, too many for an offsets file")
        with self._filesystem.open_input_stream(inner) as stream:
            return bytes(stream.read(SMALL_FILE_BYTES_MAX))

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError, InvalidArgumentError):
            self._filesystem.delete_file(self._inner(name))

    def remove_all(self, names: Iterable[str]) -> None:
        for name in names:
            self.remove(name)

    def remove_folder(self, folder: str) -> None:
        with contextlib.suppress(OSError, InvalidArgumentError):
            self._filesystem.delete_dir(self._inner(f"{self.root.rstrip('/')}/{folder}"))
