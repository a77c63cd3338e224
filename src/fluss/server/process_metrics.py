# SPDX-License-Identifier: Apache-2.0
"""Figures of the server's process, under the names that Prometheus uses for every program."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path

from fluss.server.metrics import ServerMetrics

_STATM = Path("/proc/self/statm")
_DESCRIPTORS = Path("/proc/self/fd")


def add_process_gauges(metrics: ServerMetrics) -> None:
    """Register what the operating system tells of this process; what it does not tell is left out."""
    started = time.time()
    metrics.gauge("process_cpu_seconds_total", _cpu_seconds)
    metrics.gauge("process_threads", threading.active_count)
    metrics.gauge("process_start_time_seconds", lambda: started)
    metrics.gauge("process_max_fds", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if _STATM.exists():
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        metrics.gauge("process_resident_memory_bytes", lambda: int(_STATM.read_text().split()[1]) * page_bytes)
    if _DESCRIPTORS.exists():
        metrics.gauge("process_open_fds", lambda: len(os.listdir(_DESCRIPTORS)))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
