# SPDX-License-Identifier: Apache-2.0
"""The child process that runs the SQL of one browser tab: a JSON line per question, one per answer.

It has no access to files and network but through the tables, an upper limit for its memory, and a folder of its own
for what DuckDB cannot hold in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import fluss
from fluss._lazy import import_extra
from fluss.console.json_values import rows_of
from fluss.console.settings import (
    ROWS_OF_EXPORT_MAX,
    ROWS_OF_SQL_MAX,
    SQL_DISK_BYTES_MAX,
    SQL_MEMORY_BYTES_MAX,
    SQL_OUT_OF_MEMORY,
    SQL_RESULT_CHARS_MAX,
    SQL_SECONDS_MAX,
    Settings,
)
from fluss.db.duckdb_setup import LOCKED, scratch_duckdb
from fluss.db.file_writers import open_writer
from fluss.db.sql_changes import CHANGES, READS, explained_at
from fluss.db.sql_text import Token, statements_of, tokens_of
from fluss.errors import FlussError, InvalidArgumentError

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

_READING = frozenset({"SELECT", "EXPLAIN"})
_WRITING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "DROP", "ALTER"})
_BATCH_ROWS = 2_048
_PARENT_CHECK_S = 1.0


class SqlWorker:
    """Runs the statements of one tab, one after the other, and keeps the last result for exports."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self._duckdb = import_extra("duckdb", "SQL needs DuckDB", "sql")
        self._parser = scratch_duckdb()
        """Without access to files: before 2.0, DuckDB reads them to parse IMPORT DATABASE."""
        self._read_only = settings.read_only
        self._folder = Path(folder)
        self._result: _Result | None = None
        login = settings.login(settings.user, settings.password)
        self._db = fluss.connect(
            settings.bootstrap_servers, **asdict(login), timeout=SQL_SECONDS_MAX, read_only=settings.read_only
        )
        spilled = str(self._folder / "spilled").replace("'", "''")
        for setting in (
            f"temp_directory='{spilled}'",
            f"max_temp_directory_size='{SQL_DISK_BYTES_MAX}B'",
            f"memory_limit='{SQL_MEMORY_BYTES_MAX * 2 // 3}B'",
            "threads=2",
            *LOCKED,
        ):
            self._db.sql(f"set {setting}")

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question; errors of DuckDB become errors with its own words."""
        try:
            if question["ask"] == "query":
                return self._query(question["text"])
            return self._export(question["result"], question["form"])
        except FlussError as error:
            return {"error": error.message, "kind": type(error).__name__}
        except MemoryError:  # Arrow's is one of its own errors as well
            raise
        except (self._duckdb.Error, pa.ArrowException, OSError) as error:  # the last two while rows are read
            return {"error": str(error), "kind": "InvalidArgumentError"}

    def _query(self, text: str) -> dict[str, Any]:
        self._result = None
        began = perf_counter()
        allowed = _READING if self._read_only else _READING | _WRITING
        kinds = [statement.type.name for statement in self._parser.extract_statements(text)]
        if not kinds:
            raise InvalidArgumentError("There is no statement. Write one such as SELECT * FROM orders.")
        for kind in kinds:
            if kind not in allowed:
                why = "this console is read-only" if kind in _WRITING else "it is not available in the console"
                raise InvalidArgumentError(f"{kind} is refused: {why}. Use SELECT.")
        for statement in statements_of(text):
            _check_explained(tokens_of(statement))
        found = _Result(self._db.sql(text))
        self._result = found if kinds[-1] in _READING else None
        shown, more = found.head(ROWS_OF_SQL_MAX)
        rows, chars = rows_of(shown), 0
        for at, row in enumerate(rows):
            chars += sum(len(str(cell)) for cell in row)
            if chars > SQL_RESULT_CHARS_MAX and at:
                rows, more = rows[:at], True
                break
        return {
            "result": None if self._result is None else found.id,
            "writes": not _READING.issuperset(kinds),
            "columns": found.columns,
            "types": found.types,
            "rows": rows,
            "more": more,
            "seconds": perf_counter() - began,
        }

    def _export(self, result: str, form: str) -> dict[str, Any]:
        found = self._result
        if found is None or found.id != result:
            raise InvalidArgumentError("This result is not kept any more. Run the query again.")
        path = self._folder / f"result.{form}"
        with open_writer(str(path), form, found.schema) as write:
            for batch in found.batches(ROWS_OF_EXPORT_MAX):
                write(batch)
        return {"path": str(path)}


def _check_explained(tokens: Sequence[Token]) -> None:
    """Refuse EXPLAIN of anything but a query or a change: with ANALYZE, COPY would write files and EXECUTE run."""
    if tokens[0].word != "explain":
        return
    at = explained_at(tokens)
    if tokens[at].text != "(" and tokens[at].word not in READS | CHANGES:
        raise InvalidArgumentError(f"EXPLAIN of {tokens[at].text.upper():.40} is refused. Use EXPLAIN SELECT.")


class _Result:
    """The rows of a statement, read from DuckDB as they are wanted and kept: it runs once only."""

    def __init__(self, relation: DuckDBPyRelation) -> None:
        self.id = secrets.token_urlsafe(12)
        self.columns = list(relation.columns)
        self.types = [str(kind) for kind in relation.types]
        self._relation = relation  # what the reader reads from
        self._reader: pa.RecordBatchReader = relation.to_arrow_reader(_BATCH_ROWS)
        self._kept: list[pa.RecordBatch] = []
        self.schema: pa.Schema = self._reader.schema

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of the first rows."""
        at = 0
        while rows > 0:
            if at == len(self._kept):
                batch = next(self._reader, None)
                if batch is None:
                    return
                self._kept.append(batch)
            yield self._kept[at].slice(0, rows)
            rows -= self._kept[at].num_rows
            at += 1

    def head(self, rows: int) -> tuple[pa.Table, bool]:
        """The first rows, and whether there are more."""
        found = pa.Table.from_batches(self.batches(rows + 1), self.schema)
        return found.slice(0, rows), found.num_rows > rows


def _limit_memory() -> None:
    """Let allocations fail beyond the limit. The process has reserved much of its address space already."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        reserved = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (reserved + SQL_MEMORY_BYTES_MAX,) * 2)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


def main() -> int:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints becomes part of an answer
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()

    start = json.loads(sys.stdin.buffer.readline())
    try:
        worker = SqlWorker(Settings(**start["settings"]), start["folder"])
        _limit_memory()
    except FlussError as error:
        send({"error": error.message, "kind": type(error).__name__})
        return 1
    send({})
    try:
        for line in sys.stdin.buffer:
            send(worker.answer(json.loads(line)))
    except MemoryError:  # what is left of the process is not worth trusting; the console says why it ended
        return SQL_OUT_OF_MEMORY
    return 0


if __name__ == "__main__":
    # The threads of DuckDB and of the connection need not end one by one.
    os._exit(main())
