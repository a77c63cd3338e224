# SPDX-License-Identifier: Apache-2.0
"""The one module that touches files: what it composes, and that nothing in the server goes around it."""

from __future__ import annotations

import ast
import errno
import os
import stat
from pathlib import Path
from unittest import mock

import pytest
from tests.server.log_support import connected, make_batch, run, running_server
from tests.shared import raising

import fluss.server
from fluss.errors import FlussError
from fluss.server import disk
from fluss.server.datadir import CLEAN_NAME, DataDir

SERVER = Path(fluss.server.__file__).parent

# What they open is not the data of the server: they run in the process of the caller, before there is a data folder,
# report its address to other processes, ask the system about this process, read what an operator configured, or write
# RocksDB.
ELSEWHERE = {
    "certificates.py", "config.py", "inspection.py", "kv/rocksdb.py", "local.py", "data_metrics.py", "tls.py",
    "users.py", "disk.py",
}  # fmt: skip
FILE_MODULES = {"mmap", "shutil", "fcntl", "tempfile", "io"}
# Of `os`, what has nothing to do with files; `read` is for pipes.
OS_ALLOWED = {
    "environ", "getpid", "name", "cpu_count", "strerror", "read", "register_at_fork", "kill", "getenv", "urandom",
}  # fmt: skip
PATH_METHODS = {
    "chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "iterdir", "mkdir", "read_bytes", "read_text",
    "rename", "rglob", "rmdir", "stat", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
DISK_OWN = {"rename", "unlink", "exists"}
"""Names of our own objects as well: `disk.rename`, `files.unlink`."""


def violations(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [f"{node.lineno}: import {name.name}" for name in node.names if name.name in FILE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            if node.module in FILE_MODULES | {"os"}:
                found.append(f"{node.lineno}: from {node.module}")
            if node.module == "fluss.server.disk" and {name.name for name in node.names} - {"Buffer", "StrPath"}:
                found.append(f"{node.lineno}: functions of disk must be called as disk.…, or they cannot be replaced")
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "open":
                found.append(f"{node.lineno}: open()")
            if isinstance(function, ast.Attribute) and function.attr in PATH_METHODS:
                owner = function.value
                name = (
                    owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
                )
                if not (function.attr in DISK_OWN and name in ("disk", "files", "_files")):
                    found.append(f"{node.lineno}: .{function.attr}()")
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and node.attr not in OS_ALLOWED
        ):
            found.append(f"{node.lineno}: os.{node.attr}")
    return found


def test_nothing_in_the_server_touches_files_but_the_disk_module() -> None:
    found = {
        f"{path.relative_to(SERVER)}:{line}"
        for path in SERVER.rglob("*.py")
        if str(path.relative_to(SERVER)) not in ELSEWHERE
        for line in violations(path.read_text())
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    ["open('x')", "import os\nos.replace('a', 'b')", "path.unlink()", "from os import fsync", "import shutil",
     "from fluss.server.disk import rename"],
)  # fmt: skip
def test_a_way_around_the_disk_module_is_found(source: str) -> None:
    assert violations(source)


def test_new_folders_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    disk.make_folders(folder)
    disk.make_folders(folder)
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o700
    disk.write_atomically(folder / "file", b"content")
    assert disk.read_file(folder / "file") == b"content"
    assert stat.S_IMODE(os.stat(folder / "file").st_mode) == 0o600
    assert disk.names(folder) == ["file"]


@pytest.mark.parametrize("kind", ["make_folder", "sync"])
def test_folders_of_a_failed_attempt_are_made_durable_by_the_next(tmp_path: Path, kind: str) -> None:
    """Otherwise a power cut would take one with all that was put into it meanwhile."""
    folder = tmp_path / "a" / "b"
    calls = 0
    real = getattr(disk, kind)

    def fail_second(*args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "no room")
        real(*args)

    with mock.patch.object(disk, kind, fail_second), pytest.raises(OSError, match="no room"):
        disk.make_folders_durably(folder, tmp_path)
    assert flushed_by_another_attempt(folder, tmp_path) == [tmp_path.name, "a"]


def test_folders_that_a_killed_process_made_are_flushed(tmp_path: Path) -> None:
    """Those below the root: who named it vouches for its own name."""
    folder = tmp_path / "root" / "a" / "b"
    folder.mkdir(parents=True)
    assert flushed_by_another_attempt(folder, tmp_path / "root") == ["root", "a"]


def flushed_by_another_attempt(folder: Path, root: Path) -> list[str]:
    """The names of the folders that are flushed to make one durable."""
    synced: list[str] = []
    real = disk.sync_folder
    with mock.patch.object(disk, "sync_folder", lambda path: (real(path), synced.append(Path(path).name))):
        disk.make_folders_durably(folder, root)
    assert folder.is_dir()
    return synced


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL, errno.EROFS, errno.ENOTSUP])
def test_an_existing_folder_need_not_be_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is of another user, or of a file system that flushes no folders."""
    monkeypatch.setattr(disk, "sync_folder", raising(OSError, number, os.strerror(number)))
    (tmp_path / "a").mkdir()
    disk.make_folders_durably(tmp_path / "a", tmp_path)
    with pytest.raises(OSError, match=os.strerror(number)):
        disk.make_folders_durably(tmp_path / "b", tmp_path)


def test_a_disk_that_fails_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "sync_folder", raising(OSError, errno.EIO, "Input/output error"))
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="Input/output error"):
        disk.make_folders_durably(tmp_path / "a", tmp_path)


def test_a_tree_is_removed_as_far_as_possible(tmp_path: Path) -> None:
    for name in ("a/one", "a/two", "b/three"):
        disk.make_folders((tmp_path / "tree" / name).parent)
        disk.write_file(tmp_path / "tree" / name, b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    real = disk.unlink

    def fail(path: disk.StrPath) -> None:
        if str(path).endswith("two"):
            raise OSError(5, "Input/output error")
        real(path)

    with mock.patch.object(disk, "unlink", fail):
        assert not disk.remove_tree(tmp_path / "tree")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["tree/a/two"]
    assert disk.remove_tree(tmp_path / "tree")
    assert disk.remove_tree(tmp_path / "tree")
    assert (tmp_path / "outside").is_dir()


# The data folder ------------------------------------------------------------------------------------------------------


def modes(folder: Path) -> dict[str, str]:
    """Everything that another user of the machine could read or enter."""
    return {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in folder.rglob("*")
        if path.stat().st_mode & 0o077
    }


async def test_everything_in_the_data_folder_is_private(tmp_path: Path) -> None:
    async with running_server(tmp_path / "data") as server, connected(server) as client:
        await client.produce(await client.create_table(), make_batch(0))
    assert modes(tmp_path) == {}
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_the_data_folder_is_durable_before_anything_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = disk.sync_folder
    monkeypatch.setattr(disk, "sync_folder", lambda path: (synced.append(str(path)), real(path)))
    folder = DataDir(tmp_path / "new" / "data")
    folder.release(clean=True)
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "data")} <= set(synced)


def test_a_failed_start_leaves_the_folder_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def start(**options: object) -> None:
        async with running_server(tmp_path / "data", **options):
            pass

    for _ in range(2):  # of a new folder, and of one that a server closed cleanly
        with pytest.raises((FlussError, OSError)):
            run(start(bind_listeners="FLUSS://203.0.113.1:9123"))
        assert (tmp_path / "data" / CLEAN_NAME).exists()
        run(start())
    assert "not closed cleanly" not in caplog.text
