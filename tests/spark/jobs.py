# SPDX-License-Identifier: Apache-2.0
"""Jobs in processes of their own, for the tests that kill them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def start(script: Path, arguments: Sequence[str], log: Path) -> subprocess.Popen[str]:
    """Start a job as the leader of a session of processes; what it writes to stderr is appended to the log."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )


def lines(job: subprocess.Popen[str], until: str) -> list[str]:
    """What a job prints, up to a line."""
    assert job.stdout is not None
    found = []
    for line in job.stdout:
        found.append(line.strip())
        if line.strip() == until:
            break
    return found


def end(job: subprocess.Popen[str]) -> None:
    """Kill the whole session of processes that the job started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    if job.stdout is not None:
        job.stdout.close()


def wait_for_file(path: Path) -> None:
    """Wait until a file is there, such as one of a checkpoint."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)
