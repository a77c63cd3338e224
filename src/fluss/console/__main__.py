# SPDX-License-Identifier: Apache-2.0
"""The child process that `fluss server --ui` starts."""

from __future__ import annotations

import argparse
import socket
import sys

from fluss.console.serving import serve
from fluss.console.settings import Settings
from fluss.errors import FlussError


def main() -> int:
    """Serve the console of the embedded server."""
    parser = argparse.ArgumentParser(prog="python -m fluss.console")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--inspection-fd", type=int, required=True)
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--allow-host", action="append", default=[])
    parser.add_argument("--fingerprint")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    given = parser.parse_args()
    settings = Settings(
        given.bootstrap_servers,
        given.host,
        given.port,
        read_only=given.read_only,
        allowed_hosts=tuple(given.allow_host),
        fingerprint=given.fingerprint,
        certificate=given.certificate,
        key=given.key,
    )
    try:
        serve(settings, lambda url: print(f"console {url}", flush=True), socket.socket(fileno=given.inspection_fd))
    except FlussError as error:
        print(f"The console did not start: {error.message}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
