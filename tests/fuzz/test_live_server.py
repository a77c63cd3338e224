# SPDX-License-Identifier: Apache-2.0
"""The short version of ``python -m tests.fuzz.live``, in a process of its own: a crash is a failure."""

from __future__ import annotations

import subprocess
import sys


def test_changed_frames_against_a_running_server() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.live", "--frames", "1200", "--seed", "11"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 unexpected errors" in done.stdout
    assert "PRODUCE_LOG: accepted" in done.stdout
    assert "PUT_KV: accepted" in done.stdout
