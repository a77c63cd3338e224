# SPDX-License-Identifier: Apache-2.0
"""The few file operations the catalog needs, in one place, so that tests can cut the power between any two of them."""

from __future__ import annotations

from pathlib import Path

from fluss.server import disk


class FileLayer:
    """Durable file operations on the local disk.

    Every step that changes the disk is one method, so a test subclass can fail before any of them and check that
    reopening the catalog gives either the state before the change or the state after it.
    """

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a whole file and force it to disk; the name is a temporary one that is never read."""
        disk.write_file(path, data)

    def keep_previous(self, path: Path, previous: Path) -> None:
        """Keep what ``path`` holds now under another name (a second link where the file system has them)."""
        spare = previous.with_name(previous.name + ".tmp")
        disk.unlink_if_there(spare)
        try:
            disk.link(path, spare)
        except FileNotFoundError:
            return
        except OSError:
            disk.copy_file(path, spare)
        disk.rename(spare, previous)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or a folder; the moment a change becomes the truth."""
        disk.rename(source, target)

    def make_dir(self, path: Path) -> None:
        disk.make_folders(path)

    def sync_dir(self, path: Path) -> None:
        """Make the renames inside a folder survive a power cut."""
        disk.sync_folder(path)

    def unlink(self, path: Path) -> None:
        disk.unlink_if_there(path)

    def remove_tree(self, path: Path) -> None:
        disk.remove_tree(path)
