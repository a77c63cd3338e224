# SPDX-License-Identifier: Apache-2.0
"""The checks of `make wheel` find what is missing, what is too much, and links that lead nowhere."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from tests.wheel.__main__ import extras, install_commands, main
from tests.wheel.contents import ROOT, bridge_sources, check_sdist, check_wheel, sources
from tests.wheel.extras import CHECKS

ABOUT = "fluss_python-0.0.0.dist-info"


def wheel(folder: Path, *, without: str = "", extra: str = "", description: str = "") -> Path:
    path = folder / "fluss_python-0.0.0-py3-none-any.whl"
    names = {*sources(), f"{ABOUT}/licenses/LICENSE", f"{ABOUT}/licenses/NOTICE", f"{ABOUT}/entry_points.txt"}
    with zipfile.ZipFile(path, "w") as file:
        for name in (names | {extra}) - {without, ""}:
            file.writestr(name, "")
        file.writestr(f"{ABOUT}/METADATA", f"Name: fluss-python\n\n{description}")
    return path


def sdist(folder: Path, *, extra: str = "") -> Path:
    path = folder / "fluss_python-0.0.0.tar.gz"
    names = {f"src/{name}" for name in sources()} | {"README.md", "LICENSE", "NOTICE", "CHANGELOG.md"}
    names |= bridge_sources()
    with tarfile.open(path, "w:gz") as file:
        for name in (names | {"pyproject.toml", "PKG-INFO", "scripts/package_metadata.py", extra}) - {""}:
            file.addfile(tarfile.TarInfo(f"fluss_python-0.0.0/{name}"), io.BytesIO())
    return path


def test_sources_hold_what_users_need() -> None:
    needed = {
        "fluss/py.typed",
        "fluss/spark/fluss-spark-bridge.jar",
        "fluss/__init__.pyi",
        "fluss/aio.pyi",
        "fluss/console/static/index.html",
    }
    assert needed | {"pyspark_fluss/__init__.py", "fluss/console/static/pages/sql.js"} <= sources()


def test_a_complete_wheel_has_no_problems(tmp_path: Path) -> None:
    assert check_wheel(wheel(tmp_path, description="[home](https://fluss.apache.org) and [below](#more)")) == []


def test_a_missing_asset_is_found(tmp_path: Path) -> None:
    (problem,) = check_wheel(wheel(tmp_path, without="fluss/console/static/index.html"))
    assert "lacks fluss/console/static/index.html" in problem
    (problem,) = check_wheel(wheel(tmp_path, without=f"{ABOUT}/licenses/NOTICE"))
    assert "lacks licenses/NOTICE" in problem


def test_tests_do_not_belong_in_a_wheel(tmp_path: Path) -> None:
    (problem,) = check_wheel(wheel(tmp_path, extra="tests/conftest.py"))
    assert "contains tests/conftest.py" in problem


def test_a_relative_link_is_found(tmp_path: Path) -> None:
    (problem,) = check_wheel(wheel(tmp_path, description="see [the docs](docs/index.md)"))
    assert "docs/index.md" in problem


def test_an_sdist_has_the_sources_and_nothing_else(tmp_path: Path) -> None:
    assert check_sdist(sdist(tmp_path)) == []
    (problem,) = check_sdist(sdist(tmp_path, extra="tests/conftest.py"))
    assert "contains tests/conftest.py" in problem


def test_one_wheel_and_one_sdist_are_expected(tmp_path: Path, capsys) -> None:
    wheel(tmp_path)
    assert main([str(tmp_path)]) == 1
    assert "1 wheels and 0 sdists" in capsys.readouterr().err


def test_every_extra_is_tried() -> None:
    assert set(extras()) == set(CHECKS)
    assert {"sql", "spark", "tls"} <= set(CHECKS)


def test_the_commands_of_the_readme_are_tried() -> None:
    assert install_commands() == ["pip install .", "pip install dist/*.whl"]
    assert (ROOT / "README.md").is_file()
