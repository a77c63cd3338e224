# SPDX-License-Identifier: Apache-2.0
"""What writes give back, and what they raise."""

from __future__ import annotations

from dataclasses import dataclass

from fluss.errors import FlussError, InvalidRowError


@dataclass(frozen=True)
class WriteResult:
    """What a write did: how many rows are durable now, and how long that took.

    Example:
        result = orders.append([{"id": 1, "item": "tea"}])
        print(result.rows, result.seconds)
    """

    rows: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Rows by seconds."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def __repr__(self) -> str:
        return f"{self.rows} row{'' if self.rows == 1 else 's'} in {self.seconds:.3f} s"

    def _repr_html_(self) -> str:
        return f"<b>{self.rows:,}</b> row{'' if self.rows == 1 else 's'} in {self.seconds:.3f} s"


class RowRejectedError(InvalidRowError):
    """A row that does not fit the table, in the middle of a write.

    Example:
        try:
            orders.append(rows)
        except fluss.InvalidRowError as error:
            print(error.row, error.column, error.written)
    """

    written: int = 0
    """How many rows before it were written; they are durable."""

    @property
    def position(self) -> int:
        """The position of the row among those given, from 0: the attribute `row`."""
        return self.row or 0


def rejected(cause: FlussError, row: int, written: int) -> RowRejectedError:
    """The error about a row of a write, with what was written before it."""
    outcome = "nothing was written"
    if written and written < row:
        outcome = f"the first {written} rows were written, those after them were not"
    elif written:
        before = f"the {written} rows before it were" if written > 1 else "the row before it was"
        outcome = f"{before} written, it and those after it were not"
    error = RowRejectedError(
        cause.reason,
        table=cause.table,
        row=row,
        column=cause.column,
        column_type=cause.column_type,
        hint=f"{cause.hint}; {outcome}" if cause.hint else outcome,
    )
    error.written = written
    return error


def with_outcome(error: FlussError, outcome: str) -> FlussError:
    """An error that ended a write, with what became of the rows after its own hint."""
    return error.replace(hint=f"{error.hint}; {outcome}" if error.hint else outcome)


def with_rows_written(failure: Exception, written: int) -> Exception:
    """An error that ended a write, with what was written before it, if anything was.

    An error of ours has it in its message. One of the caller's own iterable keeps its message and gets a note; so does
    that of another write in it, which has already what that one has written.
    """
    if not written:
        return failure
    outcome = "the row before it was written" if written == 1 else f"the {written} rows before it were written"
    if isinstance(failure, FlussError) and not isinstance(failure, RowRejectedError):
        return with_outcome(failure, outcome)
    if hasattr(failure, "add_note"):  # Python 3.11
        failure.add_note(f"fluss: {outcome}")
    return failure
