# SPDX-License-Identifier: Apache-2.0
"""The few file operations the catalog needs, in one place, so that tests can cut the power between any two of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


class FileLayer:
    """Durable file operations on the local disk.

    Every step that changes the disk is one method, so a test subclass can fail before any of them and check that
    reopening the catalog gives either the state before the change or the state after it.
    """

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a whole file and force it to disk; the name is a temporary one that nobody reads."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def keep_previous(self, path: Path, previous: Path) -> None:
        """Keep what ``path`` holds now under another name (a second link where the file system has them)."""
        spare = previous.with_name(previous.name + ".tmp")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(spare)
        try:
            os.link(path, spare)
        except FileNotFoundError:
            return
        except OSError:
            shutil.copyfile(path, spare)
        os.replace(spare, previous)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or a folder; the moment a change becomes the truth."""
        os.replace(source, target)

    def make_dir(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def sync_dir(self, path: Path) -> None:
        """Make the renames inside a folder survive a power cut."""
        if os.name == "nt":  # Windows has no handle for this; its renames are journalled
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def unlink(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
