# SPDX-License-Identifier: Apache-2.0
"""The process that writes RocksDB for a server. See `rocksdb` for why there is one."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from fluss.server.kv import rocksdb

_STOP_SECONDS = 10.0


class WriterProcess(rocksdb.Writer):
    """Calls a `Writer` in another process, which starts with the first call. One call at a time; any thread may call.

    The process ends with this one, whatever ends it. Calls fail with an OSError when it ended, and start it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._stopped = False
        self._deadline: threading.Timer | None = None

    def put(self, folder: str, rows: Sequence[rocksdb.Row]) -> None:
        self._call("put", folder, rows)

    def flush(self, folder: str) -> tuple[int, dict[str, int]]:
        flushed: tuple[int, dict[str, int]] = self._call("flush", folder)
        return flushed

    def checkpoint(self, folder: str, target: str) -> None:
        self._call("checkpoint", folder, target)

    def close(self, folder: str) -> None:
        if self._process is not None:
            self._call("close", folder)

    def stop(self) -> None:
        """Close all databases, and end the process."""
        with contextlib.suppress(OSError):
            if self._process is not None:
                self._call("stop")
        with self._lock:
            self._stopped = True
            self._end()
        if self._deadline is not None:
            self._deadline.cancel()

    def stop_within(self, seconds: float) -> None:
        """End the process after this time even if it is at work: the log has what was not written."""
        self._deadline = threading.Timer(seconds, self._kill)
        self._deadline.daemon = True
        self._deadline.start()

    def _kill(self) -> None:
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def _call(self, name: str, *arguments: object) -> Any:
        with self._lock:
            process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                pickle.dump((name, arguments), process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
                process.stdin.flush()
                is_done, result = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                code = self._end()
                raise OSError(f"the process that writes RocksDB ended with status {code}") from None
        if not is_done:
            raise OSError(result)
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise OSError("the process that writes RocksDB was ended: the server stops")
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, rocksdb.__file__, str(os.getpid()), str(lifeline)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[lifeline],
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        return self._process

    def _end(self) -> int | None:
        """End the process; returns its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(self._lifeline)
        return process.returncode
