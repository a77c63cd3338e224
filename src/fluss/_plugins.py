# SPDX-License-Identifier: Apache-2.0
"""Interfaces that one package owns and a package above it implements.

`client` and `server` never import the lake: each owns an interface and asks for its implementation here. `fluss`
itself, which knows all packages, says where the implementations are. They are imported when they are first asked for.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_modules: "dict[str, str]" = {}


def provide(interface: str, module: str) -> None:
    """Register which module implements an interface."""
    _modules[interface] = module


def implementation(interface: str) -> "Any":
    """Import and return the module that implements an interface."""
    name = _modules[interface]
    __import__(name)
    return sys.modules[name]
