# SPDX-License-Identifier: Apache-2.0
"""The command ``fluss server``."""

from __future__ import annotations

import click

from fluss.errors import FlussError
from fluss.server.config import DEFAULT_PORT, ServerConfig, load_config_file
from fluss.server.runner import run, set_up_logging


def build_config(
    data_dir: str | None, host: str | None, port: int | None, config_file: str | None, settings: tuple[str, ...]
) -> ServerConfig:
    """File first, then ``-D``, then the short options."""
    options: dict[str, object] = dict(load_config_file(config_file)) if config_file else {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"-D expects key=value, not {name!r}")
        options[name.strip()] = value
    if data_dir is not None:
        options["data.dir"] = data_dir
    if host is not None or port is not None:
        if "bind.listeners" in options:
            raise click.UsageError("--host and --port cannot be combined with the option 'bind.listeners'")
        listener = str(options.get("internal.listener.name", "FLUSS"))
        bracketed = f"[{host}]" if host is not None and ":" in host else host or "127.0.0.1"
        options["bind.listeners"] = f"{listener}://{bracketed}:{DEFAULT_PORT if port is None else port}"
    return ServerConfig(options)


@click.command()
@click.option("--data-dir", help="Folder of the data.  [default: ./fluss-data]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, 0 for any free one.  [default: 9123]")
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="YAML file of server options.")
@click.option("-D", "settings", multiple=True, metavar="KEY=VALUE", help="One server option; may be repeated.")
@click.option("--watch-stdin", is_flag=True, hidden=True, help="Stop when standard input ends.")
def server(
    data_dir: str | None,
    host: str | None,
    port: int | None,
    config_file: str | None,
    settings: tuple[str, ...],
    watch_stdin: bool,
) -> None:
    """Run the embedded server until SIGTERM or Ctrl-C.

    Example: fluss server --data-dir ./shop --port 9123
    """
    try:
        config = build_config(data_dir, host, port, config_file, settings)
        set_up_logging(config)
        run(config, watch_stdin=watch_stdin)
    except FlussError as error:
        raise click.ClickException(error.message) from None


__all__ = ["build_config", "server"]
