# SPDX-License-Identifier: Apache-2.0
"""Who may log in to a server: ``fluss user add``, ``ls``, ``rm``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fluss.cli.common import json_option, note, print_json, print_result
from fluss.server.config import SERVER_OPTIONS
from fluss.server.users import USERS_FILE, UserFile

_DATA_DIR = str(SERVER_OPTIONS["data.dir"].default)


def _users_option(command: Callable[..., Any]) -> Callable[..., Any]:
    file = click.option(
        "--file", type=click.Path(dir_okay=False), help=f"File of users.  [default: {USERS_FILE} there]"
    )
    data_dir = click.option("--data-dir", default=_DATA_DIR, show_default=True, help="Data folder of the server.")
    return data_dir(file(command))


def _user_file(data_dir: str, file: str | None) -> UserFile:
    if file is not None:
        return UserFile(file)
    folder = Path(data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return UserFile(folder / USERS_FILE)


@click.group()
def user() -> None:
    """Manage the users who may log in to a server started with --login.

    Passwords are stored as salted hashes in a file that only its owner can read. A running server sees changes at the
    next login.
    """


@user.command(name="add")
@click.argument("name")
@_users_option
@click.option("--password-file", type=click.File("r"), help="Read the password from a file, - for standard input.")
@json_option
def user_add(name: str, data_dir: str, file: str | None, password_file: Any, as_json: bool) -> None:
    """Add the user NAME, or give it a new password.

    Example: fluss user add alice --data-dir ./shop
    """
    if password_file is not None:
        password = password_file.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True)
    else:
        raise click.UsageError("there is no terminal to ask for the password; add --password-file FILE, or -")
    users = _user_file(data_dir, file)
    changed = name in users.names()
    users.set_password(name, password)
    print_result(
        as_json,
        {"name": name, "file": str(users.path), "changed": changed},
        f"user {name} {'has a new password' if changed else 'added'} in {users.path}",
    )


@user.command(name="ls")
@_users_option
@json_option
def user_ls(data_dir: str, file: str | None, as_json: bool) -> None:
    """List the users.

    Example: fluss user ls --data-dir ./shop
    """
    names = UserFile(file or Path(data_dir) / USERS_FILE).names()
    if as_json:
        print_json([{"name": name} for name in names])
    elif not names:
        note('no users; add one with "fluss user add NAME"')
    else:
        for name in names:
            click.echo(name)


@user.command(name="rm")
@click.argument("name")
@_users_option
@json_option
def user_rm(name: str, data_dir: str, file: str | None, as_json: bool) -> None:
    """Remove the user NAME. Connections that are open stay open.

    Example: fluss user rm alice --data-dir ./shop
    """
    users = UserFile(file or Path(data_dir) / USERS_FILE)
    users.remove(name)
    print_result(as_json, {"name": name, "removed": True}, f"user {name} removed from {users.path}")
