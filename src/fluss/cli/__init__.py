# SPDX-License-Identifier: Apache-2.0
"""The command ``fluss``."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click


class _Entry(NamedTuple):
    module: str
    name: str
    help: str


_SECTIONS: dict[str, dict[str, _Entry]] = {
    "Tables": {
        "ls": _Entry("fluss.cli.catalog", "ls", "List databases, or the tables of one."),
        "tables": _Entry("fluss.cli.catalog", "tables", "Show tables with their kind and size."),
        "describe": _Entry("fluss.cli.catalog", "describe", "Describe a table."),
        "create": _Entry("fluss.cli.tables", "create", "Create a table."),
        "alter": _Entry("fluss.cli.tables", "alter", "Change columns and properties of a table."),
        "drop": _Entry("fluss.cli.tables", "drop", "Drop tables."),
        "partitions": _Entry("fluss.cli.tables", "partitions", "List, add and drop partitions."),
        "db": _Entry("fluss.cli.tables", "db", "Create, drop and list databases."),
    },
    "Rows": {
        "cat": _Entry("fluss.cli.rows", "cat", "Print the current rows."),
        "head": _Entry("fluss.cli.rows", "head", "Print some rows."),
        "count": _Entry("fluss.cli.rows", "count", "Count rows."),
        "get": _Entry("fluss.cli.rows", "get", "Look up a row by its key."),
        "tail": _Entry("fluss.cli.rows", "tail", "Print changes as they happen."),
        "groups": _Entry("fluss.cli.groups", "groups", "List groups of followers and their lag."),
        "group": _Entry("fluss.cli.groups", "group", "Show, move and delete a group of followers."),
        "sql": _Entry("fluss.cli.sql", "sql", "Query tables with SQL, or start a shell."),
        "put": _Entry("fluss.cli.rows", "put", "Write or delete some rows."),
        "load": _Entry("fluss.cli.load", "load", "Load files into a table."),
        "export": _Entry("fluss.cli.load", "export", "Write a table to a file."),
        "copy": _Entry("fluss.cli.copy", "copy", "Copy tables from server to server."),
    },
    "Server": {
        "server": _Entry("fluss.cli.ui", "server", "Run the embedded server."),
        "ui": _Entry("fluss.cli.ui", "ui", "Serve the web console for any server."),
        "dev": _Entry("fluss.cli.dev", "dev", "Run a server with sample data, to try things out."),
        "status": _Entry("fluss.cli.admin", "status", "Show the state of a server."),
        "doctor": _Entry("fluss.cli.admin", "doctor", "Find out what is wrong, and how to fix it."),
        "offsets": _Entry("fluss.cli.admin", "offsets", "Show offsets of a table, also at a time."),
        "snapshots": _Entry("fluss.cli.admin", "snapshots", "Show snapshots of a table."),
        "bench": _Entry("fluss.cli.dev", "bench", "Measure a server."),
        "backup": _Entry("fluss.cli.copy", "backup", "Write tables to a backup folder."),
        "restore": _Entry("fluss.cli.copy", "restore", "Create tables from a backup."),
        "migrate": _Entry("fluss.cli.migrate", "migrate", "Move tables to another server while they are used."),
        "config": _Entry("fluss.cli.admin", "config", "Change options of a running server."),
        "acl": _Entry("fluss.cli.admin", "acl", "Manage access rights."),
    },
    "This machine": {
        "user": _Entry("fluss.cli.user", "user", "Manage the users who may log in."),
        "profile": _Entry("fluss.cli.profile", "profile", "Manage named clusters."),
        "completion": _Entry("fluss.cli.profile", "completion", "Print a completion script for your shell."),
    },
    "Lake and pipelines": {
        "tier": _Entry("fluss.cli.lake", "tier", "Move tables to the lake."),
        "lake": _Entry("fluss.cli.lake", "lake", "Show tables in the lake."),
        "pipeline": _Entry("fluss.cli.pipeline", "pipeline", "Create and run pipelines of Spark."),
    },
}
_COMMANDS = {name: entry for section in _SECTIONS.values() for name, entry in section.items()}


class _Commands(click.Group):
    """Commands that are imported when they are used: a quick ``fluss ls`` must not load the server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(module), name)
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
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

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
