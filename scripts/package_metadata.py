# SPDX-License-Identifier: Apache-2.0
"""What an index shows of the package: the README, with links that lead somewhere, and the addresses of the project.

The build backend runs this. Where the environment variable `REPOSITORY_URL` gives the address of the repository, as in
the release workflow, links and images lead to the files of this version there. Otherwise links become their text, and
images are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


def describe(readme: str, repository_url: str, version: str) -> str:
    """Return the README as it works outside the repository."""
    if not repository_url:
        return _LINK.sub(r"\1", _IMAGE.sub("", readme))
    files, images = (f"{repository_url}/{kind}/v{version}" for kind in ("blob", "raw"))
    return _LINK.sub(rf"[\1]({files}/\2)", _IMAGE.sub(rf"![\1]({images}/\2)", readme))


def project_urls(repository_url: str, version: str) -> Mapping[str, str]:
    """Return the addresses that an index lists beside the README."""
    if not repository_url:
        return {}
    files = f"{repository_url}/blob/v{version}"
    return {
        "Documentation": f"{files}/docs/index.md",
        "Source": repository_url,
        "Issues": f"{repository_url}/issues",
        "Changelog": f"{files}/CHANGELOG.md",
    }


class PackageMetadata(MetadataHookInterface):
    """Gives the build backend `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository_url = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = describe(readme, repository_url, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = dict(project_urls(repository_url, metadata["version"]))
