# SPDX-License-Identifier: Apache-2.0
"""The generated messages are those of fluss.proto, and load with every protobuf runtime the package allows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "generate_protocol.py"
PROTOCOL = ROOT / "src" / "fluss" / "protocol"


def check(source_root: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("grpc_tools", reason="the protocol compiler is not installed")
    command = [sys.executable, str(SCRIPT), "--check", "--source-root", str(source_root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def copied_sources(tmp_path: Path) -> Path:
    target = tmp_path / "fluss" / "protocol"
    target.mkdir(parents=True)
    for name in ("fluss.proto", "fluss_pb2.py", "fluss_pb2.pyi"):
        shutil.copy(PROTOCOL / name, target / name)
    return tmp_path


def test_generated_files_are_current() -> None:
    done = check(ROOT / "src")
    assert done.returncode == 0, done.stderr


def test_a_changed_proto_is_noticed(copied_sources: Path) -> None:
    proto = copied_sources / "fluss" / "protocol" / "fluss.proto"
    text = proto.read_text()
    assert "optional bytes challenge = 1;" in text
    proto.write_text(text.replace("optional bytes challenge = 1;", "optional bytes riddle = 2;"))
    done = check(copied_sources)
    assert done.returncode == 1
    assert "fluss_pb2.py does not match fluss.proto" in done.stderr
    assert "AuthenticateResponse.riddle" in done.stderr


def test_a_broken_proto_is_reported(copied_sources: Path) -> None:
    (copied_sources / "fluss" / "protocol" / "fluss.proto").write_text("message {")
    done = check(copied_sources)
    assert done.returncode != 0
    assert "The protocol compiler failed" in done.stderr


def test_no_runtime_version_is_demanded() -> None:
    assert "runtime_version" not in (PROTOCOL / "fluss_pb2.py").read_text()
