# SPDX-License-Identifier: Apache-2.0
"""Running a server in the foreground until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fluss.server.config import ServerConfig
from fluss.server.datadir import record_addresses, remove_addresses
from fluss.server.garbage import short_searches
from fluss.server.loop_watch import LoopErrors
from fluss.server.server import Server


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(config: ServerConfig) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if config.text("log.format") == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger("fluss")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(config.text("log.level") or "INFO")


Companion = Callable[[Server], AbstractAsyncContextManager[None]]
"""What accompanies a server from when it is ready until it stops, such as the web console."""

_SWITCH_SECONDS = 0.0003
"""For how long a thread that computes keeps Python's lock when the event loop wants it, which is after each call of the
operating system. With Python's 5 ms, one user's fetches and writes held up the lookups of all others."""


def run(
    config: ServerConfig, *, watch_stdin: bool = False, companion: Companion | None = None, replaceable: bool = False
) -> None:
    """Serve until the end, on uvloop's event loop where that is installed: small requests take a fifth less time."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        from uvloop import run as run_loop
    except ImportError:
        run_loop = asyncio.run
    run_loop(serve(config, watch_stdin=watch_stdin, companion=companion, replaceable=replaceable))


async def serve(
    config: ServerConfig, *, watch_stdin: bool = False, companion: Companion | None = None, replaceable: bool = False
) -> None:
    """Start, say so on standard output, and stop on SIGTERM, SIGINT, or the end of standard input if it is watched."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    config.log_passed_over()
    server = Server(config)
    loop.set_exception_handler(LoopErrors(count=lambda: server.metrics.add("tabletserver_eventLoop_errors_total")))
    # Searching all objects after every 700 new ones would cost a twentieth of a busy server, and a tenth of a start
    # with a thousand tables.
    with short_searches():
        await server.start()
        gc.freeze()
        if watch_stdin:
            watch_parent(loop, ended)
        addresses = [listener.address for listener in server.listeners.values()]
        data_dir = str(config.get("data.dir"))
        record_addresses(data_dir, addresses, replaceable=replaceable)
        print(f"ready {','.join(addresses)}", flush=True)
        try:
            async with companion(server) if companion is not None else contextlib.nullcontext():
                await ended.wait()
        finally:
            remove_addresses(data_dir)
            await server.stop()


def watch_parent(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """The parent holds the other end of standard input; when it is gone, however it went, the pipe ends."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, name="fluss-parent-watch", daemon=True).start()
