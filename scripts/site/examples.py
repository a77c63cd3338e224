# SPDX-License-Identifier: Apache-2.0
"""An extension of griffe, which reads the docstrings for the API reference: examples become code blocks."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"(?m)^Example:\n((?:[ ]{4}.*\n?|\n)+)")


def fence(text: str) -> str:
    """Turn the indented lines below `Example:` into a block of Python, with anything behind it left as it is."""
    return _EXAMPLE.sub(lambda match: f"```python\n{textwrap.dedent(match[1]).strip()}\n```\n\n", text)


class Examples(Extension):
    """Rewrite the docstring of each object that is loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe."""
        if obj.docstring:
            obj.docstring.value = fence(obj.docstring.value)
