# SPDX-License-Identifier: Apache-2.0
"""What a wheel and an sdist contain: everything that users need, nothing that only developers need."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fluss", "pyspark_fluss")

_RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def sources() -> set[str]:
    """Return the path of every file below `src` that is part of the package."""
    found = (path.relative_to(ROOT / "src") for name in PACKAGES for path in (ROOT / "src" / name).rglob("*"))
    return {
        path.as_posix() for path in found if path.suffix and path.suffix != ".pyc" and "__pycache__" not in path.parts
    }


def bridge_sources() -> set[str]:
    """Return the path of every source of the jar that the package contains."""
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / "src" / "spark-bridge").rglob("*.java")}


def check_wheel(path: Path) -> list[str]:
    """Return what is wrong with a wheel, one sentence each."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        metadata = next((name for name in names if name.endswith(".dist-info/METADATA")), None)
        if metadata is None:
            return [f"{path.name} has no metadata."]
        description = email.message_from_bytes(wheel.read(metadata)).get_payload()
    about = Path(metadata).parts[0]
    problems = _compare(path.name, {name for name in names if not name.startswith(f"{about}/")}, sources())
    for needed in ("licenses/LICENSE", "licenses/NOTICE", "entry_points.txt"):
        if f"{about}/{needed}" not in names:
            problems.append(f"{path.name} lacks {needed}.")
    for link in _RELATIVE_LINK.findall(str(description)):
        problems.append(f"{path.name}: the description has the relative link {link}, which leads nowhere on an index.")
    return problems


def check_sdist(path: Path) -> list[str]:
    """Return what is wrong with an sdist, one sentence each."""
    with tarfile.open(path) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    expected = {f"src/{name}" for name in sources()}
    expected |= {"README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "pyproject.toml", "PKG-INFO"}
    expected.add("scripts/package_metadata.py")  # which the build needs
    expected |= bridge_sources()
    return _compare(path.name, names - {".gitignore"}, expected)


def _compare(where: str, found: Iterable[str], expected: Iterable[str]) -> list[str]:
    missing, unwanted = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    problems = [f"{where} lacks {name}." for name in missing]
    return problems + [f"{where} contains {name}, which does not belong in it." for name in unwanted]
