# SPDX-License-Identifier: Apache-2.0
"""The pages that the site adds to those of docs/: complete, and with links that lead somewhere."""

from __future__ import annotations

import re
import runpy

import pytest
from tests.docs.blocks import ROOT

PAGES = runpy.run_path(str(ROOT / "scripts" / "site" / "pages.py"))


def test_every_public_name_is_in_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    check = PAGES["check_complete"]
    check()
    monkeypatch.setitem(check.__globals__, "REFERENCE", PAGES["REFERENCE"][1:])
    with pytest.raises(ValueError, match=r"fluss\.connect"):
        check()


def test_the_reference_names_what_the_sources_define() -> None:
    page = PAGES["reference_page"]("Title", {"fluss": "Table", "fluss.spark": "*"})
    assert "::: fluss.db.blocking.Table\n" in page
    assert "## `fluss.spark.session` { #fluss.spark.session }\n\n::: fluss.spark.launch.session\n" in page
    assert "[`session`](spark.md#fluss.spark.session)" in PAGES["reference_index"]()


def test_every_reference_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"- reference/([a-z-]+)\.md", nav)[1:] == [file for file, _, _ in PAGES["REFERENCE"]]


@pytest.mark.parametrize(
    ("link", "source", "target", "expected"),
    [
        ("../CHANGELOG.md", "docs/deploy.md", "deploy.md", "changelog.md"),
        ("../examples", "docs/index.md", "index.md", "examples/index.md"),
        ("../examples/shop.py", "docs/connect.md", "connect.md", "examples/shop.md"),
        ("shop.py", "examples/README.md", "examples/index.md", "shop.md"),
        ("docs/server.md#start", "CONTRIBUTING.md", "contributing.md", "server.md#start"),
        ("decisions/index.md", "docs/index.md", "index.md", "decisions/index.md"),
        ("https://fluss.apache.org", "docs/index.md", "index.md", "https://fluss.apache.org"),
        ("#below", "docs/index.md", "index.md", "#below"),
    ],
)
def test_links_of_the_repository_lead_to_the_site(link: str, source: str, target: str, expected: str) -> None:
    assert PAGES["relink"](f"see [it]({link}).", source, target) == f"see [it]({expected})."


def test_examples_of_docstrings_become_code() -> None:
    pytest.importorskip("griffe", reason="comes with the extra docs")
    fence = runpy.run_path(str(ROOT / "scripts" / "site" / "examples.py"))["fence"]
    text = "Do it.\n\nExample:\n    for x in y:\n        print(x)\n\nArgs:\n    y: What."
    assert fence(text) == "Do it.\n\n```python\nfor x in y:\n    print(x)\n```\n\nArgs:\n    y: What."


def test_the_site_loads_nothing_from_elsewhere() -> None:
    """The plugin for search from a folder takes a script from the network, unless the site has one of its own."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    script = re.search(r"polyfills: \[(assets/iframe-worker\.js)\]", settings)
    assert script is not None
    assert (ROOT / "docs" / script[1]).is_file()
    assert "- offline" in settings
