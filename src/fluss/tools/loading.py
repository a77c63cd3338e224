# SPDX-License-Identifier: Apache-2.0
"""Loading files into a table: streaming, with an exact account of what was written, rejected and left."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from fluss.db.inputs import Missing
from fluss.db.internals import open_sink, wait_for_writes
from fluss.db.suggest import check_columns
from fluss.errors import FlussError, InvalidArgumentError, InvalidRowError
from fluss.tools.drafts import identity_of
from fluss.tools.files import NOT_AN_OBJECT, UTF8, TextStyle, file_schema, is_stream, write_json
from fluss.tools.row_files import BadLine, FilePiece, RowFile

if TYPE_CHECKING:
    from fluss.client.write import WriteResultHandle
    from fluss.db.blocking import Database, Table
    from fluss.metadata import TableInfo

_IN_FLIGHT = 32
"""Batches that are sent before the first of them is waited for."""
_CHECKPOINT_S = 0.5
_READ_AHEAD = 4
_CHECK_S = 0.2


class RejectedRowError(InvalidRowError):
    """A row that does not fit ended a load. `report` says what was written before."""

    report: LoadReport


@dataclass
class LoadReport:
    """What a load has done so far."""

    written: int = 0
    """Rows that are durable."""
    rejected: int = 0
    skipped: int = 0
    """Rows that an earlier run wrote, by its checkpoint."""
    first_bad: BadLine | None = None
    seconds: float = 0.0

    @property
    def rows_per_second(self) -> float:
        """Written rows by seconds."""
        return self.written / self.seconds if self.seconds > 0 else 0.0


class LoadCheckpoint:
    """How many rows of each file are durable, in a small file: a load that was killed goes on from there.

    Rows that became durable right before a kill may be written again: of a log table, they are there twice then.
    """

    def __init__(self, path: str | None, info: TableInfo) -> None:
        self._path = path
        self._table = identity_of(info)
        self._files: dict[str, list[int]] = {}
        """By absolute path: the size and the time of the last change of a file, and the rows of it that are done."""
        self._saved_at = 0.0
        if path is not None and os.path.exists(path):
            try:
                with open(path, encoding="utf-8") as file:
                    document = json.load(file)
                found, self._files = document["table"], dict(document["files"])
            except (ValueError, KeyError, TypeError):
                raise InvalidArgumentError(f"'{path}' is not a checkpoint of a load") from None
            if found != self._table:
                raise InvalidArgumentError(f"the checkpoint '{path}' belongs to another table; remove it to start anew")

    def rows(self, file: str) -> int:
        """How many rows of a file are done. Refuse one that has changed since."""
        if self._path is None:
            return 0
        about = os.stat(file)
        state = [about.st_size, about.st_mtime_ns]
        *known, rows = self._files.get(os.path.abspath(file), [*state, 0])
        if not rows:
            self._files[os.path.abspath(file)] = [*state, 0]
        elif known != state:
            raise InvalidArgumentError(
                f"'{file}' has changed since {rows:,} of its rows were loaded: load a file with the others only, or "
                f"remove the checkpoint '{self._path}' to load all of them again"
            )
        return rows

    def advance(self, file: str, rows: int) -> None:
        """Note that so many rows of a file are done."""
        if self._path is not None:
            self._files[os.path.abspath(file)][-1] = rows
            if time.monotonic() - self._saved_at > _CHECKPOINT_S:
                self.save()

    def save(self) -> None:
        """Write the file, in one step."""
        if self._path is not None:
            write_json(self._path, {"table": self._table, "files": self._files})
            self._saved_at = time.monotonic()


class Load:
    """One load of files into a table.

    Example:
        load = Load(db, db.table("orders"), ["orders.csv"])
        print(load.run().written)
    """

    def __init__(
        self,
        db: Database,
        table: Table[Any],
        files: Sequence[str],
        *,
        kind: str | None = None,
        on_error: Literal["stop", "skip"] = "stop",
        rejects: str | None = None,
        atomic: bool = False,
        checkpoint: str | None = None,
        delete: bool = False,
        lines: Sequence[str] | None = None,
        exact: bool = False,
        missing: Missing = None,
        style: TextStyle = UTF8,
    ) -> None:
        if (atomic or checkpoint is not None) and lines is None:
            for file in filter(is_stream, files):
                raise InvalidArgumentError(
                    f"'{file}' can be read once only: write it to a file first, for its rows are read again"
                )
        if delete and not table.primary_key:
            raise InvalidArgumentError(f"table {table.path} has no primary key: nothing can be deleted from it")
        self._db = db
        self._table = table
        operation: Any = "delete" if delete else "upsert" if table.primary_key else "append"
        known = list(table.schema.column_names)
        if missing is not None and operation != "upsert":
            raise InvalidArgumentError(f"table {table.path}: --missing is for rows that are upserted")
        if missing == "keep":
            known = check_columns(_columns_of(files, kind, lines, style), table.info)
        self._sink = open_sink(db, table, operation, known if missing == "keep" else (), exact=exact)
        what = f"table {table.path}"
        whole = operation == "upsert" and not exact and missing != "null"
        self._files = [
            RowFile(file, self._sink.rows.columns, kind, what=what, known=known, lines=lines, whole=whole, style=style)
            for file in files
        ]
        self._on_error = on_error
        self._rejects = rejects
        self._atomic = atomic
        self._checkpoint = LoadCheckpoint(checkpoint, table.info)
        self._progress: Callable[[int], None] | None = None
        self._in_flight: deque[tuple[RowFile, int, int, list[WriteResultHandle]]] = deque()
        self._failure: FlussError | None = None
        self.report = LoadReport()

    def total(self) -> int | None:
        """How many rows all files have, if that is known beforehand."""
        counts = [file.total() for file in self._files]
        return sum(count for count in counts if count is not None) if None not in counts else None

    def validate(self) -> None:
        """Read everything and send nothing; raises for the first row that does not fit."""
        for file in self._files:
            for piece in file.pieces(self._checkpoint.rows(file.path)):
                if piece.bad:
                    raise self._rejected(piece.bad[0])

    def run(self, progress: Callable[[int], None] | None = None) -> LoadReport:
        """Write all rows, and wait until they are durable. Interrupted, `report` still says what was done.

        Args:
            progress: Called with the number of rows whenever some are durable.
        """
        self._progress = progress
        started = time.perf_counter()
        try:
            if self._atomic:
                self.validate()
            with self._rejects_file() as rejects:
                for file in self._files:
                    self._load(file, rejects)
        finally:
            try:
                self._await_writes(0)
            finally:
                self.report.seconds = time.perf_counter() - started
                self._checkpoint.save()
        return self.report

    def _load(self, file: RowFile, rejects: IO[str] | None) -> None:
        row = self._checkpoint.rows(file.path)
        self.report.skipped += row
        for piece in _ahead(file.pieces(row)) if not is_stream(file.path) else file.pieces(row):
            row += piece.rows
            if piece.bad and self._on_error == "stop":
                self._send(file, piece, piece.good_before, piece.bad[0].row)
                self._await_writes(0)
                raise self._rejected(piece.bad[0])
            for bad in piece.bad:
                self.report.first_bad = self.report.first_bad or bad
                if rejects is not None:
                    document = {"file": bad.file, "line": bad.line, "column": bad.column, "reason": bad.reason}
                    rejects.write(json.dumps({**document, "text": bad.text}, ensure_ascii=False) + "\n")
            if piece.bad and rejects is not None:
                rejects.flush()  # before the checkpoint passes them: a load that is killed goes on behind it
            self.report.rejected += len(piece.bad)
            self._send(file, piece, piece.batch.num_rows, row)

    def _send(self, file: RowFile, piece: FilePiece, rows: int, end: int) -> None:
        # Without a row to write, the checkpoint passes those that were rejected once the batches before are durable.
        batch = piece.batch if rows == piece.batch.num_rows else piece.batch.slice(0, rows)
        self._in_flight.append((file, rows, end, [self._sink.write(batch)] if rows else []))
        self._await_writes(_IN_FLIGHT)

    def _await_writes(self, left: int) -> None:
        """Wait until no more than so many batches are in flight; raise the first failure of the load."""
        while len(self._in_flight) > left:
            file, rows, end, handles = self._in_flight[0]  # it stays there if Ctrl-C ends the wait
            try:
                wait_for_writes(self._db, handles)
            except FlussError as error:
                self._failure = self._failure or error
                rows = 0
            self._in_flight.popleft()
            self.report.written += rows
            if self._failure is None:  # a resumed load begins with the batch that failed
                self._checkpoint.advance(file.path, end)
            if self._progress is not None:
                self._progress(rows)
        if self._failure is not None:
            raise self._failure

    def _rejected(self, bad: BadLine) -> RejectedRowError:
        self.report.first_bad = bad
        error = RejectedRowError(str(bad))
        error.report = self.report
        return error

    def _rejects_file(self) -> contextlib.AbstractContextManager[IO[str] | None]:
        if self._rejects is None:
            return contextlib.nullcontext()
        resumed = any(self._checkpoint.rows(file.path) for file in self._files)
        return open(self._rejects, "a" if resumed else "w", encoding="utf-8")


def _columns_of(files: Sequence[str], kind: str | None, lines: Sequence[str] | None, style: TextStyle) -> list[str]:
    """The columns of files that have some of a table: those of the first one."""
    if lines is None:
        return list(file_schema(files[0], kind, style).names)
    try:
        return list(json.loads(lines[0]))
    except (ValueError, TypeError):
        raise InvalidArgumentError(f"{lines[0]!r:.60} is {NOT_AN_OBJECT}") from None


def _ahead(pieces: Iterator[FilePiece]) -> Iterator[FilePiece]:
    """Read the next pieces in a thread while those before them are sent: decoding and writing alternate otherwise."""
    with ThreadPoolExecutor(1, "fluss-load") as reader:
        waiting = deque(reader.submit(next, pieces, None) for _ in range(_READ_AHEAD))
        try:
            while (piece := _result(waiting.popleft())) is not None:
                waiting.append(reader.submit(next, pieces, None))
                yield piece
        finally:
            reader.shutdown(wait=False, cancel_futures=True)


def _result(reading: Future[FilePiece | None]) -> FilePiece | None:
    while not wait([reading], _CHECK_S).done:
        pass  # not in one go: Ctrl-C is seen between two waits
    return reading.result()
