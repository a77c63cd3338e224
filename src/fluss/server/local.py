# SPDX-License-Identifier: Apache-2.0
"""A server in a process of its own, for programs and tests that want one without a terminal."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from fluss.config import Config
from fluss.errors import ConfigError, DeadlineExceededError, UnknownServerError

_STDERR_BYTES_SHOWN = 4000


class LocalServer:
    """An embedded server on a free port, as a context manager, sync or async.

    Without a data folder the data is temporary and goes with the server. The child process ends with this one, even if
    this one is killed.

    Args:
        data_dir: Folder of the data; None for a temporary one.
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        options: Server options, under the names of Apache Fluss.
        start_timeout_s: How long to wait until the server is ready.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        options: Mapping[str, object] | None = None,
        start_timeout_s: float = 30.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        self._given_dir = Path(data_dir) if data_dir is not None else None
        self._host = host
        self._port = port
        self._options = dict(options or {})
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._temporary: str | None = None
        self._log_path: Path | None = None
        self._owner_pid: int | None = None
        self._addresses: tuple[str, ...] = ()

    def __repr__(self) -> str:
        state = self._addresses[0] if self._addresses else "stopped"
        return f"LocalServer({state})"

    # What a program needs to know ---------------------------------------------------------------------------------

    @property
    def options(self) -> dict[str, object]:
        """The options it was made with.

        Example:
            LocalServer(options={"datalake.format": "paimon"}).options
        """
        return dict(self._options)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the first listener."""
        return self.addresses[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """``host:port`` of every listener, in the order of the options."""
        if not self._addresses:
            raise ConfigError("the local server is not running; call start() or use it in a with statement")
        return self._addresses

    @property
    def data_dir(self) -> Path:
        if self._given_dir is not None:
            return self._given_dir
        if self._temporary is None:
            raise ConfigError("the local server is not running, so it has no temporary data folder")
        return Path(self._temporary)

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def config(self, **properties: object) -> Config:
        """Client options that connect to this server; `properties` are added to them."""
        return Config({"bootstrap.servers": self.bootstrap_servers, **properties})

    @property
    def log_text(self) -> str:
        """What the server wrote to its log since it was started."""
        if self._log_path is None:
            return ""
        with contextlib.suppress(OSError):
            return self._log_path.read_text(encoding="utf-8", errors="replace")
        return ""

    @property
    def problems(self) -> str:
        """The errors in its log, such as a table that cannot be read; empty if there are none.

        Example:
            print(server.problems)
        """
        found = [line.partition(" ERROR ")[2].strip() for line in self.log_text.splitlines() if " ERROR " in line]
        return "; ".join(found)[-_STDERR_BYTES_SHOWN:]

    # Life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> LocalServer:
        """Start the process and wait until it is ready."""
        if self.pid is not None:
            return self
        if self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="fluss-")
        self._log_path = Path(self._temporary) / "server.log"
        command = [sys.executable, "-m", "fluss.server", "--watch-stdin"]
        command += ["--data-dir", str(self._data_folder()), "--create"]
        if "bind.listeners" not in self._options:
            command += ["--host", self._host, "--port", str(self._port)]
        config_path: Path | None = None
        if self._options:
            # In a file that only this user can read: a command line shows its secrets to everyone on the machine.
            config_path = _write_options(Path(self._temporary), self._options)
            command += ["--config", str(config_path)]
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=_environment(), bufsize=0
            )
        self._owner_pid = os.getpid()
        atexit.register(self.kill)
        try:
            line = self._read_ready_line()
        except BaseException:
            self.kill()
            raise
        finally:
            if config_path is not None:
                config_path.unlink(missing_ok=True)
        self._addresses = tuple(line.removeprefix("ready ").strip().split(","))
        return self

    def stop(self) -> None:
        """Stop with a flush; a server that does not end in time is killed."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._stop_timeout_s)
        code = process.poll() if process is not None else None
        text = self.log_text
        self.kill()
        if process is not None and code != 0:
            how = "did not stop in time" if code is None else f"ended with exit code {code}"
            raise UnknownServerError(f"the local server {how}; the end of its log: {text[-_STDERR_BYTES_SHOWN:]}")

    def kill(self) -> None:
        """End the process at once, as a crash would, and remove temporary data."""
        if self._owner_pid not in (None, os.getpid()):
            return  # a forked child that ends: process and data are its parent's
        self.crash()
        atexit.unregister(self.kill)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def crash(self) -> None:
        """Kill the process with SIGKILL and keep the data, also temporary data, for a later ``start``."""
        process, self._process = self._process, None
        self._addresses = ()
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _data_folder(self) -> Path:
        return self._given_dir if self._given_dir is not None else Path(str(self._temporary)) / "data"

    def _read_ready_line(self) -> str:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + self._start_timeout_s
        collected = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in collected:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceededError(
                        f"the local server was not ready within {self._start_timeout_s} s: "
                        f"{self.log_text[-_STDERR_BYTES_SHOWN:]}"
                    )
                if not selector.select(left):
                    continue
                data = os.read(process.stdout.fileno(), 4096)
                if not data:
                    process.wait()
                    text = self.log_text.strip()[-_STDERR_BYTES_SHOWN:].removeprefix("Error: ")
                    raise ConfigError(text or f"the local server ended with exit code {process.returncode}")
                collected += data
        return collected.decode("utf-8", "replace").splitlines()[0]

    def __enter__(self) -> LocalServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop() if kind is None else self.kill()

    async def __aenter__(self) -> LocalServer:
        return await asyncio.get_running_loop().run_in_executor(None, self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.stop if kind is None else self.kill)


def _write_options(folder: Path, options: Mapping[str, object]) -> Path:
    import yaml

    path = folder / "server.yaml"
    text = yaml.safe_dump({name: _plain(value) for name, value in options.items()})
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _environment() -> dict[str, str]:
    """The child imports the same package as this process, also when it is not installed."""
    environment = dict(os.environ)
    source = str(Path(__file__).resolve().parents[2])
    known = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = source if not known else f"{source}{os.pathsep}{known}"
    return environment
