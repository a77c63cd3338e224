# SPDX-License-Identifier: Apache-2.0
"""`fluss ui`, and `fluss server --ui`: the web console."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from fluss.console.serving import beside, check_exposure, check_installed, client_listener
from fluss.console.serving import serve as serve_console
from fluss.console.settings import DEFAULT_PORT, Settings
from fluss.server import command as server_command
from fluss.server.runner import run, set_up_logging

_UI_OPTIONS = (
    click.Option(["--ui"], is_flag=True, help="Serve the web console too."),
    click.Option(
        ["--ui-port"],
        type=click.IntRange(0, 65535),
        help=f"Port of the console, 0 for any free one.  [default: {DEFAULT_PORT}]",
    ),
    click.Option(["--ui-host"], help="Address of the console. Beyond this machine users log in.  [default: 127.0.0.1]"),
    click.Option(["--ui-read-only"], is_flag=True, help="The console changes nothing."),
    click.Option(["--ui-allow-host"], multiple=True, metavar="NAME", help="One more host name of the console."),
)


def _serve(
    ui: bool,
    ui_port: int | None,
    ui_host: str | None,
    ui_read_only: bool,
    ui_allow_host: tuple[str, ...],
    watch_stdin: bool,
    restore_from: str | None,
    **given: Any,
) -> None:
    """Run the embedded server until SIGTERM or Ctrl-C."""
    config = server_command.build_config(**given)
    set_up_logging(config)
    if restore_from is not None:
        server_command.restore_if_empty(config, restore_from)
    companion = None
    if ui:
        check_installed()
        settings = Settings(
            "",
            ui_host or "127.0.0.1",
            DEFAULT_PORT if ui_port is None else ui_port,
            read_only=ui_read_only,
            allowed_hosts=ui_allow_host,
        )
        listener = client_listener(config)
        check_exposure(settings, server_has_users=config.asks_login(listener))
        companion = partial(beside, settings=settings)
    run(config, watch_stdin=watch_stdin, companion=companion)


server = click.Command(
    "server",
    callback=_serve,
    params=[*server_command.server.params, *_UI_OPTIONS],
    help=server_command.server.help,
)


@click.command()
@click.option(
    "-b",
    "--bootstrap-servers",
    default="127.0.0.1:9123",
    envvar="FLUSS_BOOTSTRAP_SERVERS",
    show_default=True,
    show_envvar=True,
    help="Servers to ask first, host:port, comma separated.",
)
@click.option("--user", envvar="FLUSS_USER", show_envvar=True, help="User the console acts as; else users log in.")
@click.option("--password", envvar="FLUSS_PASSWORD", show_envvar=True, help="Password of that user.")
@click.option("--tls", is_flag=True, envvar="FLUSS_TLS", show_envvar=True, help="Encrypt connections to the servers.")
@click.option("--ca", metavar="FILE", envvar="FLUSS_CA", show_envvar=True, help="Who signs their certificates (PEM).")
@click.option(
    "--fingerprint", metavar="SHA256", envvar="FLUSS_FINGERPRINT", show_envvar=True, help="Their one certificate."
)
@click.option(
    "--tls-cert", "certificate", type=click.Path(dir_okay=False), help="Serve HTTPS with this certificate (PEM)."
)
@click.option("--tls-key", "key", type=click.Path(dir_okay=False), help="PEM file of its key, if it lies apart.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="Port to serve on."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to serve on. Beyond this machine users log in."
)
@click.option("--read-only", is_flag=True, help="Change nothing.")
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="One more host name under which browsers reach it.",
)
@click.option("--metrics-url", metavar="URL", help="The Prometheus page of the server, for the charts of the overview.")
def ui(**given: Any) -> None:
    """Serve the web console for any server or cluster until Ctrl-C.

    \b
    Example: fluss ui -b localhost:9123
    """
    serve_console(Settings(**given), lambda url: click.echo(f"console {url}"))


__all__ = ["server", "ui"]
