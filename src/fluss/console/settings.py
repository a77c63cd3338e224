# SPDX-License-Identifier: Apache-2.0
"""What a console is started with, and the limits of everything it does."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from fluss.config import Login
from fluss.server.auth import is_loopback

DEFAULT_PORT = 9124

ROWS_PER_PAGE_MAX = 500
ROWS_OF_SQL_MAX = 1_000
ROWS_OF_EXPORT_MAX = 1_000_000
RECORDS_OF_HISTORY_MAX = 500_000
"""Records of a bucket that are read for the history of a key."""
CHANGES_OF_HISTORY_MAX = 500
TABLES_MAX = 10_000
BUCKETS_MAX = 1_000
CELL_CHARS_MAX = 2_000
EDITED_CHARS_MAX = 1_000_000
"""A longer value is cut in the form that changes a row, and cannot be changed there."""
BODY_BYTES_MAX = 4 * 1024 * 1024
BODY_S_MAX = 10.0
UPLOAD_BYTES_MAX = 256 * 1024 * 1024
UPLOAD_S_MAX = 600.0
UPLOADS_AT_ONCE = 4
"""More wait: each is held in memory."""
DECODED_BYTES_MAX = 256 * 1024 * 1024
"""What the rows of an uploaded file may take in memory."""
SQL_SECONDS_MAX = 60.0
SQL_SESSIONS_MAX = 24
SQL_SESSIONS_OF_USER_MAX = 6
SQL_SESSION_IDLE_S = 600.0
SQL_MEMORY_BYTES_MAX = 1_500_000_000
"""What a query may allocate beyond what its process needs to begin with; DuckDB itself is given two thirds of it."""
SQL_OUT_OF_MEMORY = 3
"""The exit code of a process that could not allocate more."""
SQL_DISK_BYTES_MAX = 2_000_000_000
SQL_RESULT_CHARS_MAX = 16_000_000
STREAMS_MAX = 64
SESSIONS_MAX = 256
SESSION_IDLE_S = 12 * 3600.0


@dataclass(frozen=True)
class Settings:
    """What a console connects to, and what it lets its users do."""

    bootstrap_servers: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    read_only: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """More names under which browsers may reach it, without port."""
    metrics_url: str | None = None
    """The Prometheus page of the server, such as ``http://host:9249/metrics``."""
    tls: bool = False
    ca: str | None = None
    fingerprint: str | None = None
    """How the certificate of the server is checked, as `connect` takes it."""
    certificate: str | None = None
    """PEM file with which the console itself serves HTTPS."""
    key: str | None = None
    reload_s: float = 300.0
    """Time between two looks for a renewed certificate; 0 for none."""

    def login(self, user: str | None, password: str | None) -> Login:
        """As whom to connect to the server."""
        return Login(user, password, self.tls, self.ca, self.fingerprint)

    @property
    def must_login(self) -> bool:
        """Beyond this machine every user logs in."""
        return not is_loopback(self.host)

    @property
    def needs_link(self) -> bool:
        """Whether only the printed link opens the console: it acts with credentials that other local users lack."""
        return self.user is not None and not self.must_login


def child_environment() -> dict[str, str]:
    """The environment of a child, which imports the same package as this process, also when it is not installed."""
    environment = dict(os.environ)
    source = str(Path(__file__).resolve().parents[2])
    known = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = source if not known else f"{source}{os.pathsep}{known}"
    return environment
