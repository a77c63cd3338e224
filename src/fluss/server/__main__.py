# SPDX-License-Identifier: Apache-2.0
"""``python -m fluss.server``: the same as ``fluss server``."""

from __future__ import annotations

from fluss.server.command import server

if __name__ == "__main__":
    server(prog_name="fluss server")
