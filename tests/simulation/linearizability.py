# SPDX-License-Identifier: Apache-2.0
"""Check that what concurrent clients saw of a key can be explained by one order of their calls.

Each call must seem to happen at one moment between its start and its end (Herlihy and Wing, 1990). The search is that
of Wing and Gong, with the states that were reached remembered (Lowe, 2017): of the calls that no unfinished one must
come before, each is tried as the next. Keys do not depend on each other, so each has a history of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

Row = tuple[int | None, int | str | None]
State = Row | None
"""The row of a key, without the key; None if there is none."""
Apply = Callable[[State], State]


@dataclass(eq=False)
class Call:
    """One call about one key."""

    text: str
    called_at: float
    apply: Apply | None = None
    """What a write does to the row; None for a lookup."""
    returned_at: float = inf
    """Never, if its client was not told: such a write may happen at any later moment, or not at all."""
    found: State = None
    """What a lookup found."""

    def __str__(self) -> str:
        end = "?" if self.returned_at == inf else f"{self.returned_at:.6f}"
        found = f" -> {self.found}" if self.apply is None else ""
        return f"[{self.called_at:.6f}, {end}] {self.text}{found}"


class NotLinearizableError(AssertionError):
    """No order of the calls explains what clients saw."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__("no order explains these calls:\n" + "\n".join(map(str, calls)))


def check(calls: Sequence[Call]) -> None:
    """Raise `NotLinearizableError` if the calls about one key, which has no row at first, have no possible order."""
    ordered = sorted(calls, key=lambda call: call.called_at)
    answered = sum(1 << at for at, call in enumerate(ordered) if call.returned_at < inf)
    tried: set[tuple[int, State]] = set()
    left: list[tuple[int, State]] = [(0, None)]
    while left:
        done, state = left.pop()
        if done & answered == answered:
            return
        if (done, state) in tried:
            continue
        tried.add((done, state))
        first_end = min(call.returned_at for at, call in enumerate(ordered) if not done >> at & 1)
        for at, call in enumerate(ordered):
            if call.called_at > first_end:
                break
            if done >> at & 1:
                continue
            if call.apply is not None:
                left.append((done | 1 << at, call.apply(state)))
            elif call.found == state:
                left.append((done | 1 << at, state))
    raise NotLinearizableError(ordered)
