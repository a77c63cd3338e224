# SPDX-License-Identifier: Apache-2.0
"""Results that are awaited although they are there: code of release 1.0 on the plain face.

Release 1.0 of the official client has coroutines where `fluss` has plain calls (`await scanner.to_arrow()`). Their
results are objects of pyarrow and pandas, or lists, which cannot be awaited. So a call looks at the instruction that
follows it: where that is an ``await`` of its result, which could only fail, the result comes in an awaitable.
"""

from __future__ import annotations

import asyncio
import dis
import sys
from collections.abc import Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

_GET_AWAITABLE = dis.opmap["GET_AWAITABLE"]
_CACHE = dis.opmap.get("CACHE")
"""Since Python 3.11 instructions are followed by room for what the interpreter has learnt of them."""
_STEP = 2


class _Ready(Generic[T]):
    """A result that is there."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, T]:
        return self._value
        yield


def awaitable_if_awaited(value: T) -> T:
    """Give the result of a plain call to a caller that may await it. Call it from the public function itself."""
    if asyncio._get_running_loop() is None:
        return value
    frame = sys._getframe(2)
    code = frame.f_code.co_code
    at = frame.f_lasti + _STEP
    while at < len(code) and code[at] == _CACHE:
        at += _STEP
    if at < len(code) and code[at] == _GET_AWAITABLE:
        return cast("T", _Ready(value))
    return value
