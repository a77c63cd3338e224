# SPDX-License-Identifier: Apache-2.0
"""The command ``fluss``."""

from __future__ import annotations

import click

from fluss.server.command import server


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Fluss for Python people: server and tools."""


main.add_command(server)

__all__ = ["main"]
