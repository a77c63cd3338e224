# SPDX-License-Identifier: Apache-2.0
"""The threads that decode log batches, shared by all scans of a process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

_pool: tuple[int, ThreadPoolExecutor] | None = None
_ahead = True


def decode_threads() -> ThreadPoolExecutor | None:
    """The threads, None to decode in place. They are shared: starting one costs as much as decoding a batch."""
    global _pool
    if not _ahead:
        return None
    if _pool is None or _pool[0] != os.getpid():  # threads do not survive a fork
        _pool = (os.getpid(), ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="fluss-decode"))
    return _pool[1]


def decode_when_taken() -> None:
    """Do without threads in this process: where others keep every core busy, handing work to them only costs."""
    global _ahead
    _ahead = False
