# SPDX-License-Identifier: Apache-2.0
"""Short words for what many tests need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def raising(kind: type[BaseException], *args: object) -> Callable[..., Any]:
    """Make a function that fails with a new error at each call, whatever it is given."""

    def fail(*_: object, **__: object) -> Any:
        raise kind(*args)

    return fail
