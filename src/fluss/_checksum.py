# SPDX-License-Identifier: Apache-2.0
"""CRC-32C, taken out of its package.

The package reads its own version when it is imported, which brings the standard library's readers of archives and mail
along, about 4 MB in every process. Only the compiled function is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _find() -> Callable[..., int]:
    found: Callable[..., int]
    if "crc32c" not in sys.modules:
        package = PathFinder.find_spec("crc32c")
        compiled = package and PathFinder.find_spec("_crc32c", package.submodule_search_locations)
        if compiled and compiled.loader:
            module = module_from_spec(compiled)
            compiled.loader.exec_module(module)
            found = module.crc32c
            return found
    import crc32c as whole

    found = whole.crc32c
    return found


crc32c = _find()
