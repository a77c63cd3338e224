# SPDX-License-Identifier: Apache-2.0
"""The command ``fluss``."""

from __future__ import annotations

from importlib import import_module

import click

_COMMANDS = {
    "server": ("fluss.cli.ui", "server"),
    "ls": ("fluss.cli.catalog", "ls"),
    "tables": ("fluss.cli.catalog", "tables"),
    "describe": ("fluss.cli.catalog", "describe"),
    "tail": ("fluss.cli.rows", "tail"),
    "put": ("fluss.cli.rows", "put"),
    "get": ("fluss.cli.rows", "get"),
    "tier": ("fluss.cli.tier", "tier"),
    "lake": ("fluss.cli.lake", "lake"),
    "ui": ("fluss.cli.ui", "ui"),
}


class _Commands(click.Group):
    """Commands that are imported when they are used: a quick ``fluss ls`` must not load the server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fluss-python", prog_name="fluss")
def main() -> None:
    """Fluss for Python people: an embedded server, and tools for the tables of any Fluss cluster."""


__all__ = ["main"]
