# SPDX-License-Identifier: Apache-2.0
"""Texts of errors and outputs: those of data or of a peer as they may stand in a terminal or a log, and suggestions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which terminals obey; marks that turn the order of what is read; what no encoding can hold."""
_NAMES_SHOWN = 20


def escaped(text: str, keep: str = "") -> str:
    r"""Return text with such characters written out, for instance ``\x1b``; those in `keep` stay.

    Letters of all languages and joined emoji stay as they are.
    """
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text)


def json_value(value: Any) -> Any:
    """Return a value as JSON can carry it: dates and times in ISO form, bytes as base64, other objects as text.

    JSON has no numbers for NaN and the infinities: they are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.

    Example:
        json_value(decimal.Decimal("1.50"))  # '1.50'
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    from decimal import Decimal

    return format(value, "f") if isinstance(value, Decimal) else str(value)  # str() would write 0.0000000 as 0E-7


def json_text(value: Any) -> str:
    """Return a value as one line of JSON; a parser gives back exactly the value, and a terminal obeys none of it."""
    import json  # errors load this module, and few programs print JSON

    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to add to an error about an unknown name: the nearest one, or all there are."""
    import difflib  # errors load this module

    names = list(known)
    lower = {one.lower(): one for one in reversed(names)}
    near = difflib.get_close_matches(str(name).lower(), list(lower), 1)
    if near:
        return f"; did you mean {lower[near[0]]!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"; there {'is' if len(names) == 1 else 'are'} {shown}{', …' if len(names) > _NAMES_SHOWN else ''}"
