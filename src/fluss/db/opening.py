# SPDX-License-Identifier: Apache-2.0
"""A call that can be awaited, and entered: ``await connect()`` and ``async with connect() as db``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
ContextT = TypeVar("ContextT", bound=AbstractAsyncContextManager[Any])


class Opening(Coroutine[Any, Any, ContextT], Generic[ContextT]):
    """The coroutine that opens something, which is also a context manager of what it opens.

    Example:
        async with fluss.aio.connect("./shop") as db:
            print(await db.tables())
    """

    def __init__(self, coro: Coroutine[Any, Any, ContextT]) -> None:
        self._coro = coro
        self._opened: ContextT | None = None

    def send(self, value: Any) -> Any:
        return self._coro.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coro.throw(*error)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, ContextT]:
        return self._coro.__await__()

    async def __aenter__(self) -> ContextT:
        self._opened = await self._coro
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(self, *error: Any) -> bool | None:
        assert self._opened is not None
        return await self._opened.__aexit__(*error)


def opening(call: Callable[P, Coroutine[Any, Any, ContextT]]) -> Callable[P, Opening[ContextT]]:
    """Let the result of a coroutine function be entered without being awaited first."""

    @functools.wraps(call)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Opening[ContextT]:
        return Opening(call(*args, **kwargs))

    return begin
