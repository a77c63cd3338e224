# SPDX-License-Identifier: Apache-2.0
"""What `flush()` has to raise: rows that were not written, and whose `wait()` did not raise."""

from __future__ import annotations

import threading

from fluss.errors import FlussError

_ERRORS_MAX = 1000
"""So many different errors are kept apart between two flushes; rows beyond them are counted together."""


class _Failure:
    __slots__ = ("error", "rows", "where")

    def __init__(self, error: FlussError, where: str) -> None:
        self.error = error
        self.where = where
        self.rows = 0


class Failures:
    """Rows that were not written since the last flush. Rows fail, and are reported, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_error: dict[int, _Failure] = {}
        """By the identity of the error, which is kept alive here."""
        self._others: _Failure | None = None

    def add(self, rows: int, where: str, error: FlussError) -> None:
        """Count rows that failed with `error`. Call it before their tickets are complete."""
        with self._lock:
            failure = self._by_error.get(id(error))
            if failure is None and len(self._by_error) < _ERRORS_MAX:
                failure = self._by_error[id(error)] = _Failure(error, where)
            elif failure is None:
                failure = self._others = self._others or _Failure(error, where)
            failure.rows += rows

    def reported(self, error: FlussError, rows: int) -> None:
        """Take back rows that were reported to a caller in another way."""
        with self._lock:
            failure = self._by_error.get(id(error), self._others)
            if failure is None:
                return
            failure.rows -= rows
            if failure.rows <= 0:
                if failure is self._others:
                    self._others = None
                else:
                    del self._by_error[id(error)]

    def raise_first(self) -> None:
        """Raise the error of a `flush()`, if there is one.

        Call it in the task of the caller: one that comes from another task is dropped when the caller is cancelled.
        """
        error = self.take()
        if error is not None:
            raise error

    def take(self) -> FlussError | None:
        """Return the error that `flush()` raises, if any, and drop all of them."""
        with self._lock:
            failures = list(self._by_error.values())
            if self._others is not None:
                failures.append(self._others)
            self._by_error, self._others = {}, None
        if not failures:
            return None
        first, rows = failures[0], sum(failure.rows for failure in failures)
        counted = "1 row was" if rows == 1 else f"{rows} rows were"
        first_of = "" if rows == 1 else "; the first of them"
        text = f"{counted} not written to {first.where}{first_of}: {first.error.message}"
        return type(first.error)(text, first.error.error_code)
