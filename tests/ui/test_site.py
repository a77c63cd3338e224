# SPDX-License-Identifier: Apache-2.0
"""The documentation site, opened from a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, Page


@pytest.mark.timeout(300)
def test_the_search_works_from_a_folder(page: Page, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="comes with the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=240, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    page.driver.get(f"file://{tmp_path}/index.html")
    page.element("input.md-search__input").send_keys("session_timeout")
    found = page.element("a.md-search-result__link[href*='groups.html']")
    page.until(lambda: "session_timeout" in found.get_attribute("textContent").lower())
    assert page.problems() == []
