# SPDX-License-Identifier: Apache-2.0
"""The command ``fluss``."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from importlib import import_module
from typing import Any

import click

_SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Tables": {
        "ls": ("fluss.cli.catalog", "List databases, or the tables of one."),
        "tables": ("fluss.cli.catalog", "Show tables with their kind and size."),
        "describe": ("fluss.cli.catalog", "Describe a table."),
        "create": ("fluss.cli.tables", "Create a table."),
        "alter": ("fluss.cli.tables", "Change columns and properties of a table."),
        "drop": ("fluss.cli.tables", "Drop tables."),
        "partitions": ("fluss.cli.tables", "List, add and drop partitions."),
        "db": ("fluss.cli.tables", "Create, drop and list databases."),
    },
    "Rows": {
        "cat": ("fluss.cli.rows", "Print the current rows."),
        "head": ("fluss.cli.rows", "Print some rows."),
        "count": ("fluss.cli.rows", "Count rows."),
        "get": ("fluss.cli.rows", "Look up a row by its key."),
        "tail": ("fluss.cli.rows", "Print changes as they happen."),
        "groups": ("fluss.cli.groups", "List groups of followers and their lag."),
        "group": ("fluss.cli.groups", "Show, move and delete a group of followers."),
        "sql": ("fluss.cli.sql", "Query tables with SQL, or start a shell."),
        "put": ("fluss.cli.rows", "Write or delete some rows."),
        "load": ("fluss.cli.load", "Load files into a table."),
        "export": ("fluss.cli.load", "Write a table to a file."),
        "copy": ("fluss.cli.copy", "Copy tables from server to server."),
    },
    "Server": {
        "server": ("fluss.cli.ui", "Run the embedded server."),
        "ui": ("fluss.cli.ui", "Serve the web console for any server."),
        "dev": ("fluss.cli.dev", "Run a server with sample data, to try things out."),
        "status": ("fluss.cli.admin", "Show the state of a server."),
        "doctor": ("fluss.cli.admin", "Find out what is wrong, and how to fix it."),
        "offsets": ("fluss.cli.admin", "Show offsets of a table, also at a time."),
        "snapshots": ("fluss.cli.admin", "Show snapshots of a table."),
        "bench": ("fluss.cli.dev", "Measure a server."),
        "backup": ("fluss.cli.copy", "Write tables to a backup folder."),
        "restore": ("fluss.cli.copy", "Create tables from a backup."),
        "migrate": ("fluss.cli.migrate", "Move tables to another server while they are used."),
        "config": ("fluss.cli.admin", "Change options of a running server."),
        "acl": ("fluss.cli.admin", "Manage access rights."),
    },
    "This machine": {
        "user": ("fluss.cli.user", "Manage the users who may log in."),
        "profile": ("fluss.cli.profile", "Manage named clusters."),
        "completion": ("fluss.cli.profile", "Print a completion script for your shell."),
    },
    "Lake and pipelines": {
        "tier": ("fluss.cli.lake", "Move tables to the lake."),
        "lake": ("fluss.cli.lake", "Show tables in the lake."),
        "pipeline": ("fluss.cli.pipeline", "Create and run pipelines of Spark."),
    },
}
"""The commands: in which module each is, and what it is for."""
_COMMANDS = {name: entry for section in _SECTIONS.values() for name, entry in section.items()}


class _Commands(click.Group):
    """Commands that are imported when they are used: a quick ``fluss ls`` must not load the server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], _COMMANDS, 1)
            hint = f"did you mean '{near[0]}'?" if near else 'see "fluss --help"'
            ctx.fail(f"there is no command '{args[0]}'; {hint}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise  # a misspelt option of `fluss` itself
            option = error.option_name
            raise click.UsageError(
                f"there is no option {option} before the command; options come after it: fluss tables {option} …", ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, entries in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, (_, text) in entries.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what a user can cause becomes one sentence instead of a traceback."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            # The reader of a pipe, such as `head`, has enough. Nothing more can be printed, not even at exit.
            _drop_output()
            raise click.exceptions.Exit(0) from None
        except Exception as error:
            from fluss.cli.common import failure_of

            failure = failure_of(error)
            if failure is None:
                raise
            if isinstance(error, OSError) and error.filename is None:
                _drop_output()
            raise failure from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program. Its own help is printed before a command is invoked."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            _drop_output()
            click.echo(f"Error: {error.strerror}", err=True)
            sys.exit(1)


def _drop_output() -> None:
    """Drop what standard output holds after a failed write, perhaps to a full disk: it cannot be written at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fluss-python", prog_name="fluss")
def main() -> None:
    """Fluss for Python people: an embedded server, and tools for the tables of any Fluss cluster.

    Example: fluss create orders 'id bigint, item string' --key id
    """


__all__ = ["main"]
