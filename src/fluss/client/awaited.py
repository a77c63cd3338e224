# SPDX-License-Identifier: Apache-2.0
"""Coroutines that say so when they are used without `await`.

``table = conn.get_table(path)`` gives a coroutine, and ``table.new_scan()`` would fail with "'coroutine' object has no
attribute 'new_scan'", which tells a beginner nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Awaited(Coroutine[Any, Any, T]):
    """A coroutine with a name for errors."""

    __slots__ = ("_coro", "_what")

    def __init__(self, coro: Coroutine[Any, Any, T], what: str) -> None:
        self._coro = coro
        self._what = what

    def __await__(self) -> Generator[Any, None, T]:
        return self._coro.__await__()

    def send(self, value: Any) -> Any:
        return self._coro.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coro.throw(*error)

    def close(self) -> None:
        self._coro.close()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self._what}() was not awaited, so its result has no {name!r}: write await {self._what}(…)"
        )

    def __enter__(self) -> NoReturn:
        raise TypeError(f"{self._what}() was not awaited: write with await {self._what}(…)")

    __aenter__ = __enter__

    def __exit__(self, *_: object) -> None: ...

    __aexit__ = __exit__

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self._what}() was not awaited: write await {self._what}(…)")

    __aiter__ = __iter__

    def __repr__(self) -> str:
        return f"<{self._what}(), not awaited>"


def awaited(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make the coroutines of a function say that they must be awaited."""
    what = function.__qualname__

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return Awaited(function(*args, **kwargs), what)

    call.is_awaited = True  # type: ignore[attr-defined]
    return call
