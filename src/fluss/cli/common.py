# SPDX-License-Identifier: Apache-2.0
"""What the commands share: how to connect, how to name a table, how to print."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import decimal
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from fluss import aio
from fluss.errors import FlussError

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "-b",
        "--bootstrap-servers",
        default="127.0.0.1:9123",
        envvar="FLUSS_BOOTSTRAP_SERVERS",
        show_default=True,
        show_envvar=True,
        help="Servers to ask first, host:port, comma separated.",
    ),
    click.option("--user", envvar="FLUSS_USER", show_envvar=True, help="User name for SASL/PLAIN."),
    click.option("--password", envvar="FLUSS_PASSWORD", show_envvar=True, help="Password for SASL/PLAIN."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts."),
)


def connected(command: CommandT) -> CommandT:
    """Add the options every command that connects has."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def make_config(bootstrap_servers: str, user: str | None, password: str | None) -> aio.Config:
    properties: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, "connect-timeout": 10_000}
    if user is not None:
        properties |= {
            "security.protocol": "sasl",
            "security.sasl.mechanism": "PLAIN",
            "security.sasl.username": user,
            "security.sasl.password": password or "",
        }
    return aio.Config(properties)


def run(
    bootstrap_servers: str,
    user: str | None,
    password: str | None,
    work: Callable[[aio.FlussConnection], Coroutine[Any, Any, T]],
) -> T:
    """Connect, do the work, close. A Fluss error becomes one line and exit code 1."""

    async def connect_and_work() -> T:
        connection = await aio.FlussConnection.create(make_config(bootstrap_servers, user, password))
        try:
            return await work(connection)
        finally:
            await connection.close()

    try:
        return asyncio.run(connect_and_work())
    except FlussError as error:
        raise click.ClickException(error.message) from None


def parse_path(text: str) -> aio.TablePath:
    """``db.table``; a name alone is a table of the database ``fluss``."""
    database, dot, table = text.partition(".")
    if not dot:
        database, table = "fluss", text
    if not database or not table:
        raise click.UsageError(f"{text!r} does not name a table; write database.table")
    return aio.TablePath(database, table)


def plain(value: Any) -> Any:
    """A value as JSON can carry it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dt.date | dt.time | dt.datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def print_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), ensure_ascii=False))
