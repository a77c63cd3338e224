# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that would be accepted in silence: text for a list of names, True for a number.

What fails anyway is left to Python.
"""

from __future__ import annotations

import functools
import itertools
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fluss.errors import InvalidArgumentError

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
T = TypeVar("T")


def wrong_argument(call: str, name: str, accepted: str, value: object) -> InvalidArgumentError:
    """Describe a value that a parameter of a call does not take."""
    return InvalidArgumentError(f"{call}(): {name} must be {accepted}, got {_shown(value)}")


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_ITEMS_SHOWN = 6
_PLAIN = frozenset({bool, float, int, str, type(None)})


def _shown(value: object) -> str:
    """Show a value with its type. A dict with texts for keys may be options, and those secrets: values stay out."""
    kind = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        pairs = itertools.islice(value.items(), _ITEMS_SHOWN)
        items = ", ".join(f"{_short.repr(key)}: {_item(one, type(key) is str)}" for key, one in pairs)
        return f"{kind} {{{items}}}"
    if isinstance(value, (list, tuple)):
        return f"{kind} [{', '.join(_item(one) for one in value[:_ITEMS_SHOWN])}]"
    return f"{kind} {_short.repr(value)}"


def _item(value: object, is_option: bool = False) -> str:
    return _short.repr(value) if type(value) in _PLAIN and not is_option else type(value).__name__


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are none, though Python counts with them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_seconds(value: Any) -> bool:
    """Whether a value is a time to wait that may be none at all."""
    return is_number(value) and value >= 0


def integer(call: str, name: str, value: Any) -> int:
    """Return a value as an integer of at most 64 bits. Those of numpy are integers too; True and False are not."""
    if hasattr(type(value), "__index__") and not isinstance(value, bool):
        number = int(value.__index__())
        if -(1 << 63) <= number < 1 << 63:
            return number
    raise wrong_argument(call, name, "an integer of at most 64 bits", value)


def strings(call: str, name: str, values: Any) -> list[str]:
    """Return several strings as a list. One string alone is refused: it is iterable too."""
    if not isinstance(values, (str, bytes, Mapping)) and isinstance(values, Iterable):
        listed = list(values)
        if all(isinstance(value, str) for value in listed):
            return listed
    raise wrong_argument(call, name, "a list of strings", values)


def instance(call: str, name: str, value: Any, kind: type[T], example: str = "") -> T:
    """Return a value that is an object of a class."""
    if not isinstance(value, kind):
        an = "an" if kind.__name__[0] in "AEIO" else "a"
        raise wrong_argument(call, name, f"{an} {kind.__name__}{example}", value)
    return value


def also_called(**names: str) -> Callable[[FunctionT], FunctionT]:
    """Let a coroutine function take keywords of the reference documents: their names, and those of its parameters."""

    def decorate(function: FunctionT) -> FunctionT:
        @functools.wraps(function)
        async def call(*arguments: Any, **named: Any) -> Any:
            for other, name in names.items():
                if other in named:
                    named[name] = named.pop(other)
            return await function(*arguments, **named)

        return call  # type: ignore[return-value]

    return decorate
