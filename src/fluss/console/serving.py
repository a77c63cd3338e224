# SPDX-License-Identifier: Apache-2.0
"""Running the console: in the foreground, or as a child process of the embedded server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fluss.console.settings import Settings, child_environment
from fluss.db.targets import reachable
from fluss.errors import ConfigError, MissingDependencyError
from fluss.net.tls import TlsFiles, certificate_fingerprint, load_certificate, server_context
from fluss.server.auth import is_loopback
from fluss.server.tls import file_versions, tls_files

if TYPE_CHECKING:
    import uvicorn

    from fluss.server.config import ServerConfig
    from fluss.server.server import Server

logger = logging.getLogger("fluss.console")

_STOP_S_MAX = 3.0
_KEEP_ALIVE_S = 30
_STALLED_MS_MAX = 30_000
"""Time in which a browser takes nothing of an answer."""
_CONNECTIONS_MAX = 500


def bind(settings: Settings) -> socket.socket:
    """Listen, or say why that is not possible."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # accepted connections inherit it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED_MS_MAX)
        sock.bind((settings.host.strip("[]"), settings.port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"Cannot serve the console on {settings.host}:{settings.port}: {error.strerror or error}. "
            "Choose another port with --ui-port, 0 for any free one."
        ) from None
    return sock


def check_installed() -> None:
    """Raise `MissingDependencyError` unless the packages of the extra `console` are there."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"The console needs {' and '.join(missing)}: pip install 'fluss-python[console,sql]'"
        )


class Console:
    """A console that is bound to its port. `run` serves until it is stopped."""

    def __init__(self, settings: Settings, inspection: socket.socket | None = None) -> None:
        check_installed()
        import uvicorn

        from fluss.console.app import build_app

        self._listener = bind(settings)
        self.port = int(self._listener.getsockname()[1])
        self.settings = replace(settings, port=self.port)
        self.app = build_app(self.settings, inspection)
        config = uvicorn.Config(
            self.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            http="h11",
            ws="none",
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
        )
        config.load()
        self._context: ssl.SSLContext | None = config.ssl
        self._server: uvicorn.Server = uvicorn.Server(config)

    async def run(self, ready: Callable[[str], None]) -> None:
        """Serve until `stop` or a signal; `ready` gets the address to open."""
        reloading = asyncio.ensure_future(self._reload_certificates())
        serving = asyncio.ensure_future(self._server.serve([self._listener]))
        serving.add_done_callback(lambda _: reloading.cancel())
        while not self._server.started and not serving.done():
            await asyncio.wait([serving], timeout=0.01)  # uvicorn has no event for it
        if self._server.started:
            ready(self.app.state.console.url(self.port))
        await serving

    async def _reload_certificates(self) -> None:
        """Use renewed certificates for new connections. Those that cannot be used are reported."""
        if self._context is None or not self.settings.reload_s:
            return
        files = TlsFiles(certificate=self.settings.certificate or "", key=self.settings.key or "")
        versions = file_versions(files)
        while True:
            await asyncio.sleep(self.settings.reload_s)
            if versions == (versions := file_versions(files)):
                continue
            try:
                server_context(files)  # a key that does not belong to the certificate would leave a context without one
                load_certificate(self._context, files)
            except ConfigError as error:
                logger.warning("the new TLS certificate is not used, the one before is kept: %s", error.message)

    def stop(self) -> None:
        """End `run`."""
        self._server.should_exit = True


def serve(settings: Settings, ready: Callable[[str], None], inspection: socket.socket | None = None) -> None:
    """Serve until Ctrl-C, SIGTERM, or, as a child, until the server is gone."""
    console = Console(settings, inspection)
    if inspection is not None:
        _watch_parent(console)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped
        asyncio.run(console.run(ready))


def _watch_parent(console: Console) -> None:
    """End with the server: it holds the other end of standard input, which ends however the server ends."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        console.stop()

    threading.Thread(target=wait, name="fluss-console-parent", daemon=True).start()


@contextlib.asynccontextmanager
async def beside(server: Server, settings: Settings) -> AsyncIterator[None]:
    """Run the console as a child process while the server runs.

    A process of its own: pages, SQL and JSON take none of the server's time, and a console that fails takes nothing
    down with it. What the protocol does not report it learns over a socket pair that only it has.
    """
    from fluss.server.inspection import Inspector

    ours, theirs = socket.socketpair()
    inspector = Inspector(server, ours)
    address = reachable(server.listeners[client_listener(server.config)].address)
    settings = replace(settings, bootstrap_servers=address, **_tls_settings(server.config))
    # Such a console acts as the users who log in: the settings have no password that a process list would show.
    document = json.dumps({name: value for name, value in asdict(settings).items() if name != "password"})
    command = [sys.executable, "-m", "fluss.console", document, str(theirs.fileno())]
    inspector.start()
    child = await asyncio.to_thread(_start, command, theirs.fileno())
    theirs.close()
    try:
        yield
    finally:
        assert child.stdin is not None
        child.stdin.close()
        await asyncio.to_thread(_end, child)
        await inspector.stop()


def _tls_settings(config: ServerConfig) -> dict[str, Any]:
    """The console serves with the certificate of the server, and accepts no other one from it."""
    listener = client_listener(config)
    if not config.is_encrypted(listener):
        return {}
    if config.protocol_of(listener) == "MTLS":
        raise ConfigError(
            f"The console logs users in by password, but listener '{listener}' asks for certificates. Omit --ui, or "
            "run 'fluss ui' against a listener with SASL_SSL."
        )
    files = tls_files(config)
    if files.key_password:
        raise ConfigError(
            f"The console cannot serve with the key of listener '{listener}', which has a password. Omit --ui and run "
            "'fluss ui' with a --tls-cert of its own."
        )
    return {
        "certificate": files.certificate,
        "key": files.key or None,  # without a file of its own, it lies in that of the certificate
        # After a renewal the server shows the first one until it looks for new ones.
        "fingerprint": f"{certificate_fingerprint(files.certificate)},{os.path.abspath(files.certificate)}",
        "reload_s": config.integer("security.ssl.reload.interval") / 1000,
    }


def _start(command: list[str], fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[fd], env=child_environment())


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_STOP_S_MAX)
        return
    child.kill()
    child.wait()


def client_listener(config: ServerConfig) -> str:
    """The listener to connect to: not the internal one, where no access rule is checked, if there is another."""
    names = [endpoint.listener for endpoint in config.bind_endpoints]
    return next((name for name in names if name != config.internal_listener), config.internal_listener)


def check_exposure(settings: Settings, *, server_has_users: bool) -> None:
    """Refuse to serve other machines without users that could log in."""
    if not is_loopback(settings.host) and not server_has_users:
        raise ConfigError(
            f"The console can be reached from other machines on {settings.host}, so users have to log in, but the "
            "server has none. Set 'security.protocol.map' and 'security.sasl.plain.credentials', or omit --ui-host."
        )
