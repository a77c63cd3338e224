# SPDX-License-Identifier: Apache-2.0
"""The garbage collector of a server's process.

The event loop waits while the collector searches, so a search must be short. What a server keeps (modules, tables,
logs) stays for long, and neither requests nor connections nor dropped tables leave circles behind: reference counts
free them. Errors would leave some, with all that their tracebacks keep: `clear_tracebacks` is for where one is handled.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_YOUNG_MAX = 5_000
_OLDER_MAX = 1
_FROZEN_FROM = 1
"""Objects that survive two searches are frozen, in all about 20,000 at a time. Searched with all that came before them,
hundreds of thousands while thousands of buckets are opened, they would keep the event loop waiting for 40 to 120 ms."""


@contextmanager
def short_searches() -> Iterator[None]:
    """Search rarely, and never again what survived, until the end of the block.

    Frozen objects are still freed when their reference count says so. Only a circle that survives and is given up later
    is never found.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, _OLDER_MAX, _OLDER_MAX)
    gc.callbacks.append(_freeze_survivors)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze_survivors)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] >= _FROZEN_FROM:
        gc.freeze()


def clear_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error that was handled: nothing looks at them any more.

    A traceback keeps the frames it went through, with the request and its connection. Where one of them has the task,
    the future or the list that keeps the error, they are a circle. The error of a damaged log is raised again and
    again, and its traceback grows each time.
    """
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        seen.append(found)
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
