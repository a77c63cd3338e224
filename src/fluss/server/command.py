# SPDX-License-Identifier: Apache-2.0
"""The command ``fluss server``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from fluss import config_providers
from fluss.errors import FlussError
from fluss.net.tls import certificate_fingerprint
from fluss.server.certificates import ensure_self_signed
from fluss.server.config import DEFAULT_PORT, SERVER_OPTIONS, ServerConfig, load_config_file
from fluss.server.datadir import check_new_folder, is_data_folder
from fluss.server.replication.layout import time_text
from fluss.server.replication.restoring import is_half_restored, restore
from fluss.server.runner import run, set_up_logging

logger = logging.getLogger("fluss.server")

_LISTENER_OPTIONS = ("bind.listeners", "internal.listener.name")
COMMON_NAME_RULE = r"RULE:(?:.*?[,+])?CN=((?:[^,+\\]|\\.)+).*/$1/,DEFAULT"
"""The first CN is the user, written as RFC 2253 does: with a backslash before a comma."""


def build_config(
    data_dir: str | None,
    host: str | None,
    port: int | None,
    config_file: str | None,
    settings: tuple[str, ...],
    *,
    login: bool = False,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_client_ca: str | None = None,
    tls_self_signed: bool = False,
    create: bool = False,
    replicate: str | None = None,
    replicate_interval: str | None = None,
) -> ServerConfig:
    """File first, then ``-D``, then the short options."""
    options: dict[str, object] = dict(load_config_file(config_file)) if config_file else {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"-D expects key=value, not {name!r}")
        options[name.strip()] = value
    options, from_providers = config_providers.resolve(options)
    given = data_dir or options.get("data.dir") or SERVER_OPTIONS["data.dir"].default
    folder = Path(str(given)).absolute()  # clients on this machine ask for it, and have other working folders
    options["data.dir"] = str(folder)
    if not create:
        check_new_folder(folder)
    short = {"replication.url": replicate, "replication.interval": replicate_interval}
    options.update((name, value) for name, value in short.items() if value is not None)
    if host is not None or port is not None:
        if "bind.listeners" in options:
            raise click.UsageError("--host and --port cannot be combined with the option 'bind.listeners'")
        listener = str(options.get("internal.listener.name", "FLUSS"))
        bracketed = f"[{host}]" if host is not None and ":" in host else host or "127.0.0.1"
        options["bind.listeners"] = f"{listener}://{bracketed}:{DEFAULT_PORT if port is None else port}"
    if (login or tls_client_ca) and "security.protocol.map" in options:
        raise click.UsageError("--login and --tls-client-ca cannot be combined with the option 'security.protocol.map'")
    if login and tls_client_ca:
        raise click.UsageError("give --login or --tls-client-ca: clients log in by password or by certificate")
    if tls_cert and tls_self_signed:
        raise click.UsageError("give --tls-cert or --tls-self-signed, not both")
    if (tls_key or tls_client_ca) and not (tls_cert or tls_self_signed):
        raise click.UsageError("--tls-key and --tls-client-ca need --tls-cert or --tls-self-signed")
    endpoints = ServerConfig({name: options[name] for name in _LISTENER_OPTIONS if name in options}).bind_endpoints
    names = [endpoint.listener for endpoint in endpoints]
    if tls_self_signed:
        tls_cert = str(ensure_self_signed(folder / "tls", [endpoint.host for endpoint in endpoints]))
        click.echo(f"TLS certificate SHA-256 fingerprint: {certificate_fingerprint(tls_cert)}", err=True)
    if tls_cert:
        options["security.ssl.enabled.listeners"] = ",".join(names)
        options["security.ssl.keystore.location"] = tls_cert
    if tls_key:
        options["security.ssl.key.location"] = tls_key
    if tls_client_ca:
        options["security.ssl.truststore.location"] = tls_client_ca
        options.setdefault("security.ssl.principal.mapping.rules", COMMON_NAME_RULE)
    protocol = "sasl" if login else "mtls" if tls_client_ca else None
    if protocol is not None:
        options["security.protocol.map"] = ",".join(f"{name}:{protocol}" for name in names)
    config = ServerConfig(options)
    config.from_providers = from_providers
    return config


def restore_if_empty(config: ServerConfig, url: str) -> None:
    """Restore a backup into a data folder that is new. One that has data already goes on with it."""
    folder = Path(str(config.get("data.dir")))
    if is_data_folder(folder) and not is_half_restored(folder):
        return
    found = restore(url, folder, store_options=config.store_options, remote_dir=config.text("remote.data.dir"))
    for damage in found.damages:
        logger.error("the backup '%s' is damaged: %s", url, damage)
    logger.warning(
        "restored '%s' from '%s': everything that was acknowledged before %s. What came in the %.0f s since then, if "
        "anything, is lost", folder, url, time_text(found.time_ms), found.seconds_since,
    )  # fmt: skip


@click.command()
@click.option("--data-dir", help="Folder of the data.  [default: ./fluss-data]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, 0 for any free one.  [default: 9123]")
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="YAML file of server options.")
@click.option("-D", "settings", multiple=True, metavar="KEY=VALUE", help="One server option; may be repeated.")
@click.option("--login", is_flag=True, help="Clients log in as users of 'fluss user add'.")
@click.option(
    "--tls-cert", type=click.Path(dir_okay=False), help="Encrypt: PEM file of the certificate with its chain."
)
@click.option("--tls-key", type=click.Path(dir_okay=False), help="PEM file of its key, if it lies apart.")
@click.option(
    "--tls-client-ca",
    type=click.Path(dir_okay=False),
    help="Clients log in by certificate, signed by these authorities; its CN is the user.",
)
@click.option("--tls-self-signed", is_flag=True, help="Encrypt with a certificate made for development.")
@click.option("--replicate", metavar="URL", help="Copy everything continuously to this folder or object store.")
@click.option("--replicate-interval", metavar="TIME", help="Time between two rounds of it.  [default: 5s]")
@click.option("--restore-from", metavar="URL", help="Begin with this backup if the data folder is empty.")
@click.option("--create", is_flag=True, help="Use the data folder even if it has other files.")
@click.option("--watch-stdin", is_flag=True, hidden=True, help="Stop when standard input ends.")
def server(watch_stdin: bool, restore_from: str | None, **given: Any) -> None:
    """Run the embedded server until SIGTERM or Ctrl-C.

    Example: fluss server --data-dir ./shop --port 9123
    """
    try:
        config = build_config(**given)
        set_up_logging(config)
        if restore_from is not None:
            restore_if_empty(config, restore_from)
        is_plain = not given["config_file"] and not given["settings"]
        run(config, watch_stdin=watch_stdin, replaceable=watch_stdin and is_plain)
    except FlussError as error:
        raise click.ClickException(error.message) from None
