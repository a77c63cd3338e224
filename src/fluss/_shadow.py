# SPDX-License-Identifier: Apache-2.0
"""Says so when another installed distribution claims the import name `fluss` too.

`pyfluss` (the official bindings) and an unrelated distribution named `fluss` install a package of the same name. Files
of the two then lie in one folder, or one hides the other, and errors look inexplicable.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable

OTHERS = {
    "pyfluss": "the official Rust-based client",
    "fluss": "an unrelated package",
}

_checked = False


class ShadowWarning(UserWarning):
    """Another installed distribution has a package named `fluss`."""


def installed_others(search_path: Iterable[str]) -> dict[str, str]:
    """Distributions on the search path that also install a package `fluss`: name to folder.

    The names of the metadata folders suffice; reading all metadata that is installed would cost more than `import`.
    """
    found: dict[str, str] = {}
    for entry in dict.fromkeys(search_path):
        try:
            names = os.listdir(entry or ".")
        except OSError:  # zip files, folders that do not exist
            continue
        for name in OTHERS:
            prefix = f"{name}-"
            if name not in found and any(
                n.startswith(prefix) and n.endswith((".dist-info", ".egg-info")) for n in names
            ):
                found[name] = entry
    return found


def check_once() -> None:
    """Warn, the first time only, for each other distribution that is installed."""
    global _checked
    if _checked:
        return
    _checked = True
    for name, folder in installed_others(sys.path).items():
        warnings.warn(
            f"The distribution '{name}' ({OTHERS[name]}) in {folder} also installs a package named 'fluss'; it and "
            f"'fluss-python' get in each other's way. Keep one of them: pip uninstall {name}, then "
            "pip install --force-reinstall fluss-python",
            ShadowWarning,
            stacklevel=4,
        )
