# SPDX-License-Identifier: Apache-2.0
"""What an index shows of the package leads somewhere, whether the address of the repository is known or not."""

from __future__ import annotations

import re

from scripts.package_metadata import describe, project_urls
from tests.wheel.contents import ROOT

README = "![A diagram](docs/a.svg) [Docs](docs/index.md#top), [below](#more), [Fluss](https://fluss.apache.org)"
REPOSITORY = "https://example.org/fluss/python"


def test_without_an_address_links_become_their_text() -> None:
    assert describe(README, "", "1.2.3") == " Docs, [below](#more), [Fluss](https://fluss.apache.org)"
    assert project_urls("", "1.2.3") == {}


def test_links_and_images_lead_to_the_files_of_the_version() -> None:
    assert describe(README, REPOSITORY, "1.2.3") == (
        f"![A diagram]({REPOSITORY}/raw/v1.2.3/docs/a.svg) [Docs]({REPOSITORY}/blob/v1.2.3/docs/index.md#top), "
        "[below](#more), [Fluss](https://fluss.apache.org)"
    )


def test_all_that_the_index_links_to_is_in_the_repository() -> None:
    readme = describe((ROOT / "README.md").read_text(encoding="utf-8"), REPOSITORY, "1.2.3")
    linked = re.findall(r"\]\(([^)]+)\)", readme) + list(project_urls(REPOSITORY, "1.2.3").values())
    files = [re.sub(r"#.*|.*/v1\.2\.3/", "", address) for address in linked if "/v1.2.3/" in address]
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert all(address.startswith(("https://", "#")) for address in linked)
