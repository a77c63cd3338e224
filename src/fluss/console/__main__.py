# SPDX-License-Identifier: Apache-2.0
"""The child process that `fluss server --ui` starts: its arguments are the settings as JSON, and a file descriptor."""

from __future__ import annotations

import json
import socket
import sys

from fluss.console.serving import serve
from fluss.console.settings import Settings
from fluss.errors import FlussError


def main(document: str, inspection_fd: str) -> int:
    """Serve the console of the embedded server."""
    inspection = socket.socket(fileno=int(inspection_fd))
    try:
        serve(Settings(**json.loads(document)), lambda url: print(f"console {url}", flush=True), inspection)
    except FlussError as error:
        print(f"The console did not start: {error.message}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
