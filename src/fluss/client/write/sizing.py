# SPDX-License-Identifier: Apache-2.0
"""How large the batches of a writer should grow before they leave."""

from __future__ import annotations

_FULL = 0.8
_SPARSE = 0.5
_SHRINK = 0.95
_GROW = 2.0


class BatchSizer:
    """The size at which a batch is complete: between a minimum and `writer.batch-size`, fitted to what was seen.

    A table that gets few rows sends its batches when their time is up, half empty; then a smaller size loses nothing,
    and keeps a sudden burst from sitting in one large batch until that is full. Full batches are the sign that there is
    much to send, so that the size grows fast and shrinks slowly.
    """

    def __init__(self, size_max: int, size_min: int, *, enabled: bool) -> None:
        self.size_max = size_max
        self.size_min = min(size_min, size_max)
        self.enabled = enabled
        self._target = float(size_max)

    @property
    def target(self) -> int:
        """Bytes at which a batch is complete."""
        return int(self._target)

    def sealed(self, size_bytes: int) -> None:
        """A batch left with `size_bytes`."""
        if not self.enabled:
            return
        if size_bytes >= self._target * _FULL:
            self._target = min(float(self.size_max), self._target * _GROW)
        elif size_bytes < self._target * _SPARSE:
            self._target = max(float(self.size_min), self._target * _SHRINK)
